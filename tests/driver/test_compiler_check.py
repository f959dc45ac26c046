# SPDX-License-Identifier: Apache-2.0
"""The check of C compilers reports miscompiled kernels by name, and passes right compilers."""

from __future__ import annotations

import logging
import random
import re
import shutil
import stat
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper

import aotc
from aotc import relay
from aotc.checking.verify import verify
from aotc.cli.main import main
from aotc.driver import detect_c_compiler_miscompilation
from aotc.driver.detect_c_compiler_miscompilation import (
    TEST_VALUE_KINDS,
    describe_bit_difference,
    draw_compiler_test_values,
)
from aotc.driver.kernel_libraries import check_kernels_against_unoptimized_build
from aotc.driver.toolchain import find_toolchain, gnu_cross_compiler_name, resolve_target
from aotc.ir import AotcError
from aotc.ir.dtype import DTYPES, DType
from aotc.measuring.tuning import tune_contractions
from aotc.relay import op as operators
from aotc.relay.module import IRModule
from aotc.tir.expr import Buffer
from aotc.tir.interpreter import run_kernel
from aotc.tir.passes import kernel_passes
from aotc.tir.stmt import Kernel
from aotc.tir.target import TARGETS, C, Target
from tests.conftest import require_tool
from tests.ops.harness import kernel_job
from tests.targets.machines import FOREIGN, machine

WRONG = """#!/bin/sh
for flag in "$@"; do [ "$flag" = -O0 ] && exec {cc} "$@"; done
for flag in "$@"; do
  shift
  case "$flag" in *kernels_*.c) sed 's/{old}/{new}/g' "$flag" > {folder}/$$.c; flag={folder}/$$.c ;; esac
  set -- "$@" "$flag"
done
exec {cc} "$@"
"""
"""A compiler that is right at -O0 only."""


def optimizer(folder: Path, old: str, new: str, cc: str = "gcc") -> str:
    """The path of one that takes a piece of a kernel for another."""
    folder = folder / "bin"
    folder.mkdir()
    path = folder / "cc"
    require_tool(cc.split()[0])
    path.write_text(WRONG.format(cc=cc, folder=folder, old=old, new=new), encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def model() -> onnx.ModelProto:
    """Three kernels: the maximum along rows of roots of sizes, its sums, and roots of these."""
    nodes = [
        helper.make_node("Abs", ["x"], ["a"], name="size"),
        helper.make_node("Sqrt", ["a"], ["r"], name="root"),
        helper.make_node("ReduceMax", ["r"], ["m"], name="most", axes=[1], keepdims=0),
        helper.make_node("CumSum", ["m", "zero"], ["s"], name="sums"),
        helper.make_node("Sqrt", ["s"], ["y"], name="last"),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (6, 37))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, (6,))
    zero = onnx.numpy_helper.from_array(np.int64(0), "zero")
    graph = helper.make_graph(nodes, "net", [x], [y], [zero])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def refused(folder: Path, new: str = "cbrtf(", old: str = "sqrtf(", target: str = "c", cc: str = "gcc") -> str:
    """The one diagnostic that the check ends with; nothing stays behind."""
    wrong = optimizer(folder, old, new, cc)
    with pytest.raises(AotcError) as caught:
        aotc.compile(model(), output=folder / "net", target=target, cc=wrong, check_compiler=True, cache=False)
    assert [d.code for d in caught.value.diagnostics] == ["compiler-check"]
    assert [path.name for path in folder.iterdir()] == ["bin"]
    return str(caught.value)


def test_all_kernels_that_are_wrong_are_named_with_compiler_flags_and_nodes(tmp_path: Path) -> None:
    found = refused(tmp_path)
    assert found.startswith(f"{tmp_path}/bin/cc, which is gcc ")
    assert "gives other results for 2 of 3 kernels for c with -std=c99" in found and "-ffp-contract=off than" in found
    assert "note: model_max (nodes size, root, most): max[0] is " in found and "(6 of 6 elements differ)" in found
    assert "note: model_sqrt (nodes last): sqrt[0] is " in found and "model_cumsum" not in found
    assert "hint: take another compiler (`cc`)" in found


