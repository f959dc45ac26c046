# SPDX-License-Identifier: Apache-2.0
"""Rarely used names of Relay: decorators of rewrites, containers, references, target options."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import pytest

import aotc
from aotc import relay
from aotc.relay import op, transform
from aotc.runtime import container

X = relay.var("x", shape=(2, 3))
VALUES = np.array([[-1, 0, 2], [3, -4, 5]], "float32")


@pytest.mark.parametrize(
    ("register", "run"),
    [(op.op.register_legalize, transform.Legalize()), (op.register_alter_op_layout, transform.AlterOpLayout())],
)
@pytest.mark.parametrize("decorates", [True, False])
def test_rewrites_that_are_registered(
    monkeypatch: pytest.MonkeyPatch, register: Any, run: Any, decorates: bool
) -> None:
    table = import_module("aotc.ir.op")._OP_REGISTRY
    monkeypatch.setattr(table, "attrs", {name: dict(own) for name, own in table.attrs.items()})

    def negated(attrs: Any, inputs: Any, types: Any, *out: Any) -> relay.Expr:
        return relay.negative(inputs[0])

    assert (register("nn.relu")(negated) if decorates else register("nn.relu", negated)) in (negated, None)
    module = aotc.IRModule.from_expr(relay.Function([X], relay.nn.relu(X)))
    assert relay.analysis.list_op_freqs(run(module)) == {"negative": 1}


def test_types_and_containers() -> None:
    assert relay.ty.TensorType is relay.TensorType and relay.ty.TypeVar is relay.TypeVar
    parts = container.tuple_object([aotc.nd.array(VALUES), container.tuple_object()])
    assert isinstance(parts, container.ADT) and parts[1] == () and container.convert([1, [2]]) == (1, (2,))
    both = relay.split(X, 3, axis=1)
    assert isinstance(both, relay.expr.TupleWrapper) and not isinstance(X, relay.expr.TupleWrapper)
    first, *_ = both
    assert first.index == 0 and both.astuple() is both and len(list(both)) == 3


def test_dimensions_are_whole_or_have_a_name() -> None:
    for wrong in (1.5, "n", None, aotc.tir.Var("n", "int32")):
        with pytest.raises(TypeError, match="is no dimension") as caught:
            relay.var("x", shape=(wrong, 3))
        assert isinstance(caught.value, aotc.TVMError) and "te.var" in caught.value.diagnostics[0].hint
    for wrong in (3, None, np.array(3)):
        with pytest.raises(TypeError, match=r"(3|None|array\(3\)) is no shape") as caught:
            relay.TensorType(wrong)
        assert isinstance(caught.value, aotc.TVMError) and "(3,)" in caught.value.diagnostics[0].hint


@pytest.mark.parametrize(
    "build",
    [
        relay.nn.relu,
        lambda wrong: relay.nn.pad(wrong, ((1, 1),), pad_value=2),
        lambda wrong: relay.sparse_to_dense(X, (1,), wrong, 2),
        lambda wrong: relay.Tuple([X, wrong]),
        lambda wrong: relay.concatenate([wrong], 0),
    ],
)
def test_arguments_are_expressions(build: Callable[[Any], Any]) -> None:
    """Also where a number's type, or a tuple's, comes from them."""
    for wrong, message in (("x", "an expression, not str"), (None, "not NoneType"), (3, 'convert "3" with `const`')):
        with pytest.raises(TypeError, match=message) as caught:
            build(wrong)
        assert isinstance(caught.value, aotc.TVMError)


def test_numbers_take_types_that_are_yet_to_be_found() -> None:
    x, w = relay.var("x", shape=(1, 3, 8, 8), dtype="int8"), relay.var("w")
    y = relay.nn.conv2d(x, w, channels=4, kernel_size=(3, 3), out_dtype="int32")
    padded = relay.nn.pad(y, ((0, 0), (0, 0), (1, 1), (1, 1)), pad_value=7)
    module = transform.InferType()(aotc.IRModule.from_expr(padded))
    assert module["main"].ret_type == relay.TensorType((1, 4, 8, 8), "int32")
    with pytest.raises(aotc.TVMError, match="cannot infer the type of %x"):
        relay.nn.pad(relay.var("x"), ((0, 0),))


def test_references_that_are_built() -> None:
    r = relay.var("r")
    body = relay.Let(r, relay.RefCreate(X), relay.Tuple([relay.RefWrite(r, X + X), relay.RefRead(r)]))
    module = transform.InferType()(aotc.IRModule.from_expr(relay.Function([X], body)))
    assert module["main"].ret_type.fields[1] == relay.TensorType((2, 3))
    empty, read = relay.create_executor("debug", module).evaluate()(VALUES)
    assert len(empty) == 0
    np.testing.assert_array_equal(read.numpy(), VALUES + VALUES)
    changed = transform.InferType()
    with pytest.raises(aotc.TVMError, match="float32"):
        changed(aotc.IRModule.from_expr(relay.Let(r, relay.RefCreate(X), relay.RefWrite(r, relay.const(1)))))


def test_matches_that_are_built() -> None:
    module = aotc.IRModule()
    module.import_from_std("prelude.rly")
    prelude = relay.prelude.Prelude(module)
    nil, cons = (module.get_type("List")[k] for k in (2, 1))
    head = relay.Var("head")
    clauses = [
        relay.Clause(relay.PatternConstructor(cons, [relay.PatternVar(head), relay.PatternWildcard()]), head),
        relay.Clause(relay.PatternConstructor(nil, []), relay.const(0)),
    ]
    whole = relay.Match(cons(relay.const(7), nil()), clauses)
    assert relay.analysis.unmatched_cases(whole, module) == [] and prelude.mod is module
    module["main"] = relay.Function([], whole)
    assert int(relay.create_executor("debug", module).evaluate()().numpy()) == 7


def test_clauses_are_sequences() -> None:
    text = """#[version = "0.0.5"]
