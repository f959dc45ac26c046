# SPDX-License-Identifier: Apache-2.0
"""Instrument that counts the operators which each pass added and removed.

counter = OpDifference()
with PassContext(opt_level=3, instruments=[counter]):
    module = FoldConstant()(module)
counter.get_pass_to_op_diff()                    # [(0, "FoldConstant", {"expand_dims": -21})]
"""

from collections import Counter
from collections.abc import Generator, Mapping

from aotc.ir import PassInfo, PassObserver, frozen
from aotc.relay.graph_api import IRModule, list_op_freqs


@frozen
class OpChange:
    """Effect of one pass: its nesting depth, its name, and the change of the number of calls of
    each operator.
    """

    depth: int
    name: str
    ops: dict[str, int]


def count_op_calls(module: IRModule) -> Counter[str]:
    """Return the number of calls of each operator in all functions of a module, including those
    inside fused functions.
    """
    return sum((Counter(list_op_freqs(f)) for f in module.functions.values()), Counter())


def operator_count_changes(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """Return the differences of operator counts that changed between two programs, sorted by
    operator name.
    """
    differences = {name: after.get(name, 0) - before.get(name, 0) for name in sorted({*before, *after})}
    return {name: count for name, count in differences.items() if count}


class OpDifference(PassObserver):
    """Instrument that counts operators before and after each pass.

    Passes are listed when they end, an inner pass before its outer pass; passes that change no
    count are omitted. The list is cleared when a context is entered.
    """

    def __init__(self) -> None:
        super().__init__()
        self.reset_observations()

    def reset_observations(self) -> None:
        self._changes: list[OpChange] = []

    def observe_pass(self, module: IRModule, info: PassInfo) -> Generator[None, IRModule, None]:
        before, depth = count_op_calls(module), len(self.running)
        change = operator_count_changes(before, count_op_calls((yield)))
        if change:
            self._changes.append(OpChange(depth, info.name, change))

    @property
    def op_count_changes_by_pass(self) -> tuple[OpChange, ...]:
        """The operator count changes made by each pass, in the order in which the passes ended."""
        return tuple(self._changes)

    def get_pass_to_op_diff(self) -> list[tuple[int, str, dict[str, int]]]:
        """Return the operator count changes as (depth, pass name, {operator: change}), in the
        format of Relay's method.
        """
        return [(c.depth, c.name, dict(c.ops)) for c in self._changes]

    def render(self) -> str:
        """Return the operator count changes as text, one line per pass, indented by depth:
        `FoldConstant: expand_dims -21`.
        """
        lines = []
        for change in self._changes:
            ops = ", ".join(f"{name} {count:+d}" for name, count in change.ops.items())
            lines.append("\t" * change.depth + f"{change.name}: {ops}\n")
        return "".join(lines)
