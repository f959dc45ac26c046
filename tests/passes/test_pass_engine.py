# SPDX-License-Identifier: Apache-2.0
"""The pass infrastructure: function passes with InferType, rewrite rules, and instruments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from passes.graphs import const, module_of, ops, var

from aotc.ir.attrs import NO_ATTRS
from aotc.ir.diagnostics import AotcError
from aotc.ir.instrument import PassTimingInstrument, pass_instrument
from aotc.ir.span import Span, span_scope
from aotc.ir.transform import PassContext, PassInfo, Sequential, module_pass
from aotc.ir.types import FuncType, TensorType
from aotc.relay.expr import Call, Expr, Function, GlobalVar, Let, Var, typed_op_call, with_checked_type
from aotc.relay.instrument.dump_ir import dump_ir
from aotc.relay.instrument.op_count_changes import OpDifference
from aotc.relay.instrument.verifier import Verifier, diagnose_malformed_module
from aotc.relay.module import IRModule
from aotc.relay.op import OPERATORS_BY_NAME
from aotc.relay.op.binary_elementwise import add, multiply
from aotc.relay.op.cast_clip_prelu import cast
from aotc.relay.op.elementwise_unary import exp, negative, relu
from aotc.relay.op.shape import transpose
from aotc.relay.transform import PASSES, FoldConstant, InferType, SimplifyExpr, pass_base
from aotc.relay.transform.pass_base import Rewriter, Rule, WhyNot, function_pass, rewrite_report
from aotc.relay.visitor import post_order


def events(run: Any, **context: Any) -> list[str]:
    """The names of passes as they begin (indented by depth)."""
    log: list[str] = []

    @pass_instrument
    class Log:
        depth = 0

        def run_before_pass(self, module: Any, info: PassInfo) -> None:
            log.append("  " * self.depth + info.name)
            self.depth += 1

        def run_after_pass(self, module: Any, info: PassInfo) -> None:
            self.depth -= 1

    with PassContext(instruments=[Log()], **context):
        run()
    return log


# --- function passes


def test_a_function_pass_infers_types_afterwards() -> None:
    x = var("x", 2)

    @function_pass(opt_level=1, name="Twice")
    def twice(function: Function, module: IRModule, ctx: PassContext) -> Function:
        doubled = Call(OPERATORS_BY_NAME["add"], (function.body, function.body))  # without a type
        return Function(function.params, doubled)

    module = module_of(relu(x), x)
    assert repr(twice) == "Run Function pass: Twice at the optimization level 1"
    results: list[IRModule] = []
    assert events(lambda: results.append(twice(module))) == ["Twice", "  InferType"]
    assert results[0].main.body.checked_type == TensorType((2,))
    assert "add" not in ops(module)


def test_a_function_pass_on_a_class() -> None:
    @function_pass(opt_level=0)
    class Keep:
        def __init__(self, tag: str) -> None:
            self.tag = tag

        def transform_function(self, function: Function, module: IRModule, ctx: PassContext) -> Function:
            return function

    keep = Keep("here")
    module = module_of(relu(x := var("x", 2)), x)
    assert keep(module) is module
    assert (keep.tag, keep.info.name, repr(keep)) == (
        "here",
        "Keep",
        "Run Function pass: Keep at the optimization level 0",
    )
    with pytest.raises(ValueError, match="for the function pass"):
        function_pass(lambda f, m, c: f)


def test_a_function_pass_skips_marked_functions_and_types_untyped_modules() -> None:
    seen: list[str] = []

    @function_pass(opt_level=0)
    def look(function: Function, module: IRModule, ctx: PassContext) -> Function:
        assert function.body.checked_type is not None
        seen.append(str(function.attrs.get("name")))
        return function

    def named(name: str, **attrs: Any) -> Function:
        x = Var("x", TensorType((2,)))
        return Function((x,), Call(OPERATORS_BY_NAME["nn.relu"], (x,)), attrs={"name": name, **attrs})

    look(IRModule({"a": named("a"), "b": named("b", Compiler="other"), "c": named("c", SkipOptimization=1)}))
    assert seen == ["a"]


def test_sequences_run_required_passes_each_time() -> None:
    module = module_of(relu(x := var("x", 2)), x)
    passes = [FoldConstant(), PASSES["CanonicalizeOps"](), PASSES["SimplifyExpr"]()]
    assert events(lambda: Sequential(passes)(module), opt_level=2) == [
        *("sequential", "  FoldConstant", "    InferType", "  InferType", "  SimplifyExpr", "    InferType")
    ]


def test_every_pass_has_its_own_name_and_a_repr() -> None:
    for name, make in PASSES.items():
        assert make().info.name == name
        assert name in repr(make())


# --- rewrite rules


def drop_double_negation(node: Call) -> Expr | WhyNot | None:
    inner = node.args[0]
    if not isinstance(inner, Call) or inner.op is not node.op:
        return None
    if inner.span is not None and inner.span.node == "keep":
        return WhyNot("it is marked")
    return inner.args[0]


NEGATION = Rule("-(-x) => x", ("negative",), drop_double_negation)


def test_rules_run_to_a_fixpoint_and_are_counted() -> None:
    x = var("x", 2)
    body: Expr = x
    for _ in range(9):
        body = negative(body)
    rewriter = Rewriter([NEGATION])
    result = rewriter.rewrite_to_fixpoint(Function((x,), body))
    assert sum(isinstance(n, Call) for n in post_order(result)) == 1
    stats = rewriter.stats["-(-x) => x"]
    assert stats.hits == 4
    assert stats.misses >= 1
    assert rewriter.rewrite_to_fixpoint(result) is result


def test_rules_say_why_not_and_report() -> None:
    x = var("x", 2)
    with span_scope(Span("net", node="keep")):
        inner = negative(x)
    function = Function((x,), negative(inner))
    with rewrite_report() as report:
        assert Rewriter([NEGATION]).rewrite_to_fixpoint(function) is function
        SimplifyExpr()(module_of(add(x, const(0.0)), x))
    assert report["-(-x) => x"].refused == {"it is marked": 1}
    assert report["x + 0 => x"].hits == 1
    assert report["x + 0 => x"].seconds > 0


def test_replacements_carry_all_spans() -> None:
    x = var("x", 2, 3, 4)

    def at(name: str, build: Any) -> Any:
        with span_scope(Span("net", node=name)):
            return build()

    first = at("first", lambda: transpose(x, (1, 0, 2)))
    second = at("second", lambda: transpose(first, (0, 2, 1)))
    last = at("last", lambda: relu(second))
    result = SimplifyExpr()(module_of(last, x)).main.body
    assert isinstance(result, Call)
    assert result.span == Span("net", node="last")
    assert result.args[0].span is not None
    assert {s.node for s in result.args[0].span.all_origins()} == {"first", "second"}


def test_a_rule_that_changes_types_is_a_bug() -> None:
    x = var("x", 2)
    wrong = Rule("wrong", ("nn.relu",), lambda node: cast(node.args[0], "int32"))
    with pytest.raises(RuntimeError, match=r"rule `wrong` made Tensor\[\(2\), int32\] of"):
        Rewriter([wrong]).rewrite_to_fixpoint(Function((x,), relu(x)))


def test_rules_that_never_end_are_found() -> None:
    x = var("x", 2)
    one = Rule("ping", ("nn.relu",), lambda node: exp(node.args[0]))
    two = Rule("pong", ("exp",), lambda node: relu(node.args[0]))
    with pytest.raises(RuntimeError, match="do not come to an end: ping; pong"):
        Rewriter([one, two]).rewrite_to_fixpoint(Function((x,), relu(x)))


def test_fused_functions_are_not_rewritten() -> None:
    p, x = var("p", 2), var("x", 2)
    fused = Function((p,), negative(negative(p)), attrs={"Primitive": 1})
    function = Function((x,), Call(fused, (x,), checked_type=p.checked_type))
    assert Rewriter([NEGATION]).rewrite_to_fixpoint(function) is function


# --- operator differences


def test_differences_are_listed_with_depth() -> None:
    x = var("x", 2)
    module = module_of(multiply(add(x, const(0.0)), add(const(1.0), const(2.0))), x)
    counter = OpDifference()
    with PassContext(opt_level=3, instruments=[counter]):
        Sequential([FoldConstant(), SimplifyExpr()])(module)
        expected = [(1, "FoldConstant", {"add": -1}), (1, "SimplifyExpr", {"add": -1}), (0, "sequential", {"add": -2})]
        assert counter.get_pass_to_op_diff() == expected
    assert counter.render() == "\tFoldConstant: add -1\n\tSimplifyExpr: add -1\nsequential: add -2\n"
    with PassContext(instruments=[counter]):
        assert counter.op_count_changes_by_pass == ()


def test_differences_survive_exceptions() -> None:
    @module_pass(opt_level=0)
    def fail(module: IRModule, ctx: PassContext) -> IRModule:
        raise KeyError("x")

    x = var("x", 2)
    counter = OpDifference()
    with PassContext(instruments=[counter]):
        with pytest.raises(KeyError):
            fail(module_of(x, x))
        SimplifyExpr()(module_of(add(x, const(0.0)), x))
    assert counter.get_pass_to_op_diff() == [(0, "SimplifyExpr", {"add": -1})]


# --- the verifier


def broken(name: str) -> IRModule:
    """Modules that no pass may make."""
    x, y = var("x", 2), var("y", 2)
    match name:
        case "free-var":
            return IRModule({"main": Function((x,), add(x, y))})
        case "bound-twice":
            return IRModule({"main": Function((x, x), relu(x))})
        case "bound-by-two":
            return IRModule({"main": Function((x,), relu(x)), "other": Function((x,), exp(x))})
        case "let-of-parameter":
            return IRModule({"main": Function((x,), Let(x, exp(y), x))})
        case "unknown-function":
            return IRModule({"main": Function((x,), Call(GlobalVar("f"), (x,), checked_type=x.checked_type))})
        case "stale-type":
            function = Function((x,), with_checked_type(relu(x), TensorType((3,))), TensorType((3,)))
            return IRModule({"main": function})
        case "stale-inner-type":
            return IRModule({"main": Function((x,), relu(with_checked_type(exp(x), TensorType((2,), "int32"))))})
        case "ill-typed":
            return IRModule({"main": Function((x,), Call(OPERATORS_BY_NAME["add"], (x, const([1, 2, 3]))))})
        case _:
            node = relu(relu(x))
            object.__setattr__(node.args[0], "args", (node,))
            return IRModule({"main": Function((x,), node, TensorType((2,)))})


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("free-var", "%y is not bound"),
        ("bound-twice", "%x is bound more than once"),
        ("bound-by-two", "%x is bound more than once"),
        ("let-of-parameter", "%x is bound more than once"),
        ("unknown-function", "no function @f"),
        ("stale-type", "does not match the declared"),
        ("stale-inner-type", r"the type Tensor\[\(2\), int32\] should be Tensor\[\(2\), float32\]"),
        ("ill-typed", "do not broadcast"),
        ("cycle", "part of itself"),
    ],
)
def test_the_verifier_names_the_pass_that_breaks_a_module(name: str, message: str) -> None:
    bad = broken(name)

    @module_pass(opt_level=0)
    def breaks(module: IRModule, ctx: PassContext) -> IRModule:
        return bad

    x = var("x", 2)
    with (
        PassContext(instruments=[Verifier()]),
        pytest.raises(AotcError, match=f"(?s)breaks made a malformed module.*({message})"),
    ):
        breaks(module_of(relu(x), x))


def test_the_verifier_looks_at_what_comes_in() -> None:
    with PassContext(instruments=[Verifier()]), pytest.raises(AotcError, match="given to InferType is malformed"):
        InferType()(broken("free-var"))


def test_the_verifier_finds_mutation() -> None:
    x = var("x", 2)

    @module_pass(opt_level=0)
    def mutates(module: IRModule, ctx: PassContext) -> IRModule:
        module._functions["more"] = module.main
        return IRModule({"main": module.main})

    with PassContext(instruments=[Verifier()]), pytest.raises(AotcError, match="mutates changed the module"):
        mutates(module_of(relu(x), x))


def test_good_modules_pass() -> None:
    x = var("x", 2)
    assert diagnose_malformed_module(module_of(relu(x), x)) == []
    untyped = IRModule({"main": Function((x,), Call(OPERATORS_BY_NAME["nn.relu"], (x,)))})
    assert diagnose_malformed_module(untyped) == []
    shared = Function((p := var("p", 2),), relu(p), attrs={"Primitive": 1})
    two = Call(shared, (Call(shared, (x,), checked_type=x.checked_type),), checked_type=x.checked_type)
    assert diagnose_malformed_module(module_of(two, x)) == []
    assert isinstance(shared.checked_type, FuncType)


def test_dumping_text(tmp_path: Path) -> None:
    x = var("x", 2)
    with PassContext(instruments=[dump_ir(tmp_path), PassTimingInstrument()]):
        SimplifyExpr()(module_of(relu(add(x, const(0.0))), x))
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "000_InferType.relay",
        "001_SimplifyExpr.relay",
        "aotc-dump.json",
    ]
    assert "nn.relu(%x)" in (tmp_path / "001_SimplifyExpr.relay").read_text()


def test_calls_are_typed_where_they_are_built() -> None:
    assert typed_op_call(OPERATORS_BY_NAME["nn.relu"], (Var("w"),), NO_ATTRS).checked_type is None


def test_the_former_name_of_is_op_call_is_deprecated() -> None:
    with pytest.warns(DeprecationWarning, match="is now named is_op_call"):
        assert pass_base.is_call is pass_base.is_op_call
