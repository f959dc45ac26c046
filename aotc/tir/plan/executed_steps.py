# SPDX-License-Identifier: Apache-2.0
"""The calls that a run of a schedule makes, in order, for interpreters.

for step in executed_steps(program.body, is_true, define):
    run(step)
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable

from aotc.tir.plan.program_nodes import Branch, Define, Leave, Loop, ProgramNode, Step, TierChoice
from aotc.tir.plan.storage import View


def executed_steps(
    nodes: Iterable[ProgramNode], is_true: Callable[[View], bool], define: Callable[[Define], None]
) -> Generator[Step, None, bool]:
    """Yield the calls that a run makes, in order; return True if they leave the loop around them.

    is_true   returns the value of a condition, after the calls before it have been made
    define    called at each definition, where a size becomes known or a value is checked
    """
    for node in nodes:
        match node:
            case Step():
                yield node
            case Leave():
                return True
            case Define():
                define(node)
            case Loop():
                while not (yield from executed_steps(node.body, is_true, define)):
                    pass
            case TierChoice():
                raise ValueError("a choice among tiers must be replaced by the calls of one tier")
            case Branch():
                if (yield from executed_steps(node.arms[0 if is_true(node.condition) else 1], is_true, define)):
                    return True
    return False
