# SPDX-License-Identifier: Apache-2.0
"""Names at the module paths of Relay, and user functions that passes call."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import numpy as np
import pytest

import aotc
from aotc import relay
from aotc.contrib import graph_executor
from aotc.ir.diagnostics import AotcError
from aotc.ir.supply import GlobalVarSupply, NameSupply
from aotc.relay import op
from aotc.relay.backend import Executor, Runtime, name_transforms
from aotc.relay.testing import TempOpAttr
from aotc.runtime.name_transforms import sanitize_name

X = relay.var("x", shape=(2, 3))
RELU = relay.Function([X], relay.nn.relu(X))
VALUES = np.array([[-1, 0, 2], [3, -4, 5]], "float32")


def legalized(rewrite: Any) -> relay.Function:
    with TempOpAttr("nn.relu", "FTVMLegalize", rewrite):
        return relay.transform.Legalize()(aotc.IRModule.from_expr(RELU))["main"]


def test_legalize_asks() -> None:
    def rewrite(attrs: Any, inputs: list[relay.Expr], types: list[relay.Type]) -> relay.Expr:
        assert [str(t) for t in types] == ["Tensor[(2, 3), float32]"] * 2
        return relay.maximum(inputs[0], relay.const(0.0))

    assert relay.analysis.list_op_freqs(legalized(rewrite)) == {"maximum": 1}
    assert legalized(lambda attrs, inputs, types: None).body.op.name == "nn.relu"


def test_legalize_is_in_the_pipeline() -> None:
    mod = aotc.IRModule.from_expr(RELU)
    with TempOpAttr("nn.relu", "FTVMLegalize", lambda a, inputs, t: relay.negative(inputs[0])):
        lib = relay.build(mod, "c")
    module = graph_executor.create(lib.graph_json, lib.lib, aotc.cpu())
    module.run(x=VALUES)
    np.testing.assert_array_equal(module.get_output(0).numpy(), -VALUES)


def test_what_a_rewrite_gives_is_checked() -> None:
    with pytest.raises(AotcError, match=r"FTVMLegalize of nn.relu gave Tensor\[\(6\), float32\] for"):
        legalized(lambda attrs, inputs, types: relay.reshape(inputs[0], (6,)))
    with pytest.raises(AotcError, match="must return an expression, not int"):
        legalized(lambda attrs, inputs, types: 3)


def test_alter_op_layout_asks() -> None:
    def rewrite(attrs: Any, inputs: list[relay.Expr], types: list[relay.Type], out: relay.Type) -> relay.Expr:
        return relay.add(inputs[0], relay.const(1.0))

    with TempOpAttr("nn.relu", "FTVMAlterOpLayout", rewrite):
        mod = relay.transform.AlterOpLayout()(aotc.IRModule.from_expr(RELU))
    assert relay.analysis.list_op_freqs(mod) == {"add": 1}


def test_attributes_of_operators() -> None:
    exp = relay.op.get("exp")
    assert exp.num_inputs == 1 and exp.get_attr("mine") is None
    relay.op.op.register_op_attr("exp", "mine", 1, level=11)
    exp.set_attr("mine", 2)
    assert exp.get_attr("mine") == 1
    with TempOpAttr("exp", "mine", 3):
        assert exp.get_attr("mine") == 3
    assert exp.get_attr("mine") == 1
    exp.reset_attr("mine")
    assert exp.get_attr("mine") is None and relay.op.cast is relay.cast and relay.op.nn.relu is relay.nn.relu


def test_constants_of_a_library_are_passed_over() -> None:
    y = relay.var("y", shape=(3,))
    mod = aotc.IRModule.from_expr(relay.Function([X, y], relay.add(X, y)))
    graph, lib, params = relay.build(
        mod, {"cpu": "c"}, params={"y": np.ones(3, "float32")}, executor=Executor("aot"), runtime=Runtime("crt")
    )
    module = graph_executor.create(graph, lib, aotc.cpu())
    module.set_input("x", VALUES, **params)
    module.run()
    np.testing.assert_array_equal(module.get_output(0).numpy(), VALUES + 1)
    with pytest.raises(AotcError, match="cannot be changed"):
        next(iter(params.values())).copyfrom(np.ones(3, "float32"))
    with pytest.raises(AotcError, match="no input 'y'"):
        module.set_input(y=np.ones(3, "float32"))
    assert len(module.benchmark(aotc.cpu(), repeat=2, number=1, end_to_end=True, x=VALUES).results) == 2


def test_choices_that_every_library_fulfills() -> None:
    """Parameters are in the library, and the host is the machine that is compiled for."""
    executor = Executor("graph", {"link-params": True})
    lib = relay.build(aotc.IRModule.from_expr(RELU), "c", "llvm", executor=executor, runtime=Runtime("cpp"))
    assert lib.target.name == "c"
    assert aotc.target.Target("llvm", host="c") == aotc.target.Target("llvm", host="llvm") == aotc.target.llvm()
    assert aotc.target.Target("cuda", host="llvm") == aotc.target.cuda()


def test_integers_of_another_type() -> None:
    b = relay.var("b", shape=(2,), dtype="uint8")
    run = relay.create_executor("graph", target="c").evaluate(relay.Function([b], relay.add(b, b)))
    np.testing.assert_array_equal(run(np.array([3, 100])).numpy(), np.array([6, 200], "uint8"))
    with pytest.raises(AotcError, match="must be Tensor"):
        run(np.array([3, 256]))


def test_dimensions_and_numbers() -> None:
    n = aotc.te.size_var("n")
    y = relay.var("y", shape=(n, aotc.tir.IntImm("int64", 3), aotc.tir.const(2, "int64")))
    assert str(relay.transform.InferType()(aotc.IRModule.from_expr(relay.exp(y)))["main"].body.checked_type) == (
        "Tensor[(n, 3, 2), float32]"
    )
    assert aotc.te.const(3).value == 3 and aotc.tir.FloatImm("float32", 0.5).dtype == "float32"
    with pytest.raises(AotcError, match="300 does not fit int8"):
        aotc.tir.IntImm("int8", 300)


def test_names() -> None:
    names = NameSupply("net")
    assert [names.fresh_name("f"), names.fresh_name("f")] == ["net_f", "net_f_1"]
    supply = GlobalVarSupply(aotc.IRModule.from_expr(RELU))
    assert supply.fresh_global("main").name == "main_1" and supply.unique_global_for("main").name == "main"
    whole = name_transforms.prefix_name(["model", "Run"])
    styles = (f"to_c_{style}_style" for style in ("function", "variable", "constant"))
    assert [getattr(name_transforms, s)(whole) for s in styles] == ["TVMModelRun", "tvm_model_run", "TVM_MODEL_RUN"]
    assert sanitize_name("input:0") == "input_0" and aotc.TVMError is aotc.error.TVMError is AotcError
    for wrong in (lambda: name_transforms.prefix_name([""]), lambda: name_transforms.to_c_variable_style("net")):
        with pytest.raises(aotc.TVMError):
            wrong()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: Executor("woof"), 'Executor "woof" is not defined'),
        (lambda: Runtime("crt", {"woof": 1}), 'Attribute "woof" is not available on this Runtime'),
        (lambda: Executor("aot", {"interface-api": True}), 'should have type "runtime.String"'),
        (lambda: relay.build(RELU, ["c", "x86-64-v3"]), "compiled for one target, not for c, x86-64-v3"),
        (lambda: relay.build(RELU, "c", executor="aot"), "expected a Executor"),
        (lambda: relay.build(RELU, "c", executor=Executor("aot", {"link-params": False})),
         "Executor 'aot': the option 'link-params' = False is not supported"),
        (lambda: relay.build(RELU, "c", executor=Executor("aot", {"interface-api": "c"})), "'interface-api' = 'c'"),
        (lambda: relay.build(RELU, "c", executor=Executor("aot", {"unpacked-api": True})), "'unpacked-api' = True"),
        (lambda: relay.build(RELU, "c", executor=Executor("aot", {"workspace-byte-alignment": 4})), "alignment' = 4"),
        (lambda: relay.build(RELU, "c", runtime=Runtime("crt", {"system-lib": True})), "Runtime 'crt': .*'system-lib'"),
        (lambda: relay.build(RELU, "x86-64-v3", "aarch64"), "host aarch64 is a target for aarch64, .* for x86_64"),
        (lambda: relay.build(RELU, "x86-64-v3", target_host="cuda"), "host cuda is a target for GPUs"),
        (lambda: relay.build(RELU, "x86-64-v3", target_host="woof"), "unknown target 'woof'"),
        (lambda: aotc.target.Target("aarch64", host="x86-64"), "host x86-64 is a target for x86_64, .* for aarch64"),
        (lambda: aotc.target.Target("cuda", host="cortex-m4"), "host cortex-m4 is a target for arm"),
        (lambda: aotc.target.Target("c", host="cuda"), "kernels of c is compiled for any machine"),
    ],
)  # fmt: skip
def test_choices_are_checked(wrong: Any, message: str) -> None:
    with pytest.raises(AotcError, match=message):
        wrong()


def test_analyses() -> None:
    zero = relay.const(0)
    q, w = (relay.qnn.op.dequantize(relay.var(n, shape=(4, 4), dtype="int8"), relay.const(0.5), zero) for n in "qw")
    fake = relay.qnn.op.quantize(relay.nn.relu(relay.nn.dense(q, w)), relay.const(1.0), zero)
    mod = aotc.IRModule.from_expr(relay.qnn.op.dequantize(fake, relay.const(1.0), zero))
    assert relay.analysis.list_fake_quantized_op_freqs(mod) == {"nn.dense": 1, "nn.relu": 1}
    half = aotc.IRModule.from_expr(relay.qnn.op.quantize(relay.add(q, relay.var("r", shape=(4, 4))), *fake.args[1:]))
    assert relay.analysis.list_fake_quantized_op_freqs(half) == {}
    chain = aotc.IRModule.from_expr(relay.exp(relay.nn.relu(X)))
    assert relay.analysis.extract_intermdeiate_expr(chain, 0)["main"].body.op.name == "nn.relu"
    assert len(relay.analysis.extract_fused_functions(chain)) == 1
    with pytest.raises(AotcError, match="no expression 2: @main has 2"):
        relay.analysis.extract_intermdeiate_expr(chain, 2)


# --- operators of the user's own


@pytest.fixture
def mish(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """An operator with Relay's rule of types, which is removed after the test."""
    registry = import_module("aotc.ir.op")
    monkeypatch.setattr(registry._OP_REGISTRY, "attrs", dict(registry._OP_REGISTRY.attrs))
    ops = registry.installed_ops()
    op.register("my.mish", "x * tanh(log(1 + exp(x)))")
    op.get("my.mish").set_num_inputs(1)
    op.get("my.mish").add_argument("data", "Tensor", "The input.")
    op.get("my.mish").add_type_rel("Identity")
    op.get("my.mish").set_support_level(1)
    op.register_pattern("my.mish", op.OpPattern.ELEMWISE)
    op.register_stateful("my.mish", False)
    yield op.get("my.mish")
    registry.install_op_table(ops)


