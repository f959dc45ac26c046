# SPDX-License-Identifier: Apache-2.0
"""The kernel of every sample, compiled as C, agrees with the operator's numpy meaning: a library per family."""

from __future__ import annotations

import shutil

import pytest

from aotc.relay import op as operators
from aotc.relay.op.opdef import OpDef
from tests.ops.harness import assert_agrees, flat, kernel_job
from tests.ops.native import compile_and_run

FAMILIES = sorted(name for name, module in vars(operators).items() if hasattr(module, "OPS"))


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
@pytest.mark.parametrize("family", FAMILIES)
def test_compiled_kernels_agree_with_reference(family: str) -> None:
    ops: tuple[OpDef, ...] = getattr(operators, family).OPS
    cases = [(op, sample) for op in ops if op.static is None for sample in op.samples()]
    results = compile_and_run([kernel_job(op, sample) for op, sample in cases])
    wrong: dict[str, str] = {}
    for (op, sample), outputs in zip(cases, results, strict=True):
        for actual, expected in zip(outputs, flat(op.reference(sample.attrs, *sample.args)), strict=True):
            try:
                assert_agrees(actual, expected, sample.accuracy)
            except AssertionError as error:
                wrong.setdefault(op.name, f"{sample.attrs}, {expected.dtype}: {error}")
    assert not wrong, "\n".join(f"{name}: {why}" for name, why in wrong.items())
