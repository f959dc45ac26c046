# SPDX-License-Identifier: Apache-2.0
"""Mistakes of callers give one clear diagnostic each, also where Relay is silent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aotc
from aotc import relay
from aotc.ir.diagnostics import AotcError
from aotc.transform import PassContext

DATA, WEIGHT = np.zeros((1, 3, 8, 8), "float32"), np.zeros((4, 3, 3, 3), "float32")
HEADER = '#[version = "0.0.5"]\n'


def module(second: str = "w") -> aotc.IRModule:
    x, w = relay.var("x", shape=(1, 3, 8, 8)), relay.var(second, shape=(4, 3, 3, 3))
    body = relay.nn.relu(relay.nn.conv2d(x, w, padding=(1, 1), channels=4, kernel_size=(3, 3)))
    return aotc.IRModule.from_expr(relay.Function([x, w], body))


def evaluated(*args: Any, **inputs: Any) -> Any:
    return relay.create_executor("debug", module()).evaluate()(*args, **inputs)


def bound(second: str = "w", **params: Any) -> Any:
    return relay.bind_params_by_name(module(second)["main"], params)


CASES: dict[str, tuple[Callable[[], object], str]] = {
    "pass": (lambda: getattr(relay.transform, "FoldConstnat"), "did you mean 'FoldConstant'"),  # noqa: B009
    "passes": (lambda: aotc.transform.Sequential([3]), "must be a list of Pass objects"),  # type: ignore[list-item]
    "required": (lambda: PassContext(required_pass="FoldConstant"), "a list of pass names, not a string"),
    "disabled": (lambda: PassContext(disabled_pass="FoldConstant"), "a list of pass names, not a string"),
    "config": (lambda: PassContext(config={"relay.FuseOps.max_dept": 3}), "did you mean 'relay.FuseOps.max_depth'"),
    "config type": (lambda: PassContext(config={"relay.FuseOps.max_depth": "3"}), "to have type int but get str"),
    "level": (lambda: PassContext(opt_level="3"), "expected int but got str"),  # type: ignore[arg-type]
    "instrument": (lambda: PassContext(instruments=[3]), "is not a pass instrument"),  # type: ignore[list-item]
    "function for module": (
        lambda: relay.transform.FoldConstant()(module()["main"]),
        "expected a module, got Function",
    ),  # type: ignore[arg-type]
    "op": (lambda: aotc.ir.Op.get("nn.con2d"), "did you mean 'nn.conv2d'"),
    "op argument": (
        lambda: relay.nn.softmax(relay.var("x", shape=(2,)), axes=1),
        "argument 'axes'; did you mean 'axis'",
    ),
    "stride": (
        lambda: relay.nn.conv2d(relay.var("x", shape=(1, 3, 8, 8)), relay.var("w"), stride=2),
        "conv2d.*'stride'; did you mean 'strides'",
    ),
    "no stride": (
        lambda: relay.nn.max_pool2d(relay.var("x", shape=(1, 3, 8, 8)), 2, strides=(0, 0)),
        "nn.max_pool2d: a stride of 0 of a window\n  hint: stride must be at least 1",
    ),
    "attribute": (lambda: relay.sum(relay.var("x", shape=(2, 3)), axis="1"), r"axis takes .*, not '1'"),
    "attribute's numbers": (
        lambda: relay.nn.pad(relay.var("x", shape=(2,)), ((1,),)),
        r"pad_width takes .*\(\(1,\),\)",
    ),
    "types": (
        lambda: relay.add(relay.var("a", shape=(2, 3)), relay.var("b", shape=(4,))),
        r"add: .*\(2, 3\) and \(4\)",
    ),
    "dtype": (lambda: relay.var("x", shape=(2,), dtype="float23"), "unknown data type 'float23'"),
    "dimension": (lambda: relay.var("x", shape=(2, -2)), r"a shape has a negative dimension: \(2, -2\)"),
    "elements": (lambda: relay.var("x", shape=(2**30, 2**30)), r"exceed the address space: \(1073741824, 1073741824\)"),
    "shape's type": (lambda: relay.shape_of(relay.var("x", shape=(300,)), "int8"), "300 does not fit into int8"),
    "layout": (lambda: relay.transform.ConvertLayout({"nn.conv2d": ["NHXC", "default"]})(module()), "'NHXC' is not an"),
    "function": (lambda: module()["mian"], "did you mean 'main'"),
    "bound unknown": (lambda: bound("weight", wieght=WEIGHT), "did you mean 'weight'"),
    "bound twice": (lambda: bound("x", x=DATA), "several parameters are called 'x'$"),
    "bound shape": (
        lambda: bound(w=DATA),
        r"'w' is Tensor\[\(4, 3, 3, 3\), float32\], the value is Tensor\[\(1, 3, 8, 8\)",
    ),
    "bound dtype": (lambda: bound(w=WEIGHT.astype("float64")), r"the value is Tensor\[\(4, 3, 3, 3\), float64\]"),
    "target": (lambda: relay.build(module(), "lvm"), "did you mean 'llvm'"),
    "far target": (lambda: relay.build(module(), "6502"), "known: llvm, host, c, "),
    "no back end": (lambda: relay.build(module(), "metal"), "no Metal back end yet"),
    "parameter": (lambda: relay.build(module(), "c", params={"v": WEIGHT}), "no parameter is called 'v'"),
    "device": (lambda: aotc.device("cdua"), "did you mean 'cuda'"),
    "no device": (lambda: relay.create_executor("graph", module(), aotc.cpu(7)).evaluate(), r"no device cpu\(7\)"),
    "executor": (lambda: relay.create_executor("grpah", module()), "did you mean 'graph'"),
    "input": (lambda: evaluated(y=DATA), "no input is called 'y'"),
    "missing input": (lambda: evaluated(DATA), "no value for 'w'"),
    "input dtype": (lambda: evaluated(DATA.astype("float64"), WEIGHT), "must be .*float32.*, got .*float64"),
    "workload": (lambda: relay.testing.resnet.get_workload(num_layers=19), "known: 18, 34"),
    "file": (lambda: aotc.runtime.load_module("/nonexistent/deploy_lib.tar"), "no such file"),
}


@pytest.mark.parametrize("name", CASES)
def test_mistakes(name: str) -> None:
    act, message = CASES[name]
    with pytest.raises((AotcError, TypeError, AttributeError), match=message) as caught:
        act()
    if isinstance(caught.value, AotcError):
        assert len(caught.value.diagnostics) == 1


def test_a_pass_that_is_nearly_there() -> None:
    with pytest.warns(UserWarning, match="no pass 'FoldConstnat'; did you mean 'FoldConstant'"):
        PassContext(disabled_pass=["FoldConstnat"])


def test_all_parameters_are_reported_at_once() -> None:
    with pytest.raises(AotcError) as caught:
        bound(w=DATA, v=WEIGHT, x=WEIGHT)
    assert len(caught.value.diagnostics) == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def @main(%a: float32) {\n  add(%a, %b)\n}", "variable %b is not defined"),
        ("def @main(%a: float32) {\n  add(%a, %a) }\ndef @main() { 1 }", "defined twice"),
        ("def @main(%a: float32, %a: float32) {\n  %a\n}", "named twice"),
        ("def @main(%a: Tensor[(2, 3), float32], %b: Tensor[(4), float32]) {\n  add(%a, %b)\n}", "(2, 3) and (4)"),
        ("def @main(%a: float32) {\n  %0 = exp(%a);\n  %0 = abs(%a);\n  %0\n}", "%0 is defined twice"),
        ("def @main(%a: float32) {\n  @helper(%a)\n}", "no function @helper"),
        ("def @main(%a: Tensor[(2, -3), float32]) {\n  %a\n}", "expected"),
    ],
)
def test_mistakes_in_text(text: str, message: str) -> None:
    with pytest.raises(AotcError) as caught:
        relay.transform.InferType()(relay.fromtext(HEADER + text, "program.relay"))
    (diagnostic,) = caught.value.diagnostics
    assert message in diagnostic.message and str(diagnostic).split("\n")[2].strip() == "^"
    assert diagnostic.span is not None and str(caught.value).startswith("program.relay:")


def test_times_belong_to_the_instrument_and_survive_exceptions() -> None:
    first, second = aotc.instrument.PassTimingInstrument(), aotc.instrument.PassTimingInstrument()

    @aotc.transform.module_pass(opt_level=0, name="Fails")
    def fails(mod: Any, ctx: PassContext) -> Any:
        raise ValueError("on purpose")

    with PassContext(instruments=[first]):
        with pytest.raises(ValueError, match="on purpose"):
            fails(module())
        relay.transform.InferType()(module())
        with PassContext(instruments=[second]):
            relay.transform.FoldConstant()(module())
            assert "FoldConstant" in second.render()
        assert "InferType" in first.render() and "FoldConstant" not in first.render()


def test_constants_inside_kernels_are_refused() -> None:
    x = relay.var("x", shape=(2, 3))
    mod = aotc.IRModule.from_expr(relay.Function([x], relay.add(x, relay.const(np.arange(3, dtype="float32")))))
    with (
        aotc.transform.PassContext(opt_level=3, config={"relay.FuseOps.link_params": True}),
        pytest.raises(AotcError, match="inside a kernel"),
    ):
        relay.build(mod, "llvm")
