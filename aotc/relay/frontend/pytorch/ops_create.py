# SPDX-License-Identifier: Apache-2.0
"""PyTorch converters of operators that create tensors from numbers, and of arithmetic on Python
numbers.

OPS["arange.start"](start=0, end=4)     # a constant
SCALAR_FUNCTIONS["floordiv"](7, 2)               # 3
"""

import math
import operator
from collections.abc import Callable
from functools import partial
from typing import Final

import numpy as np

from aotc.ir import AotcError, DType, SymDim, require
from aotc.relay.expr import Expr
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.pytorch import value_conversion_and_promotion as tv
from aotc.relay.frontend.pytorch.value_conversion_and_promotion import Table, TorchValue


def _full(size: TorchValue, fill_value: TorchValue, dtype: str | None = None) -> Expr:
    result_dtype = dtype or tv.torch_promoted_dtype_of_operands(fill_value)
    sizes = g.checked_shape(tv.to_int_list(size), DType(result_dtype), "a tensor of one value")
    return g.broadcast_to(tv.to_tensor_expr_of_dtype(fill_value, result_dtype), sizes)


def _full_like(x: Expr, fill_value: TorchValue, dtype: str | None = None) -> Expr:
    return _full(tv.static_dims(x), fill_value, dtype or g.dtype(x))


def _new_full(x: Expr, size: TorchValue, fill_value: TorchValue, dtype: str | None = None) -> Expr:
    return _full(size, fill_value, dtype or g.dtype(x))


def _item(value: TorchValue, /) -> TorchValue:
    return value if isinstance(value, SymDim) else tv.to_python_number(value)


def _arange(end: TorchValue, start: TorchValue = 0, step: TorchValue = 1, dtype: str | None = None) -> Expr:
    first, last, by = map(tv.to_python_number, (start, end, step))
    result_dtype = dtype or ("int64" if all(isinstance(v, int) for v in (first, last, by)) else "float32")
    forward = by != 0 and (last - first) * by >= 0
    require("torch-argument", forward, f"a range from {first} to {last} with step {by} is not possible")
    count = max(math.ceil((last - first) / by), 0)
    g.check_materialization_cost((count,), result_dtype, "a range")
    return g.constant(first + np.arange(count) * by, result_dtype)


def _linspace(start: TorchValue, end: TorchValue, steps: int, dtype: str | None = None) -> Expr:
    result_dtype = dtype or "float32"
    require("torch-argument", steps >= 0, f"the number of steps must not be negative, it is {steps}")
    g.check_materialization_cost((steps,), result_dtype, "a range")
    return g.constant(np.linspace(tv.to_python_number(start), tv.to_python_number(end), steps), result_dtype)


def _eye(n: int, m: int | None = None, dtype: str | None = None) -> Expr:
    columns = n if m is None else m
    require("torch-argument", min(n, columns) >= 0, f"an identity matrix of {n} x {columns} is not possible")
    g.check_materialization_cost((n, columns), dtype or "float32", "an identity matrix")
    return g.constant(np.eye(n, columns), dtype or "float32")


def _tensor(data: TorchValue, /, dtype: str | None = None) -> Expr:
    """Convert torch.tensor of numbers and nested lists to a constant. Raises AotcError (code
    "torch-dynamic") for values that are known only at run time.
    """
    values = np.asarray(data)
    kinds = {"b": "bool", "i": "int64", "f": "float32"}
    if values.dtype.kind not in kinds:
        raise AotcError("torch-dynamic", "torch.tensor of values that are only known at run time is not supported")
    return g.constant(values, dtype or kinds[values.dtype.kind])


_FILL_VALUES: Final = {"empty": 0.0, "ones": 1.0, "zeros": 0.0}
OPS: Table = {
    **tv.converter_table_by_function_name(_arange, _eye, _full, _full_like, _linspace, _new_full, _tensor),
    **{name: partial(_full, fill_value=value) for name, value in _FILL_VALUES.items()},
    **{f"{name}_like": partial(_full_like, fill_value=value) for name, value in _FILL_VALUES.items()},
    **{f"new_{name}": partial(_new_full, fill_value=value) for name, value in _FILL_VALUES.items()},
    "_shape_as_tensor": lambda x: g.constant(list(tv.static_dims(x)), "int64"),
    "scalar_tensor": lambda s, dtype=None: tv.to_tensor_expr_of_dtype(s, dtype or "float32"),
    "fill": lambda x, value: _full_like(x, value),
    "zero": lambda x: _full_like(x, 0.0),
    # operators that return numbers: elements of constants, and properties of tensors
    **dict.fromkeys(("ScalarImplicit", "_local_scalar_dense", "item"), _item),
    **dict.fromkeys(("Float", "FloatImplicit"), lambda a: float(tv.to_python_number(a))),
    **dict.fromkeys(("Int", "IntImplicit"), lambda a: a if isinstance(a, SymDim) else tv.to_python_int(a)),
    "Bool": lambda a: bool(tv.to_python_number(a)),
    "dim": lambda x: len(g.dims(x)),
    "is_floating_point": lambda x: g.dtype(x).is_float,
    "len": lambda t: g.dims(t)[0],
    "numel": lambda x: math.prod(tv.static_dims(x)),
    "size": lambda x, dim=None: list(g.dims(x)) if dim is None else g.dims(x)[dim],
}

_PYTHON_OPERATORS = (
    *("eq", "floordiv", "ge", "gt", "le", "lt", "mul", "ne", "neg", "pow", "sub"),
    *("__and__", "__contains__", "__getitem__", "__not__", "__or__"),
)
#: Functions that evaluate TorchScript's operators on numbers and lists, by operator; called only if
#: no argument is a tensor.
SCALAR_FUNCTIONS: Final[dict[str, Callable[..., TorchValue]]] = {
    **{name: getattr(operator, name) for name in _PYTHON_OPERATORS},
    **{name: getattr(math, name) for name in ("ceil", "floor", "sqrt")},
    **dict.fromkeys(("div", "truediv"), lambda a, b: float(a / b)),
    "__is__": operator.is_,
    "__isnot__": operator.is_not,
    "add": lambda a, b, alpha=1: a + b * alpha if alpha != 1 else a + b,
    "append": lambda items, value: [*items, value],
    "len": len,
    "list": list,
    "remainder": operator.mod,
    "slice": lambda items, start=None, end=None, step=1: items[start:end:step],
    "warn": lambda *_: None,
}