def test_an_operator_of_the_users_own(mish: Any) -> None:
    assert (mish.num_inputs, mish.support_level, mish.args[0].name) == (1, 1, "data")
    assert mish.get_attr("TOpPattern") == mish.pattern == op.OpPattern.ELEMWISE
    module = aotc.IRModule.from_expr(relay.Call(mish, [relay.const(VALUES)]))
    folded = relay.transform.FoldConstant()(relay.transform.InferType()(module))
    assert str(folded["main"].ret_type) == "Tensor[(2, 3), float32]"
    assert folded["main"].body.op is mish
    again = relay.parse(folded.astext())
    assert aotc.ir.structural_equal(again, folded)
    for run in (lambda mod: relay.build(mod, "c"), lambda mod: relay.create_executor("debug", mod=mod).evaluate()()):
        with pytest.raises(AotcError, match=r"my\.mish"):
            run(folded)

    def meaning(attrs: Any, inputs: Any, types: Any) -> relay.Expr:
        return inputs[0] * relay.tanh(relay.log(relay.const(1.0) + relay.exp(inputs[0])))

    with TempOpAttr("my.mish", "FTVMLegalize", meaning):
        legal = relay.transform.Legalize()(relay.transform.InferType()(module))
    got = relay.create_executor("graph", mod=legal).evaluate()().numpy()
    np.testing.assert_allclose(got, VALUES * np.tanh(np.log1p(np.exp(VALUES))), rtol=1e-5)


