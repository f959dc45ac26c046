# SPDX-License-Identifier: Apache-2.0
"""Random graphs of tensor expressions whose values are small integers, so that sums are exact in any order."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from hypothesis import strategies as st

from aotc.tir import te
from aotc.tir.expr import Expr, all_of, const, maximum, minimum, select


@dataclass
class Graph:
    inputs: list[te.Placeholder] = field(default_factory=list)
    tensors: list[te.Tensor] = field(default_factory=list)
    outputs: list[te.Tensor] = field(default_factory=list)


SHAPES = st.lists(st.sampled_from([1, 2, 3, 4, 5, 8, 17, 40]), min_size=0, max_size=3).map(tuple)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """A graph with one to three outputs."""
    graph = Graph()
    _input(draw, graph)
    for _ in range(draw(st.integers(1, 7))):
        rule = draw(st.sampled_from(RULES))
        made = rule(draw, graph)
        if made.size <= 2000:
            graph.tensors.append(made)
    candidates = graph.tensors[::-1]
    graph.outputs = [candidates[0]]
    for _ in range(draw(st.integers(0, 2))):
        graph.outputs.append(draw(st.sampled_from(candidates)))
    return graph


def _input(draw: st.DrawFn, graph: Graph, shape: tuple[int, ...] | None = None) -> te.Placeholder:
    chosen = draw(SHAPES) if shape is None else shape
    made = te.placeholder(chosen, "float32", f"x{len(graph.inputs)}")
    graph.inputs.append(made)
    graph.tensors.append(made)
    return made


def _pick(draw: st.DrawFn, graph: Graph) -> te.Tensor:
    return draw(st.sampled_from(graph.tensors))


def _clamped(value: Expr) -> Expr:
    return minimum(maximum(value, -8.0), 8.0)


def _unary(draw: st.DrawFn, graph: Graph) -> te.Tensor:
    x = _pick(draw, graph)
    kind = draw(st.integers(0, 2))
    body = [lambda v: maximum(v, 0.0), lambda v: -v + 1.0, lambda v: _clamped(v * v)][kind]
    return te.compute(x.shape, lambda *i: body(x[i]), "u", materialize=draw(st.booleans()))


def _binary(draw: st.DrawFn, graph: Graph) -> te.Tensor:
    x, y = _pick(draw, graph), _pick(draw, graph)
    if x.rank < y.rank:
        x, y = y, x
    offset = x.rank - y.rank
    fits = all(n in (1, x.shape[offset + k]) for k, n in enumerate(y.shape))
    if not fits:
        y = x
        offset = 0

    def body(*i: Expr) -> Expr:
        other = tuple(const(0) if n == 1 else i[offset + k] for k, n in enumerate(y.shape))
        return _clamped(x[i] - y[other])

    return te.compute(x.shape, body, "b")


def _transpose(draw: st.DrawFn, graph: Graph) -> te.Tensor:
    x = _pick(draw, graph)
    order = draw(st.permutations(range(x.rank)))
    shape = tuple(x.shape[k] for k in order)
    return te.compute(shape, lambda *i: x[tuple(i[order.index(k)] for k in range(x.rank))], "t")


def _pad(draw: st.DrawFn, graph: Graph) -> te.Tensor:
    x = _pick(draw, graph)
    if x.rank == 0:
        return te.compute((3,), lambda i: x[()], "bc")
    before, after = draw(st.integers(0, 2)), draw(st.integers(0, 2))
    axis = draw(st.integers(0, x.rank - 1))
    shape = tuple(n + (before + after if k == axis else 0) for k, n in enumerate(x.shape))

    def body(*i: Expr) -> Expr:
        source = tuple(v - before if k == axis else v for k, v in enumerate(i))
        inside = all_of(i[axis] >= before, i[axis] < before + x.shape[axis])
        return select(inside, x[source], -1.0)

    return te.compute(shape, body, "p")


def _slice(draw: st.DrawFn, graph: Graph) -> te.Tensor:
    x = _pick(draw, graph)
    starts = tuple(draw(st.integers(0, n - 1)) if n else 0 for n in x.shape)
    steps = tuple(draw(st.integers(1, 2)) for _ in x.shape)
    shape = tuple((n - s + p - 1) // p for n, s, p in zip(x.shape, starts, steps, strict=True))
    return te.compute(shape, lambda *i: x[tuple(v * p + s for v, s, p in zip(i, starts, steps, strict=True))], "s")


def _concat(draw: st.DrawFn, graph: Graph) -> te.Tensor:
    x = _pick(draw, graph)
    y = te.compute(x.shape, lambda *i: x[i] * 2.0 - 1.0, "y")
    if x.rank == 0:
        return te.compute((2,), lambda i: select(i < 1, _clamped(x[()]), _clamped(y[()])), "c")
    axis = draw(st.integers(0, x.rank - 1))
    n = x.shape[axis]
    shape = tuple(2 * e if k == axis else e for k, e in enumerate(x.shape))

    def body(*i: Expr) -> Expr:
        other = tuple(v - n if k == axis else v for k, v in enumerate(i))
        return _clamped(select(i[axis] < n, x[i], y[other]))

    return te.compute(shape, body, "c")


def _view(draw: st.DrawFn, graph: Graph) -> te.Tensor:
    x = _pick(draw, graph)
    primes: list[int] = []
    rest = x.size
    for p in (2, 3, 5, 17):
        while rest > 1 and rest % p == 0:
            primes.append(p)
            rest //= p
    shape = [1] * draw(st.integers(1, 3))
    for p in primes:
        shape[draw(st.integers(0, len(shape) - 1))] *= p
    shape[0] *= rest
    return te.view(x, tuple(shape), "v")


def _reduce(draw: st.DrawFn, graph: Graph) -> te.Tensor:
    x = _pick(draw, graph)
    axes = sorted(draw(st.sets(st.integers(0, max(x.rank - 1, 0)), max_size=x.rank))) if x.rank else []
    keep = draw(st.booleans())
    free = [k for k in range(x.rank) if k not in axes]
    shape = tuple(1 if k in axes else x.shape[k] for k in range(x.rank) if keep or k in free)

    def index(*v: Expr) -> tuple[Expr, ...]:
        outer, inner = list(v[: len(shape)]), list(v[len(shape) :])
        if keep:
            return tuple(inner.pop(0) if k in axes else outer[k] for k in range(x.rank))
        return tuple(inner.pop(0) if k in axes else outer.pop(0) for k in range(x.rank))

    combiner = draw(st.sampled_from(["sum", "max", "min"]))
    extents = [x.shape[k] for k in axes]
    limit = draw(st.integers(1, 9))
    guarded = bool(axes) and draw(st.booleans())
    guard = (lambda *v: v[-1] < limit) if guarded else None
    made = te.reduce(combiner, shape, extents, lambda *v: x[index(*v)], "r", guard=guard)
    return te.compute(shape, lambda *i: _clamped(made[i]), "rc") if combiner == "sum" else made


def _window(draw: st.DrawFn, graph: Graph) -> te.Tensor:
    x = _pick(draw, graph)
    if x.rank == 0:
        return _unary(draw, graph)
    stride, k, pad = draw(st.integers(1, 2)), draw(st.integers(1, 3)), draw(st.integers(0, 1))
    n = x.shape[-1]
    out = max((n + 2 * pad - k) // stride + 1, 1)
    shape = (*x.shape[:-1], out)

    def at(v: tuple[Expr, ...]) -> Expr:
        return v[-2] * stride + v[-1] - pad

    return te.reduce(
        "max", shape, (k,), lambda *v: x[(*v[: x.rank - 1], at(v))], "w", guard=lambda *v: all_of(at(v) >= 0, at(v) < n)
    )


def _gather(draw: st.DrawFn, graph: Graph) -> te.Tensor:
    x, y = _pick(draw, graph), _pick(draw, graph)
    if x.rank == 0:
        return _unary(draw, graph)
    n = x.shape[0]

    def body(*i: Expr) -> Expr:
        raw = minimum(maximum(y[i[: y.rank]], -8.0), 8.0).astype("int64")
        return x[(minimum(maximum(raw, 0), n - 1), *i[y.rank :])]

    return te.compute((*y.shape, *x.shape[1:]), body, "g")


def _dense(draw: st.DrawFn, graph: Graph) -> te.Tensor:
    x = _pick(draw, graph)
    k = x.shape[-1] if x.rank else 1
    m = math.prod(x.shape[:-1])
    flat = te.view(x, (m, k), "flat")
    n = draw(st.integers(1, 5))
    w = _input(draw, graph, (n, k))
    dot = te.contraction(
        (m, n), (k,), flat, lambda i, j, r: (i, r), w, lambda i, j, r: (j, r), dtype="float32", name="dot"
    )
    shaped = te.view(dot, (*x.shape[:-1], n), "shaped")
    return te.compute(shaped.shape, lambda *i: _clamped(shaped[i] + 1.0), "bias")


RULES = [_unary, _binary, _binary, _transpose, _pad, _slice, _concat, _view, _reduce, _reduce, _window, _gather, _dense]
