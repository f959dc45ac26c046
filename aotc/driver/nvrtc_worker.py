# SPDX-License-Identifier: Apache-2.0
"""NVRTC in a process of its own, so that several work at once and none takes the caller's memory with it.

python nvrtc_worker.py LIBRARY                       # its version, then the architectures that it knows
python nvrtc_worker.py LIBRARY FLAG...               # reads CUDA; writes a length (8 bytes), so much code, PTX

What the compiler says goes to the error output; the exit status is its result.  Nothing but the standard library is
imported: the process starts at once.
"""

import ctypes
import sys
from collections.abc import Sequence
from typing import Any


def _describe(nvrtc: Any) -> str:
    major, minor, count = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    nvrtc.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    nvrtc.nvrtcGetNumSupportedArchs(ctypes.byref(count))
    found = (ctypes.c_int * count.value)()
    nvrtc.nvrtcGetSupportedArchs(found)
    return " ".join(map(str, (major.value, minor.value, *found)))


def _taken(nvrtc: Any, what: str, program: Any) -> bytes:
    """Something that a program has, by its name in the interface."""
    size = ctypes.c_size_t()
    getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    data = ctypes.create_string_buffer(max(1, size.value))
    getattr(nvrtc, f"nvrtcGet{what}")(program, data)
    return data.raw[: size.value]


def _compile(nvrtc: Any, text: bytes, flags: Sequence[str]) -> int:
    program = ctypes.c_void_p()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), text, b"kernels.cu", 0, None, None)
    options = (ctypes.c_char_p * len(flags))(*(flag.encode() for flag in flags))
    result = int(nvrtc.nvrtcCompileProgram(program, len(flags), options))
    sys.stderr.write(_taken(nvrtc, "ProgramLog", program).rstrip(b"\0").decode("utf-8", "replace"))
    if result == 0:
        code, ptx = _taken(nvrtc, "CUBIN", program), _taken(nvrtc, "PTX", program)
        sys.stdout.buffer.write(len(code).to_bytes(8, "little") + code + ptx)
    return result


def main(path: str, *flags: str) -> int:
    """What the exit status of the process is."""
    nvrtc = ctypes.CDLL(path)
    if flags:
        return _compile(nvrtc, sys.stdin.buffer.read(), flags)
    print(_describe(nvrtc))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
