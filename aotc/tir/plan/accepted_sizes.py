# SPDX-License-Identifier: Apache-2.0
"""Search for sizes of a run that a program accepts, where conditions relate sizes to each other.

find_accepted_sizes(program, program.typical_sizes, np.random.default_rng(0))    # {"shape[0]+1": 5, ...}, or None
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Final, TypeAlias

import numpy as np

from aotc.ir import SymDim, symbol_of_multiples
from aotc.ir.size_operands import SizeDefinition, element_of_sizes, elements_of_operands
from aotc.tir.plan.program import Program
from aotc.tir.plan.size_checks import SizeCheck

#: What the search varies: a size by name, or an element of an input.
Variable: TypeAlias = "str | tuple[str, int]"
Limits: TypeAlias = Mapping[str, tuple[float, float]]

#: Largest number of changes of one value.
_MAX_STEPS: Final = 200
#: Number of random values of a variable that are tried, beside the ends of its interval and the numbers around 0.
_RANDOM_VALUES: Final = 24
#: Distance between floats that are tried.
_FLOAT_STEP: Final = 0.25
#: Share of the changes that take any value, to leave local minima.
_RANDOM_WALK: Final = 0.1


def find_accepted_sizes(
    program: Program,
    start: Mapping[str, int],
    rng: np.random.Generator,
    *,
    fixed: Collection[str] = (),
    limits: Limits | None = None,
) -> dict[str, int] | None:
    """Return sizes that a run of a program accepts, near those of `start`; None if none are found.

    In each step, one value of a condition that does not hold becomes the one with which most conditions hold, as in
    Minton et al., Minimizing conflicts (1992), with random steps as in WalkSAT (Selman et al., 1994).

    fixed     names of sizes that keep their values
    limits    least and largest value of elements of inputs that are sizes, by name of the input
    """
    search = _Search(program, limits or {})
    values = search.values_of_sizes(start)
    if values is None:
        return None
    symbols, broken = search.symbols_and_broken(values)
    for _ in range(_MAX_STEPS):
        if not broken:
            return search.sizes(values)
        condition = sorted(broken)[rng.integers(len(broken))]
        free = [v for v in sorted(search.variables_of(condition), key=str) if v not in fixed]
        if not free:
            return None
        variable = free[rng.integers(len(free))]
        candidates = [v for v in search.candidates(variable, rng) if v != values[variable]]
        if not candidates:
            continue
        results = [search.after_change(variable, v, symbols, broken) for v in candidates]
        fewest = min(len(found) for _, found in results)
        is_random = rng.random() < _RANDOM_WALK
        best = [k for k, (_, found) in enumerate(results) if is_random or len(found) == fewest]
        chosen = best[rng.integers(len(best))]
        values[variable] = candidates[chosen]
        symbols, broken = results[chosen]
    return None


def with_typical_operands(program: Program) -> Program:
    """Return a program with new typical values of the sizes that are elements of inputs: values that a run accepts
    together with the typical values of all other sizes. The program is returned unchanged if none are found.
    """
    if not program.operands:
        return program
    stated = program.sizes.keys() - program.operands.keys()
    found = find_accepted_sizes(program, program.typical_sizes, np.random.default_rng(0), fixed=stated)
    if found is None:
        return program
    sizes = {n: replace(r, typical=found[n]) if n in program.operands else r for n, r in program.sizes.items()}
    return replace(program, sizes=sizes)


class _Search:
    """The variables and the conditions of a program."""

    def __init__(self, program: Program, limits: Limits) -> None:
        self._names = tuple(program.sizes)
        ranges = {name: r for name, r in program.sizes.items() if name not in program.operands}
        self._intervals: dict[Variable, tuple[float, float]] = {
            n: (r.least // r.step, r.most // r.step) for n, r in ranges.items()
        }
        self._steps = {name: r.step for name, r in ranges.items()}
        self._elements = elements_of_operands(program.operands.values())
        dtypes = {storage.name: storage.dtype for storage in program.inputs}
        for key, operands in self._elements.items():
            exact = [o for o in operands if not o.clipped]
            lows, highs = zip(*(o.limits_of_element for o in exact or operands), strict=True)
            least, most = (max(lows), min(highs)) if exact else (min(lows), max(highs))
            dtype = dtypes[key[0]]
            if not dtype.is_float:
                least, most = max(least, int(dtype.min)), min(most, int(dtype.max))
            low, high = limits.get(key[0], (least, most))
            if any(o.is_bits for o in operands):
                self._intervals[key] = max(least, low), min(most, high)
            else:
                self._intervals[key] = max(int(least), int(np.ceil(low))), min(int(most), int(np.floor(high)))
        variables: dict[str, frozenset[Variable]] = {
            symbol_of_multiples(name, step): frozenset([name]) for name, step in self._steps.items()
        }
        variables |= {name: frozenset([(o.input, o.element)]) for name, o in program.operands.items()}

        def variables_of_symbols(symbols: Iterable[str]) -> frozenset[Variable]:
            return frozenset(v for s in symbols for v in variables.get(s, ()))

        self._definitions: list[tuple[SizeDefinition, frozenset[Variable]]] = []
        for d in program.definitions:
            variables[d.name] = variables_of_symbols(d.symbols)
            self._definitions.append((d, variables[d.name]))
        growing = [] if program.growing is None else [program.growing.check]
        self._checks = [(c, variables_of_symbols(_symbols_of_check(c))) for c in (*program.checks, *growing)]

    def values_of_sizes(self, sizes: Mapping[str, int]) -> dict[Variable, float] | None:
        """Return the values of the variables for sizes, moved into their intervals; None if one is empty."""
        values: dict[Variable, float] = {name: sizes[name] // step for name, step in self._steps.items()}
        for key, operands in self._elements.items():
            values[key] = element_of_sizes(operands, sizes)
        if any(low > high for low, high in self._intervals.values()):
            return None
        return {v: min(max(value, self._intervals[v][0]), self._intervals[v][1]) for v, value in values.items()}

    def sizes(self, values: Mapping[Variable, float]) -> dict[str, int]:
        """Return the sizes for values of the variables, in the order of the program."""
        sizes = {name: int(values[name]) * step for name, step in self._steps.items()}
        for key, operands in self._elements.items():
            sizes |= {o.name: o.size_of_value(values[key]) for o in operands}
        return {name: sizes[name] for name in self._names}

    def symbols_and_broken(self, values: Mapping[Variable, float]) -> tuple[dict[str, int], frozenset[int]]:
        """Return the values of the symbols in formulas, and the numbers of the conditions that do not hold."""
        symbols: dict[str, int] = {}
        for variable, value in values.items():
            symbols |= self._symbols_of_variable(variable, value)
        return self._update(frozenset(values), symbols, frozenset())

    def after_change(
        self, variable: Variable, value: float, symbols: Mapping[str, int], broken: frozenset[int]
    ) -> tuple[dict[str, int], frozenset[int]]:
        """Return what `symbols_and_broken` returns if one variable gets another value."""
        changed = {**symbols, **self._symbols_of_variable(variable, value)}
        return self._update(frozenset([variable]), changed, broken)

    def _symbols_of_variable(self, variable: Variable, value: float) -> dict[str, int]:
        if isinstance(variable, str):
            return {symbol_of_multiples(variable, self._steps[variable]): int(value)}
        return {o.name: o.size_of_value(value) for o in self._elements[variable]}

    def _update(
        self, changed: frozenset[Variable], symbols: dict[str, int], broken: frozenset[int]
    ) -> tuple[dict[str, int], frozenset[int]]:
        """Compute the definitions and conditions that depend on some variables."""
        now = set(broken)
        for k, (definition, variables) in enumerate(self._definitions):
            if changed & variables or definition.name not in symbols:
                value = definition.value(symbols)
                symbols[definition.name] = min(max(value or 0, definition.least), definition.most)
                (now.discard if value == symbols[definition.name] else now.add)(k)
        for k, (check, variables) in enumerate(self._checks, len(self._definitions)):
            if changed & variables:
                (now.discard if check.holds(symbols) else now.add)(k)
        return symbols, frozenset(now)

    def variables_of(self, condition: int) -> frozenset[Variable]:
        """Return the variables that a condition depends on."""
        return [*self._definitions, *self._checks][condition][1]

    def candidates(self, variable: Variable, rng: np.random.Generator) -> list[float]:
        """Return values of a variable to try: all of a short interval of integers, some of a long one; floats
        that are multiples of a fraction, and the ends of their interval.
        """
        ends = self._intervals[variable]
        if not isinstance(variable, str) and any(o.is_bits for o in self._elements[variable]):
            parts = [x * _FLOAT_STEP for x in range(_RANDOM_VALUES)]
            return [*ends, *(x for x in parts if ends[0] <= x <= ends[1]), float(rng.uniform(*ends))]
        low, high = map(int, ends)
        if high - low <= 2 * _RANDOM_VALUES:
            return list(range(low, high + 1))
        near = [v for v in (low, *range(-1, 5), high) if low <= v <= high]
        return sorted({*near, *map(int, rng.integers(low, high, _RANDOM_VALUES, endpoint=True))})


def _symbols_of_check(check: SizeCheck) -> frozenset[str]:
    dims = (d for d in (check.left, check.right) if isinstance(d, SymDim))
    return frozenset(s for d in dims for s in d.symbols)
