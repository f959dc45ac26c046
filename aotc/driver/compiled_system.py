# SPDX-License-Identifier: Apache-2.0
"""Operating systems that C compilers compile for: the names of their shared libraries, and the flags that differ.

system = system_of_triple("x86_64-w64-mingw32")                    # WINDOWS
system.shared_library_path("lib/libnet.so")                        # "lib/libnet.dll"
flags_for_compiler(("zig", "cc"), ["-march=armv8.2-a+dotprod"])    # ("-mcpu=generic+v8_2a+dotprod",)
"""

import importlib.util
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import PurePath
from typing import Final

from aotc.ir import frozen


@frozen
class OperatingSystem:
    """What differs between operating systems in the compilation of a shared library.

    name             "linux", "macos" or "windows"; systems that aotc does not know count as Linux
    triple_words     words in the target triples of compilers for it
    library_suffix   suffix of shared libraries
    object_flags     compiler flags of all files of a shared library
    math_flags       linker flags for the functions of <math.h>
    thread_flags     compiler and linker flags for programs with threads
    """

    name: str
    triple_words: tuple[str, ...]
    library_suffix: str
    object_flags: tuple[str, ...] = ("-fPIC",)
    math_flags: tuple[str, ...] = ()
    thread_flags: tuple[str, ...] = ()

    def shared_library_path(self, path: str) -> str:
        """Return the path of a shared library with this system's suffix; other paths as they are."""
        is_shared = PurePath(path).suffix in _LIBRARY_SUFFIXES
        return str(PurePath(path).with_suffix(self.library_suffix).as_posix()) if is_shared else path

    def library_name_flags(self, library_name: str) -> tuple[str, ...]:
        """Return the linker flags for the name under which programs look for the library at start."""
        return (f"-Wl,-install_name,@rpath/{library_name}",) if self is MACOS else ()


LINUX: Final = OperatingSystem("linux", ("linux",), ".so", math_flags=("-lm",), thread_flags=("-pthread",))
#: The C library of macOS contains the functions of <math.h> and threads.
MACOS: Final = OperatingSystem("macos", ("darwin", "macos", "apple"), ".dylib")
#: All code for Windows is position-independent, and clang refuses -fPIC there.
WINDOWS: Final = OperatingSystem("windows", ("mingw", "windows", "cygwin", "msys"), ".dll", object_flags=())
_SYSTEMS: Final = (LINUX, MACOS, WINDOWS)
_LIBRARY_SUFFIXES: Final = tuple(system.library_suffix for system in _SYSTEMS)


def system_of_this_machine() -> OperatingSystem:
    """Return the operating system of this machine."""
    return {"darwin": MACOS, "win32": WINDOWS}.get(sys.platform, LINUX)


def system_of_triple(triple: str) -> OperatingSystem:
    """Return the operating system of a target triple, the text that compilers print for -dumpmachine; that of this
    machine for a triple without a known system.
    """
    fitting = (s for s in _SYSTEMS if any(word in triple for word in s.triple_words))
    return next(fitting, system_of_this_machine())


def flags_of_mingw_gcc(triple: str) -> tuple[str, ...]:
    """Return the flags that gcc for Windows needs for vectors of more than 16 bytes; () for other compilers.

    gcc aligns the stack there to 16 bytes, and reads and writes wider vectors on it by instructions that fault unless
    the address is a multiple of their size (GCC bug 54412). The assembler replaces these instructions. A triple with
    the word "mingw" is one of gcc's: clang writes "windows-gnu".
    """
    return ("-Wa,-muse-unaligned-vector-move",) if re.match(r"x86_64-.*mingw", triple) else ()


_ARM_ARCHITECTURE_PATTERN: Final = re.compile(r"-march=armv(8|9)(?:\.(\d))?-a((?:\+\w+)*)")


def flags_for_compiler(cc: Sequence[str], flags: Sequence[str]) -> tuple[str, ...]:
    """Return compiler flags with the names of processors that a compiler knows.

    `zig cc` runs clang, and reads the flag -march itself: x86-64-v3 is called x86_64_v3 there, and versions of the
    architecture of Arm are features of a generic processor.
    """
    return tuple(map(_zig_flag, flags)) if is_zig(cc) else tuple(flags)


def is_zig(cc: Sequence[str]) -> bool:
    """Return True if a compiler command starts the C compiler of zig: `zig cc` or `python -m ziglang cc`."""
    return bool(cc) and (PurePath(cc[0]).stem in ("zig", "python-zig") or tuple(cc[1:3]) == ("-m", "ziglang"))


def _zig_flag(flag: str) -> str:
    if match := _ARM_ARCHITECTURE_PATTERN.fullmatch(flag):
        version, minor, features = match.groups()
        architecture = f"+v{version}_{minor}a" if minor else f"+v{version}a"
        return f"-mcpu=generic{architecture}{features}"
    return flag.replace("-", "_").replace("_march", "-march", 1) if flag.startswith("-march=x86-64") else flag


def split_command_line(text: str) -> tuple[str, ...]:
    """Split a compiler command into words as shells do; on Windows a backslash is part of a path, and becomes a slash.

    Raises ValueError for a quotation without an end.
    """
    return tuple(shlex.split(text.replace("\\", "/") if system_of_this_machine() is WINDOWS else text))


def native_compiler_commands() -> list[tuple[str, ...]]:
    """Return the commands of C compilers that are tried in turn for this machine.

    Windows has no `cc`. The C compiler of zig comes last: as a command, and as the Python package `ziglang`.
    """
    names = ("gcc", "clang") if system_of_this_machine() is WINDOWS else ("cc", "gcc", "clang")
    has_package = importlib.util.find_spec("ziglang") is not None
    package = [(sys.executable, "-m", "ziglang", "cc")] if has_package else []
    return [*((name,) for name in names), ("zig", "cc"), *package]
