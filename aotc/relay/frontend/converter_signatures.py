# SPDX-License-Identifier: Apache-2.0
"""Converters say by their signatures what they need of an operator;
a front end reads that here.

In: a function.  Out: its parameters, by which the inputs and
attributes of a node are handed to it.

    def softmax(x: Expr, *, axis: Axis) -> Expr: ...

    [p.name for p in parameters(softmax)]           # ["x", "axis"]
    parameters(softmax)[1].annotation == Axis       # True: a number that is brought to 0..rank - 1
"""

import inspect
from collections.abc import Callable
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, TypeAlias, Union, get_args, get_origin

from aotc.relay.expr import Expr

#: An input that may be left out.
Maybe: TypeAlias = Expr | None
#: An axis of the first input: from 0, whatever the model counts from.
Axis: TypeAlias = Annotated[int, "axis"]


@cache
def parameters(converter: Callable[..., Any]) -> tuple[inspect.Parameter, ...]:
    """The parameters of a function; their annotations as objects,
    without `| None`.
    """
    found = inspect.signature(converter, eval_str=True).parameters.values()
    return tuple(p.replace(annotation=_without_none(p.annotation)) for p in found)


def _without_none(annotation: Any) -> Any:
    kinds = [a for a in get_args(annotation) if a is not NoneType]
    return kinds[0] if get_origin(annotation) in (Union, UnionType) and len(kinds) == 1 else annotation
