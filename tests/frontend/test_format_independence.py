# SPDX-License-Identifier: Apache-2.0
"""The code that front ends share does not depend on any format: neither on its package nor on its error codes."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from evaluation import model_of
from onnx import helper

from aotc.ir.diagnostics import AotcError
from aotc.ir.dtype import DType
from aotc.ir.types import TensorType
from aotc.relay.constant_evaluation import evaluate_constant_call
from aotc.relay.expr import Call, Constant, Var
from aotc.relay.frontend import conv_pool, quantization
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.activations import relu6
from aotc.relay.frontend.conv_pool import Window
from aotc.relay.frontend.onnx import from_onnx
from aotc.relay.frontend.quantization import OutputQuantization, QuantizedTensor


@pytest.mark.parametrize(
    ("front_end", "other"), [(".op_calls", "onnx"), (".onnx", "torch"), pytest.param(".pytorch", "onnx", id="pytorch")]
)
def test_one_format_does_not_load_the_package_of_another(front_end: str, other: str) -> None:
    if front_end == ".pytorch":
        pytest.importorskip("torch")
    code = f"import sys, aotc.relay.frontend{front_end}; sys.exit({other!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_problems_get_the_name_of_the_front_end_that_is_entered() -> None:
    x = Var("x", TensorType((2, 3), "float32"))
    with pytest.raises(AotcError) as neutral:
        g.normalize_axis(2, g.rank(x))
    assert neutral.value.code == "graph-axis"
    with pytest.raises(AotcError) as named, g.replace_graph_prefix_of_error_codes("onnx"):
        g.reshape(x, (4,))
    assert named.value.code == "onnx-reshape"
    with pytest.raises(AotcError) as kept, g.replace_graph_prefix_of_error_codes("onnx"):
        g.check_unroll_count(1 << 20, "a loop")
    assert kept.value.code == "budget"


def test_codes_of_the_vocabulary_in_onnx() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "x"], ["m"]),
        helper.make_node("Einsum", ["x"], ["e"], equation="abc->a"),
        helper.make_node("Softmax", ["x"], ["s"], axis=2),
        helper.make_node("Einsum", ["n"], ["f"], equation="ab->a"),
    ]
    with pytest.raises(AotcError) as caught:
        from_onnx(model_of(nodes, {"x": (2, 3), "n": ("k", 3)}, ["m", "e", "s", "f"]))
    assert [d.code for d in caught.value.diagnostics] == ["onnx-matmul", "onnx-einsum", "onnx-axis", "onnx-dynamic"]
    assert "pin the dynamic dimensions" in caught.value.diagnostics[-1].hint


def test_a_quantized_layer_with_the_channels_last() -> None:
    """As TFLite has it: uint8 in NHWC, weights per channel, SAME padding, a sum in int32, a fused ReLU6."""
    rng = np.random.default_rng(0)
    x, w = rng.integers(0, 256, (1, 5, 6, 2), np.uint8), rng.integers(-127, 128, (3, 3, 3, 2), np.int8)
    bias = rng.integers(-500, 500, 3, np.int32)
    x_scale, x_zero, w_scales = 0.02, 128, np.float32([0.01, 0.02, 0.005])
    y_scale, y_zero = np.float32(6 / 255), np.uint8(0)

    window = Window((3, 3), (2, 2), (1, 1), ())
    window = window.with_pads(conv_pool.same_padding_widths((5, 6), window))
    assert window.pads == (1, 0, 1, 1)
    data = QuantizedTensor(g.constant(x), g.constant(x_scale, "float32"), g.constant(x_zero, "int32"))
    weight = QuantizedTensor(g.constant(w), g.constant(w_scales), g.constant(0, "int32"))
    layouts = {"data_layout": "NHWC", "kernel_layout": "OHWI", "out_dtype": "int32"}
    terms = quantization.qnn_zero_points_and_scales(data, weight)
    sums = conv_pool.build_convolution(
        data.data, weight.data, window, g.constant(bias), zero_points_and_scales=terms, **layouts
    )
    onto = OutputQuantization(g.constant(y_scale), g.constant(y_zero, "int32"), DType("uint8"))
    stored = quantization.requantize(sums, quantization.product_scale(data, weight), onto, axis=3)
    kept = QuantizedTensor(stored, onto.scale, onto.zero).dequantized_expr
    assert isinstance(kept, Call) and kept.args[0] is stored  # what weights stand for is not worked out at once
    real = evaluate_constant_call(kept)

    padded = np.pad((x.astype(np.float64) - x_zero) * x_scale, ((0, 0), (1, 1), (0, 1), (0, 0)))
    views = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))[:, ::2, ::2]
    weights = w * w_scales[:, None, None, None].astype(np.float64)
    wanted = np.einsum("bijcyx,oyxc->bijo", views, weights) + bias * x_scale * w_scales
    assert isinstance(real, Constant) and real.data.shape == (1, 3, 3, 3)
    np.testing.assert_allclose(real.data, np.clip(wanted, 0, 6), atol=0.51 * y_scale)
    clipped = relu6(g.constant(wanted, "float32"))
    assert isinstance(clipped, Constant) and (np.abs(clipped.data - real.data) <= 0.51 * y_scale).all()
