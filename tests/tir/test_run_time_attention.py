# SPDX-License-Identifier: Apache-2.0
"""Attention whose batch, rows or columns are known at run time only: strips of scores, as with known sizes.

Kernels run in the interpreter on arrays of exactly the elements of a call, with scratch memory that holds NaN.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from aotc.ir import SymDim
from aotc.tir import te
from aotc.tir.expr import call, cast, const, select, variable_of_symbol
from aotc.tir.interpreter import compile_kernel
from aotc.tir.kernel_verifier import verify
from aotc.tir.schedule.kernel_lowering import Lowering
from aotc.tir.schedule.stages.store_or_inline_tensors import plan_storage
from aotc.tir.stmt import Number
from aotc.tir.target import Target, get_target
from tests.codegen.batch import finished
from tests.tir.test_attention_strips import SMALL, Attention

LARGEST = {"n0": 3, "n1": 37, "n2": 41}
BATCH, ROWS, COLUMNS = (SymDim(name, most) for name, most in LARGEST.items())
V3 = get_target("x86-64-v3")
#: Cases that are verified; the proofs of the others, which are alike, take several seconds.
VERIFIED = {"two_lengths", "known_rows"}


def attention(**fields: Any) -> Attention:
    """An attention, of which some sizes may be dimensions."""
    return Attention(**{"outputs": 20, **fields})


#: Attentions: of one sequence, of two, and with known rows or columns; with masks, and with transposed results.
CASES = {
    "one_length": attention(batch=BATCH, rows=ROWS, columns=ROWS, mask="added", keep=(True, False, False, True)),
    "two_lengths": attention(batch=2, heads=3, rows=ROWS, columns=COLUMNS, moved=True),
    "causal": attention(rows=ROWS, columns=ROWS, mask="chosen", moved=True),
    "known_rows": attention(rows=47, columns=COLUMNS, mask="added"),
    "known_columns": attention(batch=BATCH, rows=ROWS, columns=40, mask="added", moved=True),
    "narrow_heads": attention(rows=ROWS, columns=ROWS, depth=8, outputs=8, mask="chosen", moved=True),
    "one_head": attention(batch=BATCH, heads=1, rows=ROWS, columns=ROWS, moved=True),
}


def lowering(case: Attention, target: Target) -> Lowering:
    numbers = [Number(variable_of_symbol(name), 0, most) for name, most in LARGEST.items()]
    inputs = case.inputs()
    return Lowering("attention", inputs, [case.output(inputs)], target, numbers)


def of_sizes(case: Attention, sizes: dict[str, int]) -> Attention:
    """The attention with values for its sizes."""
    dims = {name: getattr(case, name) for name in ("batch", "rows", "columns")}
    return replace(case, **{k: d.bind(sizes) if isinstance(d, SymDim) else d for k, d in dims.items()})


@pytest.mark.parametrize(("name", "target"), [("one_length", V3), *((name, SMALL) for name in CASES)])
def test_results_are_right_at_every_size(name: str, target: Target) -> None:
    case = CASES[name]
    lowered = lowering(case, target)
    assert lowered.chains
    kernel = finished(lowered.build_kernel(), target)
    if name in VERIFIED:
        verify(kernel)
    run = compile_kernel(kernel)
    for batch, rows, columns in ((1, 1, 1), (2, 3, 15), (3, 37, 41), (0, 5, 5), (1, 0, 3), (2, 16, 16), (1, 22, 33)):
        sizes = {"n0": batch, "n1": rows, "n2": columns}
        known = of_sizes(case, sizes)
        arrays = known.values()
        expected = known.expected(arrays)
        expected = expected.swapaxes(1, 2) if case.moved else expected
        result = np.full(expected.size, np.nan, np.float32)
        scratch = [np.full(b.size, np.nan, b.dtype.numpy) for b in kernel.workspace]
        numbers = [sizes[number.var.name] for number in kernel.numbers]
        run.run_kernel_in_place([*(a.reshape(-1) for a in arrays), result, *scratch], numbers)
        np.testing.assert_allclose(result.reshape(expected.shape), expected, rtol=0, atol=2e-6)


def test_scores_are_nowhere_as_a_whole() -> None:
    rows = SymDim("n1", 512)
    kernel = lowering(attention(heads=4, rows=rows, columns=rows, depth=16, outputs=16), SMALL).build_kernel()
    assert max(b.size for b in kernel.workspace) < 512 * 512 // 8


def test_masks_are_computed_once_for_each_score() -> None:
    """Rows of masked scores are stored between the maximum and the exponentials, which read them."""
    n = SymDim("n1", 256)
    scores = te.placeholder((4, n, n), "float32", "scores")
    mask = te.compute(
        (n, n), lambda i, j: select(cast(j, "int32") > cast(i, "int32"), const(-1e9, "float32"), const(0.0, "float32"))
    )
    masked = te.compute((4, n, n), lambda h, i, j: scores[h, i, j] + mask[i, j])
    most = te.reduce("max", (4, n), (n,), lambda h, i, k: masked[h, i, k])
    result = te.compute((4, n, n), lambda h, i, j: call("exp", masked[h, i, j] - most[h, i]))
    plan = plan_storage([result], V3)
    assert masked in plan.stored
    assert mask not in plan.stored
    kernel = Lowering("softmax", [scores], [result], V3, [Number(variable_of_symbol("n1"), 0, 256)]).build_kernel()
    assert sum(b.size for b in (*kernel.workspace, *kernel.stack)) < 4 * 256


@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4"])
def test_heads_of_half_a_vector_are_computed_in_strips(target: str) -> None:
    rows = SymDim("n1", 256)
    lowered = lowering(attention(heads=8, rows=rows, columns=rows, depth=8, outputs=8), get_target(target))
    assert len(lowered.chains) == 1


def test_products_without_tiles_have_stages_of_their_own() -> None:
    case = attention(rows=ROWS, columns=ROWS)
    assert not lowering(case, get_target("c")).chains
    assert not lowering(replace(case, outputs=3), V3).chains
