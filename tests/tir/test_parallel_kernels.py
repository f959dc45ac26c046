# SPDX-License-Identifier: Apache-2.0
"""Kernels divided among threads: every element is written by one thread, and all elements are written."""

from __future__ import annotations

import math
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from contractions import Case, conv, matmul
from hypothesis import given, settings
from hypothesis import strategies as st

from aotc.ir.diagnostics import AotcError
from aotc.ir.dtype import DType
from aotc.tir import te
from aotc.tir.expr import INDEX, Binary, Buffer, Const, Expr, Load, Operand, Var, minimum, operands, with_operands
from aotc.tir.instruction_statements import block_barrier
from aotc.tir.interpreter import run_kernel
from aotc.tir.kernel_parser import parse_kernel
from aotc.tir.kernel_text import to_text
from aotc.tir.kernel_verifier import verify
from aotc.tir.schedule import schedule
from aotc.tir.stmt import (
    THREAD_COUNT,
    THREAD_NUMBER,
    Assign,
    Block,
    Declare,
    Execute,
    For,
    If,
    Kernel,
    Stmt,
    Store,
    is_barrier,
    map_exprs,
    walk_stmts,
)
from aotc.tir.target import C, Target, get_target
from aotc.tir.threads import parallel_kernels
from aotc.tir.threads.cpu_thread_loop_division import (
    DividedLeaf,
    DividedNest,
    largest_thread_share,
    thread_share_of_nests,
)
from tests.share import share_of_each
from tests.tir.graphs import Graph, graphs
from tests.tir.thread_teams import EAGER, TEAMS, wrong_teams

V4 = get_target("x86-64-v4")
FLOAT = DType("float32")
ZERO = Const(0, INDEX)


def for_team(kernel: Kernel, constants: AbstractSet[Buffer] = frozenset()) -> Kernel:
    """The kernel for a team on a machine where small ones are worth it, too."""
    return parallel_kernels.parallelize_kernel(kernel, constants, EAGER)


def each(var: Var, end: Operand, body: Stmt, kind: str = "independent", **more: Any) -> For:
    """A loop whose iterations are independent, if it does not say otherwise."""
    return For(var, end, body, kind=kind, **more)


def refuse(kernel: Kernel) -> None:
    """The kernel has a loop that is called independent, but is not."""
    with pytest.raises(AotcError, match="is not independent") as caught:
        verify(kernel)
    assert caught.value.code == "tir-verify"


def _with_part(expr: Expr, part: int, parts: int) -> Expr:
    if expr is THREAD_NUMBER or expr is THREAD_COUNT:
        return Const(part if expr is THREAD_NUMBER else parts, INDEX)
    return with_operands(expr, tuple(_with_part(o, part, parts) for o in operands(expr)))


def share(kernel: Kernel, part: int, parts: int) -> Kernel:
    """What one participant does."""
    body = map_exprs(kernel.body, lambda e: _with_part(e, part, parts))
    return Kernel(
        name=kernel.name,
        inputs=kernel.inputs,
        outputs=kernel.outputs,
        body=body,
        workspace=kernel.workspace,
        stack=kernel.stack,
    )


def check(kernel: Kernel, inputs: list[np.ndarray], parts: int) -> None:
    """Participants of a kernel without meetings, one after the other, each on outputs of its own."""
    team = for_team(kernel)
    assert team.team
    verify(team)
    assert not any(is_barrier(s) for s in walk_stmts(team.body))
    whole = run_kernel(kernel, inputs)
    mark = np.float32(12345.678)
    written = [np.zeros(b.size, np.int64) for b in kernel.outputs]
    together = [np.full(b.size, mark, b.dtype.numpy) for b in kernel.outputs]
    for part in range(parts):
        fresh = [np.full(b.size, mark, b.dtype.numpy) for b in kernel.outputs]
        found = run_kernel(share(team, part, parts), inputs, output_init=fresh)
        for k, array in enumerate(found):
            mine = array != mark
            written[k] += mine
            together[k][mine] = array[mine]
    for k, array in enumerate(whole):
        assert (written[k] == 1).all()
        np.testing.assert_array_equal(together[k], array)


def check_case(case: Case, parts: int) -> None:
    check(case.kernel(V4), list(case.values(0)), parts)


