# SPDX-License-Identifier: Apache-2.0
"""ConvertLayout on Relay's workloads, all operators and random graphs, and compiled; see `convert_layout.test`, too."""

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
from aotc.ir.diagnostics import AotcError, AotcValueError
from aotc.ir.dtype import DType
from aotc.ir.instrument import PassProfile, PassTimingInstrument
from aotc.ir.op import AxisMap
from aotc.ir.transform import PassContext, Sequential
from aotc.ir.types import TensorType
from aotc.relay.bind_variables_and_parameters import bind_params_by_name
from aotc.relay.expr import Call, Expr, Tuple, Var, typed_op_call
from aotc.relay.instrument.op_count_changes import OpDifference
from aotc.relay.interpreter import evaluate
from aotc.relay.module import IRModule
from aotc.relay.op import OPERATORS_BY_NAME
from aotc.relay.op.binary_elementwise import add, multiply
from aotc.relay.op.concat_split import concatenate
from aotc.relay.op.conv import conv2d
from aotc.relay.op.elementwise_unary import relu
from aotc.relay.op.layout import LayoutTransformAttrs, layout_transform
from aotc.relay.op.opdef import Accuracy, OpDef, Sample
from aotc.relay.op.pool import avg_pool2d, max_pool1d, max_pool2d, max_pool3d
from aotc.relay.op.reduce import mean
from aotc.relay.op.shape import reshape, transpose
from aotc.relay.op.slice import strided_slice
from aotc.relay.op.softmax import softmax
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


# --- control flow and identity


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
