# SPDX-License-Identifier: Apache-2.0
"""Compilation targets by the names that TVM's Relay uses.

Target("llvm")                         # the best C target of this machine
cuda()                                 # GPUs of NVIDIA
"""

from collections.abc import Mapping
from typing import Final

from aotc.driver.toolchain import resolve_target
from aotc.ir import AotcError, AotcTypeError, AotcValueError, require_known_name
from aotc.tir import TARGETS
from aotc.tir import Target as MachineTarget

_UNSUPPORTED_BACK_ENDS: Final = {name.lower(): name for name in ("ROCm", "OpenCL", "Vulkan", "Metal")}
#: Targets by LLVM's names of processors (-mcpu).
_TARGET_BY_LLVM_PROCESSOR: Final = {
    **dict.fromkeys(("core-avx2", "haswell", "broadwell", "skylake", "znver2", "znver3"), "x86-64-v3"),
    "skylake-avx512": "x86-64-v4",
    **dict.fromkeys(("cascadelake", "icelake-server"), "x86-64-v4-vnni"),
    **dict.fromkeys(("cooperlake", "znver4", "znver5"), "x86-64-v4-bf16"),
    **dict.fromkeys(("sapphirerapids", "emeraldrapids", "graniterapids"), "x86-64-v4-amx"),
    **dict.fromkeys(("cortex-a53", "cortex-a72"), "aarch64"),
    **dict.fromkeys(("cortex-a55", "cortex-a76", "neoverse-n1"), "aarch64-dotprod"),
    **dict.fromkeys(("generic-rv64", "sifive-u74"), "riscv64"),
    "sifive-p670": "riscv64-v128",
    **dict.fromkeys(("sifive-x280", "spacemit-x60"), "riscv64-v256"),
}
#: Targets by the architecture in LLVM's target triple (-mtriple).
_TARGET_BY_LLVM_ARCHITECTURE: Final = {
    "x86_64": "x86-64",
    "aarch64": "aarch64",
    "arm64": "aarch64",
    "riscv64": "riscv64",
}
_NAME_MACHINE_HINT: Final = 'name the machine itself, for example "x86-64-v3"'


def Target(target: str | MachineTarget, host: str | MachineTarget | None = None) -> MachineTarget:
    """Return a target by name: "llvm" and "host" are this machine, other names are those of
    `aotc.tir.target.TARGETS`.

    "llvm" accepts LLVM's options -mcpu, -mtriple and -device=arm_cpu, which select one of these
    targets; "cuda" accepts -arch. `host` is the target of the code that calls kernels; it must be of
    the machine that the target is of, or for a GPU this machine.

    Raises AotcError (code "target") for unknown names, for back ends that do not exist and for the
    host of another machine, AotcValueError for other options.
    """
    machine = _target_by_name(target)
    check_target_host(machine, host)
    return machine


def check_target_host(target: MachineTarget, host: str | MachineTarget | None) -> None:
    """Raise AotcError (code "target") if the target of the code that calls kernels names another
    machine than that for which it is compiled.
    """
    if host is None:
        return
    caller = _target_by_name(host)
    compiled = resolve_target("host") if target.gpu is not None else target
    fits = caller.gpu is None and (not compiled.machine or caller.machine in ("", compiled.machine))
    if not fits:
        text = (
            f"the host {caller.name} is a target for {caller.machine or 'GPUs'}, but the code that calls the kernels "
            f"of {target.name} is compiled for {compiled.machine or 'any machine'}"
        )
        raise AotcError("target", text, hint="leave the host out: each target includes its host")


def _target_by_name(target: str | MachineTarget) -> MachineTarget:
    """Return a target that is given by its name or itself."""
    if isinstance(target, MachineTarget):
        return target
    if not isinstance(target, str):
        raise AotcTypeError("target", f"a target is a name or a Target, not {type(target).__name__}")
    name, *options = target.split() or [""]
    if name in _UNSUPPORTED_BACK_ENDS:
        text = f"target {name!r} cannot be compiled for: there is no {_UNSUPPORTED_BACK_ENDS[name]} back end yet"
        raise AotcError("target", text, hint='"llvm" compiles for the processor of this machine')
    given = dict(option.lstrip("-").partition("=")[::2] for option in options)
    known = {"llvm": {"mcpu", "mtriple", "device"}, "cuda": {"arch"}}.get(name, set())
    if unknown := [key for key in given if key not in known]:
        raise AotcValueError(
            "target", f"target {name!r} has no option {unknown[0]!r}: {target!r}", hint=_NAME_MACHINE_HINT
        )
    if name == "llvm":
        name = _target_name_from_llvm_options(given)
    require_known_name("target", "target", name, ["llvm", "host", *TARGETS])
    return resolve_target(name)


def _target_name_from_llvm_options(options: Mapping[str, str]) -> str:
    """Return the name of the target that LLVM's options select. Raises AotcValueError for a
    processor that no target supports.
    """
    arm = options.get("device") == "arm_cpu"
    machine = options.get("mtriple", "aarch64" if arm else "").split("-")[0]
    processor = options.get("mcpu", "")
    if not machine and not processor:
        return "host"
    name = _TARGET_BY_LLVM_PROCESSOR.get(processor, "") if processor else _TARGET_BY_LLVM_ARCHITECTURE.get(machine, "")
    if not name or (machine and TARGETS[name].machine != machine.replace("arm64", "aarch64")):
        text = f"no target is the processor {processor or machine!r}"
        raise AotcValueError("target", text, hint=_NAME_MACHINE_HINT)
    return name


def llvm() -> MachineTarget:
    """Return the compilation target for the CPU of this machine."""
    return Target("llvm")


def cuda() -> MachineTarget:
    """Return the compilation target for NVIDIA GPUs."""
    return Target("cuda")