CASES = {
    "packed": conv(ic=5, oc=40, size=(9, 17), padding=1, block=16),
    "pointwise": conv(ic=17, oc=64, size=(7, 7), kernel=(1, 1), block=32),
    "depthwise": conv(ic=8, oc=8, size=(14, 14), groups=8, padding=1),
    "channels last": conv(ic=9, oc=40, size=(8, 9), padding=1, block=16, last=True),
    "channels last depthwise": conv(ic=40, oc=40, size=(14, 14), groups=40, padding=1, last=True),
    "a last vector that overlaps": conv(batch=2, ic=4, oc=4, size=(1, 72), kernel=(1, 8)),
    "with rests": conv(ic=16, oc=96, size=(7, 7), kernel=(1, 1), block=32, last=True),
    "many positions": conv(ic=8, oc=72, size=(28, 28), kernel=(1, 1), block=16, last=True),
    "gemm": matmul(m=33, k=19, n=80, block=16),
    "gemv": matmul(m=1, k=64, n=400, block=32),
    "attention": matmul(m=5, k=8, n=18, batch=3, transposed=True),
}


@pytest.mark.parametrize(("name", "parts"), share_of_each(CASES, [1, 2, 3, 7], 2))
def test_contractions(name: str, parts: int) -> None:
    check_case(CASES[name], parts)


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 30), st.integers(1, 20), st.integers(2, 70), st.sampled_from([0, 16]), st.integers(1, 9))
def test_any_product(m: int, k: int, n: int, block: int, parts: int) -> None:
    case = matmul(m=m, k=k, n=n, block=block)
    kernel = case.kernel(V4)
    if not any(is_barrier(s) for s in walk_stmts(for_team(kernel).body)) and for_team(kernel).team:
        check(kernel, list(case.values(0)), parts)


@settings(max_examples=150, deadline=None)
@given(graph=graphs(), target=st.sampled_from([C, V4]), meeting=st.sampled_from([0.0, 100.0]))
def test_any_graph(graph: Graph, target: Target, meeting: float) -> None:
    """Divisions that meet often, and those that would rather not, with meetings in the right places."""
    kernel = schedule("k", graph.inputs, graph.outputs, target)
    rng = np.random.default_rng(0)
    inputs = [rng.integers(-4, 5, t.shape).astype(t.dtype.numpy) for t in graph.inputs]
    assert not wrong_teams(kernel, inputs, replace(EAGER, barrier_ns=meeting))


def test_what_others_still_read_is_not_overwritten() -> None:
    """Every row begins with its sum: whoever does a part of it needs all of it as it was."""
    row, j, k = Var("row"), Var("j"), Var("k")
    rows, kept = Buffer("rows", FLOAT, 2000), Buffer("kept", FLOAT, 1, "stack", private=True)
    total = each(j, 1000, Store(kept, ZERO, Load(kept, ZERO) + Load(rows, row * 1000 + j)), "reduction")
    scale = each(k, 1000, Store(rows, row * 1000 + k, Load(rows, row * 1000 + k) * Load(kept, ZERO)))
    body = each(row, 2, Block((Store(kept, ZERO, Const(0.0, FLOAT)), total, scale)))
    kernel = Kernel(name="k", inputs=(), outputs=(rows,), body=body, stack=(kept,))
    (before,) = np.random.default_rng(0).standard_normal((1, 2000)).astype(np.float32)
    (whole,) = run_kernel(kernel, [], output_init=[before])
    for participants, backwards in TEAMS:
        team = for_team(kernel)
        (found,) = run_kernel(team, [], output_init=[before], participants=participants, backwards=backwards)
        np.testing.assert_array_equal(found, whole)


def test_scratch_that_one_loop_hands_to_another_is_common() -> None:
    """The second loop changes what the first one has left for it in scratch, in another order."""
    i, k, z = Var("i"), Var("k"), Buffer("z", FLOAT, 1024)
    kept = Buffer("kept", FLOAT, 1024, "workspace", private=True)
    place = k * -1 + 1023
    first = each(i, 1024, Block((Store(kept, i, Load(X, i) * 2.0), Store(z, i, Load(kept, i)))))
    changed = Store(kept, place, Load(kept, place) + 1.0)
    second = each(k, 1024, Block((changed, Store(Y, k, Load(kept, place)))))
    kernel = Kernel(name="k", inputs=(X,), outputs=(Y, z), body=Block((first, second)), workspace=(kept,))
    assert not wrong_teams(kernel, [np.arange(1024, dtype=np.float32)], EAGER)


def elementwise(shape: tuple[int, ...]) -> Kernel:
    x = te.placeholder(shape, "float32", "x")
    return schedule("double", [x], [te.compute(shape, lambda *i: x[i] * 2.0)], V4)


