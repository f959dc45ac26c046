# SPDX-License-Identifier: Apache-2.0
"""Devices on which tensors are placed and models run: the CPU and CUDA GPUs.

device("llvm", 0)                      # cpu(0)
cuda(0).exist                          # whether there is a GPU, and a driver for it
"""

import ctypes
import os
import sys
from typing import Final

from aotc.ir.diagnostics import AotcError, did_you_mean_hint
from aotc.ir.frozen_dataclass import frozen

_KIND_BY_DEVICE_NAME: Final = {"cpu": "cpu", "llvm": "cpu", "c": "cpu", "host": "cpu", "cuda": "cuda", "gpu": "cuda"}
_DLPACK_DEVICE_TYPES: Final = {"cpu": 1, "cuda": 2}


@frozen(repr=False)
class Device:
    """A device on which tensors are placed and models run.

    kind    "cpu" or "cuda"
    index   number of the device of its kind, from 0
    """

    kind: str
    index: int = 0

    @property
    def device_type(self) -> int:
        """DLPack's code of the device kind: 1 for the CPU, 2 for CUDA."""
        return _DLPACK_DEVICE_TYPES[self.kind]

    @property
    def device_id(self) -> int:
        return self.index

    @property
    def exist(self) -> bool:
        """True if the device exists on this machine, so that compiled models can run on it."""
        return self.index < (1 if self.kind == "cpu" else gpu_count())

    def __repr__(self) -> str:
        return f"{self.kind}({self.index})"


@frozen
class VirtualDevice:
    """Placement of a value in Relay programs for several devices; ignored, since a project is for
    one device.
    """

    device: Device | None = None
    target: object = None
    memory_scope: str = ""


def device(kind: str, index: int = 0) -> Device:
    """Return a device by its kind ("cpu", "cuda") or by a target's name, which stands for the
    target's kind.

    Raises AotcError (code "device") for an unknown kind or a negative index.
    """
    words = kind.split() if isinstance(kind, str) else []
    if not words or words[0] not in _KIND_BY_DEVICE_NAME:
        known = ", ".join(_KIND_BY_DEVICE_NAME)
        hint = did_you_mean_hint(str(kind), _KIND_BY_DEVICE_NAME) or f"known: {known}"
        raise AotcError("device", f"unknown kind of device {kind!r}", hint=hint)
    if isinstance(index, bool) or not isinstance(index, int) or index < 0:
        raise AotcError("device", f"a device index must be a non-negative integer, not {index!r}")
    return Device(_KIND_BY_DEVICE_NAME[words[0]], index)


def cpu(index: int = 0) -> Device:
    """Return the CPU as a device on which models can run."""
    return device("cpu", index)


def cuda(index: int = 0) -> Device:
    """Return a CUDA GPU, by its index, as a device on which models can run."""
    return device("cuda", index)


def cuda_driver_path() -> str:
    """Return the path of the CUDA driver library: $AOTC_CUDA_DRIVER, else the system's library
    name.
    """
    return os.environ.get("AOTC_CUDA_DRIVER") or ("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")


def gpu_count() -> int:
    """Return the number of GPUs that the CUDA driver reports; 0 if the driver cannot be loaded."""
    count = ctypes.c_int()
    try:
        driver = ctypes.CDLL(cuda_driver_path())
        works = driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0
    except (OSError, AttributeError):
        return 0
    return count.value if works else 0


def require_usable_device(requested: Device | None, *, allow_cuda: bool = False) -> Device:
    """Return a device on which models can run: `requested`, or cpu(0) for None.

    allow_cuda    allow a GPU

    Raises AotcError (code "device") if `requested` is not a device, is a GPU that is not allowed,
    or does not exist.
    """
    if requested is None:
        return Device("cpu")
    if not isinstance(requested, Device):
        raise AotcError("device", f"expected a device, not {type(requested).__name__}", hint="aotc.cpu() makes one")
    if requested.kind == "cuda" and not allow_cuda:
        raise AotcError("device", f"{requested} cannot be used here: this model runs on the CPU", hint="use aotc.cpu()")
    if not requested.exist:
        hint = "the processor is cpu(0)" if requested.kind == "cpu" else f"GPUs whose driver is found: {gpu_count()}"
        raise AotcError("device", f"there is no device {requested}", hint=hint)
    return requested
