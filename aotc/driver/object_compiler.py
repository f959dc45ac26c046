# SPDX-License-Identifier: Apache-2.0
"""Compile the C files of a folder to object files, in parallel, and cache the object files.

compiler = ObjectCompiler(toolchain, ("-std=c99", "-Iinclude"), folder)
compiler.compile_objects_in_parallel([(folder / "net.c", folder / "net.o")])
"""

import os
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final

from aotc.driver.compiled_system import flags_for_compiler
from aotc.driver.object_cache import sha256_of_parts
from aotc.driver.subprocesses import kill_all_started_programs
from aotc.driver.toolchain import (
    Toolchain,
    compiler_identity_hash,
    run_compiler,
    run_compiler_command,
    usable_cpu_feature_flags,
)
from aotc.ir import report_progress

#: Prefixes of flags that write further files, or read files that the preprocessor does not show.
UNCACHED_FLAG_PREFIXES = (
    "--coverage",
    "-fprofile",
    "-ftest-coverage",
    "-save-temps",
    "-M",
    "@",
    "-fplugin",
    "-specs",
    "--specs",
)


_COMMENT_PATTERN: Final = rb"/\*.*?\*/"
_INCLUDE_LINE_PATTERN: Final = rb"#[ \t]*include[ \t]+(?:<[^>\n]+>|\"[^\"\n]+\")(?=[ \t]*\n)"
_LEADING_INCLUDES_PATTERN: Final = re.compile(
    rb"(?:\s+|" + _COMMENT_PATTERN + rb"|" + _INCLUDE_LINE_PATTERN + rb")*", re.DOTALL
)
_STRING_OR_COMMENT_PATTERN: Final = re.compile(
    rb"(\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*')|" + _COMMENT_PATTERN + rb"|//[^\n]*", re.DOTALL
)
#: Matches text whose preprocessing depends on more than the macros defined before it.
_CONTEXT_DEPENDENT_PATTERN: Final = re.compile(
    rb"include|embed|__has_|__(?:FILE|BASE_FILE|LINE|DATE|TIME|TIMESTAMP|COUNTER|INCLUDE_LEVEL)__|\\\n|\?\?"
)


def _split_leading_includes(c_source: bytes) -> tuple[bytes, bytes] | None:
    """Split a C file into its leading #include lines and the remaining text without comments.

    None if the remaining text may preprocess differently depending on its context (__LINE__,
    further includes, ...).
    """
    match = _LEADING_INCLUDES_PATTERN.match(c_source)
    begin = match[0] if match is not None else b""
    rest = _STRING_OR_COMMENT_PATTERN.sub(lambda part: part[1] or b" ", c_source[len(begin) :])
    if _CONTEXT_DEPENDENT_PATTERN.search(rest):
        return None
    return b"\n".join(
        [*re.findall(_INCLUDE_LINE_PATTERN, re.sub(_COMMENT_PATTERN, b" ", begin, flags=re.DOTALL)), b""]
    ), rest


