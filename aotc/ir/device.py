# SPDX-License-Identifier: Apache-2.0
"""Devices: where tensors lie and models run.

device("llvm", 0)                      # cpu(0)
cuda(0).exist                          # whether there is a GPU, and a driver for it
"""

import ctypes
import os
import sys
from typing import Final

from aotc.ir.diagnostics import AotcError, nearest
from aotc.ir.frozen_dataclass import frozen

_KINDS: Final = {"cpu": "cpu", "llvm": "cpu", "c": "cpu", "host": "cpu", "cuda": "cuda", "gpu": "cuda"}
_TYPES: Final = {"cpu": 1, "cuda": 2}


@frozen(repr=False)
class Device:
    """One device.

    kind    "cpu" or "cuda"
    index   which one, from 0
    """

    kind: str
    index: int = 0

    @property
    def device_type(self) -> int:
        """DLPack's number of the kind."""
        return _TYPES[self.kind]

    @property
    def device_id(self) -> int:
        return self.index

    @property
    def exist(self) -> bool:
        """Whether compiled models can run on it."""
        return self.index < (1 if self.kind == "cpu" else gpus())

    def __repr__(self) -> str:
        return f"{self.kind}({self.index})"


@frozen
class VirtualDevice:
    """Where a value lies, as programs for several devices say it: a note, since a project is for one device."""

    device: Device | None = None
    target: object = None
    memory_scope: str = ""


def device(kind: str, index: int = 0) -> Device:
    """The device of a kind; a target's name stands for the kind of device that it is for.

    Raises AotcError (code "device") for an unknown kind and a negative index.
    """
    words = kind.split() if isinstance(kind, str) else []
    if not words or words[0] not in _KINDS:
        known = ", ".join(_KINDS)
        hint = nearest(str(kind), _KINDS) or f"known: {known}"
        raise AotcError("device", f"unknown kind of device {kind!r}", hint=hint)
    if isinstance(index, bool) or not isinstance(index, int) or index < 0:
        raise AotcError("device", f"a device index must be a non-negative integer, not {index!r}")
    return Device(_KINDS[words[0]], index)


def cpu(index: int = 0) -> Device:
    """The processor."""
    return device("cpu", index)


def cuda(index: int = 0) -> Device:
    """A CUDA device."""
    return device("cuda", index)


def driver_path() -> str:
    """Where the driver of GPUs is looked for: what $AOTC_CUDA_DRIVER names, else the system's."""
    return os.environ.get("AOTC_CUDA_DRIVER") or ("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")


def gpus() -> int:
    """How many GPUs there are whose driver can be loaded."""
    count = ctypes.c_int()
    try:
        driver = ctypes.CDLL(driver_path())
        works = driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0
    except (OSError, AttributeError):
        return 0
    return count.value if works else 0


def require_device(wanted: Device | None, *, cuda: bool = False) -> Device:
    """A device that models can run on, cpu(0) for None.

    cuda    it may be a GPU

    Raises AotcError (code "device") for what is no device, or is not there.
    """
    if wanted is None:
        return Device("cpu")
    if not isinstance(wanted, Device):
        raise AotcError("device", f"expected a device, not {type(wanted).__name__}", hint="aotc.cpu() makes one")
    if wanted.kind == "cuda" and not cuda:
        raise AotcError("device", f"{wanted} cannot be used here: this model runs on the CPU", hint="use aotc.cpu()")
    if not wanted.exist:
        hint = "the processor is cpu(0)" if wanted.kind == "cpu" else f"GPUs whose driver is found: {gpus()}"
        raise AotcError("device", f"there is no device {wanted}", hint=hint)
    return wanted
