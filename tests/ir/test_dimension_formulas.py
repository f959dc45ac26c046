# SPDX-License-Identifier: Apache-2.0
"""Formulas of dimensions: random formulas have the values of Python's integers, one text, and one normal form."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from aotc.ir import Dim, SymDim, indexdiv, product_of_dims, sum_of_dims
from aotc.ir.dimension_formulas import (
    MAX_FORMULA_CHARACTERS,
    Formula,
    constant,
    formula_of_name,
    formula_text,
    maximum,
    minimum,
    symbol,
)
from aotc.ir.dimensions import (
    dim_of_text,
    is_shape_compatible_binding_symbols,
    maximum_of_dims,
    minimum_of_dims,
    same_dim,
    solve_dims,
)

relaxed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # other work delays draws
NAMES = ("n", "m", "batch size", "s0")
VALUES = st.fixed_dictionaries({name: st.integers(0, 40) for name in NAMES})
#: A function of integers, and the same function of formulas.
Pair = tuple[Callable[[dict[str, int]], int], Formula]


def _combined(pairs: st.SearchStrategy[Pair]) -> st.SearchStrategy[Pair]:
    def combine(name: str, a: Pair, b: Pair) -> Pair:
        of_ints: Any = {"min": min, "max": max}.get(name) or getattr(operator, name)
        of_formulas: Any = {"min": minimum, "max": maximum}.get(name) or getattr(operator, name)
        return (lambda values: of_ints(a[0](values), b[0](values))), of_formulas(a[1], b[1])

    def divide(name: str, a: Pair, divisor: int) -> Pair:
        return combine(name, a, ((lambda _: divisor), constant(divisor)))

    sums = st.builds(combine, st.sampled_from(["add", "sub", "mul", "min", "max"]), pairs, pairs)
    quotients = st.builds(divide, st.sampled_from(["floordiv", "mod"]), pairs, st.sampled_from([-3, -1, 1, 2, 3, 4, 6]))
    return sums | quotients


FORMULAS: st.SearchStrategy[Pair] = st.recursive(
    st.builds(lambda name: ((lambda values: values[name]), symbol(name)), st.sampled_from(NAMES))
    | st.builds(lambda number: ((lambda _: number), constant(number)), st.integers(-5, 9)),
    _combined,
    max_leaves=9,
)


@relaxed
@given(FORMULAS, VALUES)
def test_formulas_have_the_values_of_integers(pair: Pair, values: dict[str, int]) -> None:
    function, formula = pair
    assert formula.evaluate(values) == function(values)


@relaxed
@given(FORMULAS)
def test_texts_are_read_as_the_same_formula(pair: Pair) -> None:
    formula = pair[1]
    assume(formula.constant_or_none is None)
    text = formula_text(formula)
    assume(len(text) <= MAX_FORMULA_CHARACTERS and len(formula.terms) <= 20)
    assert formula_of_name(text) == formula


@relaxed
@given(FORMULAS, FORMULAS, FORMULAS)
def test_sums_and_products_have_one_form(a: Pair, b: Pair, c: Pair) -> None:
    x, y, z = a[1], b[1], c[1]
    assert x + y == y + x and (x + y) + z == x + (y + z)
    assert x * y == y * x and x * (y + z) == x * y + x * z
    assert x - x == constant(0)
    assert minimum(x, y) == minimum(y, x) and maximum(x, y, z) == maximum(maximum(z, y), x)


@relaxed
@given(FORMULAS, VALUES, st.sampled_from(NAMES))
def test_values_may_be_given_one_after_another(pair: Pair, values: dict[str, int], first: str) -> None:
    formula = pair[1]
    partial = formula.substitute({first: constant(values[first])})
    assert first not in partial.symbols
    assert partial.evaluate(values) == formula.evaluate(values)


@relaxed
@given(FORMULAS, VALUES, st.sampled_from(NAMES))
def test_a_solution_solves_the_equation(pair: Pair, values: dict[str, int], name: str) -> None:
    formula = pair[1]
    known = {other: value for other, value in values.items() if other != name}
    value = formula.evaluate(values)
    assert value is not None
    solution = formula.solve(value, known)  # `values` is a solution, so that no ValueError is right
    if solution is not None:
        assert solution == (name, values[name])


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("m + n", "m+n"),
        ("n+m", "m+n"),
        ("(past + seq)*2", "2*past+2*seq"),
        ("(n - 3)//2 + 1", "(n+1)//2-1"),
        ("((h + 1)//2 + 1)//2", "(h+3)//4"),
        ("4*(n//4) + n%4", "n"),
        ("floor(h/32)", "h//32"),
        ("ceiling(h/2)", "(h+1)//2"),
        ("Max(1, s0)", "max(s0, 1)"),
        ("n*m//n", "m"),
        ("(2*n + 2)//4", "(n+1)//2"),
        ("-(n//2) + 8", "-(n//2)+8"),
        ("a**2", "a*a"),
        ("max(min(n - 8, 1), 0)", "max(min(n-8, 1), 0)"),
        ("max(n//2, 0)", "n//2"),
        ("batch size", "batch size"),
        ("'batch size' + 1", "'batch size'+1"),
        ("unk__12", "unk__12"),
        ("n +", "n +"),
        ("lambda", "lambda"),
        ("n/2", "n/2"),
        ("n//0", "n//0"),
        ("f(n)", "f(n)"),
        ("n if m else 1", "n if m else 1"),
        ("(" * 300 + "n" + ")" * 300, "(" * 300 + "n" + ")" * 300),
        ("n\0", "n\0"),
        ("(a+b+c+d)**8", "(a+b+c+d)**8"),
        ("9" * 5000, "9" * 5000),
        ("((9**8)**8)**8", "((9**8)**8)**8"),
        ("(" + "+".join("abcdefghijklmnop") + ")**8", "(" + "+".join("abcdefghijklmnop") + ")**8"),
        ("axis #1", "axis #1"),  # no comment
        ("0x10", "0x10"),
        ("'n//2'", "'n//2'"),  # one symbol
        ("'n'", "n"),
        ("'\\xb5'+1", "'\\xb5'+1"),
    ],
)
def test_names_of_dimensions(text: str, normal: str) -> None:
    assert SymDim(text).name == normal
    assert SymDim(normal) == SymDim(text)


@pytest.mark.parametrize(
    "name",
    [
        "True",
        "None",
        "lambda",
        "axis #1",
        "5x",
        "0x10",
        "it's",
        'a"b',
        "a\\d",
        "\u00b5",
        "\ufb01 2",
        "gr\u00f6\u00dfe",
        "5",
        "n<=4",
    ],
)
def test_formulas_of_unusual_names_have_them_as_symbols(name: str) -> None:
    size = SymDim(name) * 2 + 1
    assert isinstance(size, SymDim) and size.symbols == {name}
    assert size.bind({name: 3}) == 7


def test_names_that_python_reads_alike_are_different_dimensions() -> None:
    for a, b in (("axis #1", "axis #2"), ("'n//2'", "n//2"), ("\u00b5", "\u03bc"), ("\ufb01", "fi")):
        assert SymDim(a) != SymDim(b), (a, b)


def test_formulas_too_large_for_a_text_are_unknown() -> None:
    long = SymDim("a" * 3000) + SymDim("b" * 3000)
    large = product_of_dims([SymDim(f"a{k}+b{k}+c{k}+d{k}", 9) for k in range(9)])
    huge = product_of_dims([SymDim("n")] + [1 << 40] * 2)
    for dim in (long, large, huge):
        assert isinstance(dim, SymDim) and not dim.name
    assert isinstance(large, SymDim) and large.upper == 9**9


def test_equations() -> None:
    a, b, quotient, whole = SymDim("a"), SymDim("b"), SymDim("a//b"), SymDim("batch-size")
    assert solve_dims([(quotient, 3), (b, 0)]) == ({"b": 0}, ["dimension a//b divides by 0"])
    assert solve_dims([(a, 6), (b, 2), (quotient, 3)]) == ({"a": 6, "b": 2}, [])
    # a name with a minus sign has a size as a whole
    assert solve_dims([(whole, 3)]) == ({"batch-size": 3}, []) and whole.bind({"batch-size": 3}) == 3
    assert solve_dims([(whole, 3), (whole, 4)])[1] == ["dimension 'batch-size' is pinned to both 3 and 4"]
    with pytest.raises(ValueError, match="a//b divides by 0"):
        quotient.bind({"b": 0})


def test_texts_that_are_numbers_are_static() -> None:
    assert dim_of_text("007") == 7 and dim_of_text("0") == dim_of_text("00") == 0
    assert dim_of_text("12") == 12 and dim_of_text("2*3") == 6 and dim_of_text("n - n + 1") == 1
    assert isinstance(dim_of_text("-1"), SymDim) and isinstance(dim_of_text("True"), SymDim)


def test_dimensions() -> None:
    n, m, anonymous = SymDim("n", 8), SymDim("m"), SymDim()
    assert sum_of_dims((n, m, 2)) == sum_of_dims((2, m, n)) == SymDim("m+n+2")
    assert n + 2 - 2 == n and m - m == 0 and (n + 3).upper == 11
    assert product_of_dims((n, 0)) == 0 and product_of_dims((n, 2)) == SymDim("2*n", 16)
    assert indexdiv(n * 4, 2) == SymDim("2*n", 16) and indexdiv(product_of_dims((m, n)), m) == SymDim("n")
    assert minimum_of_dims((n, 5)) == SymDim("min(n, 5)", 5) and maximum_of_dims((n, 0)) == n
    assert minimum_of_dims((5, 5, n)) == SymDim("min(n, 5)", 5)
    assert maximum_of_dims((5, n, 5)) == SymDim("max(n, 5)", 8, 5)
    for unknown in (anonymous + 1, product_of_dims((anonymous, n)), minimum_of_dims((anonymous, 3))):
        assert isinstance(unknown, SymDim) and not unknown.name
    assert not same_dim(anonymous + 1, anonymous + 1) and same_dim(SymDim("b+a"), SymDim("a+b"))


def test_values_of_symbols() -> None:
    total = SymDim("past+seq", 512)
    assert total.bind({"past": 3}) == SymDim("seq+3", 512) and total.bind({"past": 3, "seq": 1}) == 4
    assert total.bind({"other": 1}) is total and SymDim().bind({"past": 1}) == SymDim()
    with pytest.raises(ValueError, match="n-4 is -1"):
        SymDim("n - 4").bind({"n": 3})


@pytest.mark.parametrize(
    ("shape", "sizes", "found"),
    [
        (("past+seq", "past", "seq"), (4, 3, 1), {"past": 3, "seq": 1}),
        (("past+seq", "past", "seq"), (5, 3, 1), None),
        (("past+1",), (4,), {"past": 3}),
        (("past+1",), (0,), None),
        (("2*n",), (7,), None),
        (("n//2", "n"), (3, 7), {"n": 7}),
        (("n//2", "n"), (3, 8), None),
        (("n*m",), (8,), {}),
        (("a//b", "b"), (3, 0), None),
    ],
)
def test_sizes_determine_symbols(shape: tuple[str, ...], sizes: tuple[int, ...], found: dict[str, int] | None) -> None:
    dims: tuple[Dim, ...] = tuple(map(SymDim, shape))
    values: dict[str, int] = {}
    assert is_shape_compatible_binding_symbols(dims, sizes, values) == (found is not None)
    assert found is None or values == found
