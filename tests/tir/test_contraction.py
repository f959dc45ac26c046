# SPDX-License-Identifier: Apache-2.0
"""The contraction generator against numpy: every proposed tiling, on every target, for irregular shapes."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from contractions import Case, conv, matmul
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from aotc.tir import te
from aotc.tir.bare_metal_portable_and_small_targets import target_optimized_for_size
from aotc.tir.expr import Buffer, Expr, Load, Var
from aotc.tir.interpreter import run_kernel
from aotc.tir.kernel_verifier import verify
from aotc.tir.schedule import contraction
from aotc.tir.schedule.contraction import (
    build_contraction_nest,
    cpu_tiling_candidates,
    untiled_contraction,
    weight_packing_block_size,
)
from aotc.tir.schedule.contraction.contraction_index_analysis import OperandDimension
from aotc.tir.schedule.contraction.tile_segments import BorderSignature, even_tiles_grouped_by_border_signature
from aotc.tir.schedule.contraction.tiling_cost import fraction_of_unpadded_products
from aotc.tir.simplify import LinearForm
from aotc.tir.stmt import Assign, Declare, Execute, Kernel, Stmt, Store, walk_stmts
from aotc.tir.target import TARGETS, Target, get_target
from tests.share import draw, share_of_each

V4 = get_target("x86-64-v4")
ALL = sorted(TARGETS)


taps = st.tuples(st.integers(-3, 3).filter(bool), st.integers(-12, 12), st.integers(1, 30), st.integers(-2, 2))


@given(st.integers(1, 40), st.integers(1, 9), st.lists(taps, max_size=2), st.integers(1, 3))
def test_borders_are_where_the_taps_inside_the_data_change(
    extent: int, size: int, drawn: list[tuple[int, int, int, int]], kernel: int
) -> None:
    """Tiles are even, in order and complete, and neighbors in one segment have the same taps at every position."""
    axis, tap = Var("i"), Var("k")
    dims = [
        OperandDimension(LinearForm({axis: step, tap: along or 1}, begin), n, 1, False)
        for step, begin, n, along in drawn
    ]
    signature = BorderSignature.signature_for_axis(dims, axis, [(tap, kernel)])
    tiles = [
        (s, s.begin + k * s.size)
        for s in even_tiles_grouped_by_border_signature(extent, size, signature)
        for k in range(s.count)
    ]
    covered = [begin + start for segment, begin in tiles for start in segment.starts]
    assert covered == list(range(extent))
    for (a, at), (b, then) in itertools.pairwise(tiles):
        same = [signature.is_data_in_range_at_each_tap(at + s) for s in a.starts] == [
            signature.is_data_in_range_at_each_tap(then + s) for s in b.starts
        ]
        assert (a is b) == same


def test_rows_without_end_are_tiled_at_once() -> None:
    axis, tap = Var("i"), Var("k")
    dims = [OperandDimension(LinearForm({axis: 1, tap: 1}, -1), 1 << 40, 1, False)]
    segments = even_tiles_grouped_by_border_signature(
        1 << 40, 8, BorderSignature.signature_for_axis(dims, axis, [(tap, 3)])
    )
    assert [s.count for s in segments] == [1, (1 << 37) - 2, 1]


def check(case: Case, kernel: Kernel, seed: int = 0) -> None:
    """The kernel is well formed and computes the case."""
    verify(kernel)
    a, b = case.values(seed)
    (found,) = run_kernel(kernel, [a, b])
    expected = case.expected(a, b)
    if not case.out.dtype.is_float:
        np.testing.assert_array_equal(found.reshape(expected.shape), expected)
        return
    tolerance = 1e-5 if case.out.dtype == "float32" else 1e-12
    scale = max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(found.reshape(expected.shape), expected, rtol=0, atol=tolerance * scale)


def operands(case: Case) -> tuple[Buffer, Buffer, Buffer]:
    return tuple(Buffer(t.name, t.dtype, t.size) for t in (case.a, case.b, case.out))  # type: ignore[return-value]


def store_to(out: te.Contraction, buffer: Buffer):
    def store(indices: tuple[Expr, ...], value: Expr) -> Stmt:
        return Store(buffer, te.flat_index(out.shape, indices), value)

    return store


CASES = {
    "packed": conv(ic=5, oc=20, size=(9, 17), padding=1, block=16),
    "two rows in a tile": conv(ic=4, oc=33, size=(7, 7), padding=1, block=32),
    "strided": conv(ic=3, oc=16, size=(15, 33), kernel=(7, 7), stride=2, padding=3, block=16),
    "dilated": conv(ic=3, oc=8, size=(12, 20), dilation=3, padding=3, block=8),
    "1x1": conv(ic=17, oc=24, size=(5, 13), kernel=(1, 1), block=8),
    "1x1 strided": conv(ic=6, oc=16, size=(14, 14), kernel=(1, 1), stride=2, block=16),
    "padded 1x1": conv(ic=3, oc=4, size=(5, 5), kernel=(1, 1), padding=2, block=4),
    "groups": conv(ic=8, oc=32, size=(6, 9), groups=2, padding=1, block=16),
    "unpacked groups": conv(ic=6, oc=9, size=(6, 9), groups=3, padding=1),
    "groups narrower than a block": conv(ic=8, oc=64, size=(5, 6), groups=4, padding=1, block=16),
    "groups of a few pixels": conv(ic=16, oc=64, size=(2, 2), groups=2, padding=1, block=32),
    "ragged groups": conv(ic=6, oc=69, size=(5, 9), groups=3, padding=2, dilation=2),
    "ragged groups of many": conv(batch=2, ic=4, oc=74, size=(9, 3), groups=2, stride=2, padding=1),
    "channels last ragged groups": conv(ic=6, oc=69, size=(5, 9), groups=3, stride=2, padding=1, last=True),
    "unpacked": conv(batch=2, ic=3, oc=5, size=(11, 19), padding=1),
    "depthwise": conv(batch=2, ic=4, oc=4, size=(14, 14), groups=4, padding=1),
    "depthwise strided": conv(ic=3, oc=6, size=(9, 40), groups=3, stride=2, padding=1),
    "channels last": conv(ic=5, oc=33, size=(7, 9), padding=1, block=32, last=True),
    "channels last 1x1": conv(batch=2, ic=17, oc=24, size=(5, 13), kernel=(1, 1), block=8, last=True),
    "channels last groups": conv(ic=8, oc=32, size=(6, 9), groups=2, padding=1, block=16, last=True),
    "channels last depthwise": conv(batch=2, ic=40, oc=40, size=(14, 14), groups=40, padding=1, last=True),
    "channels last depthwise strided": conv(ic=21, oc=21, size=(9, 31), groups=21, stride=2, padding=1, last=True),
    "few channels last depthwise": conv(ic=5, oc=5, size=(4, 5), kernel=(5, 5), groups=5, padding=2, last=True),
    "channels last multiplied": conv(ic=8, oc=16, size=(6, 9), groups=8, padding=1, last=True),
    "one column": conv(batch=2, ic=2, oc=2, size=(21, 3), kernel=(3, 1), stride=3, groups=2),
    "long kernel": conv(ic=1, oc=8, size=(1, 300), kernel=(1, 90), padding=0, stride=3, block=8),
    "kernel wider than the image": conv(ic=2, oc=4, size=(2, 3), kernel=(5, 5), padding=2, block=4),
    "borders of much text": conv(ic=2, oc=20, size=(2, 5), kernel=(7, 7), padding=3, block=16),
    "borders of much text, groups": conv(
        ic=4, oc=36, size=(9, 9), kernel=(7, 7), groups=2, stride=2, dilation=3, padding=9
    ),
    "gemm": matmul(m=17, k=19, n=50, block=16),
    "gemv": matmul(m=1, k=64, n=100, block=32),
    "run-time gemm": matmul(m=33, k=9, n=21),
    "run-time gemv": matmul(m=1, k=9, n=37),
    "attention": matmul(m=5, k=8, n=18, batch=3, transposed=True),
    "batched": matmul(m=18, k=8, n=5, batch=2),
    "int8": conv(ic=3, oc=9, size=(8, 20), padding=1, block=8, dtype="int8", acc="int32"),
    "uint8 depthwise": conv(ic=4, oc=4, size=(8, 20), groups=4, padding=1, dtype="uint8", acc="int32"),
    "uint8 channels last depthwise": conv(
        batch=2, ic=104, oc=104, size=(5, 9), groups=104, padding=1, last=True, dtype="uint8", acc="int32"
    ),
    "int8 channels last depthwise": conv(
        ic=40, oc=40, size=(8, 13), kernel=(5, 5), groups=40, padding=2, stride=2, last=True, dtype="int8", acc="int32"
    ),
    "uint8 channels last depthwise dilated": conv(
        ic=24, oc=24, size=(9, 8), groups=24, padding=2, dilation=2, last=True, dtype="uint8", acc="int32"
    ),
    "uint8 short rows of channels last depthwise": conv(
        ic=64, oc=64, size=(7, 5), groups=64, padding=1, last=True, dtype="uint8", acc="int32"
    ),
    "int8 rows of channels last depthwise": conv(
        ic=64, oc=64, size=(1, 30), kernel=(1, 7), groups=64, padding=3, last=True, dtype="int8", acc="int32"
    ),
    "float64": matmul(m=9, k=9, n=19, block=8, dtype="float64"),
    "float16": conv(ic=2, oc=4, size=(5, 6), padding=1, block=4, dtype="float16", acc="float32"),
    "slices of rows of ten": conv(batch=2, ic=1, oc=16, size=(7, 1), kernel=(1, 1), stride=2, padding=1),
    "slices of rows of five": conv(batch=2, ic=1, oc=16, size=(12, 1), kernel=(1, 1), padding=2),
    "int64": matmul(m=3, k=5, n=9, dtype="int64"),
}


@pytest.mark.parametrize(("name", "target"), share_of_each(CASES, ALL, 1))
def test_the_chosen_tiling_is_right(name: str, target: str) -> None:
    check(CASES[name], CASES[name].kernel(get_target(target)))


@pytest.mark.parametrize("most", [2, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", CASES)
def test_every_proposed_tiling_is_right(name: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most `most` of them, also those that the cost model passes over: which is best is a matter of speed only."""
    case = CASES[name]
    count = len(cpu_tiling_candidates(case.out, *operands(case)[:2], store_to(case.out, operands(case)[2]), V4))
    assert 0 < count <= 1000
    for k in draw(range(count), most, name):
        with monkeypatch.context() as patch:
            patch.setattr(
                contraction, "cpu_tiling_candidates", lambda *args, k=k: cpu_tiling_candidates(*args)[k : k + 1]
            )
            check(case, case.kernel(V4))


