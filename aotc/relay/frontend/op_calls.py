# SPDX-License-Identifier: Apache-2.0
"""The vocabulary of the front ends: operator calls that fold at
once where all is constant, and facts about tensors.

In: expressions, numbers, attributes.  Out: typed expressions.  A
call whose arguments are small constants becomes a constant through
the operator's reference, which is what makes shape arithmetic
disappear.

    from aotc.relay.frontend import op_calls as g

    y = g.op("nn.softmax", x, axis=-1)
    z = g.add(g.mul(x, 2.0), y)             # numbers take the data type of the tensor beside them
    g.reshape(x, (1, -1))

No format of models is known here, nor in the modules beside this
one (windows, normalization, matmul and so on).  They raise
AotcError with codes that begin with "graph-"; a front end gives
them its own name, once, where it is entered:

    @g.codes_of("onnx")                     # "graph-axis" reaches the user as "onnx-axis"
    def from_onnx(model): ...

A front end for another format is therefore a table of converters
over these modules, and a reader for its files.  One for TFLite,
say, whose data lies in NHWC, passes `layout="NHWC"` to `windows`,
works out SAME padding with `windows.same_padding`, adds the
activation that is fused into an operator with `activations`, and,
for tensors that carry a scale and a zero point, builds on
`quantization`.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np

from aotc.ir import AotcError, Dim, DType, check_rank, is_static, require, static_shape, tensor_types
from aotc.ir.compile_time_limits import array_cost, budget
from aotc.relay.graph_api import Call, Constant, Expr, Tuple, call, evaluate_call, item_of, splat, tensor_type_of
from aotc.relay.op import REGISTRY

Number: TypeAlias = int | float | bool
Operand: TypeAlias = Expr | int | float | bool

#: A call folds if neither an argument nor the result is larger than this.
FOLD_BYTES: Final = 1 << 20
#: Tensors beyond this are refused: no machine holds them, and offsets inside them could overflow.
MAX_TENSOR_BYTES: Final = 1 << 40


# --- problems


@contextmanager
def codes_of(source: str) -> Iterator[None]:
    """Inside, problems found by the shared modules get the codes of
    a front end: "graph-axis" becomes "onnx-axis".
    """
    try:
        yield
    except AotcError as error:
        if not any(d.code.startswith("graph-") for d in error.diagnostics):
            raise
        raise AotcError.collect(
            replace(d, code=d.code.replace("graph-", f"{source}-", 1)) for d in error.diagnostics
        ) from error.__cause__


def checked_shape(sizes: Sequence[Any], of: DType, what: str) -> tuple[int, ...]:
    """Sizes as a shape; AotcError (code "graph-shape") for negative
    ones and shapes beyond all bounds.
    """
    result = tuple(int(d) for d in sizes)
    check_rank(len(result), what)
    require("graph-shape", all(d >= 0 for d in result), f"{what} has a negative dimension: {result}")
    check_size(result, of, what)
    return result


def check_size(sizes: tuple[int, ...], of: DType, what: str) -> None:
    """AotcError (code "graph-size") if a tensor of this shape and
    data type would be larger than any machine holds.
    """
    if math.prod(max(d, 1) for d in sizes) * of.itemsize > MAX_TENSOR_BYTES:
        raise AotcError("graph-size", f"{what} of shape {sizes} and type {of} is too large")


def check_materialized(sizes: Sequence[int], of: str, what: str) -> None:
    """AotcError (code "budget") if a constant made by the converter
    would take too much memory or work: it and one array more of
    its size are there at once while it is made.
    """
    cost = array_cost(math.prod(sizes), DType(of).itemsize, 2)
    budget().require(cost, f"{what} of shape {tuple(sizes)}")


def check_unrolled(parts: int, what: str) -> None:
    """AotcError (code "budget") where so many parts, each with
    nodes of its own, are more than may be made.
    """
    budget().check("compile.max_unroll", parts, what)


# --- calls


def op(name: str, *args: Expr, **attributes: Any) -> Expr:
    """A call of operator `name`, or its value where all arguments
    are small constants.

    Raises AotcError where the operator does not exist, its type
    rule refuses, or the result is too large.
    """
    node = kept(name, *args, **attributes)
    if not all(map(_small, node.args)):
        return node
    return evaluate_call(node, FOLD_BYTES) or node


def kept(name: str, *args: Expr, **attributes: Any) -> Call:
    """A call of operator `name` that stays one, whatever its
    arguments are.
    """
    found = REGISTRY.get(name)
    if found is None:
        raise AotcError("graph-op", f"the graph operator {name} is not available")
    node = call(found, args, found.attrs(**attributes))
    assert node.checked_type is not None
    for ty in tensor_types(node.checked_type):
        if ty.is_static:
            check_size(ty.static_shape, ty.dtype, f"the result of {name}")
    return node


def _small(expr: Expr) -> bool:
    """Whether an argument is a constant, or a tuple of them, that
    is looked at while the graph is built.
    """
    if isinstance(expr, Tuple):
        return all(map(_small, expr.fields))
    return isinstance(expr, Constant) and expr.data.nbytes <= FOLD_BYTES


# --- facts about tensors


def rank(x: Expr) -> int:
    """The number of dimensions."""
    return tensor_type_of(x).rank


def dims(x: Expr) -> tuple[Dim, ...]:
    """The shape, dynamic dimensions included."""
    return tensor_type_of(x).shape


def shape(x: Expr, what: str = "the input") -> tuple[int, ...]:
    """The static shape; AotcError (code "graph-dynamic") if a
    dimension is dynamic.
    """
    found = dims(x)
    if not is_static(found):
        raise AotcError("graph-dynamic", f"{what} has the dynamic shape ({', '.join(map(str, found))})")
    return static_shape(found)


def dim(x: Expr, place: int, what: str = "the input") -> int:
    """One static dimension; AotcError where there is no such axis
    ("graph-axis") or it is dynamic ("graph-dynamic").
    """
    found = dims(x)
    if not -len(found) <= place < len(found):
        raise AotcError("graph-axis", f"{what} has shape ({', '.join(map(str, found))}): there is no axis {place}")
    size = found[place]
    if not isinstance(size, int):
        raise AotcError("graph-dynamic", f"dimension {place} of {what} is dynamic ({size})")
    return size


def dtype(x: Expr) -> DType:
    """The element type."""
    return tensor_type_of(x).dtype


def only(value: Any, what: str) -> Any:
    """The element of an array of one; AotcError (code
    "graph-input") for any other number of elements.
    """
    array = np.asarray(value)
    require("graph-input", array.size == 1, f"{what} must be one value, it has shape {array.shape}")
    return array.reshape(-1)[0]


def axis(given: int, count: int) -> int:
    """A possibly negative axis of `count`, from 0; AotcError (code
    "graph-axis") if it is out of range.
    """
    require("graph-axis", -count <= given < max(count, 1), f"axis {given} is outside rank {count}")
    return given % count if count else 0


# --- constants


def constant(value: Any, as_type: str | None = None) -> Constant:
    """A constant of an array, list or number."""
    return Constant(np.asarray(value, None if as_type is None else DType(as_type).numpy))


def filled(value: Number, sizes: Sequence[int], as_type: str) -> Constant:
    """One value repeated: takes no memory, however large the shape
    (up to the limit of any tensor).
    """
    check_size(tuple(sizes), DType(as_type), "a filled tensor")
    return splat(value, sizes, as_type)


def iota(count: int, as_type: str = "int64") -> Constant:
    """0, 1, 2, ..."""
    check_materialized((count,), as_type, "a range")
    return Constant(np.arange(count).astype(DType(as_type).numpy))


# --- arithmetic


def _typed(a: Operand, b: Operand) -> tuple[Expr, Expr]:
    """Numbers as scalars of the data type of the operand beside them."""
    if isinstance(a, (int, float)):
        assert not isinstance(b, (int, float)), "one operand must be a tensor"
        return constant(a, dtype(b)), b
    return a, constant(b, dtype(a)) if isinstance(b, (int, float)) else b


def binary(name: str, a: Operand, b: Operand) -> Expr:
    """A broadcasting operator; numbers take the other operand's type."""
    return op(name, *_typed(a, b))


