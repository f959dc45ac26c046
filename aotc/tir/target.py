# SPDX-License-Identifier: Apache-2.0
"""Targets as data: what passes and the contraction generator ask of a machine.

target = get_target("x86-64-v4")
target.lanes("float32")                # 16
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from aotc.ir.diagnostics import AotcError, nearest
from aotc.ir.dtype import DType
from aotc.ir.machine import architecture


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A machine to generate code for.

    machine        the architecture, as `uname -m` names it on Linux; "" for any
    vector_bytes   width of a vector register, 0 for scalar C99 without extensions
    registers      number of vector registers (of scalar ones for scalar targets)
    fma            whether a multiply-add is one instruction
    l1, l2         data cache sizes, bytes per core
    cflags         what gcc and clang need beyond the defaults
    """

    name: str
    machine: str = ""
    vector_bytes: int = 0
    registers: int = 16
    fma: bool = False
    l1: int = 32 << 10
    l2: int = 256 << 10
    cflags: tuple[str, ...] = ()

    def lanes(self, dtype: str) -> int:
        """Elements of `dtype` in one vector register; 1 on scalar targets."""
        return max(1, self.vector_bytes // DType(dtype).itemsize)

    @property
    def is_scalar(self) -> bool:
        return self.vector_bytes == 0


C: Final = Target(name="c")
X86_64: Final = Target(name="x86-64", machine="x86_64", vector_bytes=16, cflags=("-march=x86-64",))
X86_64_V3: Final = replace(
    X86_64, name="x86-64-v3", vector_bytes=32, fma=True, l2=512 << 10, cflags=("-march=x86-64-v3",)
)
X86_64_V4: Final = replace(
    X86_64,
    name="x86-64-v4",
    vector_bytes=64,
    registers=32,
    fma=True,
    l2=1 << 20,
    cflags=("-march=x86-64-v4", "-mprefer-vector-width=512"),
)
AARCH64: Final = Target(
    name="aarch64",
    machine="aarch64",
    vector_bytes=16,
    registers=32,
    fma=True,
    l1=64 << 10,
    l2=512 << 10,
    cflags=("-march=armv8-a",),
)
RISCV64: Final = Target(
    name="riscv64", machine="riscv64", registers=32, fma=True, cflags=("-march=rv64gc", "-mabi=lp64d")
)
"""Scalar: compilers with vectors of this architecture are not common yet."""
TARGETS: Final = {t.name: t for t in (C, X86_64, X86_64_V3, X86_64_V4, AARCH64, RISCV64)}

_V3: Final = frozenset({"avx2", "fma", "bmi1", "bmi2", "f16c", "movbe"})
_V4: Final = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}


def host_target(machine: str, cpu_flags: Iterable[str]) -> Target:
    """The best target for a processor: `machine` as platform.machine() says, flags as /proc/cpuinfo lists them."""
    flags, name = frozenset(cpu_flags), architecture(machine)
    if name == X86_64.machine:
        return X86_64_V4 if flags >= _V4 else X86_64_V3 if flags >= _V3 else X86_64
    return next((target for target in (AARCH64, RISCV64) if target.machine == name), C)


def get_target(name: str) -> Target:
    """The target called `name`; AotcError (code "target") with the known ones if there is none."""
    if name not in TARGETS:
        known = ", ".join(["host", *TARGETS])
        raise AotcError("target", f"unknown target {name!r}", hint=nearest(name, TARGETS) or f"known: {known}")
    return TARGETS[name]
