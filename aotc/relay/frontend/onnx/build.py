# SPDX-License-Identifier: Apache-2.0
"""The vocabulary in which converters build graphs: operator calls that fold at once where all is constant.

In: expressions, numbers, attributes.  Out: typed expressions.  A call whose arguments are small constants
becomes a constant through the operator's reference, which is what makes shape arithmetic disappear.

    y = emit("nn.softmax", x, axis=-1)
    z = add(mul(x, 2.0), y)                 # numbers take the data type of the tensor beside them
    reshape(x, (1, -1))
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from aotc.ir.budget import array_cost, budget
from aotc.ir.diagnostics import AotcError
from aotc.ir.dims import Dim, is_static, static_shape
from aotc.ir.dtype import DType
from aotc.ir.types import TensorType, tensor_types
from aotc.relay.evaluate import evaluate_call
from aotc.relay.expr import Call, Constant, Expr, Tuple, TupleGetItem, call, splat, tensor_type_of
from aotc.relay.frontend.onnx.load import check_size
from aotc.relay.op import REGISTRY

Number: TypeAlias = "int | float | bool"
Operand: TypeAlias = "Expr | int | float | bool"

FOLD_BYTES: Final = 1 << 20
"""A call folds if neither an argument nor the result is larger than this."""


def emit(name: str, *args: Expr, **attributes: Any) -> Expr:
    """A call of operator `name`, or its value where all arguments are small constants.

    Raises AotcError where the operator does not exist, its type rule refuses, or the result is too large.
    """
    op = REGISTRY.get(name)
    if op is None:
        raise AotcError("onnx-op", f"the graph operator {name} is not available")
    node = call(op, args, op.attrs(**attributes))
    assert node.checked_type is not None
    for ty in tensor_types(node.checked_type):
        if ty.is_static:
            check_size(ty.static_shape, ty.dtype, f"the result of {name}")
    return _folded(node)


def _folded(node: Call) -> Expr:
    """The value of `node` where all is constant, small and within the budget; else `node`."""
    if not all(map(_small, node.args)):
        return node
    return evaluate_call(node, FOLD_BYTES) or node


def _small(expr: Expr) -> bool:
    """Whether an argument is a constant, or a tuple of them, that is looked at while the graph is built."""
    if isinstance(expr, Tuple):
        return all(map(_small, expr.fields))
    return isinstance(expr, Constant) and expr.data.nbytes <= FOLD_BYTES


def is_constant(expr: Expr | None) -> bool:
    """True for a tensor known now."""
    return isinstance(expr, Constant)


# --- facts about expressions


def rank_of(x: Expr) -> int:
    """The number of dimensions."""
    return tensor_type_of(x).rank


def dims_of(x: Expr) -> tuple[Dim, ...]:
    """The shape, dynamic dimensions included."""
    return tensor_type_of(x).shape


def shape_of(x: Expr, what: str = "the input") -> tuple[int, ...]:
    """The static shape; AotcError (code "onnx-dynamic") if a dimension is dynamic."""
    shape = dims_of(x)
    if not is_static(shape):
        raise AotcError("onnx-dynamic", f"{what} has the dynamic shape ({', '.join(map(str, shape))})")
    return static_shape(shape)


def dim_of(x: Expr, axis: int, what: str = "the input") -> int:
    """One static dimension; AotcError if there is no such axis (code "onnx-axis") or it is dynamic ("onnx-dynamic")."""
    shape = dims_of(x)
    if not -len(shape) <= axis < len(shape):
        raise AotcError("onnx-axis", f"{what} has shape ({', '.join(map(str, shape))}): there is no axis {axis}")
    dim = shape[axis]
    if not isinstance(dim, int):
        raise AotcError("onnx-dynamic", f"dimension {axis} of {what} is dynamic ({dim})")
    return dim


def only(value: Any, what: str) -> Any:
    """The element of an array of one; AotcError (code "onnx-input") for any other number of elements."""
    array = np.asarray(value)
    if array.size != 1:
        raise AotcError("onnx-input", f"{what} must be one value, it has shape {array.shape}")
    return array.reshape(-1)[0]


def dtype_of(x: Expr) -> DType:
    """The element type."""
    return tensor_type_of(x).dtype


def axis_index(axis: int, rank: int) -> int:
    """A possibly negative axis from 0; AotcError (code "onnx-axis") if it is out of range."""
    if not -rank <= axis < max(rank, 1):
        raise AotcError("onnx-axis", f"axis {axis} is outside rank {rank}")
    return axis % rank if rank else 0


# --- constants


def constant(value: Any, dtype: str | None = None) -> Constant:
    """A constant of an array, list or number."""
    return Constant(np.asarray(value, None if dtype is None else DType(dtype).numpy))


def filled(value: Number, shape: Sequence[int], dtype: str) -> Constant:
    """One value repeated: takes no memory, however large the shape (up to the limit of any tensor)."""
    check_size(tuple(shape), DType(dtype), "a filled tensor")
    return splat(value, shape, dtype)


def ints(*values: int) -> Constant:
    """An int64 vector."""
    return constant(list(values), "int64")


def _typed(a: Operand, b: Operand) -> tuple[Expr, Expr]:
    """Numbers as scalars of the data type of the operand beside them."""
    if isinstance(a, (int, float)):
        assert not isinstance(b, (int, float)), "one operand must be a tensor"
        return constant(a, dtype_of(b)), b
    return a, constant(b, dtype_of(a)) if isinstance(b, (int, float)) else b


# --- operators by name


def binary(name: str, a: Operand, b: Operand) -> Expr:
    """A broadcasting operator; numbers take the other operand's type."""
    return emit(name, *_typed(a, b))


