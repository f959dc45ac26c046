# SPDX-License-Identifier: Apache-2.0
"""Limits on the work, memory and graph size that compiling a model may cost the compiler itself.

Input: the estimated cost of a computation, such as folding a constant.  Output: a decision whether
it is within the limits of the compilation, or an AotcError that names the limit.

with running_or_new_budget_scope({"compile.max_bytes": 1 << 20}):
    # True; 100 operations are spent
    current_budget().spend_compile_time_cost_if_affordable(Cost(work=100, nbytes=800))
    # AotcError with the bytes needed, the bytes allowed, and the configuration key of the limit
    current_budget().spend_compile_time_cost_or_raise(Cost(1 << 30, 8 << 30), "a range")
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from aotc.ir.diagnostics import AotcError
from aotc.ir.option_mentions_in_messages import option_text
from aotc.ir.span import current_span
from aotc.ir.temporary_context_value import temporarily_set_context_variable
from aotc.ir.transform import PassContext

_LIMIT_DEFAULTS_AND_UNITS: Final = {
    "compile.max_work": (1 << 35, "operations of the compiler"),
    "compile.max_bytes": (1 << 30, "bytes of the compiler's memory"),
    "compile.max_nodes": (500_000, "nodes in all"),
    "compile.max_unroll": (4096, "parts, each with nodes of its own"),
}
#: The configuration keys and their defaults.
#:
#: max_work     scalar operations that the compiler evaluates in total: folded constants, tables
#: max_bytes    bytes of arrays that the compiler allocates at once, beyond the model's own
#: max_nodes    graph nodes that functions, loops and branches expand to in total
#: max_unroll   iterations of one unrolled loop, and outputs of one split
DEFAULT_COMPILE_LIMITS: Final = MappingProxyType(
    {key: default for key, (default, _) in _LIMIT_DEFAULTS_AND_UNITS.items()}
)


class Cost(NamedTuple):
    """Cost of a computation in the compiler: scalar operations, and bytes of arrays allocated at
    once.
    """

    work: int
    nbytes: int


def array_computation_cost(elements: int, itemsize: int = 8, copies: int = 1) -> Cost:
    """Return the cost of an array of `elements` elements of `itemsize` bytes, with `copies` arrays
    of its size alive at once.
    """
    return Cost(elements * copies, elements * itemsize * copies)


@dataclass(slots=True)
class Budget:
    """Limits of one compilation by configuration key, and the amounts already spent of cumulative
    limits.
    """

    limits: Mapping[str, int]
    spent: dict[str, int] = field(default_factory=dict)

    def remaining_compile_time_budget(self, limit_key: str) -> int:
        """Return how much of a compile-time limit, such as scalar operations, is not spent yet."""
        return self.limits[limit_key] - self.spent.get(limit_key, 0)

    def spend_compile_time_budget(self, limit_key: str, amount: int, purpose: str) -> None:
        """Spend `amount` of a cumulative limit; raise AotcError (code "budget") if less than that
        is left.
        """
        self.require_within_compile_time_limit(limit_key, self.spent.get(limit_key, 0) + amount, purpose)
        self.spent[limit_key] = self.spent.get(limit_key, 0) + amount

    def require_within_compile_time_limit(self, limit_key: str, needed: int, purpose: str) -> None:
        """Raise AotcError (code "budget") if `needed` exceeds the limit `limit_key`; the message
        states both and `purpose` needs it.
        """
        limit = self.limits[limit_key]
        if needed > limit:
            text = f"{purpose} would need {needed} {_LIMIT_DEFAULTS_AND_UNITS[limit_key][1]}; {limit} are allowed"
            hint = "if the model is to be trusted: " + option_text("config", {limit_key: needed})
            raise AotcError("budget", text, span=current_span(), hint=hint)

    def is_cost_within_compile_time_limits(self, cost: Cost) -> bool:
        """Return True if a compile-time computation is within the memory limit and the unspent
        operations.
        """
        return cost.nbytes <= self.limits["compile.max_bytes"] and cost.work <= self.remaining_compile_time_budget(
            "compile.max_work"
        )

    def spend_compile_time_cost_if_affordable(self, cost: Cost) -> bool:
        """Return True and spend the operations if a computation is within the limits; otherwise
        return False.
        """
        if not self.is_cost_within_compile_time_limits(cost):
            return False
        self.spent["compile.max_work"] = self.spent.get("compile.max_work", 0) + cost.work
        return True

    def spend_compile_time_cost_or_raise(self, cost: Cost, purpose: str) -> None:
        """Spend the cost of a computation that cannot be left to run time; AotcError (code
        "budget") if it exceeds a limit.
        """
        self.require_within_compile_time_limit("compile.max_bytes", cost.nbytes, purpose)
        self.spend_compile_time_budget("compile.max_work", cost.work, purpose)


_CURRENT_BUDGET: ContextVar[Budget | None] = ContextVar("aotc_budget", default=None)


def current_budget() -> Budget:
    """Return the budget of the running compilation; outside of a compilation, a new one with the
    pass context's limits.
    """
    return _CURRENT_BUDGET.get() or _compile_time_budget_from_config(PassContext.current().config)


def _compile_time_budget_from_config(config: Mapping[str, Any]) -> Budget:
    limits = {key: config.get(key, default) for key, default in DEFAULT_COMPILE_LIMITS.items()}
    for key, limit in limits.items():
        if limit < 0:
            raise AotcError("budget", f"{key} must not be negative, got {limit}")
    return Budget(limits)


def running_or_new_budget_scope(config: Mapping[str, Any] | None = None) -> AbstractContextManager[Budget]:
    """Context manager: use one budget for the block, that of the running compilation if there is
    one.

    config   values for keys of `DEFAULT_COMPILE_LIMITS`, other keys are ignored; None: the pass context's configuration
    """
    return temporarily_set_context_variable(
        _CURRENT_BUDGET,
        current_budget() if config is None else _CURRENT_BUDGET.get() or _compile_time_budget_from_config(config),
    )
