# SPDX-License-Identifier: Apache-2.0
"""A prequantized network in Relay: its text, operator counts after each pass, values, diagnostics."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import numpy as np
import pytest

import aotc
from aotc import relay
from aotc.contrib import graph_executor
from aotc.ir.diagnostics import AotcError
from aotc.relay.build_module import bind_params_by_name
from aotc.relay.op import OPERATORS_BY_NAME
from aotc.relay.qnn.op import canonicalizations
from aotc.relay.testing import TempOpAttr, run_infer_type

NETWORK = """#[version = "0.0.5"]
def @main(%x: Tensor[(1, 8, 8, 3), float32], %w0: Tensor[(3, 3, 3, 8), int8], %s0: Tensor[(8), float32],
          %r0: Tensor[(8), float32], %b0: Tensor[(8), int32], %w1: Tensor[(3, 3, 8, 1), uint8],
          %w2: Tensor[(10, 8), int8]) {
  %0 = qnn.quantize(%x, 0.02f, 128, out_dtype="uint8");
  %1 = qnn.conv2d(%0, %w0, 128, 0, 0.02f, %s0, padding=[1, 1, 1, 1], channels=8, kernel_size=[3, 3],
                  data_layout="NHWC", kernel_layout="HWIO");
  %2 = nn.bias_add(%1, %b0, axis=3);
  %3 = qnn.requantize(%2, %r0, 0, 0.05f, 3, axis=3, rounding="FLOAT_EVEN", out_dtype="uint8");
  %4 = qnn.conv2d(%3, %w1, 3, 128, 0.05f, 0.01f, padding=[1, 1, 1, 1], groups=8, channels=8, kernel_size=[3, 3],
                  data_layout="NHWC", kernel_layout="HWOI");
  %5 = qnn.requantize(%4, 0.0005f, 0, 0.07f, 100, rounding="TFLITE", out_dtype="uint8");
  %6 = qnn.add(%3, %5, 0.05f, 3, 0.07f, 100, 0.06f, 90);
  %7 = qnn.hardswish(%6, 0.06f, 90, 0.03f, 7);
  %8 = qnn.concatenate((%7, %5), (0.03f, 0.07f), (7, 100), 0.03f, 7, axis=3);
  %9 = strided_slice(%8, begin=[0], end=[8], strides=[1], axes=[3]);
  %10 = qnn.avg_pool2d(%9, 0.03f, 7, 0.03f, 7, pool_size=[8, 8], layout="NHWC");
  %11 = reshape(%10, newshape=[1, 8]);
  %12 = qnn.dense(%11, %w2, 7, 0, 0.03f, 0.01f, units=10);
  %13 = qnn.requantize(%12, 0.0003f, 0, 0.02f, 100, rounding="TONEAREST", out_dtype="uint8");
  %14 = qnn.softmax(%13, 0.02f, 100, 0.00390625f, 0);
  qnn.dequantize(%14, 0.00390625f, 0)
}
"""


def parameters() -> dict[str, Any]:
    rng = np.random.default_rng(5)
    scales = rng.uniform(0.001, 0.01, 8).astype(np.float32)
    return {
        "w0": rng.integers(-127, 128, (3, 3, 3, 8)).astype(np.int8),
        "s0": scales,
        "r0": np.float32(0.02) * scales,
        "b0": rng.integers(-900, 900, 8).astype(np.int32),
        "w1": rng.integers(0, 256, (3, 3, 8, 1)).astype(np.uint8),
        "w2": rng.integers(-127, 128, (10, 8)).astype(np.int8),
    }


@pytest.fixture(scope="module")
def network() -> aotc.IRModule:
    module = relay.fromtext(NETWORK)
    return relay.transform.InferType()(aotc.IRModule.from_expr(bind_params_by_name(module["main"], parameters())))


def counts(module: aotc.IRModule) -> dict[str, int]:
    return dict(relay.analysis.list_op_freqs(module["main"]))


def real(x: np.ndarray, scale: float, zero: int) -> np.ndarray:
    return (x.astype(np.float64) - zero) * scale


def convolved(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """NHWC by HWIO in float64, padded by one on all sides."""
    wide = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    parts = [wide[:, i : i + 8, j : j + 8] @ w[i, j] for i in range(3) for j in range(3)]
    return np.asarray(sum(parts))


def onto(y: np.ndarray, scale: float, zero: int) -> np.ndarray:
    return np.clip(np.rint(y / scale) + zero, 0, 255)


def in_floats(x: np.ndarray) -> np.ndarray:
    """The network with quantized tensors as real numbers in float64, rounded where the network rounds."""
    p = parameters()
    q = real(onto(x.astype(np.float64), 0.02, 128), 0.02, 128)
    sums = convolved(q, p["w0"] * p["s0"].astype(np.float64)) + p["b0"] * p["r0"].astype(np.float64)
    first = real(onto(sums, 0.05, 3), 0.05, 3)
    depthwise = np.zeros((3, 3, 8, 8))
    depthwise[:, :, range(8), range(8)] = real(p["w1"][..., 0], 0.01, 128)
    second = real(onto(convolved(first, depthwise), 0.07, 100), 0.07, 100)
    both = real(onto(first + second, 0.06, 90), 0.06, 90)
    gated = real(onto(both * np.clip(both + 3, 0, 6) / 6, 0.03, 7), 0.03, 7)
    mean = real(onto(gated.mean((1, 2)), 0.03, 7), 0.03, 7)
    logits = real(onto(mean @ (p["w2"] * 0.01).T, 0.02, 100), 0.02, 100)
    e = np.exp(logits - logits.max())
    return np.asarray(np.rint(e / e.sum() * 256) / 256)


def test_text_reads_back(network: aotc.IRModule) -> None:
    text = network.astext()
    assert aotc.ir.structural_equal(relay.fromtext(text), network)
    said = [line.split(" = ")[-1] for line in text.splitlines() if "TFLITE" in line]
    assert [re.sub(r" /\*.*?\*/", "", line) for line in said] == [
        'qnn.requantize(%4, 0.0005f, 0, 0.07f, 100, rounding="TFLITE", out_dtype="uint8");'
    ]


def test_operators_after_each_pass(network: aotc.IRModule) -> None:
    before = counts(network)
    names = [
        "quantize",
        "conv2d",
        "requantize",
        "add",
        "hardswish",
        "concatenate",
        "avg_pool2d",
        "dense",
        "softmax",
        "dequantize",
    ]
    assert {name: n for name, n in before.items() if name.startswith("qnn.")} == {
        **dict.fromkeys((f"qnn.{name}" for name in names), 1),
        "qnn.conv2d": 2,
        "qnn.requantize": 3,
    }
    after = relay.qnn.transform.CanonicalizeOps()(network)
    left = counts(after)
    # what is left of the dialect is said by nothing else
    assert all(OPERATORS_BY_NAME[name].expand is None for name in left if name.startswith("qnn."))
    wanted = {"nn.conv2d": 2, "nn.dense": 1, "qnn.product": 4, "nn.bias_add": 1, "sum": 1}
    # tables of the hard swish and of exponentials; what is joined is brought to its scale by a factor
    wanted |= {"take": 2, "subtract": 9, "right_shift": 1, "qnn.scale_twice": 1, "nn.avg_pool2d": 1}
    assert {name: left.get(name, 0) for name in wanted} == wanted
    assert "nn.pad" not in left
    assert relay.qnn.transform.CanonicalizeOps()(after) is after
    assert relay.qnn.transform.CanonicalizeOps().info.name == "qnn.CanonicalizeOps"


def test_operands_stay_narrow(network: aotc.IRModule) -> None:
    found: Counter[str] = Counter()

    def look(node: Any) -> None:
        if isinstance(node, relay.Call) and str(node.op) in ("nn.conv2d", "nn.dense"):
            found.update(a.checked_type.dtype for a in node.args)

    relay.analysis.post_order_visit(relay.qnn.transform.CanonicalizeOps()(network)["main"], look)
    assert found == {"uint8": 3, "int8": 3}


def test_values_at_every_level(network: aotc.IRModule) -> None:
    x = np.random.default_rng(1).standard_normal((1, 8, 8, 3)).astype(np.float32)
    want = relay.create_executor("debug", network, aotc.cpu(), "llvm").evaluate()(x).numpy()
    assert np.abs(want - in_floats(x)).max() <= 2 / 256
    assert want.max() > 0.2
    ways = [*((level, "llvm", "fast") for level in range(5)), (0, "c", "fast"), (3, "c", "fast")]
    for level, target, accuracy in (*ways, (3, "llvm", "strict"), (3, "llvm", "reproducible")):
        with aotc.transform.PassContext(opt_level=level, config={"compile.accuracy": accuracy}):
            library = relay.build(network, target)
        module = graph_executor.GraphModule(library["default"](aotc.cpu()))
        module.run(x=x)
        np.testing.assert_array_equal(module.get_output(0).numpy(), want)


# --- what is wrong


RANGE = "is outside of uint8, which holds 0 to 255"
WRONG = {
    ("%x, 0.02f", "%x, 0f"): "qnn.quantize: output_scale is 0: not positive and finite",
    ("0.02f, 128, out", "0.02f, 256, out"): f"qnn.quantize: output_zero_point {RANGE}: 256",
    ("3, 128, 0.05f", "3, 128, -0.05f"): "qnn.conv2d: input_scale is -0.05: not positive and finite",
    ("0.07f, 100, rounding", "0.07f, -1, rounding"): f"qnn.requantize: output_zero_point {RANGE}: -1",
    ("(7, 100)", "(7, 300)"): f"qnn.concatenate: input_zero_point {RANGE}: 300",
}


@pytest.mark.parametrize(("good", "bad"), WRONG)
def test_constants_that_are_none(good: str, bad: str) -> None:
    text = NETWORK.replace(good, bad)
    assert text != NETWORK
    module = relay.fromtext(text)
    bound = aotc.IRModule.from_expr(bind_params_by_name(module["main"], parameters()))
    with pytest.raises(AotcError, match=re.escape(WRONG[good, bad])) as caught:
        relay.build(bound, "llvm")
    (found,) = caught.value.diagnostics
    line = text[: text.index(bad)].count("\n") + 1
    assert f":{line}:" in str(found.span)


def test_all_that_is_wrong_is_said_at_once() -> None:
    bad = NETWORK.replace("%x, 0.02f, 128", "%x, 0.02f, 256").replace("0.07f, 100, 0.06f, 90", "0.07f, 100, 0f, 90")
    module = relay.fromtext(bad)
    bound = aotc.IRModule.from_expr(bind_params_by_name(module["main"], parameters()))
    with pytest.raises(AotcError) as caught:
        relay.build(bound, "c")
    assert [d.message.split(":")[0] for d in caught.value.diagnostics] == ["qnn.quantize", "qnn.add"]


def test_an_axis_that_does_not_match() -> None:
    bad = NETWORK.replace(
        "%3 = qnn.requantize(%2, %r0, 0, 0.05f, 3, axis=3", "%3 = qnn.requantize(%2, %r0, 0, 0.05f, 3, axis=0"
    )
    with pytest.raises(AotcError, match=r"qnn.requantize: input_scale has 8 values, but axis 0 of .* has 1"):
        relay.fromtext(bad)


def test_functions_take_numbers() -> None:
    x = relay.var("x", shape=(2, 3))
    call = relay.qnn.op.quantize(x, 0.5, 3, out_dtype="uint8")
    assert call.checked_type == relay.TensorType((2, 3), "uint8")
    again = relay.qnn.op.dequantize(call, relay.const(0.5), relay.const(3))
    assert again.checked_type == relay.TensorType((2, 3), "float32")
    assert run_infer_type(again).checked_type == again.checked_type


@pytest.mark.parametrize(
    ("shapes", "call"),
    [
        (("(?, 10), uint8", "(1), uint8"), "qnn.softmax(%x, 0.1f, 3, 0.00390625f, 0)"),
        (("(?, 3, 5), uint8", "(?, 4, 5), uint8"), "qnn.batch_matmul(%x, %y, 3, 5, 0.1f, 0.2f)"),
        (
            ("(?, 2, 5, 5), uint8", "(4, 2, 3, 3), uint8"),
            "qnn.conv2d(%x, %y, 3, 5, 0.1f, 0.2f, channels=4, kernel_size=[3, 3])",
        ),
    ],
)
def test_batches_that_only_runs_know(shapes: tuple[str, str], call: str) -> None:
    x, y = (f"Tensor[{shape}]" for shape in shapes)
    module = relay.fromtext(f'#[version = "0.0.5"]\ndef @main(%x: {x}, %y: {y}) {{ {call} }}')
    done = relay.qnn.transform.CanonicalizeOps()(module)
    assert call.partition("(")[0] not in relay.analysis.list_op_freqs(done["main"])


def test_an_axis_that_only_runs_know() -> None:
    weights = "%w: Tensor[(5, ?), uint8]"
    text = f"def @main(%x: Tensor[(2, ?), uint8], {weights}) {{ qnn.dense(%x, %w, 3, 7, 0.1f, 0.1f, units=5) }}"
    with pytest.raises(AotcError, match=r"axis 1 of .* has a size that is not known at compile time"):
        relay.qnn.transform.CanonicalizeOps()(relay.fromtext(f'#[version = "0.0.5"]\n{text}'))


def test_rounding_by_config() -> None:
    x = relay.var("x", shape=(3,), dtype="int32")
    with relay.qnn.op.requantize_config(rounding="TONEAREST"):
        calls = [relay.qnn.op.requantize(x, 1.0, 0, 16.0, 0, rounding=r) for r in ("None", "UPWARD")]
    calls.append(relay.qnn.op.requantize(x, 1.0, 0, 16.0, 0, compute_dtype="float32"))
    data = np.array([-8, 8, -24], "int32")
    run = relay.create_executor("graph", target="c").evaluate(relay.Function([x], relay.Tuple(calls)))
    assert [r.numpy().tolist() for r in run(data)] == [[-1, 1, -2], [0, 1, -1], [0, 1, -1]]
    with pytest.raises(AotcError, match="unknown rounding 'DOWN'"):
        relay.qnn.op.requantize_config(rounding="DOWN")


def test_tables_of_functions() -> None:
    every = relay.const(np.arange(256).astype("uint8").view("int8"))
    made = [relay.const(v) for v in (0.5, 0, 1.0, 3)]
    table = canonicalizations.create_integer_lookup_op(every, lambda x: 2 * x, *made, in_dtype="int8", out_dtype="int8")
    wanted = np.clip(every.data.numpy().astype(int) + 3, -128, 127)
    np.testing.assert_array_equal(canonicalizations.run_const_expr(table), wanted)
    x = relay.var("s", shape=())
    with pytest.raises(AotcError, match="needs one constant scale"):
        canonicalizations.create_integer_lookup_op(every, lambda x: x, x, *made[1:], in_dtype="int8")
    with pytest.raises(AotcError, match="not int16"):
        canonicalizations.create_integer_lookup_op(every, lambda x: x, *made, in_dtype="int16")


def test_legalize_of_the_dialect() -> None:
    x = relay.var("x", shape=(4,), dtype="uint8")
    relu = relay.qnn.op.leaky_relu(
        x, alpha=0.5, input_scale=1.0, input_zero_point=4, output_scale=1.0, output_zero_point=4
    )
    mod = aotc.IRModule.from_expr(relu)
    with TempOpAttr("qnn.leaky_relu", "FTVMQnnLegalize", lambda attrs, inputs, types: inputs[0]):
        assert relay.qnn.transform.Legalize()(mod)["main"].body is mod["main"].params[0]
    assert relay.qnn.transform.Legalize()(mod)["main"].body.op.name == "qnn.leaky_relu"
