# SPDX-License-Identifier: Apache-2.0
"""Bisection names the wrong kernel, its nodes and the pass that made it; without a wrong kernel, it names the graph."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from aotc import relay
from aotc.checking.input_generation import draw_random_inputs
from aotc.checking.kernel_bisection import COMPILER, SCHEDULE, SuspectKernel, find_first_wrong_kernel
from aotc.checking.verify import _copies_with_intermediates_as_outputs, describe_first_wrong_node, verify
from aotc.driver.compile import CompileOptions
from aotc.driver.pipeline import Compilation
from aotc.ir.diagnostics import AotcError
from aotc.ir.types import TensorType
from aotc.relay.module import IRModule
from aotc.tir import passes
from aotc.tir.stmt import Kernel, Stmt, Store, rebuild_stmt
from aotc.tir.target import Target
from tests.conftest import require_tool

SHAPE = (1, 4, 24, 40)
FAULTY = r"""#!/bin/sh
for file in "$@"; do
  case "$file" in *kernels_*.c) grep -q '{fused}' "$file" && exec {cc} {faults} "$@" ;; esac
done
exec {cc} "$@"
"""
"""A compiler that gets square roots wrong in files with a kernel of certain nodes."""
FAULTS = " ".join(
    [
        "-Dsqrtf=cbrtf",
        *(f"'-D__builtin_ia32_{name}(a)=(-(a))'" for name in ("sqrtps", "sqrtps256")),
        "'-D__builtin_ia32_sqrtps512_mask(a, b, c, d)=(-(a))'",
    ]
)
"""The roots of numbers and of vectors are other functions."""


def model() -> onnx.ModelProto:
    """y = max_pool(sqrt(|conv(x)|)) + 1, where root and size are one kernel."""
    weight = np.random.default_rng(0).standard_normal((4, 4, 3, 3)).astype(np.float32)
    one = np.ones(1, np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv", pads=[1] * 4),
        helper.make_node("MaxPool", ["c"], ["p"], name="pool", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Abs", ["p"], ["a"], name="size"),
        helper.make_node("Sqrt", ["a"], ["r"], name="root"),
        helper.make_node("Add", ["r", "one"], ["y"], name="sum"),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPE)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 4, 12, 20))
    constants = [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(one, "one")]
    graph = helper.make_graph(nodes, "net", [x], [y], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def faulty_compiler(folder: Path, fused: str) -> str:
    path = folder / "cc"
    path.write_text(FAULTY.format(fused=fused, faults=FAULTS, cc=require_tool("gcc")), encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@pytest.mark.parametrize("target", ["c", "host"])
def test_a_kernel_that_is_wrong_only_when_fused_is_named(tmp_path: Path, target: str) -> None:
    cc = faulty_compiler(tmp_path, "/[*].*pool, size, root, sum")
    report = verify(model(), seeds=1, bisect=True, target=target, cc=cc, cflags=("-O1",), cache=False)
    assert not report.ok
    assert report.first_difference == "no node differs when every result is an output"
    assert report.wrong_kernel.startswith("kernel max_pool2d (nodes pool, size, root, sum), output 'y': add[0] is ")
    assert ", by its program " in report.wrong_kernel
    assert (report.as_dict()["wrong_kernel"], report.blame) == (report.wrong_kernel, COMPILER)


def test_a_node_and_its_kernel_are_named(tmp_path: Path) -> None:
    cc = faulty_compiler(tmp_path, "root")
    report = verify(model(), seeds=1, bisect=True, cc=cc, cflags=("-O1",), cache=False)
    assert report.first_difference.startswith("node root (Sqrt), output 'r'")
    assert "nodes pool, size, root, sum" in report.wrong_kernel


def test_a_kernel_that_is_scheduled_wrongly_is_blamed_on_the_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    real = passes.vectorize_kernel

    def wrong(stmt: Stmt) -> Stmt:
        return replace(stmt, value=stmt.value + stmt.value) if isinstance(stmt, Store) else rebuild_stmt(stmt, wrong)

    def doubled(kernel: Kernel, target: Target) -> Kernel:
        made = real(kernel, target)
        return replace(made, body=wrong(made.body)) if kernel.name == "max_pool2d" else made

    monkeypatch.setattr(passes, "vectorize_kernel", doubled)
    report = verify(model(), seeds=1, bisect=True, cflags=("-O1",), cache=False)
    assert report.blame == SCHEDULE and report.first_difference.startswith("node pool (MaxPool), output 'p'")
    assert report.wrong_kernel.startswith("kernel max_pool2d (nodes pool, size, root, sum), output 'y': error relative")


def test_kernels_of_graphs_are_compared_too(tmp_path: Path) -> None:
    cc = faulty_compiler(tmp_path, "[*]/$")
    module = IRModule.from_expr(relay.sqrt(relay.add(relay.var("x", shape=(5,)), relay.const(9.0))))
    report = verify(module, seeds=1, bisect=True, target="c", cc=cc, cflags=("-O1",), cache=False)
    assert not report.ok and report.blame == COMPILER and report.wrong_kernel.startswith("kernel ")
    assert report.first_difference == ""


def test_kernels_that_are_right_leave_fusion(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass that goes wrong where results stay inside."""
    real = CompileOptions.start_compilation

    def wrong(options: CompileOptions, proto: onnx.ModelProto, **more: Any) -> Compilation:
        broken = onnx.ModelProto()
        broken.CopyFrom(proto)
        if len(broken.graph.output) == 1:
            broken.graph.node[-2].op_type = "Neg"
        return real(options, broken, **more)

    monkeypatch.setattr(CompileOptions, "start_compilation", wrong)
    report = verify(model(), seeds=1, bisect=True, cflags=("-O1",))
    assert "no kernel is wrong: a pass on the graph is" in report.first_difference
    assert (report.wrong_kernel, report.blame) == ("", "")


