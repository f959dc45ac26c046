# SPDX-License-Identifier: Apache-2.0
"""Small models that would need much time or memory: work is left to run time, or one diagnostic refuses it.

Nothing here is timed: budgets are small, what is computed is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from evaluation import model_of
from onnx import ModelProto, NodeProto, helper

from aotc.driver.compile import CompileOptions
from aotc.ir.compilation_work_and_memory_limits import running_or_new_budget_scope
from aotc.ir.diagnostics import AotcError
from aotc.ir.op import Op
from aotc.relay.analysis import list_op_freqs
from aotc.relay.expr import Call
from aotc.relay.frontend.onnx import from_onnx
from aotc.relay.text.parser import parse
from aotc.relay.transform.fold_constant import FoldConstant
from aotc.relay.transform.inline_eta_expand_lambda_lift import Inline
from aotc.relay.visitor import post_order
from aotc.tir.plan.program import Program
from tests.call_counts import calls_of

F32 = np.float32
HEAD = '#[version = "0.0.5"]\n'


def node(kind: str, inputs: list[str], outputs: list[str], **attributes: Any) -> NodeProto:
    return helper.make_node(kind, inputs, outputs, name=kind, **attributes)


def folded_into_sum(nodes: list[NodeProto], **constants: np.ndarray) -> ModelProto:
    """x plus the sum of `c`, which the nodes compute from constants."""
    total = helper.make_node("ReduceSum", ["c"], ["total"], keepdims=0)
    nodes = [*nodes, total, helper.make_node("Add", ["x", "total"], ["y"])]
    return model_of(nodes, {"x": (2,)}, ["y"], constants=constants)


def programs(model: ModelProto, config: Mapping[str, int]) -> list[Program]:
    """The model through every stage before C."""
    with running_or_new_budget_scope(config):
        options = CompileOptions(target="x86-64-v3", config=config, cache=False)
        return list(options.start_compilation(from_onnx(model)).scheduled_programs)


# --- folding


def calls(count: str, model: ModelProto, config: Mapping[str, int]) -> int:
    """How often an operator is left after folding."""
    with running_or_new_budget_scope(config):
        return list_op_freqs(FoldConstant()(from_onnx(model)).main).get(count, 0)


def convolution(kind: str = "Conv") -> ModelProto:
    data, weight = np.ones((1, 2, 40, 40), F32), np.ones((2, 2, 21, 21), F32)
    return folded_into_sum([node(kind, ["d", "w"], ["c"])], d=data + np.arange(40, dtype=F32), w=weight)


@pytest.mark.parametrize(
    ("config", "left"),
    [
        ({}, 0),
        # what one tap reads, at most the data, its share of the sums, and the sums
        ({"compile.max_bytes": (2 * 40 * 40 + 2 * 2 * 20 * 20) * 8 - 1}, 1),
        ({"compile.max_bytes": (2 * 40 * 40 + 2 * 2 * 20 * 20) * 8}, 0),
        # two channels of outputs
        ({"compile.max_work": 2 * 20 * 20 * 2 * 21 * 21}, 1),
        ({"compile.max_work": 2 * 20 * 20 * 2 * 21 * 21 + 10_000}, 0),
    ],
)
def test_a_convolution_of_constants_beyond_the_budget_is_left_to_run_time(config: dict[str, int], left: int) -> None:
    assert calls("nn.conv2d", convolution(), config) == left


def test_what_is_left_to_run_time_is_compiled() -> None:
    (program,) = programs(convolution(), {"compile.max_bytes": 1 << 15})
    assert any("conv2d" in step.kernel.name for step in program.steps)


@pytest.mark.parametrize(
    ("kind", "operator", "constants", "attributes"),
    [
        ("MaxPool", "nn.max_pool1d", {"d": np.arange(8, dtype=F32).reshape(1, 1, 8)},
         {"kernel_shape": [9000], "pads": [8999, 8999], "strides": [9]}),
        ("AveragePool", "nn.avg_pool1d", {"d": np.arange(8, dtype=F32).reshape(1, 1, 8)},
         {"kernel_shape": [9000], "pads": [8999, 8999], "strides": [9]}),
        ("MatMul", "nn.dense", {"d": np.arange(1 << 14, dtype=F32).reshape(128, 128)}, {}),
        ("LRN", "nn.lrn", {"d": np.arange(64 * 64, dtype=F32).reshape(1, 64, 8, 8)}, {"size": 1001}),
    ],
)  # fmt: skip
def test_work_is_that_of_windows_and_sums(
    kind: str, operator: str, constants: dict[str, np.ndarray], attributes: dict[str, Any]
) -> None:
    """Arguments and results are small: what lies between them is not."""
    inputs = ["d", "d"] if kind == "MatMul" else ["d"]
    model = folded_into_sum([node(kind, inputs, ["c"], **attributes)], **constants)
    assert calls(operator, model, {}) == 0
    assert sum(calls(name, model, {"compile.max_work": 200_000}) for name in (operator, "nn.matmul")) == 1


def test_what_is_computed_is_counted() -> None:
    """References run only where the budget says so: the work of all of them together is below it."""
    ran: list[int] = []
    nodes = [node("Exp", [f"c{k}"], [f"c{k + 1}"]) for k in range(50)]
    model = folded_into_sum([*nodes, node("Neg", ["c50"], ["c"])], c0=np.linspace(-1, 0, 4096, dtype=F32))
    with running_or_new_budget_scope({"compile.max_work": 500_000}) as limits:
        module = from_onnx(model)
        for expr in post_order(module.main):
            if isinstance(expr, Call) and isinstance(expr.op, Op):
                ran.append(limits.remaining_compile_time_budget("compile.max_work"))
    assert 0 <= limits.remaining_compile_time_budget("compile.max_work") < 500_000
    assert len(ran) > 30, "most are left to run time"


# --- what cannot be left to run time


def refusal(model: ModelProto, config: Mapping[str, int]) -> str:
    with pytest.raises(AotcError) as caught:
        programs(model, config)
    assert caught.value.code == "budget"
    assert len(caught.value.diagnostics) == 1
    return str(caught.value)


def pool(kind: str, outputs: int = 1, **attributes: Any) -> ModelProto:
    return model_of([node(kind, ["x"], ["y", "i"][:outputs], **attributes)], {"x": (1, 1, 8)}, ["y", "i"][:outputs])


BYTES, UNROLL = {"compile.max_bytes": 1 << 16}, {"compile.max_unroll": 10}
REFUSED: dict[str, tuple[ModelProto, dict[str, int]]] = {
    "split to sequence": (
        model_of(
            [node("SplitToSequence", ["x"], ["s"]), node("ConcatFromSequence", ["s"], ["y"], axis=0)],
            {"x": (2_000_000_000,)},
            ["y"],
        ),
        UNROLL,
    ),
    "indices of a pool": (
        pool("MaxPool", 2, kernel_shape=[10**8], pads=[10**8 - 1] * 2, strides=[10**8]), UNROLL,
    ),
    "range": (
        model_of(
            [node("Range", ["a", "b", "s"], ["c"]), node("Add", ["x", "c"], ["y"])],
            {"x": (1,)},
            ["y"],
            constants={"a": np.array(0), "b": np.array(1 << 30), "s": np.array(1)},
        ),
        BYTES,
    ),
    "filled": (
        model_of(
            [node("MaxUnpool", ["x", "i"], ["y"], kernel_shape=[200_000], strides=[200_000])],
            {"x": (1, 1, 2)},
            ["y"],
            constants={"i": np.zeros((1, 1, 2), np.int64)},
        ),
        BYTES,
    ),
    "eye": (model_of([node("EyeLike", ["x"], ["y"])], {"x": (1 << 9, 1 << 9)}, ["y"]), BYTES),
    "phases": (
        model_of([node("ConvTranspose", ["x", "w"], ["y"], strides=[11])], {"x": (1, 1, 4), "w": (1, 1, 3)}, ["y"]),
        UNROLL,
    ),
    "dft": (model_of([node("DFT", ["x"], ["y"], axis=1)], {"x": (1, 257, 1)}, ["y"], opset=17), BYTES),
    "grid": (
        model_of([node("AffineGrid", ["x", "s"], ["y"])], {"x": (1, 2, 3)}, ["y"],
                 constants={"s": np.array([1, 1, 256, 256])}),
        BYTES,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_needed_and_beyond_the_budget_is_one_diagnostic(name: str) -> None:
    model, config = REFUSED[name]
    text = refusal(model, config)
    (key,) = config
    assert f'config={{"{key}": ' in text
    assert f"{config[key]} are allowed" in text
    assert f"node {model.graph.node[0].op_type}" in text


def test_a_split_into_more_parts_than_outputs_is_refused_at_once() -> None:
    split = node("Split", ["x"], ["y"], axis=0, num_outputs=2_000_000_000)
    with pytest.raises(AotcError, match="num_outputs is 2000000000, the node has 1 outputs"):
        from_onnx(model_of([split], {"x": (2,)}, ["y"]))


# --- shapes whose tables or positions need not be made


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("size", [3, 1])
def test_resize_to_many_elements_makes_no_tables_here(mode: str, size: int) -> None:
    shape = np.array([1, 1, 1 << 37])
    made = node("Resize", ["x", "", "", "s"], ["y"], mode=mode)
    (program,) = programs(model_of([made], {"x": (1, 1, size)}, ["y"], constants={"s": shape}), BYTES)
    assert program.outputs[0].shape == (1, 1, 1 << 37)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_antialiased_resize_makes_no_tables_here(mode: str) -> None:
    made = node("Resize", ["x", "", "", "s"], ["y"], mode=mode, antialias=1)
    model = model_of([made], {"x": (1, 1, 10**9)}, ["y"], constants={"s": np.array([1, 1, 10])})
    assert programs(model, BYTES)[0].outputs[0].shape == (1, 1, 10)


@pytest.mark.parametrize("kind", ["MaxPool", "AveragePool", "LpPool"])
@pytest.mark.parametrize("stride", [1, 10**9])
def test_pools_of_huge_windows_are_not_walked_here(kind: str, stride: int) -> None:
    model = pool(kind, kernel_shape=[10**9], pads=[10**9 - 1] * 2, strides=[stride])
    (program,) = programs(model, BYTES)
    assert program.outputs[0].shape[:2] == (1, 1)


@pytest.mark.parametrize("kind", ["Tile", "Expand"])
def test_repetitions_are_not_numbered_here(kind: str) -> None:
    model = model_of([node(kind, ["x", "r"], ["y"])], {"x": (1,)}, ["y"], constants={"r": np.array([1 << 37])})
    assert programs(model, BYTES)[0].outputs[0].shape == (1 << 37,)


# --- Relay text


def test_functions_that_call_each_other_twice() -> None:
    rows = ["def @f0(%x: Tensor[(2), float32]) -> Tensor[(2), float32] { nn.relu(%x) }"]
    rows += [
        f"def @f{k}(%x: Tensor[(2), float32]) -> Tensor[(2), float32] {{ @f{k - 1}(@f{k - 1}(%x)) }}"
        for k in range(1, 60)
    ]
    module = parse(HEAD + "\n".join([*rows, "def @main(%x: Tensor[(2), float32]) { @f59(%x) }"]))
    with (
        running_or_new_budget_scope({"compile.max_nodes": 2000}),
        pytest.raises(AotcError, match="max_nodes") as caught,
    ):
        Inline(everything=True)(module)
    assert caught.value.diagnostics[0].span is not None


# --- costs that grow with the size, not with its square


def choices(count: int) -> str:
    inner = "if (%c) { nn.relu(%x) } else { " * count + "%x" + " }" * count
    return f"{HEAD}def @main(%c: bool, %x: Tensor[(2), float32]) {{ {inner} }}"


def chain(count: int, backwards: bool) -> ModelProto:
    nodes = [helper.make_node("Relu" if k % 2 else "Neg", [f"t{k}"], [f"t{k + 1}"]) for k in range(count)]
    return model_of(nodes[::-1] if backwards else nodes, {"t0": (2,)}, [f"t{count}"])


def concatenation(count: int) -> ModelProto:
    names = [f"x{k}" for k in range(count)]
    return model_of([node("Concat", names, ["y"], axis=0)], dict.fromkeys(names, (600,)), ["y"])


def parts(count: int) -> ModelProto:
    return model_of([node("Split", ["x"], [f"y{k}" for k in range(count)])], {"x": (count,)},
                    [f"y{k}" for k in range(count)])  # fmt: skip


GROWTH: dict[str, tuple[int, Callable[[int], object]]] = {
    "chain": (400, lambda n: from_onnx(chain(n, backwards=False))),
    "chain backwards": (400, lambda n: from_onnx(chain(n, backwards=True))),
    "concatenation": (300, lambda n: programs(concatenation(n), {})),
    "parts": (150, lambda n: programs(parts(n), {})),
    "nested choices": (400, lambda n: parse(choices(n))),
}


@pytest.mark.parametrize("name", GROWTH)
def test_twice_the_size_is_twice_the_work(name: str) -> None:
    size, action = GROWTH[name]
    action(size // 4)  # what is done only once
    once, twice = calls_of(lambda: action(size)), calls_of(lambda: action(2 * size))
    assert twice < 2.4 * once


def test_nested_choices_are_read() -> None:
    assert str(parse(choices(5_000)).main.body.checked_type) == "Tensor[(2), float32]"
