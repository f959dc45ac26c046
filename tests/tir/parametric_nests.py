# SPDX-License-Identifier: Apache-2.0
"""Loop nests whose extents and strides are parameters with intervals: random ones, and those that occur in kernels
for sizes that are known at run time only."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations

from aotc.tir import Binary, Block, Expr, For, Load, Stmt, Store, Var, const, linear_form
from aotc.tir.expr import INDEX, Broadcast, as_expr, minimum
from aotc.tir.stmt import If
from tests.tir.random_accesses import BUFFER, RandomNest


@dataclass
class NestPair:
    """Two nests with common parameters, and a number of elements.

    size    a number of elements as an expression of the parameters
    """

    first: RandomNest
    second: RandomNest
    size: Expr


class ParametricNestGenerator:
    """Generates pairs of nests of up to four loops over parameters: dense and padded rows, tiles with a remainder,
    transposes, flattened loops, windows, triangles, steps and conditions."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def pair(self) -> NestPair:
        rng = self.rng
        self.parameters = {}
        for name in "nm"[: rng.choice([1, 1, 2])]:
            least = rng.choice([0, 1, 1, 2, 3, 4])
            self.parameters[Var(name, INDEX)] = range(least, least + rng.choice([1, 2, 3, 5]))
        extents = [self.extent() for _ in range(rng.choice([1, 2, 2, 3, 3, 4]))]
        size = as_expr(1)
        for extent in extents:
            size = size * extent
        size = size + rng.choice([0, 0, 0, 1, -1])
        first, second = self.nest(extents), self.nest(extents)
        if rng.random() < 0.5:
            second = self.shifted(first)
        return NestPair(first, second, size)

    def parameter(self) -> Expr:
        return self.rng.choice([*self.parameters]) * 1

    def extent(self) -> Expr:
        rng, number = self.rng, self.parameter()
        return rng.choice(
            [
                *[number] * 3,
                *[as_expr(rng.randint(1, 4))] * 2,
                number + rng.choice([-2, -1, 1, 2]),
                number // 2,
                number // 2 * 2,
                number * 2,
            ]
        )

    def nest(self, extents: Sequence[Expr]) -> RandomNest:
        self.extents = list(extents)
        self.order = [*range(len(extents))]
        if self.rng.random() < 0.3:
            self.rng.shuffle(self.order)
        self.strides = self.strides_of_order()
        self.kind = self.rng.choice(["dense"] * 4 + ["any", "divided"])
        loop = self.loop([])
        return RandomNest(loop, dict(self.parameters))

    def strides_of_order(self) -> list[Expr]:
        """Return the stride of each loop: the product of the extents inside it, often a little more or less."""
        rng = self.rng
        strides: dict[int, Expr] = {}
        stride = as_expr(rng.choice([1, 1, 1, 2, 4]))
        for axis in reversed(self.order):
            strides[axis] = stride
            stride = linear_form(stride * (self.extents[axis] + rng.choice([0] * 6 + [1, 2, -1])), {}).to_expr()
        return [strides[axis] for axis in range(len(self.extents))]

    def loop(self, values: list[Expr]) -> For:
        """Return the loop of an axis, with the loops of the following axes inside it; `values` are those of the axes
        around it."""
        rng, axis = self.rng, len(values)
        var, extent = Var(f"i{axis}", INDEX), self.extents[axis]
        begin: Expr = as_expr(0)
        end, step = extent, 1
        kind = rng.random()
        if kind < 0.06 and values:
            begin = values[-1] * 1
        elif kind < 0.12 and values:
            end = minimum(extent, rng.randint(1, 5) - values[-1] * 1)
        elif kind < 0.2:
            begin, end = as_expr(rng.choice([1, -1])), extent + rng.choice([0, 0, 1])
        elif kind < 0.3:
            step = rng.choice([2, 2, 3])
        value: Expr = var * 1
        if axis and rng.random() < 0.1:
            value = extent - 1 - var
        return For(var, end, self.body([*values, value]), begin=begin, step=step)

    def body(self, values: list[Expr]) -> Stmt:
        rng = self.rng
        if len(values) == len(self.extents):
            body: Stmt = Block(self.store(values) for _ in range(rng.choice([1, 1, 1, 2])))
        elif rng.random() < 0.25:
            body = self.tiles(values)
        else:
            body = self.loop(values)
        if rng.random() < 0.12:
            limit = self.extents[len(values) - 1] - rng.randint(0, 2)
            body = If(Binary(rng.choice(["lt", "le", "ge", "ne"]), values[-1], as_expr(limit)), body)
        return body

    def tiles(self, values: list[Expr]) -> Stmt:
        """Return a loop over whole tiles and a loop over the remaining elements."""
        rng, extent = self.rng, self.extents[len(values)]
        tile = rng.choice([2, 2, 3])
        whole = extent // tile * tile
        if rng.random() < 0.5:
            t, lane = Var("t", INDEX), Var("k", INDEX)
            main = For(t, extent // tile, For(lane, tile, self.body([*values, t * tile + lane])))
        else:
            t, lane = Var("t", INDEX), Var("k", INDEX)
            main = For(t, whole, For(lane, tile, self.body([*values, t + lane])), step=tile)
        rest = Var("r", INDEX)
        remainder = For(rest, extent, self.body([*values, rest * 1]), begin=whole if rng.random() < 0.9 else whole - 1)
        return Block((main, remainder) if rng.random() < 0.9 else (main,))

    def store(self, values: list[Expr]) -> Store:
        rng = self.rng
        index = self.index(values)
        value: Expr = const(1.0, BUFFER.dtype)
        if rng.random() < 0.3:
            value = Load(
                BUFFER, index + rng.choice([0, 0, 1, self.parameter()]) if rng.random() < 0.7 else self.index(values)
            )
        lanes = rng.choice([1] * 6 + [2, 4])
        return Store(BUFFER, index, Broadcast(value, lanes) if lanes > 1 else value)

    def index(self, values: list[Expr]) -> Expr:
        rng = self.rng
        total = as_expr(rng.choice([0, 0, 0, 1, 3]))
        for value, stride in zip(values, self.strides, strict=True):
            if self.kind == "any":
                stride = rng.choice([stride, as_expr(rng.randint(0, 4)), self.parameter(), self.parameter() + 1])
            total = total + value * stride
        if rng.random() < 0.1:
            total = total + rng.choice([self.parameter(), self.parameter() * self.parameter()])
        if self.kind == "divided":
            divisor = self.parameter() if rng.random() < 0.7 else as_expr(rng.randint(2, 4))
            quotient, rest = Binary("floordiv", total, divisor), Binary("floormod", total, divisor)
            factor = rng.choice([divisor, divisor, self.parameter(), as_expr(3)])
            return rng.choice([quotient * factor + rest, rest * factor + quotient, quotient, rest])
        return total

    def shifted(self, nest: RandomNest) -> RandomNest:
        """Return a nest whose accesses lie behind those of another one, by a constant or a product of extents."""
        rng = self.rng
        offset = as_expr(rng.choice([0, 0, 1, 8]))
        if rng.random() < 0.6:
            offset = as_expr(1)
            for extent in self.extents:
                offset = offset * extent

        def moved(stmt: Stmt) -> Stmt:
            match stmt:
                case Store(index=index, value=value):
                    return Store(BUFFER, index + offset, value)
                case For():
                    return For(stmt.var, stmt.end, moved(stmt.body), begin=stmt.begin, step=stmt.step)
                case Block(stmts=stmts):
                    return Block(map(moved, stmts))
                case If(cond=cond, then=then, orelse=orelse):
                    return If(cond, moved(then), None if orelse is None else moved(orelse))
            raise NotImplementedError(stmt)

        loop = moved(nest.loop)
        assert isinstance(loop, For)
        return RandomNest(loop, nest.outer)


@dataclass
class TypicalNest:
    """A nest of independent iterations over a dense tensor, as kernels for sizes at run time have.

    loops        the loops of the nest, the outermost first, each with those inside it; their iterations write
                 different elements
    parts        statements that together access the elements, each once
    size         the number of elements
    parameters   the intervals of the extents
    reads        the addresses are those of loads of a tensor that is filled before
    """

    name: str
    loops: list[For]
    parts: list[Stmt]
    size: Expr
    parameters: dict[Var, range]
    reads: bool = False


EXTENTS = [3, 17, 5, 8, 2]
SIZES = range(1, 513)


def typical_nests() -> Iterator[TypicalNest]:
    """Yield dense tensors of 2 to 5 dimensions with each choice of extents that are parameters, as they are, in tiles,
    transposed, within a border, and reshaped."""
    for rank in range(2, 6):
        for count in range(1, rank + 1):
            for axes in combinations(range(rank), count):
                parameters = {axis: Var(f"n{axis}", INDEX) for axis in axes}
                extents = [parameters.get(axis, const(EXTENTS[axis], INDEX)) for axis in range(rank)]
                yield from _nests_of_extents([*extents], dict.fromkeys(parameters.values(), SIZES))


def _nests_of_extents(extents: list[Expr], parameters: dict[Var, range]) -> Iterator[TypicalNest]:
    rank = len(extents)
    name = "x".join(
        e.name if isinstance(e, Var) else str(e.value) for e in extents if isinstance(e, (Var, type(const(1, INDEX))))
    )
    size = product(extents)
    variables = [Var(f"i{axis}", INDEX) for axis in range(rank)]
    yield _typical(f"dense {name}", variables, extents, row_major(variables, extents), size, parameters)
    for order in list(permutations(range(rank)))[1:4]:
        moved, moved_extents = [variables[a] for a in order], [extents[a] for a in order]
        address = row_major(moved, moved_extents)
        yield _typical(f"transposed {order} {name}", variables, extents, address, size, parameters)
    yield _tiled(f"tiles {name}", variables, extents, size, parameters)
    inner = [e - 2 if isinstance(e, Var) else e for e in extents]
    big = {var: range(3, 513) for var in parameters}
    yield _typical(f"border {name}", variables, inner, row_major(variables, inner), product(inner), big)
    window = row_major([v + 2 if isinstance(e, Var) else v for v, e in zip(variables, extents, strict=True)], extents)
    yield _typical(f"window {name}", variables, inner, window, size, big, reads=True)
    flat = Var("t", INDEX)
    last = extents[-1]
    rows = product(extents[:-1])
    same = Binary("floordiv", flat, last) * last + Binary("floormod", flat, last)
    yield _typical(f"reshaped {name}", [flat], [size], same, size, parameters, reads=True)
    turned = Binary("floormod", flat, last) * rows + Binary("floordiv", flat, last)
    yield _typical(f"flat transposed {name}", [flat], [size], turned, size, parameters, reads=True)


def product(extents: Sequence[Expr]) -> Expr:
    total = as_expr(1)
    for extent in extents:
        total = total * extent
    return total


def row_major(values: Sequence[Expr], extents: Sequence[Expr]) -> Expr:
    """Return the address of an element of a dense tensor."""
    total = as_expr(0)
    for value, extent in zip(values, extents, strict=True):
        total = total * extent + value
    return total


def _store(address: Expr) -> Store:
    return Store(BUFFER, address, const(0.0, BUFFER.dtype))


def _typical(
    name: str,
    variables: Sequence[Var],
    extents: Sequence[Expr],
    address: Expr,
    size: Expr,
    parameters: dict[Var, range],
    *,
    reads: bool = False,
) -> TypicalNest:
    body: Stmt = _store(address)
    loops: list[For] = []
    for var, extent in zip(reversed(variables), reversed(extents), strict=True):
        body = For(var, extent, body)
        loops.insert(0, body)
    return TypicalNest(name, loops, [body], size, parameters, reads)


def _tiled(
    name: str, variables: Sequence[Var], extents: Sequence[Expr], size: Expr, parameters: dict[Var, range]
) -> TypicalNest:
    """Return a nest whose innermost loop is one over tiles of eight elements and one over the rest."""
    t, lane, rest = Var("t", INDEX), Var("k", INDEX), Var("r", INDEX)
    last = extents[-1]
    whole = last // 8 * 8
    tiles = For(t, whole, For(lane, 8, _store(row_major([*variables[:-1], t + lane], extents))), step=8)
    remainder = For(rest, last, _store(row_major([*variables[:-1], rest], extents)), begin=whole)
    body: Stmt = Block((tiles, remainder))
    parts: list[Stmt] = [tiles, remainder]
    loops: list[For] = []
    for var, extent in zip(reversed(variables[:-1]), reversed(extents[:-1]), strict=True):
        body = For(var, extent, body)
        parts = [For(var, extent, part) for part in parts]
        loops.insert(0, body)
    return TypicalNest(name, loops, parts, size, parameters)