def test_functions_that_get_the_constants_of_several_kernels(tmp_path: Path) -> None:
    """Kernels that differ in a constant share a function, which the check calls with the constant of one."""
    nodes = [
        helper.make_node("CumSum", ["x", "zero"], ["p"]),
        helper.make_node("LeakyRelu", ["p"], ["q"], alpha=0.25),
        helper.make_node("CumSum", ["q", "zero"], ["r"]),
        helper.make_node("LeakyRelu", ["r"], ["s"], alpha=0.5),
        helper.make_node("CumSum", ["s", "zero"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, (6,)) for name in "xy")
    graph = helper.make_graph(nodes, "net", [x], [y], [onnx.numpy_helper.from_array(np.int64(0), "zero")])
    merged = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    aotc.compile(merged, output=tmp_path / "net", target="c", check_compiler=True, cache=False)
    (text,) = (path.read_text(encoding="utf-8") for path in (tmp_path / "net" / "src").glob("*_kernels_*.c"))
    assert len(re.findall(r"^void \w+_leaky_relu\(.*, float n0\) \{", text, re.MULTILINE)) == 1


def test_only_extreme_values_may_differ(tmp_path: Path) -> None:
    """What would be right of ordinary numbers."""
    found = refused(tmp_path, "fminf(sqrtf(p0[i0]), 1e9f)", r"sqrtf(p0\[i0\])")
    assert "called with extreme values" in found and "is 1e+09, at -O0 " in found


def test_kernels_that_end_the_program_are_named_and_the_others_still_run(tmp_path: Path) -> None:
    found = refused(tmp_path, "(__builtin_trap(), 1.0f) * sqrtf(")
    assert "2 of 3 kernels" in found
    assert len(re.findall(r"it ends the program \(exit code -\d+, [A-Z][a-z/ ]+\)", found)) == 2


def test_every_instruction_set_that_runs_here_is_checked(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    host = resolve_target("host")
    if host.machine != "x86_64":
        pytest.skip("the library for several instruction sets is for x86-64")
    with pytest.raises(AotcError) as caught:
        wrong = optimizer(tmp_path, "sqrtf(", "cbrtf(")
        aotc.compile(model(), target="x86-64-multi", cc=f"{wrong} -O1", check_compiler=True, cache=False)
    every = [v for v in resolve_target("x86-64-multi").versions if not v.has_integer_dot_instruction]
    versions = [v for v in every if v.vector_bytes <= host.vector_bytes]
    assert [f"kernels for {v.name} with" in str(d) for v, d in zip(versions, caught.value.diagnostics, strict=True)]
    assert caplog.text.count("was not checked") == len(every) - len(versions)


@pytest.mark.parametrize("target", FOREIGN)
def test_foreign_kernels_run_in_an_emulator(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    there, cc = TARGETS[target].machine, machine(target).cc
    assert "model_sqrt" in refused(tmp_path, target=target, cc=cc)
    which = shutil.which
    monkeypatch.setattr(
        detect_c_compiler_miscompilation.shutil, "which", lambda name: None if "qemu" in name else which(name)
    )
    with caplog.at_level(logging.WARNING, "aotc"):
        made = aotc.compile(model(), target=target, cc=str(tmp_path / "bin" / "cc"), check_compiler=True)
    (line,) = caplog.messages
    assert (line,) == made.unchecked and line == (
        f"the C compiler was not checked for {target}: its code cannot run here, and there is no qemu-{there}"
    )


@pytest.mark.parametrize("architecture", sorted({TARGETS[name].machine for name in FOREIGN}))
def test_cross_compilers_of_portable_code_are_checked_in_an_emulator(architecture: str, tmp_path: Path) -> None:
    require_tool(f"qemu-{architecture}")
    cc = gnu_cross_compiler_name(architecture)
    assert "model_sqrt" in refused(tmp_path, target="c", cc=cc)
    assert aotc.compile(model(), target="c", cc=cc, check_compiler=True).unchecked == ()


def test_the_command_line(tmp_path: Path) -> None:
    wrong = optimizer(tmp_path, "sqrtf(", "cbrtf(")
    (tmp_path / "net.onnx").write_bytes(model().SerializeToString())
    net, more = str(tmp_path / "net.onnx"), ["--cc", wrong, "--target", "c"]
    checked = ["compile", net, "-o", str(tmp_path / "net"), "--check-compiler"]
    for arguments in (checked, ["verify", net]):
        done = CliRunner().invoke(main, [*arguments, *more])
        assert done.exit_code == 2 and "2 of 3 kernels" in done.stderr
    assert CliRunner().invoke(main, ["verify", net, "--no-check-compiler", *more]).exit_code == 1
    done = CliRunner().invoke(main, [*checked, "--no-build"])
    assert done.exit_code == 2 and "nothing of the C compiler's to check" in done.stderr


def test_what_tuning_finds_is_checked(tmp_path: Path) -> None:
    weight, data = relay.const(np.ones((24, 16), np.float32)), relay.var("x", shape=(12, 16))
    module = IRModule.from_expr(relay.nn.dense(data, weight))
    options = {"target": "c", "trials": 2, "store": tmp_path / "records.sqlite"}
    with pytest.raises(AotcError) as caught:
        tune_contractions(module, cc=optimizer(tmp_path, " [*] y", " * -y"), **options)
    assert caught.value.code == "compiler-check" and "note: kernels_trial" in str(caught.value)
    report = tune_contractions(module, **options)
    assert (report["known"], report["measured"]) == (0, 1)


def test_verify_checks_unless_told_not_to(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[object] = []
    monkeypatch.setattr("aotc.driver.pipeline.check_c_compiler_on_project", lambda *args: checked.append(args) or [])
    assert verify(model(), seeds=1, target="c").ok and len(checked) == 1
    assert verify(model(), seeds=1, target="c", check_compiler=False).ok and len(checked) == 1


def test_bits_count_but_not_those_of_nan() -> None:
    two = Buffer("y", DType("float32"), 2)
    for a, b, expected in (
        ([0.0, 1.0], [-0.0, 1.0], "y[0] is 0.0, at -O0 -0.0 (1 of 2 elements differ)"),
        ([np.nan, 1.0], [-np.nan, 1.0], ""),
        ([np.nan, 1.0], [1.0, np.inf], "y[0] is nan, at -O0 1.0 (2 of 2 elements differ)"),
    ):
        assert describe_bit_difference(two, np.array(a, np.float32), np.array(b, np.float32)) == expected


@pytest.mark.parametrize("dtype", DTYPES)
def test_values_are_those_of_their_kind(dtype: DType) -> None:
    ordinary, extreme = (draw_compiler_test_values(dtype, k) for k in range(len(TEST_VALUE_KINDS)))
    assert ordinary.itemsize == extreme.itemsize == dtype.itemsize
    if dtype.is_float:
        numbers = ordinary.astype(np.float64)
        assert np.isfinite(numbers).mean() > 0.4
        if dtype in ("float16", "bfloat16", "float32", "float64"):
            assert np.isfinite(numbers).all() and (np.signbit(numbers) & (numbers == 0)).any()
            assert {np.inf, -np.inf, float(dtype.max)} <= {*extreme.astype(np.float64)} and np.isnan(extreme).any()
    elif dtype.is_integer:
        assert {extreme.min(), extreme.max()} == {dtype.min, dtype.max}


def samples(target: Target, count: int) -> list[Kernel]:
    """Kernels of operators on their samples, drawn by seed, as programs have them."""
    found = [
        (op, s)
        for f in operators.OPERATOR_MODULES
        for op in operators.operators_defined_in(f)
        if not op.static
        for s in op.samples()
    ]
    jobs = [kernel_job(op, sample, target) for op, sample in random.Random(count).sample(found, min(count, len(found)))]
    kernels = []
    for job in jobs:
        kernel = job.kernel
        for item in kernel_passes(target):
            kernel = item.rewrite_kernel(kernel)
        kernels.append(kernel)
    return kernels


@pytest.mark.parametrize("count", [40, pytest.param(1 << 30, marks=pytest.mark.slow)])
def test_right_compilers_pass_with_the_kernels_of_all_operators(count: int) -> None:
    target = resolve_target("host")
    check_kernels_against_unoptimized_build(samples(target, count), target, find_toolchain(cflags=["-O1"]))


@pytest.mark.parametrize("count", [150, pytest.param(1 << 30, marks=pytest.mark.slow)])
def test_kernels_stay_within_their_buffers_whatever_they_read(count: int) -> None:
    """The interpreter looks at every access."""
    for kernel in samples(C, count):
        for kind in range(len(TEST_VALUE_KINDS)):
            given = [
                (np.resize(draw_compiler_test_values(b.dtype, kind), b.size), b)
                for b in (*kernel.inputs, *kernel.outputs)
            ]
            arrays = [a.astype(b.dtype.numpy) for a, b in given]
            run_kernel(kernel, arrays[: len(kernel.inputs)], output_init=arrays[len(kernel.inputs) :])
