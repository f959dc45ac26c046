# SPDX-License-Identifier: Apache-2.0
"""Open a GPU for a compiled model, and create a session on it for each concurrent run.

device = open_gpu_for_library(library, 0)  # None for a library without code for GPUs
session = DeviceSession(device)
library.run(inputs, outputs, session.pointer, ffi.NULL)

A device opened by a process cannot be used in its forked children.
"""

from __future__ import annotations

import ctypes
import math
import os
from contextlib import suppress
from functools import cache
from operator import index
from typing import Any, Final

import numpy as np

from aotc.ir import AotcError, cuda_driver_path, option_text
from aotc.runtime.abi import STATUS_MESSAGES, ffi
from aotc.runtime.dlpack import DeviceArray
from aotc.runtime.library import Library

_CUDA_ERROR_STATUS: Final = next(code for code, text in STATUS_MESSAGES.items() if "reports an error" in text)
_MAX_ERROR_MESSAGE_BYTES: Final = 512
#: Upper bound of GPU numbers in the driver.
_GPU_NUMBER_LIMIT: Final = 1 << 31
#: CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: the number of the GPU that owns an address.
_POINTER_ATTRIBUTE_DEVICE_ORDINAL: Final = 9


def open_gpu_for_library(library: Library, gpu_number: int | None) -> OpenGpu | None:
    """Open GPU `gpu_number` (0 for None) and load the code and weights of a library; None for a
    library without GPU code.

    Raises AotcError (code "gpu") if there is no driver, no such GPU, no code for it or not enough
    memory, or if a number is given for a library without GPU code.
    """
    if has_gpu_code(library):
        return OpenGpu(library, _require_gpu_number(0 if gpu_number is None else gpu_number))
    if gpu_number is not None:
        text = f"{library.path} does not run on GPUs"
        raise AotcError(
            "gpu",
            text,
            hint="leave " + option_text("device") + " out, or compile with " + option_text("target", "cuda"),
        )
    return None


def _require_gpu_number(number: Any) -> int:
    ordinal = index(number) if hasattr(number, "__index__") and not isinstance(number, bool) else -1
    if not 0 <= ordinal < _GPU_NUMBER_LIMIT:
        raise AotcError("gpu", f"GPU {number!r} does not exist", hint="GPUs are numbered 0, 1, ...")
    return ordinal


def has_gpu_code(library: Library) -> bool:
    """Return True if the library of a compiled model contains GPU code."""
    return hasattr(library.handle, "aotc_model_cuda_program")


