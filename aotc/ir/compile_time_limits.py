# SPDX-License-Identifier: Apache-2.0
"""What a model may ask the compiler itself to compute: operations in all, bytes at once, nodes it expands to.

In: costs, known before the thing is computed.  Out: whether they are affordable, or a
diagnostic that names them.

with spending({"compile.max_bytes": 1 << 20}):
    budget().affords(Cost(work=100, nbytes=800))             # True, and 100 operations are spent
    budget().require(Cost(1 << 30, 8 << 30), "a range")      # AotcError: needed, allowed, and the key to raise
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from aotc.ir.context_variables import setting
from aotc.ir.diagnostics import AotcError
from aotc.ir.span import current_span
from aotc.ir.transform import PassContext

_KEYS: Final = {
    "compile.max_work": (1 << 35, "operations of the compiler"),
    "compile.max_bytes": (1 << 30, "bytes of the compiler's memory"),
    "compile.max_nodes": (500_000, "nodes in all"),
    "compile.max_unroll": (4096, "parts, each with nodes of its own"),
}
#: The configuration keys and their defaults.
#:
#: max_work     operations on scalars that the compiler does itself, in all: folded constants, tables, positions
#: max_bytes    bytes of the arrays that it makes at once, beyond those of the model
#: max_nodes    nodes that functions, loops and branches expand to, in all
#: max_unroll   iterations of one loop, and parts of one split, each of which becomes nodes of its own
LIMITS: Final = MappingProxyType({key: default for key, (default, _) in _KEYS.items()})


class Cost(NamedTuple):
    """What computing something takes: operations on scalars, and bytes of arrays at once."""

    work: int
    nbytes: int


def array_cost(elements: int, itemsize: int = 8, copies: int = 1) -> Cost:
    """The cost of making an array of `elements` with as many arrays of its size on the way as `copies` says."""
    return Cost(elements * copies, elements * itemsize * copies)


@dataclass(slots=True)
class Budget:
    """The limits of one compilation, by key, and what it has spent of those that are for all of it."""

    limits: Mapping[str, int]
    spent: dict[str, int] = field(default_factory=dict)

    def left(self, key: str) -> int:
        """What is left of a limit."""
        return self.limits[key] - self.spent.get(key, 0)

    def spend(self, key: str, amount: int, what: str) -> None:
        """Count `amount` towards a limit for the whole compilation; AotcError where less is left."""
        self.check(key, self.spent.get(key, 0) + amount, what)
        self.spent[key] = self.spent.get(key, 0) + amount

    def check(self, key: str, needed: int, what: str) -> None:
        """AotcError (code "budget") where `needed` is beyond the limit `key`; the message names all of them."""
        limit = self.limits[key]
        if needed > limit:
            text = f"{what} would need {needed} {_KEYS[key][1]}; {limit} are allowed"
            hint = f"if the model is to be trusted: --config {key}={needed}"
            raise AotcError("budget", text, span=current_span(), hint=hint)

    def fits(self, cost: Cost) -> bool:
        """Whether something may be computed, for all that is spent so far."""
        return cost.nbytes <= self.limits["compile.max_bytes"] and cost.work <= self.left("compile.max_work")

    def affords(self, cost: Cost) -> bool:
        """Whether something may be computed; then its work is spent."""
        if not self.fits(cost):
            return False
        self.spent["compile.max_work"] = self.spent.get("compile.max_work", 0) + cost.work
        return True

    def require(self, cost: Cost, what: str) -> None:
        """Spend what cannot be left to run time; AotcError (code "budget") where it is not affordable."""
        self.check("compile.max_bytes", cost.nbytes, what)
        self.spend("compile.max_work", cost.work, what)


_CURRENT: ContextVar[Budget | None] = ContextVar("aotc_budget", default=None)


def budget() -> Budget:
    """The budget of the compilation under way; outside of one, a fresh one by the pass context's configuration."""
    return _CURRENT.get() or _configured(PassContext.current().config)


def _configured(config: Mapping[str, Any]) -> Budget:
    limits = {key: config.get(key, default) for key, default in LIMITS.items()}
    for key, limit in limits.items():
        if limit < 0:
            raise AotcError("budget", f"{key} must not be negative, got {limit}")
    return Budget(limits)


def spending(config: Mapping[str, Any] | None = None) -> AbstractContextManager[Budget]:
    """One budget for all that happens inside: the one under way if there is one, else a fresh one.

    config   values for some of the keys of `LIMITS` (other keys are passed over); the pass context's for None
    """
    return setting(_CURRENT, budget() if config is None else _CURRENT.get() or _configured(config))
