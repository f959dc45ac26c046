# SPDX-License-Identifier: Apache-2.0
"""Elementary functions of float32 are within their stated error bounds on every target; NaN, infinities, zeros."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from aotc_codegen.c.compiler_flags import kernel_cflags

from aotc.tir.functions.elementary_function_table import ULP
from aotc.tir.target import get_target
from tests.codegen.batch import STRICT
from tests.conftest import require_tool
from tests.share import share
from tests.targets.machines import ELSEWHERE, machine, native_targets
from tests.targets.ulp import NAMES, Error, Program, build, kernels, measure

NATIVE = native_targets()


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    """For all targets that this processor runs."""
    return build(NATIVE, tmp_path_factory.mktemp("native"))


def require(errors: dict[str, Error], bound: float) -> None:
    assert {name: e for name, e in errors.items() if e.wrong or not e.ulp <= bound} == {}


def require_twins(errors: dict[str, Error]) -> None:
    """Targets that agree about fma have the same bits."""
    for fma in (False, True):
        assert len({e.like for name, e in errors.items() if get_target(name).fma == fma}) <= 1, errors


@pytest.mark.parametrize("function", ULP)
def test_bounds_hold_for_samples(function: str, program: Program) -> None:
    """A million floats, over all exponents."""
    errors = measure(program, function, step=4099)
    assert list(errors) == NATIVE
    require(errors, ULP[function])
    require_twins(errors)


@pytest.mark.parametrize("target", [t for t in NATIVE if t in ("x86-64-v3", "x86-64-v4")])
@pytest.mark.parametrize("cc", ["gcc", "clang"])
def test_every_function_is_vector_code(cc: str, target: str, tmp_path: Path) -> None:
    """Each kernel calls a function of whole vectors, and compilers take it without a warning."""
    here = machine(target)
    text = kernels(here.target)
    lanes = here.target.lanes("float32")
    bodies = re.split(r"^void kernel\d+\(.*\{$", text, flags=re.MULTILINE)[1:]
    assert sum(re.search(rf"aotc_\w+x{lanes}\(", body) is not None for body in bodies) == len(NAMES)
    (tmp_path / "kernels.c").write_text(text, encoding="utf-8")
    command = [require_tool(cc), "-std=c99", *kernel_cflags(here.target), *STRICT, "-c", "kernels.c"]
    subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)


@pytest.mark.parametrize("target", share(ELSEWHERE, 2))
def test_bounds_hold_elsewhere(target: str, tmp_path: Path) -> None:
    elsewhere = build([target], tmp_path)
    for function, bound in ULP.items():
        require(measure(elsewhere, function, step=100_003), bound)


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Program:
    """For the first and the last of these targets: one without fma, one with it where the processor has it."""
    return build([NATIVE[0], NATIVE[-1]], tmp_path_factory.mktemp("swept"), quick=True)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("function", ULP)
def test_bounds_hold_for_every_float(function: str, program: Program, swept: Program) -> None:
    """All of them: 2^32; other targets have the bits of these two, for one float in 127."""
    require(measure(swept, function, step=1, checked=251), ULP[function])
    require_twins(measure(program, function, step=127, checked=251))
