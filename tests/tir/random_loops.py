# SPDX-License-Identifier: Apache-2.0
"""Random kernels with independent loops over numbers of all widths, with conditions, conversions and functions.

kernel, inputs = made(seed)            # arrays with special values, one for each input
"""

from __future__ import annotations

import random
from typing import Any, Final

import numpy as np

from aotc.ir.dtype import DTYPES, DType
from aotc.tir.expr import BOOL, INDEX, Buffer, Expr, Load, Var, as_expr, binary, call, cast, const, select, unary
from aotc.tir.stmt import Block, Declare, If, Kernel, Stmt, Store, forall

_NAMES: Final = "float32 float64 float16 int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool"
NARROW: Final = tuple(d for d in DTYPES if d.is_narrow_float)
TYPES: Final = tuple(map(DType, _NAMES.split()))
PLACES: Final = tuple(map(DType, ("int64", "int32", "uint8")))
_CALLED: Final = "exp log tanh erf sin cos tan sqrt rsqrt abs floor ceil trunc round_even round_away"
FUNCTIONS: Final = _CALLED.split()
_SPECIAL: Final = [0.0, -0.0, 1.0, -1.0, 0.5, 2.5, -2.5, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 3e38, 2.0**31, 1e10]


def made(seed: int) -> tuple[Kernel, list[np.ndarray[Any, Any]]]:
    """A kernel and its inputs."""
    return _Maker(random.Random(seed), np.random.default_rng(seed)).kernel(f"k{seed}")


