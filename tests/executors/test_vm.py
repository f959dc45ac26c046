# SPDX-License-Identifier: Apache-2.0
"""The virtual machine: compiled control flow, closures, recursion and dynamic shapes against the interpreter."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from relay.programs import chain, if_chain, let_chain

import aotc
from aotc import relay
from aotc.driver.pipeline import Compilation
from aotc.ir.diagnostics import AotcError
from aotc.ir.dimensions import SymDim
from aotc.ir.op import Op
from aotc.ir.transform import PassContext
from aotc.ir.types import TensorType
from aotc.ir.vm_bytecode import Opcode
from aotc.relay.backend.bytecode_compiler import compile_bytecode
from aotc.relay.interpreter import evaluate
from aotc.relay.module import IRModule
from aotc.relay.testing import mlp, resnet
from aotc.relay.transform.let_conversion import ToANormalForm
from aotc.relay.type_inference import infer_function
from aotc.relay_api.target import Target
from aotc.relay_api.vm_compiler import LateCompiledKernels, compile
from aotc.runtime.vm import VirtualMachine

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
HEAD = '#[version = "0.0.5"]\n'

FACTORIAL = """
def @fact(%n: int32) -> int32 { if (less(%n, 2)) { 1 } else { multiply(%n, @fact(subtract(%n, 1))) } }
def @main(%n: int32) -> int32 { @fact(%n) }
"""
FIBONACCI = """
def @fib(%n: int32) -> int32 { if (less(%n, 2)) { %n } else { add(@fib(subtract(%n, 1)), @fib(subtract(%n, 2))) } }
def @main(%n: int32) -> int32 { @fib(%n) }
"""
MUTUAL = """
def @even(%n: int32) -> bool { if (equal(%n, 0)) { True } else { @odd(subtract(%n, 1)) } }
def @odd(%n: int32) -> bool { if (equal(%n, 0)) { False } else { @even(subtract(%n, 1)) } }
def @main(%n: int32) -> bool { @even(%n) }
"""
CLOSURES = """
def @twice(%f: fn (int32) -> int32, %x: int32) -> int32 { %f(%f(%x)) }
def @main(%n: int32) -> (int32, int32) {
  let %add = fn (%a: int32) -> int32 { add(%a, %n) };
  let %pair = (%add, fn (%a: int32) -> int32 { multiply(%a, %n) });
  let %power = fn (%k: int32) -> int32 { if (less(%k, 1)) { 1 } else { multiply(%n, %power(subtract(%k, 1))) } };
  let %picked = if (less(%n, 4)) { %pair.0 } else { %pair.1 };
  (@twice(%picked, %power(3)), @twice(%power, 1))
}
"""
PROGRAMS = {"factorial": FACTORIAL, "fibonacci": FIBONACCI, "mutual": MUTUAL, "closures": CLOSURES}


def parsed(text: str) -> aotc.IRModule:
    return relay.fromtext(HEAD + text)


def plain(value: Any) -> Any:
    return tuple(map(plain, value)) if isinstance(value, tuple) else np.asarray(value)


def assert_same(got: Any, want: Any) -> None:
    if isinstance(want, tuple):
        assert isinstance(got, tuple) and len(got) == len(want)
        for a, b in zip(got, want, strict=True):
            assert_same(a, b)
    else:
        assert got.dtype == want.dtype and got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def growing() -> aotc.IRModule:
    """A loop that appends a row until there are n."""
    rows = TensorType((SymDim(), 2), "float32")
    n, x, m = relay.var("n", TensorType((), "int32")), relay.var("x", rows), relay.var("m", TensorType((), "int32"))
    loop = relay.GlobalVar("loop")
    one = relay.const(np.ones((1, 2), "float32"))
    again = relay.Call(loop, [relay.subtract(n, relay.const(1, "int32")), relay.concatenate([x, one], 0)])
    body = relay.If(relay.less(n, relay.const(1, "int32")), x, again)
    start = relay.var("start", rows)
    return aotc.IRModule(
        {"loop": relay.Function([n, x], body, rows), "main": relay.Function([m, start], relay.Call(loop, [m, start]))}
    )


@pytest.mark.parametrize("level", [0, 3])
@pytest.mark.parametrize("name", PROGRAMS)
def test_control_flow(name: str, level: int) -> None:
    module = parsed(PROGRAMS[name])
    with PassContext(opt_level=level):
        vm = VirtualMachine(compile(module))
    for n in range(7):
        assert_same(plain(vm.invoke("main", np.int32(n))), evaluate(module, np.int32(n)))


def test_calls_at_the_end_need_no_frame() -> None:
    """A loop by recursion runs in the memory of one activation."""
    exe = compile(parsed(MUTUAL))
    calls = {f.name: [ins.opcode for pc, ins in enumerate(f.code) if pc in f.tail] for f in exe.functions}
    assert calls["even"] == calls["odd"] == [Opcode.INVOKE]
    last = compile(parsed(FACTORIAL)).function_by_name("fact")
    assert last.tail == frozenset()  # the product comes after the call


def test_deep_recursion() -> None:
    vm = VirtualMachine(compile(parsed(MUTUAL)))
    assert not vm.invoke("main", np.int32(10_001)).numpy()
    wrapped = VirtualMachine(compile(parsed(FACTORIAL))).invoke("main", np.int32(10_001))  # a frame for each
    assert wrapped.numpy() == 0


def test_numbers_that_a_type_cannot_hold_are_refused() -> None:
    x = relay.var("x", shape=(2,), dtype="int8")
    vm = VirtualMachine(compile(IRModule.from_expr(relay.Function([x], relay.add(x, x)))))
    assert vm.invoke("main", [1, 2]).numpy().tolist() == [2, 4]
    for numbers in ([1.5, 2.0], [300, 1]):
        with pytest.raises(AotcError, match=r"argument 'x' must be Tensor\[\(2\), int8\]"):
            vm.invoke("main", numbers)


@pytest.mark.parametrize("order", ["abc", "bca", "cab"])
def test_formulas_of_several_symbols_are_checked_once_these_are_known(order: str) -> None:
    shapes = {"a": SymDim("n + m"), "b": SymDim("n"), "c": SymDim("m")}
    params = {name: relay.var(name, TensorType((dim,), "float32")) for name, dim in shapes.items()}
    function = relay.Function([params[name] for name in order], relay.concatenate([params["b"], params["c"]], 0))
    module = IRModule.from_expr(function)
    vm = VirtualMachine(compile(module))

    def arguments(**sizes: int) -> list[np.ndarray[Any, Any]]:
        return [np.ones(sizes[name], "float32") for name in order]

    fitting, contradicting = arguments(a=5, b=2, c=3), arguments(a=6, b=2, c=3)
    assert vm.invoke("main", *fitting).numpy().shape == (5,)
    wrong = "b" if order == "cab" else "a"  # the sizes of c and a determine that of b
    for run in (lambda: vm.invoke("main", *contradicting), lambda: evaluate(module, *contradicting)):
        with pytest.raises(AotcError, match=f"'{wrong}' must be Tensor"):
            run()


def test_shapes_that_grow() -> None:
    module, start = growing(), np.zeros((1, 2), "float32")
    vm = VirtualMachine(compile(module))
    assert_same(plain(vm.invoke("main", np.int32(3), start)), evaluate(module, np.int32(3), start))


def test_a_batch_of_any_size_is_compiled_once_per_size() -> None:
    x = relay.var("x", TensorType((SymDim("n"), 4), "float32"))
    w = np.arange(12, dtype="float32").reshape(3, 4)
    exe = compile(aotc.IRModule.from_expr(relay.nn.relu(relay.nn.dense(x, relay.const(w)))))
    kernels = exe.call_kernel
    assert isinstance(kernels, LateCompiledKernels)
    for size in (1, 2, 5, 2, 1):
        data = np.random.default_rng(size).standard_normal((size, 4)).astype("float32")
        assert_same(plain(VirtualMachine(exe).invoke("main", data)), np.maximum(data @ w.T, 0))
    assert kernels.compilations == 3 * len(exe.primitive_ops)
    assert plain(VirtualMachine(exe).invoke("main", np.zeros((0, 4), "float32"))).shape == (0, 3)


def test_wrong_shapes_at_run_time_name_the_operator() -> None:
    x, y = (relay.var(n, TensorType((SymDim(),), "float32")) for n in "xy")
    vm = VirtualMachine(compile(aotc.IRModule.from_expr(relay.add(x, y))))
    with pytest.raises(AotcError, match=r"add on \(Tensor\[\(2\), float32\], Tensor\[\(3\), float32\]\)"):
        vm.invoke("main", np.ones(2, "float32"), np.ones(3, "float32"))


@pytest.mark.parametrize(("get", "shape"), [(mlp.get_workload, (1, 1, 28, 28)), (resnet.get_workload, (1, 3, 32, 32))])
def test_workloads(get: Any, shape: tuple[int, ...]) -> None:
    module, params = get(batch_size=1) if get is mlp.get_workload else get(1, 10, 18, shape[1:])
    x = np.random.default_rng(0).standard_normal(shape).astype("float32")
    vm = VirtualMachine(compile(module, params=params))
    assert_same(plain(vm.invoke("main", x)), evaluate(module, x, params={n: np.asarray(p) for n, p in params.items()}))


def test_registers_are_dropped_and_threads_share() -> None:
    exe = compile(parsed(FIBONACCI))
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: int(VirtualMachine(exe).invoke("main", np.int32(9)).numpy()), range(8)))
    assert results == [34] * 8
    main = exe.function_by_name("main")
    assert 0 in {k for dead in main.dead for k in dead}


def test_inputs_kept_and_text() -> None:
    exe = compile(parsed(FACTORIAL))
    vm = VirtualMachine(exe, aotc.cpu())
    vm.set_input("main", n=np.int32(5))
    assert vm.run().numpy() == 120 and vm.get_outputs()[0].numpy() == 120
    assert "VM Function[" in exe.bytecode and "invoke_packed" in exe.bytecode and "globals:" in exe.stats
    assert any(i.opcode is Opcode.IF for i in exe.function_by_name("fact").code)


def test_wrong_arguments() -> None:
    vm = VirtualMachine(compile(parsed(FACTORIAL)))
    for args, named in (((np.float32(1),), {}), ((1, 2), {}), ((), {}), ((), {"m": 1}), ((1,), {"n": 1})):
        with pytest.raises(AotcError):
            vm.invoke("main", *args, **named)
    with pytest.raises(AotcError, match="no function"):
        vm.invoke("mein", 1)


def test_main_of_functions_is_refused() -> None:
    with pytest.raises(AotcError, match="takes or gives a function"):
        compile(parsed("def @main(%f: fn (int32) -> int32) -> int32 { %f(1) }"))


def test_executor() -> None:
    assert relay.create_executor("vm", parsed(FACTORIAL)).evaluate()(np.int32(4)).numpy() == 24


@pytest.mark.parametrize("make", [chain, let_chain])
def test_long_programs(make: Any) -> None:
    function = make(2_000)
    values = [np.ones(p.checked_type.static_shape, p.checked_type.dtype.numpy) for p in function.params]
    got = VirtualMachine(compile(aotc.IRModule.from_expr(function))).invoke("main", *values)
    assert_same(plain(got), evaluate(function, *values))


def test_ifs_in_ifs() -> None:
    function = if_chain(500)
    values = [np.ones(p.checked_type.static_shape, p.checked_type.dtype.numpy) for p in function.params]
    with PassContext(opt_level=0):
        got = VirtualMachine(compile(aotc.IRModule.from_expr(function))).invoke("main", *values)
    assert_same(plain(got), evaluate(function, *values))


def test_onnx_if_on_a_value_of_run_time() -> None:
    def branch(op: str) -> onnx.GraphProto:
        out = helper.make_tensor_value_info(f"{op}_out", onnx.TensorProto.FLOAT, [2])
        return helper.make_graph([helper.make_node(op, ["x"], [f"{op}_out"])], op, [], [out])

    node = helper.make_node("If", ["flag"], ["y"], then_branch=branch("Neg"), else_branch=branch("Exp"))
    x, y = (helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [2]) for n in "xy")
    flag = helper.make_tensor_value_info("flag", onnx.TensorProto.BOOL, [])
    graph = helper.make_graph([node], "choice", [flag, x], [y])
    module, params = relay.frontend.from_onnx(helper.make_model(graph))
    vm = VirtualMachine(compile(module, params=params))
    data = np.array([1, 2], "float32")
    for value, want in ((True, -data), (False, np.exp(data))):
        assert_same(plain(vm.invoke("main", flag=np.array(value), x=data)), want)


def test_results_whose_shape_depends_on_values() -> None:
    x = relay.var("x", TensorType((SymDim(),), "int32"))
    where = Op(
        name="positions",
        infer=lambda _, types: TensorType((SymDim(), 1), "int32"),
        reference=lambda _, a: np.argwhere(a).astype("int32"),
    )
    vm = VirtualMachine(compile(aotc.IRModule.from_expr(relay.Call(where, [x]))))
    for data in (np.array([0, 3, 0, 4], "int32"), np.zeros(2, "int32")):
        assert_same(plain(vm.invoke("main", data)), np.argwhere(data).astype("int32"))


def test_the_least_recently_used_kernels_are_given_up() -> None:
    x = relay.var("x", TensorType((SymDim(),), "float32"))
    function = infer_function(relay.Function([x], relay.nn.relu(x)))
    work = Compilation(IRModule(), Target("llvm"), "main", PassContext())
    kernels = LateCompiledKernels(work, {0: function}, {0: "relu"}, limit=2)
    for size in (1, 2, 1, 3, 1, 2):
        kernels(0, [np.ones(size, "float32")])
    assert kernels.compilations == 4


@pytest.mark.parametrize("used", ["called", "given"])
def test_functions_that_the_module_lacks(used: str) -> None:
    """The function is gone after types are known."""
    text = HEAD + (
        "def @gone(%n: int32) -> int32 { add(%n, 1) }\n"
        "def @twice(%f: fn (int32) -> int32, %n: int32) -> int32 { %f(%f(%n)) }\n"
        f"def @main(%n: int32) -> int32 {{ {'@gone(%n)' if used == 'called' else '@twice(@gone, %n)'} }}\n"
    )
    whole = ToANormalForm()(relay.transform.InferType()(relay.fromtext(text)))
    module = IRModule({name: function for name, function in whole.items() if name != "gone"})
    with pytest.raises(AotcError, match="@main uses @gone, which the module lacks") as caught:
        compile_bytecode(module)
    assert caught.value.code == "unknown-function" and "main" in caught.value.diagnostics[0].hint
