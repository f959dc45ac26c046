# SPDX-License-Identifier: Apache-2.0
"""Einstein summation, expanded to transposes, sums and batched matrix products.

einsum([a, b], "bij,bjk->bik")         # nn.batch_matmul(a, b)

Operands are contracted from left to right. An axis named twice in one operand selects the diagonal.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from aotc.ir import AotcError, Attrs, AxisMap, DType, TensorType, Type, Types, require
from aotc.relay.expr import Constant, Expr, const, tensor_type_of, tuple_item
from aotc.relay.op import binary_elementwise, cast_clip_prelu, concat_split, dense, reduce, shape
from aotc.relay.op.operator_definition import (
    Array,
    OpDef,
    Sample,
    Samples,
    accumulator_dtype,
    cast_array,
    random_array,
    sample_accuracy,
)
from aotc.relay.op.type_rules import (
    require_dtype,
    require_same_dtype,
    require_tensor_fields,
    require_tensor_type,
    static_shape_of,
)


def expand_einsum(equation: str, operands: Sequence[Expr]) -> Expr:
    """Return an expression for the sum that `equation` describes, in numpy.einsum's notation.

    "..." and an implicit output are supported. Raise AotcError with code "einsum" if the equation
    does not fit the operands, and with code "dynamic-shape" for symbolic dimensions.
    """
    shapes = list(map(static_shape_of, operands))
    inputs, output, sizes = _parse_equation_with_sizes(equation, shapes)
    if _has_rounded_intermediate_results(inputs, output):
        return cast_clip_prelu.compute_narrow_floats_in_float32(
            lambda *wide: _contract_operands_left_to_right(wide, inputs, output, sizes), *operands
        )
    return _contract_operands_left_to_right(operands, inputs, output, sizes)


def _has_rounded_intermediate_results(input_axes: Sequence[Sequence[str]], output_axes: Sequence[str]) -> bool:
    """Return True if an einsum runs as several operators in sequence, whose intermediate tensors
    would be rounded to the type of the operands.
    """
    if len(input_axes) != 2:
        return len(input_axes) > 2
    return any(
        len(set(operand_axes)) < len(operand_axes) or not {*operand_axes} <= {*output_axes, *other}
        for operand_axes, other in (input_axes, input_axes[::-1])
    )


def _contract_operands_left_to_right(
    operands: Sequence[Expr], input_axes: Sequence[list[str]], output_axes: Sequence[str], sizes: Mapping[str, int]
) -> Expr:
    terms = [_reduce_repeated_axis_to_diagonal(x, axes) for x, axes in zip(operands, input_axes, strict=True)]
    x, axes = terms[0]
    for k in range(1, len(terms)):
        needed = set(output_axes).union(*(later for _, later in terms[k + 1 :]))
        x, axes = _multiply_and_sum_shared_axes(x, axes, *terms[k], needed, sizes)
    x, axes = _sum_unneeded_axes(x, axes, set(output_axes))
    return _broadcast_unless_equal(
        _transpose_unless_identity(x, [axes.index(a) for a in output_axes]), [sizes[a] for a in output_axes]
    )


def _transpose_unless_identity(x: Expr, order: Sequence[int]) -> Expr:
    return x if list(order) == [*range(len(order))] else shape.transpose(x, tuple(order))


def _broadcast_unless_equal(x: Expr, sizes: Sequence[int]) -> Expr:
    return x if static_shape_of(x) == tuple(sizes) else shape.broadcast_to(x, tuple(sizes))


def _reshape_unless_equal(x: Expr, sizes: Sequence[int]) -> Expr:
    target = tuple(sizes)
    return x if static_shape_of(x) == target else shape.reshape(x, target, allowzero=0 in target)


def _parse_equation_with_sizes(
    equation: str, shapes: Sequence[Sequence[int]]
) -> tuple[list[list[str]], list[str], dict[str, int]]:
    """Return the axis names of each operand and of the result, and the extent of each axis."""
    inputs, output = _parse_equation_axes(equation, list(map(len, shapes)))
    sizes = _require_consistent_axis_sizes_by_name(inputs, shapes)
    missing = [a for a in output if a not in sizes]
    require("einsum", not missing, f"output axes {missing} occur in no operand of {equation!r}")
    once = len(set(output)) == len(output)
    require("einsum", once, f"an output axis of {equation!r} is named twice")
    return inputs, output, sizes


def _parse_equation_axes(equation: str, ranks: Sequence[int]) -> tuple[list[list[str]], list[str]]:
    """Return the axis names of each operand and of the result; axes of "..." are named "0", "1",
    ... from the right.
    """
    text = equation.replace(" ", "")
    left, arrow, right = text.partition("->")
    parts = left.split(",")
    letters = left.replace(",", "").replace("...", "") + right.replace("...", "")
    if len(parts) != len(ranks) or not all(c.isalpha() for c in letters):
        raise AotcError("einsum", f"equation {equation!r} is not for {len(ranks)} operands")
    inputs = [_operand_axis_names(part, rank, equation) for part, rank in zip(parts, ranks, strict=True)]
    dots = max((sum(a.isdigit() for a in axes) for axes in inputs), default=0)
    ellipsis = [str(k) for k in reversed(range(dots))]
    if not arrow:
        once = sorted(c for c in set(letters) if letters.count(c) == 1)
        return inputs, [*ellipsis, *once]
    head, marker, tail = right.partition("...")
    return inputs, [*head, *(ellipsis if marker else []), *tail]


def _operand_axis_names(subscript: str, rank: int, equation: str) -> list[str]:
    head, marker, tail = subscript.partition("...")
    missing = rank - len(head) - len(tail)
    if missing < 0 or (missing and not marker):
        raise AotcError("einsum", f"{subscript!r} of equation {equation!r} does not match an operand of rank {rank}")
    return [*head, *(str(k) for k in reversed(range(missing))), *tail]


def _require_consistent_axis_sizes_by_name(
    input_axes: Sequence[Sequence[str]], shapes: Sequence[Sequence[int]]
) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for axes, extents in zip(input_axes, shapes, strict=True):
        for axis, size in zip(axes, extents, strict=True):
            known = sizes.get(axis, 1)
            if size not in (1, known) and known != 1:
                raise AotcError("einsum", f"axis {axis!r} has two different extents, {known} and {size}")
            sizes[axis] = size if known == 1 else known
    return sizes


def _reduce_repeated_axis_to_diagonal(x: Expr, axes: list[str]) -> tuple[Expr, list[str]]:
    """Merge an axis that is named twice: set off-diagonal elements to zero and sum over the second
    axis.
    """
    axes = list(axes)
    while len(set(axes)) != len(axes):
        name = next(a for a in axes if axes.count(a) > 1)
        first = axes.index(name)
        second = axes.index(name, first + 1)
        ty, after = tensor_type_of(x), [(1,) * (len(axes) - 1 - k) for k in (first, second)]
        places = np.arange(static_shape_of(x)[first])
        row, column = (Constant(places.reshape(-1, *ones)) for ones in after)
        zero = const(0, str(ty.dtype))
        x = reduce.sum(binary_elementwise.where(binary_elementwise.equal(row, column), x, zero), axis=(second,))
        del axes[second]
    return x, axes


def _sum_unneeded_axes(x: Expr, axes: list[str], needed: set[str]) -> tuple[Expr, list[str]]:
    """Return `x` summed over the axes that are not needed, and the names of the remaining axes."""
    summed_axes = tuple(k for k, a in enumerate(axes) if a not in needed)
    return reduce.sum(x, axis=summed_axes) if summed_axes else x, [a for a in axes if a in needed]


def _multiply_and_sum_shared_axes(
    x: Expr, x_axes: list[str], y: Expr, y_axes: list[str], needed: set[str], sizes: Mapping[str, int]
) -> tuple[Expr, list[str]]:
    """Return the product of two terms, summed over shared axes that later operands and the result
    do not need.
    """
    x, x_axes = _sum_unneeded_axes(x, x_axes, needed | set(y_axes))
    y, y_axes = _sum_unneeded_axes(y, y_axes, needed | set(x_axes))
    shared = [a for a in x_axes if a in y_axes]
    batch = [a for a in shared if a in needed]
    inner = [a for a in shared if a not in needed]
    rows = [a for a in x_axes if a not in shared]
    columns = [a for a in y_axes if a not in shared]
    a = _reshape_to_matrix_batch(x, x_axes, (batch, rows, inner), sizes)
    b = _reshape_to_matrix_batch(y, y_axes, (batch, inner, columns), sizes)
    product = dense.batch_matmul(a, b, transpose_b=False)
    axes = [*batch, *rows, *columns]
    return _reshape_unless_equal(product, [sizes[a] for a in axes]), axes


def _reshape_to_matrix_batch(
    x: Expr, axes: list[str], axis_groups: tuple[list[str], list[str], list[str]], sizes: Mapping[str, int]
) -> Expr:
    """Return `x` reshaped to (batch, rows, columns), each a group of axes; axes of extent 1 are
    broadcast.
    """
    order = [a for group in axis_groups for a in group]
    y = _broadcast_unless_equal(
        _transpose_unless_identity(x, [axes.index(a) for a in order]), [sizes[a] for a in order]
    )
    return _reshape_unless_equal(y, [math.prod(sizes[a] for a in group) for group in axis_groups])


class EinsumAttrs(Attrs):
    """Einstein summation of the operands by an equation such as "bij,bjk->bik", as in numpy.einsum."""

    equation: str


def _infer_einsum_type(a: EinsumAttrs, types: Types) -> Type:
    operands = require_tensor_fields(types[0], "data")
    require("einsum", bool(operands), "there are no operands")
    for ty in operands:
        require_dtype(ty.dtype, not ty.dtype.is_bool)
        require_same_dtype(operands[0], ty)
        require("dynamic-shape", ty.is_static, f"the shape must be known at compile time, got {ty}")
    _, output, sizes = _parse_equation_with_sizes(a.equation, [ty.static_shape for ty in operands])
    return TensorType([sizes[axis] for axis in output], operands[0].dtype)


def _einsum_reference(a: EinsumAttrs, data: tuple[Array, ...]) -> Array:
    dtype = DType.from_numpy(data[0])
    wide = accumulator_dtype(dtype, dtype).numpy
    return cast_array(np.einsum(a.equation, *(x.astype(wide) for x in data)), dtype)


def _expand_einsum_call(a: EinsumAttrs, data: Expr) -> Expr:
    fields = require_tensor_fields(data.checked_type, "data") if data.checked_type is not None else ()
    return expand_einsum(a.equation, [tuple_item(data, k) for k in range(len(fields))])


_SAMPLE_EQUATIONS = (
    ("bij,bjk->bik", ((2, 3, 4), (2, 4, 5)), "float32"),
    ("...ab,...cb->...ac", ((2, 1, 3, 4), (5, 2, 4)), "float32"),
    ("ii", ((3, 3),), "int32"),
    ("ij,j,k", ((2, 3), (3,), (4,)), "float32"),
    ("ij->ji", ((2, 3),), "float64"),
)


def _einsum_test_samples() -> Samples:
    for equation, shapes, dtype in _SAMPLE_EQUATIONS:
        data = tuple(random_array(operand_shape, dtype, seed) for seed, operand_shape in enumerate(shapes))
        yield Sample(args=(data,), attrs=EinsumAttrs(equation=equation), accuracy=sample_accuracy(dtype))


einsum = OpDef(
    name="einsum",
    attrs=EinsumAttrs,
    args=concat_split.concatenate.args,
    infer=_infer_einsum_type,
    reference=_einsum_reference,
    axes=lambda a, types: AxisMap(((None,) * require_tensor_type(_infer_einsum_type(a, types)).rank,)),
    expand=_expand_einsum_call,
    samples=_einsum_test_samples,
)
