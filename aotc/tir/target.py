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
    fma_bytes      bytes that a core begins to multiply and add in a cycle, by two instructions at most
    fma            whether a multiply-add is one instruction
    l1, l2         data cache sizes, bytes per core
    cflags         what gcc and clang need for kernels, beyond the defaults
    base_cflags    the same for all other code: it runs on every processor of the architecture, since it says what
                   a processor lacks
    features       what the processor must have beyond that, by the names of `aotc_codegen.c.cpu`
    dialect        the language of its kernels, by the names of `aotc_codegen.c.dialect`
    level          what its kernels are called by in a library that has several versions of them
    versions       the targets of which a library has kernels, the best first; the other fields are then those that
                   graphs, weights and kernels outside such a library are made for
    """

    name: str
    machine: str = ""
    vector_bytes: int = 0
    registers: int = 16
    fma_bytes: int = 8
    fma: bool = False
    l1: int = 32 << 10
    l2: int = 256 << 10
    cflags: tuple[str, ...] = ()
    base_cflags: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    dialect: str = "c99"
    level: str = ""
    versions: tuple[Target, ...] = ()

    def lanes(self, dtype: str) -> int:
        """Elements of `dtype` in one vector register; 1 on scalar targets."""
        return max(1, self.vector_bytes // DType(dtype).itemsize)

    @property
    def is_scalar(self) -> bool:
        return self.vector_bytes == 0


C: Final = Target(name="c")
_X86_64, _AARCH64, _RISCV64 = ("-march=x86-64",), ("-march=armv8-a",), ("-march=rv64gc", "-mabi=lp64d")
_SSE: Final = ("sse3", "ssse3", "sse4_1", "sse4_2", "popcnt", "movbe", "lzcnt")
_V3: Final = (*_SSE, "avx", "f16c", "fma", "avx2", "bmi1", "bmi2")
_V4: Final = (*_V3, "avx512f", "avx512dq", "avx512cd", "avx512bw", "avx512vl")
X86_64: Final = Target(
    name="x86-64",
    machine="x86_64",
    vector_bytes=16,
    fma_bytes=32,
    cflags=_X86_64,
    base_cflags=_X86_64,
    dialect="gnu-c",
    level="v1",
)
X86_64_V3: Final = replace(
    X86_64,
    name="x86-64-v3",
    vector_bytes=32,
    fma_bytes=64,
    fma=True,
    l2=512 << 10,
    cflags=("-march=x86-64-v3",),
    features=_V3,
    level="v3",
)
X86_64_V4: Final = replace(
    X86_64,
    name="x86-64-v4",
    vector_bytes=64,
    registers=32,
    fma_bytes=64,
    fma=True,
    l2=1 << 20,
    cflags=("-march=x86-64-v4", "-mprefer-vector-width=512"),
    features=_V4,
    level="v4",
)
X86_64_MULTI: Final = replace(X86_64_V3, name="x86-64-multi", versions=(X86_64_V4, X86_64_V3, X86_64))
AARCH64: Final = Target(
    name="aarch64",
    machine="aarch64",
    vector_bytes=16,
    registers=32,
    fma_bytes=32,
    fma=True,
    l1=64 << 10,
    l2=512 << 10,
    cflags=_AARCH64,
    base_cflags=_AARCH64,
    dialect="gnu-c",
)
RISCV64: Final = Target(
    name="riscv64", machine="riscv64", registers=32, fma=True, cflags=_RISCV64, base_cflags=_RISCV64
)
"""Scalar: compilers with vectors of this architecture are not common yet."""
TARGETS: Final = {t.name: t for t in (C, X86_64, X86_64_V3, X86_64_V4, X86_64_MULTI, AARCH64, RISCV64)}

_PROC_NAMES: Final = {"pni": "sse3", "abm": "lzcnt"}
"""Features that /proc/cpuinfo calls otherwise."""


def feature_names(cpu_flags: Iterable[str]) -> frozenset[str]:
    """The flags of a processor as /proc/cpuinfo lists them, by the names of features."""
    return frozenset(_PROC_NAMES.get(flag, flag) for flag in cpu_flags)


def host_target(machine: str, cpu_flags: Iterable[str]) -> Target:
    """The best target for a processor: `machine` as platform.machine() says, flags as /proc/cpuinfo lists them."""
    flags, name = feature_names(cpu_flags), architecture(machine)
    if name == X86_64.machine:
        return next(t for t in (X86_64_V4, X86_64_V3, X86_64) if flags.issuperset(t.features))
    return next((target for target in (AARCH64, RISCV64) if target.machine == name), C)


def get_target(name: str) -> Target:
    """The target called `name`; AotcError (code "target") with the known ones if there is none."""
    if name not in TARGETS:
        known = ", ".join(["host", *TARGETS])
        raise AotcError("target", f"unknown target {name!r}", hint=nearest(name, TARGETS) or f"known: {known}")
    return TARGETS[name]
