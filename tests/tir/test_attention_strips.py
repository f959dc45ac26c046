# SPDX-License-Identifier: Apache-2.0
"""Attention as one loop nest: strips of scores, equal results on every target and for any shape."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aotc.relay.op.softmax import SoftmaxAttrs, softmax
from aotc.tir import te
from aotc.tir.expr import const, select
from aotc.tir.interpreter import run_kernel
from aotc.tir.kernel_verifier import verify
from aotc.tir.schedule import schedule
from aotc.tir.schedule.algorithms.attention import cache_friendly_row_pitch, rows_per_cache_strip
from aotc.tir.schedule.kernel_lowering import Lowering
from aotc.tir.stmt import Kernel
from aotc.tir.target import TARGETS, Target, get_target
from aotc.tir.threads.parallel_kernels import parallelize_kernel

V4 = get_target("x86-64-v4")
SMALL = replace(V4, name="small", l2=8 * 3200)
MASKS = ("", "added", "chosen")
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Attention:
    """softmax(q k^T / 4 + mask) v for `heads` heads of `batch` items; `keep` says which axes the mask has.

    moved    the heads come last but one in the result
    """

    batch: int = 1
    heads: int = 2
    rows: int = 20
    columns: int = 24
    depth: int = 8
    outputs: int = 9
    mask: str = ""
    moved: bool = False
    keep: tuple[bool, bool, bool, bool] = (False, False, True, True)

    @property
    def whole(self) -> tuple[int, int, int, int]:
        return self.batch, self.heads, self.rows, self.columns

    @property
    def mask_shape(self) -> tuple[int, ...]:
        return tuple(n if kept else 1 for n, kept in zip(self.whole, self.keep, strict=True))

    def inputs(self) -> list[te.Placeholder]:
        b, h, m, t = self.whole
        shapes = {"q": (b, m, h, self.depth), "k": (b, t, h, self.depth), "v": (b, t, h, self.outputs)}
        found = [te.placeholder(shape, "float32", name) for name, shape in shapes.items()]
        if self.mask:
            found.append(te.placeholder(self.mask_shape, "bool" if self.mask == "chosen" else "float32", "m"))
        return found

    def output(self, inputs: list[te.Placeholder]) -> te.Tensor:
        """The operators as frameworks write them: heads are transposed to the front, and folded into the batch."""
        b, h, m, t = self.whole
        q, k, v = (
            te.compute((b, h, x.shape[1], x.shape[3]), lambda *i, x=x: x[i[0], i[2], i[1], i[3]]) for x in inputs[:3]
        )
        q3, k3, v3 = (te.view(x, (b * h, *x.shape[2:])) for x in (q, k, v))
        scores = te.contraction(
            (b * h, m, t),
            (self.depth,),
            q3,
            lambda g, i, j, x: (g, i, x),
            k3,
            lambda g, i, j, x: (g, j, x),
            dtype="float32",
        )
        whole = te.view(scores, self.whole)
        masked = te.compute(self.whole, lambda *i: self._masked(whole[i] * 0.25, inputs, i))
        assert softmax.compute is not None
        soft = softmax.compute(SoftmaxAttrs(), masked)
        result = te.contraction(
            (b * h, m, self.outputs),
            (t,),
            te.view(soft, (b * h, m, t)),
            lambda g, i, j, x: (g, i, x),
            v3,
            lambda g, i, j, x: (g, x, j),
            dtype="float32",
            lane=2,
        )
        if not self.moved:
            return result
        split = te.view(result, (b, h, m, self.outputs))
        return te.compute((b, m, h, self.outputs), lambda b, i, h, j: split[b, h, i, j])

    def _masked(self, value: Any, inputs: list[te.Placeholder], place: Any) -> Any:
        if not self.mask:
            return value
        found = inputs[3][tuple(i if kept else const(0) for i, kept in zip(place, self.keep, strict=True))]
        return value + found if self.mask == "added" else select(found, value, -np.inf)

    def values(self) -> list[Array]:
        rng = np.random.default_rng(3)
        arrays = [rng.standard_normal(t.shape).astype(np.float32) for t in self.inputs()]
        if self.mask == "chosen":
            arrays[3] = (arrays[3] > -0.5).astype(bool)
        return arrays

    def expected(self, arrays: list[Array]) -> Array:
        q, k, v = (x.astype(np.float64).transpose(0, 2, 1, 3) for x in arrays[:3])
        scores = q @ k.swapaxes(2, 3) / 4
        if self.mask:
            scores = scores + arrays[3] if self.mask == "added" else np.where(arrays[3], scores, -np.inf)
        with np.errstate(invalid="ignore"):
            terms = np.exp(scores - scores.max(axis=-1, keepdims=True, initial=-np.inf))
            return np.asarray((terms / terms.sum(axis=-1, keepdims=True)) @ v)

    def kernel(self, target: Target) -> Kernel:
        inputs = self.inputs()
        return schedule("attention", inputs, [self.output(inputs)], target)


def fuses(case: Attention, target: Target) -> bool:
    inputs = case.inputs()
    return bool(Lowering("attention", inputs, [case.output(inputs)], target).chains)


def check(case: Attention, target: Target) -> None:
    kernel = case.kernel(target)
    verify(kernel)
    arrays = case.values()
    expected = case.expected(arrays)
    expected = expected.swapaxes(1, 2) if case.moved else expected
    np.testing.assert_allclose(run_kernel(kernel, arrays)[0].reshape(expected.shape), expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_results_are_right_on_every_target(target: str) -> None:
    assert fuses(Attention(mask="added"), get_target(target))
    check(Attention(mask="added"), get_target(target))


@pytest.mark.parametrize("mask", MASKS)
def test_rows_in_several_strips_and_a_rest(mask: str) -> None:
    """47 rows, of which the cache holds no more than 20: two strips and a rest, for each of six heads."""
    case = Attention(batch=2, heads=3, rows=47, columns=40, mask=mask, keep=(True, False, True, True))
    assert fuses(case, SMALL) and rows_per_cache_strip(47, 40, 4, SMALL) == 20
    check(case, SMALL)


def test_scores_are_nowhere_as_a_whole() -> None:
    kernel = Attention(heads=4, rows=256, columns=512, depth=16, outputs=16).kernel(SMALL)
    assert max(b.size for b in kernel.workspace) < 256 * 512 // 8
    assert all(b.private for b in kernel.workspace)


def test_results_are_not_written_over_what_later_strips_read() -> None:
    """A mask, queries, keys and values as large as the result: nothing of them may be gone before the last strip."""
    case = Attention(heads=1, rows=24, columns=24, depth=24, outputs=24, mask="added")
    kernel = case.kernel(SMALL)
    assert {b.size for b in (*kernel.inputs, *kernel.outputs)} == {24 * 24} and kernel.inplace == ()


def test_results_are_stored_where_they_belong() -> None:
    case = Attention(batch=2, heads=3, rows=40, moved=True)
    (output,) = case.kernel(V4).outputs
    assert output.name not in {b.name for b in case.kernel(V4).workspace}
    inputs = case.inputs()
    (chain,) = Lowering("attention", inputs, [case.output(inputs)], V4).chains.values()
    assert chain.permutation is not None
    check(case, V4)


def test_teams_share_heads_and_strips() -> None:
    kernel = Attention(heads=4, rows=256, columns=512, depth=16, outputs=16).kernel(V4)
    team = parallelize_kernel(kernel)
    assert team.team and set(team.private) == set(kernel.workspace)


def test_rows_that_are_masked_as_a_whole_are_not_numbers() -> None:
    case = Attention(mask="chosen")
    arrays = case.values()
    arrays[3][0, 0, 5, :] = False
    found = run_kernel(case.kernel(V4), arrays)[0].reshape(1, 2, 20, 9)
    assert np.isnan(found[:, :, 5]).all() and not np.isnan(np.delete(found, 5, axis=2)).any()


def test_large_scores_do_not_overflow() -> None:
    case = Attention()
    arrays = [x * 100 for x in case.values()]
    found = run_kernel(case.kernel(V4), arrays)[0].reshape(1, 2, 20, 9)
    np.testing.assert_allclose(found, case.expected(arrays), rtol=1e-3, atol=1e-2)


@settings(max_examples=25, deadline=None)
@given(
    case=st.builds(
        Attention,
        batch=st.integers(1, 2),
        heads=st.integers(1, 3),
        rows=st.integers(1, 50),
        columns=st.integers(1, 50),
        depth=st.integers(1, 20),
        outputs=st.integers(1, 40),
        mask=st.sampled_from(MASKS),
        moved=st.booleans(),
        keep=st.tuples(*[st.booleans()] * 4),
    ),
    target=st.sampled_from([SMALL, get_target("c"), get_target("x86-64-v3")]),
)
def test_any_shape(case: Attention, target: Target) -> None:
    check(case, target)


def test_strips_are_of_one_height_where_that_costs_little() -> None:
    room = replace(V4, l2=8 * 4 * 100 * 64)
    assert [rows_per_cache_strip(n, 100, 4, room) for n in (20, 64, 96, 128, 131, 1024)] == [20, 64, 48, 64, 64, 64]
    assert rows_per_cache_strip(1000, 1 << 20, 4, room) == 10  # 16 rows at least are allowed


def test_pitch_is_an_odd_number_of_lines() -> None:
    assert [cache_friendly_row_pitch(n, 4, V4) for n in (3, 16, 17, 32, 512)] == [3, 16, 48, 48, 528]
