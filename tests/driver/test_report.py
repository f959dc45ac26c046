# SPDX-License-Identifier: Apache-2.0
"""PassReport and NumericCheck: known figures, failing passes, and HTML pages that a browser can read."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

import aotc
from aotc import relay
from aotc.ir.transform import PassContext, Sequential
from aotc.relay.expr import Constant, Expr, Function, Var
from aotc.relay.instrument.pass_statistics import program_statistics_of_function
from aotc.relay.module import IRModule
from aotc.relay.testing import mlp, resnet
from aotc.relay.transform.pass_base import Rewriter, Rule, WhyNot, function_pass
from aotc.reporting.compile_report import PassReport
from aotc.tir.target import X86_64_V3, Target

RESNET_MACS = 1_826_857_472


class Page(HTMLParser):
    """Checks that elements are closed in order; keeps the text."""

    VOID = frozenset({"meta", "input", "br"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""
        self.tags: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        assert not any(name in ("src", "href", "onclick") for name, _ in attrs), attrs
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def bound(workload: tuple[IRModule, dict[str, object]]) -> IRModule:
    mod, params = workload
    return IRModule.from_expr(relay.build_module.bind_params_by_name(mod["main"], params))


@pytest.fixture(scope="module")
def resnet18() -> IRModule:
    return bound(resnet.get_workload(num_layers=18, batch_size=1, image_shape=(3, 224, 224)))


def test_figures_of_a_known_network(resnet18: IRModule) -> None:
    found = program_statistics_of_function(relay.transform.InferType()(resnet18).main)
    assert found.operators["nn.conv2d"] == 21 and found.operators["nn.batch_norm"] == 19
    assert abs(found.flops - 2 * RESNET_MACS) < 1e-3 * found.flops
    assert 46e6 < found.parameters < 47e6
    layer = 64 * 112 * 112 * 4
    assert 2 * layer <= found.live < 2.01 * layer  # the largest one and its successor


def test_live_memory_of_small_programs() -> None:
    x = Var("x", relay.TensorType((100,), "float32"))
    assert program_statistics_of_function(Function((x,), relay.exp(relay.exp(relay.exp(x))))).live == 800
    first, second = relay.exp(x), relay.log(x)
    assert (
        program_statistics_of_function(Function((x,), relay.Tuple([first, second, relay.add(first, second)]))).live
        == 1200
    )
    assert program_statistics_of_function(Function((x,), x)).live == 0


def test_programs_without_types_have_no_figures_that_need_them() -> None:
    """As the passes inside of a pass see them: InferType comes last."""

    @function_pass(opt_level=0, name="Untyped")
    def untyped(function: Function, module: IRModule, ctx: PassContext) -> Function:
        dense = relay.nn.dense(*function.params)
        return Function(function.params, relay.Call(dense.op, dense.args, dense.attrs))

    x, w = relay.var("x", shape=(2, 3)), relay.var("w", shape=(4, 3))
    report = PassReport()
    with PassContext(instruments=[report]):
        untyped(IRModule.from_expr(Function([x, w], x)))
    outer, inner = report.passes
    assert outer.name == "Untyped" and outer.after is not None and outer.after.flops == 2 * 2 * 4 * 3
    assert inner.name == "InferType" and inner.before.flops == inner.before.live == 0


def test_passes_are_recorded_with_their_depth() -> None:
    report = PassReport("small")
    with PassContext(opt_level=3, instruments=[report]):
        Sequential([relay.transform.SimplifyInference(), relay.transform.FoldScaleAxis()])(bound(mlp.get_workload(1)))
    names = [(r.depth, r.name) for r in report.passes]
    assert names[0] == (0, "sequential") and (1, "FoldScaleAxis") in names and (2, "FoldConstant") in names
    whole = report.passes[0]
    assert whole.seconds >= whole.own >= 0
    assert abs(sum(r.own for r in report.passes) - whole.seconds) < 1e-6
    lines = report.render().splitlines()
    first = next(k for k, line in enumerate(lines) if line.startswith("pass "))
    assert len(lines) >= first + 1 + len(names) and lines[first + 1].split()[0] == "sequential"
    Page(report.to_html())


def test_what_a_pass_changed() -> None:
    report = PassReport()
    with PassContext(opt_level=3, instruments=[report]):
        relay.transform.CanonicalizeOps()(bound(mlp.get_workload(1)))
    record = next(r for r in report.passes if r.name == "CanonicalizeOps")
    assert record.op_call_count_changes == {"add": 3, "nn.bias_add": -3}
    page = Page(report.to_html())
    assert "nn.bias_add -3" in page.text and "details" in page.tags


def test_a_failing_pass_is_marked() -> None:
    @function_pass(opt_level=0, name="Broken")
    def broken(function: Function, module: IRModule, ctx: PassContext) -> Function:
        raise ValueError("no")

    report = PassReport()
    with pytest.raises(ValueError, match="no"), PassContext(instruments=[report]):
        broken(bound(mlp.get_workload(1)))
    assert next(r for r in report.passes if r.name == "Broken").after is None
    assert "Broken (failed)" in report.render()
    assert "failed" in Page(report.to_html()).text


def test_what_rewrite_rules_did() -> None:
    x = Var("x", relay.TensorType((2, 3), "float32"))
    y = relay.add(x, relay.const(0.0))
    body = relay.nn.bias_add(relay.exp(y), relay.const(np.ones(3, "float32")))
    report = PassReport()
    with PassContext(opt_level=3, instruments=[report]):
        Sequential([relay.transform.CanonicalizeOps(), relay.transform.SimplifyExpr()])(IRModule.from_expr(body))
    rules = {r.name: r.rules for r in report.passes if r.rules}
    assert list(rules) == ["CanonicalizeOps", "SimplifyExpr"]
    bias = rules["CanonicalizeOps"]["bias_add(x, b) => x + expand_dims(b)"]
    assert (bias.hits, bias.misses) == (1, 0)
    assert rules["SimplifyExpr"]["x + 0 => x"].hits == 1
    assert all(not r.rules for r in report.passes if r.name in ("sequential", "InferType"))
    lines = report.render().splitlines()
    assert next(line for line in lines if "x + 0 => x" in line).split()[:2] == ["SimplifyExpr", "1"]
    page = Page(report.to_html())
    assert "Rewrite rules" in page.text and "hits: 1" in page.text and "bias_add(x, b)" in page.text
    with PassContext(opt_level=3):  # nobody watches: what was recorded stays as it is
        relay.transform.SimplifyExpr()(IRModule.from_expr(body))
    assert rules["SimplifyExpr"]["x + 0 => x"].hits == 1


def test_a_rule_that_is_refused_says_why() -> None:
    report = PassReport()
    refuse = Rule("exp(x) => x", ("exp",), lambda call: WhyNot("<not> equal"))

    @function_pass(opt_level=0, name="Refuse")
    def refusing(function: Function, module: IRModule, ctx: PassContext) -> Function:
        return Rewriter([refuse]).rewrite_to_fixpoint(function)

    with PassContext(instruments=[report]):
        refusing(IRModule.from_expr(relay.exp(Var("x", relay.TensorType((2,), "float32")))))
    assert "<not> equal (1)" in Page(report.to_html()).text


def test_facts_stages_and_results(tmp_path: Path) -> None:
    report = PassReport("small", [("model", "MLP")])
    module, params = mlp.get_workload(1)
    made = aotc.compile(
        module, params=params, target="c", output=tmp_path / "net", build=False, instruments=[report],
        disabled_pass=["FoldScaleAxis"], accuracy="strict", progress=report.begin_stage,
    )  # fmt: skip
    report.begin_stage("")
    report.add_compiled_model(made)
    names = [name for name, _ in report.stages]
    assert names == [
        "importing the model", "optimizing the graph", "lowering to kernels", "running tensor passes",
        "writing the C project",
    ]  # fmt: skip
    for text in (report.render(), Page(report.to_html()).text):
        assert "MLP" in text and "FoldScaleAxis" in text and "compile.accuracy = strict" in text
        assert f"{made.metadata['kernels']} kernels for {len(made.metadata['steps'])} calls" in text
        assert "of C" in text and "arena of" in text and "library of" not in text
    facts = dict(report._header_facts())
    assert facts["target"] == "c" and facts["level"] == "3" and facts["aotc"] == aotc.__version__
    assert "direct algorithm" in Page(report.to_html()).text


@pytest.mark.parametrize("target", ["c", "x86-64-v3", "x86-64-multi", replace(X86_64_V3, name="mine")])
def test_loops_that_stay_scalar(target: str | Target) -> None:
    report, x = PassReport("quotients"), Var("x", relay.TensorType((64,), "int64"))
    module = IRModule.from_expr(Function([x], relay.floor_divide(x, x)))
    report.add_compiled_model(aotc.compile(module, target=target, build=False, instruments=[report]))
    for text in (report.render(), Page(report.to_html()).text):
        assert ("floordiv of int64" in text) == (target != "c")
    assert ("the outermost first" in text) == (target != "c")


def test_empty_and_hostile_reports(tmp_path: Path) -> None:
    assert "No pass ran." in Page(PassReport("empty").to_html()).text
    name = '</script><b onmouseover="x">&amp;'
    x = Var(name, relay.TensorType((2,), "float32"))
    report = PassReport(name, [(name, name)])
    with PassContext(instruments=[report]):
        relay.transform.SimplifyExpr()(IRModule.from_expr(Function((x,), relay.add(x, relay.const(np.zeros(2, "f4"))))))
    page = Page(report.to_html())
    assert "b" not in page.tags and name in page.text
    with pytest.raises(aotc.AotcError, match="cannot write"):
        report.save_html(tmp_path / "missing" / "report.html")


def test_long_programs_are_quick_and_said_to_be_long() -> None:
    x = y = Var("x", relay.TensorType((2,), "float32"))
    for _ in range(10_000):
        y = relay.negative(y)  # type: ignore[assignment]
    report = PassReport()
    with PassContext(instruments=[report]):
        relay.transform.ToANormalForm()(IRModule.from_expr(Function((x,), y)))
    assert "too long to compare" in Page(report.to_html()).text


def test_stages_are_timed() -> None:
    clock = iter(float(k) for k in range(100))
    report = PassReport()
    report._clock = lambda: next(clock)
    for name in ("one", "two", ""):
        report.begin_stage(name)
    assert report.stages == [("one", 1.0), ("two", 1.0)]


# --- NumericCheck


def wrong_by(amount: float) -> object:
    @function_pass(opt_level=0, name="Wrong")
    def wrong(function: Function, module: IRModule, ctx: PassContext) -> Function:
        body: Expr = relay.add(function.body, Constant(np.float32(amount)))
        return Function(function.params, body)

    return wrong


def test_the_pass_that_is_wrong_is_named() -> None:
    check = aotc.instrument.NumericCheck()
    module = bound(mlp.get_workload(1))
    passes = Sequential([relay.transform.SimplifyInference(), wrong_by(0.1), relay.transform.FuseOps()])
    with (
        pytest.raises(aotc.AotcError, match=r"Wrong changes the result: output 0 differs by"),
        PassContext(opt_level=3, instruments=[check]),
    ):
        passes(module)


def test_right_passes_and_given_inputs_pass() -> None:
    data = np.random.default_rng(1).standard_normal((1, 1, 28, 28)).astype("float32")
    check = aotc.instrument.NumericCheck({"data": data})
    module = bound(mlp.get_workload(1))
    with PassContext(opt_level=3, instruments=[check]):
        Sequential([relay.transform.FoldScaleAxis(), relay.transform.FuseOps(), wrong_by(1e-9)])(module)
    assert check.inputs["data"] is data


def test_other_types_and_integers_are_problems() -> None:
    x = Var("x", relay.TensorType((3,), "int32"))
    module = IRModule.from_expr(Function((x,), relay.add(x, x)))

    @function_pass(opt_level=0, name="Off")
    def off(function: Function, module: IRModule, ctx: PassContext) -> Function:
        return Function(function.params, relay.add(function.body, Constant(np.int32(1))))

    @function_pass(opt_level=0, name="Other")
    def other(function: Function, module: IRModule, ctx: PassContext) -> Function:
        return Function(function.params, relay.cast(function.body, "float32"))

    for item, message in (
        (off, "Off changes the result: 3 of 3 elements"),
        (other, "Other changes the result: output 0 is"),
    ):
        with pytest.raises(aotc.AotcError, match=message), PassContext(instruments=[aotc.instrument.NumericCheck()]):
            item(module)


def test_one_check_for_two_programs_and_passes_that_bind() -> None:
    check = aotc.instrument.NumericCheck({"w": np.full(3, 2, "float32")})
    for size in (2, 4):
        x, w = Var("x", relay.TensorType((size, 3), "float32")), Var("w", relay.TensorType((3,), "float32"))
        module = IRModule.from_expr(Function((x, w), relay.multiply(x, w)))

        @function_pass(opt_level=0, name="Bind")
        def bind(function: Function, module: IRModule, ctx: PassContext) -> Function:
            return relay.bind_params_by_name(function, {"w": np.full(3, 2, "float32")})

        with PassContext(instruments=[check]):
            assert len(bind(module).main.params) == 1
    assert list(check.inputs) == ["w"]


def test_one_context_for_several_programs() -> None:
    with PassContext(instruments=[aotc.instrument.NumericCheck()]):
        for names in ("x", "yz"):
            params = [Var(name, relay.TensorType((2,), "float32")) for name in names]
            module = relay.transform.InferType()(IRModule.from_expr(Function(params, relay.exp(params[-1]))))
            relay.transform.FoldConstant()(module)
            with pytest.raises(aotc.AotcError, match="Wrong changes the result"):
                wrong_by(0.1)(module)
