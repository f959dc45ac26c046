# SPDX-License-Identifier: Apache-2.0
"""TFLite converters of the operators of StableHLO. Their operands have equal shapes; nothing broadcasts.

OPS["STABLEHLO_PAD"](x, value, edge_padding_low=[1, -1], edge_padding_high=[0, 2], interior_padding=[0, 1])
OPS["STABLEHLO_COMPOSITE"](x, decomposition_subgraph_index=1, node=node)    # the results of subgraph 1
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from aotc.ir import Op, TensorType, require
from aotc.relay.expr import Expr
from aotc.relay.frontend import matmul_einsum
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.slice_pad_depth_to_space import pad_or_crop
from aotc.relay.frontend.tflite.node import Converter, Table, TfliteNode
from aotc.relay.frontend.tflite.ops_control import convert_while_node
from aotc.relay.frontend.tflite.ops_scatter import convert_dynamic_update_slice_node
from aotc.relay.frontend.tflite.ops_shape import dilated
from aotc.relay.graph_api import Call, Var

#: Operators that are one operator of the graph, by name without STABLEHLO_.
_SAME_OPERATOR: Final = {
    "ABS": "abs",
    "ADD": "add",
    "AND": "bitwise_and",
    "COSINE": "cos",
    "DIVIDE": "divide",
    "EXPONENTIAL": "exp",
    "FLOOR": "floor",
    "LOG": "log",
    "LOGISTIC": "sigmoid",
    "MAXIMUM": "maximum",
    "MINIMUM": "minimum",
    "MULTIPLY": "multiply",
    "NEGATE": "negative",
    "OR": "bitwise_or",
    "POWER": "power",
    "REMAINDER": "mod",
    "RSQRT": "rsqrt",
    "SHIFT_LEFT": "left_shift",
    "SUBTRACT": "subtract",
    "TANH": "tanh",
}
#: Operators that compute on real numbers only here.
_REAL_OPERATORS: Final = frozenset({"COSINE", "EXPONENTIAL", "FLOOR", "LOG", "LOGISTIC", "POWER", "RSQRT", "TANH"})
#: Directions of comparisons, in the order of their codes in the schema.
_COMPARISONS: Final = ("equal", "not_equal", "greater_equal", "greater", "less_equal", "less")
#: Reductions by the operator of their body.
REDUCTION_BY_OPERATOR: Final = {
    "add": "sum",
    "multiply": "prod",
    "maximum": "max",
    "minimum": "min",
    "bitwise_and": "all",
    "bitwise_or": "any",
}


def _convert_same_operator_node(name: str, *operands: Expr, node: TfliteNode) -> Expr:
    shapes = {g.dims(x) for x in operands}
    require(
        "graph-shape", len(shapes) == 1, f"{node.op.name} takes operands of one shape, not {sorted(shapes, key=str)}"
    )
    is_real = name not in _REAL_OPERATORS or g.dtype(operands[0]).is_float
    require("graph-dtype", is_real, f"{node.op.name} of {g.dtype(operands[0])} is not supported")
    return g.call_op(_SAME_OPERATOR[name], *operands)


def _convert_clamp_node(low: Expr, x: Expr, high: Expr) -> Expr:
    return g.minimum(g.maximum(x, low), high)


def _convert_compare_node(a: Expr, b: Expr, *, comparison_direction: int = 0) -> Expr:
    known = 0 <= comparison_direction < len(_COMPARISONS)
    require("tflite-options", known, f"the comparison {comparison_direction} is not known")
    return g.call_op(_COMPARISONS[comparison_direction], a, b)


def _convert_cbrt_node(x: Expr) -> Expr:
    """Convert STABLEHLO_CBRT: a power of the absolute value, and one step of Newton's method, which removes the error
    of the rounded exponent.
    """
    require("graph-dtype", g.dtype(x).is_float, f"STABLEHLO_CBRT of {g.dtype(x)} is not supported")
    size = g.call_op("abs", x)
    root = g.call_binary_op("power", size, 1.0 / 3.0)
    step = g.mul(g.sub(root, g.call_op("divide", size, g.mul(root, root))), 1.0 / 3.0)
    is_regular = g.logical_and(g.greater(size, 0.0), g.call_op("isfinite", size))
    return g.where(is_regular, g.mul(g.call_op("sign", x), g.sub(root, step)), x)


def _convert_select_node(condition: Expr, a: Expr, b: Expr) -> Expr:
    return g.where(condition, a, b)


def _convert_convert_node(x: Expr, *, node: TfliteNode) -> Expr:
    return g.cast(x, str(node.first_output_declaration.dtype))


# --- shapes


def _declared_shape(node: TfliteNode) -> tuple[int, ...]:
    declared = node.first_output_declaration
    return g.checked_shape(declared.shape, declared.dtype, f"the result of {node.op.name}")


def _convert_reshape_node(x: Expr, *, node: TfliteNode) -> Expr:
    return g.reshape(x, _declared_shape(node))


def _convert_broadcast_in_dim_node(x: Expr, *, broadcast_dimensions: Any = None, node: TfliteNode) -> Expr:
    """Convert STABLEHLO_BROADCAST_IN_DIM: axis k of the operand is axis `broadcast_dimensions[k]` of the result."""
    shape, places = _declared_shape(node), list(broadcast_dimensions or ())
    fits = len(places) == g.rank(x) and sorted(set(places)) == places and all(0 <= k < len(shape) for k in places)
    text = f"dimensions {places} do not place the axes of {g.dims(x)} in {shape}"
    require("graph-shape", fits and all(d in (1, shape[k]) for d, k in zip(g.dims(x), places, strict=True)), text)
    extents = dict(zip(places, g.dims(x), strict=True))
    return g.broadcast_to(g.reshape(x, [extents.get(k, 1) for k in range(len(shape))]), shape)


def _convert_transpose_node(x: Expr, *, permutation: Any = None) -> Expr:
    order = list(permutation or ())
    fits = sorted(order) == list(range(g.rank(x)))
    require("graph-shape", fits, f"{order} is not a permutation of {g.rank(x)} axes")
    return g.transpose(x, order)


def _convert_concatenate_node(*parts: Expr, dimension: int = 0) -> Expr:
    return g.concat(parts, g.normalize_axis(dimension, g.rank(parts[0])))


def _convert_iota_node(*, iota_dimension: int = 0, node: TfliteNode) -> Expr:
    shape, dtype = _declared_shape(node), str(node.first_output_declaration.dtype)
    place = g.normalize_axis(iota_dimension, len(shape))
    numbers = g.reshape_along_axis(g.iota(shape[place], dtype), place, len(shape))
    return g.broadcast_to(numbers, shape)


def _convert_slice_node(x: Expr, *, start_indices: Any = None, limit_indices: Any = None, strides: Any = None) -> Expr:
    shape = g.shape(x)
    first, last, steps = (list(v or ()) for v in (start_indices, limit_indices, strides))
    fits = len(first) == len(last) == len(steps) == len(shape) and min(steps, default=1) > 0
    fits = fits and all(0 <= b <= e <= d for b, e, d in zip(first, last, shape, strict=True))
    require("graph-shape", fits, f"a slice {first}, {last}, {steps} does not fit {shape}")
    return g.strided_slice(x, first, last, range(len(shape)), steps) if shape else x


def _start_vector(starts: Sequence[Expr]) -> Expr:
    return g.concat([g.reshape(g.cast(s, "int64"), (1,)) for s in starts], 0)


def _convert_dynamic_slice_node(x: Expr, *starts: Expr, slice_sizes: Any = None) -> Expr:
    """Convert STABLEHLO_DYNAMIC_SLICE; starts are moved so that the slice fits."""
    shape, sizes = g.shape(x), list(slice_sizes or ())
    fits = len(sizes) == len(starts) == len(shape) and all(0 <= n <= d for n, d in zip(sizes, shape, strict=True))
    require("graph-shape", fits, f"a slice of {sizes} does not fit {shape}")
    for axis, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        if size != shape[axis]:
            first = g.minimum(g.maximum(g.reshape(g.cast(start, "int64"), (1,)), 0), shape[axis] - size)
            x = g.call_op("take", x, g.add(first, g.iota(size, "int64")), axis=axis, mode="clip")
    return x


def _convert_dynamic_update_slice_node(x: Expr, update: Expr, *starts: Expr) -> Expr:
    return convert_dynamic_update_slice_node(x, update, _start_vector(starts)) if starts else update


def _convert_pad_node(
    x: Expr, value: Expr, *, edge_padding_low: Any = None, edge_padding_high: Any = None, interior_padding: Any = None
) -> Expr:
    """Convert STABLEHLO_PAD: elements between neighbors, and at both ends, where a negative number removes elements."""
    low, high, interior = (list(v or ()) for v in (edge_padding_low, edge_padding_high, interior_padding))
    fits = len(low) == len(high) == len(interior) == g.rank(x) and min(interior, default=0) >= 0
    require("graph-shape", fits, f"padding {low}, {high}, {interior} does not fit {g.dims(x)}")
    y = dilated(x, [n + 1 for n in interior], value)
    return pad_or_crop(y, list(zip(low, high, strict=True)), g.reshape(value, ()))


# --- products and reductions


def _convert_dot_general_node(
    a: Expr,
    b: Expr,
    *,
    lhs_batching_dimensions: Any = None,
    rhs_batching_dimensions: Any = None,
    lhs_contracting_dimensions: Any = None,
    rhs_contracting_dimensions: Any = None,
    node: TfliteNode,
) -> Expr:
    """Convert STABLEHLO_DOT_GENERAL, a batched product of two tensors that sums over the contracting axes. Sums of
    products of integers have the type of the result.

    The axes of the result are the batch axes, the remaining axes of `a`, and the remaining axes of `b`.
    """
    batches = [list(v or ()) for v in (lhs_batching_dimensions, rhs_batching_dimensions)]
    summed = [list(v or ()) for v in (lhs_contracting_dimensions, rhs_contracting_dimensions)]
    kept = [
        [k for k in range(g.rank(x)) if k not in (*batch, *contracted)]
        for x, batch, contracted in zip((a, b), batches, summed, strict=True)
    ]
    extents = [
        [[g.dim(x, k) for k in axes] for axes in (batch, contracted)]
        for x, batch, contracted in zip((a, b), batches, summed, strict=True)
    ]
    text = f"axes {batches} and {summed} of {g.dims(a)} and {g.dims(b)} do not fit each other"
    require("graph-shape", extents[0] == extents[1], text)
    lead, depth = extents[0][0], math.prod(extents[0][1])
    free = [[g.dim(x, k) for k in axes] for x, axes in zip((a, b), kept, strict=True)]
    left = g.transpose(a, (*batches[0], *kept[0], *summed[0]))
    right = g.transpose(b, (*batches[1], *summed[1], *kept[1]))
    left = g.reshape(left, (*lead, math.prod(free[0]), depth))
    right = g.reshape(right, (*lead, depth, math.prod(free[1])))
    dtype = str(node.first_output_declaration.dtype)
    builders = matmul_einsum.product_builders(dtype) if dtype != g.dtype(a) else None
    return g.reshape(matmul_einsum.matmul(left, right, builders), (*lead, *free[0], *free[1]))


def _convert_reduce_node(
    x: Expr, first: Expr, *more: Expr, dimensions: Any = None, body_subgraph_index: int, node: TfliteNode
) -> Expr:
    """Convert STABLEHLO_REDUCE of one tensor whose body is one operator."""
    require("tflite-options", not more, "STABLEHLO_REDUCE of several tensors is not supported")
    name = operator_of_reduction_body(node, body_subgraph_index, x)
    axes = sorted({g.normalize_axis(k, g.rank(x)) for k in dimensions or ()})
    y = g.call_reduction(REDUCTION_BY_OPERATOR[name], x, axes, False)
    return g.call_op(name, y, g.reshape(first, ()))


def body_of_one_operator(node: TfliteNode, subgraph: int, parameters: Sequence[Var]) -> tuple[str, tuple[Expr, ...]]:
    """Convert a subgraph with the given parameters; return the name of the operator of the graph that it consists of,
    and the operands. The name is "" if it is no call of one operator with variables; if the result is a parameter,
    that is the only operand.
    """
    results = node.control.convert_subgraph(subgraph, parameters)
    body = results[0] if len(results) == 1 else None
    if isinstance(body, Var):
        return "", (body,)
    if isinstance(body, Call) and isinstance(body.op, Op) and all(x in parameters for x in body.args):
        return body.op.name, tuple(body.args)
    return "", ()


def operator_of_reduction_body(node: TfliteNode, subgraph: int, x: Expr) -> str:
    """Return the operator of the graph that is the body of a reduction of `x`, a key of REDUCTION_BY_OPERATOR. Raises
    AotcError (codes "tflite-options", "graph-dtype") for other bodies.
    """
    parameters = [Var(name, TensorType((), g.dtype(x))) for name in "ab"]
    name, operands = body_of_one_operator(node, subgraph, parameters)
    known = name in REDUCTION_BY_OPERATOR and set(operands) == set(parameters)
    require("tflite-options", known, f"{node.op.name} is supported if its body is one operator, such as a sum")
    fits = g.dtype(x).is_bool or not name.startswith("bitwise")
    require("graph-dtype", fits, f"{node.op.name} by {name} of {g.dtype(x)} is not supported")
    return name


def _convert_composite_node(*inputs: Expr, decomposition_subgraph_index: int, node: TfliteNode) -> list[Expr]:
    """Convert STABLEHLO_COMPOSITE, an operator with a name, as the subgraph that defines it."""
    return node.control.convert_subgraph(decomposition_subgraph_index, inputs)


_CONVERTERS: Final[dict[str, Converter]] = {
    **{name: partial(_convert_same_operator_node, name) for name in _SAME_OPERATOR},
    "BROADCAST_IN_DIM": _convert_broadcast_in_dim_node,
    "CBRT": _convert_cbrt_node,
    "CLAMP": _convert_clamp_node,
    "COMPARE": _convert_compare_node,
    "COMPOSITE": _convert_composite_node,
    "CONCATENATE": _convert_concatenate_node,
    "CONVERT": _convert_convert_node,
    "DOT_GENERAL": _convert_dot_general_node,
    "DYNAMIC_SLICE": _convert_dynamic_slice_node,
    "DYNAMIC_UPDATE_SLICE": _convert_dynamic_update_slice_node,
    "IOTA": _convert_iota_node,
    "PAD": _convert_pad_node,
    "REDUCE": _convert_reduce_node,
    "RESHAPE": _convert_reshape_node,
    "SELECT": _convert_select_node,
    "SLICE": _convert_slice_node,
    "TRANSPOSE": _convert_transpose_node,
    "WHILE": convert_while_node,
}
OPS: Final[Table] = {f"STABLEHLO_{name}": converter for name, converter in _CONVERTERS.items()}
INTEGERS: Final = frozenset({"STABLEHLO_COMPOSITE", "STABLEHLO_WHILE"})
MOVES: Final[frozenset[str]] = frozenset()
