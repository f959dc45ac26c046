# SPDX-License-Identifier: Apache-2.0
"""What converters of PyTorch operators see: tensors as expressions,
everything else as Python values.

In: an operator's schema and the values of its arguments.  Out:
expressions.  Data types follow torch's promotion rules, in which
tensors with dimensions weigh more than those without, and these
more than Python's numbers.

    a, b = promoted(x, 1.5)             # an int64 tensor and a number: both float32
    apply(converter, schema, [x, 1], {})
"""

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, Final, TypeAlias

import numpy as np
import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes

from aotc.ir import AotcError, Array, Dim, DType, SymDim, frozen
from aotc.relay.expr import Call, Constant, Expr, Function, If, Let, TupleGetItem, Var
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.converter_signatures import Axis, parameters
from aotc.relay.frontend.pytorch.inplace_and_out_forms import is_written

#: An expression, a Python number, string, dtype or None, or a list or tuple of such.
Value: TypeAlias = Any
#: Takes arguments by their names in torch's schema (`self` and `input` are called x), gives
#: the result or results.
Converter: TypeAlias = Callable[..., Value]
Table: TypeAlias = "dict[str, Converter]"

_TENSORS: Final = (Var, Constant, Call, TupleGetItem, If, Let, Function)

#: Arguments that say where and how to compute, or how to train, or repeat a shape, not what the result is.
IGNORED: Final = {
    "layout", "device", "pin_memory", "memory_format", "non_blocking", "copy", "implicit", "requires_grad",
    "benchmark", "deterministic", "cudnn_enabled", "cudnn_enable", "allow_tf32", "generator", "sparse",
    "scale_grad_by_freq", "padding_idx", "stable", "momentum", "half_to_float", "sorted", "sparse_grad", "check_errors",
    "N", "C", "HxW",
}  # fmt: skip

#: What programs compute on dimensions.
NUMERIC: Final[tuple[Callable[..., Any], ...]] = (
    operator.add, operator.sub, operator.mul, operator.floordiv, operator.truediv, operator.mod, operator.neg,
    operator.pow, operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge, operator.and_,
    math.ceil, math.floor, math.trunc, round, torch.sym_int, torch.sym_float, torch.sym_max, torch.sym_min,
    torch.sym_not, torch.sym_ite,
)  # fmt: skip

#: The names of data types by their numbers in TorchScript.
_DTYPE_NUMBERS: Final = (
    *("uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"),
    *("complex32", "complex64", "complex128", "bool", "qint8", "quint8", "qint32", "bfloat16"),
)


@frozen
class Absent:
    """A result that is not computed: an error once somebody reads it."""

    why: str


def is_tensor(value: Value) -> bool:
    """True for an expression."""
    return isinstance(value, _TENSORS)


def dtype_name(value: Value) -> str | None:
    """The name of a data type given as torch.dtype or by its number
    in TorchScript; None for None.
    """
    if value is None:
        return None
    if isinstance(value, int):
        name = _DTYPE_NUMBERS[value] if 0 <= value < len(_DTYPE_NUMBERS) else f"number {value}"
    else:
        name = str(value).removeprefix("torch.")
    if name.startswith(("complex", "q", "number")):
        raise AotcError("torch-dtype", f"data type {name} is not supported")
    return str(DType(name))


def array_of(tensor: Any) -> Array:
    """The value of a torch tensor, copied; AotcError for one that
    is not dense, or not on the CPU.
    """
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise AotcError("torch-tensor", "only dense tensors that are not quantized are supported")
    if tensor.device.type != "cpu":
        hint = "move the module with .cpu() first"
        raise AotcError("torch-device", f"a tensor is on {tensor.device}, not on the CPU", hint=hint)
    dtype = DType(dtype_name(tensor.dtype) or "")
    plain = tensor.detach().contiguous()
    if tensor.dtype == torch.bfloat16:
        return np.array(plain.view(torch.int16).numpy()).view(dtype.numpy)
    return np.array(plain.numpy(), dtype.numpy)


# --- promotion


def _example(x: Expr) -> torch.Tensor:
    """A tensor of the data type of `x` that takes no memory, with dimensions if `x` has any."""
    return torch.empty((1,) * g.rank(x), dtype=getattr(torch, g.dtype(x)), device="meta")


def result_type(*values: Value) -> str:
    """The data type of an operation on tensors and numbers (torch.result_type, for any number of them)."""
    known = [_example(v) if is_tensor(v) else v for v in values if is_tensor(v) or isinstance(v, (int, float))]
    _, dtype = elementwise_dtypes(*known, type_promotion_kind=ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT)
    return str(dtype).removeprefix("torch.")


def as_tensor(value: Value, dtype: str) -> Expr:
    """A tensor or number as an expression of a data type."""
    if isinstance(value, SymDim):
        raise dynamic(value)
    return g.cast(value, dtype) if is_tensor(value) else g.constant(value, dtype)


