# SPDX-License-Identifier: Apache-2.0
"""Devices: where tensors lie and models run.

device("llvm", 0)                      # cpu(0)
cuda(0).exist                          # False: no back end for it yet
"""

from __future__ import annotations

from typing import Final

from aotc.ir.diagnostics import AotcError, nearest
from aotc.ir.records import frozen

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
        return self.kind == "cpu" and self.index == 0

    def __repr__(self) -> str:
        return f"{self.kind}({self.index})"


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
        raise AotcError("device", f"the index of a device is an integer from 0, not {index!r}")
    return Device(_KINDS[words[0]], index)


def cpu(index: int = 0) -> Device:
    """The processor."""
    return device("cpu", index)


def cuda(index: int = 0) -> Device:
    """A CUDA device."""
    return device("cuda", index)


def require_device(wanted: Device | None) -> Device:
    """A device that models can run on, cpu(0) for None; AotcError (code "device") if it is not there."""
    if wanted is None:
        return Device("cpu")
    if not isinstance(wanted, Device):
        raise AotcError("device", f"expected a device, not {type(wanted).__name__}", hint="aotc.cpu() makes one")
    if wanted.kind == "cuda":
        raise AotcError("device", f"{wanted} cannot be used: there is no CUDA back end yet", hint="use aotc.cpu()")
    if not wanted.exist:
        raise AotcError("device", f"there is no device {wanted}", hint="the processor is cpu(0)")
    return wanted