def @main(%x: (int32, int32)) -> int32 {
  match? (%x) { (%a, %b) => %0 = %a * %b; let %c = %0 + %a; %c, }
}"""
    module = relay.parse(text)
    assert int(relay.create_executor("debug", module).evaluate()((3, 4)).numpy()) == 15
    assert aotc.ir.structural_equal(relay.parse(module.astext()), module)
    named = module.with_attr("name", "net")
    assert named.attrs["name"] == "net" and not module.attrs and "name" in named.astext()


def test_programs_as_the_compiler_sees_them() -> None:
    w = relay.var("w", shape=(3,))
    module = aotc.IRModule.from_expr(relay.Function([X, w], relay.exp(X + w) * relay.const(2.0)))
    optimized, params = relay.optimize(module, "c", params={"w": np.ones(3, "float32")})
    assert [p.name_hint for p in optimized["main"].params] == ["x"]
    calls = relay.analysis.extract_fused_functions(optimized)
    assert len(calls) == 1 and isinstance(params, dict)


def test_options_of_targets() -> None:
    target = aotc.target.target.Target("llvm -mcpu=core-avx2 -mtriple=x86_64-linux-gnu")
    assert (target.name, target.kind.name) == ("x86-64-v3", "llvm") and aotc.target.Target("c").kind.name == "c"
    with pytest.raises(ValueError, match="target 'c' has no option 'runtime'"):
        aotc.target.Target("c -runtime=c")


def test_classes_of_exceptions() -> None:
    """What Relay's users catch, whatever they call it."""
    for name in (
        aotc.TVMError,
        aotc.error.DiagnosticError,
        aotc.error.OpError,
        import_module("aotc._ffi.base").TVMError,
    ):
        assert isinstance(name, type) and issubclass(name, Exception)
        with pytest.raises(name):
            relay.parse("def @main() { 1 }")
    for kind, wrong in (
        (ValueError, lambda: aotc.target.Target("llvm -mattr=+x")),
        (TypeError, lambda: relay.nn.relu(3)),
        (TypeError, lambda: relay.nn.softmax(X, axis="a")),
    ):
        with pytest.raises(kind) as caught:
            wrong()
        assert isinstance(caught.value, aotc.TVMError) and caught.value.diagnostics[0].hint
