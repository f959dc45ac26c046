# SPDX-License-Identifier: Apache-2.0
"""Random loop nests that access one buffer, and the elements that each of their iterations accesses,
found by running them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from aotc.tir import Binary, Block, Buffer, Const, Declare, Expr, For, Load, Stmt, Store, Unary, Var, const, linear_form
from aotc.tir.expr import INDEX, Broadcast, as_expr, maximum, minimum, unary
from aotc.tir.stmt import If

BUFFER = Buffer("y", "float32", 1 << 20)
#: A nest with more iterations than this is not run.
MAX_ITERATIONS = 1500


class TooManyIterationsError(Exception):
    """Raised where a nest has more than `MAX_ITERATIONS` iterations."""


@dataclass
class RandomNest:
    """A loop, and the extents known at run time only and outer loop variables that it uses.

    loop    the loop whose iterations are compared
    outer   the values of each variable around the loop
    """

    loop: For
    outer: dict[Var, range]

    def outer_values(self) -> Iterator[dict[Var, int]]:
        """Yield all combinations of values of the variables around the loop."""
        values: list[dict[Var, int]] = [{}]
        for var, numbers in self.outer.items():
            values = [{**v, var: n} for v in values for n in numbers]
        yield from values

    def elements_by_iteration(self, values: Mapping[Var, int]) -> dict[int, tuple[set[int], set[int]]]:
        """Return the elements that each iteration of the loop writes, and those it reads."""
        run = _Run(dict(values))
        accesses: dict[int, tuple[set[int], set[int]]] = {}
        loop = self.loop
        for n in range(run.value(loop.begin), run.value(loop.end), loop.step):
            run.values[loop.var] = n
            run.written, run.read = set(), set()
            run.execute(loop.body)
            accesses[n] = run.written, run.read
        return accesses


@dataclass
class _Run:
    """An execution that records the accessed elements."""

    values: dict[Var, int]
    written: set[int] = field(default_factory=set)
    read: set[int] = field(default_factory=set)
    iterations: int = 0

    def value(self, expr: Expr) -> int:
        """Return the value of an integer or boolean expression."""
        match expr:
            case Const(value=value):
                return int(value)
            case Var():
                return self.values[expr]
            case Unary(op="not", a=a):
                return not self.value(a)
            case Binary(op=op, a=a, b=b):
                return _OPERATIONS[op](self.value(a), self.value(b))
        raise NotImplementedError(expr)

    def execute(self, stmt: Stmt) -> None:
        match stmt:
            case Block(stmts=stmts):
                for inner in stmts:
                    self.execute(inner)
            case For(var=var):
                for n in range(self.value(stmt.begin), self.value(stmt.end), stmt.step):
                    self.values[var] = n
                    self.iterations += 1
                    if self.iterations > MAX_ITERATIONS:
                        raise TooManyIterationsError
                    self.execute(stmt.body)
            case If(cond=cond, then=then, orelse=orelse):
                if self.value(cond):
                    self.execute(then)
                elif orelse is not None:
                    self.execute(orelse)
            case Declare(var=var, value=value):
                self.values[var] = self.value(value)
            case Store(index=index, value=value):
                first = self.value(index)
                self.written |= set(range(first, first + value.lanes))
                load = value.a if isinstance(value, Broadcast) else value
                if isinstance(load, Load):
                    first = self.value(load.index)
                    self.read |= {first + k * load.stride for k in range(load.lanes)}


_OPERATIONS = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b, "floormod": lambda a, b: a % b, "min": min, "max": max,
    "lt": lambda a, b: a < b, "le": lambda a, b: a <= b, "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b,
    "eq": lambda a, b: a == b, "ne": lambda a, b: a != b, "and": lambda a, b: a and b, "xor": lambda a, b: a ^ b,
}  # fmt: skip


def value_of_expr(expr: Expr, values: Mapping[Var, int]) -> int:
    """Return the value of an integer expression."""
    return _Run(dict(values)).value(expr)


class NestGenerator:
    """Generates nests of up to four loops with steps, empty ranges, triangular bounds, conditions,
    registers, vectors, quotients and remainders, and extents that are known at run time only.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def nest(self) -> RandomNest:
        rng = self.rng
        self.extent: dict[Var, Expr] = {}
        outer: dict[Var, range] = {}
        self.symbols: list[Var] = []
        if rng.random() < 0.3:
            least = rng.randint(1, 4)
            self.symbols = [Var("N", INDEX)]
            outer[self.symbols[0]] = range(least, least + rng.randint(0, 3) + 1)
        outer_vars = [Var("o", INDEX)] if rng.random() < 0.3 else []
        for var in outer_vars:
            outer[var] = range(rng.randint(0, 1), 3)
            self.extent[var] = as_expr(3)
        loop = self.loop_around([], [*outer_vars], depth=0)
        return RandomNest(loop, outer)

    def loop_around(self, inner_vars: list[Var], outer_vars: list[Var], depth: int) -> For:
        """Return a loop, with up to three loops inside it."""
        rng = self.rng
        var = Var(f"i{depth}", INDEX)
        extent: Expr = as_expr(rng.choice([0, 1, 2, 3, 4, 5, 6, 8]) if rng.random() < 0.1 else rng.randint(2, 6))
        if self.symbols and rng.random() < 0.5:
            extent = self.symbols[0] * 1
        begin: Expr = as_expr(0)
        end = extent
        kind = rng.random()
        if kind < 0.1:
            begin = as_expr(rng.randint(-2, 2))
        elif kind < 0.2 and outer_vars:
            begin = rng.choice(outer_vars) * rng.choice([1, 2])
            end = begin + extent
        elif kind < 0.3 and outer_vars:
            begin = maximum(rng.randint(1, 3) - rng.choice(outer_vars) * rng.choice([1, 2]), rng.randint(0, 1))
        elif kind < 0.4 and outer_vars:
            end = minimum(extent, rng.randint(1, 8) - rng.choice(outer_vars) * rng.choice([1, 2]))
        step = rng.choice([1, 1, 1, 1, 2, 3])
        self.extent[var] = extent
        nest_vars = [*outer_vars, var]
        if depth < 3 and rng.random() < 0.75 - 0.2 * depth:
            body: Stmt = self.loop_around([], nest_vars, depth + 1)
            if rng.random() < 0.15:
                body = Block((body, self.store(nest_vars)))
        else:
            body = Block(self.store(nest_vars) for _ in range(rng.choice([1, 1, 1, 2, 3])))
        if rng.random() < 0.2:
            register = Var(f"n{depth}", INDEX)
            value = self.index(nest_vars)
            self.registers = register
            body = Block((Declare(register, value), body, self.store(nest_vars, register)))
        if rng.random() < 0.25:
            body = If(self.condition(nest_vars), body, self.store(nest_vars) if rng.random() < 0.3 else None)
            if rng.random() < 0.1:
                body = If(body.cond, body.then, body.then)
        return For(var, end, body, begin=begin, step=step)

    def condition(self, nest_vars: list[Var]) -> Expr:
        rng = self.rng
        index = rng.choice(nest_vars) * 1 if rng.random() < 0.7 else self.index(nest_vars)
        op = rng.choice(["lt", "le", "gt", "ge", "eq", "ne", "lt", "ge"])
        cond: Expr = Binary(op, index, const(rng.randint(0, 5), INDEX))
        if rng.random() < 0.2:
            cond = Binary("and", cond, Binary("lt", rng.choice(nest_vars) * 1, const(rng.randint(1, 4), INDEX)))
        return unary("not", cond) if rng.random() < 0.1 else cond

    def store(self, nest_vars: list[Var], register: Var | None = None) -> Store:
        rng = self.rng
        index = self.index(nest_vars)
        if register is not None:
            index = register + rng.randint(0, 3)
        lanes = rng.choice([1, 1, 1, 2, 4])
        value: Expr = const(1.0, BUFFER.dtype)
        if rng.random() < 0.25:
            value = Load(BUFFER, index if rng.random() < 0.5 else self.index(nest_vars))
        return Store(BUFFER, index, Broadcast(value, lanes) if lanes > 1 else value)

    def index(self, nest_vars: list[Var]) -> Expr:
        """Return an address: often rows after rows of the loops' elements, else any sum."""
        rng = self.rng
        order = rng.sample(nest_vars, rng.randint(1, len(nest_vars)) if rng.random() < 0.3 else len(nest_vars))
        total: Expr = as_expr(0)
        if rng.random() < 0.75:
            stride: Expr = as_expr(rng.choice([1, 1, 2, 4]))
            for var in order:
                term = var * stride
                total = total + term
                extent = self.extent[var]
                grown = extent + rng.choice([0, 0, 0, 0, 1, -1, 2]) if isinstance(extent, Const) else extent
                stride = as_expr(linear_form(stride * grown, {}).to_expr())
        else:
            for var in order:
                total = total + var * rng.randint(-4, 12)
        kind = rng.random()
        if kind < 0.3:
            divisor = rng.choice([2, 3, 4, 6])
            quotient, rest = (
                Binary("floordiv", total, const(divisor, INDEX)),
                Binary("floormod", total, const(divisor, INDEX)),
            )
            factors = rng.choice([(divisor, 1), (divisor * 2, 2), (1, 12), (16, 1), (1, 1), (0, 1), (3, 0)])
            total = quotient * factors[0] + rest * factors[1]
            if rng.random() < 0.4:
                total = total + rng.choice(nest_vars) * rng.choice([24, 36, 100])
        elif kind < 0.4:
            total = 200 - total
        elif kind < 0.45:
            total = minimum(total, rng.randint(2, 40))
        elif kind < 0.5:
            total = Binary("xor", total, const(1, INDEX))
        return total + rng.choice([0, 0, 1, 7, 32])