def test_rules_of_the_users_own(mish: Any) -> None:
    def doubled(types: Any, attrs: Any) -> relay.Type:
        assert attrs is None
        return relay.TensorType((2 * types[0].shape[0], *types[0].shape[1:]), types[0].dtype)

    mish.add_type_rel("doubled", doubled)
    call = relay.Call(op.get("my.mish"), [X])
    assert relay.transform.InferTypeLocal(call) == relay.TensorType((4, 3), "float32")
    mish.add_argument("more", "Tensor", "One more.")
    mish.add_type_rel("Broadcast")
    both = relay.Call(op.get("my.mish"), [X, relay.var("y", shape=(4, 1, 3))])
    assert relay.transform.InferTypeLocal(both) == relay.TensorType((4, 2, 3), "float32")
    with pytest.raises(AotcError, match="unknown type relation"):
        mish.add_type_rel("Identical")


def test_operators_are_registered_once_and_without_effects(mish: Any) -> None:
    op.register("my.other")
    for what in (
        lambda: op.register("my.mish"),
        lambda: op.register("nn.relu"),
        lambda: op.register_pattern("nn.relu", op.OpPattern.OPAQUE),
        lambda: op.register_stateful("my.mish", True),
        lambda: op.register_pattern("my.none", op.OpPattern.OPAQUE),
        lambda: relay.transform.InferTypeLocal(relay.Call(op.get("my.other"), [X])),
    ):
        with pytest.raises(AotcError):
            what()
