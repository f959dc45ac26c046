# SPDX-License-Identifier: Apache-2.0
"""The kernel of every sample, compiled as C, agrees with the operator's numpy meaning: a program per family.

Here as portable C, and for other architectures under an emulator.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from aotc.relay import op as operators
from aotc.relay.op.opdef import OpDef
from tests.codegen.batch import STRICT
from tests.ops.harness import assert_agrees, flat, kernel_job
from tests.share import share
from tests.targets.machines import FOREIGN, machine

FAMILIES = sorted(family.__name__.rpartition(".")[2] for family in operators.FAMILIES)


@pytest.mark.parametrize(
    ("family", "target"), [*product(FAMILIES, ["c"]), *share(product(FAMILIES, FOREIGN), len(FAMILIES))]
)
def test_compiled_kernels_agree_with_reference(family: str, target: str, tmp_path: Path) -> None:
    ops: tuple[OpDef, ...] = operators.operators_of(getattr(operators, family))
    cases = [(op, sample) for op in ops if op.static is None for sample in op.samples()]
    here = machine(target)
    jobs = [kernel_job(op, sample, here.target) for op, sample in cases]
    # optimisers find more to warn of than parsers; buffers of no elements may lie at one address
    warnings = (*STRICT, "-Wno-restrict") if target == "c" else ()
    results = here.run_kernels([(job.kernel, job.inputs) for job in jobs], tmp_path, "-O1", *warnings)
    wrong: dict[str, str] = {}
    for (op, sample), outputs in zip(cases, results, strict=True):
        for actual, expected in zip(outputs, flat(op.reference(sample.attrs, *sample.args)), strict=True):
            try:
                assert_agrees(actual.reshape(expected.shape), expected, sample.accuracy)
            except AssertionError as error:
                wrong.setdefault(op.name, f"{sample.attrs}, {expected.dtype}: {error}")
    assert not wrong, "\n".join(f"{name}: {why}" for name, why in wrong.items())