_UNARY = ("abs", "exp", "log", "negative", "sigmoid", "sqrt", "tanh")
absolute, exp, log, negative, sigmoid, sqrt, tanh = (partial(op, name) for name in _UNARY)
_ARITHMETIC = ("add", "subtract", "multiply", "divide", "maximum", "minimum", "floor_mod")
add, sub, mul, div, maximum, minimum, floor_mod = (partial(binary, name) for name in _ARITHMETIC)
equal, less, greater = (partial(binary, name) for name in ("equal", "less", "greater"))


def where(condition: Expr, a: Operand, b: Operand) -> Expr:
    """`a` where the condition holds, else `b`; all three broadcast."""
    return op("where", condition, *_typed(a, b))


def cast(x: Expr, to: str) -> Expr:
    """`x` as another data type; `x` itself if it has that type."""
    return x if dtype(x) == to else op("cast", x, dtype=str(to))


def summed_as(of: DType) -> DType:
    """The float type in which elements of a float type are added up."""
    return DType("float32") if of.is_narrow_float else of


def in_float32(body: Callable[..., Expr], *tensors: Expr) -> Expr:
    """`body` of tensors; of narrow floats it is computed in float32 and rounded once, to the type of the first.

    A square of a float16 leaves its range from 256 on, and below 2e-4, where the root of a sum of squares does not.
    """
    narrow = dtype(tensors[0])
    if not narrow.is_narrow_float:
        return body(*tensors)
    return cast(body(*(cast(x, "float32") if dtype(x).is_narrow_float else x for x in tensors)), narrow)


def clip(x: Expr, least: float, greatest: float) -> Expr:
    """`x` between two numbers."""
    return op("clip", x, a_min=least, a_max=greatest)


def scaled(x: Expr, factor: float) -> Expr:
    """`x` times a number, which loses its fraction where `x` holds
    integers; `x` itself for 1.
    """
    if factor == 1:
        return x
    return mul(x, float(factor) if dtype(x).is_float else int(factor))


