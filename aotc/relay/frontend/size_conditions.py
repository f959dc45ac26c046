# SPDX-License-Identifier: Apache-2.0
"""Conditions on sizes that a model states, beside those that follow from the types of its operators.

with collect_size_conditions() as conditions:
    require_equal_dims("graph-split", n + m, 8, "...")      # parts of a split, whose extent is 8
conditions                                                  # [("m+n", "==", "8", "split_0")]

They become the attribute "size_conditions" of the module, and are checked before a run.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, TypeAlias

from aotc.ir import AotcError, Dim, SymDim, current_span, interval_of_dim, require, same_dim

#: Two dimensions as text, "==" or ">=" between them, and the name of the node that states the condition.
SizeCondition: TypeAlias = tuple[str, str, str, str]

_CONDITIONS: Final[ContextVar[list[SizeCondition] | None]] = ContextVar("aotc_size_conditions", default=None)


@contextmanager
def collect_size_conditions() -> Iterator[list[SizeCondition]]:
    """Context manager: yield a list that gets every condition stated inside the block."""
    conditions: list[SizeCondition] = []
    token = _CONDITIONS.set(conditions)
    try:
        yield conditions
    finally:
        _CONDITIONS.reset(token)


def state_conditions(conditions: Iterable[SizeCondition]) -> None:
    """State conditions that a part of a model has collected, in a block that collects those of the whole model."""
    known = _CONDITIONS.get()
    assert known is not None, "nothing collects conditions"
    known.extend(condition for condition in conditions if condition not in known)


def require_equal_dims(code: str, left: Dim, right: Dim, text: str) -> None:
    """State that two dimensions are equal. Raises AotcError (`code`, with the message `text`) if they are
    known to differ, or if nothing collects conditions.
    """
    _require_relation(code, left, "==", right, text)


def require_at_least(code: str, left: Dim, right: Dim, text: str) -> None:
    """State that a dimension is at least another one. Raises AotcError (`code`, with the message `text`)
    if it is known to be less, or if nothing collects conditions.
    """
    _require_relation(code, left, ">=", right, text)


def require_values_within(code: str, values: Iterable[Dim], least: int | None, most: int | None, text: str) -> None:
    """State that those of some values which are known at run time only are at least `least` and at most `most`; None
    stands for no bound. Raises AotcError (`code`, with the message `text` and the value) as `require_at_least` does.
    """
    for value in values:
        if isinstance(value, SymDim):
            if least is not None:
                require_at_least(code, value, least, f"{text} is {value}")
            if most is not None:
                require_at_least(code, most, value, f"{text} is {value}")


def _require_relation(code: str, left: Dim, relation: str, right: Dim, text: str) -> None:
    (low, high), (least, most) = interval_of_dim(left), interval_of_dim(right)
    is_possible = high >= least and (relation == ">=" or low <= most)
    require(code, is_possible, text)
    if same_dim(left, right) or (relation == ">=" and low >= most):
        return
    conditions = _CONDITIONS.get()
    if conditions is None or any(isinstance(d, SymDim) and not d.name for d in (left, right)):
        raise AotcError(code, f"{text}: these sizes are not known when the model is compiled")
    span = current_span()
    names = [d.name if isinstance(d, SymDim) else str(d) for d in (left, right)]
    condition = (names[0], relation, names[1], span.node if span is not None else "")
    if condition not in conditions:
        conditions.append(condition)
