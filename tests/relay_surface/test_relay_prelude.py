# SPDX-License-Identifier: Apache-2.0
"""The functions of the prelude, and the type solver."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import aotc
from aotc import relay
from aotc.relay import transform
from aotc.relay.analysis import TypeSolver, check_kind
from aotc.relay.prelude import Prelude
from aotc.relay.type_solver import new_solver_methods_by_name

INT = relay.scalar_type("int32")


def numbers(value: Any) -> list[int]:
    found = []
    while value.fields:
        found.append(int(value.fields[0]))
        value = value.fields[1]
    return found


def made(prelude: Prelude, values: list[int]) -> Any:
    _, cons, nil = prelude.mod.get_type("List")
    result = nil()
    for value in reversed(values):
        result = cons(relay.const(value), result)
    return result


def function(*body: Any) -> relay.Function:
    """A function of one int32 or two."""
    a, b = relay.var("a", INT), relay.var("b", INT)
    return relay.Function([a, b][: len(body)], body[0](*[a, b][: len(body)]))


CASES = {
    "map": (lambda p, ls: p.map(function(lambda a: a + a), ls), [6, 2, 4]),
    "filter": (lambda p, ls: p.filter(function(lambda a: a > relay.const(1)), ls), [3, 2]),
    "rev": (lambda p, ls: p.rev(ls), [2, 1, 3]),
    "concat": (lambda p, ls: p.concat(ls, ls), [3, 1, 2, 3, 1, 2]),
    "tl": (lambda p, ls: p.tl(ls), [1, 2]),
    "update": (lambda p, ls: p.update(ls, relay.const(1), relay.const(7)), [3, 7, 2]),
    "foldr": (lambda p, ls: p.foldr(p.mod.get_type("List")[1], made(p, [9]), ls), [3, 1, 2, 9]),
    "accuml": (
        lambda p, ls: p.map_accuml(function(lambda a, b: relay.Tuple([a + b, a]), None), relay.const(0), ls)[1],
        [0, 3, 4],
    ),
    "accumr": (
        lambda p, ls: p.map_accumr(function(lambda a, b: relay.Tuple([a + b, a]), None), relay.const(0), ls)[1],
        [3, 2, 0],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_lists(name: str) -> None:
    prelude = Prelude(aotc.IRModule())
    build, expected = CASES[name]
    value = relay.create_executor("debug", prelude.mod).evaluate(build(prelude, made(prelude, [3, 1, 2])))
    assert numbers(value) == expected


def test_numbers_of_the_prelude() -> None:
    prelude = Prelude(aotc.IRModule())
    three = made(prelude, [3, 1, 2])
    minus = function(lambda a, b: a - b, None)
    twice = prelude.compose(function(lambda a: a + a), function(lambda a: a + relay.const(1)))
    for expr, expected in (
        (prelude.hd(three), 3),
        (prelude.nth(three, relay.const(2)), 2),
        (prelude.sum(three), 6),
        (prelude.foldl(minus, relay.const(0), three), -6),
        (prelude.foldr1(minus, three), 4),
        (twice(relay.const(4)), 10),
        (prelude.iterate(twice, relay.const(2))(relay.const(1)), 10),
        (prelude.flip(minus)(relay.const(1), relay.const(5)), 4),
        (prelude.hd(prelude.zip(three, prelude.rev(three)))[1], 2),
    ):
        assert relay.create_executor("debug", prelude.mod).evaluate(expr).numpy() == expected
    with pytest.raises(AttributeError, match="no function"):
        prelude.fold  # noqa: B018


def test_unused_functions_of_the_prelude_cost_nothing() -> None:
    module = aotc.IRModule()
    Prelude(module)
    x = relay.var("x", shape=(2,))
    module["main"] = relay.Function([x], relay.exp(x))
    assert [name.name_hint for name in transform.RemoveUnusedFunctions()(module)] == ["main"]
    data = np.ones(2, "float32")
    for kind in ("graph", "vm"):
        result = relay.create_executor(kind, module).evaluate()(data)
        np.testing.assert_allclose(result.numpy(), np.exp(data), rtol=1e-6)


def test_changed_modules_are_inferred_again() -> None:
    x = relay.var("x", shape=(2,))
    f = relay.GlobalVar("f")
    module = transform.InferType()(aotc.IRModule({f: relay.Function([x], relay.exp(x))}))
    module["main"] = relay.Function([x], f(x))
    assert transform.InferType()(module)["main"].ret_type == x.annotation


# --- types


def test_types_that_follow_from_results() -> None:
    x, f, z = relay.var("x", INT), relay.Var("f"), relay.Var("z")
    b = relay.TypeVar("b")
    whole = relay.Function([x, f], f(x), INT)
    assert transform.InferTypeLocal(whole) == relay.FuncType([INT, relay.FuncType([INT], INT)], INT)
    same, wanted = relay.Function([z], z), relay.FuncType([b], b)
    choice = relay.If(relay.const(True), relay.Let(relay.Var("v"), relay.const(1), same), relay.Function([x], x))
    with pytest.raises(aotc.AotcError, match="does not match the declared"):
        transform.InferTypeLocal(relay.Function([], choice, wanted, [b]))
    assert transform.InferTypeLocal(relay.Function([], same, wanted, [b])) == relay.FuncType([], wanted, [b])


def test_types_that_follow_from_patterns() -> None:
    module = aotc.IRModule()
    Prelude(module)
    _, cons, nil = module.get_type("List")
    x, v = relay.Var("x"), relay.Var("v", INT)
    pattern = relay.PatternConstructor(cons, [relay.PatternVar(v), relay.PatternWildcard()])
    module["main"] = relay.Function([x], relay.Match(cons(x, nil()), [relay.Clause(pattern, v)], complete=False))
    assert transform.InferType()(module)["main"].checked_type == relay.FuncType([INT], INT)


def relation(name: str, *args: Any) -> relay.TypeRelation:
    return relay.TypeRelation(aotc.ir.EnvFunc.get(f"tvm.relay.type_relation.{name}"), args, len(args) - 1, None)


def test_relations_are_solved() -> None:
    solver, x, y = TypeSolver(), relay.IncompleteType(), relay.IncompleteType()
    solver.add_constraint(relation("Broadcast", relay.TensorType((2, 1)), x, y))
    assert not solver.solve()
    solver.add_constraint(relation("Identity", x, relay.TensorType((3,))))
    assert solver.solve() and solver.resolve(relay.TupleType([y])).fields == (relay.TensorType((2, 3)),)
    solver.add_constraint(relation("Identity", y, x))
    with pytest.raises(aotc.AotcError, match="cannot be unified"):
        solver.solve()


@pytest.mark.parametrize(("name", "inputs"), [("Identity", 0), ("Identity", 2), ("Broadcast", 1), ("Broadcast", 3)])
def test_relations_of_other_numbers_of_types_have_no_rule(name: str, inputs: int) -> None:
    solver = TypeSolver()
    solver.add_constraint(relation(name, *[relay.TensorType((2,))] * (inputs + 1)))
    with pytest.raises(aotc.AotcError, match="has no solving rule"):
        solver.solve()


def test_functions_of_a_solver_take_attributes() -> None:
    functions: Any = new_solver_methods_by_name()
    functions.unknown, known = relay.IncompleteType(), relay.TensorType((2,))
    assert functions("Unify")(functions.unknown, known) == known
    assert functions("Resolve")(relay.TupleType([functions.unknown])).fields == (known,)
    assert functions("Solve")()


def test_unification() -> None:
    a, b, t = relay.TypeVar("a"), relay.TypeVar("b"), relay.IncompleteType()
    solver = TypeSolver()
    same = relay.FuncType([a], a, [a])
    assert solver.unify(relay.FuncType([a], b, [a, b]), same) == same
    with pytest.raises(aotc.AotcError, match="contain itself"):
        solver.unify(t, relay.RefType(t))
    with pytest.raises(aotc.AotcError, match="cannot be unified"):
        solver.unify(relay.TupleType([a]), relay.TupleType([b]))


def test_relations_as_constraints() -> None:
    a, b = relay.TypeVar("a"), relay.TypeVar("b")
    f, g = (relay.FuncType([v], v, [v], [relation("Identity", v, v)]) for v in (a, b))
    assert f == g != relay.FuncType([a], a, [a]) and str(f.type_constraints[0]) == "Identity(a, a)"
    assert check_kind(f) is relay.TypeKind.Type and check_kind(f.type_constraints[0]) is relay.TypeKind.Constraint
    shape = relay.TypeVar("s", relay.TypeKind.ShapeVar)
    with pytest.raises(aotc.AotcError, match="ShapeVar"):
        check_kind(relay.FuncType([a], a, [a, shape], [relation("Identity", shape, shape)]))
    with pytest.raises(aotc.AotcError, match="unknown function"):
        aotc.ir.EnvFunc.get("tvm.relay.type_relation.Conv2D")


@pytest.mark.parametrize(("left", "right"), [(0, 0), (1, 2)])
def test_numbers_that_are_counted(left: int, right: int) -> None:
    prelude = Prelude(aotc.IRModule())
    _, zero, successor = prelude.mod.get_type("nat")
    values = []
    for number in (left, right):
        value = zero()
        for _ in range(number):
            value = successor(value)
        values.append(value)
    total = prelude.mod.get_global_var("nat_add")(*values)
    run = relay.create_executor("debug", prelude.mod)
    assert relay.testing.count(prelude, run.evaluate(total)) == left + right
