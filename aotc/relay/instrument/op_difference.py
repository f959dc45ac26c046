# SPDX-License-Identifier: Apache-2.0
"""Which operators each pass added and removed.

counter = OpDifference()
with PassContext(opt_level=3, instruments=[counter]):
    module = FoldConstant()(module)
counter.get_pass_to_op_diff()                    # [(0, "FoldConstant", {"expand_dims": -21})]
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from aotc.ir import PassInfo, PassInstrument
from aotc.relay.analysis import list_op_freqs
from aotc.relay.module import IRModule


@dataclass(frozen=True, slots=True)
class OpChange:
    """What one pass did: how deep it was nested, its name, and by how many calls of each operator it changed."""

    depth: int
    name: str
    ops: dict[str, int]


def count_ops(module: IRModule) -> Counter[str]:
    """Calls of each operator in all functions of a module, those inside fused functions included."""
    counts: Counter[str] = Counter()
    for function in module.functions.values():
        counts.update(list_op_freqs(function))
    return counts


class OpDifference(PassInstrument):
    """Counts operators before and after each pass.

    Passes are listed when they end, an inner one before the outer one; those that change no count are left
    out.  The list starts afresh when a context is entered.
    """

    def __init__(self) -> None:
        self._changes: list[OpChange] = []
        self._open: list[Counter[str]] = []

    def enter_pass_ctx(self) -> None:
        if not self._open:
            self._changes = []

    def run_before_pass(self, module: IRModule, info: PassInfo) -> None:
        self._open.append(count_ops(module))

    def run_after_pass(self, module: IRModule, info: PassInfo) -> None:
        before, after = self._open.pop(), count_ops(module)
        change = {name: after[name] - before[name] for name in sorted({*before, *after}) if after[name] != before[name]}
        if change:
            self._changes.append(OpChange(len(self._open), info.name, change))

    def pass_failed(self, info: PassInfo) -> None:
        self._open.pop()

    @property
    def changes(self) -> tuple[OpChange, ...]:
        """What the passes did, in the order in which they ended."""
        return tuple(self._changes)

    def get_pass_to_op_diff(self) -> list[tuple[int, str, dict[str, int]]]:
        """The changes as (depth, pass name, {operator: change}), under the name that Relay's users know."""
        return [(c.depth, c.name, dict(c.ops)) for c in self._changes]

    def render(self) -> str:
        """A line per pass, indented by depth: `FoldConstant: expand_dims -21`."""
        lines = []
        for change in self._changes:
            ops = ", ".join(f"{name} {count:+d}" for name, count in change.ops.items())
            lines.append("\t" * change.depth + f"{change.name}: {ops}\n")
        return "".join(lines)