def test_tiles_of_one_row_leave_out_products_with_padding() -> None:
    """Tiles of several rows would be too much text; a padded copy would have five times as many products."""
    case = CASES["borders of much text"]
    (x, w, out), c = operands(case), case.out
    assert isinstance(c, te.Contraction)
    found = [one for one in cpu_tiling_candidates(c, x, w, store_to(c, out), V4) if one.name.startswith("lanes")]
    assert found and not any(one.workspace for one in found)
    inside = [0 <= i + k - 3 < 2 and 0 <= j + m - 3 < 5 for i, j, k, m in np.ndindex(2, 5, 7, 7)]
    assert all(fraction_of_unpadded_products(one.tiling) == pytest.approx(np.mean(inside)) for one in found)


@pytest.mark.parametrize("name", ["strided", "depthwise", "unpacked groups", "float16"])
def test_zeros_stand_for_padding_only_beside_finite_weights(name: str) -> None:
    """Zero times an infinity is NaN: copies of the data with a border are for weights that are known."""
    case = CASES[name]
    assert isinstance(case.out, te.Contraction)
    x, w, out = operands(case)
    unknown = replace(case.out, b=te.placeholder(case.out.b.shape, case.out.b.dtype, "w"))
    for c, allowed in ((case.out, True), (unknown, False)):
        names = {b.name for found in cpu_tiling_candidates(c, x, w, store_to(c, out), V4) for b in found.workspace}
        assert bool(names & {"padded", "rows"}) == allowed


