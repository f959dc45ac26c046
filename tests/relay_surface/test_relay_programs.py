# SPDX-License-Identifier: Apache-2.0
"""Programs of Relay's tutorials: build and deploy, timing, operator counts, failing instruments."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import aotc
import aotc.testing
from aotc import relay
from aotc.contrib import graph_executor, utils
from aotc.ir.instrument import PassTimingInstrument, pass_instrument
from aotc.relay.build_module import bind_params_by_name
from aotc.relay.testing import mlp, resnet


def test_quick_start(capsys: pytest.CaptureFixture[str]) -> None:
    """ResNet-18, its ten numbers, and the same ones after a way through a file."""
    batch_size = 1
    num_class = 1000
    image_shape = (3, 224, 224)
    data_shape = (batch_size, *image_shape)
    out_shape = (batch_size, num_class)
    mod, params = relay.testing.resnet.get_workload(num_layers=18, batch_size=batch_size, image_shape=image_shape)
    text = mod.astext(show_meta_data=False)
    assert text.startswith('#[version = "0.0.5"]\ndef @main(%data: Tensor[(1, 3, 224, 224), float32] ')
    assert len(text.splitlines()) == 94

    with aotc.transform.PassContext(opt_level=3):
        lib = relay.build(mod, "llvm", params=params)
    dev = aotc.cpu()
    data = np.random.uniform(-1, 1, size=data_shape).astype("float32")
    module = graph_executor.GraphModule(lib["default"](dev))
    module.set_input("data", data)
    module.run()
    out = module.get_output(0, aotc.nd.empty(out_shape)).numpy()
    print(out.flatten()[0:10])

    temp = utils.tempdir()
    path_lib = temp.relpath("deploy_lib.tar")
    lib.export_library(path_lib)
    print(temp.listdir())
    loaded_lib = aotc.runtime.load_module(path_lib)
    input_data = aotc.nd.array(data)
    module = graph_executor.GraphModule(loaded_lib["default"](dev))
    module.run(data=input_data)
    out_deploy = module.get_output(0).numpy()
    print(out_deploy.flatten()[0:10])
    aotc.testing.assert_allclose(out_deploy, out, atol=1e-5)

    numbers = (
        "[0.00089283 0.00103331 0.0009094  0.00102275 0.00108751 0.00106737\n"
        " 0.00106262 0.00095838 0.00110792 0.00113151]\n"
    )
    assert capsys.readouterr().out == f"{numbers}['deploy_lib.tar']\n{numbers}"


def test_quick_start_in_small() -> None:
    """The quick start with a small network, at two optimization levels, agrees with the interpreter."""
    mod, params = mlp.get_workload(batch_size=2)
    data = np.random.uniform(-1, 1, size=(2, 1, 28, 28)).astype("float32")
    results = []
    for opt_level in (0, 3):
        with aotc.transform.PassContext(opt_level=opt_level):
            lib = relay.build(mod, "llvm", params=params)
        module = graph_executor.GraphModule(lib["default"](aotc.cpu()))
        module.run(data=data)
        results.append(module.get_output(0).numpy())
    hidden = data.reshape(2, -1)
    for layer in ("fc1", "fc2"):
        hidden = np.maximum(hidden @ params[f"{layer}_weight"].T + params[f"{layer}_bias"], 0)
    scores = np.exp(hidden @ params["fc3_weight"].T + params["fc3_bias"])
    for result in results:
        aotc.testing.assert_allclose(result, scores / scores.sum(axis=1, keepdims=True), rtol=1e-4, atol=1e-6)


# --- instruments

PROFILE = re.compile(r"\t*\w+: \d+us \[\d+us\] \(\d+\.\d\d%; \d+\.\d\d%\)")


@pytest.fixture
def relay_mod() -> aotc.IRModule:
    return resnet.get_workload(num_layers=18, batch_size=1, image_shape=(3, 224, 224))[0]


def tree(profiles: str) -> list[str]:
    """The names of a profile, indented as printed."""
    lines = profiles.splitlines()
    assert all(PROFILE.fullmatch(line) for line in lines)
    return [line.partition(":")[0] for line in lines]


def test_timing(relay_mod: aotc.IRModule) -> None:
    timing_inst = PassTimingInstrument()
    with aotc.transform.PassContext(instruments=[timing_inst]):
        relay_mod = relay.transform.InferType()(relay_mod)
        relay_mod = relay.transform.FoldScaleAxis()(relay_mod)
        profiles = timing_inst.render()
    expected = ["InferType", "FoldScaleAxis", "\tFoldConstant", "\t\tInferType"]
    assert tree(profiles) == expected

    cur_pass_ctx = aotc.transform.PassContext.current()
    cur_pass_ctx.override_instruments([timing_inst])
    relay_mod = relay.transform.InferType()(relay_mod)
    relay_mod = relay.transform.FoldScaleAxis()(relay_mod)
    assert tree(timing_inst.render()) == expected
    cur_pass_ctx.override_instruments([])


@pass_instrument
class RelayCallNodeDiffer:
    """Counts the calls of each operator before and after each pass."""

    def __init__(self) -> None:
        self._op_diff: list[tuple[int, str, dict[str, int]]] = []
        self._before: list[tuple[str, dict[str, int]]] = []

    def enter_pass_ctx(self) -> None:
        self._op_diff = []
        self._before = []

    def exit_pass_ctx(self) -> None:
        assert not self._before

    def run_before_pass(self, mod: aotc.IRModule, info: Any) -> None:
        self._before.append((info.name, self._count_nodes(mod)))

    def run_after_pass(self, mod: aotc.IRModule, info: Any) -> None:
        name, before = self._before.pop()
        assert name == info.name
        after = self._count_nodes(mod)
        diff = {k: after.get(k, 0) - before.get(k, 0) for k in {**before, **after}}
        changed = {k: v for k, v in diff.items() if v}
        if changed:
            self._op_diff.append((len(self._before), info.name, changed))

    def get_pass_to_op_diff(self) -> list[tuple[int, str, dict[str, int]]]:
        return self._op_diff

    @staticmethod
    def _count_nodes(mod: aotc.IRModule) -> dict[str, int]:
        ret: dict[str, int] = {}

        def visit(node: object) -> None:
            if isinstance(node, relay.expr.Call) and hasattr(node.op, "name"):
                ret[node.op.name] = ret.get(node.op.name, 0) + 1

        relay.analysis.post_order_visit(mod["main"], visit)
        return ret


def test_counting_operators() -> None:
    relay_mod, relay_params = resnet.get_workload(num_layers=18, batch_size=1, image_shape=(3, 224, 224))
    relay_mod["main"] = bind_params_by_name(relay_mod["main"], relay_params)
    call_node_inst, timing_inst = RelayCallNodeDiffer(), PassTimingInstrument()
    desired_layouts = {"nn.conv2d": ["NHWC", "HWIO"]}
    pass_seq = aotc.transform.Sequential(
        [relay.transform.FoldConstant(), relay.transform.ConvertLayout(desired_layouts), relay.transform.FoldConstant()]
    )
    with aotc.transform.PassContext(opt_level=3, instruments=[call_node_inst, timing_inst]):
        relay_mod = pass_seq(relay_mod)
        profiles = timing_inst.render()
    assert tree(profiles) == [
        *("sequential", "\tFoldConstant", "\t\tInferType", "\tInferType", "\tCanonicalizeOps", "\t\tInferType"),
        *("\tConvertLayout", "\t\tInferType", "\tFoldConstant", "\t\tInferType"),
    ]
    assert call_node_inst.get_pass_to_op_diff() == [
        (1, "CanonicalizeOps", {"add": 1, "nn.bias_add": -1}),
        (1, "ConvertLayout", {"expand_dims": 1, "layout_transform": 23}),
        (1, "FoldConstant", {"expand_dims": -1, "layout_transform": -21}),
        (0, "sequential", {"add": 1, "layout_transform": 2, "nn.bias_add": -1}),
    ]


# --- exceptions in instruments


class PassExampleBase:
    """Prints each hook."""

    def __init__(self, name: str) -> None:
        self._name = name

    def enter_pass_ctx(self) -> None:
        print(self._name, "enter_pass_ctx")

    def exit_pass_ctx(self) -> None:
        print(self._name, "exit_pass_ctx")

    def should_run(self, mod: aotc.IRModule, info: Any) -> bool:
        print(self._name, "should_run")
        return True

    def run_before_pass(self, mod: aotc.IRModule, pass_info: Any) -> None:
        print(self._name, "run_before_pass")

    def run_after_pass(self, mod: aotc.IRModule, pass_info: Any) -> None:
        print(self._name, "run_after_pass")


@pass_instrument
class PassFine(PassExampleBase):
    """Does nothing wrong."""


def raising(hook: str) -> Any:
    """An instrument that fails in one hook."""

    def fail(self: Any, *_: Any) -> None:
        print(self._name, f"bad {hook}!!!")
        raise ValueError(f"{self._name} bad {hook}")

    return pass_instrument(type("PassBad", (PassExampleBase,), {hook: fail}))


def hooks(*rows: str) -> str:
    return "".join(f"{row}\n" for row in rows)


def each(hook: str) -> list[str]:
    return [f"{name} {hook}" for name in ("PassFine_0", "PassBad", "PassFine_1")]


CASES = {
    "enter_pass_ctx": (
        hooks("PassFine_0 enter_pass_ctx", "PassBad bad enter_pass_ctx!!!", "PassFine_0 exit_pass_ctx"),
        "",
    ),
    "exit_pass_ctx": (
        hooks(
            *(*each("enter_pass_ctx"), *each("should_run"), *each("run_before_pass"), *each("run_after_pass")),
            *("PassFine_0 exit_pass_ctx", "PassBad bad exit_pass_ctx!!!"),
        ),
        "",
    ),
    "run_before_pass": (
        hooks(
            *(*each("enter_pass_ctx"), *each("should_run"), "PassFine_0 run_before_pass"),
            *("PassBad bad run_before_pass!!!", *each("exit_pass_ctx")),
        ),
        hooks(*each("exit_pass_ctx")),
    ),
}


@pytest.mark.parametrize("hook", CASES)
def test_failing_instruments(relay_mod: aotc.IRModule, capsys: pytest.CaptureFixture[str], hook: str) -> None:
    """What is printed in the context, and by clearing its instruments afterwards."""
    inside, cleared = CASES[hook]
    demo_ctx = aotc.transform.PassContext(
        instruments=[PassFine("PassFine_0"), raising(hook)("PassBad"), PassFine("PassFine_1")]
    )
    with pytest.raises(ValueError, match=f"^PassBad bad {hook}$"), demo_ctx:
        relay.transform.InferType()(relay_mod)
    assert capsys.readouterr().out == inside
    demo_ctx.override_instruments([])
    assert capsys.readouterr().out == cleared


def test_a_failing_instrument_without_with(relay_mod: aotc.IRModule, capsys: pytest.CaptureFixture[str]) -> None:
    cur_pass_ctx = aotc.transform.PassContext.current()
    bad = raising("run_before_pass")("PassBad")
    cur_pass_ctx.override_instruments([PassFine("PassFine_0"), bad, PassFine("PassFine_1")])
    try:
        assert capsys.readouterr().out == hooks(*each("enter_pass_ctx"))
        with pytest.raises(ValueError, match=r"^PassBad bad run_before_pass$"):
            relay.transform.InferType()(relay_mod)
        seen = capsys.readouterr().out
    finally:
        cur_pass_ctx.override_instruments([])
    assert seen == hooks(*each("should_run"), "PassFine_0 run_before_pass", "PassBad bad run_before_pass!!!")
    assert capsys.readouterr().out == hooks(*each("exit_pass_ctx"))


# --- the build module


def test_bind_a_constant_and_visit_operators() -> None:
    x = relay.var("x", relay.TensorType([1], dtype="float32"))
    expr = relay.add(x, relay.Constant(aotc.nd.array(np.array([1], dtype="float32"))))
    mod = aotc.IRModule.from_expr(relay.Function([x], expr))
    module = graph_executor.GraphModule(relay.build(mod, "llvm")["default"](aotc.device("llvm", 0)))
    module.run(x=np.array([2], dtype="float32"))
    assert repr(module.get_output(0)) == "<aotc.nd.NDArray shape=(1,), cpu(0)>\narray([3.], dtype=float32)"
    found: list[str] = []

    def visit(op: object) -> None:
        if isinstance(op, aotc.ir.op.Op):
            found.append(op.name)

    relay.analysis.post_order_visit(mod["main"].body, visit)
    assert found == ["add"]


@pytest.mark.parametrize("kind", ["debug", "graph", "aot", "vm"])
def test_add_a_constant_on_an_executor(kind: str) -> None:
    x = relay.var("x", relay.TensorType([1], dtype="float32"))
    expr = relay.add(x, relay.Constant(aotc.nd.array(np.array([1], dtype="float32"))))
    executor = relay.create_executor(kind=kind, mod=aotc.IRModule.from_expr(relay.Function([x], expr)))
    value = executor.evaluate()(np.array([2], dtype="float32"))
    assert repr(value) == "<aotc.nd.NDArray shape=(1,), cpu(0)>\narray([3.], dtype=float32)"


NOTES_TEXT = """\
fn (%input0: Tensor[(1, 3, 10, 10), float32] /* span=aten::_convolution_0.input0:0:0 */, \
%aten::_convolution_0.weight: Tensor[(6, 3, 7, 7), float32] /* span=aten::_convolution_0.weight:0:0 */) {
  %0 = nn.conv2d(%input0, %aten::_convolution_0.weight, padding=[0, 0, 0, 0], channels=6, kernel_size=[7, 7]) \
/* span=aten::_convolution_0:0:0 */;
  nn.softmax(%0, axis=1) /* span=aten::softmax_0:0:0 */
}"""


@pytest.mark.parametrize("kind", ["debug", "graph", "aot", "vm"])
def test_a_traced_module_on_an_executor(kind: str) -> None:
    torch = pytest.importorskip("torch")

    class Conv2D(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.conv = torch.nn.Conv2d(3, 6, 7, bias=False)
            self.softmax = torch.nn.Softmax(dim=1)

        def forward(self, *args: object) -> object:
            return self.softmax(self.conv(args[0]))

    model = Conv2D().float().eval()
    data = torch.rand([1, 3, 10, 10]).float()
    trace = torch.jit.trace(model, [data.clone()]).float().eval()
    names = ["input0"]
    mod, params = relay.frontend.from_pytorch(trace, [("input0", data.shape)], custom_convert_map=None)
    assert str(mod["main"]) == NOTES_TEXT
    assert all(arg.name_hint in names for arg in mod["main"].params[:1])
    target = "llvm"
    assert aotc.runtime.enabled(target)
    executor = relay.create_executor(kind, mod=mod, device=aotc.device(target, 0), target=target, params=params)
    result = executor.evaluate()(input0=data.numpy())
    if not isinstance(result, list):
        result = [result]
    expected = model(data).detach().numpy()
    assert result[0].asnumpy().shape == expected.shape
    np.testing.assert_allclose(expected, result[0].asnumpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("kind", "sequence"), [("debug", tuple), ("graph", list), ("aot", list), ("vm", tuple)])
def test_results_that_are_tuples(kind: str, sequence: type) -> None:
    x = relay.var("x", relay.TensorType([2], dtype="float32"))
    pair = relay.Function([x], relay.Tuple([relay.exp(x), relay.negative(x)]))
    result = relay.create_executor(kind, aotc.IRModule.from_expr(pair)).evaluate()(np.ones(2, "float32"))
    assert isinstance(result, sequence) and len(result) == 2
    np.testing.assert_array_equal(result[1].numpy(), [-1, -1])


def test_text_reads_back(relay_mod: aotc.IRModule) -> None:
    assert aotc.ir.structural_equal(relay.fromtext(relay_mod.astext()), relay_mod)
