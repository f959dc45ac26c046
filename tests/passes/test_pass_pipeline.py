# SPDX-License-Identifier: Apache-2.0
"""Whole pipelines: operator counts of well-known networks, values kept at every level, long chains, no mutation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from passes.graphs import const, module_of, noise, ops, random_inputs, var

from aotc.ir.instrument import PassTimingInstrument
from aotc.ir.transform import PassContext, Sequential
from aotc.relay.bind_variables_and_parameters import bind_params_by_name
from aotc.relay.expr import Call, Constant, Expr, Function
from aotc.relay.instrument.op_count_changes import count_op_calls
from aotc.relay.instrument.verifier import Verifier
from aotc.relay.interpreter import evaluate
from aotc.relay.module import IRModule
from aotc.relay.op.binary_elementwise import add, multiply, subtract
from aotc.relay.op.concat_split import concatenate
from aotc.relay.op.conv import conv2d
from aotc.relay.op.elementwise_unary import exp, negative, relu, tanh
from aotc.relay.op.pool import max_pool2d
from aotc.relay.op.shape import reshape, transpose
from aotc.relay.op.softmax import softmax
from aotc.relay.testing import mobilenet, resnet
from aotc.relay.transform import (
    PASSES,
    CanonicalizeOps,
    EliminateCommonSubexpr,
    FoldConstant,
    FoldScaleAxis,
    SimplifyInference,
)
from aotc.relay.transform.pipeline import optimize, pipeline
from aotc.relay.visitor import post_order
from aotc.tir.target import C, get_target
from tests.call_counts import grows_linearly
from tests.share import share_of_each

V4 = get_target("x86-64-v4")


def bound(workload: tuple[IRModule, dict[str, Any]]) -> IRModule:
    """A workload with its parameters baked in; those of norms are random, so that no fold is trivial."""
    module, params = workload
    rng = np.random.default_rng(3)
    for name, value in params.items():
        if name.endswith(("gamma", "moving_var")):
            params[name] = rng.uniform(0.5, 1.5, value.shape).astype(value.dtype)
        elif name.endswith(("beta", "moving_mean", "bias")):
            params[name] = rng.uniform(-0.2, 0.2, value.shape).astype(value.dtype)
    return module.with_function("main", bind_params_by_name(module.main, params))


@pytest.fixture(scope="module")
def small_resnet() -> IRModule:
    return bound(resnet.get_workload(image_shape=(3, 32, 32), num_classes=10))


@pytest.fixture(scope="module")
def result_of_resnet(small_resnet: IRModule) -> Any:
    """The result of the small ResNet on its random inputs, before any pass."""
    return evaluate(small_resnet, *random_inputs(small_resnet))


# --- the counts of the original system

RESNET_18 = {
    "add": 8, "nn.batch_flatten": 1, "nn.batch_norm": 19, "nn.bias_add": 1, "nn.conv2d": 21, "nn.dense": 1,
    "nn.global_avg_pool2d": 1, "nn.max_pool2d": 1, "nn.relu": 18, "nn.softmax": 1,
}  # fmt: skip


def test_resnet_18_has_the_known_counts() -> None:
    module, params = resnet.get_workload()
    assert len(params) == 99
    module = module.with_function("main", bind_params_by_name(module.main, params))
    counts = dict(RESNET_18)
    assert ops(module) == counts
    with PassContext(opt_level=3):
        module = Sequential([SimplifyInference(), FoldConstant()])(module)
        del counts["nn.batch_norm"]
        counts |= {"add": 27, "multiply": 19}
        assert ops(module) == counts
        module = FoldScaleAxis()(module)
        counts["multiply"] = 1
        assert ops(module) == counts
        module = CanonicalizeOps()(module)
        del counts["nn.bias_add"]
        counts["add"] = 28
        assert ops(module) == counts
        assert ops(EliminateCommonSubexpr()(module)) == counts


def test_mobilenet_loses_all_multiplications() -> None:
    module = bound(mobilenet.get_workload(image_shape=(3, 32, 32)))
    with PassContext(opt_level=3):
        module = Sequential([SimplifyInference(), FoldConstant()])(module)
        assert ops(module)["multiply"] == 27
        module = FoldScaleAxis()(module)
    assert "multiply" not in ops(module)


# --- levels


@pytest.mark.parametrize(("target", "level"), share_of_each(["c", "x86-64-v4"], range(4), 2))
def test_values_stay(small_resnet: IRModule, result_of_resnet: Any, target: str, level: int) -> None:
    data = random_inputs(small_resnet)
    with PassContext(opt_level=level, instruments=[Verifier()], config={"testing.immutable_module": True}):
        result = optimize(small_resnet, get_target(target))
    np.testing.assert_allclose(evaluate(result, *data), result_of_resnet, rtol=1e-4, atol=1e-6)
    calls = [n for n in post_order(result.main.body, lambda n: not isinstance(n, Function)) if isinstance(n, Call)]
    assert calls
    assert all(isinstance(c.op, Function) and c.op.is_primitive for c in calls), "something is not fused"


def test_level_3_packs_and_folds_everything(small_resnet: IRModule) -> None:
    with PassContext(opt_level=3):
        counts = count_op_calls(optimize(small_resnet, V4))
    assert counts["layout_transform"] == 0
    assert counts["expand_dims"] == 0
    assert counts["multiply"] == 1
    assert counts["nn.contrib_dense_pack"] == 1


LEVEL_4 = {"FastMath", "CombineParallelConv2D", "CombineParallelDense", "CombineParallelBatchMatmul"}


def ran(module: IRModule, **context: Any) -> list[str]:
    """The passes of the pipeline that an instrument sees, those inside of others left out."""
    timing = PassTimingInstrument()
    with PassContext(instruments=[timing], **context):
        optimize(module, C)
        lines = timing.render().splitlines()
    return [line.split(":")[0].strip() for line in lines if line.startswith("\t") and not line.startswith("\t\t")]


def test_required_passes_run_at_any_level(small_resnet: IRModule) -> None:
    plain, folding = ran(small_resnet, opt_level=1), ran(small_resnet, opt_level=1, required_pass=["FoldConstant"])
    assert "FoldConstant" not in plain and folding.count("FoldConstant") == 3
    assert not LEVEL_4 & set(ran(small_resnet, opt_level=3))
    assert LEVEL_4 & set(ran(small_resnet, opt_level=3, required_pass=["FastMath"])) == {"FastMath"}


def test_level_4_combines_and_takes_fast_functions() -> None:
    x = var("x", 1, 4, 3, 3)
    branches = [conv2d(x, noise(2, 4, 1, 1, seed=seed), channels=2, kernel_size=(1, 1)) for seed in range(3)]
    module = module_of(softmax(concatenate(list(map(tanh, branches)), 1), 1), x)
    with PassContext(opt_level=4):
        counts = count_op_calls(optimize(module, C))
    assert counts["nn.conv2d"] + counts["nn.contrib_conv2d_NCHWc"] == 1
    assert counts["fast_tanh"] == 1 and "tanh" not in counts


def test_levels_are_lists() -> None:
    names = [[p.info.name for p in pipeline(level, C)] for level in range(-1, 6)]
    least = ["InferType", "QuantizedEdges", "FakeQuantizationToInteger", "SimplifyInference"]
    assert names[0] == names[1] == [*least, "qnn.CanonicalizeOps", "ExpandOps", "FuseOps"]
    assert set(names[5]) - set(names[4]) == LEVEL_4 and names[5] == names[6]
    for level in range(5):
        assert names[level + 1][0] == "InferType"
        last = {0: "FuseOps", 1: "StoreNarrow", 2: "StoreNarrow"}
        assert names[level + 1][-1] == last.get(level, "ShareKernels")
        assert all(p.info.opt_level <= level for p in pipeline(level, C)), "a pass of the list would never run"


def test_disabled_passes_are_left_out(small_resnet: IRModule) -> None:
    with PassContext(opt_level=3, disabled_pass=["FoldScaleAxis"]):
        assert count_op_calls(optimize(small_resnet, C))["multiply"] == 18


# --- long chains

LENGTH = 4_000  # several times the depth at which Python ends a recursion

LINKS: dict[str, Callable[[Expr, int], Expr]] = {
    "exp": lambda x, _: exp(x),
    "transpose": lambda x, _: transpose(x, (0, 2, 3, 1)),
    "multiply": lambda x, k: multiply(x, const(1.0 + k / LENGTH)),
    "add zero": lambda x, _: add(x, const(0.0)),
    "reshape": lambda x, k: reshape(x, (4, 4) if k % 2 == 0 else (1, 4, 2, 2)),
}


def chain(link: Callable[[Expr, int], Expr], length: int) -> IRModule:
    """A module of `length` calls, each with the result of the former one for an argument."""
    x = var("x", 1, 4, 2, 2)
    body: Expr = x
    for k in range(length):
        body = link(body, k)
    return module_of(body, x)


@pytest.fixture(scope="module")
def long_chain() -> IRModule:
    """A chain of multiplications, which all passes share: passes change no module, and building it takes a second."""
    return chain(LINKS["multiply"], LENGTH)


@pytest.mark.parametrize("make", PASSES.values(), ids=PASSES)
def test_every_pass_takes_a_long_chain(make: Callable[[], Any], long_chain: IRModule) -> None:
    make()(long_chain)


@pytest.mark.parametrize("make", PASSES.values(), ids=PASSES)
def test_the_work_of_a_pass_grows_with_the_chain(make: Callable[[], Any]) -> None:
    def prepare(length: int) -> Callable[[], object]:
        module = chain(LINKS["multiply"], length)
        return lambda: make()(module)

    assert grows_linearly(prepare)


@pytest.mark.parametrize("name", LINKS)
def test_the_pipeline_takes_long_chains(name: str) -> None:
    # a factor in each node makes it five times as expensive
    length = {"multiply": 1_500, "exp": 10_000}.get(name, LENGTH)
    with PassContext(opt_level=3):
        optimize(chain(LINKS[name], length), V4)


# --- random graphs


@st.composite
def graphs(draw: st.DrawFn) -> IRModule:
    """Small convolutional graphs with everything that the passes look for."""
    x = var("x", 1, 4, 6, 6)
    pool: list[Expr] = [x]
    for k in range(draw(st.integers(3, 12))):
        seed = draw(st.integers(0, 9))
        a, b = (draw(st.sampled_from(pool)) for _ in range(2))
        vector = noise(4, 1, 1, seed=seed, positive=draw(st.booleans()))
        pool.append(
            draw(
                st.sampled_from(
                    [
                        lambda a=a, s=seed: conv2d(a, noise(4, 4, 3, 3, seed=s), padding=(1, 1)),
                        lambda a=a, s=seed: conv2d(a, noise(4, 1, 1, 1, seed=s), groups=4),
                        lambda a=a, v=vector: multiply(a, v),
                        lambda a=a, v=vector: subtract(v, a),
                        lambda a=a, v=vector: add(a, v),
                        lambda a=a: relu(a),
                        lambda a=a, b=b: add(a, b),
                        lambda a=a: negative(negative(a)),
                        lambda a=a: transpose(transpose(a, (0, 2, 3, 1)), (0, 3, 1, 2)),
                        lambda a=a: max_pool2d(a, (3, 3), padding=(1, 1)),
                        lambda a=a, k=k: multiply(a, const(float(k % 3))),
                    ]
                )
            )()
        )
    return module_of(pool[-1], x)


@settings(max_examples=60, deadline=None)
@given(graphs(), st.sampled_from([1, 2, 3, 4]))
def test_random_graphs_keep_their_values(module: IRModule, level: int) -> None:
    data = random_inputs(module)
    with PassContext(opt_level=level, instruments=[Verifier()]):
        result = optimize(module, V4)
    expected, got = evaluate(module, *data), evaluate(result, *data)
    scale = max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(got / scale, expected / scale, rtol=1e-4, atol=1e-5)


def test_constants_are_never_copied_needlessly(small_resnet: IRModule) -> None:
    """What no pass changes stays the same object."""
    kept = {id(n) for n in post_order(small_resnet.main) if isinstance(n, Constant)}
    with PassContext(opt_level=0):
        result = optimize(small_resnet, C)
    constants = [n for n in post_order(result.main) if isinstance(n, Constant) and n.data.ndim == 4]
    assert constants
    assert all(id(c) in kept for c in constants)