@st.composite
def convolutions(draw: st.DrawFn) -> Case:
    small = st.integers(1, 3)
    groups, kernel = draw(st.sampled_from([1, 1, 2, 4])), (draw(st.integers(1, 4)), draw(st.integers(1, 4)))
    dilation, padding = draw(st.integers(1, 2)), draw(st.integers(0, 2))
    reach = [dilation * (k - 1) + 1 - 2 * padding for k in kernel]
    size = tuple(max(1, r) + draw(st.integers(0, 18)) for r in reach)
    oc, block = groups * draw(st.sampled_from([1, 3, 8, 16, 20])), draw(st.sampled_from([0, 4, 8, 16, 32]))
    assume(groups == 1 or not block or oc // groups % block == 0)
    inner = draw(small)
    if draw(st.booleans()) and not block:  # depthwise
        groups, inner = oc, 1
    return conv(
        batch=draw(st.integers(1, 2)),
        ic=groups * inner,
        oc=oc,
        size=(size[0], size[1]),
        kernel=kernel,
        stride=draw(small),
        padding=padding,
        dilation=dilation,
        groups=groups,
        block=block,
        last=draw(st.booleans()),
    )


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(convolutions(), st.sampled_from(ALL), st.integers(0, 99))
def test_any_convolution(case: Case, target: str, seed: int) -> None:
    check(case, case.kernel(get_target(target)), seed)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 40),
    st.integers(1, 40),
    st.integers(1, 70),
    st.sampled_from([0, 0, 2]),
    st.sampled_from([0, 8, 16, 48]),
    st.booleans(),
    st.sampled_from(ALL),
)
def test_any_matrix_product(m: int, k: int, n: int, batch: int, block: int, transposed: bool, target: str) -> None:
    block = 0 if batch else block
    case = matmul(m=m, k=k, n=n, batch=batch, block=block, transposed=transposed and not block)
    check(case, case.kernel(get_target(target)))


