# SPDX-License-Identifier: Apache-2.0
"""Scheduled kernels have the results of their tensor expressions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aotc.ir.diagnostics import AotcError
from aotc.ir.dtype import DType
from aotc.tir import te
from aotc.tir.expr import (
    Buffer,
    Expr,
    Load,
    Select,
    Var,
    all_of,
    call,
    cast,
    const,
    maximum,
    minimum,
    operands,
    select,
    walk,
)
from aotc.tir.interpreter import run_kernel
from aotc.tir.kernel_text import to_text
from aotc.tir.kernel_verifier import verify
from aotc.tir.loops.loop_vectorization import vectorize_kernel
from aotc.tir.loops.unvectorized_loop_report import scalar_loops
from aotc.tir.schedule import schedule
from aotc.tir.stmt import Block, Declare, For, If, Kernel, Stmt, Store, direct_exprs_of_stmt, walk_stmts
from aotc.tir.target import X86_64_V4, C, Target
from tests.tir.evaluate import evaluate
from tests.tir.graphs import Graph, graphs

SOFTMAX = [((6, 10), 1), ((4, 300), 1), ((2, 5, 40), 1), ((3, 7, 5), 0), ((1, 1000), 1), ((5, 2, 64, 3), 2)]


def check(
    inputs: Sequence[te.Placeholder],
    outputs: Sequence[te.Tensor],
    target: Target = C,
    seed: int = 0,
    tolerance: float = 0.0,
) -> Kernel:
    """The kernel, after its outputs were compared with direct evaluation."""
    kernel = schedule("k", inputs, outputs, target)
    verify(kernel)
    rng = np.random.default_rng(seed)
    arrays = [rng.integers(-4, 5, t.shape).astype(t.dtype.numpy) for t in inputs]
    got = run_kernel(kernel, arrays)
    want = evaluate(outputs, dict(zip(inputs, arrays, strict=True)))
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w.reshape(-1), rtol=tolerance, atol=tolerance)
    return kernel


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(graph=graphs(), target=st.sampled_from([C, X86_64_V4]))
def test_random_graphs(graph: Graph, target: Target) -> None:
    check(graph.inputs, graph.outputs, target)


def test_tiles_across_rows_of_an_output_of_more_axes() -> None:
    """Rows of 20 by tiles of 48: the digits of where a tile begins and of what is in it are not those of their sum."""
    x, w = te.placeholder((1, 4, 5), "float32", "x"), te.placeholder((2, 5), "float32", "w")
    rows = te.compute((1, 4, 5, 4, 5), lambda a, b, c, d, e: x[minimum(maximum(cast(x[a, b, c], "int64"), 0), 0), d, e])
    flat = te.view(rows, (80, 5))
    dot = te.contraction((80, 2), (5,), flat, lambda i, j, k: (i, k), w, lambda i, j, k: (j, k), dtype="float32")
    shaped = te.view(dot, (1, 4, 5, 4, 2))
    check([x, w], [te.compute(shaped.shape, lambda *i: maximum(shaped[i] + 1.0, 0.0))], X86_64_V4)


def test_windows_over_rows_that_the_kernel_has_just_made() -> None:
    """Where a window begins depends on the element: that it stays in its row is known of loops that are written out."""
    x = te.placeholder((2, 2), "float32", "x")
    rows = te.compute((2, 2), lambda i, j: maximum(x[i, j], 0.0))
    inside = {"guard": lambda i, j, k: all_of(j + k >= 1, j + k < 3)}
    check([x], [te.reduce("max", (2, 3), (2,), lambda i, j, k: rows[i, j + k - 1], **inside), rows], X86_64_V4)


def outer_loops(kernel: Kernel) -> list[For]:
    body = kernel.body
    return [s for s in (body.stmts if isinstance(body, Block) else (body,)) if isinstance(s, For)]


def innermost(kernel: Kernel) -> list[For]:
    found = [s for s in walk_stmts(kernel.body) if isinstance(s, For)]
    return [s for s in found if not any(isinstance(i, For) for i in walk_stmts(s.body))]


def softmax(shape: tuple[int, ...], axis: int) -> tuple[te.Placeholder, te.Tensor]:
    x = te.placeholder(shape, "float32", "x")
    outer = tuple(1 if k == axis else n for k, n in enumerate(shape))

    def at(i: tuple[Expr, ...], k: Expr) -> tuple[Expr, ...]:
        return (*i[:axis], k, *i[axis + 1 :])

    top = te.reduce("max", outer, (shape[axis],), lambda *v: x[at(v[:-1], v[-1])], "top")
    exp = te.compute(shape, lambda *i: call("exp", x[i] - top[at(i, const(0))]), "exp", materialize=True)
    total = te.reduce("sum", outer, (shape[axis],), lambda *v: exp[at(v[:-1], v[-1])], "total")
    return x, te.compute(shape, lambda *i: exp[i] / total[at(i, const(0))], "y")


@pytest.mark.parametrize("target", [C, X86_64_V4])
@pytest.mark.parametrize(
    ("shape", "axis"),
    [((6, 10), 1), ((4, 300), 1), ((2, 5, 40), 1), ((3, 7, 5), 0), ((1, 1000), 1), ((5, 2, 64, 3), 2)],
)
def test_softmax_works_row_by_row(shape: tuple[int, ...], axis: int, target: Target) -> None:
    x, y = softmax(shape, axis)
    kernel = check([x], [y], target, tolerance=1e-6)
    row = int(np.prod(shape[axis:]))
    assert all(b.size <= row for b in (*kernel.stack, *kernel.workspace))
    if axis > 0 and np.prod(shape[:axis]) > 1:
        assert len(outer_loops(kernel)) == 1
    assert kernel.inplace == ((0, 0),) if len(outer_loops(kernel)) == 1 else True


def test_layer_norm_shares_rows_and_hoists() -> None:
    n, d = 8, 384
    x, r, g = (te.placeholder(s, "float32", "t") for s in ((n, d), (n, d), (d,)))
    added = te.compute((n, d), lambda i, j: x[i, j] + r[i, j], "added")
    total = te.reduce("sum", (n, 1), (d,), lambda i, o, k: added[i, k], "total")
    mean = te.compute((n, 1), lambda i, o: total[i, o] / float(d), "mean")
    centered = te.compute((n, d), lambda i, j: added[i, j] - mean[i, 0], "centered")
    square = te.reduce("sum", (n, 1), (d,), lambda i, o, k: centered[i, k] * centered[i, k], "square")
    scale = te.compute((n, 1), lambda i, o: call("sqrt", square[i, o] / float(d) + 1e-5), "scale")
    y = te.compute((n, d), lambda i, j: centered[i, j] / scale[i, 0] * g[j], "y")
    kernel = check([x, r, g], [y], X86_64_V4, tolerance=1e-5)
    assert len(outer_loops(kernel)) == 1
    assert sum(b.nbytes for b in kernel.stack) <= 4096
    assert not kernel.workspace
    last = innermost(kernel)[-1]
    assert not any(n.name == "sqrt" for e in direct_exprs_of_stmt(last.body) for n in walk(e) if hasattr(n, "name"))
    both = check([x, r, g], [y, added], X86_64_V4, tolerance=1e-5)
    assert both.inplace == ((0, 0), (1, 1))


def pool(size: int, stride: int, pad: int, combiner: str = "max") -> tuple[te.Placeholder, te.Tensor]:
    x = te.placeholder((2, 3, size, size), "float32", "x")
    out = (size + 2 * pad - 3) // stride + 1

    def guard(*v: Expr) -> Expr:
        h, w = v[2] * stride + v[4] - pad, v[3] * stride + v[5] - pad
        return all_of(h >= 0, h < size, w >= 0, w < size)

    def body(*v: Expr) -> Expr:
        return x[v[0], v[1], v[2] * stride + v[4] - pad, v[3] * stride + v[5] - pad]

    return x, te.reduce(combiner, (2, 3, out, out), (3, 3), body, "pool", guard=guard)


@pytest.mark.parametrize("combiner", ["max", "sum"])
@pytest.mark.parametrize(
    ("size", "stride", "pad"), [(8, 1, 1), (16, 1, 1), (17, 2, 1), (33, 2, 0), (6, 3, 1), (300, 1, 1)]
)
def test_pooling_has_no_branches(size: int, stride: int, pad: int, combiner: str) -> None:
    x, pooled = pool(size, stride, pad, combiner)
    y = te.compute(pooled.shape, lambda *i: maximum(pooled[i], 0.0), "y")
    kernel = check([x], [y])
    assert not any(isinstance(s, If) for s in walk_stmts(kernel.body))
    assert not kernel.inplace
    if pooled.shape[-1] >= 8:
        assert all(loop.kind == "independent" for loop in innermost(kernel))


@pytest.mark.parametrize(("rows", "columns"), [(40, 300), (3, 1000), (200, 17), (1000, 1), (5, 8)])
@pytest.mark.parametrize("target", [C, X86_64_V4])
def test_reductions_run_along_memory(rows: int, columns: int, target: Target) -> None:
    x = te.placeholder((rows, columns), "float32", "x")
    down = te.reduce("sum", (columns,), (rows,), lambda j, k: x[k, j], "down")
    along = te.reduce("max", (rows,), (columns,), lambda i, k: x[i, k], "along")
    everything = te.reduce("sum", (), (rows, columns), lambda i, j: x[i, j], "everything")
    for tensor in (down, along, everything):
        kernel = check([x], [tensor], target)
        for loop in innermost(kernel):
            loads = [
                n
                for s in walk_stmts(loop.body)
                for e in direct_exprs_of_stmt(s)
                for n in walk(e)
                if isinstance(n, Load)
            ]
            assert loads or isinstance(loop.body, Store)


@pytest.mark.parametrize("combiner", ["max", "sum"])
@pytest.mark.parametrize("shape", [(1, 24, 40), (24, 1, 40), (24, 40, 1), (1, 960, 1)])
def test_axes_of_one_element_do_not_hide_vectors(shape: tuple[int, int, int], combiner: str) -> None:
    x = te.placeholder(shape, "float32", "x")
    everything = te.reduce(combiner, (), shape, lambda i, j, k: x[i, j, k], "everything")
    kept = te.reduce(combiner, (shape[0], 1, 1), shape[1:], lambda i, o, p, j, k: x[i, j, k], "kept")
    for tensor in (everything, kept):
        assert not scalar_loops(vectorize_kernel(check([x], [tensor], X86_64_V4), X86_64_V4), X86_64_V4)


def test_nan_survives_every_shape_of_reduction() -> None:
    for shape, axis in (((300, 20), 0), ((20, 300), 1), ((3, 5), 1)):
        x = te.placeholder(shape, "float32", "x")
        other = shape[1 - axis]
        for combiner in ("min", "max", "sum"):
            y = te.reduce(
                combiner, (other,), (shape[axis],), lambda i, k, a=axis, x=x: x[(k, i) if a == 0 else (i, k)], "y"
            )
            data = np.zeros(shape, np.float32)
            data[1, 2] = np.nan
            got = run_kernel(schedule("k", [x], [y], X86_64_V4), [data])[0]
            assert np.isnan(got).sum() == 1


def test_padding_and_concatenation_copy_without_conditions() -> None:
    x, y = te.placeholder((2, 3, 8, 8), "float32", "x"), te.placeholder((2, 5, 8, 8), "float32", "y")
    joined = te.compute((2, 8, 8, 8), lambda n, c, h, w: select(c < 3, x[n, c, h, w], y[n, c - 3, h, w]), "joined")
    padded = te.compute(
        (2, 8, 10, 10),
        lambda n, c, h, w: select(all_of(h >= 1, h < 9, w >= 1, w < 9), joined[n, c, h - 1, w - 1], 0.0),
        "padded",
    )
    kernel = check([x, y], [padded])
    assert not any(
        isinstance(n, Select) for s in walk_stmts(kernel.body) for e in direct_exprs_of_stmt(s) for n in walk(e)
    )
    kernel = check([x, y], [joined])
    assert [(loop.begin, loop.end) for loop in innermost(kernel)] == [
        (const(0), const(3 * 64)),
        (const(3 * 64), const(8 * 64)),
    ]


@pytest.mark.parametrize("shape", [(3, 40, 50), (64, 64), (1, 33, 100)])
def test_transposes_go_by_tiles(shape: tuple[int, ...]) -> None:
    x = te.placeholder(shape, "float32", "x")
    turned = (*shape[:-2], shape[-1], shape[-2])
    y = te.compute(turned, lambda *i: x[(*i[:-2], i[-1], i[-2])] + 1.0, "y")
    kernel = check([x], [y])
    assert sum(loop.step > 1 for s in walk_stmts(kernel.body) if isinstance(loop := s, For)) == 2
    assert all(loop.kind == "independent" for loop in innermost(kernel))


def test_elementwise_loops_become_one() -> None:
    x, b = te.placeholder((4, 5, 6), "float32", "x"), te.placeholder((1,), "float32", "b")
    y = te.compute(x.shape, lambda i, j, k: maximum(x[i, j, k] + b[0], 0.0), "y")
    z = te.compute((20, 6), lambda i, k: te.view(y, (20, 6))[i, k] * 2.0, "z")
    kernel = check([x, b], [z])
    (loop,) = outer_loops(kernel)
    assert (loop.kind, loop.end) == ("independent", const(120))
    assert isinstance(loop.body, Store)
    assert kernel.inplace == ((0, 0),)


def test_inplace_only_where_every_read_is_early() -> None:
    x, r = te.placeholder((8, 8), "float32", "x"), te.placeholder((8, 8), "float32", "r")
    w = te.placeholder((8, 8), "float32", "w")
    dot = te.contraction((8, 8), (8,), x, lambda i, j, k: (i, k), w, lambda i, j, k: (j, k), dtype="float32")
    total = te.compute((8, 8), lambda i, j: dot[i, j] + r[i, j], "total")
    assert check([x, w, r], [total]).inplace == ((0, 2),)
    turned = te.compute((8, 8), lambda i, j: x[j, i], "turned")
    assert check([x], [turned]).inplace == ()
    twice = te.compute((8, 8), lambda i, j: x[j, i] + r[i, j] + x[i, j], "twice")
    assert check([x, r], [twice]).inplace == ((0, 1),)
    first = te.compute((8, 8), lambda i, j: x[i, j] + 1.0, "first")
    assert check([x], [first, twice_of(x)]).inplace == ((1, 0),)
    assert check([x], [first, x]).inplace == ()
    whole = te.compute((8, 8), lambda i, j: x[i, j].astype("int32"), "whole")
    assert check([x], [whole]).inplace == ()


def twice_of(x: te.Tensor) -> te.Tensor:
    return te.compute((8, 8), lambda i, j: x[i, j] * 2.0, "twice")


def test_views_are_the_same_memory() -> None:
    x = te.placeholder((4, 6), "float32", "x")
    y = te.compute((4, 6), lambda i, j: x[i, j] + 1.0, "y")
    kernel = check([x], [te.view(y, (24,)), te.view(te.view(x, (2, 12)), (3, 8)), y])
    assert not kernel.workspace
    assert not kernel.stack


def copy_build(inputs: Sequence[Buffer], outputs: Sequence[Buffer], scratch: Sequence[Buffer]) -> Stmt:
    (x,), (y, last), (tmp,) = inputs, outputs, scratch
    i = Var("i")
    moves = (Store(tmp, i, Load(x, i)), Store(y, i, Load(tmp, i) * 2.0), Store(last, const(0), Load(x, i)))
    return For(i, x.size, Block(moves))


@pytest.mark.parametrize("wanted", [[0], [1], [0, 1], [1, 0]])
def test_extern_programs_get_memory(wanted: list[int]) -> None:
    x = te.placeholder((6,), "float32", "x")
    inner = te.compute((6,), lambda i: x[i] + 1.0, "inner")
    program = te.ExternProgram(copy_build, (te.Scratch(DType("float32"), 6),))
    made = te.extern_for_target("double", [((6,), "float32"), ((1,), "float32")], [inner], lambda _: program, macs=5)
    after = te.compute((6,), lambda i: made[0][i] - 1.0, "after")
    outputs: list[te.Tensor] = [(after, made[1])[k] for k in wanted]
    kernel = schedule("k", [x], outputs, C)
    verify(kernel)
    data = np.arange(6, dtype=np.float32)
    want = [(data + 1) * 2 - 1, (data + 1)[-1:]]
    for got, k in zip(run_kernel(kernel, [data]), wanted, strict=True):
        assert got.tolist() == want[k].tolist()
    assert kernel.macs == 5


def test_empty_and_scalar_tensors() -> None:
    x = te.placeholder((0, 3), "float32", "x")
    y = te.compute((0, 3), lambda i, j: x[i, j] + 1.0, "y")
    down = te.reduce("max", (3,), (0,), lambda j, k: x[k, j], "down")
    check([x], [y, down])
    s = te.placeholder((), "float32", "s")
    check([s], [te.compute((), lambda: s[()] * 2.0, "t"), te.reduce("sum", (), (), lambda: s[()], "u")])


@pytest.mark.parametrize("reads", [1, 2])
def test_long_chains(reads: int) -> None:
    x = te.placeholder((16,), "float32", "x")
    tensor: te.Tensor = x
    for _ in range(10_000):
        tensor = te.compute((16,), lambda i, t=tensor: maximum(t[i] if reads == 1 else t[i] + t[i] - 1.0, 0.0), "t")
    kernel = schedule("k", [x], [tensor], C)
    depth = max(_depth(e) for s in walk_stmts(kernel.body) for e in direct_exprs_of_stmt(s))
    assert depth < 100
    assert sum(isinstance(s, Declare) for s in walk_stmts(kernel.body)) <= 10_000


def _depth(expr: Expr) -> int:
    return 1 + max((_depth(o) for o in operands(expr)), default=0)


def test_what_is_costly_and_read_often_is_stored() -> None:
    x = te.placeholder((64,), "float32", "x")
    y = te.compute((64,), lambda i: call("exp", x[i]), "y")
    spread = te.compute((32, 64), lambda i, j: y[j] * 2.0, "spread")
    kernel = check([x], [spread], tolerance=1e-6)
    assert [b.size for b in kernel.stack] == [64]
    cheap = te.compute((64,), lambda i: -x[i], "cheap")
    once = te.compute((64,), lambda i: cheap[i] + cheap[63 - i], "once")
    assert not check([x], [once]).stack


def test_shared_values_are_computed_once() -> None:
    x = te.placeholder((64,), "float32", "x")
    y = te.compute((64,), lambda i: call("tanh", x[i]), "y")
    z = te.compute((64,), lambda i: y[i] * y[i] + y[i], "z")
    kernel = check([x], [z], tolerance=1e-6)
    calls = [
        n
        for s in walk_stmts(kernel.body)
        for e in direct_exprs_of_stmt(s)
        for n in walk(e)
        if getattr(n, "name", "") == "tanh"
    ]
    assert len(calls) == 1


def test_unwanted_branches_are_not_evaluated() -> None:
    x = te.placeholder((8,), "float32", "x")
    y = te.compute((8,), lambda i: maximum(x[i] * 2.0, 0.0), "y")
    wild = te.placeholder((20,), "int64", "wild")
    z = te.compute((20,), lambda i: select(all_of(wild[i] >= 0, wild[i] < 8), y[wild[i]] * y[wild[i]], -1.0), "z")
    kernel = schedule("k", [x, wild], [z], C)
    verify(kernel)
    data = np.arange(8, dtype=np.float32)
    places = np.arange(-6, 14)
    got = run_kernel(kernel, [data, places])[0]
    want = [(2.0 * p) ** 2 if 0 <= p < 8 else -1.0 for p in places]
    assert got.tolist() == want


def test_the_same_graph_gives_the_same_kernel() -> None:
    texts = {to_text(schedule("k", [x], [y], X86_64_V4)) for x, y in (softmax((4, 100), 1) for _ in range(3))}
    assert len(texts) == 1


def test_inputs_must_be_named() -> None:
    x = te.placeholder((2,), "float32", "x")
    with pytest.raises(AotcError, match="reads x"):
        schedule("k", [], [te.compute((2,), lambda i: x[i], "y")], C)