@pytest.mark.parametrize("parts", [1, 2, 5])
def test_innermost_loops_stay_together_in_runs(parts: int) -> None:
    """What the C compiler makes vectors of begins at the same elements for any number of participants."""
    kernel = elementwise((1000,))
    check(kernel, [np.arange(1000, dtype=np.float32)], parts)
    for part in range(parts):
        fresh = [np.full(1000, -1, np.float32)]
        (found,) = run_kernel(share(for_team(kernel), part, parts), [np.ones(1000, np.float32)], output_init=fresh)
        assert np.flatnonzero(found != -1)[0] % 64 == 0


def loop_kernel(body: For, *buffers: Buffer, stack: tuple[Buffer, ...] = ()) -> Kernel:
    return Kernel(name="k", inputs=buffers[:1], outputs=buffers[1:], body=Block((body,)), stack=stack)


X, Y = Buffer("x", FLOAT, 1024), Buffer("y", FLOAT, 1024)


def test_loops_by_vectors_are_divided_by_what_they_write() -> None:
    """Rows of 64 elements, a vector of 16 at a time, to two layers 1040 elements apart."""
    layers = Buffer("layers", FLOAT, 2080)
    c, place = Var("c"), Var("place")
    vector = Load(X, c * 64 + place, 16)
    stores = Block(Store(layers, layer * 1040 + c * 64 + place, vector) for layer in range(2))
    kernel = loop_kernel(each(c, 16, each(place, 64, stores, step=16)), X, layers)
    team = for_team(kernel)
    assert team.team
    (loop,) = (s for s in walk_stmts(team.body) if isinstance(s, For) and s.var is c)
    assert isinstance(loop.begin, Binary)  # a participant's share of the channels


@pytest.mark.parametrize("rows", [53, 55, 56])
def test_strips_of_which_the_last_is_smaller_are_divided(rows: int) -> None:
    """Strips of 8 rows of 4 elements, in each of 3 planes."""
    planes, source = Buffer("planes", FLOAT, 3 * rows * 4), Buffer("source", FLOAT, rows * 4)
    strip, plane, y, x = Var("strip"), Var("plane"), Var("y"), Var("x")
    row = strip * 8 + y
    store = Store(planes, plane * (rows * 4) + row * 4 + x, Load(source, row * 4 + x))
    inside = each(plane, 3, each(y, minimum(8, strip * -8 + rows), each(x, 4, store)))
    kernel = loop_kernel(each(strip, 7, inside), source, planes)
    assert for_team(kernel).team
    check(kernel, [np.arange(rows * 4, dtype=np.float32)], 3)
    whole = each(plane, 3, each(y, 8, each(x, 4, store)))
    if rows < 56:  # the last strip of a plane reaches into the next one
        refuse(loop_kernel(each(strip, 7, whole), source, planes))
        longer = loop_kernel(each(strip, 7, whole, "serial"), source, planes)
        (loop,) = (s for s in walk_stmts(for_team(longer).body) if isinstance(s, For) and s.var is strip)
        assert isinstance(loop.begin, Const)


def blocked_transposition(size: int, kind: str = "independent") -> Kernel:
    """Rows 5 to 84 by squares, which are smaller at the ends, or overlap if `size` is over 16."""
    source, turned = Buffer("source", FLOAT, 80 * 100), Buffer("turned", FLOAT, 85 * 100)
    rows, columns, row, column = Var("rows"), Var("columns"), Var("row"), Var("column")
    store = Store(turned, row * 100 + column, Load(source, column * 80 + row - 5))
    inside = each(column, minimum(columns + 16, 100), store, begin=columns)
    square = each(row, minimum(rows + size, 85), inside, begin=rows)
    across = each(columns, 100, square, step=16)
    nest = each(rows, Const(85, INDEX), across, kind, begin=Const(5, INDEX), step=16)
    first = Var("first")
    body = Block((each(first, 500, Store(turned, first, Const(0.0, FLOAT))), nest))
    return Kernel(name="k", inputs=(source,), outputs=(turned,), body=body)


@pytest.mark.parametrize("parts", [1, 2, 3, 6])
def test_loops_from_anywhere_by_any_step_are_divided(parts: int) -> None:
    kernel = blocked_transposition(16)
    check(kernel, [np.arange(8000, dtype=np.float32)], parts)
    if parts == 2:
        shares = [written_by(kernel, [np.ones(8000, np.float32)], part, 2).size for part in range(2)]
        assert max(shares) < 0.65 * 8500


