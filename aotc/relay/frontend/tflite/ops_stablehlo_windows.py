# SPDX-License-Identifier: Apache-2.0
"""TFLite converters of reductions over windows and of convolutions, as StableHLO defines them: over any number of axes,
with dilated data and windows.

OPS["REDUCE_WINDOW"](x, initial, window, strides, dilations, reduce_function=1)     # sums of windows
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from aotc.ir import require
from aotc.relay.expr import Expr
from aotc.relay.frontend import conv_pool
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.conv_pool import Window
from aotc.relay.frontend.slice_pad_depth_to_space import pad_or_crop
from aotc.relay.frontend.tflite.node import KnownInts, Table, TfliteNode
from aotc.relay.frontend.tflite.ops_shape import dilated
from aotc.relay.frontend.tflite.ops_stablehlo import REDUCTION_BY_OPERATOR, operator_of_reduction_body

#: Operators of the reductions of REDUCE_WINDOW, by their codes in the schema.
_REDUCE_FUNCTIONS: Final = {1: "add", 2: "multiply", 3: "minimum", 4: "maximum", 5: "bitwise_and", 6: "bitwise_or"}


def _reduced_windows(
    x: Expr,
    initial: Expr,
    operator: str,
    window: Sequence[int],
    strides: Sequence[int],
    base_dilations: Sequence[int],
    window_dilations: Sequence[int],
    padding: Sequence[int],
) -> Expr:
    """Reduce all windows of `x`, which is dilated, then padded with the initial value.

    padding    for each axis the numbers of elements before and after it
    """
    rank = g.rank(x)
    lists = (window, strides, base_dilations, window_dilations)
    fits = all(len(v) == rank and min(v, default=1) > 0 for v in lists) and len(padding) == 2 * rank
    text = f"a window {', '.join(str(list(v)) for v in (*lists, padding))} does not fit data of shape {g.dims(x)}"
    require("graph-shape", fits, text)
    require("graph-rank", rank > 0, "a window over data of rank 0 is not supported")
    first = g.reshape(initial, ())
    y = dilated(x, base_dilations, first)
    y = pad_or_crop(y, list(zip(padding[::2], padding[1::2], strict=True)), first)
    spans = [(n - 1) * step + 1 for n, step in zip(window, window_dilations, strict=True)]
    inside = all(span <= d for span, d in zip(spans, g.shape(y), strict=True))
    require("graph-shape", inside, f"windows of extents {spans} do not fit data of shape {g.shape(y)}")
    y = g.call_op("sliding_window", y, axis=0, window_shape=tuple(spans), strides=tuple(strides))
    inner = list(range(rank, 2 * rank))
    y = g.strided_slice(y, [0] * rank, spans, inner, list(window_dilations))
    y = g.call_reduction(REDUCTION_BY_OPERATOR[operator], y, inner, False)
    return g.call_op(operator, y, first)


def _convert_reduce_window_node(
    x: Expr, initial: Expr, window: KnownInts, strides: KnownInts, dilations: KnownInts, *, reduce_function: int = 0
) -> Expr:
    operator = _REDUCE_FUNCTIONS.get(reduce_function, "")
    known = bool(operator) and g.dtype(x).is_bool == operator.startswith("bitwise")
    require(
        "tflite-options", known, f"REDUCE_WINDOW of {g.dtype(x)} by the function {reduce_function} is not supported"
    )
    rank = g.rank(x)
    return _reduced_windows(x, initial, operator, window, strides, [1] * rank, dilations, [0] * (2 * rank))


def _convert_stablehlo_reduce_window_node(
    x: Expr,
    initial: Expr,
    *more: Expr,
    window_dimensions: Any = None,
    window_strides: Any = None,
    base_dilations: Any = None,
    window_dilations: Any = None,
    padding: Any = None,
    body_subgraph_index: int,
    node: TfliteNode,
) -> Expr:
    """Convert STABLEHLO_REDUCE_WINDOW of one tensor whose body is one operator."""
    require("tflite-options", not more, "STABLEHLO_REDUCE_WINDOW of several tensors is not supported")
    operator = operator_of_reduction_body(node, body_subgraph_index, x)
    ones = [1] * g.rank(x)
    strides, base, inner = (list(v or ones) for v in (window_strides, base_dilations, window_dilations))
    none = [0] * (2 * g.rank(x))
    return _reduced_windows(x, initial, operator, list(window_dimensions or ()), strides, base, inner, padding or none)


def _reversed_along(x: Expr, axes: Sequence[int]) -> Expr:
    for axis in axes:
        x = g.call_op("reverse", x, axis=axis)
    return x


def _convert_convolution_node(
    x: Expr,
    weight: Expr,
    *,
    window_strides: Any = None,
    padding: Any = None,
    lhs_dilation: Any = None,
    rhs_dilation: Any = None,
    window_reversal: Any = None,
    input_batch_dimension: int = 0,
    input_feature_dimension: int = 0,
    input_spatial_dimensions: Any = None,
    kernel_input_feature_dimension: int = 0,
    kernel_output_feature_dimension: int = 0,
    kernel_spatial_dimensions: Any = None,
    output_batch_dimension: int = 0,
    output_feature_dimension: int = 0,
    output_spatial_dimensions: Any = None,
    feature_group_count: int = 1,
    batch_group_count: int = 1,
    node: TfliteNode,
) -> Expr:
    """Convert STABLEHLO_CONVOLUTION over one to three spatial axes."""
    count = conv_pool.spatial_rank_of_tensor_rank_3_to_5(g.rank(x), node.op.name)
    orders = (
        [input_batch_dimension, input_feature_dimension, *(input_spatial_dimensions or ())],
        [kernel_output_feature_dimension, kernel_input_feature_dimension, *(kernel_spatial_dimensions or ())],
        [output_batch_dimension, output_feature_dimension, *(output_spatial_dimensions or ())],
    )
    fits = g.rank(weight) == count + 2 and all(sorted(order) == list(range(count + 2)) for order in orders)
    require("graph-shape", fits, f"the axes {orders} do not fit {g.dims(x)} and {g.dims(weight)}")
    ones = [1] * count
    strides, spread, steps = (list(v or ones) for v in (window_strides, lhs_dilation, rhs_dilation))
    pads, turned = list(padding or [0] * (2 * count)), list(window_reversal or [False] * count)
    fits = all(len(v) == count and min(v) > 0 for v in (strides, spread, steps))
    fits = fits and len(pads) == 2 * count and len(turned) == count
    text = f"{node.op.name} with strides {strides}, dilations {spread} and {steps} and padding {pads} is not possible"
    require("tflite-options", fits, text)
    require("graph-dtype", g.dtype(x).is_float, f"{node.op.name} of {g.dtype(x)} is not supported")
    text = f"{node.op.name} with {batch_group_count} groups of the batch is not supported (1 is)"
    require("tflite-options", batch_group_count == 1, text)
    data, kernel = g.transpose(x, orders[0]), g.transpose(weight, orders[1])
    (channels, features), inputs = g.shape(kernel)[:2], g.dim(data, 1)
    fits = feature_group_count > 0 and inputs == features * feature_group_count and channels % feature_group_count == 0
    text = f"{feature_group_count} groups of {inputs} channels do not fit weights of shape {g.shape(weight)}"
    require("graph-shape", fits, text)
    kernel = _reversed_along(kernel, [k + 2 for k, flag in enumerate(turned) if flag])
    zero = g.full(0, (), str(g.dtype(x)))
    data = dilated(data, [1, 1, *spread], zero)
    pairs = list(zip(pads[::2], pads[1::2], strict=True))
    data = pad_or_crop(data, [(0, 0), (0, 0), *((min(a, 0), min(b, 0)) for a, b in pairs)], zero)
    widths = (*(max(a, 0) for a, _ in pairs), *(max(b, 0) for _, b in pairs))
    window = Window(g.shape(kernel)[2:], tuple(strides), tuple(steps), widths)
    y = conv_pool.build_convolution(data, kernel, window, None, feature_group_count)
    return g.transpose(y, [orders[2].index(k) for k in range(count + 2)])


OPS: Final[Table] = {
    "REDUCE_WINDOW": _convert_reduce_window_node,
    "STABLEHLO_CONVOLUTION": _convert_convolution_node,
    "STABLEHLO_REDUCE_WINDOW": _convert_stablehlo_reduce_window_node,
}
INTEGERS: Final[frozenset[str]] = frozenset()
MOVES: Final[frozenset[str]] = frozenset()
