# SPDX-License-Identifier: Apache-2.0
"""Ranges of dimensions: their text, and the bounds of formulas that follow from them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aotc.ir.dimension_formulas import Formula, constant, formula_of_name, maximum, minimum, symbol
from aotc.ir.dimension_ranges import DimRange, bind_ranges, dim_size_or_range, symbol_and_sizes
from aotc.ir.dimensions import SymDim, is_shape_compatible_binding_symbols
from aotc.ir.typical_sizes import typical_size, use_typical_sizes


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("8", 8),
        (8, 8),
        ("1..512", DimRange(1, 512)),
        ((1, 512), DimRange(1, 512)),
        ("0..640:32", DimRange(0, 640, 32)),
        ("64..640:32~320", DimRange(64, 640, 32, 320)),
        ("1..512~128", DimRange(1, 512, typical=128)),
        ("7..7", 7),
    ],
)
def test_sizes_and_ranges(value: object, found: int | DimRange) -> None:
    assert dim_size_or_range(value) == found
    assert dim_size_or_range(str(found)) == found


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("5..3", "does not go from"),
        ("1..99999999999", "does not go from"),
        ("1..10:4", "not multiples of its step"),
        ("0..8:0", "not multiples of its step"),
        ("1..8~9", "typical size"),
        ("32..64:32~40", "typical size"),
        ("1..", "neither a size nor a range"),
        ("-1..8", "neither a size nor a range"),
        ((1, 2, 3), "neither a size nor a range"),
        ((True, 8), "neither a size nor a range"),
        (True, "neither a size nor a range"),
        (1.5, "neither a size nor a range"),
    ],
)
def test_what_is_no_range(value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dim_size_or_range(value)


RANGES = {"n": DimRange(1, 9), "h": DimRange(64, 192, 32), "m": DimRange(0, 4)}
FORMULAS = [
    "n",
    "h",
    "n+m",
    "2*n-1",
    "h//2+n",
    "(h+31)//32",
    "h*n-m",
    "min(n, m)",
    "max(n-3, 2*m)",
    "h//(n+1)",
    "n*n*m",
]


def bound_dim_of_text(text: str) -> SymDim:
    dim = bind_ranges(SymDim(text), RANGES)
    assert isinstance(dim, SymDim)
    return dim


@settings(max_examples=60, deadline=None)
@given(text=st.sampled_from(FORMULAS), n=st.integers(1, 9), k=st.integers(2, 6), m=st.integers(0, 4))
def test_values_are_within_bounds(text: str, n: int, k: int, m: int) -> None:
    dim = bound_dim_of_text(text)
    size = formula_of_name(text).evaluate({"n": n, "h": 32 * k, "m": m})
    assert size is not None and dim.upper is not None and dim.lower <= size <= dim.upper
    if size >= 0:
        assert dim.bind({"n": n, "h/32": k, "m": m}) == size


def test_bounds_are_exact_for_symbols() -> None:
    assert [(d.lower, d.upper) for d in (bound_dim_of_text(t) for t in ("n", "h", "2*n+1", "(h+31)//32"))] == [
        (1, 9),
        (64, 192),
        (3, 19),
        (2, 6),
    ]
    assert symbol_and_sizes(bound_dim_of_text("h")) == ("h", 64, 192)
    assert symbol_and_sizes(bound_dim_of_text("n+m")) is None


@pytest.mark.parametrize(
    ("size", "fits"), [(64, True), (192, True), (96, True), (80, False), (32, False), (224, False)]
)
def test_sizes_off_the_step_do_not_fit(size: int, fits: bool) -> None:
    height = bind_ranges(SymDim("h"), RANGES)
    assert is_shape_compatible_binding_symbols((height,), (size,), {}) == fits


def test_ranges_that_leave_no_size() -> None:
    with pytest.raises(ValueError, match="has no size"):
        bind_ranges(SymDim("n-20"), RANGES)
    with pytest.raises(ValueError, match="has the size 5 in these ranges"):
        bind_ranges(SymDim("(h+5)%32", upper=4), RANGES)


def test_a_step_can_make_a_formula_constant() -> None:
    assert [bind_ranges(SymDim(t), RANGES) for t in ("(h+5)%32", "h%16", "(h+m)%32-m%32")] == [5, 0, 0]


def test_differences_keep_sound_bounds() -> None:
    """The value of an unbounded difference may be negative, and then a sum less than its other summands."""
    n, m = SymDim("n", 8, 2), SymDim("m")
    total = (m - n) + 5
    assert isinstance(total, SymDim) and total.lower <= 0 - 8 + 5
    assert isinstance(10 - n, SymDim) and ((10 - n).lower, (10 - n).upper) == (2, 8)


def formulas() -> st.SearchStrategy[Formula]:
    """Formulas over n, m and k."""
    leaves = st.one_of(st.sampled_from([symbol(name) for name in "nmk"]), st.integers(-5, 9).map(constant))
    operations: list[Callable[[Formula, Formula], Formula]] = [
        lambda a, b: a + b,
        lambda a, b: a - b,
        lambda a, b: a * b,
        lambda a, b: a // b if b.constant_or_none != 0 else a,
        minimum,
        maximum,
    ]
    return st.recursive(
        leaves,
        lambda inner: st.builds(lambda apply, a, b: apply(a, b), st.sampled_from(operations), inner, inner),
        max_leaves=8,
    )


@settings(max_examples=150, deadline=None)
@given(formula=formulas(), ends=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=3, max_size=3))
def test_intervals_contain_all_values(formula: Formula, ends: list[tuple[int, int]]) -> None:
    """A formula whose divisor may be 0 or negative has no bounds, and others contain each value."""
    intervals = {name: (min(pair), max(pair)) for name, pair in zip("nmk", ends, strict=True)}
    low, high = formula.interval(intervals)
    for values in product(*(sorted({least, (least + most) // 2, most}) for least, most in intervals.values())):
        value = formula.evaluate(dict(zip("nmk", values, strict=True)))
        assert value is None or low <= value <= high


def test_intervals_cancel_quotients() -> None:
    n, two = symbol("n"), constant(2)
    assert (n - two * (n // two)).interval({}) == (0, 1)
    assert (two * ((n + constant(5)) // two) - n).interval({"n": (0, 100)}) == (4, 5)
    assert (n - two * two * (n // two)).interval({"n": (0, 10)}) == (-10, 2)


@pytest.mark.parametrize(("name", "size"), [("n", 5), ("2*n+1", 11), ("n*m", 40), ("m", 9), ("n+30", 30), ("n-9", 20)])
def test_a_typical_size_is_one_of_the_sizes_of_a_dimension(name: str, size: int) -> None:
    dim = SymDim(name, {"n": 8, "n*m": 40, "m": 9, "n+30": 30}.get(name, 20), 1)
    with use_typical_sizes({"n": 5}):
        assert typical_size(dim) == size
    assert typical_size(dim) == dim.upper and typical_size(7) == 7
