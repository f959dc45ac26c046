# SPDX-License-Identifier: Apache-2.0
"""Domains of random inputs are derived from the operators of a model: one small model for each rule."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from aotc import relay
from aotc.checking.input_generation import (
    domains_overridden_by_user_ranges,
    draw_random_inputs,
    input_types,
    read_or_draw_session_inputs,
)
from aotc.driver.compile import CompileOptions
from aotc.ir.diagnostics import AotcError
from aotc.ir.types import TensorType
from aotc.relay.expr import Function
from aotc.relay.interpreter import evaluate
from aotc.relay.module import IRModule
from aotc.relay.op.infer_valid_model_input_values import infer_input_domains
from aotc.relay.type_inference import infer_module
from aotc.relay.valid_input_values_and_random_arrays import (
    ValueDomain,
    intersect_value_domains,
    random_array_in_domain,
    value_domain_before_affine_map,
    value_domain_from_json,
)
from aotc.relay.visitor import free_vars

TABLE = np.random.default_rng(0).standard_normal((100, 4)).astype(np.float32)
INTEGERS = TensorType((4, 64), "int64")
FLOATS = TensorType((4, 64), "float32")


def var(dtype: str = "float32", *shape: int) -> Any:
    return relay.var("x", shape=shape or (4, 64), dtype=dtype)


def module_of(body: Any) -> IRModule:
    return infer_module(IRModule({"main": Function(free_vars(body), body)}))


def domain_of(body: Any) -> ValueDomain:
    return infer_input_domains(module_of(body).main).get("x", ValueDomain())


def const(value: Any, dtype: str = "float32") -> Any:
    return relay.const(np.asarray(value, dtype), dtype)


def rows(index: Any) -> Any:
    return relay.take(const(TABLE), index, axis=0)


def wrapped(index: Any, size: int) -> Any:
    """An index of which negative numbers count from the end."""
    return relay.where(relay.less(index, const(0, "int64")), relay.add(index, const(size, "int64")), index)


ONES = const(np.ones(3))
BOUNDED = {
    "embedding": (rows(var("int64")), 0, 99),
    "wrapped embedding": (rows(wrapped(var("int64"), 100)), 0, 99),
    "reshaped": (rows(relay.transpose(relay.reshape(var("int64"), (64, 4)), (1, 0))), 0, 99),
    "cast": (rows(relay.cast(var("int32"), "int64")), 0, 99),
    "from floats": (rows(relay.cast(var(), "int32")), 0, 99.875),
    "offset": (rows(relay.add(var("int64"), const(2, "int64"))), -2, 97),
    "offsets": (rows(relay.add(var("int64"), const(np.arange(64), "int64"))), 0, 36),
    "scaled": (rows(relay.cast(relay.multiply(var(), const(10.0)), "int32")), 0, 9.9875),
    "concatenated": (rows(relay.concatenate([var("int64"), const(np.zeros((4, 1)), "int64")], 1)), 0, 99),
    "gather": (relay.gather(const(TABLE), 0, var("int64", 5, 4)), 0, 99),
    "gather_nd": (relay.gather_nd(const(TABLE), var("int64", 2, 9)), 0, 3),
    "scatter": (relay.scatter_elements(const(TABLE), var("int64", 2, 4), const(np.ones((2, 4))), 0), 0, 99),
    "one_hot": (relay.one_hot(var("int64"), const(1.0), const(0.0), 10, -1, "float32"), 0, 9),
    "reverse_sequence": (relay.reverse_sequence(const(np.ones((9, 4))), var("int64", 4), 0, 1), 1, 9),
    "sequence_mask": (relay.sequence_mask(const(np.ones((9, 4))), var("int32", 4), axis=0), 1, 9),
    "shift": (relay.left_shift(const(1, "int32"), var("int32")), 0, 31),
    "bytes": (relay.cast(relay.multiply(var(), const(255.0)), "uint8"), 0, 1),
    "penalty": (relay.multiply(relay.subtract(const(1.0), relay.cast(var("int64"), "float32")), const(-1e4)), 0, 1),
    "positive penalty": (relay.multiply(relay.subtract(var(), const(1.0)), const(1e9)), 0, 1),
    "truth": (relay.where(relay.cast(var("int64"), "bool"), const(1.0), const(0.0)), 0, 1),
    "acos": (relay.acos(relay.multiply(var(), const(2.0))), -0.5, 0.5),
    "atanh": (relay.atanh(var()), 2.0**-10 - 1, 1 - 2.0**-10),
    "acosh": (relay.acosh(var()), 1, math.inf),
    "log": (relay.log(var()), 2.0**-10, math.inf),
    "log of a shifted input": (relay.log(relay.add(var(), const(1.0))), 2.0**-10 - 1, math.inf),
    "log of a filter bank": (relay.log(relay.nn.dense(var(), const(np.ones((8, 64))))), 0, math.inf),
    "sqrt": (relay.sqrt(relay.negative(var())), -math.inf, 0),
    "sqrt of log": (relay.sqrt(relay.log(var())), 1, math.inf),
    "rsqrt of a mean": (relay.rsqrt(relay.mean(var())), 2.0**-10, math.inf),
    "root": (relay.power(var(), const(0.5)), 0, math.inf),
    "exp": (relay.exp(relay.multiply(var(), const(100.0))), -math.inf, 0.9 * math.log(np.finfo(np.float32).max) / 100),
    "variance": (relay.nn.batch_norm(const(np.ones((2, 3))), *[ONES] * 3, var("float32", 3))[0], 1 / 16, math.inf),
}  # fmt: skip


@pytest.mark.parametrize("name", BOUNDED)
def test_the_range_of_an_input_follows_from_its_use(name: str) -> None:
    body, least, most = BOUNDED[name]
    found = domain_of(body)
    assert (found.lo, found.hi) == pytest.approx((least, most), rel=1e-6)


X = var()
FREE = {
    "a guard": relay.log(relay.add(relay.exp(var()), const(1.0))),
    "a floor": relay.log(relay.maximum(var(), const(1e-3))),
    "a square": relay.sqrt(relay.multiply(X, X)),
    "an even power": relay.sqrt(relay.power(var(), const(2.0))),
    "a constant divisor": relay.divide(var(), const(3.0)),
    "a convolution": relay.log(relay.nn.dense(var(), const(np.random.default_rng(0).standard_normal((8, 64))))),
    "an unknown use": relay.nn.softmax(var()),
}


@pytest.mark.parametrize("name", FREE)
def test_what_needs_no_range_gets_none(name: str) -> None:
    found = domain_of(FREE[name])
    assert found.lo == -math.inf and found.hi > 50 and found.gap is None


def test_divisors_are_not_zero() -> None:
    drawn = random_array_in_domain(np.random.default_rng(0), FLOATS, domain_of(relay.divide(const(1.0), var())))
    assert np.abs(drawn).min() >= 1 / 16 and drawn.min() < 0
    for divide in (relay.floor_divide, relay.trunc_divide, relay.floor_mod):
        drawn = random_array_in_domain(
            np.random.default_rng(0), INTEGERS, domain_of(divide(const(7, "int64"), var("int64")))
        )
        assert drawn.min() == 1
    beyond = relay.divide(const(1.0), relay.subtract(var(), const(1.0)))
    assert (
        np.abs(random_array_in_domain(np.random.default_rng(0), FLOATS, domain_of(beyond)) - 1).min() >= 1 / 16 - 1e-6
    )


COMPARED = {
    "less": (relay.less, {True, False}),
    "less_equal": (relay.less_equal, {True, False}),
    "greater": (relay.greater, {True, False}),
    "greater_equal": (relay.greater_equal, {True, False}),
    "equal": (relay.equal, {True, False}),
    "not_equal": (relay.not_equal, {True, False}),
}


@pytest.mark.parametrize("name", COMPARED)
@pytest.mark.parametrize("dtype", ["float32", "int64"])
@pytest.mark.parametrize("swapped", [False, True])
def test_comparisons_have_both_results(name: str, dtype: str, swapped: bool) -> None:
    compare, wanted = COMPARED[name]
    x, limit = var(dtype), const(40, dtype)
    body = compare(limit, x) if swapped else compare(x, limit)
    drawn = random_array_in_domain(np.random.default_rng(0), TensorType((4, 64), dtype), domain_of(body))
    assert {*np.asarray(evaluate(module_of(body), drawn)).reshape(-1).tolist()} == wanted


def test_lengths_compared_with_positions_are_one_at_least() -> None:
    column = relay.var("x", shape=(4, 1), dtype="int32")
    found = domain_of(relay.less(const(np.arange(20), "int32"), column))
    drawn = random_array_in_domain(np.random.default_rng(0), TensorType((200, 1), "int32"), found)
    assert drawn.min() == 1 and drawn.max() == 20


def test_masks_hide_no_whole_row() -> None:
    mask = random_array_in_domain(
        np.random.default_rng(0), TensorType((500, 3), "float32"), ValueDomain(0, 1, whole=True)
    )
    assert {*mask.reshape(-1).tolist()} == {0.0, 1.0}
    assert mask.max(axis=1).min() == 1 and mask.min(axis=1).max() == 0
    flags = random_array_in_domain(np.random.default_rng(0), TensorType((500, 2), "bool"))
    assert flags.any(axis=1).all() and not flags.all(axis=1).any()


def test_integers_of_no_known_use() -> None:
    rng = np.random.default_rng(0)
    pixels = random_array_in_domain(rng, TensorType((10_000,), "uint8"))
    assert pixels.min() == 0 and pixels.max() == 255
    assert {*random_array_in_domain(rng, TensorType((1000,), "int64")).tolist()} == {*range(8)}


def test_names_are_the_last_resort() -> None:
    named = [relay.var(n, shape=(2, 8), dtype="int64") for n in ("attention_mask", "token_type_ids", "number")]
    body = relay.Tuple([relay.add(named[0], named[1]), named[2]])
    found = infer_input_domains(module_of(body).main)
    assert found == dict.fromkeys(("attention_mask", "token_type_ids"), ValueDomain(0, 1, whole=True))
    real = relay.var("mask", shape=(2, 8), dtype="float32")
    assert not infer_input_domains(module_of(real).main)


def test_alternatives_that_exclude_each_other() -> None:
    firm, loose = ValueDomain(0, 9, firm=True), ValueDomain(-20, -10)
    assert intersect_value_domains([loose, firm]) == firm
    assert intersect_value_domains([ValueDomain(-10, -1, firm=True), firm]) == firm
    assert intersect_value_domains([ValueDomain(3, 20), firm]) == ValueDomain(3, 9, firm=True)


def test_domains_before_an_affine_map() -> None:
    assert value_domain_before_affine_map(ValueDomain(0, 1, whole=True), -1.0, 1.0) == ValueDomain(0, 1, whole=True)
    assert not value_domain_before_affine_map(ValueDomain(0, 1, whole=True), 2.0, 0.0).whole
    assert value_domain_before_affine_map(ValueDomain(gap=(-1, 1)), 2.0, -1.0).gap == (0.0, 1.0)
    # a value that rounding could miss is one to have on either side
    assert value_domain_before_affine_map(ValueDomain(values=(3.0,)), 2.0, 1.0) == ValueDomain(sides=(1.0,))
    assert value_domain_before_affine_map(ValueDomain(1, 2), 0.0, 1.0) == ValueDomain()


def test_domains_in_json() -> None:
    for domain in (
        ValueDomain(),
        ValueDomain(0, 9, firm=True),
        ValueDomain(lo=1.0, gap=(2.0, 3.0), sides=(4.0,), values=(5.0,)),
    ):
        assert value_domain_from_json(json.loads(json.dumps(domain.to_json_fields))) == domain
    for damaged in (
        [],
        {"lo": "1"},
        {"gap": [1]},
        {"firm": 1},
        {"lo": 2, "hi": 1},
        {"other": 1},
        {"lo": True},
        {"lo": math.nan},
    ):
        with pytest.raises(AotcError, match="metadata"):
            value_domain_from_json(damaged)


def encoder(penalty: float = -3.4e38, seq: int = 12) -> Any:
    """Embeddings of words, positions and token types, and attention with a mask of ones and zeros."""
    rng = np.random.default_rng(0)
    shapes = {"word": (100, 16), "pos": (32, 16), "typ": (2, 16), **dict.fromkeys("qkv", (16, 16))}
    known: dict[str, Any] = {name: rng.standard_normal(shape).astype(np.float32) / 4 for name, shape in shapes.items()}
    known |= {"one": np.float32(1), "penalty": np.float32(penalty), "axis": np.array([1], np.int64)}
    node = helper.make_node
    nodes = [
        node("Gather", ["word", "input_ids"], ["e0"]),
        node("Gather", ["pos", "position_ids"], ["e1"]),
        node("Gather", ["typ", "token_type_ids"], ["e2"]),
        node("Sum", ["e0", "e1", "e2"], ["h"]),
        node("Cast", ["attention_mask"], ["real"], to=TensorProto.FLOAT),
        node("Unsqueeze", ["real", "axis"], ["rows"]),
        node("Sub", ["one", "rows"], ["hidden"]),
        node("Mul", ["hidden", "penalty"], ["bias"]),
        *(node("MatMul", ["h", name], [name.upper()]) for name in "qkv"),
        node("Transpose", ["K"], ["Kt"], perm=[0, 2, 1]),
        node("MatMul", ["Q", "Kt"], ["scores"]),
        node("Add", ["scores", "bias"], ["biased"]),
        node("Softmax", ["biased"], ["weights"], axis=-1),
        node("MatMul", ["weights", "V"], ["y"]),
    ]
    names = ("input_ids", "position_ids", "token_type_ids", "attention_mask")
    inputs = [helper.make_tensor_value_info(n, TensorProto.INT64, [2, seq]) for n in names]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, seq, 16])]
    constants = [numpy_helper.from_array(np.asarray(v), k) for k, v in known.items()]
    model = helper.make_model(helper.make_graph(nodes, "encoder", inputs, outputs, constants))
    model.opset_import[0].version, model.ir_version = 17, 8
    return model


def test_an_encoder_gets_words_positions_types_and_masks() -> None:
    module = CompileOptions().start_compilation(encoder()).module
    drawn = draw_random_inputs(input_types(module), 0, infer_input_domains(module.main))
    ends = {name: (int(array.min()), int(array.max())) for name, array in drawn.items()}
    assert ends["input_ids"][1] > 50 and ends["input_ids"][0] >= 0
    assert 8 < ends["position_ids"][1] <= 31
    assert ends["token_type_ids"] == ends["attention_mask"] == (0, 1)


def test_a_library_states_the_values_of_its_inputs() -> None:
    compiled = CompileOptions(cflags=("-O1",), target="c").compile_model(encoder())
    row = next(row for row in compiled.metadata["inputs"] if row["name"] == "input_ids")
    assert row["values"] | {"sides": None} == {"lo": 0, "hi": 99, "firm": True, "sides": None}
    drawn = read_or_draw_session_inputs(compiled.session(), None)
    assert drawn["input_ids"].max() > 50 and drawn["token_type_ids"].max() == 1


def test_ranges_of_the_caller() -> None:
    types = {"x": FLOATS, "n": INTEGERS, "b": TensorType((4,), "bool"), "u": TensorType((4,), "uint8")}
    domains = domains_overridden_by_user_ranges(
        types, {"n": ValueDomain(0, 3, firm=True)}, {"x": (5, 6), "n": (-2, -1)}
    )
    drawn = draw_random_inputs(types, 0, domains)
    assert drawn["x"].min() >= 5 and drawn["x"].max() <= 6 and drawn["x"].std() > 0.2
    assert {*drawn["n"].reshape(-1).tolist()} == {-2, -1}
    refused = {
        "y": ((0, 1), "there is no input 'y'; the inputs are x, n, b, u"),
        "x": ((2, 1), "ends before it begins"),
        "n": ((0.2, 0.8), "holds no integer, but the input is int64"),
        "b": ((0, 2), "exceeds bool, which holds 0 to 1"),
        "u": ((-1, 2), "exceeds uint8, which holds 0 to 255"),
    }
    for name, (ends, message) in refused.items():
        with pytest.raises(AotcError, match=message):
            domains_overridden_by_user_ranges(types, {}, {name: ends})
    with pytest.raises(AotcError, match="is not finite"):
        domains_overridden_by_user_ranges(types, {}, {"x": (math.nan, 1)})
