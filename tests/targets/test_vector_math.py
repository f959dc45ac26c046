# SPDX-License-Identifier: Apache-2.0
"""Elementary functions of float32 keep the bounds that are stated for them, on every target; NaN, infinities, zeros."""

from __future__ import annotations

from pathlib import Path

import pytest
from aotc_codegen.c.flags import cflags
from aotc_codegen.c.mathlib import ULP

from tests.e2e.projects import run
from tests.targets.machines import FOREIGN, machine, native_targets
from tests.targets.ulp import NAMES, Error, Program, build, kernels, measure

NATIVE = native_targets()


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    """For all targets that this processor runs."""
    return build(NATIVE, tmp_path_factory.mktemp("native"))


def require(errors: dict[str, Error], bound: float) -> None:
    assert {name: e for name, e in errors.items() if e.wrong or not e.ulp <= bound} == {}


@pytest.mark.parametrize("function", ULP)
def test_bounds_hold_for_samples(function: str, program: Program) -> None:
    """A million floats, over all exponents."""
    errors = measure(program, function, step=4099)
    assert list(errors) == NATIVE
    require(errors, ULP[function])


@pytest.mark.parametrize("target", [t for t in NATIVE if t in ("x86-64-v3", "x86-64-v4")])
def test_every_function_is_vector_code(target: str, tmp_path: Path) -> None:
    """gcc says of each loop that it vectorised it."""
    here = machine(target)
    (tmp_path / "kernels.c").write_text(kernels(here.target), encoding="utf-8")
    command = ["gcc", "-std=c99", *cflags(here.target), "-fopt-info-vec-optimized=report", "-c", "kernels.c"]
    run(command, tmp_path)
    lines = {line.split(":")[1] for line in (tmp_path / "report").read_text(encoding="utf-8").splitlines()}
    assert len(lines) == len(NAMES)


@pytest.mark.parametrize("target", FOREIGN)
def test_bounds_hold_elsewhere(target: str, tmp_path: Path) -> None:
    elsewhere = build([target], tmp_path)
    for function, bound in ULP.items():
        require(measure(elsewhere, function, step=40_009), bound)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("function", ULP)
def test_bounds_hold_for_every_float(function: str, program: Program) -> None:
    """All of them: 2^32."""
    require(measure(program, function, step=1), ULP[function])
