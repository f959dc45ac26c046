# SPDX-License-Identifier: Apache-2.0
"""Read the signature of a converter function, by which a front end decides which inputs and
attributes of a node to pass to it.

Input: a function. Output: its parameters with evaluated annotations.

    def softmax(x: Expr, *, axis: Axis) -> Expr: ...

    [p.name for p in converter_parameters(softmax)]  # ["x", "axis"]
    converter_parameters(softmax)[1].annotation == Axis  # True: a number that is converted to 0..rank - 1
"""

import inspect
from collections.abc import Callable
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, TypeAlias, Union, get_args, get_origin

from aotc.relay.expr import Expr

#: Type of a converter's parameter for an optional input of a node: None if it is omitted.
OptionalExpr: TypeAlias = Expr | None
#: Type of a converter's parameter for an axis of the first input, converted to the range 0..rank -
#: 1.
Axis: TypeAlias = Annotated[int, "axis"]


@cache
def converter_parameters(converter: Callable[..., Any]) -> tuple[inspect.Parameter, ...]:
    """Return the parameters of a converter function, with annotations evaluated to objects and `|
    None` removed. Results are cached.
    """
    params = inspect.signature(converter, eval_str=True).parameters.values()
    return tuple(p.replace(annotation=_strip_optional(p.annotation)) for p in params)


def _strip_optional(annotation: Any) -> Any:
    kinds = [a for a in get_args(annotation) if a is not NoneType]
    return kinds[0] if get_origin(annotation) in (Union, UnionType) and len(kinds) == 1 else annotation
