# SPDX-License-Identifier: Apache-2.0
"""Python's operators on expressions: what one would expect, built as calls of operators.

x + y, -x, x < y                       # add, negative, less
x.astype("int32"), f(x), pair[0]       # cast, a call of a function, a field of a tuple
"""

from __future__ import annotations

from numbers import Number
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from aotc.ir.diagnostics import AotcTypeError
from aotc.ir.op import get_op

if TYPE_CHECKING:
    from aotc.relay.expr import Call, Callee, Expr


def _operand(value: Any) -> Expr:
    """An expression; numbers have no type of their own here, and are not guessed at."""
    if isinstance(value, (Number, bool, np.ndarray, np.generic)):
        raise AotcTypeError("operand", f'convert "{value}" with `const` first', hint=f"relay.const({value!r}, dtype)")
    if not isinstance(value, Operators):
        raise AotcTypeError("operand", f"expected an expression, not {type(value).__name__}")
    return cast("Expr", value)


def _call(name: str, *args: Any, **attrs: Any) -> Call:
    from aotc.relay.expr import call  # expressions are built on this module

    op = get_op(name)
    return call(op, tuple(map(_operand, args)), op.attrs(**attrs))


class Operators:
    """Operator syntax for expressions; `==` compares the expressions themselves.

    Raises AotcTypeError for operands that are numbers, arrays or anything else but expressions.
    """

    __slots__ = ()

    def __add__(self, other: Any) -> Call:
        return _call("add", self, other)

    def __radd__(self, other: Any) -> Call:
        return _call("add", other, self)

    def __sub__(self, other: Any) -> Call:
        return _call("subtract", self, other)

    def __rsub__(self, other: Any) -> Call:
        return _call("subtract", other, self)

    def __mul__(self, other: Any) -> Call:
        return _call("multiply", self, other)

    def __rmul__(self, other: Any) -> Call:
        return _call("multiply", other, self)

    def __truediv__(self, other: Any) -> Call:
        return _call("divide", self, other)

    def __rtruediv__(self, other: Any) -> Call:
        return _call("divide", other, self)

    def __neg__(self) -> Call:
        return _call("negative", self)

    def __lt__(self, other: Any) -> Call:
        return _call("less", self, other)

    def __le__(self, other: Any) -> Call:
        return _call("less_equal", self, other)

    def __gt__(self, other: Any) -> Call:
        return _call("greater", self, other)

    def __ge__(self, other: Any) -> Call:
        return _call("greater_equal", self, other)

    def astype(self, dtype: str) -> Call:
        """The values converted to a dtype."""
        return _call("cast", self, dtype=dtype)

    def __call__(self, *args: Any) -> Call:
        """A call of this function with arguments."""
        from aotc.relay.expr import Call

        return Call(cast("Callee", self), tuple(map(_operand, args)))
