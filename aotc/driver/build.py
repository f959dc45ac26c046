# SPDX-License-Identifier: Apache-2.0
"""An emitted project to a shared library, without make: the C files compile in parallel,
and objects that were compiled before come from the cache.

build_library(directory, metadata, toolchain, target)        # directory/lib/libnet.so
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aotc_codegen.c.flags import cflags

from aotc.driver.toolchain import ObjectCompiler, Toolchain, run_compiler
from aotc.tir.target import Target

_LINK_FLAGS = ("-Wl,--build-id=none",) if sys.platform == "linux" else ()
"""Without a hash of all parameters, which takes most of the time of linking."""


def build_library(
    directory: Path, metadata: Mapping[str, Any], toolchain: Toolchain, target: Target, *, visible: bool = False
) -> Path:
    """Compile and link the project in `directory`; the path of the library.

    visible   every function can be called from outside, not only those that are marked

    Raises AotcError (code "compiler-failed") with the compiler's message.
    """
    library = directory / str(metadata["library"])
    library.parent.mkdir(exist_ok=True)
    sources = sorted(
        path for pattern in ("src/*.c", "src/*.S", "runtime/aotc_rt.c") for path in directory.glob(pattern)
    )
    sources = [s for s in sources if s.name != "params_to_c.c"]
    flags = (
        "-std=c99",
        "-fPIC",
        *(() if visible else ("-fvisibility=hidden",)),
        "-Iinclude",
        "-Isrc",
        *cflags(target),
        *toolchain.cflags,
    )
    with tempfile.TemporaryDirectory(prefix="aotc-objects-") as scratch:
        objects = [str(Path(scratch) / f"{source.name}.o") for source in sources]
        # the largest first: they take longest
        jobs = sorted(zip(sources, objects, strict=True), key=lambda job: -job[0].stat().st_size)
        ObjectCompiler.of(toolchain, flags, directory).compile_all([(s, Path(o)) for s, o in jobs])
        link = (*toolchain.cc, "-shared", *toolchain.cflags, *objects, "-lm", *_LINK_FLAGS)
        run_compiler((*link, "-o", str(metadata["library"])), directory)
    return library