def test_infinity_and_nan_pass_through() -> None:
    """A zero weight times an infinity is NaN, as in any sum of products."""
    case = matmul(m=3, k=4, n=20, block=16)
    a, b = case.values(0)
    a[1, 2] = np.inf
    b[:, 2, :] = 0
    (found,) = run_kernel(case.kernel(V4), [a, b])
    rows = found.reshape(3, 20)
    assert np.isnan(rows[1]).all()
    assert np.isfinite(rows[[0, 2]]).all()


def test_every_element_is_stored_once() -> None:
    """An epilogue may work in place: a second store of an element would read what the first one wrote."""
    for name, case in CASES.items():
        a, b, out = operands(case)

        def store(indices: tuple[Expr, ...], value: Expr, case: Case = case, out: Buffer = out) -> Stmt:
            at = te.flat_index(case.out.shape, indices)
            return Store(out, at, Load(out, at) + 1)

        for target in (V4, get_target("c")):
            nest = build_contraction_nest(case.out, a, b, store, target)
            kernel = Kernel(
                name="count", inputs=(a, b), outputs=(out,), body=nest.stmt, stack=nest.stack, workspace=nest.workspace
            )
            init = [np.zeros(out.size, out.dtype.numpy)]
            (found,) = run_kernel(kernel, list(case.values(0)), output_init=init)
            assert (found == 1).all(), name


def test_accumulators_fit_the_registers() -> None:
    """What a tile keeps is named, and never more than the machine has."""
    for name, target in itertools.product(("packed", "1x1", "gemm", "unpacked"), ("x86-64", "x86-64-v3", "x86-64-v4")):
        machine = get_target(target)
        case = CASES[name]
        found = cpu_tiling_candidates(case.out, *operands(case)[:2], store_to(case.out, operands(case)[2]), machine)
        best = min(found, key=lambda c: c.cost)
        nest = best.build_loop_nests()
        names = {s.var.name for s in walk_stmts(nest.stmt) if isinstance(s, Declare) and s.var.name.startswith("acc")}
        assert 1 < len(names) <= machine.registers


def test_depthwise_with_the_channels_last_is_a_product_of_vectors() -> None:
    case = CASES["channels last depthwise"]
    (best, *_) = sorted(
        cpu_tiling_candidates(case.out, *operands(case)[:2], store_to(case.out, operands(case)[2]), V4),
        key=lambda c: c.cost,
    )
    assert best.tiling.product.along and best.workspace == ()


