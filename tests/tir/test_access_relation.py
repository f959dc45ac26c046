# SPDX-License-Identifier: Apache-2.0
"""Access relations: answers compared with the elements that random loop nests access when they run, and single
cases of each question."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import numpy as np
import pytest

from aotc.tir import Block, Broadcast, Buffer, Expr, LinearForm, Var, const, linear_form
from aotc.tir.expr import INDEX, Binary, Load, maximum, minimum
from aotc.tir.loops.access_collection import collect_accesses, is_written_before_read
from aotc.tir.loops.access_relation import AccessRelation
from aotc.tir.loops.buffer_access import Access
from aotc.tir.loops.integer_system import IntegerSystem
from aotc.tir.loops.loop_dependence import constant_loop_range, loop_var_interval
from aotc.tir.loops.offset_dimensions import split_offsets_into_dimensions
from aotc.tir.loops.point_enumeration import PointEnumerator
from aotc.tir.simplify import Interval
from aotc.tir.stmt import Assign, Declare, For, If, Stmt, Store
from tests.share import share
from tests.tir.random_accesses import BUFFER, NestGenerator, RandomNest, TooManyIterationsError

NESTS_PER_TEST = 125
#: Seeds of 10,000 nests: 80 tests of 125 nests each.
FIRST_SEEDS = range(0, 10_000, NESTS_PER_TEST)
i, j, k, n = (Var(name, INDEX) for name in "ijkn")


def relation_of(stmt: Stmt, ranges: dict[Var, Interval], *, reads: bool = True, stores: bool = True) -> AccessRelation:
    """Return the accesses of a statement to the buffer of random nests."""
    relation = AccessRelation()
    collect_accesses(stmt, ranges, {BUFFER: relation}, reads=reads, stores=stores, expands_registers=True)
    return relation


def outer_ranges(nest: RandomNest) -> dict[Var, Interval]:
    """Return the intervals of the variables around a nest; extents that begin at an odd number have no upper bound."""
    return {
        var: (values[0], math.inf if var.name == "N" and values[0] % 2 else values[-1])
        for var, values in nest.outer.items()
    }


def is_proven_injective(nest: RandomNest) -> bool:
    """Return True if the iterations of the loop of a nest are proven not to race."""
    ranges = outer_ranges(nest)
    inside = {**ranges, nest.loop.var: loop_var_interval(nest.loop, ranges)}
    return relation_of(nest.loop.body, inside).is_injective(nest.loop.var, nest.loop.step, set(nest.outer))


def races(nest: RandomNest) -> bool:
    """Return True if an iteration accesses an element that another one writes, when the nest runs."""
    for values in nest.outer_values():
        accesses = nest.elements_by_iteration(values)
        writers: dict[int, set[int]] = {}
        for iteration, (written, _) in accesses.items():
            for element in written:
                writers.setdefault(element, set()).add(iteration)
        for iteration, (written, read) in accesses.items():
            if any(writers.get(element, {iteration}) != {iteration} for element in written | read):
                return True
    return False


def elements(nest: RandomNest) -> Iterator[tuple[set[int], set[int]]]:
    """Yield the elements that a nest writes and reads, for all values of the variables around it."""
    for values in nest.outer_values():
        accesses = list(nest.elements_by_iteration(values).values())
        yield set().union(*(w for w, _ in accesses)), set().union(*(r for _, r in accesses))


def short_nests(first_seed: int) -> Iterator[tuple[int, RandomNest]]:
    """Yield random nests that run in a short time, each with its seed."""
    for seed in range(first_seed, first_seed + NESTS_PER_TEST):
        nest = NestGenerator(seed).nest()
        try:
            list(elements(nest))
        except TooManyIterationsError:
            continue
        yield seed, nest


@pytest.mark.parametrize("first_seed", share(FIRST_SEEDS, 2))
def test_injective_only_if_no_iterations_race(first_seed: int) -> None:
    safe = proven = 0
    for seed, nest in short_nests(first_seed):
        is_proven, is_racing = is_proven_injective(nest), races(nest)
        assert not (is_proven and is_racing), f"seed {seed}"
        safe, proven = safe + (not is_racing), proven + is_proven
    assert proven >= 0.8 * safe > 0


@pytest.mark.parametrize("first_seed", share(FIRST_SEEDS, 1))
def test_bounds_include_all_elements(first_seed: int) -> None:
    for seed, nest in short_nests(first_seed):
        first, last = relation_of(nest.loop, outer_ranges(nest)).bounds()
        accessed = set().union(*(w | r for w, r in elements(nest)))
        assert all(first <= element <= last for element in accessed), f"seed {seed}"


@pytest.mark.parametrize("first_seed", share(FIRST_SEEDS, 1))
def test_bounds_of_an_iteration_include_its_elements(first_seed: int) -> None:
    nests = 0
    for seed, nest in short_nests(first_seed):
        values = constant_loop_range(nest.loop)
        inside = {**outer_ranges(nest), nest.loop.var: loop_var_interval(nest.loop, outer_ranges(nest))}
        relation = relation_of(nest.loop.body, inside)
        if not values or not relation.accesses:
            continue
        nests += 1
        bounds = relation.bounds_by_iteration([(nest.loop.var, values)])
        first, last = (np.broadcast_to(bound, len(values)) for bound in bounds)
        for outer in nest.outer_values():
            for at, (written, read) in enumerate(nest.elements_by_iteration(outer).values()):
                assert all(first[at] <= element <= last[at] for element in written | read), f"seed {seed}"
    assert nests > 0


@pytest.mark.parametrize("first_seed", share(FIRST_SEEDS, 1))
def test_within_a_size_only_if_all_elements_are(first_seed: int) -> None:
    exact = proven = 0
    for seed, nest in short_nests(first_seed):
        relation = relation_of(nest.loop, outer_ranges(nest))
        accessed = set().union(*(w | r for w, r in elements(nest)))
        if accessed:
            size = max(accessed) + 1
            assert not relation.is_within(size - 1), f"seed {seed}"
            is_proven = relation.is_within(size)
            assert not is_proven or min(accessed) >= 0, f"seed {seed}"
            exact, proven = exact + (min(accessed) >= 0), proven + is_proven
    assert proven >= 0.5 * exact > 0


@pytest.mark.parametrize("first_seed", share(FIRST_SEEDS, 1))
def test_disjoint_only_if_there_is_no_common_element(first_seed: int) -> None:
    proven = 0
    previous: RandomNest | None = None
    for seed, nest in short_nests(first_seed):
        if previous is not None:
            a, b = (relation_of(x.loop, outer_ranges(x)) for x in (previous, nest))
            # reads of a common element are no conflict
            written, accessed = (set().union(*(w for w, _ in elements(x))) for x in (previous, nest))
            read, other_read = (set().union(*(r for _, r in elements(x))) for x in (previous, nest))
            meets = written & (accessed | other_read) or accessed & read
            is_proven = a.is_disjoint_from(b)
            assert not (is_proven and meets), f"seed {seed}"
            proven += is_proven
        previous = nest
    assert proven > 0


@pytest.mark.parametrize("first_seed", share(FIRST_SEEDS, 1))
def test_covered_only_if_all_elements_are_written(first_seed: int) -> None:
    proven = 0
    previous: RandomNest | None = None
    for seed, nest in short_nests(first_seed):
        for earlier in (nest, previous) if previous is not None else (nest,):
            writes = relation_of(earlier.loop, outer_ranges(earlier), reads=False)
            later = relation_of(nest.loop, outer_ranges(nest))
            if writes.covers(later):
                proven += bool(later.accesses)
                accessed = set().union(*(w | r for w, r in elements(nest)))
                assert all(accessed <= w for w, _ in elements(earlier)), f"seed {seed}"
        previous = nest
    assert proven > 0


# single cases


def injective(index: Expr, var: Var, ranges: dict[Var, Interval], *, lanes: int = 1, last: Expr | None = None) -> bool:
    """Return True if `index` is injective in a variable; `last` is an upper bound of j."""
    lasts = {j: [linear_form(last, ranges)]} if last is not None else {}
    relation = AccessRelation([Access(linear_form(index, ranges), lanes, ranges, lasts)])
    return relation.is_injective(var, 1, {n})


def test_rows_are_disjoint_if_they_are_no_longer_than_their_distance() -> None:
    assert injective(16 * i + j, i, {i: (0, 7), j: (0, 15)})
    assert not injective(16 * i + j, i, {i: (0, 7), j: (0, 16)})
    assert injective(16 * i + 4 * j, i, {i: (0, 7), j: (0, 3)}, lanes=4)
    assert not injective(16 * i + 4 * j, i, {i: (0, 7), j: (0, 3)}, lanes=5)


def test_quotients_and_remainders_are_digits() -> None:
    ranges: dict[Var, Interval] = {i: (0, 35), j: (0, 10)}
    address = i // 3 * 99 + j * 9 + i % 3 * 2
    assert injective(address, i, ranges)
    assert injective(i // 3 * 99 + j * 9 + i % 4 * 2, i, ranges)
    assert not injective(i // 4 * 99 + j * 9 + i % 3 * 2, i, ranges)  # 0 and 3
    assert injective((12 * i + j) // 36 * 40 + (12 * i + j) % 36, i, ranges)


def test_strides_known_at_run_time_only() -> None:
    ranges: dict[Var, Interval] = {i: (0, 63), n: (1, math.inf), j: (0, math.inf), k: (0, 63)}
    assert injective(i * n + j, i, ranges, last=n - 1)
    assert injective(i * n + j, j, ranges, last=n - 1)
    assert not injective(i * n + j, i, ranges, last=n)
    assert injective((k * n + j) * 64 + i, k, ranges, last=n - 1)
    assert injective(i * n * n + k * n + j, i, {**ranges, n: (64, 80)}, last=n - 1)
    assert not injective(i * n * n + k * n + j, i, {**ranges, n: (63, 80)}, last=n - 1)
    assert injective(n // 4 * 8 + i, i, {**ranges, i: (-math.inf, 3)})
    assert injective((i + n) // 4 * 4 + (i + n) % 4, i, {**ranges, n: (1, 80)})


def test_products_of_sums_with_strides_known_at_run_time_only() -> None:
    ranges: dict[Var, Interval] = {i: (0, 7), n: (1, math.inf), j: (0, math.inf)}
    lasts = {j: [linear_form(n - 1, ranges)]}

    def is_injective(rows: Expr, other: Expr) -> bool:
        accesses = [Access(linear_form(r, ranges), 1, ranges, lasts) for r in (rows + j, other + j)]
        return AccessRelation(accesses).is_injective(i, 1, {n})

    assert is_injective(Binary("mul", 3 * i + 1, n), 3 * i * n + 5 * n)
    assert not is_injective(Binary("mul", 3 * i + 1, n), 3 * i * n + 4 * n)  # row 4 in iterations 1 and 0
    assert not is_injective(Binary("mul", n, 3 * i + 1), 3 * i * n + 4 * n)


def test_columns_of_common_rows_are_disjoint() -> None:
    ranges: dict[Var, Interval] = {i: (0, 63), j: (0, 7)}
    left, right, both = (
        AccessRelation([Access(linear_form(address, ranges), 1, ranges)])
        for address in (16 * i + j, 16 * i + j + 8, 16 * i + 2 * j)
    )
    assert left.is_disjoint_from(right)
    assert not left.is_disjoint_from(both)
    assert not left.is_disjoint_from(AccessRelation())  # without accesses nothing is known


def store(index: Expr, value: Expr | None = None) -> Store:
    return Store(BUFFER, index, const(0.0, BUFFER.dtype) if value is None else value)


def test_conditions_restrict_accesses() -> None:
    folding = If(i < 64, store(i, Load(BUFFER, i + 64)))
    nest = For(i, 128, folding)
    relation = relation_of(nest.body, {i: (0, 127)})
    assert relation.is_injective(i, 1, ())
    wider = relation_of(If(i < 65, store(i, Load(BUFFER, i + 64))), {i: (0, 127)})
    assert not wider.is_injective(i, 1, ())


def test_windows_at_borders_are_within_their_buffer() -> None:
    def relation_of_windows(offset: int) -> AccessRelation:
        window = For(j, minimum(3, 9 - i), store(4 * (i + j - 1) + offset), begin=maximum(1 - i, 0))
        return relation_of(For(i, 8, window), {})

    assert relation_of_windows(0).is_within(29)
    assert not relation_of_windows(0).is_within(28)
    assert not relation_of_windows(-1).is_within(29)  # the first element is -1


def test_other_branch_has_the_negated_condition() -> None:
    both = Block((If(i < 1, store(4 * i + 4)), If(i < 4, Block(()), If(i < 5, store(4 * k)))))
    ranges: dict[Var, Interval] = {i: (0, 7), k: (1, 1)}
    assert not relation_of(both, ranges).is_injective(i, 1, ())  # iterations 0 and 4 write element 4
    assert relation_of(both, {**ranges, k: (2, 2)}).is_injective(i, 1, ())


def test_one_statement_as_both_branches() -> None:
    """Without the second branch, iteration 4 would access nothing."""
    same = store(4 * i + 4)
    relation = relation_of(Block((If(i < 1, same, same), store(4 * k))), {i: (0, 7), k: (5, 5)})
    assert not relation.is_injective(i, 1, ())  # iteration 4 writes element 20, as all others do
    assert relation_of(If(i < 1, same, same), {i: (0, 7)}).bounds() == (4, 32)
    assert not relation_of(If(i.equal(0), same, same), {i: (0, 7)}).is_disjoint_from(relation_of(store(k), {k: (8, 8)}))


@pytest.mark.parametrize("seed", range(4))
def test_enumerated_points_are_those_of_nested_loops(seed: int) -> None:
    """Upper bounds are sums of multiples of earlier variables, of which one may be unbounded."""
    rng = random.Random(seed)
    for _ in range(50):
        loop_vars = [Var(name, INDEX) for name in "abcd"]
        ranges: dict[Var, Interval] = {v: (low := rng.randint(-2, 1), low + rng.randint(0, 4)) for v in loop_vars}
        lasts = {
            var: [
                LinearForm({v: rng.choice([-2, -1, 1, 2]) for v in rng.sample(loop_vars[:at], rng.randint(1, at))})
                .add_multiple(LinearForm(const=rng.randint(-1, 5)))
                for _ in range(rng.randint(0, 2))
            ]
            for at, var in enumerate(loop_vars)
            if at
        }  # fmt: skip
        unbounded = Var("n", INDEX)
        if rng.random() < 0.3:  # this bound is unknown
            lasts[rng.choice(loop_vars[1:])].append(LinearForm({loop_vars[0]: 1, unbounded: 1}))
        steps = {var: rng.choice([1, 1, 2]) for var in loop_vars}
        expected: list[dict[Var, int]] = [{}]
        for var in loop_vars:
            low, high = map(int, ranges[var])
            limits = [f for f in lasts.get(var, ()) if unbounded not in f.terms]
            expected = [
                {**point, var: value}
                for point in expected
                for value in range(low, high + 1, steps[var])
                if all(value <= f.const + sum(c * point[v] for v, c in f.terms.items()) for f in limits)  # type: ignore[index]
            ]  # fmt: skip
        order = rng.sample(loop_vars, len(loop_vars))
        points = PointEnumerator({**ranges, unbounded: (1, math.inf)}, lasts, steps, ()).points_of_vars(order)
        found = zip(*(points[var].tolist() for var in loop_vars), strict=True)
        assert sorted(found) == sorted(tuple(point[var] for var in loop_vars) for point in expected)


def test_addresses_that_are_not_linear_are_enumerated() -> None:
    assert relation_of(store(Binary("xor", i, const(1, INDEX))), {i: (0, 127)}).is_injective(i, 1, ())
    assert not relation_of(store(Binary("and", i, const(62, INDEX))), {i: (0, 127)}).is_injective(i, 1, ())


def test_enumerated_addresses_with_a_fixed_term_of_any_size() -> None:
    """The term has no upper bound, and one access has it with another factor, which decides the answer."""
    swapped = Binary("xor", i, const(1, INDEX))
    ranges: dict[Var, Interval] = {i: (0, 7), n: (0, math.inf), k: (0, 1)}

    def is_injective(*addresses: Expr) -> bool:
        accesses = [Access(linear_form(address, ranges), 1, ranges) for address in addresses]
        return AccessRelation(accesses).is_injective(i, 1, {n, k})

    assert is_injective(n + swapped, n + swapped + 16)
    assert not is_injective(n + swapped, n + swapped + 2)
    assert not is_injective(n + swapped, 2 * n + swapped)  # n == 1: iterations 0 and 1 access element 2
    assert is_injective(n + swapped, n + 8 * k + swapped + 8)
    assert not is_injective(n + 8 * k + swapped, n + swapped + 7)


def test_changed_registers_are_no_conditions() -> None:
    """The value of a register at a condition is not its value at a later access."""
    changed = Block((Declare(n, const(0, INDEX)), If(i < n, store(n))))
    assigned = Block((*changed.stmts, Assign(n, n + 1)))
    assert relation_of(changed, {i: (0, 7)}).accesses[0].conditions
    assert not relation_of(assigned, {i: (0, 7)}).accesses[0].conditions


@pytest.mark.parametrize("expands", [True, False])
def test_loops_that_begin_at_a_changed_register(expands: bool) -> None:
    """The value of a register at the beginning of a loop is not its value in the loop."""
    loop = For(j, n + 4, Block((Assign(n, n + 1), store(16 * i + j - n))), begin=n * 1)  # elements 16 * i - 1
    ending = For(j, n * 1, Block((Assign(n, n - 1), store(16 * i + j - n))))
    for nest in (loop, ending):
        body = Block((Declare(n, const(4, INDEX)), nest))
        relation = AccessRelation()
        collect_accesses(For(i, 8, body), {}, {BUFFER: relation}, expands_registers=expands)
        assert relation.bounds() == (-math.inf, math.inf)


def test_bounds_of_a_sum_of_variables_that_bound_each_other() -> None:
    triangle = For(k, 4, For(j, k * 1, For(i, 8 - 2 * j, store(i + j))), begin=2)
    assert relation_of(triangle, {}).bounds()[1] >= 7  # i == 7, j == 0


def test_written_before_read() -> None:
    other = Buffer("x", BUFFER.dtype, 16)
    fill, read = For(i, 16, store(i)), For(j, 16, Store(other, j, Load(BUFFER, j)))
    halves = For(i, 2, Store(BUFFER, 8 * i, Broadcast(const(0.0, BUFFER.dtype), 8)))
    assert is_written_before_read(BUFFER, [fill, read], {})
    assert not is_written_before_read(BUFFER, [For(i, 15, store(i)), read], {})
    assert not is_written_before_read(BUFFER, [If(n < 1, fill), read], {})
    assert is_written_before_read(BUFFER, [halves, read], {})


def test_offsets_of_an_unrolled_tile_are_dimensions() -> None:
    tile = [(100 * row + 8 * column, 8) for row in range(4) for column in range(2)]
    assert split_offsets_into_dimensions(tile, merges_offsets=False) == [(0, ((1, 16), (100, 4)))]
    assert split_offsets_into_dimensions(tile, merges_offsets=True) == [(0, ((1, 316),))]
    assert split_offsets_into_dimensions([(0, 8), (2, 2)], merges_offsets=False) == [(0, ((1, 8),))]
    assert len(split_offsets_into_dimensions([*tile, (1000, 3)], merges_offsets=False)) == 5


def test_systems_without_solution() -> None:
    system = IntegerSystem()
    x, y = system.add_variable(0, 10), system.add_variable(0, 10)
    system.add_equation({x: 6, y: 4}, -7)  # odd
    assert system.has_no_solution()
    system = IntegerSystem()
    x, y = system.add_variable(0, math.inf), system.add_variable(-math.inf, 5)
    system.add_inequality({y: 1, x: -1}, -6)  # y >= x + 6
    assert system.has_no_solution()
    system = IntegerSystem()
    x, y = system.add_variable(0, 10), system.add_variable(0, 10)
    system.add_equation({x: 6, y: 4}, -24)
    assert not system.has_no_solution()
