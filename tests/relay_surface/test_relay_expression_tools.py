# SPDX-License-Identifier: Apache-2.0
"""Functions of Relay on programs other than execution: JSON, features, argument types, equality."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import aotc
from aotc import relay, tir
from aotc.ir import load_json, save_json, structural_equal, structural_hash
from aotc.relay import transform
from aotc.relay.analysis import Feature, detect_feature
from aotc.relay.interpreter import evaluate

X = relay.var("x", shape=(2, 3))


def norm(epsilon: float) -> Any:
    return relay.nn.batch_norm(X, *(relay.var(n, shape=(3,)) for n in "gbmv"), epsilon=epsilon)


@pytest.mark.parametrize(
    "node",
    [
        X,
        relay.Var("untyped"),
        relay.GlobalVar("g"),
        relay.const(np.arange(12.0).reshape(3, 4)),
        relay.op.get("add"),
        relay.Tuple([X, relay.const(True)]),
        relay.Let(relay.Var("y"), X, X),
        relay.If(relay.var("c", "bool"), X, X),
        relay.nn.relu(X) + X,
        relay.Function([X], X + X).with_attr("Inline", 1),
    ],
    ids=lambda node: type(node).__name__,
)
def test_expressions_as_json(node: Any) -> None:
    assert structural_equal(load_json(save_json(node)), node, map_free_vars=True)


def test_modules_and_types_as_json() -> None:
    module = aotc.IRModule.from_expr(relay.nn.dense(X, relay.const(np.ones((4, 3), "float32"))))
    module.import_from_std("prelude.rly")
    assert structural_equal(load_json(save_json(module)), module)
    a = relay.TensorType((2, relay.Any()), "int8")
    ty = relay.FuncType([relay.TupleType([X.annotation, relay.RefType(X.annotation)])], X.annotation)
    assert load_json(save_json(ty)) == ty
    assert str(load_json(save_json(a))) == str(a)


@pytest.mark.parametrize("text", ["", "{", "3", "{}", json.dumps({"kind": "expr", "text": "%"})])
def test_damaged_json(text: str) -> None:
    with pytest.raises(aotc.AotcError):
        load_json(text)
    with pytest.raises(aotc.AotcError, match="cannot be written as JSON"):
        save_json(3)  # type: ignore[arg-type]


def test_features() -> None:
    f = Feature
    shared = relay.exp(X)
    assert detect_feature(shared) == {f.fVar, f.fOp, f.fCall}
    assert detect_feature(X + X) == {f.fVar, f.fOp, f.fCall}
    assert f.fGraph in detect_feature(shared + shared)
    assert f.fGraph not in detect_feature(transform.ToANormalForm()(aotc.IRModule.from_expr(shared + shared)))
    text = '#[version = "0.0.5"] def @main(%r: ref(int32)) { let %f = fn () { if (True) { %f() } else { 1 } }; %f() }'
    found = detect_feature(relay.parse(text), relay.RefRead(X))
    assert found == {f.fVar, f.fCall, f.fLet, f.fLetRec, f.fFunction, f.fIf, f.fConstant, f.fRefRead}


def test_types_of_arguments() -> None:
    text = "def @id[A](%x: A) -> A { %x }\ndef @main(%f: float32) { add(@id(%f), 1f) }"
    call = transform.InferType()(relay.parse('#[version = "0.0.5"]\n' + text))["main"].body
    scalar = relay.scalar_type("float32")
    assert call.type_args == [scalar, scalar]
    assert call.args[0].type_args == [scalar]
    assert relay.Call(call.op, call.args, call.attrs, call.type_args, call.span).type_args == call.type_args
    assert relay.Call(relay.GlobalVar("f"), [X], None).type_args == [X.annotation]


def test_expressions_learn_their_types() -> None:
    y = relay.Var("y", relay.TensorType((3,), "float32"))
    for made, ty in ((relay.RefCreate(y), relay.RefType(y.annotation)), (relay.Function([y], y)(X), y.annotation)):
        if isinstance(made, relay.Call):
            with pytest.raises(aotc.AotcError, match="argument 0"):
                transform.InferTypeLocal(made)
            assert made.checked_type is None
            continue
        assert transform.InferTypeLocal(made) == ty == made.checked_type
    f = relay.Function([y], relay.nn.relu(y))
    transform.InferTypeLocal(f)
    assert transform.DeadCodeElimination()(aotc.IRModule.from_expr(f))["main"].ret_type == y.annotation


def test_numbers_in_attributes_are_equal_as_float32() -> None:
    rounded = float(np.float32(1e-5))
    a, b = norm(1e-5), norm(rounded)
    assert structural_equal(a, b, map_free_vars=True)
    assert structural_hash(a, map_free_vars=True) == structural_hash(b, map_free_vars=True)
    assert not structural_equal(a, b, map_free_vars=True, exact=True)
    assert not structural_equal(a, norm(1.001e-5), map_free_vars=True)


def test_hashes_tell_of_sharing() -> None:
    a, b, c = relay.exp(X), relay.exp(X), relay.const(1.0)
    assert structural_hash(a + a) != structural_hash(a + b)
    assert structural_hash(a + c + c) == structural_hash(b + c + relay.const(1.0))
    assert structural_equal(a + c + c, b + c + relay.const(1.0))


def test_sequences_are_compared_by_their_elements() -> None:
    assert structural_equal([X, X.annotation, 3], (X, X.annotation, 3))
    assert not structural_equal([X], [X, X])
    assert not structural_equal([3], [4])


def test_names_of_tvm() -> None:
    assert [str(relay.scalar_type(t).dtype) for t in ("int", "uint", "float", "uint1")] == [
        "int32", "uint32", "float32", "bool"]  # fmt: skip
    assert relay.const(1, relay.scalar_type("int64")).checked_type == relay.scalar_type("int64")
    assert not relay.TensorType((tir.Any(),)).is_static
    assert X.vid.same_as(X.vid)
    assert not X.same_as(relay.var("x", shape=(2, 3)))
    assert X.vid.name_hint == "x"


VERSION = '#[version = "0.0.5"]\n'


def test_text_on_top_of_a_module() -> None:
    text = "type Box { Full(int32), }\ndef @f(%x: Box) -> int32 { match (%x) { Full(%y) => %y } }"
    before = relay.parse(VERSION + text)
    table = {"relay.Constant": [relay.const([3, 4])]}
    main = "def @main() { (@f(Full(--5)), meta[relay.Constant][0], ---2) }"
    module = relay.parse(VERSION + main, "text", before, table)
    assert set(module) == {"f", "main"}
    value = evaluate(transform.InferType()(module))
    assert [np.asarray(v).tolist() for v in value] == [5, [3, 4], -2]
    assert structural_equal(relay.parse(module.astext()), module)
    with pytest.raises(aotc.AotcError, match="type Box is defined twice"):
        relay.parse(VERSION + "type Box { Other, }", "text", before)
    with pytest.raises(aotc.AotcError, match="expected an expression"):
        relay.parse_expr("--(1, 2)")


def test_types_to_be_found() -> None:
    program = relay.parse_expr("let %y: _ = (1, 2f); %y")
    assert program.var.annotation is None
    assert str(transform.InferTypeLocal(program)) == "(int32, float32)"


def test_text_of_untyped_programs_has_no_types_of_constants() -> None:
    body = relay.Call(relay.Var("f"), [relay.const(1), relay.const(2.0)])
    assert str(relay.Function([body.op], body)) == "fn (%f) {\n  %f(1, 2f)\n}"
    g = relay.parse_expr("fn (%f: fn (int32) -> int32) { %f(1) }")
    assert "%f(1 /* ty=int32 " in transform.InferType()(aotc.IRModule.from_expr(g)).astext()


def test_layouts_of_pooling_that_users_choose() -> None:
    x = relay.var("x", shape=(1, 4, 8, 8))
    module = aotc.IRModule.from_expr(relay.nn.max_pool2d(x, (2, 2)))
    chosen = transform.ConvertLayout({"nn.max_pool2d": ["NHWC"]})(module)
    pool = chosen["main"].body.args[0]
    assert (pool.attrs.layout, pool.attrs.out_layout) == ("NHWC", "NHWC")
    data = np.arange(256, dtype="float32").reshape(1, 4, 8, 8)
    for a, b in ((module, chosen), (chosen, transform.ConvertLayout({"nn.max_pool2d": ["NCHW"]})(chosen))):
        np.testing.assert_array_equal(evaluate(transform.InferType()(a), data), evaluate(b, data))


def test_layouts_of_positions_of_extrema() -> None:
    x, w = (
        relay.var("x", shape=(1, 3, 4, 5)),
        relay.const(np.random.default_rng(0).normal(size=(2, 3, 1, 1)), "float32"),
    )

    def converted(axis: Any) -> tuple[int, Any, Any]:
        module = transform.InferType()(aotc.IRModule.from_expr(relay.argmax(relay.nn.conv2d(x, w), axis=axis)))
        result = transform.ConvertLayout({"nn.conv2d": ["NHWC", "default"]})(module)
        data = np.random.default_rng(1).normal(size=(1, 3, 4, 5)).astype("float32")
        before, after = (evaluate(m, data) for m in (module, result))
        return str(result).count("layout_transform"), before, after

    for axis, transforms in (((2, 3), 2), ((3,), 2), ((1, 2), 3), (None, 3)):
        count, before, after = converted(axis)
        assert count - transforms in (0, 1)  # the result's order
        np.testing.assert_array_equal(before, after)
    assert converted((2, 3))[0] == 2