class _Maker:
    """Makes one kernel: an inner loop of `extent` iterations in another one, or alone."""

    def __init__(self, choose: random.Random, numbers: np.random.Generator) -> None:
        self.choose, self.numbers = choose, numbers
        self.inputs: list[Buffer] = []
        self.i, self.j = Var("i"), Var("j")
        self.rows, self.extent = choose.choice([(1, 37), (3, 16), (2, 45), (5, 3), (70, 3), (41, 6), (1, 70)])

    def kernel(self, name: str) -> tuple[Kernel, list[np.ndarray[Any, Any]]]:
        registers: dict[Var, Expr] = {}
        stmts: list[Stmt] = []
        for k in range(self.choose.randrange(3)):
            dtype = self.dtype()
            register = Var(f"r{k}", dtype)
            stmts.append(Declare(register, self.value(dtype, 2, registers)))
            registers[register] = register
        outputs = []
        for k in range(self.choose.choice([1, 1, 2])):
            dtype = self.dtype()
            outputs.append(Buffer(f"y{k}", dtype, self.rows * self.extent))
            store = Store(outputs[-1], self.i * self.extent + self.j, self.value(dtype, 3, registers))
            stmts.append(store)
        if self.choose.random() < 0.2:  # a condition that is one for all lanes
            stmts = [If(self.i < 1, Block(stmts), Block([Store(o, self.place(), const(1, o.dtype)) for o in outputs]))]
        inner = forall(self.j, self.extent, Block(stmts))
        body = forall(self.i, self.rows, inner) if self.rows > 1 else Block([Declare(self.i, as_expr(0)), inner])
        kernel = Kernel(name=name, inputs=tuple(self.inputs), outputs=tuple(outputs), body=body)
        return kernel, [self.array(b) for b in self.inputs]

    def dtype(self) -> DType:
        return self.choose.choice((*TYPES, self.choose.choice(NARROW)))

    def place(self) -> Expr:
        return self.i * self.extent + self.j

    def array(self, buffer: Buffer) -> np.ndarray[Any, Any]:
        dtype = buffer.dtype
        if dtype.is_bool:
            return self.numbers.integers(0, 2, buffer.size).astype(bool)
        if dtype.is_integer:
            facts = np.iinfo(dtype.numpy)
            return self.numbers.integers(facts.min, facts.max, buffer.size, dtype.numpy, endpoint=True)
        values = self.numbers.standard_normal(buffer.size) * 4
        special = self.numbers.random(buffer.size) < 0.2
        values[special] = self.numbers.choice(_SPECIAL, special.sum())
        with np.errstate(over="ignore"):
            return values.astype(dtype.numpy)

    def load(self, dtype: DType) -> Expr:
        step = self.choose.choice([1, 1, 1, 1, 0, 2, 3, -1])
        size = max(1, self.rows * self.extent) * max(abs(step), 1)
        buffer = Buffer(f"x{len(self.inputs)}", dtype, size)
        self.inputs.append(buffer)
        if self.choose.random() < 0.15:
            return Load(buffer, self.told(size))
        if step == 0:
            return Load(buffer, self.choose.choice([self.i * 1, self.j * 1]))
        at = (self.i * self.extent + self.j) * abs(step)
        return Load(buffer, size - 1 - at if step < 0 else at)

    def told(self, size: int) -> Expr:
        """A place of `size` that data tells, or digits of another place."""
        if self.choose.random() < 0.5:
            return self.place() // 3 % size
        places = Buffer(f"x{len(self.inputs)}", self.choose.choice(PLACES), self.rows * self.extent)
        self.inputs.append(places)
        return binary("floormod", cast(Load(places, self.place()), INDEX), size)

    def value(self, dtype: DType, depth: int, registers: dict[Var, Expr]) -> Expr:
        known = [r for r in registers if r.dtype == dtype]
        if known and self.choose.random() < 0.4:
            return self.choose.choice(known)
        if depth == 0:
            return self.load(dtype) if self.choose.random() < 0.8 else self.constant(dtype)
        if dtype.is_bool:
            return self.test(depth, registers)
        if dtype == INDEX and self.choose.random() < 0.2:
            return self.place()
        kind = self.choose.random()
        if kind < 0.2:
            source = self.dtype()
            return cast(self.value(source, depth - 1, registers), dtype)
        if kind < 0.4:
            parts = (self.value(dtype, depth - 1, registers) for _ in range(2))
            return select(self.test(depth - 1, registers), *parts)
        if kind < 0.55 and (dtype == "float32" or dtype.is_narrow_float):
            return call(self.choose.choice(FUNCTIONS), self.value(dtype, depth - 1, registers))
        return self.operation(dtype, depth, registers)

    def constant(self, dtype: DType) -> Expr:
        return const(self.choose.choice([0, 1, 2, 7]), dtype)

    def operation(self, dtype: DType, depth: int, registers: dict[Var, Expr]) -> Expr:
        a, b = (self.value(dtype, depth - 1, registers) for _ in range(2))
        if dtype.is_float:
            if self.choose.random() < 0.15:
                return unary("neg", a)
            return binary(self.choose.choice(["add", "sub", "mul", "div", "min", "max"]), a, b)
        if self.choose.random() < 0.1:
            op = self.choose.choice(["floordiv", "truncmod", "shl", "shr"])
            return binary(op, a, b & 15 if op.startswith("sh") and self.choose.random() < 0.7 else b)
        op = self.choose.choice(["add", "sub", "mul", "min", "max", "and", "or", "xor", "shl", "shr", "not", "neg"])
        if op in ("not", "neg"):
            return unary(op, a)
        return binary(op, a, const(self.choose.randrange(dtype.bits), dtype) if op in ("shl", "shr") else b)

    def test(self, depth: int, registers: dict[Var, Expr]) -> Expr:
        if depth > 0 and self.choose.random() < 0.4:
            a, b = (self.test(depth - 1, registers) for _ in range(2))
            op = self.choose.choice(["and", "or", "xor", "not"])
            return unary("not", a) if op == "not" else binary(op, a, b)
        if self.choose.random() < 0.2:
            return self.load(BOOL)
        if depth > 0 and self.choose.random() < 0.1:
            dtype = self.choose.choice([t for t in TYPES if t.is_float])
            return call("isnan", self.value(dtype, depth - 1, registers))
        dtype = self.choose.choice([t for t in (*TYPES, *NARROW) if not t.is_bool])
        a, b = (self.value(dtype, max(depth - 1, 0), registers) for _ in range(2))
        return binary(self.choose.choice(["eq", "ne", "lt", "le", "gt", "ge"]), a, b)