def add(a: Operand, b: Operand) -> Expr:
    return binary("add", a, b)


def sub(a: Operand, b: Operand) -> Expr:
    return binary("subtract", a, b)


def mul(a: Operand, b: Operand) -> Expr:
    return binary("multiply", a, b)


def div(a: Operand, b: Operand) -> Expr:
    return binary("divide", a, b)


def maximum(a: Operand, b: Operand) -> Expr:
    return binary("maximum", a, b)


def minimum(a: Operand, b: Operand) -> Expr:
    return binary("minimum", a, b)


def less(a: Operand, b: Operand) -> Expr:
    return binary("less", a, b)


def greater(a: Operand, b: Operand) -> Expr:
    return binary("greater", a, b)


def where(condition: Expr, a: Operand, b: Operand) -> Expr:
    """`a` where the condition holds, else `b`; all three broadcast."""
    x, y = _typed(a, b)
    return emit("where", condition, x, y)


def cast(x: Expr, dtype: str) -> Expr:
    """`x` as another data type; `x` itself if it has that type."""
    return x if dtype_of(x) == dtype else emit("cast", x, dtype=str(dtype))


def reduce(name: str, x: Expr, axes: Sequence[int], keepdims: bool) -> Expr:
    """A reduction over `axes`; `x` itself (or reshaped) where there are none."""
    return emit(name, x, axis=tuple(axes), keepdims=keepdims) if axes else x


# --- shapes


def reshape(x: Expr, shape: Sequence[int]) -> Expr:
    """`x` with another shape; one dimension may be -1.  A static input gets a literal shape."""
    target = tuple(int(d) for d in shape)
    if is_static(dims_of(x)):
        target = resolved_shape(shape_of(x), target)
        if target == dims_of(x):
            return x
        return emit("reshape", x, newshape=target, allowzero=0 in target)
    if -1 not in target:
        return emit("reshape", x, newshape=target, allowzero=0 in target)
    return emit("reshape", x, newshape=target)


