# SPDX-License-Identifier: Apache-2.0
"""Run NVRTC in a separate process, so that several compilations run in parallel and use no memory
of the caller.

python nvrtc_worker.py LIBRARY                       # its version, then the architectures that it knows
python nvrtc_worker.py LIBRARY FLAG...               # reads CUDA; writes a length (8 bytes), so much code, PTX

The compiler's messages go to standard error; the exit status is NVRTC's result code.  Only the
standard library is imported, so that the process starts quickly.
"""

import ctypes
import sys
from collections.abc import Sequence
from typing import Any


def _version_and_architectures_text(nvrtc: Any) -> str:
    major, minor, count = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    nvrtc.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    nvrtc.nvrtcGetNumSupportedArchs(ctypes.byref(count))
    archs = (ctypes.c_int * count.value)()
    nvrtc.nvrtcGetSupportedArchs(archs)
    return " ".join(map(str, (major.value, minor.value, *archs)))


def _nvrtc_result_bytes(nvrtc: Any, result_name: str, program: Any) -> bytes:
    """Return a result of a compiled NVRTC program: "ProgramLog", "CUBIN" or "PTX"."""
    size = ctypes.c_size_t()
    getattr(nvrtc, f"nvrtcGet{result_name}Size")(program, ctypes.byref(size))
    data = ctypes.create_string_buffer(max(1, size.value))
    getattr(nvrtc, f"nvrtcGet{result_name}")(program, data)
    return data.raw[: size.value]


def _compile_to_stdout_and_return_status(nvrtc: Any, cuda_source: bytes, flags: Sequence[str]) -> int:
    program = ctypes.c_void_p()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), cuda_source, b"kernels.cu", 0, None, None)
    options = (ctypes.c_char_p * len(flags))(*(flag.encode() for flag in flags))
    result = int(nvrtc.nvrtcCompileProgram(program, len(flags), options))
    sys.stderr.write(_nvrtc_result_bytes(nvrtc, "ProgramLog", program).rstrip(b"\0").decode("utf-8", "replace"))
    if result == 0:
        code, ptx = _nvrtc_result_bytes(nvrtc, "CUBIN", program), _nvrtc_result_bytes(nvrtc, "PTX", program)
        sys.stdout.buffer.write(len(code).to_bytes(8, "little") + code + ptx)
    return result


def print_nvrtc_version_or_compile_stdin(nvrtc_library: str, *flags: str) -> int:
    """Print NVRTC's version and architectures, or with flags compile standard input; return the
    exit status.
    """
    nvrtc = ctypes.CDLL(nvrtc_library)
    if flags:
        return _compile_to_stdout_and_return_status(nvrtc, sys.stdin.buffer.read(), flags)
    print(_version_and_architectures_text(nvrtc))
    return 0


if __name__ == "__main__":
    sys.exit(print_nvrtc_version_or_compile_stdin(*sys.argv[1:]))
