# SPDX-License-Identifier: Apache-2.0
"""GPUs that run models compiled for them: opened once for each loaded library, a session for each run at a time.

device = open_device(library, 0)         # None for a library without code for GPUs
session = DeviceSession(device)
library.run(inputs, outputs, session.pointer, ffi.NULL)

What a process has opened is of no use in its forked children.
"""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress
from typing import Any, Final

from aotc.ir.diagnostics import AotcError
from aotc.runtime.abi import STATUS_MESSAGES, ffi
from aotc.runtime.library import Library

_CUDA: Final = next(code for code, text in STATUS_MESSAGES.items() if "reports an error" in text)
_MESSAGE_BYTES: Final = 512


def open_device(library: Library, number: int | None) -> Device | None:
    """GPU `number` with the code and weights of a library; the first for None.

    Raises AotcError (code "gpu"): there is no driver, no such GPU, no code for it, or no memory; or a number is
    given and the library is not for GPUs.
    """
    if hasattr(library.handle, "aotc_model_cuda_program"):
        return Device(library, number or 0)
    if number is not None:
        text = f"{library.path} does not run on GPUs"
        raise AotcError("gpu", text, hint="leave device out, or compile with --target cuda")
    return None


def gpus() -> int:
    """How many GPUs there are whose driver can be loaded; the one that $AOTC_CUDA_DRIVER names, if it is set."""
    windows = sys.platform == "win32"
    path = os.environ.get("AOTC_CUDA_DRIVER") or ("nvcuda.dll" if windows else "libcuda.so.1")
    count = ctypes.c_int()
    try:
        driver = ctypes.CDLL(path)
        works = driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0
    except (OSError, AttributeError):
        return 0
    return count.value if works else 0


class Device:
    """An open GPU; it is closed when nothing refers to it any more."""

    def __init__(self, library: Library, number: int) -> None:
        self.number = number
        self._library = library  # whose code is called
        self._process = os.getpid()
        program = library.handle.aotc_model_cuda_program()
        self.calls: Any = program.calls
        found, message = ffi.new("aotc_cuda **"), ffi.new("char[]", _MESSAGE_BYTES)
        # looked up here: `__del__` may run within cffi, where looking up would wait for cffi's lock for ever
        self._closing = [self.calls.close]
        self.users = [None]  # itself and its sessions: the last that goes closes the GPU, whatever order they go in
        self.pointer: Any = ffi.NULL
        if self.calls.open(program, number, found, message, _MESSAGE_BYTES) != 0:
            said = bytes(ffi.string(message)).decode("utf-8", "replace")
            raise AotcError("gpu", f"{library.path} does not run on GPU {number}: {said}")
        self.pointer = found[0]

    def __del__(self) -> None:
        if getattr(self, "pointer", ffi.NULL) != ffi.NULL:
            self.release()

    def release(self) -> None:
        """One user less."""
        self.users.pop()
        if not self.users and self.is_here:
            with suppress(IndexError):  # another thread was faster
                self._closing.pop()(self.pointer)

    @property
    def is_here(self) -> bool:
        """Whether this is the process that opened it."""
        return os.getpid() == self._process

    def require_here(self) -> None:
        """AotcError (code "gpu") in a forked child, where the driver does not work."""
        if not self.is_here:
            text = "a GPU that was opened before a process was forked cannot be used in the child"
            raise AotcError("gpu", text, hint="load the model in the child, or spawn instead of forking")

    def explain(self, status: int, session: Any) -> str:
        """What the driver calls the error of a run, if that is one of its own."""
        if status != _CUDA:
            return ""
        name = self.calls.error(ffi.cast("aotc_cuda_session *", session))
        return f": {bytes(ffi.string(name)).decode('utf-8', 'replace')}"


class DeviceSession:
    """What one run at a time has on a device; closed when nothing refers to it any more."""

    def __init__(self, device: Device) -> None:
        device.require_here()
        self._device = device
        self._close = device.calls.session_close
        self.pointer: Any = ffi.NULL
        found = ffi.new("aotc_cuda_session **")
        status = int(device.calls.session_open(device.pointer, found))
        if status != 0:
            text = f"GPU {device.number} does not take another run: {STATUS_MESSAGES[status]}"
            raise AotcError("gpu", text)
        self.pointer = found[0]
        device.users.append(None)

    def __del__(self) -> None:
        if getattr(self, "pointer", ffi.NULL) == ffi.NULL:
            return
        if self._device.is_here:
            self._close(self.pointer)
        self._device.release()
