# SPDX-License-Identifier: Apache-2.0
"""ToMixedPrecision: which operators are reduced, where values are converted, and how close the results stay."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import numpy as np
import pytest
from passes.graphs import const, module_of, noise, ops, random_inputs, var

from aotc import relay
from aotc.ir.diagnostics import AotcError, AotcValueError
from aotc.ir.op import Op, OpPattern, PrecisionTreatment
from aotc.ir.transform import PassContext
from aotc.ir.types import TensorType, tensor_types
from aotc.relay.binding import bind_params_by_name
from aotc.relay.expr import Call, Expr, Function, GlobalVar, If, Let, Tuple, TupleGetItem, Var, typed_op_call
from aotc.relay.instrument.verifier import Verifier
from aotc.relay.interpreter import evaluate
from aotc.relay.module import IRModule
from aotc.relay.op import OPERATORS_BY_NAME
from aotc.relay.op.binary_elementwise import add, multiply
from aotc.relay.op.concat_split import concatenate, split
from aotc.relay.op.conv import conv2d
from aotc.relay.op.dense import batch_matmul, bias_add, dense
from aotc.relay.op.elementwise_unary import exp, relu, sigmoid
from aotc.relay.op.softmax import SoftmaxAttrs, softmax
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


def result_dtype(module: IRModule) -> str:
    ty = module.main.body.checked_type
    assert isinstance(ty, TensorType)
    return str(ty.dtype)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_always_follow_never(dtype: str) -> None:
    x, w, b = var("x", 1, 3, 6, 6), var("w", 4, 3, 3, 3), var("b", 4)
    module = module_of(softmax(relu(bias_add(conv2d(x, w), b))), x, w, b)
    result = mixed(module, mixed_precision_type=dtype)
    assert dtypes(result) == {
        "nn.conv2d": {dtype},
        "nn.bias_add": {dtype},
        "nn.relu": {dtype},
        "nn.softmax": {"float32"},
    }
    assert ops(result)["cast"] == 5  # x, w and b, the sum of the convolution, the argument of softmax


def test_sums_are_float32() -> None:
    """The sum of 4096 ones is exact; in steps of float16 it would end at 2048."""
    x = var("x", 1, 4096)
    module = module_of(dense(x, const(np.ones((1, 4096)))), x)
    result = ToMixedPrecision()(module)
    (call,) = [
        n for n in post_order(result.main) if isinstance(n, Call) and isinstance(n.op, Op) and n.op.name == "nn.dense"
    ]
    assert call.attrs.out_dtype == "float32"  # type: ignore[attr-defined]
    assert evaluate(result, np.ones((1, 4096), np.float32)) == 4096


def test_who_wants_float32_takes_the_sum() -> None:
    x, w = var("x", 2, 3), var("w", 4, 3)
    assert ops(mixed(module_of(exp(dense(x, w)), x, w))) == {"cast": 2, "nn.dense": 1, "exp": 1}


def test_output_type() -> None:
    x, w = var("x", 2, 3), var("w", 4, 3)
    module = module_of(relu(dense(x, w)), x, w)
    assert result_dtype(mixed(module, keep=False)) == "float16"
    assert result_dtype(mixed(module)) == "float32"


def test_following_needs_company() -> None:
    """A float32 value that is computed keeps the addition in float32; a variable or a constant does not."""
    x, w = var("x", 2, 3), var("w", 3, 3)
    for other, dtype in ((exp(x), "float32"), (x, "float16"), (noise(2, 3), "float16")):
        assert dtypes(mixed(module_of(add(dense(x, w), other), x, w)))["add"] == {dtype}
    assert dtypes(mixed(module_of(add(x, noise(2, 3)), x)))["add"] == {"float32"}


def test_each_value_is_converted_once() -> None:
    x, w = var("x", 3, 3), var("w", 3, 3)
    y = dense(x, w)
    result = mixed(module_of(add(add(exp(relu(y)), sigmoid(exp(relu(y)))), exp(dense(y, w))), x, w))
    assert ops(result)["cast"] == 5  # x, w, y, and either relu


def test_constants_out_of_range() -> None:
    x, w = var("x", 2, 3), var("w", 3, 3)
    for value, dtype in ((1e6, "float32"), (np.inf, "float16"), (6e4, "float16")):
        module = module_of(add(dense(x, w), const(value)), x, w)
        assert dtypes(ToMixedPrecision()(module))["add"] == {dtype}
    assert dtypes(ToMixedPrecision("bfloat16")(module_of(add(dense(x, w), const(1e6)), x, w)))["add"] == {"bfloat16"}


def test_other_types_stay() -> None:
    a, b = var("a", 2, 3, dtype="float64"), var("b", 4, 3, dtype="float64")
    module = module_of(dense(a, b), a, b)
    assert ToMixedPrecision()(module) is module
    n = var("n", 2, 3, dtype="int8")
    module = module_of(dense(n, const(np.ones((2, 3)), "int8"), out_dtype="int32"), n)
    assert ToMixedPrecision()(module) is module
    h = var("h", 2, 3, dtype="float16")
    module = module_of(softmax(dense(h, const(np.ones((2, 3)), "float16"))), h)
    assert ToMixedPrecision()(module) is module


def test_tuples() -> None:
    x, w = var("x", 4, 4), var("w", 4, 4)
    parts = split(dense(x, w), 2)
    first, second = TupleGetItem(parts, 0), TupleGetItem(parts, 1)
    result = mixed(module_of(Tuple((concatenate((second, first), 0), exp(first), Tuple((second,)).fields[0])), x, w))
    found = dtypes(result)
    assert (found["concatenate"], found["split"], found["exp"]) == ({"float16"}, {"float16"}, {"float32"})


def test_whole_tuples_are_converted_back() -> None:
    x, w = var("x", 4, 4), var("w", 4, 4)
    assert len(outputs(mixed(module_of(split(dense(x, w), 2), x, w)), [np.ones((4, 4), np.float32)] * 2)) == 2


def test_casts_that_do_nothing_go() -> None:
    x, w = var("x", 2, 3), var("w", 3, 3)
    narrow = relay.cast(relay.cast(dense(x, w), "float16"), "float32")
    assert ops(mixed(module_of(relu(narrow), x, w))) == {"cast": 4, "nn.dense": 1, "nn.relu": 1}


def test_control_flow_keeps_types() -> None:
    x, w, c = var("x", 3, 3), var("w", 3, 3), var("c", dtype="bool")
    y = Var("y")
    body: Expr = Let(y, dense(x, w), If(c, relu(dense(y, w)), multiply(y, y)))
    module = module_of(body, x, w, c)
    with PassContext(instruments=[Verifier()]):
        result = ToMixedPrecision()(module)
    assert dtypes(result)["nn.dense"] == {"float16"} and result_dtype(result) == "float32"


def test_other_functions_keep_types() -> None:
    x, w = var("x", 3, 3), var("w", 3, 3)
    a, b = var("a", 3, 3), var("b", 3, 3)
    main = Function((x, w), relu(Call(GlobalVar("helper"), (x, w))))
    module = infer_module(IRModule({"helper": Function((a, b), dense(a, b)), "main": main}))
    with PassContext(instruments=[Verifier()]):
        result = ToMixedPrecision()(module)
    assert result["helper"].checked_type == module["helper"].checked_type
    assert result_dtype(result) == "float32"


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