def resolved_shape(source: tuple[int, ...], target: tuple[int, ...]) -> tuple[int, ...]:
    """`target` with -1 worked out; AotcError (code "onnx-reshape") where the element counts differ."""
    known, total = math.prod(d for d in target if d != -1), math.prod(source)
    if target.count(-1) > 1 or any(d < -1 for d in target):
        raise AotcError("onnx-reshape", f"{target} is no shape to reshape {source} to")
    if -1 in target:
        if known == 0 or total % known:
            raise AotcError("onnx-reshape", f"{source} cannot be reshaped to {target}")
        return tuple(total // known if d == -1 else d for d in target)
    if known != total:
        raise AotcError("onnx-reshape", f"{source} cannot be reshaped to {target}")
    return target


def transpose(x: Expr, axes: Sequence[int]) -> Expr:
    """Axes permuted; `x` itself for the identity."""
    order = tuple(axes)
    return x if order == tuple(range(len(order))) else emit("transpose", x, axes=order)


def unsqueeze(x: Expr, axes: Sequence[int]) -> Expr:
    """Axes of size 1 inserted at these positions of the result (ascending, from 0)."""
    for axis in axes:
        x = emit("expand_dims", x, axis=axis, num_newaxis=1)
    return x


def squeeze(x: Expr, axes: Sequence[int]) -> Expr:
    """Axes of size 1 removed (ascending, from 0)."""
    return emit("squeeze", x, axis=tuple(axes)) if axes else x


def broadcast_to(x: Expr, shape: Sequence[int]) -> Expr:
    """`x` repeated to `shape`; a one-element constant stays a splat."""
    target = tuple(shape)
    if dims_of(x) == target:
        return x
    if isinstance(x, Constant) and (x.data.size == 1 or x.is_splat) and 0 not in target:
        check_size(target, dtype_of(x), "the result of broadcast_to")
        return Constant(np.broadcast_to(x.data.reshape(-1)[0], target))
    return emit("broadcast_to", x, shape=target)


def concatenate(parts: Sequence[Expr], axis: int) -> Expr:
    """Tensors joined along an axis."""
    return parts[0] if len(parts) == 1 else emit("concatenate", Tuple(parts), axis=axis)


def split(x: Expr, sizes: Sequence[int], axis: int) -> list[Expr]:
    """`x` cut along an axis into parts of these sizes."""
    if len(sizes) == 1:
        return [x]
    cuts = tuple(int(c) for c in np.cumsum(sizes)[:-1])
    parts = emit("split", x, indices_or_sections=cuts, axis=axis)
    return [field(parts, i) for i in range(len(sizes))]


def field(value: Expr, index: int) -> Expr:
    """One field of a tuple value."""
    return value.fields[index] if isinstance(value, Tuple) else TupleGetItem(value, index)


def slice_axes(
    x: Expr, begin: Sequence[int], end: Sequence[int], axes: Sequence[int], strides: Sequence[int] | None = None
) -> Expr:
    """A strided slice in numpy's meaning (negative positions count from the end, all are clipped)."""
    steps = tuple(strides) if strides is not None else (1,) * len(begin)
    box = tuple(begin), tuple(end)
    return emit("strided_slice", x, begin=box[0], end=box[1], strides=steps, axes=tuple(axes), slice_mode="end")


def pad(x: Expr, widths: Sequence[tuple[int, int]], value: Number = 0, mode: str = "constant") -> Expr:
    """`x` with (before, after) elements added to each axis."""
    if not any(b or a for b, a in widths):
        return x
    fill = constant(value, dtype_of(x))
    return emit("nn.pad", x, fill, pad_width=tuple((int(b), int(a)) for b, a in widths), pad_mode=mode)


def check_materialized(shape: Sequence[int], dtype: str, what: str, copies: int = 2) -> None:
    """AotcError (code "budget") if a constant made by the converter would take too much memory or work.

    copies   arrays of that size that are there at once while it is made
    """
    cost = array_cost(math.prod(shape), DType(dtype).itemsize, copies)
    budget().require(cost, f"{what} of shape {tuple(shape)}")


def equal_parts(size: int, part: int) -> list[int]:
    """`size` elements in parts of `part`, the last one smaller where that does not divide; AotcError for none."""
    if part < 1:
        raise AotcError("onnx-split", f"{size} elements cannot be split into parts of {part}")
    check_unrolled(-(-size // part), "a split")
    return [min(part, size - k) for k in range(0, size, part)]


def check_unrolled(parts: int, what: str) -> None:
    """AotcError (code "budget") where so many parts, each with nodes of its own, are more than may be made."""
    budget().check("compile.max_unroll", parts, what)


def iota(count: int, dtype: str = "int64") -> Constant:
    """0, 1, 2, ..."""
    check_materialized((count,), dtype, "a range")
    return Constant(np.arange(count).astype(DType(dtype).numpy))


def typed_like(x: Expr, ty: TensorType) -> bool:
    """Whether `x` has exactly this static type."""
    return tensor_type_of(x) == ty