class CudaDriver:
    """CUDA driver API in the primary context of a GPU, for memory and queries outside of a compiled
    model.

    The primary context is retained until the process ends.
    """

    def __init__(self, path: str, number: int) -> None:
        self._library, self._context, self.number = ctypes.CDLL(path), ctypes.c_void_p(), number
        self.handle = ctypes.c_int()
        self._raise_on_driver_error(self._library.cuDeviceGet(ctypes.byref(self.handle), number))
        self._raise_on_driver_error(self._library.cuDevicePrimaryCtxRetain(ctypes.byref(self._context), self.handle))

    def __call__(self, name: str, *arguments: Any) -> None:
        """Call a driver function in the primary context; raise AotcError (code "gpu") naming the
        driver's error.
        """
        self._library.cuCtxPushCurrent_v2(self._context)
        result = getattr(self._library, name)(*arguments)
        self._library.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
        self._raise_on_driver_error(result)

    def _raise_on_driver_error(self, result_code: int) -> None:
        if result_code != 0:
            name = ctypes.c_char_p()
            self._library.cuGetErrorName(result_code, ctypes.byref(name))
            raise AotcError("gpu", f"GPU {self.number}: {(name.value or b'unknown error').decode()}")

    def gpu_attribute(self, attribute_number: int) -> int:
        """Return an attribute of the GPU from the CUDA driver, by its CUdevice_attribute number."""
        c_value = ctypes.c_int()
        self("cuDeviceGetAttribute", ctypes.byref(c_value), attribute_number, self.handle)
        return c_value.value

    def gpu_owning_address(self, address: int) -> int | None:
        """Return the number of the GPU that owns the memory at an address; None if no GPU does."""
        c_ordinal = ctypes.c_int()
        with suppress(AotcError):
            self(
                "cuPointerGetAttribute",
                ctypes.byref(c_ordinal),
                _POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                ctypes.c_uint64(address),
            )
            return c_ordinal.value
        return None

    def allocate_tensor(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> DeviceArray:
        """Allocate uninitialized GPU memory for a tensor of the given shape and dtype."""
        memory = _GpuMemoryBlock(self, max(1, math.prod(shape) * dtype.itemsize))
        return DeviceArray(int(memory.pointer.value), shape, dtype, self.number, owner=memory)


_driver: Final = cache(CudaDriver)


class _GpuMemoryBlock:
    """A GPU memory block, freed when the object is no longer referenced."""

    def __init__(self, driver: CudaDriver, nbytes: int) -> None:
        self.pointer = ctypes.c_uint64()
        self._driver, self._process = driver, os.getpid()
        driver("cuMemAlloc_v2", ctypes.byref(self.pointer), ctypes.c_size_t(nbytes))

    def copy_to_host(self, host_address: int, nbytes: int) -> None:
        """Copy the first `nbytes` bytes of the GPU memory block to a host address."""
        self._driver("cuMemcpy", ctypes.c_uint64(host_address), self.pointer, ctypes.c_size_t(nbytes))

    def __del__(self) -> None:
        if self.pointer.value and self._process == os.getpid():
            with suppress(AotcError):
                self._driver("cuMemFree_v2", self.pointer)


class OpenGpu:
    """A GPU opened for one library; it is closed when the device and its sessions are no longer
    referenced.
    """

    def __init__(self, library: Library, number: int) -> None:
        self.number = number
        # a reference that prevents unloading the library while its code is called
        self._library = library
        self._process = os.getpid()
        program = library.handle.aotc_model_cuda_program()
        self.calls: Any = program.calls
        self.steps = int(program.num_steps)
        self.has_tiers = int(program.num_tiers) > 0
        out_pointer, message = ffi.new("aotc_cuda **"), ffi.new("char[]", _MAX_ERROR_MESSAGE_BYTES)
        # looked up here: `__del__` may run inside cffi, where a lookup would deadlock on cffi's lock
        self._closing = [self.calls.close]
        # references of the device and its sessions: the last one to be dropped closes the GPU
        self.users = [None]
        self.pointer: Any = ffi.NULL
        self._driver = cuda_driver_path()
        if self.calls.open(program, number, out_pointer, message, _MAX_ERROR_MESSAGE_BYTES) != 0:
            reason = bytes(ffi.string(message)).decode("utf-8", "replace")
            raise AotcError("gpu", f"{library.path} does not run on GPU {number}: {reason}")
        self.pointer = out_pointer[0]

    def __del__(self) -> None:
        if getattr(self, "pointer", ffi.NULL) != ffi.NULL:
            self.drop_gpu_reference()

    def drop_gpu_reference(self) -> None:
        """Drop one reference to the open GPU, and close the GPU after the last one."""
        self.users.pop()
        if not self.users and self.is_in_process_that_opened_gpu:
            with suppress(IndexError):
                # another thread has closed it already
                self._closing.pop()(self.pointer)

    @property
    def cuda_driver(self) -> CudaDriver:
        """The CUDA driver interface for this GPU, for memory and queries outside of the model."""
        return _driver(self._driver, self.number)

    @property
    def is_in_process_that_opened_gpu(self) -> bool:
        """True in the process that opened the GPU, False in its forked children."""
        return os.getpid() == self._process

    def require_process_that_opened_gpu(self) -> None:
        """Raise AotcError (code "gpu") in a forked child of the process that opened the GPU."""
        if not self.is_in_process_that_opened_gpu:
            text = "a GPU that was opened before a process was forked cannot be used in the child"
            raise AotcError("gpu", text, hint="load the model in the child, or spawn instead of forking")

    def driver_error_text(self, status: int, session: Any) -> str:
        """Return the driver's name of the error that caused a run to fail; "" if the status is not
        a driver error.
        """
        if status != _CUDA_ERROR_STATUS:
            return ""
        name = self.calls.error(ffi.cast("aotc_cuda_session *", session))
        return f": {bytes(ffi.string(name)).decode('utf-8', 'replace')}"


class DeviceSession:
    """Resources on a GPU for one run of a model at a time; closed when the object is no longer
    referenced.
    """

    def __init__(self, device: OpenGpu) -> None:
        device.require_process_that_opened_gpu()
        self._device = device
        self._close = device.calls.session_close
        self.pointer: Any = ffi.NULL
        out_pointer = ffi.new("aotc_cuda_session **")
        status = int(device.calls.session_open(device.pointer, out_pointer))
        if status != 0:
            text = f"GPU {device.number} does not take another run: {STATUS_MESSAGES[status]}"
            raise AotcError("gpu", text)
        self.pointer = out_pointer[0]
        device.users.append(None)

    def __del__(self) -> None:
        if getattr(self, "pointer", ffi.NULL) == ffi.NULL:
            return
        if self._device.is_in_process_that_opened_gpu:
            self._close(self.pointer)
        self._device.drop_gpu_reference()
