# SPDX-License-Identifier: Apache-2.0
"""Random systems of equations and inequalities over integers, with products of variables: what is proven to have no
solution has none among all values of the variables."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from aotc.tir.loops.integer_system import IntegerSystem
from tests.share import share

SYSTEMS_PER_TEST = 250
FIRST_SEEDS = range(0, 100_000, SYSTEMS_PER_TEST)

Values = np.ndarray[Any, np.dtype[np.int64]]


@dataclass
class EnumeratedSystem:
    """A system of constraints, and the values of its variables at all points of their intervals.

    values    the values of each variable, by its number, at all points
    holds     True at the points at which all constraints hold
    """

    system: IntegerSystem
    values: dict[int, Values]
    holds: np.ndarray[Any, np.dtype[np.bool_]]
    constraints: list[tuple[str, dict[int, int], int]] = field(default_factory=list)

    @staticmethod
    def with_variables(rng: random.Random) -> EnumeratedSystem:
        """Return a system of a few variables without constraints; some variables may be factors of products."""
        system = IntegerSystem()
        axes: list[Values] = []
        for _ in range(rng.randint(2, 5)):
            low = rng.choice([0, 0, 0, 1, 2, -2, -3])
            high = low + rng.choice([0, 1, 2, 3, 4, 6])
            number = system.add_variable(low, high)
            axes.append(np.arange(low, high + 1))
            if low >= 0 and rng.random() < 0.5:
                system.symbols.add(number)
        points = [grid.ravel() for grid in np.meshgrid(*axes, indexing="ij")]
        return EnumeratedSystem(system, dict(enumerate(points)), np.ones(points[0].size, np.bool_))

    def add_product(self, a: int, b: int) -> None:
        """Add the product of two variables, unless the system has no such products."""
        number = self.system.product_of(a, b)
        if number is not None:
            self.values[number] = self.values[a] * self.values[b]

    def add_constraint(self, terms: dict[int, int], const: int, *, is_equation: bool) -> None:
        """Require that a sum is 0, or at least 0."""
        total = self.sum_at_points(terms) + const
        if is_equation:
            self.system.add_equation(terms, const)
        else:
            self.system.add_inequality(terms, const)
        self.holds &= total == 0 if is_equation else total >= 0
        self.constraints.append(("=" if is_equation else ">=", terms, const))

    def sum_at_points(self, terms: dict[int, int]) -> Values:
        total = np.zeros(self.holds.size, np.int64)
        for number, factor in terms.items():
            total = total + factor * self.values[number]
        return total


def system_of_seed(seed: int) -> EnumeratedSystem:
    """Return a random system; the constants are near the values that the sums take."""
    rng = random.Random(seed)
    made = EnumeratedSystem.with_variables(rng)
    for _ in range(rng.choice([0, 1, 1, 2, 3])):
        made.add_product(rng.choice([*made.values]), rng.choice([*made.values]))
    equations = rng.choice([0, 1, 1, 2])
    for count in range(equations + rng.choice([0, 1, 2, 3])):
        used = rng.sample([*made.values], rng.randint(1, min(4, len(made.values))))
        terms = {number: rng.choice([1, -1, 1, -1, 2, -2, 3, 4, -4, 8]) for number in used}
        total = made.sum_at_points(terms)
        near = rng.choice([int(total.min()), int(total.max()), int(rng.choice(total)), 0, 1, -1])
        made.add_constraint(terms, rng.choice([0, 0, 1, -1]) - near, is_equation=count < equations)
    return made


@pytest.mark.parametrize("first_seed", share(FIRST_SEEDS, 4))
def test_what_is_proven_to_have_no_solution_has_none(first_seed: int) -> None:
    counts = Counter[str]()
    for seed in range(first_seed, first_seed + SYSTEMS_PER_TEST):
        made = system_of_seed(seed)
        solvable = bool(made.holds.any())
        is_refuted = made.system.has_no_solution()
        assert not (solvable and is_refuted), f"seed {seed}: {made.constraints}, products {made.system.products}"
        counts["refuted"] += is_refuted
        counts["unsolvable"] += not solvable
        counts["solvable"] += solvable
    assert counts["refuted"] >= 0.9 * counts["unsolvable"]
    assert counts["solvable"] >= 0.2 * SYSTEMS_PER_TEST
