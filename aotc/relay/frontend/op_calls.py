# SPDX-License-Identifier: Apache-2.0
"""Graph builders that all front ends share: operator calls with immediate constant folding, and
queries of shapes and data types.

Input: expressions, numbers, attributes. Output: expressions with types. A call whose arguments are
all small constants is evaluated with the operator's reference implementation and becomes a
constant, so that shape arithmetic disappears while the graph is built.

    from aotc.relay.frontend import op_calls as g

    y = g.call_op("nn.softmax", x, axis=-1)
    z = g.add(g.mul(x, 2.0), y)             # numbers take the data type of the tensor operand
    g.reshape(x, (1, -1))

This module and the other shared builders (`conv_pool`, `normalization`, `matmul_einsum` and so on)
do not depend on a model format. They raise AotcError with codes that begin with "graph-"; the entry
point of each front end replaces this prefix by its own name:

    @g.replace_graph_prefix_of_error_codes("onnx")           # "graph-axis" reaches the user as "onnx-axis"
    def from_onnx(model): ...

A front end for a further format thus consists of a file reader and a table of converters that call
these modules. The one for TFLite, for example, whose data is in NHWC, passes `data_layout="NHWC"`
to `conv_pool.build_convolution`, computes SAME padding with `conv_pool.same_padding_widths`, adds fused
activations with `activations`, and uses `quantization` for tensors that have a scale and a zero
point.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial, reduce
from itertools import pairwise
from typing import Any, Final, TypeAlias

import numpy as np

from aotc.ir import (
    AotcError,
    Dim,
    DType,
    SymDim,
    check_rank,
    interval_of_dim,
    is_static,
    require,
    require_static_shape,
    sum_of_dims,
    tensor_types,
)
from aotc.ir.compilation_work_and_memory_limits import array_computation_cost, current_budget
from aotc.relay.graph_api import (
    Call,
    Constant,
    Expr,
    Tuple,
    evaluate_constant_call,
    splat_constant,
    tensor_type_of,
    tuple_item,
    typed_op_call,
)
from aotc.relay.op import OPERATORS_BY_NAME

Number: TypeAlias = int | float | bool
Operand: TypeAlias = Expr | int | float | bool

#: Largest size in bytes of an argument or a result with which a call is constant-folded.
MAX_FOLDED_BYTES: Final = 1 << 20
#: Largest size of a tensor in bytes. Larger ones are refused: no machine holds them, and offsets
#: could overflow.
MAX_TENSOR_BYTES: Final = 1 << 40
#: Number of parts of a split that a message shows.
_MAX_SHOWN_PARTS: Final = 8


# --- errors and limits


@contextmanager
def replace_graph_prefix_of_error_codes(front_end: str) -> Iterator[None]:
    """Return a context manager (also a decorator) that renames the diagnostic codes of the shared
    builders for a front end: an AotcError with "graph-axis" raised inside becomes one with
    "onnx-axis" for the source "onnx".
    """
    try:
        yield
    except AotcError as error:
        if not any(d.code.startswith("graph-") for d in error.diagnostics):
            raise
        raise AotcError.collect(
            replace(d, code=d.code.replace("graph-", f"{front_end}-", 1)) for d in error.diagnostics
        ) from error.__cause__


def checked_shape(sizes: Sequence[Any], element_type: DType, subject: str) -> tuple[int, ...]:
    """Convert `sizes` to a tuple of integers and check that it is a possible tensor shape.

    Raises AotcError for too many dimensions, for a negative dimension (code "graph-shape") and for
    a tensor larger than MAX_TENSOR_BYTES (code "graph-size"). `subject` names the tensor in
    messages.
    """
    result = tuple(int(d) for d in sizes)
    check_rank(len(result), subject)
    require("graph-shape", all(d >= 0 for d in result), f"{subject} has a negative dimension: {result}")
    check_tensor_size(result, element_type, subject)
    return result


def checked_dims(sizes: Sequence[Dim], element_type: DType, subject: str) -> tuple[Dim, ...]:
    """Return `sizes` as a tensor shape, after the checks of `checked_shape` of its known dimensions."""
    if is_static(sizes):
        return checked_shape(sizes, element_type, subject)
    result = tuple(d if isinstance(d, SymDim) else int(d) for d in sizes)
    check_rank(len(result), subject)
    is_possible = all(interval_of_dim(d)[1] >= 0 for d in result)
    text = f"{subject} has a negative dimension: ({', '.join(map(str, result))})"
    require("graph-shape", is_possible, text)
    check_tensor_size(tuple(d for d in result if isinstance(d, int)), element_type, subject)
    return result


def check_tensor_size(sizes: tuple[int, ...], element_type: DType, subject: str) -> None:
    """Raise AotcError (code "graph-size") if a tensor of this shape and data type is larger than
    MAX_TENSOR_BYTES.
    """
    if math.prod(max(d, 1) for d in sizes) * element_type.itemsize > MAX_TENSOR_BYTES:
        raise AotcError("graph-size", f"{subject} of shape {sizes} and type {element_type} exceeds the size limit")


def check_materialization_cost(sizes: Sequence[int], element_type: str, subject: str) -> None:
    """Raise AotcError (code "budget") if creating a constant of this shape and data type would
    exceed the compile-time limits of memory or work. The cost is that of two arrays: the constant
    and one temporary copy.
    """
    cost = array_computation_cost(math.prod(sizes), DType(element_type).itemsize, 2)
    current_budget().spend_compile_time_cost_or_raise(cost, f"{subject} of shape {tuple(sizes)}")


def check_unroll_count(part_count: int, subject: str) -> None:
    """Raise AotcError (code "budget") if an operation would be unrolled into more than
    `compile.max_unroll` parts.
    """
    current_budget().require_within_compile_time_limit("compile.max_unroll", part_count, subject)


# --- calls


def call_op(name: str, *args: Expr, **attributes: Any) -> Expr:
    """Call the operator `name`; return a constant instead if all arguments are constants of at most
    MAX_FOLDED_BYTES each and the result is not larger either.

    Raises AotcError if the operator does not exist, if its type rule rejects the arguments, or if
    the result is too large.
    """
    node = call_op_unfolded(name, *args, **attributes)
    if not all(map(_is_small_constant, node.args)):
        return node
    return evaluate_constant_call(node, MAX_FOLDED_BYTES) or node


def call_op_unfolded(name: str, *args: Expr, **attributes: Any) -> Call:
    """Call the operator `name` without constant folding, and infer its type.

    Raises AotcError if the operator does not exist, if its type rule rejects the arguments, or if
    the result is too large.
    """
    op = OPERATORS_BY_NAME.get(name)
    if op is None:
        raise AotcError("graph-op", f"the graph operator {name} is not available")
    node = typed_op_call(op, args, op.attrs(**attributes))
    assert node.checked_type is not None
    for ty in tensor_types(node.checked_type):
        if ty.is_static:
            check_tensor_size(ty.static_shape, ty.dtype, f"the result of {name}")
    return node


def _is_small_constant(expr: Expr) -> bool:
    """Return True if an operator argument is a constant of at most MAX_FOLDED_BYTES, or a tuple of
    these.
    """
    if isinstance(expr, Tuple):
        return all(map(_is_small_constant, expr.fields))
    return isinstance(expr, Constant) and expr.data.nbytes <= MAX_FOLDED_BYTES


# --- properties of tensors


def rank(x: Expr) -> int:
    """Return the number of dimensions of a tensor."""
    return tensor_type_of(x).rank


def dims(x: Expr) -> tuple[Dim, ...]:
    """Return the shape of a tensor; dimensions may be dynamic."""
    return tensor_type_of(x).shape


def shape(x: Expr, subject: str = "the input") -> tuple[int, ...]:
    """Return the static shape of a tensor. Raises AotcError (code "graph-dynamic") if a dimension
    is dynamic.
    """
    dimensions = dims(x)
    if not is_static(dimensions):
        raise AotcError("graph-dynamic", f"{subject} has the dynamic shape ({', '.join(map(str, dimensions))})")
    return require_static_shape(dimensions)


def dim(x: Expr, axis: int, subject: str = "the input") -> int:
    """Return the static extent of one dimension. Raises AotcError if the tensor has no such axis
    (code "graph-axis") or if the dimension is dynamic (code "graph-dynamic").
    """
    dimensions = dims(x)
    if not -len(dimensions) <= axis < len(dimensions):
        raise AotcError(
            "graph-axis", f"{subject} has shape ({', '.join(map(str, dimensions))}): there is no axis {axis}"
        )
    size = dimensions[axis]
    if not isinstance(size, int):
        raise AotcError("graph-dynamic", f"dimension {axis} of {subject} is dynamic ({size})")
    return size


def extent(x: Expr, axis: int) -> Expr:
    """Return the extent of one dimension as an int64 scalar, a constant if it is known."""
    size = dims(x)[axis]
    if isinstance(size, int):
        return constant(size, "int64")
    return call_op("take", call_op("shape_of", x, dtype="int64"), constant(axis, "int64"), axis=0, mode="clip")


def size_as_tensor(size: Dim) -> Expr:
    """Return a size of at least 0 as an int64 scalar, a constant if it is known."""
    if isinstance(size, int):
        return constant(size, "int64")
    return call_op("ndarray_size", filled(False, (size,), "bool"), dtype="int64")


def dtype(x: Expr) -> DType:
    """Return the element type of a tensor."""
    return tensor_type_of(x).dtype


def require_single_element(value: Any, subject: str) -> Any:
    """Return the only element of an array. Raises AotcError (code "graph-input") if the array does
    not have exactly one element.
    """
    array = np.asarray(value)
    require("graph-input", array.size == 1, f"{subject} must be one value, it has shape {array.shape}")
    return array.reshape(-1)[0]


def normalize_axis(axis: int, ndim: int) -> int:
    """Convert a possibly negative axis of a tensor of rank `ndim` to one counted from 0. Raises
    AotcError (code "graph-axis") if the axis is out of range.
    """
    require("graph-axis", -ndim <= axis < max(ndim, 1), f"axis {axis} is outside rank {ndim}")
    return axis % ndim if ndim else 0


# --- constants


def constant(value: Any, as_type: str | None = None) -> Constant:
    """Make a constant from an array, a list or a number, of the data type `as_type` if it is given."""
    return Constant(np.asarray(value, None if as_type is None else DType(as_type).numpy))


def full(value: Number, sizes: Sequence[int], as_type: str) -> Constant:
    """Make a constant that repeats one value. It takes no memory, however large the shape, up to
    the limit MAX_TENSOR_BYTES.
    """
    check_tensor_size(tuple(sizes), DType(as_type), "a filled tensor")
    return splat_constant(value, sizes, as_type)


def filled(value: Number, sizes: Sequence[Dim], as_type: str) -> Expr:
    """Make a tensor that repeats one value; a constant if its shape is known."""
    if is_static(sizes):
        return full(value, require_static_shape(sizes), as_type)
    return call_op("full", constant(value, as_type), shape=tuple(sizes), dtype=as_type)


def iota(count: int, as_type: str = "int64") -> Constant:
    """Make the constant vector 0, 1, 2, ..., `count` - 1."""
    check_materialization_cost((count,), as_type, "a range")
    return Constant(np.arange(count).astype(DType(as_type).numpy))


def positions_up_to(count: Dim, as_type: str = "int64") -> Expr:
    """Make the vector 0, 1, 2, ..., `count` - 1; a constant if the count is known."""
    if isinstance(count, int):
        return iota(count, as_type)
    return call_op("arange", start=0, stop=count, step=1, dtype=as_type)


# --- arithmetic


def _convert_number_operand_to_constant(a: Operand, b: Operand) -> tuple[Expr, Expr]:
    """Convert an operand that is a Python number to a scalar constant with the data type of the
    other operand.
    """
    if isinstance(a, (int, float)):
        assert not isinstance(b, (int, float)), "one operand must be a tensor"
        return constant(a, dtype(b)), b
    return a, constant(b, dtype(a)) if isinstance(b, (int, float)) else b


def call_binary_op(name: str, a: Operand, b: Operand) -> Expr:
    """Call a broadcasting binary operator; an operand that is a number gets the data type of the
    other operand.
    """
    return call_op(name, *_convert_number_operand_to_constant(a, b))


_UNARY = ("abs", "exp", "log", "logical_not", "negative", "sigmoid", "sqrt", "tanh")
absolute, exp, log, logical_not, negative, sigmoid, sqrt, tanh = (partial(call_op, name) for name in _UNARY)
_ARITHMETIC = ("add", "subtract", "multiply", "divide", "maximum", "minimum", "floor_mod")
add, sub, mul, div, maximum, minimum, floor_mod = (partial(call_binary_op, name) for name in _ARITHMETIC)
_COMPARISONS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
equal, not_equal, less, less_equal, greater, greater_equal = (partial(call_binary_op, name) for name in _COMPARISONS)


def logical_and(*flags: Expr) -> Expr:
    """Return whether all of one or more boolean tensors are True, for each element of their broadcast shape, bool."""
    return reduce(partial(call_op, "logical_and"), flags)


def logical_or(*flags: Expr) -> Expr:
    """Return whether any of one or more boolean tensors is True, for each element of their broadcast shape, bool."""
    return reduce(partial(call_op, "logical_or"), flags)


def where(condition: Expr, a: Operand, b: Operand) -> Expr:
    """Select `a` where the condition holds and `b` elsewhere; all three operands broadcast."""
    return call_op("where", condition, *_convert_number_operand_to_constant(a, b))


def cast(x: Expr, to: str) -> Expr:
    """Cast `x` to the data type `to`; return `x` itself if it already has that type."""
    return x if dtype(x) == to else call_op("cast", x, dtype=str(to))


def accumulation_dtype(element_type: DType) -> DType:
    """Return the data type in which elements of a float type are accumulated: float32 for narrow
    floats (float16, bfloat16), otherwise the type itself.
    """
    return DType("float32") if element_type.is_narrow_float else element_type


def call_with_narrow_floats_in_float32(function: Callable[..., Expr], *tensors: Expr) -> Expr:
    """Return `function(*tensors)`; if the first tensor is a narrow float, compute in float32 and
    round the result once, to the type of the first tensor.

    In float16 a square overflows from 256 on and underflows below 2e-4, although the root of a sum
    of squares is in range.
    """
    narrow = dtype(tensors[0])
    if not narrow.is_narrow_float:
        return function(*tensors)
    return cast(function(*(cast(x, "float32") if dtype(x).is_narrow_float else x for x in tensors)), narrow)


def clip(x: Expr, low: float, high: float) -> Expr:
    """Clamp `x` to the range from `low` to `high`."""
    return call_op("clip", x, a_min=low, a_max=high)


def multiply_by_number(x: Expr, factor: float) -> Expr:
    """Multiply `x` by a number, which is truncated to an integer if `x` holds integers; return `x`
    itself if the factor is 1.
    """
    if factor == 1:
        return x
    return mul(x, float(factor) if dtype(x).is_float else int(factor))


def call_reduction(name: str, x: Expr, axes: Sequence[int], keepdims: bool) -> Expr:
    """Call the reduction operator `name` over `axes`; return `x` itself if there are no axes."""
    return call_op(name, x, axis=tuple(axes), keepdims=keepdims) if axes else x


def count_of_flags(flags: Expr) -> Expr:
    """Return the number of True values along the last axis of a boolean tensor, int32; the axis is removed."""
    return call_reduction("sum", cast(flags, "int32"), (rank(flags) - 1,), False)


def running_count_of_flags(flags: Expr) -> Expr:
    """Return for each element of a boolean tensor the number of True values along the last axis up to it and with it,
    int32, of the shape of `flags`.
    """
    return call_op("cumsum", cast(flags, "int32"), axis=rank(flags) - 1, dtype="int32")


#: Function that returns one field of a tuple value.
field = tuple_item


# --- shapes


def reshape(x: Expr, sizes: Sequence[Dim]) -> Expr:
    """Reshape `x`; one dimension of `sizes` may be -1. If the input shape is static, -1 is replaced
    by the computed extent.
    """
    if any(isinstance(d, SymDim) for d in sizes):
        given = tuple(d if isinstance(d, SymDim) else int(d) for d in sizes)
        return x if given == dims(x) else call_op("reshape", x, newshape=given, allowzero=-1 not in given)
    target = tuple(int(d) for d in sizes if not isinstance(d, SymDim))
    if is_static(dims(x)):
        target = resolve_reshape_target(shape(x), target)
        if target == dims(x):
            return x
    elif -1 in target:
        return call_op("reshape", x, newshape=target)
    return call_op("reshape", x, newshape=target, allowzero=0 in target)


def resolve_reshape_target(source: tuple[int, ...], target: tuple[int, ...]) -> tuple[int, ...]:
    """Return `target` with -1 replaced by the extent that preserves the number of elements of
    `source`. Raises AotcError (code "graph-reshape") if the numbers of elements differ.
    """
    known, total = math.prod(d for d in target if d != -1), math.prod(source)
    if target.count(-1) > 1 or any(d < -1 for d in target):
        raise AotcError("graph-reshape", f"{target} is not a valid shape for reshaping {source}")
    fits = known == total if -1 not in target else known != 0 and total % known == 0
    require("graph-reshape", fits, f"{source} cannot be reshaped to {target}")
    return tuple(total // known if d == -1 else d for d in target)


def flatten(x: Expr) -> Expr:
    """Reshape `x` to a vector of all its elements."""
    return reshape(x, (-1,))


def reshape_along_axis(vector: Expr, axis: int, ndim: int) -> Expr:
    """Reshape a vector so that, when it broadcasts against a tensor of rank `ndim`, it lies along
    the axis `axis` of that tensor.
    """
    return reshape(vector, (-1, *(1,) * (ndim - 1 - axis)))


def transpose(x: Expr, axes: Sequence[int]) -> Expr:
    """Permute the axes of a tensor; return `x` itself for the identity permutation."""
    order = tuple(axes)
    return x if order == tuple(range(rank(x))) else call_op("transpose", x, axes=order)


def unsqueeze(x: Expr, axes: Sequence[int]) -> Expr:
    """Insert axes of extent 1 into `x` at the given positions of the result (ascending, counted
    from 0).
    """
    for place in axes:
        x = call_op("expand_dims", x, axis=place, num_newaxis=1)
    return x


def squeeze(x: Expr, axes: Sequence[int]) -> Expr:
    """Remove the given axes of `x`, which have extent 1 (ascending, counted from 0)."""
    return call_op("squeeze", x, axis=tuple(axes)) if axes else x


def broadcast_to(x: Expr, sizes: Sequence[Dim]) -> Expr:
    """Broadcast `x` to a shape; a constant with one distinct element becomes a splat constant,
    which takes no memory.
    """
    target = tuple(sizes)
    if dims(x) == target:
        return x
    is_known = isinstance(x, Constant) and (x.data.size == 1 or x.is_splat) and 0 not in target
    if is_known and isinstance(x, Constant) and is_static(target):
        known = require_static_shape(target)
        check_tensor_size(known, dtype(x), "the result of broadcast_to")
        return Constant(np.broadcast_to(x.data.reshape(-1)[0], known))
    return call_op("broadcast_to", x, shape=target)


def concat(parts: Sequence[Expr], place: int) -> Expr:
    """Concatenate tensors along an existing axis; a single tensor is returned unchanged."""
    return parts[0] if len(parts) == 1 else call_op("concatenate", Tuple(parts), axis=place)


def stack(parts: Sequence[Expr], axis: int) -> Expr:
    """Concatenate tensors along a new axis."""
    return concat([unsqueeze(p, [axis]) for p in parts], axis)


def split(x: Expr, sizes: Sequence[Dim], place: int) -> list[Expr]:
    """Split `x` along an axis into parts of the given extents. Raises AotcError (code "graph-split")
    if they do not add up to the extent of the axis.
    """
    if not is_static(sizes):
        return _split_at_sizes_known_at_run_time(x, sizes, place)
    sizes = require_static_shape(sizes)
    extent = dims(x)[place]
    fits = min(sizes, default=0) >= 0 and (not isinstance(extent, int) or sum(sizes) == extent)
    text = f"parts of {list(sizes[:_MAX_SHOWN_PARTS])} elements do not add up to the {extent} elements of axis {place}"
    require("graph-split", fits, text)
    if len(sizes) == 1:
        return [x]
    cuts = tuple(int(c) for c in np.cumsum(sizes)[:-1])
    parts = call_op("split", x, indices_or_sections=cuts, axis=place)
    return [field(parts, i) for i in range(len(sizes))]


def _split_at_sizes_known_at_run_time(x: Expr, sizes: Sequence[Dim], place: int) -> list[Expr]:
    """Return slices of `x` of the given extents, which the caller knows to add up to the whole axis."""
    cuts: list[Dim] = [0]
    for size in sizes:
        cuts.append(sum_of_dims((cuts[-1], size)))
    return [strided_slice(x, [begin], [end], [place]) for begin, end in pairwise(cuts)]


def equal_part_sizes(size: int, part_size: int) -> list[int]:
    """Return the extents of the parts into which an axis of extent `size` is split, `part_size`
    elements each; the last part is smaller if `part_size` does not divide `size`.

    Raises AotcError if `part_size` is less than 1 (code "graph-split") or if there are too many
    parts (code "budget").
    """
    require("graph-split", part_size >= 1, f"the parts of a split need at least 1 element, got parts of {part_size}")
    check_unroll_count(-(-size // part_size), "a split")
    return [min(part_size, size - k) for k in range(0, size, part_size)]


def strided_slice(
    x: Expr, begin: Sequence[Dim], end: Sequence[Dim], axes: Sequence[int], strides: Sequence[int] = ()
) -> Expr:
    """Take a strided slice with the semantics of numpy: negative positions count from the end,
    positions out of range are clipped.
    """
    steps = tuple(strides) or (1,) * len(begin)
    box = {"begin": tuple(begin), "end": tuple(end), "strides": steps}
    return call_op("strided_slice", x, **box, axes=tuple(axes), slice_mode="end")


def counted_slice(x: Expr, begin: Sequence[Dim], counts: Sequence[Dim], steps: Sequence[Dim]) -> Expr:
    """Return the given numbers of elements of each axis, from positions `begin` on, in steps that may be
    negative. The caller states that they fit.
    """
    box = {"begin": tuple(begin), "end": tuple(counts), "strides": tuple(steps)}
    return call_op("strided_slice", x, **box, axes=tuple(range(len(begin))), slice_mode="count")


def pad(x: Expr, widths: Sequence[tuple[Dim, Dim]], value: Operand = 0, mode: str = "constant") -> Expr:
    """Pad each axis of `x` by its (before, after) numbers of elements; `mode` is the `pad_mode` of
    nn.pad.
    """
    if all(pair == (0, 0) for pair in map(tuple, widths)):
        return x
    fill = constant(value, dtype(x)) if isinstance(value, (int, float)) else reshape(value, ())
    return call_op("nn.pad", x, fill, pad_width=tuple(_dim_pair(*pair) for pair in widths), pad_mode=mode)


def _dim_pair(before: Dim, after: Dim) -> tuple[Dim, Dim]:
    first, second = (w if isinstance(w, SymDim) else int(w) for w in (before, after))
    return first, second