@dataclass(frozen=True)
class ObjectCompiler:
    """Compiles C files in a directory to object files, reusing cached objects.

    flags     compiler flags of all files
    special   additional flags of some files, before the user's flags

    The cache key of an object is a hash of the preprocessed file, so that headers and macros count
    and comments do not.  For files that begin with equal includes, the preprocessor runs once on
    these includes, and the remaining text is hashed as it is.
    """

    toolchain: Toolchain
    flags: tuple[str, ...]
    directory: Path
    special: Mapping[Path, Sequence[str]] = field(default_factory=dict)
    _headers: dict[tuple[str, ...], bytes | None] = field(default_factory=dict, repr=False)

    @cached_property
    def _object_cache_key_salt(self) -> str:
        """A hash that separates cached objects of different toolchains, and of different CPUs for
        -march=native.
        """
        toolchain = self.toolchain
        native = any("native" in flag for flag in (*toolchain.cc, *self.flags, *toolchain.cflags))
        cpu = " ".join(sorted(usable_cpu_feature_flags())) if native else ""
        return sha256_of_parts(compiler_identity_hash(toolchain), *toolchain.cc, cpu)

    def _flags_for_source(self, source: Path) -> tuple[str, ...]:
        flags = (*self.flags, *self.special.get(source, ()), *self.toolchain.cflags)
        return flags_for_compiler(self.toolchain.cc, flags)

    def compile_to_object(self, source: Path, object_file: Path) -> None:
        """Compile one file, or copy its object from the cache; AotcError (code "compiler-failed")
        on failure.
        """
        cache, key = self.toolchain.cache, self._object_cache_key(source)
        if cache is not None and key is not None and (data := cache.get(key)) is not None:
            object_file.write_bytes(data)
            return
        name = str(source.relative_to(self.directory))
        command = (*self.toolchain.cc, *self._flags_for_source(source), "-c", name, "-o", str(object_file))
        run_compiler(command, self.directory, self.toolchain.seconds, object_file)
        if cache is not None and key is not None:
            cache.put(key, object_file.read_bytes())

    def _object_cache_key(self, source: Path) -> str | None:
        """Return the cache key of an object; None if it may depend on files that the preprocessor
        does not read.
        """
        flags = self._flags_for_source(source)
        uncached = any(flag.startswith(UNCACHED_FLAG_PREFIXES) for flag in (*self.toolchain.cc[1:], *flags))
        if self.toolchain.cache is None or source.suffix != ".c" or uncached:
            return None
        # keep line markers for debuggers
        debugging = any(flag.startswith("-g") for flag in flags)
        if not debugging and (parts := _split_leading_includes(source.read_bytes())):
            headers, rest = parts
            known = self._preprocess_includes_once(
                headers, (*flags, "-iquote", str(source.parent.relative_to(self.directory)))
            )
            if known is not None:
                return sha256_of_parts("behind headers", self._object_cache_key_salt, *flags, known, rest)
        text = self._run_preprocessor(*flags, *(() if debugging else ("-P",)), str(source.relative_to(self.directory)))
        return sha256_of_parts(self._object_cache_key_salt, *flags, text) if text else None

    def _run_preprocessor(self, *arguments: str, text: bytes = b"") -> bytes | None:
        """Run the C preprocessor (cc -E); return its output, None if it fails."""
        command = (*self.toolchain.cc, *arguments, "-E")
        done = run_compiler_command(command, self.toolchain.seconds, self.directory, text)
        return done.output if done.code == 0 else None

    def _preprocess_includes_once(self, include_lines: bytes, flags: Sequence[str]) -> bytes | None:
        """Return the preprocessed includes with the macros that they define (-dD); computed once
        per set of flags.
        """
        key = (include_lines.decode("latin-1"), *flags)
        if key not in self._headers:
            self._headers[key] = self._run_preprocessor(*flags, "-dD", "-P", "-x", "c", "-", text=include_lines)
        return self._headers[key]

    def compile_objects_in_parallel(self, jobs: Sequence[tuple[Path, Path]]) -> None:
        """Compile (source, object) pairs in parallel, one job per processor, and trim the cache
        afterwards.
        """
        with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
            try:
                running = {pool.submit(self.compile_to_object, *job): job[0].name for job in jobs}
                report_progress(0, len(jobs), jobs[0][0].name if jobs else "")
                for done, result in enumerate(as_completed(running), 1):
                    result.result()
                    report_progress(done, len(jobs), running[result])
            except BaseException as error:
                pool.shutdown(wait=False, cancel_futures=True)
                if not isinstance(error, Exception):
                    # an interrupt
                    kill_all_started_programs()
                raise
        if self.toolchain.cache is not None and self.toolchain.cache.misses:
            self.toolchain.cache.trim_cache_if_enough_was_added()