@pytest.mark.parametrize(
    ("l1", "l2", "order"),
    [
        (64 << 10, 1 << 20, [14, "rows", "channels", "columns"]),
        (8 << 10, 1 << 20, [14, "columns", "rows", "channels"]),
        (4 << 10, 1 << 20, [8, "columns", "rows", "channels"]),
        (2 << 10, 1 << 20, [14, "columns", "channels", "rows"]),
        (4 << 10, 64 << 10, [8, "columns", "rows", "channels"]),
        (1 << 10, 64 << 10, [14, "rows", "channels", "columns"]),
    ],
)
def test_rows_below_each_other_find_their_data_in_the_nearest_cache(l1: int, l2: int, order: list[str | int]) -> None:
    """3 rows of 40 columns of 32 channels are 15 KiB, those of a tile of 14 columns 6 KiB, of 8 columns 3.75 KiB."""
    case = conv(ic=32, oc=32, size=(20, 40), groups=32, padding=1, last=True)
    target = replace(get_target("x86-64-v3"), l1=l1, l2=l2)
    check(case, case.kernel(target))
    operand = operands(case)
    best = min(
        cpu_tiling_candidates(case.out, *operand[:2], store_to(case.out, operand[2]), target), key=lambda c: c.cost
    )
    _, rows, columns, channels = (var for var, _ in case.out.axes)
    names = {rows: "rows", columns: "columns", channels: "channels"}
    levels = {names[axis.var]: axis for axis in best.tiling.levels if axis.var in names}
    assert [max(s.size for s in levels["columns"].segments), *levels] == order


@pytest.mark.parametrize(("channels", "vectors"), [(1360, 2), (64, 1)])
def test_tiles_are_as_wide_as_blocks_of_weights_that_exceed_the_cache(channels: int, vectors: int) -> None:
    """Tiles of one vector have no column to spare in rows of 22, but read every second line of the weights."""
    case = conv(ic=channels, oc=32, size=(22, 22), kernel=(7, 7), padding=9, dilation=3, block=32)
    x, w, out = operands(case)
    assert isinstance(case.out, te.Contraction)
    best = min(cpu_tiling_candidates(case.out, x, w, store_to(case.out, out), V4), key=lambda one: one.cost)
    assert best.name == f"lanes axis=1 vectors={vectors} lanes=16"


@pytest.mark.parametrize(("channels", "copied"), [(256, True), (240, False)])
def test_data_that_competes_for_few_sets_of_the_nearest_cache_is_copied(channels: int, copied: bool) -> None:
    """Positions 1,024 bytes apart have 32 lines of the cache, those 960 bytes apart 512: a window has 13 x 19."""
    case = conv(ic=channels, oc=channels, size=(13, 13), kernel=(7, 7), groups=channels, padding=3, stride=1, last=True)
    x, w, out = operands(case)
    assert isinstance(case.out, te.Contraction)
    best = min(cpu_tiling_candidates(case.out, x, w, store_to(case.out, out), V4), key=lambda one: one.cost)
    assert best.tiling.product.along and ["padded"] * copied == [b.name for b in best.workspace]
    if copied:
        check(case, case.kernel(V4))


def test_tiles_of_few_positions_are_transposed_in_small_squares() -> None:
    """Tiles of two vectors have 8 columns: squares of 16 would be transposed for 8 empty rows."""
    case = conv(ic=32, oc=32, size=(16, 16), padding=1, block=32)
    x, w, out = operands(case)
    assert isinstance(case.out, te.Contraction)
    found = cpu_tiling_candidates(case.out, x, w, store_to(case.out, out), V4)
    (wide,) = (one for one in found if one.name.startswith("lanes") and "vectors=2" in one.name)
    squares = [s for s in walk_stmts(wide.build_loop_nests().stmt) if isinstance(s, Execute)]
    assert {(s.instruction, s.extents[0] and s.extents[0].rows) for s in squares} == {("transpose_square", 8)}


@given(st.data())
def test_points_inside_a_dimension_are_counted(data: st.DataObject) -> None:
    variables = [Var(f"v{k}") for k in range(data.draw(st.integers(0, 3)))]
    extents = {var: data.draw(st.integers(1, 7)) for var in variables}
    steps = {var: data.draw(st.integers(-3, 3).filter(bool)) for var in variables}
    dim = OperandDimension(LinearForm(steps, data.draw(st.integers(-9, 9))), data.draw(st.integers(1, 9)), 1, False)
    points = itertools.product(*(range(extents[var]) for var in variables))
    assert dim.estimated_points_with_index_in_range(extents) == sum(
        dim.is_index_in_range(dict(zip(variables, at, strict=True))) for at in points
    )


