# SPDX-License-Identifier: Apache-2.0
"""Variants of a target: for programs without an operating system, for portable C, for small
programs, and for bits that are equal on all machines.

target_for_environment(get_target("c"), "bare")
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from aotc.ir import AotcError, option_text, require_known_name
from aotc.tir.target import BARE_METAL_TARGET, C, Target

ENVIRONMENTS: Final = ("hosted", "bare")
#: What kernels have beyond C99, by the dialects of targets that are not scalar.
_LANGUAGE_EXTENSIONS: Final = {"gnu-c": "vectors of GNU C", "cuda": "kernels in CUDA"}


def target_for_environment(target: Target, environment: str) -> Target:
    """Return the target for programs that run on an operating system ("hosted") or without one
    ("bare").

    Raises AotcError (code "target") for another environment, and for a target that does not exist
    in this one.
    """
    require_known_name("target", "environment", environment, ENVIRONMENTS)
    if target.bare == (environment == "bare"):
        return target
    if target.bare or target.gpu is not None or not target.is_scalar:
        text = f"target {target.name} has no {environment} environment"
        hint = "use the target c, or leave " + option_text("environment") + " out and name a microcontroller"
        raise AotcError("target", text, hint=hint)
    settings = BARE_METAL_TARGET.budget, BARE_METAL_TARGET.spaces, BARE_METAL_TARGET.dialect
    return replace(target, bare=True, budget=settings[0], spaces=settings[1], dialect=settings[2], threads=None)


def portable_c99_target_of_scalar_target(target: Target) -> Target:
    """Return the target whose code is C99 without inline assembly, parameters included, and gives
    the same bits.

    Raises AotcError (code "target") for targets with vectors and GPUs, whose code cannot be C99.
    """
    if not target.is_scalar or target.gpu is not None:
        text = f"code for target {target.name} is not portable: it has {_LANGUAGE_EXTENSIONS[target.dialect]}"
        hint = "compile for the target c, or leave " + option_text("portable") + " out"
        raise AotcError("target", text, hint=hint)
    portable_target = replace(target, budget=replace(target.budget, array_bytes=1 << 62))
    return (
        replace(portable_target, dialect="bare-c", micro_kernels=(), activations="", features=())
        if target.dialect == "arm-c"
        else portable_target
    )


def target_optimized_for_size(target: Target) -> Target:
    """Return the target for small programs: parameters are not enlarged to save time."""
    budget = replace(target.budget, parameter_growth=1.0, parameter_room=0)
    return replace(target, small=True, budget=budget, versions=tuple(map(target_optimized_for_size, target.versions)))


def target_with_fixed_summation_order(target: Target) -> Target:
    """Return a variant of a target whose kernels give bit-identical results on all machines: the
    results that the target `C` gives with this function.

    Products are rounded before they are added, and sums have one order (`ordered`), so there are no
    micro-kernels with sums of floats. The limits that
    decide which values are recomputed instead of stored are those of `C`, since they also decide
    along which axis a reduction runs.
    """
    budget = replace(target.budget, index_nodes=C.budget.index_nodes)
    versions = tuple(map(target_with_fixed_summation_order, target.versions))
    kernels = tuple(kernel for kernel in target.micro_kernels if kernel.sums != "float32")
    ordered_target = replace(target, fma=False, ordered=True, micro_kernels=kernels)
    return replace(ordered_target, store_cost=C.store_cost, budget=budget, versions=versions)


def target_with_stack_array_limit(target: Target, max_bytes: int) -> Target:
    """Return the target with a limit, in bytes, on the arrays that kernels place on the stack.

    Raise AotcError (code "config") for a negative limit.
    """
    if max_bytes < 0:
        raise AotcError("config", f"compile.stack_bytes must be a number of bytes, not {max_bytes}")
    versions = tuple(target_with_stack_array_limit(version, max_bytes) for version in target.versions)
    return replace(target, budget=replace(target.budget, stack_bytes=max_bytes), versions=versions)
