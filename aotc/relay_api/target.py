# SPDX-License-Identifier: Apache-2.0
"""Targets by the names that Relay's users know.

Target("llvm")                         # the best C target of this machine
cuda()                                 # GPUs of NVIDIA
"""

from __future__ import annotations

from typing import Final

from aotc.driver.toolchain import resolve_target
from aotc.ir import AotcError, AotcTypeError, require_known
from aotc.tir import TARGETS
from aotc.tir import Target as MachineTarget

_LATER: Final = {name.lower(): name for name in ("ROCm", "OpenCL", "Vulkan", "Metal")}


def Target(target: str | MachineTarget) -> MachineTarget:
    """A target by name: "llvm" and "host" are this machine, the others those of `aotc.tir.target.TARGETS`.

    Raises AotcError (code "target") for options behind the name, for unknown names and for back ends that do
    not exist yet.
    """
    if isinstance(target, MachineTarget):
        return target
    if not isinstance(target, str):
        raise AotcTypeError("target", f"a target is a name or a Target, not {type(target).__name__}")
    words = target.split()
    if words and words[0] in _LATER:
        text = f"target {words[0]!r} cannot be compiled for: there is no {_LATER[words[0]]} back end yet"
        raise AotcError("target", text, hint='"llvm" compiles for the processor of this machine')
    if len(words) > 1:
        hint = 'name the machine itself, for example "x86-64-v3"'
        raise AotcError("target", f"options of targets are not understood: {target!r}", hint=hint)
    require_known("target", "target", target, ["llvm", "host", *TARGETS])
    return resolve_target("host" if target == "llvm" else target)


def llvm() -> MachineTarget:
    """The target of this machine."""
    return Target("llvm")


def cuda() -> MachineTarget:
    """The target of GPUs of NVIDIA."""
    return Target("cuda")