@pytest.mark.parametrize("target", ["c", "host", "x86-64-multi"])
@pytest.mark.parametrize("opt_level", [0, 3])
def test_a_right_compiler_has_no_wrong_kernels(target: str, opt_level: int) -> None:
    """Kernels that work in place, for teams and with Winograd's algorithm among them."""
    x = np.random.default_rng(1).standard_normal(SHAPE).astype(np.float32)
    options = CompileOptions(target=target, opt_level=opt_level, cflags=("-O1",))
    assert find_first_wrong_kernel(options.start_compilation(model()), {"x": x}, bound=1e-5) == SuspectKernel()


def test_the_search_for_a_kernel_is_bounded(tmp_path: Path) -> None:
    work = CompileOptions(cflags=("-O1",)).start_compilation(model(), toolchain=None)
    inputs = {"x": np.zeros(SHAPE, np.float32)}
    with pytest.raises(
        AotcError, match=r"comparing kernels needs about .* MiB at .*: the budget is 0.0 MiB"
    ) as refused:
        find_first_wrong_kernel(work, inputs, bound=1e-5, memory=20_000)
    assert refused.value.diagnostics[0].code == "memory" and "memory=4294967296" in refused.value.diagnostics[0].hint
    assert find_first_wrong_kernel(work, inputs, bound=1e-5, memory=1 << 20) == SuspectKernel()


@pytest.mark.parametrize(("memory", "least"), [(1 << 30, 1), (70_000, 3)])
def test_results_are_compared_in_parts_that_the_memory_is_enough_for(memory: int, least: int) -> None:
    parts = list(_copies_with_intermediates_as_outputs(model(), ["x"], memory))
    shown = [[o.name for o in part.graph.output[1:]] for part, _ in parts]
    assert len(parts) >= least and [name for names in shown for name in names] == ["c", "p", "a", "r"]


def test_a_node_is_found_whatever_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("float64_reference", "onnx_evaluator_conv_pool"):
        monkeypatch.setattr(f"aotc.checking.{module}.MAX_STRIP_BYTES", 1 << 12)
    cc = faulty_compiler(tmp_path, "root")
    options = CompileOptions(cc=cc, cflags=("-O1",), cache=False, target="c")
    inputs = draw_random_inputs({"x": TensorType(SHAPE, "float32")}, 0)
    types = {"x": TensorType(SHAPE, "float32")}
    found = [describe_first_wrong_node(model(), types, inputs, options, memory) for memory in (1 << 30, 200_000)]
    assert found[0].startswith("node root (Sqrt), output 'r'") and found[1].startswith("node root (Sqrt), output 'r'")


@pytest.mark.parametrize(
    ("nodes", "dims", "hint"),
    [
        ([("Exp", "x", "y")], {"n": (1, 4)}, "compile one size: dims="),
        ([("Reshape", "x", "shape", "y")], {"n": 4}, "with cut_after="),
        ([("NonZero", "x", "found"), ("Transpose", "found", "y")], {"n": 4}, "with cut_after="),
    ],
)
def test_kernels_of_run_time_sizes_are_refused(nodes: list[list[str]], dims: dict[str, Any], hint: str) -> None:
    """Sizes in a range, sizes that are elements of an input, and sizes that a run finds."""
    made = [helper.make_node(operator, inputs, [output]) for operator, *inputs, output in nodes]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 6])
    shape = helper.make_tensor_value_info("shape", TensorProto.INT64, [2])
    inputs = [x, shape] if any("shape" in node.input for node in made) else [x]
    dtype = TensorProto.INT64 if made[0].op_type == "NonZero" else TensorProto.FLOAT
    graph = helper.make_graph(made, "net", inputs, [helper.make_tensor_value_info("y", dtype, None)])
    sized = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    with pytest.raises(AotcError, match=r"sizes vary at run time cannot be compared one by one") as caught:
        verify(sized, bisect=True, dims=dims)
    assert caught.value.code == "dims" and hint in caught.value.diagnostics[0].hint