def promoted(*values: Value) -> list[Expr]:
    """Tensors and numbers as expressions of their common data type."""
    dtype = result_type(*values)
    return [as_tensor(v, dtype) for v in values]


def floating(x: Expr) -> Expr:
    """`x`, integers and bools as float32."""
    return x if g.dtype(x).is_float else g.cast(x, "float32")


def dynamic(dim: Dim) -> AotcError:
    """The error of a dynamic dimension where a number is needed."""
    name = dim.name if isinstance(dim, SymDim) else ""
    hint = f'dims={{"{name}": ...}} pins it, --dim {name}=... on the command line' if name else "make it static"
    return AotcError("torch-dynamic", f"the value of the dynamic dimension {name or dim} is needed", hint=hint)


def training(what: str) -> AotcError:
    """The error of an operator that would train."""
    hint = "call .eval() on the module before tracing or exporting it"
    return AotcError("torch-training", f"{what} is in training mode", hint=hint)


def ints(values: Value) -> list[int]:
    """Integers, of which one alone may stand for a list;
    one-element constants count as numbers.
    """
    items = values if isinstance(values, (list, tuple)) else [values]
    return [int_of(v) for v in items]


def number(value: Value) -> Any:
    """A Python number, or the one that a constant of one element holds."""
    if isinstance(value, SymDim):
        raise dynamic(value)
    if isinstance(value, Constant) and value.data.size == 1:
        return value.data.reshape(-1)[0].item()
    if is_tensor(value):
        text = "a value that is only known at run time is used as a number or in a shape"
        raise AotcError("torch-dynamic", text, hint="torch.where chooses between tensors element by element")
    return value


def int_of(value: Value) -> int:
    """An integer: a number or a constant of one element."""
    return int(number(value))


def target_shape(values: Sequence[Value]) -> list[int]:
    """A shape to reshape to: one dynamic dimension becomes -1."""
    unknown = [v for v in values if isinstance(v, SymDim)]
    if len(unknown) > 1 or (unknown and any(v == -1 for v in values)):
        raise dynamic(unknown[0])
    return [-1 if isinstance(v, SymDim) else int_of(v) for v in values]


def axis_in(place: int, rank: int) -> int:
    """A possibly negative axis from 0; tensors without dimensions
    have the axis 0, too.
    """
    if not -max(rank, 1) <= place < max(rank, 1):
        raise AotcError("torch-axis", f"dimension {place} is outside a tensor of {rank} dimensions")
    return place % max(rank, 1)


def axis(place: int, x: Expr) -> int:
    """A possibly negative axis of a tensor, from 0."""
    return axis_in(place, g.rank(x))


def size(x: Expr, place: int) -> int:
    """A static dimension."""
    dim = g.dims(x)[place]
    if not isinstance(dim, int):
        raise dynamic(dim)
    return dim


def shape(x: Expr) -> tuple[int, ...]:
    """The static shape."""
    return tuple(size(x, k) for k in range(g.rank(x)))


# --- calls


def apply(converter: Converter, schema: Any, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
    """The result of a converter on the arguments of a call, which
    are named by torch's schema.

    Positional-only parameters get the first arguments, whatever
    their names. A parameter that is an `Axis` gets one of x from 0;
    `**rest` gets all that has no parameter. Raises AotcError for an
    argument that the converter does not know and that is not at its
    default.
    """
    takes = {p.name: p for p in parameters(converter)}
    first = [name for name, p in takes.items() if p.kind is p.POSITIONAL_ONLY]
    open_ended = any(p.kind is p.VAR_KEYWORD for p in takes.values())
    given = {**dict(zip((formal.name for formal in schema.arguments), args, strict=False)), **kwargs}
    bound: dict[str, Value] = {}
    for position, formal in enumerate(schema.arguments):
        if formal.kwarg_only and is_written(formal):
            continue
        value = given.get(formal.name, formal.default_value)
        name = "x" if formal.name in ("self", "input") else formal.name
        name = first[position] if position < len(first) else name
        if name in takes and takes[name].annotation == Axis:
            bound[name] = axis(value, bound["x"])
        elif name in takes or (open_ended and name not in IGNORED):
            bound[name] = dtype_name(value) if name == "dtype" else value
        elif name not in IGNORED and value is not None and value != formal.default_value:
            raise AotcError("torch-argument", f"the argument {formal.name}={value!r} is not supported")
    in_order = [bound.pop(name) for name in first if name in bound]
    return converter(*in_order, **bound)


def named(*converters: Converter) -> Table:
    """Converters by the names of their operators, which they bear, perhaps after an underscore."""
    return {converter.__name__.removeprefix("_"): converter for converter in converters}


def with_absent(converter: Converter, what: str, count: int = 1) -> Converter:
    """A converter whose result is followed by others that are not
    computed.
    """

    @wraps(converter)
    def convert(*args: Value, **kwargs: Value) -> list[Value]:
        return [converter(*args, **kwargs), *[Absent(what)] * count]

    return convert
