# SPDX-License-Identifier: Apache-2.0
"""Converters of operators that make tensors out of numbers, and of arithmetic on numbers themselves.

OPS["arange.start"](start=0, end=4)     # a constant
SCALARS["floordiv"](7, 2)               # 3
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from aotc.ir.diagnostics import AotcError
from aotc.ir.dims import SymDim
from aotc.relay.expr import Constant, Expr
from aotc.relay.frontend import graph as g
from aotc.relay.frontend.pytorch.values import Table, Value, as_tensor, dynamic, ints_of, is_tensor, result_type, shape


def _full(size: Value, fill_value: Value, dtype: str | None = None) -> Expr:
    wanted = dtype or result_type(fill_value)
    return g.broadcast(as_tensor(fill_value, wanted), ints_of(size))


def _zeros(size: Value, dtype: str | None = None) -> Expr:
    return g.filled(0, ints_of(size), dtype or "float32")


def _ones(size: Value, dtype: str | None = None) -> Expr:
    return g.filled(1, ints_of(size), dtype or "float32")


def _full_like(x: Expr, fill_value: Value, dtype: str | None = None) -> Expr:
    return _full(shape(x), fill_value, dtype or str(g.dtype(x)))


def _zeros_like(x: Expr, dtype: str | None = None) -> Expr:
    return _full_like(x, 0, dtype)


def _ones_like(x: Expr, dtype: str | None = None) -> Expr:
    return _full_like(x, 1, dtype)


def _new_full(x: Expr, size: Value, fill_value: Value, dtype: str | None = None) -> Expr:
    return _full(size, fill_value, dtype or str(g.dtype(x)))


def _new_zeros(x: Expr, size: Value, dtype: str | None = None) -> Expr:
    return _new_full(x, size, 0, dtype)


def _new_ones(x: Expr, size: Value, dtype: str | None = None) -> Expr:
    return _new_full(x, size, 1, dtype)


def _number(value: Value) -> Any:
    """A number, or the number that a constant holds."""
    if isinstance(value, SymDim):
        raise dynamic(value)
    if isinstance(value, Constant):
        return value.data.reshape(-1)[0].item()
    if is_tensor(value):
        hint = "torch.where chooses between tensors element by element"
        text = "a value that is only known at run time is used as a Python number"
        raise AotcError("torch-dynamic", text, hint=hint)
    return value


def _arange(end: Value, start: Value = 0, step: Value = 1, dtype: str | None = None) -> Expr:
    first, last, by = map(_number, (start, end, step))
    wanted = dtype or ("int64" if all(isinstance(v, int) for v in (first, last, by)) else "float32")
    count = max(math.ceil((last - first) / by), 0)
    g.check_materialized((count,), wanted, "a range")
    return g.constant(first + np.arange(count) * by, wanted)


def _linspace(start: Value, end: Value, steps: int, dtype: str | None = None) -> Expr:
    wanted = dtype or "float32"
    g.check_materialized((steps,), wanted, "a range")
    return g.constant(np.linspace(_number(start), _number(end), steps), wanted)


def _eye(n: int, m: int | None = None, dtype: str | None = None) -> Expr:
    columns = n if m is None else m
    g.check_materialized((n, columns), dtype or "float32", "an identity matrix")
    return g.constant(np.eye(n, columns), dtype or "float32")


def _scalar_tensor(s: Value, dtype: str | None = None) -> Expr:
    return as_tensor(s, dtype or "float32")


def _fill(x: Expr, value: Value) -> Expr:
    return _full_like(x, value)


def _tensor(data: Value, dtype: str | None = None) -> Expr:
    """torch.tensor of numbers and lists of them."""
    values = np.asarray(data)
    kinds = {"b": "bool", "i": "int64", "f": "float32"}
    if values.dtype.kind not in kinds:
        raise AotcError("torch-dynamic", "torch.tensor of values that are only known at run time is not supported")
    return g.constant(values, dtype or kinds[values.dtype.kind])


OPS: Table = {
    "_shape_as_tensor": lambda x: g.constant(list(shape(x)), "int64"),
    "arange": _arange,
    "empty": _zeros,
    "empty_like": _zeros_like,
    "eye": _eye,
    "fill": _fill,
    "full": _full,
    "full_like": _full_like,
    "linspace": _linspace,
    "new_empty": _new_zeros,
    "new_full": _new_full,
    "new_ones": _new_ones,
    "new_zeros": _new_zeros,
    "ones": _ones,
    "ones_like": _ones_like,
    "scalar_tensor": _scalar_tensor,
    "tensor": _tensor,
    "zero": _zeros_like,
    "zeros": _zeros,
    "zeros_like": _zeros_like,
}


# --- numbers


def _true_div(a: Value, b: Value) -> float:
    return float(a / b)


def _get_item(items: Value, index: Value) -> Value:
    return items[index]


def _slice_list(items: Value, start: Value = None, end: Value = None, step: Value = 1) -> Value:
    return items[slice(start, end, step)]


def _int(value: Value) -> int | SymDim:
    return value if isinstance(value, SymDim) else int(value)


SCALARS: Final[dict[str, Callable[..., Value]]] = {
    "Bool": bool,
    "Float": float,
    "FloatImplicit": float,
    "Int": _int,
    "IntImplicit": int,
    "ScalarImplicit": lambda v: v,
    "__contains__": lambda items, key: key in items,
    "__getitem__": _get_item,
    "__is__": operator.is_,
    "__isnot__": operator.is_not,
    "__not__": operator.not_,
    "__and__": operator.and_,
    "__or__": operator.or_,
    "add": lambda a, b, alpha=1: a + b * alpha if alpha != 1 else a + b,
    "append": lambda items, value: [*items, value],
    "ceil": math.ceil,
    "div": _true_div,
    "eq": operator.eq,
    "floor": math.floor,
    "floordiv": operator.floordiv,
    "ge": operator.ge,
    "gt": operator.gt,
    "item": lambda v: v,
    "le": operator.le,
    "len": len,
    "list": list,
    "lt": operator.lt,
    "mul": operator.mul,
    "ne": operator.ne,
    "neg": operator.neg,
    "pow": operator.pow,
    "remainder": operator.mod,
    "slice": _slice_list,
    "sqrt": math.sqrt,
    "sub": operator.sub,
    "truediv": _true_div,
    "warn": lambda *_: None,
}
"""What TorchScript computes on numbers and lists, by operator; only called where no tensor is involved."""


# --- facts about tensors


def _size(x: Expr, dim: int | None = None) -> Value:
    return list(g.dims(x)) if dim is None else g.dims(x)[dim]


def _known_number(x: Expr) -> Value:
    """The value of a constant of one element."""
    return _number(x)


FACTS: Table = {
    "Bool": lambda a: bool(_number(a)),
    "Float": lambda a: float(_number(a)),
    "FloatImplicit": lambda a: float(_number(a)),
    "Int": lambda a: int(_number(a)),
    "IntImplicit": lambda a: int(_number(a)),
    "ScalarImplicit": lambda a: _number(a),
    "_local_scalar_dense": _known_number,
    "dim": lambda x: len(g.dims(x)),
    "is_floating_point": lambda x: g.dtype(x).is_float,
    "item": _known_number,
    "len": lambda t: g.dims(t)[0],
    "numel": lambda x: math.prod(shape(x)),
    "size": _size,
    "sym_numel": lambda x: math.prod(shape(x)),
    "sym_size": _size,
}
OPS.update(FACTS)
