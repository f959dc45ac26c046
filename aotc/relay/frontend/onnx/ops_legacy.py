# SPDX-License-Identifier: Apache-2.0
"""ONNX converters of operators of the standard's domain that the standard no longer defines, or defines later, and
that ONNX Runtime still runs: experimental operators of operator set 1, and normalization before set 17.

OPS["ImageScaler"](x, bias=[1.0, 2.0, 3.0], scale=0.5)      # x * 0.5 + the bias of each channel
"""

from typing import Any

from aotc.ir import require
from aotc.relay.expr import Expr
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.activations import softplus
from aotc.relay.frontend.converter_signatures import Axis
from aotc.relay.frontend.normalization import rms_norm
from aotc.relay.frontend.onnx.node import Converted, OnnxNode, Table, table_by_function_name


def _affine(x: Expr, *, alpha: float, beta: float) -> Expr:
    return g.add(g.mul(x, alpha), beta)


def _scale(x: Expr, *, scale: float) -> Expr:
    return g.mul(x, scale)


def scaled_tanh(x: Expr, *, alpha: float = 1.0, beta: float = 1.0) -> Expr:
    """Compute alpha * tanh(beta * x)."""
    return g.mul(g.tanh(g.mul(x, beta)), alpha)


def parametric_softplus(x: Expr, *, alpha: float = 1.0, beta: float = 1.0) -> Expr:
    """Compute alpha * log(1 + exp(beta * x))."""
    return g.mul(softplus(g.mul(x, beta)), alpha)


def thresholded_relu(x: Expr, *, alpha: float) -> Expr:
    """Compute x where x > alpha, and 0 elsewhere."""
    return g.where(g.greater(x, alpha), x, 0.0)


def _crop(x: Expr, *, border: Any = (), scale: Any = ()) -> Expr:
    """Convert Crop: remove `border` pixels at the left, top, right and bottom, or keep an image of the extents `scale`
    behind the left and the top border.
    """
    fits = g.rank(x) == 4 and len(border) == 4 and len(scale) in (0, 2)
    text = f"Crop of shape {g.dims(x)} needs 4 borders and a scale of 2 numbers or none, got {border} and {scale}"
    require("onnx-attribute", fits, text)
    left, top, right, bottom = border
    height, width = g.shape(x)[2:]
    ends = [top + scale[0], left + scale[1]] if len(scale) else [height - bottom, width - right]
    fits = 0 <= top < ends[0] <= height and 0 <= left < ends[1] <= width
    require(
        "onnx-attribute", fits, f"border {border} and scale {scale} of Crop do not fit an image of {height} x {width}"
    )
    return g.strided_slice(x, [top, left], ends, [2, 3])


def _image_scaler(x: Expr, *, bias: Any = (), scale: float) -> Expr:
    channels = g.dim(x, 1) if g.rank(x) == 4 else None
    text = f"ImageScaler of shape {g.dims(x)} needs a bias for each channel of (N, C, H, W), got {len(bias)}"
    require("onnx-attribute", len(bias) == channels, text)
    return g.add(g.mul(x, scale), g.reshape_along_axis(g.constant(list(bias), g.dtype(x)), 1, 4))


def _simplified_layer_normalization(x: Expr, scale: Expr, *, axis: Axis, epsilon: float, node: OnnxNode) -> Converted:
    inner = g.rank(x) - axis
    text = f"the scale of {node.op_type} has shape {g.dims(scale)}, the normalized axes are {g.dims(x)[axis:]}"
    require("onnx-norm", g.dims(scale) == g.dims(x)[axis:], text)
    y = rms_norm(x, scale, inner, epsilon)
    if not node.needs_output(1):
        return [y, None]
    wide = g.cast(x, g.accumulation_dtype(g.dtype(x)))
    square = g.call_reduction("mean", g.mul(wide, wide), range(axis, g.rank(x)), True)
    return [y, g.div(1.0, g.sqrt(g.add(square, epsilon)))]


OPS: Table = {
    **table_by_function_name(_affine, _crop, _image_scaler, _scale, _simplified_layer_normalization),
    "ParametricSoftplus": parametric_softplus,
    "ScaledTanh": scaled_tanh,
    "ThresholdedRelu": thresholded_relu,
}
