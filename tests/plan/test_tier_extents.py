# SPDX-License-Identifier: Apache-2.0
"""Formulas with the extents of all tiers: each formula has the extent of each tier, and simple ones are preferred."""

from __future__ import annotations

from itertools import product
from random import Random

import pytest

from aotc.ir import Dim, DimRange, SymDim
from aotc.tir.plan.size_checks import value_of_dim
from aotc.tir.plan.tier_extents import TierExtent, extent_in_all_tiers, is_extent_of_tier


def exact(extents: dict[tuple[int, ...], int], names: str = "nmk") -> list[TierExtent]:
    """Tiers of one size for each name."""
    return [
        TierExtent({name: DimRange(v, v) for name, v in zip(names, sizes, strict=False)}, extent)
        for sizes, extent in extents.items()
    ]


@pytest.mark.parametrize(
    ("extents", "text"),
    [
        ({(1,): 7, (8,): 7}, 7),
        ({(1,): 1, (8,): 8}, "n"),
        ({(1,): 8, (8,): 1}, "-n+9"),
        ({(4,): 2, (9,): 4, (11,): 5}, "n//2"),
        ({(5,): 3, (8,): 4, (9,): 5}, "(n+1)//2"),
        ({(1,): 3, (8,): 400, (9,): 5}, "397*max(min(n-7, 1), 0)-395*max(min(n-8, 1), 0)+3"),
        ({(1, 2): 2, (1, 16): 16, (8, 2): 16, (8, 16): 128}, "m*n"),
        ({(1, 2): 5, (1, 3): 5, (8, 2): 40, (8, 3): 40}, "5*n"),
        ({(0, 2): 5, (0, 3): 5, (1, 2): 5, (1, 3): 6}, "max(min(-m+4, m-2), 0)*max(min(-n+2, n), 0)+5"),
    ],
)
def test_formulas_are_simple(extents: dict[tuple[int, ...], int], text: str | int) -> None:
    found = extent_in_all_tiers(exact(extents))
    assert (found.name if isinstance(found, SymDim) else found) == text


@pytest.mark.parametrize("seed", range(20))
def test_any_extents_of_exact_tiers_have_a_formula(seed: int) -> None:
    random = Random(seed)
    counts = random.choice([(9,), (3, 4), (2, 3, 2), (30,)])
    sizes = [sorted(random.sample(range(70), count)) for count in counts]
    extents = {point: random.choice([0, 1, 5, 1 << 40, random.randrange(99)]) for point in product(*sizes)}
    found = extent_in_all_tiers(exact(extents))
    assert found is not None
    for point, extent in extents.items():
        assert value_of_dim(found, dict(zip("nmk", point, strict=False))) == extent


def test_formulas_of_ranges() -> None:
    """A formula of one tier is taken if it holds in the others; counts of steps are those of their own tier."""
    eight = DimRange(8, 64, 8)
    steps = [
        TierExtent({"n": eight}, SymDim("16*'n/8'+1")),
        TierExtent({"n": DimRange(1, 9)}, SymDim("2*n+1")),
        TierExtent({"n": DimRange(5, 5)}, 11),
    ]
    assert extent_in_all_tiers(steps) == SymDim("2*n+1")
    assert extent_in_all_tiers([*steps, TierExtent({"n": DimRange(7, 7)}, 11)]) is None
    beside = [TierExtent({"n": DimRange(k, k), "s": eight}, SymDim(f"{k}*'s/8'" if k > 1 else "'s/8'")) for k in (1, 8)]
    assert extent_in_all_tiers(beside) == SymDim("'s/8'*n")
    assert extent_in_all_tiers([TierExtent({"n": DimRange(1, 3)}, SymDim(""))]) is None


@pytest.mark.parametrize(
    ("derived", "expected"), [(SymDim("min(n, 8)"), "min(n, 8)"), (SymDim("s0"), "n"), (SymDim("2*n"), "n"), (9, "n")]
)
def test_derived_formulas_are_taken_where_they_hold(derived: Dim, expected: str) -> None:
    found = extent_in_all_tiers(exact({(1,): 1, (8,): 8}), derived)
    assert isinstance(found, SymDim) and found.name == expected


def test_a_formula_must_hold_for_all_sizes_of_a_tier() -> None:
    tier = TierExtent({"n": DimRange(1, 20)}, SymDim("min(n, 10)"))
    assert is_extent_of_tier(SymDim("min(10, n)"), tier)
    assert not is_extent_of_tier(SymDim("n"), tier)
    assert not is_extent_of_tier(SymDim("n//m"), tier)
