# SPDX-License-Identifier: Apache-2.0
"""ConvertLayout: the tutorial's numbers, every operator on reordered tensors, and compiled code in NHWC."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from passes.graphs import checked, module_of, noise, ops, random_inputs, var

import aotc
from aotc import relay
from aotc.ir.diagnostics import AotcError, AotcValueError
from aotc.ir.dtype import DType
from aotc.ir.instrument import PassProfile, PassTimingInstrument
from aotc.ir.op import AxisMap
from aotc.ir.transform import PassContext, Sequential
from aotc.ir.types import TensorType
from aotc.relay.binding import bind_params_by_name
from aotc.relay.expr import Call, Constant, Expr, If, Let, Tuple, TupleGetItem, Var, typed_op_call
from aotc.relay.instrument.op_count_changes import OpDifference
from aotc.relay.interpreter import evaluate
from aotc.relay.module import IRModule
from aotc.relay.op import OPERATORS_BY_NAME
from aotc.relay.op.binary_elementwise import add, multiply
from aotc.relay.op.concat_split import concatenate, split
from aotc.relay.op.conv import Conv2DAttrs, conv1d, conv2d, conv3d
from aotc.relay.op.conv_transpose import conv2d_transpose
from aotc.relay.op.elementwise_unary import relu, tanh
from aotc.relay.op.layout import LayoutTransformAttrs, layout_transform
from aotc.relay.op.opdef import Accuracy, OpDef, Sample
from aotc.relay.op.pad import pad
from aotc.relay.op.pool import avg_pool2d, max_pool1d, max_pool2d, max_pool3d
from aotc.relay.op.reduce import argmax, mean
from aotc.relay.op.reduce import sum as sum_
from aotc.relay.op.shape import reshape, squeeze, transpose
from aotc.relay.op.slice import strided_slice
from aotc.relay.op.softmax import softmax
from aotc.relay.structural_equality import structural_equal
from aotc.relay.testing import dcgan, mlp, mobilenet, resnet, squeezenet
from aotc.relay.transform import ConvertLayout, FoldConstant
from aotc.relay.transform.convert_layout_rules import AxisOrder, LayoutPlan, is_equivalent_up_to_axis_order
from aotc.relay.visitor import post_order

FACTS = json.loads((Path(__file__).parents[1] / "relay" / "golden" / "facts.json").read_text(encoding="utf-8"))
WORKLOADS: dict[str, Callable[[], tuple[IRModule, dict[str, Any]]]] = {
    "mlp": lambda: mlp.get_workload(1),
    "resnet18": lambda: resnet.get_workload(num_layers=18),
    "mobilenet": lambda: mobilenet.get_workload(),
    "dcgan": lambda: dcgan.get_workload(1),
    "squeezenet": lambda: squeezenet.get_workload(1),
}
NHWC = ConvertLayout({"nn.conv2d": ["NHWC", "HWIO"]})


def bound(name: str) -> IRModule:
    module, params = WORKLOADS[name]()
    return module.with_function("main", bind_params_by_name(module.main, params))


def transforms(module: IRModule) -> list[str]:
    calls = [n for n in post_order(module.main) if isinstance(n, Call) and isinstance(n.attrs, LayoutTransformAttrs)]
    return [f"{a.src_layout}>{a.dst_layout}" for a in (n.attrs for n in calls) if isinstance(a, LayoutTransformAttrs)]


# --- quantized convolutions, and Relay's name of those in blocks


@pytest.mark.parametrize("kernel", ["HWIO", "IHWO"])
@pytest.mark.parametrize("name", ["conv2d", "conv2d_transpose"])
def test_quantized_convolutions(name: str, kernel: str) -> None:
    """What follows finds the channels where they are now."""
    q, rng = relay.qnn.op, np.random.default_rng(3)
    shape = {"H": 3, "W": 3, "I": 4, "O": 5}
    w = Constant(rng.integers(-90, 90, [shape[c] for c in kernel]).astype(np.int8))
    scales = Constant(np.linspace(0.01, 0.2, 5, dtype=np.float32))
    zero, one = Constant(np.int32(-3)), Constant(np.float32(0.5))
    x = var("x", 2, 6, 7, 4, dtype="int8")
    layouts = {"data_layout": "NHWC", "kernel_layout": kernel, "padding": (1, 1)}
    sums = getattr(q, name)(x, w, zero, Constant(np.int32(0)), one, scales, **layouts)
    y = q.requantize(sums, scales, Constant(np.int32(0)), one, zero, axis=3, out_dtype="int8")
    result = checked(ConvertLayout({f"qnn.{name}": ["NCHW", "default"]}), module_of(q.dequantize(y, one, zero), x))
    found = [n.attrs for n in post_order(result.main) if isinstance(n, Call)]
    assert tuple(a[k] for a, k in zip(found[2:4], ("data_layout", "axis"), strict=True)) == ("NCHW", 1)
    assert transforms(result).count("NCHW>NHWC") == 1


def test_quantized_convolutions_have_no_blocks() -> None:
    x, w = var("x", 1, 8, 6, 6, dtype="int8"), var("w", 8, 8, 3, 3, dtype="int8")
    pairs = [Constant(np.int32(0))] * 2 + [Constant(np.float32(1))] * 2
    module = module_of(relay.qnn.op.conv2d(x, w, *pairs), x, w)
    checked(ConvertLayout({"qnn.conv2d": ["NCHW4c", "OIHW4i4o"]}), module)


@pytest.mark.parametrize("layout", ["NHWC", "NCHW4c"])
@pytest.mark.parametrize("name", ["roi_align", "roi_pool"])
def test_regions_follow_their_data(name: str, layout: str) -> None:
    x, regions = var("x", 1, 4, 9, 9), Constant(np.array([[0, 1, 2, 7, 6], [0, 0, 0, 8, 8]], np.float32))
    more = {"sample_ratio": 2} if name == "roi_align" else {}
    y = getattr(relay.vision, name)(conv2d(x, noise(4, 4, 3, 3), padding=(1, 1)), regions, (3, 3), 1.0, **more)
    desired = [layout, "default" if layout.isalpha() else "OIHW4i4o"]
    result = checked(ConvertLayout({"nn.conv2d": desired}), module_of(relu(y), x), atol=1e-4)
    (cells,) = (n for n in post_order(result.main) if isinstance(n, Call) and str(n.op) == f"vision.{name}")
    assert cells.attrs["layout"] == ("NHWC" if layout == "NHWC" else "NCHW")


def test_relays_name_of_convolutions_in_blocks() -> None:
    x, w = var("x", 1, 8, 6, 6), var("w", 16, 8, 3, 3)
    result = ConvertLayout({"nn.conv2d": ["NCHW8c", "OIHW8i8o"]})(module_of(conv2d(x, w), x, w))
    how: dict[str, Any] = {"channels": 16, "kernel_size": (3, 3), "kernel_layout": "OIHW8i8o"}
    blocks = layout_transform(x, "NCHW", "NCHW8c"), layout_transform(w, "OIHW", "OIHW8i8o")
    wanted = layout_transform(relay.nn.contrib_conv2d_nchwc(*blocks, **how), "NCHW8c", "NCHW")
    assert structural_equal(result, module_of(wanted, x, w))


# --- Relay's numbers


@pytest.mark.parametrize("kernel", ["HWIO", "OHWI"])
@pytest.mark.parametrize("name", WORKLOADS)
def test_operator_counts_of_workloads(name: str, kernel: str) -> None:
    with PassContext(opt_level=3):
        passes = [FoldConstant(), ConvertLayout({"nn.conv2d": ["NHWC", kernel]}), FoldConstant()]
        result = Sequential(passes)(bound(name))
    assert ops(result) == FACTS[name][f"ConvertLayout(conv2d NHWC/{kernel})+FoldConstant"]


def test_the_tutorials_sequence_on_resnet(caplog: pytest.LogCaptureFixture) -> None:
    differ, timer = OpDifference(), PassTimingInstrument()
    with PassContext(opt_level=3, instruments=[differ, timer]), caplog.at_level(logging.WARNING, "aotc.pass"):
        Sequential([FoldConstant(), NHWC, FoldConstant()])(bound("resnet18"))
        changes = differ.get_pass_to_op_diff()
        profiles = timer.profiles
    assert changes == [
        (1, "CanonicalizeOps", {"add": 1, "nn.bias_add": -1}),
        (1, "ConvertLayout", {"expand_dims": 1, "layout_transform": 23}),
        (1, "FoldConstant", {"expand_dims": -1, "layout_transform": -21}),
        (0, "sequential", {"add": 1, "layout_transform": 2, "nn.bias_add": -1}),
    ]
    infer = ("InferType", ())
    assert [tree(p) for p in profiles] == [
        (
            "sequential",
            (
                ("FoldConstant", (infer,)),
                infer,
                ("CanonicalizeOps", (infer,)),
                ("ConvertLayout", (infer,)),
                ("FoldConstant", (infer,)),
            ),
        )
    ]
    assert [r.getMessage() for r in caplog.records] == [
        "Desired layout(s) not specified for op: nn.max_pool2d",
        "Desired layout(s) not specified for op: nn.global_avg_pool2d",
    ]


def tree(profile: PassProfile) -> tuple[Any, ...]:
    return profile.name, tuple(tree(p) for p in profile.children)


@pytest.mark.parametrize("make", [resnet.get_workload, mobilenet.get_workload], ids=["resnet", "mobilenet"])
def test_workloads_compute_the_same(make: Callable[..., Any]) -> None:
    module, params = make(image_shape=(3, 32, 32), num_classes=10)
    module = module.with_function("main", bind_params_by_name(module.main, params))
    result = checked(NHWC, module)
    assert transforms(result).count("NCHW>NHWC") == transforms(result).count("NHWC>NCHW") == 1


# --- every operator

_POOLS = {3: max_pool1d, 4: max_pool2d, 5: max_pool3d}
_LAYOUTS = {"channels-last": {3: "NWC", 4: "NHWC", 5: "NDHWC"}, "batch-last": {3: "WCN", 4: "HWCN", 5: "CHNDW"}}
_DIGITS = {Accuracy.EXACT: 1e-7, Accuracy.ROUNDING: 1e-5, Accuracy.LOOSE: 1e-2}


def reordered(sample: Sample, op: OpDef) -> tuple[IRModule, list[Any]] | None:
    """The operator on arguments that pools of single elements bring into the wanted order."""
    params: list[Var] = []
    values: list[Any] = []

    def argument(value: Any) -> Expr:
        if isinstance(value, tuple):
            return Tuple([argument(v) for v in value])
        array = np.asarray(value)
        params.append(Var(f"v{len(params)}", TensorType(array.shape, DType.from_numpy(array))))
        values.append(array)
        pool = _POOLS.get(array.ndim) if array.size else None
        return params[-1] if pool is None else pool(params[-1], (1,) * (array.ndim - 2))

    body = typed_op_call(op, [argument(a) for a in sample.args], sample.attrs)
    pooled = any(isinstance(n, Call) and "pool" in str(n.op) for n in post_order(Tuple(body.args)))
    return (module_of(body, *params), values) if pooled else None


@pytest.mark.parametrize("layouts", _LAYOUTS.values(), ids=_LAYOUTS)
@pytest.mark.parametrize("op", OPERATORS_BY_NAME.values(), ids=OPERATORS_BY_NAME)
def test_every_operator_means_the_same_on_reordered_tensors(op: OpDef, layouts: dict[int, str]) -> None:
    pass_ = ConvertLayout({f"nn.max_pool{rank - 2}d": [layout] for rank, layout in layouts.items()})
    for sample in op.samples():
        built = reordered(sample, op)
        if built is None:
            continue
        module, values = built
        before, after = evaluate(module, *values), evaluate(pass_(module), *values)
        assert isinstance(before, tuple) == isinstance(after, tuple)
        pairs = zip(before, after, strict=True) if isinstance(before, tuple) else [(before, after)]
        for a, b in pairs:
            assert (a.dtype, a.shape) == (b.dtype, b.shape)
            digits = _DIGITS[sample.accuracy]
            np.testing.assert_allclose(b.astype(np.float64), a.astype(np.float64), rtol=digits, atol=digits)


X = var("x", 1, 4, 6, 5)


def conv(x: Expr, seed: int = 1, **options: Any) -> Expr:
    return conv2d(x, noise(4, 4, 3, 3, seed=seed), padding=(1, 1), **options)


PASSED: dict[str, Callable[[Expr], Expr]] = {
    "relu": relu,
    "a vector of channels": lambda x: multiply(x, noise(4, 1, 1)),
    "a row": lambda x: add(noise(5), x),
    "a scalar": lambda x: add(x, noise()),
    "another tensor": lambda x: add(tanh(x), conv(x, 2)),
    "concatenate": lambda x: concatenate(Tuple((x, conv(x, 2))), axis=1),
    "split and concatenate": lambda x: concatenate(split(x, 2, axis=1), axis=-3),
    "pad": lambda x: pad(x, ((0, 0), (1, 0), (0, 2), (3, 0))),
    "strided_slice": lambda x: strided_slice(x, (0, 1), (1, 3)),
    "softmax": lambda x: softmax(x, axis=1),
    "mean": lambda x: mean(x, axis=(2, 3), keepdims=True),
    "pool": lambda x: avg_pool2d(x, (2, 3), padding=(1, 0)),
}


@pytest.mark.parametrize("name", PASSED)
def test_the_order_passes_through(name: str) -> None:
    """One transform in front, one behind: none in between."""
    result = checked(Sequential([NHWC, FoldConstant()]), module_of(PASSED[name](conv(X)), X))
    assert transforms(result) == ["NCHW>NHWC", "NHWC>NCHW"]


ENDS: dict[str, Callable[[Expr], Expr]] = {
    "transpose": lambda x: transpose(x, (0, 3, 1, 2)),
    "sum over space": lambda x: sum_(x, axis=(2, 3)),
    "squeeze": lambda x: squeeze(mean(x, axis=(2, 3), keepdims=True), axis=(2, 3)),
    "argmax over channels": lambda x: argmax(x, axis=1),
}


@pytest.mark.parametrize("name", ENDS)
def test_the_order_ends_without_a_transform(name: str) -> None:
    """What is left of the axes, if anything, is in order."""
    result = checked(Sequential([NHWC, FoldConstant()]), module_of(ENDS[name](conv(X)), X))
    assert transforms(result) == ["NCHW>NHWC"]


@pytest.mark.parametrize(
    "end",
    [
        lambda x: reshape(x, (-1,)),
        lambda x: argmax(x, axis=(1, 2, 3)),
        lambda x: conv2d_transpose(x, noise(4, 2, 3, 3)),
    ],
)
def test_operators_that_must_see_the_original_order(end: Callable[[Expr], Expr]) -> None:
    result = checked(Sequential([NHWC, FoldConstant()]), module_of(end(conv(X)), X))
    assert transforms(result) == ["NCHW>NHWC", "NHWC>NCHW"]


# --- convolutions


def test_kernels_in_their_default_layout() -> None:
    body = conv2d(conv(X), noise(4, 1, 3, 3), groups=4)
    result = checked(ConvertLayout({"nn.conv2d": ["NHWC", "default"]}), module_of(body, X))
    assert {"OIHW>HWIO", "OIHW>HWOI"} < set(transforms(result))
    assert transforms(checked(ConvertLayout({"nn.conv2d": ["NCHW", "default"]}), module_of(body, X))) == []


def test_other_convolutions() -> None:
    line, volume = var("l", 2, 3, 7), var("v", 1, 2, 4, 3, 5)
    body = Tuple(
        (
            conv1d(line, noise(4, 3, 3), padding=(1,)),
            conv3d(volume, noise(3, 2, 2, 2, 2), strides=(1, 2, 1)),
            conv2d_transpose(X, noise(4, 2, 3, 2), strides=(2, 1)),
        )
    )
    layouts = {"nn.conv1d": ["NWC", "WIO"], "nn.conv3d": ["NDHWC", "default"], "nn.conv2d_transpose": ["NHWC", "HWIO"]}
    result = checked(ConvertLayout(layouts), module_of(body, line, volume, X))
    assert {"OIW>WIO", "OIDHW>DHWIO", "IOHW>HWIO"} < set(transforms(result))


def test_offsets_of_deformed_taps_lie_as_the_data_does() -> None:
    offset = var("offset", 1, 36, 6, 5)
    deformed = relay.nn.deformable_conv2d(
        X, offset, noise(4, 2, 3, 3), padding=(1, 1), deformable_groups=2, groups=2, channels=4, kernel_size=(3, 3)
    )
    module = module_of(relu(deformed), X, offset)
    result = checked(ConvertLayout({"nn.deformable_conv2d": ["NHWC", "default"]}), module, atol=1e-4)
    assert sorted(transforms(result)) == ["NCHW>NHWC", "NCHW>NHWC", "NHWC>NCHW", "OIHW>HWIO"]
    back = checked(ConvertLayout({"nn.deformable_conv2d": ["NCHW", "OIHW"]}), result, atol=1e-4)
    assert transforms(back) == []
    blocks = ConvertLayout({"nn.deformable_conv2d": ["NCHW4c", "OIHW4i4o"]})  # it has none
    assert transforms(checked(blocks, module, atol=1e-4)) == []


def test_a_kernel_in_blocks() -> None:
    body = conv2d(X, noise(6, 4, 3, 3), padding=(1, 1))
    result = checked(ConvertLayout({"nn.conv2d": ["NCHW", "OIHW4o"]}), module_of(body, X))
    (attrs,) = [n.attrs for n in post_order(result.main) if isinstance(n, Call) and isinstance(n.attrs, Conv2DAttrs)]
    assert (attrs.kernel_layout, attrs.channels, attrs.kernel_size) == ("OIHW4o", 6, (3, 3))
    again = ConvertLayout({"nn.conv2d": ["NHWC", "HWIO"]})  # a packed kernel stays packed
    assert "OIHW>OIHW4o" in transforms(checked(again, result))


def test_a_result_in_another_layout_than_the_data() -> None:
    body = conv(X, out_layout="NHWC")
    result = checked(ConvertLayout({"nn.conv2d": ["NHWC", "default"]}), module_of(softmax(body, axis=-1), X))
    assert transforms(result) == ["NCHW>NHWC", "OIHW>HWIO"]


def test_there_and_back() -> None:
    module = module_of(relu(conv(relu(conv(X)), 2)), X)
    there = checked(NHWC, module)
    back = checked(Sequential([ConvertLayout({"nn.conv2d": ["NCHW", "OIHW"]}), FoldConstant()]), there)
    assert ops(back) == ops(module)
    elsewhere = checked(ConvertLayout({"nn.conv2d": ["HWNC", "OIHW"]}), there)
    assert transforms(elsewhere) == ["NCHW>HWNC", "HWNC>NCHW"]


def test_transforms_of_the_program_are_merged() -> None:
    body = conv2d(layout_transform(X, "NCHW", "NHWC"), noise(3, 3, 4, 2), data_layout="NHWC", kernel_layout="HWIO")
    result = checked(ConvertLayout({"nn.conv2d": ["NCHW", "HWIO"]}), module_of(body, X))
    assert transforms(result) == ["NCHW>NHWC"]  # of the result
    assert X in [
        a
        for n in post_order(result.main)
        if isinstance(n, Call) and n.op is OPERATORS_BY_NAME["nn.conv2d"]
        for a in n.args
    ]


# --- control flow and identity


def test_values_of_control_flow_are_as_they_were() -> None:
    flag, v = Var("flag", TensorType((), "bool")), Var("v")
    both = split(conv(X), 2, axis=1)
    body = Let(v, conv(X), If(flag, relu(v), add(v, concatenate(both, axis=1))))
    module = module_of(body, X, flag)
    result = NHWC(module)
    data = random_inputs(module_of(X, X))
    for value in (True, False):
        inputs = (*data, np.asarray(value))
        np.testing.assert_allclose(evaluate(result, *inputs), evaluate(module, *inputs), rtol=1e-5, atol=1e-5)


def test_a_module_without_such_operators_stays_the_same() -> None:
    module = module_of(softmax(relu(add(X, noise(5)))), X)
    assert NHWC(module) is module
    assert ConvertLayout({})(module) is module


def test_whole_tuples_come_out_as_they_were() -> None:
    both = Tuple((conv(X), X))
    result = checked(NHWC, module_of(both, X))
    assert transforms(result).count("NHWC>NCHW") == 1
    field = TupleGetItem(Tuple((relu(conv(X)), X)), 0)
    assert transforms(checked(NHWC, module_of(field, X))).count("NHWC>NCHW") == 1


def test_a_plan_must_agree_with_the_axis_map() -> None:
    old = softmax(X, axis=1)
    order = AxisOrder("NCHW", "NHWC")
    x = layout_transform(X, "NCHW", "NHWC")
    assert is_equivalent_up_to_axis_order(old, softmax(x, axis=3), LayoutPlan((order,), (order,), old.attrs))
    assert not is_equivalent_up_to_axis_order(old, softmax(x, axis=1), LayoutPlan((order,), (order,), old.attrs))
    assert old.op.axes(old.attrs, [X.checked_type]) == AxisMap(((0, None, 2, 3),))  # type: ignore[union-attr]


# --- what is asked for


@pytest.mark.parametrize(
    ("layouts", "message"),
    [
        ({"nn.conv2d": ["NHWC"]}, "expected a data and a kernel layout"),
        ({"nn.conv2d": "NHWC"}, "expected a list of layouts"),
        ({"nn.conv2d": ["NCHWc", "OIHW"]}, "layout 'NCHWc' is malformed"),
        ({"nn.conv2d": ["NCH4w", "OIHW"]}, "'NCH4w' is not an order of the axes N, C, H, W"),
        ({"nn.conv2d": ["default", "OIHW"]}, "'default' is not an order"),
        ({"nn.conv2d": ["NHWC", "HWOC"]}, "'HWOC' is not an order of the axes O, I, H, W"),
        ({"nn.conv2d": ["NHWC", "OIHW4"]}, "layout 'OIHW4' is malformed"),
        ({"nn.conv2d_transpose": ["NCHW", "IOW4o"]}, "'IOW4o' is not an order"),
        ({"nn.conv2d": ["HWNC", "default"]}, "no kernel layout is the default"),
        ({"nn.max_pool2d": ["NWC"]}, "is not an order"),
        ({"nn.max_pool2d": ["NHWC", "HWIO"]}, "expected one data layout"),
    ],
)
def test_impossible_layouts_are_refused(layouts: Any, message: str) -> None:
    with pytest.raises(AotcValueError, match=message):
        ConvertLayout(layouts)


def test_a_default_of_what_has_no_kernel_is_left_out() -> None:
    given = ConvertLayout({"nn.max_pool2d": ["NHWC", "default"], "image.resize2d": ["NHWC"]})
    assert dict(given.desired_layouts) == {"nn.max_pool2d": ("NHWC",), "image.resize2d": ("NHWC",)}


def test_a_malformed_kernel_layout_is_refused() -> None:
    with pytest.raises(AotcError, match="malformed"):
        ConvertLayout({"nn.conv2d": ["NHWC", "hwio"]})


def test_operators_without_a_choice_draw_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "aotc.pass"):
        ConvertLayout({"qnn.dense": ["NC"], "nn.dense": ["NC"]})
    assert "The layout of qnn.dense cannot be chosen" in caplog.text
    assert "The layout of nn.dense cannot be chosen" in caplog.text


# --- random graphs, and C


@st.composite
def graphs(draw: st.DrawFn) -> IRModule:
    pool: list[Expr] = [X]
    makers: list[Callable[[Expr, Expr, int], Expr]] = [
        lambda a, b, s: conv(a, s),
        lambda a, b, s: relu(a),
        lambda a, b, s: add(a, b),
        lambda a, b, s: multiply(noise(4, 1, 1, seed=s), a),
        lambda a, b, s: add(a, noise(5, seed=s)),
        lambda a, b, s: max_pool2d(a, (3, 3), padding=(1, 1)),
        lambda a, b, s: softmax(a, axis=s % 4),
        lambda a, b, s: add(a, mean(b, axis=(s % 4,), keepdims=True)),
        lambda a, b, s: strided_slice(concatenate(Tuple((a, b)), axis=1), (s % 4,), (s % 4 + 4,), axes=(1,)),
        lambda a, b, s: transpose(transpose(a, (3, 0, 1, 2)), (1, 2, 3, 0)),
        lambda a, b, s: reshape(reshape(a, (4, 30)), (1, 4, 6, 5)),
    ]
    for _ in range(draw(st.integers(2, 9))):
        a, b = draw(st.sampled_from(pool)), draw(st.sampled_from(pool))
        pool.append(draw(st.sampled_from(makers))(a, b, draw(st.integers(0, 9))))
    return module_of(Tuple((pool[-1], pool[-2])), X)


@settings(max_examples=80, deadline=None)
@given(graphs(), st.sampled_from(["NHWC", "HWNC", "NCHW", "CWHN"]))
def test_random_graphs_mean_the_same(module: IRModule, layout: str) -> None:
    checked(ConvertLayout({"nn.conv2d": [layout, "OHWI"]}), module, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kernel", ["HWIO", "OHWI"])
def test_converted_modules_compile(kernel: str) -> None:
    body = max_pool2d(relu(add(conv(X), noise(4, 1, 1))), (3, 3), (2, 2), (1, 1))
    body = avg_pool2d(conv2d(body, noise(4, 1, 3, 3), groups=4, padding=(1, 1)), (2, 2), padding=(1, 1))
    module = module_of(conv2d(body, noise(20, 2, 1, 1), groups=2), X)
    converted = ConvertLayout({"nn.conv2d": ["NHWC", kernel]})(module)
    (data,) = random_inputs(module)
    for level in (0, 3):
        model = aotc.compile(converted, target="c", opt_level=level, cflags=["-O1"])
        (result,) = model.session().run(None, {"x": data})
        np.testing.assert_allclose(result, evaluate(module, data), rtol=1e-4, atol=1e-4)
