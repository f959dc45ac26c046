# SPDX-License-Identifier: Apache-2.0
"""Measure how much memory changes of options save a bare-metal model, by compiling it with each
change.

    savings = measure_memory_savings(compilation, metadata["footprint"], toolchain, "flash")
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from aotc.driver.memory_budgets import (
    FOOTPRINT_KEYS_BY_BUDGET,
    Budgets,
    MemorySaving,
    OptionChange,
    int8_quantization_savings,
    measured_savings_of_changes,
)
from aotc.driver.toolchain import Toolchain
from aotc.ir import AotcError, PassContext
from aotc.tir import target_for_environment, target_optimized_for_size

if TYPE_CHECKING:
    from aotc.driver.pipeline import Compilation


def measure_memory_savings(
    compilation: Compilation, footprint: Mapping[str, Any], toolchain: Toolchain | None, budget_name: str
) -> list[MemorySaving]:
    """Return suggestions that reduce "ram", "flash" or "stack", found by compiling and measuring
    each alternative.
    """

    def bytes_needed_with_change(change: OptionChange) -> int | None:
        """Return the bytes that the model needs with a change of options; None if the change cannot
        be applied.
        """
        if change.size and (compilation.target.small or toolchain is None or not footprint["code_measured"]):
            return None
        if not (change.selftest or compilation.selftest):
            return None
        compilation.progress("trying to " + change.suggestion)
        with suppress(AotcError):
            other = _compilation_with_changed_option(compilation, change)
            if budget_name == "flash" and toolchain is not None:
                project = replace(other, toolchain=toolchain).emit_project_and_build_library()
            else:
                project = other.emit_project()
            return _footprint_bytes_of_memory_budget(project.metadata["footprint"], budget_name)
        return None

    return [
        *measured_savings_of_changes(
            budget_name, _footprint_bytes_of_memory_budget(footprint, budget_name), bytes_needed_with_change
        ),
        *int8_quantization_savings(compilation.scheduled_programs[0], budget_name),
    ]


def _footprint_bytes_of_memory_budget(footprint: Mapping[str, Any], budget_name: str) -> int:
    """Return the bytes that a project needs of "ram", "flash" or "stack", from the footprint in its
    metadata.
    """
    return sum(footprint.get(key, 0) for key in FOOTPRINT_KEYS_BY_BUDGET[budget_name])


def _compilation_with_changed_option(compilation: Compilation, change: OptionChange) -> Compilation:
    """Return the compilation with a change applied, without memory bounds, instruments and
    progress.
    """
    ctx = compilation.context
    context = PassContext(ctx.opt_level, ctx.required_pass, ctx.disabled_pass, None, {**ctx.config, **change.config})
    target = (
        target_for_environment(compilation.target, change.environment) if change.environment else compilation.target
    )
    target = target_optimized_for_size(target) if change.size else target
    tested, any_size = compilation.selftest and change.selftest, Budgets(flash=sys.maxsize)
    variant = replace(compilation, context=context, target=target, selftest=tested, budgets=any_size)
    return replace(variant, checked=False, progress=lambda _: None)
