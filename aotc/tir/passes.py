# SPDX-License-Identifier: Apache-2.0
"""Passes over programs of kernels, in the order of `program_passes`; instruments that watch tensor passes see them.

with PassContext(instruments=[ProgramVerifier()]):
    program = scheduled(program, target)             # memory planned, kernels divided among threads

In: a Program as lowering makes it.  Out: one that code generation prints.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final

from aotc.ir import AotcError, PassInstrument
from aotc.ir.transform import Pass, PassContext, PassInfo
from aotc.tir.loops.widen import widened
from aotc.tir.plan.memory import check_plan, plan_memory
from aotc.tir.plan.program import Program
from aotc.tir.target import Target, Threads
from aotc.tir.threads.parallel import for_teams
from aotc.tir.verify import verify


class ProgramPass(Pass[Any]):
    """A pass from a Program to a Program.  A subclass gives `name` and `run`."""

    level: ClassVar[str] = "tensor"
    kind: ClassVar[str] = "Program"

    def accepts(self, module: Any) -> bool:
        return isinstance(module, Program)


@dataclass(frozen=True, repr=False)
class PlanMemory(ProgramPass):
    """Kernels work in place where they can; every temporary gets its place in the arena."""

    name: ClassVar[str] = "PlanMemory"

    def run(self, module: Program, ctx: PassContext) -> Program:
        return plan_memory(module)


@dataclass(frozen=True, repr=False)
class DivideAmongThreads(ProgramPass):
    """Kernels that are worth it become those of a team: every thread calls them, and does its share."""

    name: ClassVar[str] = "DivideAmongThreads"

    threads: Threads

    def run(self, module: Program, ctx: PassContext) -> Program:
        return for_teams(module, self.threads)


@dataclass(frozen=True, repr=False)
class WidenFloats(ProgramPass):
    """Loops over float16 and narrower floats compute in vectors of float32."""

    name: ClassVar[str] = "WidenFloats"

    target: Target

    def run(self, module: Program, ctx: PassContext) -> Program:
        return widened(module, self.target)


NAMES: Final = (PlanMemory.name, DivideAmongThreads.name, WidenFloats.name)
"""The tensor passes, by name."""


def program_passes(target: Target, threads: bool = True) -> list[ProgramPass]:
    """The passes that make a lowered program ready to be printed for a target."""
    divide = [DivideAmongThreads(target.threads)] if threads and target.threads is not None else []
    return [PlanMemory(), *divide, WidenFloats(target)]


def scheduled(program: Program, target: Target, threads: bool = True) -> Program:
    """A lowered program through the tensor passes that the current context enables."""
    context = PassContext.current()
    for item in program_passes(target, threads):
        program = item(program) if context.pass_enabled(item.info) else program
    return program


class ProgramVerifier(PassInstrument):
    """Verifies every kernel, and that what lives at the same time does not overlap, after each tensor pass.

    Raises AotcError (code "tir-verify") with every violation.
    """

    levels: ClassVar[frozenset[str]] = frozenset({"tensor"})

    def run_after_pass(self, module: Any, info: PassInfo) -> None:
        if not isinstance(module, Program):
            return
        for kernel in module.kernels:
            if kernel.source is None:
                verify(kernel)
        if not module.plan.offsets:
            return
        try:
            check_plan(module)
        except AssertionError as error:
            text = f"{info.name}: temporaries that live at the same time overlap, or lie outside of the arena"
            raise AotcError("tir-verify", f"{text}: {error}") from error
