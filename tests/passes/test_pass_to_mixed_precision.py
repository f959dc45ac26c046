# SPDX-License-Identifier: Apache-2.0
"""Options of ToMixedPrecision, workloads and compiled code; `to_mixed_precision.test` has single cases."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import numpy as np
import pytest
from passes.graphs import module_of, noise, random_inputs, var

from aotc import relay
from aotc.ir.diagnostics import AotcError, AotcValueError
from aotc.ir.op import Op, OpPattern, PrecisionTreatment
from aotc.ir.transform import PassContext
from aotc.ir.types import tensor_types
from aotc.relay.bind_variables_and_parameters import bind_params_by_name
from aotc.relay.expr import Call, Expr, typed_op_call
from aotc.relay.instrument.verifier import Verifier
from aotc.relay.interpreter import evaluate
from aotc.relay.module import IRModule
from aotc.relay.op import OPERATORS_BY_NAME
from aotc.relay.op.conv import conv2d
from aotc.relay.op.dense import batch_matmul, dense
from aotc.relay.op.elementwise_unary import relu, sigmoid
from aotc.relay.op.softmax import SoftmaxAttrs
from aotc.relay.testing import mlp, resnet
from aotc.relay.transform import ToMixedPrecision
from aotc.relay.type_inference import infer_module
from aotc.relay.visitor import post_order

KEEP = {"relay.ToMixedPrecision.keep_orig_output_dtype": True}


def mixed(module: IRModule, keep: bool = True, **options: Any) -> IRModule:
    """The reduced module, verified and compared with the original."""
    with PassContext(config=KEEP if keep else None, instruments=[Verifier()]):
        result = ToMixedPrecision(**options)(module)
    inputs = [0.2 * value for value in random_inputs(module)]
    unit = 2e-2 if options.get("mixed_precision_type") == "bfloat16" else 2e-3
    for expected, got in zip(outputs(module, inputs), outputs(result, inputs), strict=True):
        assert not keep or got.dtype == expected.dtype
        error = np.abs(got.astype(np.float64) - expected.astype(np.float64)).max()
        assert error <= unit * max(1.0, float(np.abs(expected).max()))
    return result


def outputs(module: IRModule, inputs: list[Any]) -> tuple[Any, ...]:
    result = evaluate(module, *inputs)
    return result if isinstance(result, tuple) else (result,)


def dtypes(module: IRModule) -> dict[str, set[str]]:
    """The types that each operator's arguments have."""
    found: dict[str, set[str]] = {}
    for node in post_order(module.main):
        if isinstance(node, Call) and isinstance(node.op, Op) and node.op.name != "cast":
            types = [t for a in node.args if a.checked_type is not None for t in tensor_types(a.checked_type)]
            found.setdefault(node.op.name, set()).update(str(t.dtype) for t in types)
    return found


UNKNOWN = ("exp", "nn.softmax")


def test_missing_operators() -> None:
    """Opaque operators that state nothing: that is so of two here that are made opaque."""
    x, w = var("x", 2, 3), var("w", 3, 3)
    opaque = {n: dataclasses.replace(OPERATORS_BY_NAME[n], pattern=OpPattern.OPAQUE, precision=None) for n in UNKNOWN}
    module = module_of(
        typed_op_call(opaque["nn.softmax"], [typed_op_call(opaque["exp"], [dense(x, w)])], SoftmaxAttrs()), x, w
    )
    with pytest.raises(AotcError) as caught:
        ToMixedPrecision(missing_op_mode=0)(module)
    assert [d.message for d in caught.value.diagnostics] == [f"no conversion is known for {n}" for n in UNKNOWN]
    with pytest.warns(UserWarning, match=r"exp, nn\.softmax"):
        ToMixedPrecision()(module)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ToMixedPrecision(missing_op_mode=2)(module)
        given = {"exp": PrecisionTreatment.FOLLOW, "nn.softmax": PrecisionTreatment.NEVER}
        assert dtypes(mixed(module, conversions=given))["exp"] == {"float16"}


def test_options() -> None:
    for options in (
        {"mixed_precision_type": "int8"},
        {"missing_op_mode": 3},
        {"conversions": {"nn.ex": PrecisionTreatment.NEVER}},
    ):
        with pytest.raises(AotcValueError):
            ToMixedPrecision(**options)  # type: ignore[arg-type]


def test_long_chains() -> None:
    x, w = var("x", 2, 2), var("w", 2, 2)
    body: Expr = dense(x, w)
    for _ in range(10_000):
        body = relu(body)
    assert dtypes(ToMixedPrecision()(module_of(body, x, w)))["nn.relu"] == {"float16"}


WORKLOADS = {
    "mlp": (mlp.get_workload, {"batch_size": 1}, (1, 1, 28, 28)),
    "resnet": (resnet.get_workload, {"num_layers": 18, "image_shape": (3, 32, 32), "num_classes": 10}, (1, 3, 32, 32)),
}


@pytest.mark.parametrize("name", WORKLOADS)
def test_workloads(name: str) -> None:
    get_workload, options, shape = WORKLOADS[name]
    module, params = get_workload(**options)
    result = ToMixedPrecision()(module)
    found = dtypes(result)
    heavy = {"nn.conv2d", "nn.dense"} & set(found)
    assert heavy and all(found[op] == {"float16"} for op in (*heavy, "nn.relu"))
    assert found["nn.softmax"] == {"float32"}
    if name == "resnet":
        assert found["add"] == {"float16"} and "float16" in found["nn.batch_norm"]  # the first one sees the input
        assert found["nn.global_avg_pool2d"] == {"float32"}
    bound = infer_module(IRModule.from_expr(bind_params_by_name(module["main"], params)))
    data = np.random.default_rng(3).uniform(-1, 1, shape).astype(np.float32)
    np.testing.assert_allclose(evaluate(mixed_module(bound), data), evaluate(bound, data), atol=5e-3)


def mixed_module(module: IRModule) -> IRModule:
    with PassContext(config=KEEP):
        return ToMixedPrecision()(module)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_compiled(dtype: str) -> None:
    """What comes out compiles to C and computes what the interpreter computes."""
    x = var("x", 1, 8, 8, 8)
    conv = conv2d(x, noise(8, 8, 3, 3), padding=(1, 1))
    hidden = batch_matmul(relay.reshape(relu(conv), (8, 8, 8)), noise(8, 8, 8, seed=1))
    module = ToMixedPrecision(dtype)(module_of(sigmoid(hidden), x))
    data = np.random.default_rng(5).standard_normal((1, 8, 8, 8)).astype(np.float32)
    expected = evaluate(module, data)
    with PassContext(opt_level=3):
        got = relay.create_executor("aot", module, target="c").evaluate()(data).numpy()
    assert got.dtype == expected.dtype
    np.testing.assert_allclose(got.astype(np.float64), expected.astype(np.float64), atol=0.02)