@pytest.mark.parametrize(("width", "kernel"), [(1, 1), (9, 3)])
def test_convolutions_whose_rows_are_all_padding_are_computed(width: int, kernel: int) -> None:
    """The stride leaves one output row, which reads the padding above the data: its index is constant."""
    check(case := conv(ic=32, oc=32, size=(1, width), kernel=(1, kernel), padding=1, stride=5), case.kernel(V4))


@pytest.mark.parametrize("width", [7, 14, 30])
def test_borders_of_depthwise_convolutions_of_bytes_are_no_tiles_of_their_own(width: int) -> None:
    """Sums of products are written out once for each width of a tile, whatever borders the kernel has."""
    case = conv(
        ic=64, oc=64, size=(14, width), kernel=(5, 5), groups=64, padding=2, last=True, dtype="uint8", acc="int32"
    )
    kernel = case.kernel(get_target("x86-64-v4-vnni"))
    dots = [s for s in walk_stmts(kernel.body) if isinstance(s, Assign) and "dot" in str(s.value)]
    assert 0 < len(dots) <= 2 * 4 * 7
    check(case, kernel)


@pytest.mark.parametrize(("width", "kernel", "stride", "padding", "channels"), [
    (28, 3, 1, 1, 64),
    (53, 3, 2, 1, 96),  # a smaller last tile; vectors that begin in the previous tile of channels
    (54, 5, 2, 2, 64),
    (58, 3, 2, 0, 32),
    (29, 3, 1, 2, 64),  # the last columns are padding alone
])  # fmt: skip
def test_panels_of_rows_that_fill_the_cache_hold_one_tile(
    width: int, kernel: int, stride: int, padding: int, channels: int
) -> None:
    case = conv(
        ic=channels, oc=channels, size=(6, width), kernel=(kernel, kernel), groups=channels, padding=padding,
        stride=stride, last=True, dtype="uint8", acc="int32",
    )  # fmt: skip
    target = get_target("x86-64-v4-vnni")
    row, tile = (
        max(b.nbytes for b in case.kernel(replace(target, l1=nbytes)).workspace if b.name.startswith("panel"))
        for nbytes in (1 << 20, 4096)
    )
    assert tile < row / 2
    check(case, case.kernel(replace(target, l1=4096)))


def test_borders_cost_no_scratch() -> None:
    """A packed 3x3 convolution reads its input where it lies."""
    kernel = conv(ic=64, oc=64, size=(56, 56), padding=1, block=32).kernel(V4)
    assert kernel.workspace == ()
    assert sum(b.nbytes for b in kernel.stack) <= 4096


@pytest.mark.parametrize("target", ALL)
def test_single_products_have_the_plain_nest(target: str) -> None:
    """Nothing of the data follows another element, so nothing can be copied before."""
    case = matmul(m=1, k=1, n=10, transposed=True, dtype="float16", acc="float32")
    check(case, case.kernel(get_target(target)))


def test_positions_counted_through_rows_are_finished_in_registers() -> None:
    kernel = conv(ic=64, oc=64, size=(56, 56), kernel=(1, 1), block=32).kernel(V4)
    stored = {s.buffer for s in walk_stmts(kernel.body) if isinstance(s, Store)}
    assert stored == set(kernel.outputs)


def test_empty_contractions_have_the_plain_nest() -> None:
    case = matmul(m=3, k=0, n=4)
    a, b, out = operands(case)
    assert cpu_tiling_candidates(case.out, a, b, store_to(case.out, out), V4) == []
    (found,) = run_kernel(case.kernel(V4), [np.zeros((3, 0), np.float32), np.zeros((0, 4), np.float32)])
    assert (found == 0).all()


def test_an_irregular_contraction_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """An index that is not affine in the summed axes."""
    x, w = te.placeholder((40,), "float32", "x"), te.placeholder((5, 6), "float32", "w")
    out = te.contraction(
        (5,), (6,), x, lambda i, k: ((i * k) % 7 * 2 + k,), w, lambda i, k: (i, k), dtype="float32"
    )  # fmt: skip

    def meaning(a, b):
        return np.array([sum(a[(i * k) % 7 * 2 + k] * b[i, k] for k in range(6)) for i in range(5)])

    case = Case(x, w, out, meaning)
    for target in (V4, get_target("c")):
        check(case, case.kernel(target))


