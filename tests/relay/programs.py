# SPDX-License-Identifier: Apache-2.0
"""Random programs over float32 tensors of shape (4, 4), drawn by hypothesis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

from aotc.ir.types import TensorType
from aotc.relay.expr import Call, Constant, Expr, Function, If, Let, Tuple, TupleGetItem, Var
from aotc.relay.op.binary_elementwise import add, maximum, multiply
from aotc.relay.op.concat_split import concatenate, split
from aotc.relay.op.dense import dense
from aotc.relay.op.elementwise_unary import negative, relu, tanh
from aotc.relay.op.reduce import sum as sum_
from aotc.relay.op.shape import transpose
from aotc.relay.op.softmax import softmax

SHAPE = (4, 4)
MATRIX = TensorType(SHAPE, "float32")
FLAG = TensorType((), "bool")


def scalar(value: float) -> Constant:
    return Constant(np.float32(value))


def matrix(seed: int) -> Constant:
    return Constant(np.random.default_rng(seed).normal(size=SHAPE).astype(np.float32))


def _closure(a: Expr, b: Expr) -> Expr:
    """fn (%t) { %t + a }(b)"""
    t = Var("t", MATRIX)
    return Call(Function((t,), add(t, a), MATRIX), (b,), checked_type=MATRIX)


def _let(a: Expr, b: Expr) -> Expr:
    t = Var("t", MATRIX)
    return Let(t, a, multiply(t, b))


def _join(a: Expr, b: Expr) -> Expr:
    both = concatenate(Tuple((a, b)), axis=0)
    halves = split(both, 2, axis=0)
    return TupleGetItem(getattr(halves, "tuple_value", halves), 1)


STEPS: tuple[Callable[[Expr, Expr], Expr], ...] = (
    lambda a, b: relu(a),
    lambda a, b: tanh(a),
    lambda a, b: negative(a),
    add,
    multiply,
    maximum,
    lambda a, b: transpose(a, (1, 0)),
    lambda a, b: dense(a, b, units=4),
    lambda a, b: softmax(a),
    lambda a, b: add(sum_(a, axis=1, keepdims=True), b),
    lambda a, b: add(a, scalar(0.1)),
    lambda a, b: multiply(a, scalar(1 / 3)),
    lambda a, b: TupleGetItem(Tuple((a, b)), 1),
    _join,
)
BLOCKS: tuple[Callable[[Expr, Expr], Expr], ...] = (_closure, _let)


@st.composite
def functions(draw: Any, control_flow: bool = True) -> Function:
    """A function of two matrices and a flag, its intermediate results shared at random."""
    params = (Var("x", MATRIX), Var("y", MATRIX), Var("flag", FLAG))
    pool: list[Expr] = [params[0], params[1], matrix(1)]
    steps = STEPS + BLOCKS if control_flow else STEPS
    for _ in range(draw(st.integers(1, 14))):
        recent = st.integers(max(0, len(pool) - 5), len(pool) - 1)
        a, b = pool[draw(recent)], pool[draw(st.integers(0, len(pool) - 1))]
        if control_flow and draw(st.integers(0, 9)) == 0:
            pool.append(If(params[2], a, b))
        else:
            pool.append(draw(st.sampled_from(steps))(a, b))
    body = pool[-1]
    if draw(st.booleans()):
        body = Tuple((body, pool[draw(st.integers(0, len(pool) - 1))]))
    return Function(params, body, body.checked_type)


def inputs(seed: int = 0, flag: bool = True) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x, y = (rng.normal(size=SHAPE).astype(np.float32) for _ in range(2))
    return x, y, np.asarray(flag)


def chain(length: int) -> Function:
    """relu(relu(... x))"""
    x = Var("x", MATRIX)
    body: Expr = x
    for _ in range(length):
        body = relu(body)
    return Function((x,), body, MATRIX)


def let_chain(length: int) -> Function:
    """let v0 = relu(x); let v1 = relu(v0); ... v_last"""
    x = Var("x", MATRIX)
    names: list[Var] = [x, *(Var(f"v{k}", MATRIX) for k in range(length))]
    body: Expr = names[-1]
    for k in range(length, 0, -1):
        body = Let(names[k], relu(names[k - 1]), body)
    return Function((x,), body, MATRIX)


def if_chain(depth: int) -> Function:
    """if (flag) { relu(x) } else { if ... }"""
    x, flag = Var("x", MATRIX), Var("flag", FLAG)
    body: Expr = x
    for _ in range(depth):
        body = If(flag, relu(x), body)
    return Function((x, flag), body, MATRIX)
