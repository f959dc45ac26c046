# SPDX-License-Identifier: Apache-2.0
"""Flash and RAM that a program needs on a microcontroller, and budgets for them."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from subprocess import run
from typing import Any

import pytest

from aotc.driver.compile import CompileOptions, compile
from aotc.driver.memory_budgets import Budgets, MemorySaving, int8_quantization_savings
from aotc.ir import AotcError
from aotc.tir.plan.memory_footprint import (
    estimated_code_bytes,
    estimated_stack_bytes,
    memory_use_of_steps,
    peak_memory_step,
)
from aotc.tir.plan.memory_plan import check_memory_plan, plan_memory, write_outputs_over_dying_inputs
from aotc.tir.target import CodeSize
from tests.conftest import ROOT
from tests.plan.test_memory_plan import SIZE, elementwise, program, storage

DIGITS = ROOT / "examples" / "digits" / "digits.onnx"
FOOTPRINT = {"arena": 700, "io": 100, "code": 5000, "code_measured": False, "parameters": 300, "stack": 90}
FACTS = FOOTPRINT | {"stack_kernel": "net_add"}


def test_moments_tell_what_lives() -> None:
    x, y, a, b = storage("x", "input"), storage("y", "output"), storage("a"), storage("b", size=2 * SIZE)
    kernel = elementwise(1, inplace=False)
    planned = plan_memory(program((kernel, [x, a]), (kernel, [a, b]), (kernel, [b, y])))
    found = memory_use_of_steps(planned)
    assert [[s.name for s in moment.live] for moment in found] == [["a"], ["b", "a"], ["b"]]
    assert [moment.size for moment in found] == [4 * SIZE, 12 * SIZE, 8 * SIZE]
    most = peak_memory_step(planned)
    assert most is not None and most[0].step == 1 and most[1] is planned.steps[1]
    assert most[0].size == planned.plan.lower_bound


def test_what_is_computed_in_place_takes_bytes_once() -> None:
    x, y, a, b = storage("x", "input"), storage("y", "output"), storage("a"), storage("b")
    kernel = elementwise(1)
    planned = plan_memory(
        write_outputs_over_dying_inputs(program((kernel, [x, a]), (kernel, [a, b]), (kernel, [b, y])))
    )
    check_memory_plan(planned)
    assert [moment.size for moment in memory_use_of_steps(planned)] == [4 * SIZE] * 3


def test_all_budgets_that_are_exceeded_are_told_at_once() -> None:
    planned = plan_memory(program((elementwise(1), [storage("x", "input"), storage("a")])))
    with pytest.raises(AotcError) as caught:
        Budgets(ram=799, flash=5299, stack=89).check_within_memory_budgets(
            planned, FACTS, lambda name: [MemorySaving("less", 1), MemorySaving("more", 2)]
        )
    found = caught.value.diagnostics
    assert [re.findall(r"needs (\d+) bytes of (\w+), 1 more", d.message)[0] for d in found] == [
        ("800", "ram"), ("5300", "flash"), ("90", "stack"),
    ]  # fmt: skip
    assert "fullest in step 0 (add), with 1024 bytes: a float32[256] 1024" in found[0].notes[0]
    assert found[0].hint == "more (about 2 bytes less); less (about 1 bytes less)"
    Budgets(ram=800, flash=5300, stack=90).check_within_memory_budgets(planned, FACTS, lambda name: [])


def test_what_is_left_where_nothing_is_enough() -> None:
    planned = plan_memory(program((elementwise(1), [storage("x", "input"), storage("a")])))
    for ways, begin in (
        ([], "no option that was tried takes less; "),
        ([MemorySaving("less", 1, True)], "less (1 bytes less); none"),
    ):
        with pytest.raises(AotcError) as caught:
            Budgets(ram=700, flash=5200, stack=80).check_within_memory_budgets(
                planned, FACTS, lambda name, ways=ways: ways
            )
        ram, flash, stack = (d.hint for d in caught.value.diagnostics)
        assert all(hint.startswith(begin) for hint in (ram, flash, stack))
        assert ram.endswith(
            f"inputs and outputs take 100 bytes, what one step works on {4 * SIZE}: a smaller model, or ram=800"
        )
        assert flash.endswith("300 bytes are parameters: a smaller model, or flash=5300")
        assert stack.endswith("what is left are registers and addresses: a smaller model, or stack=90")


def test_what_overlaps_counts_once(models: Path) -> None:
    """In no step more is taken than there is of the arena, and in one of them all of it."""
    options = CompileOptions(target="cortex-m4", build=False, workspace_io=True)
    (program,) = options.start_compilation(models / "tflite" / "resnet8_int8.tflite").scheduled_programs
    assert any(kernel.overlaps for kernel in program.distinct_kernels)
    found = memory_use_of_steps(program)
    assert max(moment.size for moment in found) == program.plan.peak
    assert max(sum(s.nbytes for s in moment.live) for moment in found) > program.plan.peak


LARGE = """#[version = "0.0.5"]
def @main(%x: Tensor[(1, 120), float32], %y: Tensor[(1, 200), float32]) {
  (nn.softmax(cumsum(nn.softmax(%x), axis=1)), nn.softmax(cumsum(nn.softmax(%y), axis=1)))
}
"""


@pytest.mark.parametrize("name", ["ram", "flash", "stack"])
def test_ways_save_what_they_say(name: str, tmp_path: Path) -> None:
    """Each that is measured is taken, by the options that its text names."""
    (tmp_path / "large.relay").write_text(LARGE)
    model = tmp_path / "large.relay" if name == "stack" else DIGITS
    options = {"target": "c", "build": name == "flash"}
    with pytest.raises(AotcError) as caught:
        compile(model, **{name: 1}, **options)
    (found,) = caught.value.diagnostics
    needed = int(re.findall(r"needs (\d+) bytes", found.message)[0])
    ways = re.findall(r"\(([^()]+)\) \((\d+) bytes less\)", found.hint or "")
    assert ways
    for option, saved in ways:
        with pytest.raises(AotcError) as caught:
            compile(model, **{name: 1}, **_asked(option), **options)
        less = int(re.findall(r"needs (\d+) bytes", caught.value.diagnostics[0].message)[0])
        assert needed - less == int(saved) > 0


def _asked(option: str) -> dict[str, Any]:
    """The keywords that a hint writes: `config={"compile.reorder": True}`."""
    keywords: dict[str, Any] = eval(f"dict({option})", {"dict": dict})
    return keywords


def test_bytes_for_floats_are_a_way() -> None:
    planned = plan_memory(program((elementwise(1), [storage("x", "input"), storage("a")])))
    assert [way.saved for way in int8_quantization_savings(planned, "ram")] == [3 * SIZE]
    assert int8_quantization_savings(planned, "stack") == []


@pytest.mark.parametrize("name", ["ram", "flash", "stack"])
def test_a_budget_is_a_number_of_bytes(name: str) -> None:
    with pytest.raises(AotcError, match=f"budget for {name}"):
        CompileOptions(**{name: 0})


def test_a_library_over_budget_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(AotcError, match="of code \\(measured\\)"):
        compile(DIGITS, output=tmp_path / "digits", target="c", flash=1000)
    assert not list(tmp_path.iterdir())
    made = compile(DIGITS, output=tmp_path / "digits", target="c")
    facts = made.metadata["footprint"]
    assert facts["code_measured"] and facts["arena"] == made.metadata["memory"]["peak"]


def test_flash_has_the_values_of_a_self_test(tmp_path: Path) -> None:
    """What lies behind the parameters counts, and the error names the option that puts it there."""
    options: dict[str, Any] = {"target": "cortex-m4", "build": False, "selftest": True}
    made = compile(DIGITS, output=tmp_path / "made", **options)
    facts, (file,) = made.metadata["footprint"], (made.path / "src").glob("*_params.bin")
    needed = facts["code"] + file.stat().st_size
    compile(DIGITS, flash=needed, **options)
    with pytest.raises(AotcError, match=f"needs {needed} bytes of flash, 1 more") as caught:
        compile(DIGITS, flash=needed - 1, **options)
    saved = re.findall(r"leave `selftest` out \((\d+) bytes less\)", caught.value.diagnostics[0].hint or "")
    assert [int(size) for size in saved] == [4 * (64 + 10)]


def test_estimates_hold_for_a_compiler(tmp_path: Path) -> None:
    """The stack of no kernel is larger than the estimate, and code as large as is estimated, about."""
    work = CompileOptions(target="c", build=False).start_compilation(DIGITS)
    made, planned = work.emit_project(tmp_path / "digits"), work.scheduled_programs[0]
    folder = made.path
    flags = ["-std=c99", "-Os", "-ffp-contract=off", "-fstack-usage", f"-I{folder}/include", f"-I{folder}/src"]
    sources = sorted((folder / "src").glob("*kernels*.c"))
    frames, code = [], 0
    for source in sources:
        run(["gcc", *flags, "-c", source, "-o", tmp_path / "a.o"], check=True, cwd=tmp_path)
        frames += [int(line.split("\t")[1]) for line in next(tmp_path.glob("*.su")).read_text().splitlines()]
        listed = run(["size", tmp_path / "a.o"], check=True, capture_output=True, text=True).stdout
        code += int(listed.splitlines()[1].split()[0])
    assert 0 < max(frames) < estimated_stack_bytes(planned, CodeSize(), 8)
    assert code / 3 < estimated_code_bytes(planned.distinct_kernels, CodeSize()) < 3 * code


def test_larger_registers_take_more_stack() -> None:
    planned = program((elementwise(1), [storage("x", "input"), storage("a")]))
    assert estimated_stack_bytes(planned, CodeSize(), 8) == 2 * estimated_stack_bytes(planned, CodeSize(), 4)
    assert estimated_stack_bytes(replace(planned, body=()), CodeSize()) > 0
