# SPDX-License-Identifier: Apache-2.0
"""Structural equality and hash ignore names, spans and types, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aotc.ir.diagnostics import AotcError
from aotc.ir.span import Span, span_scope
from aotc.ir.types import TensorType
from aotc.relay.expr import (
    Constant,
    Expr,
    Function,
    If,
    Let,
    Tuple,
    TupleGetItem,
    Var,
    splat_constant,
    with_checked_type,
)
from aotc.relay.module import IRModule
from aotc.relay.op.binary_elementwise import add, multiply
from aotc.relay.op.elementwise_unary import relu, tanh
from aotc.relay.op.softmax import softmax
from aotc.relay.structural_equality import (
    assert_structural_equal,
    structural_difference,
    structural_equal,
    structural_hash,
)
from aotc.relay.visitor import Mutator
from relay.programs import MATRIX, chain, functions, let_chain, matrix


class _Copy(Mutator):
    """A copy that shares no node with the original; variables get other names."""

    def rewrite_rebuilt_node(self, old: Expr, new: Expr) -> Expr:
        match old:
            case Var():
                return Var(f"{old.name}_copy", old.annotation, Span("elsewhere"))
            case Constant():
                return Constant(old.data.copy())
            case _:
                return with_checked_type(with_checked_type(new, None), old.checked_type)  # type: ignore[type-var]


def copy_of(function: Function) -> Function:
    with span_scope(Span("copy")):
        return _Copy().visit_function(function)


@settings(max_examples=100, deadline=None)
@given(functions())
def test_copies_are_equal(function: Function) -> None:
    copy = copy_of(function)
    assert copy is not function
    assert_structural_equal(function, copy)
    assert structural_hash(function) == structural_hash(copy)


@settings(max_examples=100, deadline=None)
@given(functions(), functions())
def test_equality_implies_equal_hashes_and_is_symmetric(a: Function, b: Function) -> None:
    assert structural_equal(a, b) == structural_equal(b, a)
    if structural_equal(a, b):
        assert structural_hash(a) == structural_hash(b)


def x_to(make: object) -> Function:
    x = Var("x", MATRIX)
    return Function((x,), make(x))  # type: ignore[operator]


def shared(x: Expr) -> Expr:
    y = relu(x)
    return add(y, y)


DIFFERENT = [
    (x_to(relu), x_to(tanh), ".body.op"),
    (x_to(softmax), x_to(lambda x: softmax(x, axis=0)), ".body"),
    (x_to(lambda x: add(x, Constant(np.float32(0.0)))), x_to(lambda x: add(x, Constant(np.float32(-0.0)))), ".args[1]"),
    (x_to(shared), x_to(lambda x: add(relu(x), relu(x))), ".args[1]"),
    (x_to(lambda x: add(x, matrix(0))), x_to(lambda x: add(x, matrix(1))), ".args[1]"),
    (x_to(lambda x: TupleGetItem(Tuple((x, x)), 0)), x_to(lambda x: TupleGetItem(Tuple((x, x)), 1)), ".body"),
    (x_to(lambda x: Tuple((x,))), x_to(lambda x: Tuple((x, x))), ".body"),
    (Function((), matrix(0), attrs={"Primitive": 1}), Function((), matrix(0)), "expr"),
    (Function((Var("x", MATRIX),), matrix(0)), Function((Var("x", TensorType((4,))),), matrix(0)), "expr"),
    (Function((), matrix(0), TensorType((4,))), Function((), matrix(0)), "expr"),
    (Function((Var("x"),), matrix(0)), Function((), matrix(0)), "expr"),
]


@pytest.mark.parametrize(("a", "b", "place"), DIFFERENT)
def test_differences_are_found_and_named(a: Function, b: Function, place: str) -> None:
    for left, right in ((a, b), (b, a)):
        assert not structural_equal(left, right)
        assert structural_difference(left, right).split(":")[0].endswith(place)
    with pytest.raises(AotcError, match="the programs differ at expr"):
        assert_structural_equal(a, b)


def test_parameters_correspond_by_position() -> None:
    x, y = Var("x", MATRIX), Var("y", MATRIX)
    assert structural_equal(Function((x, y), multiply(x, y)), Function((y, x), multiply(y, x)))
    assert not structural_equal(Function((x, y), multiply(x, y)), Function((x, y), multiply(y, x)))
    assert not structural_equal(Function((x, y), multiply(x, y)), Function((x, y), multiply(x, x)))


def test_free_variables() -> None:
    x, y = Var("x", MATRIX), Var("y", MATRIX)
    assert structural_equal(relu(x), relu(x)) and not structural_equal(relu(x), relu(y))
    assert structural_equal(add(x, y), add(y, x), map_free_vars=True)
    assert not structural_equal(add(x, x), add(x, y), map_free_vars=True)
    assert structural_hash(relu(x), True) == structural_hash(relu(y), True)
    assert structural_hash(relu(x)) != structural_hash(relu(y))


def test_control_flow() -> None:
    x, flag, t = Var("x", MATRIX), Var("flag", TensorType((), "bool")), Var("t", MATRIX)
    a = Function((x, flag), If(flag, relu(x), x))
    b = Function((x, flag), If(flag, x, relu(x)))
    assert not structural_equal(a, b) and structural_equal(a, copy_of(a))
    c = Function((x,), Let(t, relu(x), add(t, x)))
    d = Function((x,), Let(t, relu(x), add(x, t)))
    assert not structural_equal(c, d) and structural_equal(c, copy_of(c))


def test_splats_equal_full_arrays() -> None:
    full, small = Constant(np.full((8, 9), 3, np.int32)), splat_constant(3, (8, 9), "int32")
    assert structural_equal(full, small) and structural_hash(full) == structural_hash(small)
    assert structural_equal(small, splat_constant(3, (8, 9), "int32"))
    assert not structural_equal(small, splat_constant(4, (8, 9), "int32"))


def test_nans_equal_themselves() -> None:
    a, b = (Constant(np.array([np.nan, 1], np.float32)) for _ in range(2))
    assert structural_equal(a, b)


def test_modules() -> None:
    f, g = x_to(relu), x_to(tanh)
    assert structural_equal(IRModule({"main": f, "g": g}), IRModule({"g": copy_of(g), "main": copy_of(f)}))
    assert "@g" in structural_difference(IRModule({"main": f, "g": g}), IRModule({"main": f}))
    assert structural_difference(IRModule({"main": f}), IRModule({"main": g})).startswith("@main.body.op")
    assert not structural_equal(IRModule({"main": f}), IRModule({"main": f}, {"output_names": ("y",)}))
    assert not structural_equal(IRModule({"main": f}), f)


@pytest.mark.parametrize("make", [chain, let_chain])
def test_long_programs(make: object) -> None:
    a, b = make(10_000), make(10_000)  # type: ignore[operator]
    assert structural_equal(a, b) and structural_hash(a) == structural_hash(b)
    assert not structural_equal(a, make(9_999))  # type: ignore[operator]


def test_hashes_are_the_same_in_every_process() -> None:
    root = Path(__file__).parents[2]
    code = (
        "from aotc.driver.operator_and_pass_registration import install_operators_and_passes;"
        "install_operators_and_passes();"
        "from relay.programs import chain; from aotc.relay.structural_equality import structural_hash;"
        "print(structural_hash(chain(3)))"
    )
    paths = ":".join(str(root / p) for p in (".", "codegen", "runtime_c", "tests"))
    for seed in ("1", "2"):
        out = subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONPATH": paths, "PYTHONHASHSEED": seed}, capture_output=True
        )
        assert int(out.stdout) == structural_hash(chain(3))


@settings(max_examples=50, deadline=None)
@given(functions(), st.integers(0, 2**32))
def test_any_changed_constant_is_noticed(function: Function, seed: int) -> None:
    changed: list[Constant] = []

    class _Change(Mutator):
        def rewrite_constant(self, old: Expr, new: Constant) -> Expr:
            changed.append(new)
            return Constant(new.data + np.float32(1 + seed % 7))

    other = _Change().visit_function(function)
    assert structural_equal(function, other) == (not changed)