def reduce(name: str, x: Expr, axes: Sequence[int], keepdims: bool) -> Expr:
    """A reduction over `axes`; `x` itself where there are none."""
    return op(name, x, axis=tuple(axes), keepdims=keepdims) if axes else x


#: One field of a tuple value.
field = item_of


# --- shapes


def reshape(x: Expr, sizes: Sequence[int]) -> Expr:
    """`x` with another shape; one dimension may be -1.  A static
    input gets a literal shape.
    """
    target = tuple(int(d) for d in sizes)
    if is_static(dims(x)):
        target = resolved_shape(shape(x), target)
        if target == dims(x):
            return x
    elif -1 in target:
        return op("reshape", x, newshape=target)
    return op("reshape", x, newshape=target, allowzero=0 in target)


def resolved_shape(source: tuple[int, ...], target: tuple[int, ...]) -> tuple[int, ...]:
    """`target` with -1 worked out; AotcError (code "graph-reshape")
    where the element counts differ.
    """
    known, total = math.prod(d for d in target if d != -1), math.prod(source)
    if target.count(-1) > 1 or any(d < -1 for d in target):
        raise AotcError("graph-reshape", f"{target} is not a valid shape for reshaping {source}")
    fits = known == total if -1 not in target else known != 0 and total % known == 0
    require("graph-reshape", fits, f"{source} cannot be reshaped to {target}")
    return tuple(total // known if d == -1 else d for d in target)


def flat(x: Expr) -> Expr:
    """All elements along one axis."""
    return reshape(x, (-1,))


def along(vector: Expr, place: int, count: int) -> Expr:
    """A vector laid along one of `count` axes of the tensor that it
    meets in an operator that broadcasts.
    """
    return reshape(vector, (-1, *(1,) * (count - 1 - place)))


def transpose(x: Expr, axes: Sequence[int]) -> Expr:
    """Axes permuted; `x` itself for the identity."""
    order = tuple(axes)
    return x if order == tuple(range(len(order))) else op("transpose", x, axes=order)


def unsqueeze(x: Expr, axes: Sequence[int]) -> Expr:
    """Axes of size 1 inserted at these positions of the result
    (ascending, from 0).
    """
    for place in axes:
        x = op("expand_dims", x, axis=place, num_newaxis=1)
    return x


def squeeze(x: Expr, axes: Sequence[int]) -> Expr:
    """Axes of size 1 removed (ascending, from 0)."""
    return op("squeeze", x, axis=tuple(axes)) if axes else x


def broadcast(x: Expr, sizes: Sequence[int]) -> Expr:
    """`x` repeated to a shape; a one-element constant stays a splat."""
    target = tuple(sizes)
    if dims(x) == target:
        return x
    if isinstance(x, Constant) and (x.data.size == 1 or x.is_splat) and 0 not in target:
        check_size(target, dtype(x), "the result of broadcast_to")
        return Constant(np.broadcast_to(x.data.reshape(-1)[0], target))
    return op("broadcast_to", x, shape=target)


def concat(parts: Sequence[Expr], place: int) -> Expr:
    """Tensors joined along an axis."""
    return parts[0] if len(parts) == 1 else op("concatenate", Tuple(parts), axis=place)


def stack(parts: Sequence[Expr], place: int) -> Expr:
    """Tensors joined along a new axis."""
    return concat([unsqueeze(p, [place]) for p in parts], place)


def split(x: Expr, sizes: Sequence[int], place: int) -> list[Expr]:
    """`x` cut along an axis into parts of these sizes."""
    if len(sizes) == 1:
        return [x]
    cuts = tuple(int(c) for c in np.cumsum(sizes)[:-1])
    parts = op("split", x, indices_or_sections=cuts, axis=place)
    return [field(parts, i) for i in range(len(sizes))]


def equal_parts(size: int, part: int) -> list[int]:
    """`size` elements in parts of `part`, the last one smaller
    where that does not divide; AotcError for none.
    """
    require("graph-split", part >= 1, f"{size} elements cannot be split into parts of {part}")
    check_unrolled(-(-size // part), "a split")
    return [min(part, size - k) for k in range(0, size, part)]


def cut(x: Expr, begin: Sequence[int], end: Sequence[int], axes: Sequence[int], strides: Sequence[int] = ()) -> Expr:
    """A strided slice in numpy's meaning (negative positions count
    from the end, all are clipped).
    """
    steps = tuple(strides) or (1,) * len(begin)
    box = {"begin": tuple(begin), "end": tuple(end), "strides": steps}
    return op("strided_slice", x, **box, axes=tuple(axes), slice_mode="end")


def pad(x: Expr, widths: Sequence[tuple[int, int]], value: Operand = 0, mode: str = "constant") -> Expr:
    """`x` with (before, after) elements added to each axis."""
    if not any(b or a for b, a in widths):
        return x
    fill = constant(value, dtype(x)) if isinstance(value, (int, float)) else reshape(value, ())
    return op("nn.pad", x, fill, pad_width=tuple((int(b), int(a)) for b, a in widths), pad_mode=mode)
