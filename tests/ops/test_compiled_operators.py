# SPDX-License-Identifier: Apache-2.0
"""The compiled kernel of every sample has the interpreter's bits, and the interpreter agrees with the numpy reference.

A program per family: portable C here and on other architectures under an emulator, and C with vectors.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from aotc.relay import op as operators
from aotc.relay.op.opdef import OpDef
from tests.codegen.batch import STRICT
from tests.codegen.bit_comparison import wrong
from tests.ops.harness import assert_agrees, flat, interpret, kernel_job
from tests.share import share
from tests.targets.machines import ELSEWHERE, PORTABLE, machine

FAMILIES = {family.__name__.removeprefix("aotc.relay.op."): family for family in operators.OPERATOR_MODULES}
VECTORS = ("x86-64-v3",)
OTHERS = [*product(FAMILIES, [*ELSEWHERE, *PORTABLE])]
QUARTER = len(FAMILIES) // 4


@pytest.mark.parametrize(
    ("family", "target"),
    [
        *share(product(FAMILIES, ["c"]), QUARTER),
        *share(product(FAMILIES, VECTORS), QUARTER // 2),
        *share(OTHERS, QUARTER // 2),
    ],
)
def test_compiled_kernels_have_the_bits_of_the_interpreter(family: str, target: str, tmp_path: Path) -> None:
    ops: tuple[OpDef, ...] = operators.operators_defined_in(FAMILIES[family])
    cases = [(op, sample) for op in ops if op.static is None for sample in op.samples()]
    here = machine(target)
    jobs = [kernel_job(op, sample, here.target) for op, sample in cases]
    # optimizers find more to warn of than parsers; buffers of no elements may lie at one address
    warnings = (*STRICT, "-Wno-restrict") if target == "c" else ()
    results = here.run_kernels([(job.kernel, job.inputs) for job in jobs], tmp_path, "-O1", *warnings)
    problems: dict[str, str] = {}
    for (op, sample), job, compiled, interpreted in zip(cases, jobs, results, interpret(jobs), strict=True):
        try:
            assert not wrong(job.kernel, compiled, interpreted)
            for actual, expected in zip(interpreted, flat(op.reference(sample.attrs, *sample.args)), strict=True):
                assert_agrees(actual, expected, sample.accuracy)
            for found, actual in zip(compiled, interpreted, strict=True):
                assert_agrees(found.reshape(actual.shape), actual, sample.accuracy)
        except AssertionError as error:
            problems.setdefault(op.name, f"{sample.attrs}: {error}")
    assert not problems, "\n".join(f"{name}: {why}" for name, why in problems.items())