def test_generated_code_is_deterministic() -> None:
    from aotc.tir.kernel_text import to_text

    texts = {to_text(conv(ic=4, oc=20, size=(9, 9), padding=1, block=16).kernel(V4)) for _ in range(2)}
    assert len(texts) == 1


@pytest.mark.parametrize(
    ("n", "target", "dtype", "block"),
    [
        (64, "x86-64-v4", "float32", 32),
        (48, "x86-64-v4", "float32", 48),
        (16, "x86-64-v4", "float32", 16),
        (24, "x86-64-v4", "float32", 24),  # three halves of vectors
        (40, "x86-64-v4", "float32", 8),
        (2, "x86-64-v4", "float32", 0),
        (64, "x86-64-v3", "float32", 16),
        (64, "x86-64-v4", "int8", 32),
        (64, "c", "float32", 4),
        (100, "cuda", "float32", 32),  # that many threads go in step
        (10, "cuda", "float32", 12),
        (64, "x86-64-v4", "float16", 32),
        (64, "x86-64-v4", "bfloat16", 32),
    ],
)
def test_pack_block(n: int, target: str, dtype: str, block: int) -> None:
    assert weight_packing_block_size(n, get_target(target), dtype) == block


def test_packing_for_one_row_takes_more_vectors() -> None:
    assert weight_packing_block_size(1000, V4, "float32", output_positions=1) == 64


@pytest.mark.parametrize(
    ("n", "positions", "block"),
    [(6, 1, 8), (4, 1, 4), (3, 7, 4), (2, 1, 0), (6, 8, 0), (6, 0, 0)],  # 8 positions fill half a vector
)
def test_few_channels_at_few_positions_are_packed_in_narrow_blocks(n: int, positions: int, block: int) -> None:
    assert weight_packing_block_size(n, V4, "float32", output_positions=positions) == block
    padded = block != n
    small = weight_packing_block_size(n, target_optimized_for_size(V4), "float32", output_positions=positions)
    assert small == (0 if padded else block)


def test_thin_products_on_devices_take_weights_as_they_are() -> None:
    assert [
        weight_packing_block_size(1000, get_target("cuda"), "float32", output_positions=n) for n in (1, 15, 16)
    ] == [0, 0, 32]


def test_pack_block_of_rows_that_share_a_place_of_the_cache() -> None:
    """Rows a multiple of 4096 bytes apart: fewer of them at a time, and more channels."""
    blocks = [
        weight_packing_block_size(768, V4, "float32", output_positions=n, position_pitch_bytes=p)
        for n, p in ((64, 4096), (64, 3072), (16, 12288))
    ]
    assert blocks == [48, 32, 32]
    assert (
        weight_packing_block_size(
            768, get_target("x86-64-v3"), "float32", output_positions=64, position_pitch_bytes=4096
        )
        == 16
    )


def test_the_plain_nest_agrees() -> None:
    """The definition itself, as the reference of the reference."""
    case = CASES["unpacked"]
    a, b, out = operands(case)
    nest = untiled_contraction.build_untiled_contraction(case.out, a, b, store_to(case.out, out))
    kernel = Kernel(name="plain", inputs=(a, b), outputs=(out,), body=nest.stmt)
    check(case, kernel)


def lanes_of(target: Target) -> int:
    return target.lanes("float32")


@pytest.mark.parametrize("target", ["x86-64", "x86-64-v3", "x86-64-v4", "aarch64"])
def test_vectors_have_the_targets_width(target: str) -> None:
    machine = get_target(target)
    kernel = matmul(m=8, k=8, n=64, block=lanes_of(machine)).kernel(machine)
    widths = {s.var.lanes for s in walk_stmts(kernel.body) if isinstance(s, Declare) and s.var.name.startswith("acc")}
    assert widths == {lanes_of(machine)}


def test_blocks_of_small_targets_fill_no_more_than_a_vector() -> None:
    small = target_optimized_for_size(V4)
    for n in (16, 24, 33, 80, 100, 1000):
        for columns in (0, 1, 49):
            block = weight_packing_block_size(n, small, "float32", output_positions=columns)
            assert -(-n // block) * block - n < 16, (n, columns)
    assert weight_packing_block_size(1000, small, "float32", output_positions=1) == 48