def test_threads_take_whole_tiles() -> None:
    """The loops over the tiles are divided, not those inside a tile, which is transposed in registers later."""
    source, transposed = Buffer("source", FLOAT, 80 * 672), Buffer("transposed", FLOAT, 85 * 3549)
    rows, columns, row, column = Var("rows"), Var("columns"), Var("row"), Var("column")
    store = Store(transposed, row * 85 + column, Load(source, column * 672 + row - 2704))
    tile = each(row, rows + 16, each(column, columns + 16, store, begin=columns), begin=rows)
    nest = each(rows, 3376, each(columns, 80, tile, step=16), begin=Const(2704, INDEX), step=16)
    team = for_team(Kernel(name="k", inputs=(source,), outputs=(transposed,), body=nest))
    assert team.team
    (inside,) = (s for s in walk_stmts(team.body) if isinstance(s, For) and s.var is row)
    assert inside.begin is rows


def test_squares_that_overlap_are_not_divided() -> None:
    """Their rows, that is: columns may be, of each round."""
    refuse(blocked_transposition(17))
    team = for_team(blocked_transposition(17, "serial"))
    loops = [s for s in walk_stmts(team.body) if isinstance(s, For) and s.step == 16]
    assert isinstance(loops[0].begin, Const)


def bodies_that_depend() -> dict[str, tuple[Stmt, For, tuple[Buffer, ...]]]:
    """Loops of which iterations need one another: what stands before them, their bodies, what is on the stack."""
    i, total, kept = Var("i"), Var("total", FLOAT), Buffer("kept", FLOAT, 1, "stack")
    nothing = Block(())
    sums = Block((Assign(total, total + Load(X, i)), Store(Y, i, total)))
    array = Block((Store(kept, ZERO, Load(kept, ZERO) + Load(X, i)), Store(Y, i, Load(kept, ZERO))))
    return {
        "reads its own results": (nothing, each(i, 1000, Store(Y, i + 1, Load(Y, i) + Load(X, i))), ()),
        "writes to one place": (nothing, each(i, 1000, Store(Y, i // 2, Load(X, i))), ()),
        "carries a register": (Declare(total, Const(0.0, FLOAT)), each(i, 1000, sums), ()),
        "carries an array": (Store(kept, ZERO, Const(0.0, FLOAT)), each(i, 1000, array), (kept,)),
    }


@pytest.mark.parametrize("name", bodies_that_depend())
def test_what_depends_is_not_divided(name: str) -> None:
    """Nor does the verifier believe that it does not."""
    before, loop, stack = bodies_that_depend()[name]
    refuse(Kernel(name="k", inputs=(X,), outputs=(Y,), body=Block((before, loop)), stack=stack))
    serial = replace(loop, kind="serial")
    kernel = Kernel(name="k", inputs=(X,), outputs=(Y,), body=Block((before, serial)), stack=stack)
    assert for_team(kernel) is kernel


def test_what_hands_on_an_array_is_not_divided() -> None:
    """A loop that writes results, and leaves behind it what the next one reads."""
    i, j, tile = Var("i"), Var("j"), Buffer("tile", FLOAT, 512, "stack", private=True)
    fill = each(i, 512, Block((Store(tile, i, Load(X, i)), Store(Y, i, Load(X, i)))))
    use = each(j, 512, Store(Y, j + 512, Load(tile, j)))
    kernel = Kernel(name="k", inputs=(X,), outputs=(Y,), body=Block((fill, use)), stack=(tile,))
    assert for_team(kernel) is kernel


def test_meetings_stand_between_what_depends() -> None:
    """Two loops over the same memory, the second in another order; one more statement that one participant does."""
    i, j = Var("i"), Var("j")
    first = each(i, 1024, Store(Y, i, Load(X, i) * 2.0))
    second = each(j, 1024, Store(X, j, Load(Y, 1023 - j)))
    third = Store(Y, ZERO, Load(X, Const(5, INDEX)))
    kernel = Kernel(name="k", inputs=(), outputs=(X, Y), body=Block((first, second, third)))
    team = for_team(kernel)
    assert isinstance(team.body, Block)
    kinds = [type(s) for s in team.body.stmts if not isinstance(s, Declare)]
    assert kinds == [For, Execute, For, Execute, If]


def test_small_kernels_are_left_alone() -> None:
    """What is small is the machine's to say."""
    kernel = elementwise((1000,))
    assert parallel_kernels.parallelize_kernel(kernel) is kernel
    assert for_team(kernel).team


def test_text_of_meetings() -> None:
    kernel = Kernel(name="k", inputs=(X,), outputs=(Y,), body=Block((Store(Y, ZERO, Load(X, ZERO)), block_barrier())))
    assert "sync" in to_text(kernel)
    assert to_text(parse_kernel(to_text(kernel))) == to_text(kernel)


def written_by(kernel: Kernel, values: list[np.ndarray], part: int, parts: int) -> np.ndarray:
    """The places of the first output that a participant writes."""
    fresh = [np.full(b.size, np.nan, np.float32) for b in kernel.outputs]
    found = run_kernel(share(for_team(kernel), part, parts), values, output_init=fresh)
    return np.flatnonzero(~np.isnan(found[0]))


def test_rests_of_loops_are_dealt_out_with_them() -> None:
    """3 blocks of channels by 4 tiles, the last of them smaller: 6 tiles for each of two."""
    case = CASES["with rests"]
    sizes = [written_by(case.kernel(V4), list(case.values(0)), part, 2).size for part in range(2)]
    assert max(sizes) <= 1.2 * min(sizes)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.lists(st.tuples(st.integers(1, 40), st.integers(1, 8)), min_size=1, max_size=3), min_size=1, max_size=2
    ),
    st.integers(1, 5),
)
def test_units_are_dealt_out_by_weight(sizes: list[list[tuple[int, int]]], participants: int) -> None:
    """Each to one participant, in order, and no participant has more than what the division is valued at."""
    owner = Buffer("owner", INDEX, sum(units for part in sizes for units, _ in part))
    parts, weights = [], []
    for part in sizes:
        nests = []
        for units, weight in part:
            i, j = Var("i"), Var("j")
            inner = each(j, 1, Store(owner, i + len(weights), THREAD_NUMBER))  # not innermost: in runs of one
            nests.append(DividedNest((), DividedLeaf((loop := each(i, units, inner),), loop), weight=weight))
            weights += [weight] * units
        parts.append(nests)
    kernel = Kernel(name="k", inputs=(), outputs=(owner,), body=thread_share_of_nests(parts), team=True)
    (found,) = run_kernel(kernel, [], participants=participants)
    begin = 0
    for part in sizes:
        end = begin + sum(units for units, _ in part)
        assert (np.diff(found[begin:end]) >= 0).all()
        begin = end
    loads = [int(np.array(weights)[found == p].sum()) for p in range(participants)]
    assert sum(loads) == sum(weights)
    assert max(loads) / sum(weights) == pytest.approx(largest_thread_share(parts, participants))
    heaviest = sum(max(weight for _, weight in part) for part in sizes)
    assert max(loads) <= sum(weights) / participants + 2 * heaviest


def test_borders_belong_to_the_rows_beside_them() -> None:
    """A first and a last row have loops of their own; who does the first rows does the border there."""
    case = conv(ic=64, oc=64, size=(25, 5), groups=64, padding=1, last=True)
    first, second = (written_by(case.kernel(V4), list(case.values(0)), part, 2) for part in range(2))
    assert np.isin(np.arange(5 * 64), first).all()
    assert np.isin(np.arange(20 * 5 * 64, 25 * 5 * 64), second).all()


def test_parts_lie_one_after_the_other_in_memory() -> None:
    """Where data outweighs the weights, each does its positions for all channels, as the kernels around it do."""
    case = CASES["many positions"]
    kernel = case.kernel(V4)
    constants = {kernel.inputs[1]}
    assert for_team(kernel, constants).team
    half = kernel.outputs[0].size // 2
    first, second = (written_by(kernel, list(case.values(0)), part, 2) for part in range(2))
    assert (first < half).mean() > 0.95
    assert (second >= half).mean() > 0.95


def test_long_reductions_are_shared_by_rows() -> None:
    x = te.placeholder((400, 64), "float32", "x")
    kernel = schedule("mean", [x], [te.reduce("sum", (64,), (400,), lambda j, k: x[k, j], "total")], V4)
    team = for_team(kernel)
    assert team.team
    assert [b.name for b in kernel.workspace] == ["total_parts"]
    assert any(is_barrier(s) for s in walk_stmts(team.body))
    (value,) = (np.random.default_rng(0).standard_normal((400, 64)).astype(np.float32),)
    np.testing.assert_allclose(run_kernel(kernel, [value])[0], value.sum(0, dtype=np.float64), atol=1e-4)
    np.testing.assert_array_equal(run_kernel(team, [value], participants=3)[0], run_kernel(kernel, [value])[0])


def test_shares_are_even() -> None:
    kernel = CASES["packed"].kernel(V4)
    sizes = []
    for part in range(4):
        fresh = [np.full(b.size, np.nan, np.float32) for b in kernel.outputs]
        (found,) = run_kernel(share(for_team(kernel), part, 4), list(CASES["packed"].values(0)), output_init=fresh)
        sizes.append(int((~np.isnan(found)).sum()))
    assert sum(sizes) == math.prod(CASES["packed"].out.shape)
    assert max(sizes) <= 1.25 * sum(sizes) / 4
