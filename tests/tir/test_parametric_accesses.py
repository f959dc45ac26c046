# SPDX-License-Identifier: Apache-2.0
"""Access relations of nests whose extents and strides are parameters: answers compared with the elements that the
nests access for all values of the parameters, and proofs of typical nests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

import pytest

from aotc.ir import AotcError
from aotc.tir import Binary, Block, Expr, Var, const, linear_form
from aotc.tir.expr import INDEX, Broadcast
from aotc.tir.kernel_parser import parse_kernel
from aotc.tir.kernel_verifier import are_loops_proven_for, verify
from aotc.tir.loops.access_collection import collect_accesses
from aotc.tir.loops.access_relation import AccessRelation
from aotc.tir.loops.loop_dependence import loop_var_interval
from aotc.tir.simplify import Interval
from aotc.tir.stmt import For, Stmt, Store
from tests.share import share
from tests.tir.parametric_nests import ParametricNestGenerator, TypicalNest, typical_nests
from tests.tir.random_accesses import BUFFER, RandomNest, TooManyIterationsError, value_of_expr

PAIRS_PER_TEST = 10
#: Seeds of 6,000 pairs of nests.
FIRST_SEEDS = range(0, 6_000, PAIRS_PER_TEST)

Elements = dict[int, tuple[set[int], set[int]]]


def relation_of(stmt: Stmt, ranges: Mapping[Var, Interval], around: For | None = None) -> AccessRelation:
    relation = AccessRelation()
    collect_accesses(stmt, {**ranges}, {BUFFER: relation}, expands_registers=True, around=around)
    return relation


def intervals(parameters: Mapping[Var, range]) -> dict[Var, Interval]:
    return {var: (values[0], values[-1]) for var, values in parameters.items()}


def is_injective(loop: For, ranges: Mapping[Var, Interval], fixed: set[Var]) -> bool:
    inside = {**ranges, loop.var: loop_var_interval(loop, {**ranges})}
    return relation_of(loop.body, inside, loop).is_injective(loop.var, loop.step, fixed)


def has_race(accesses: Elements) -> bool:
    """Return True if an iteration accesses an element that another one writes."""
    writers: dict[int, set[int]] = {}
    for iteration, (written, _) in accesses.items():
        for element in written:
            writers.setdefault(element, set()).add(iteration)
    return any(
        writers.get(element, {iteration}) != {iteration}
        for iteration, (written, read) in accesses.items()
        for element in written | read
    )


def united(accesses: Elements) -> tuple[set[int], set[int]]:
    """Return the elements that all iterations write, and those that they read."""
    return set().union(*(w for w, _ in accesses.values())), set().union(*(r for _, r in accesses.values()))


def executions(first: RandomNest, second: RandomNest) -> list[tuple[dict[Var, int], Elements, Elements]]:
    """Return the elements that two nests access for all values of their parameters; none if they take long, or
    divide by zero."""
    try:
        return [
            (values, first.elements_by_iteration(values), second.elements_by_iteration(values))
            for values in first.outer_values()
        ]
    except (TooManyIterationsError, ZeroDivisionError):
        return []


@pytest.mark.parametrize("first_seed", share(FIRST_SEEDS, 2))
def test_answers_hold_for_all_values_of_the_parameters(first_seed: int) -> None:
    proven, true = Counter[str](), Counter[str]()
    for seed in range(first_seed, first_seed + PAIRS_PER_TEST):
        pair = ParametricNestGenerator(seed).pair()
        runs = executions(pair.first, pair.second)
        if not runs:
            continue
        answers = answers_about(pair.first, pair.second, pair.size)
        facts = facts_about(runs, pair.size, answers[1])
        for question, fact in facts.items():
            assert fact or not answers[0][question], f"seed {seed}: {question}"
            proven[question] += answers[0][question]
            true[question] += fact
    assert all(proven[question] > 0 for question in ("injective", "within", "within bounds", "bounds"))
    assert proven.total() >= 0.6 * true.total()


def answers_about(first: RandomNest, second: RandomNest, size: Expr) -> tuple[dict[str, bool], tuple[Interval, int]]:
    """Return what is proven of two nests, the bounds of the first one, and a number of elements that is within them."""
    ranges, fixed = intervals(first.outer), {*first.outer}
    a, b = relation_of(first.loop, ranges), relation_of(second.loop, ranges)
    most = a.bounds()[1] + 1
    answers = {
        "injective": is_injective(first.loop, ranges, fixed),
        "within": a.is_within(linear_form(size, ranges)),
        "within bounds": a.is_within(int(most)) if abs(most) < 1 << 40 else False,
        "disjoint": a.is_disjoint_from(b, fixed),
        "covers": a.accesses_of_kind(is_write=True).covers(b, fixed),
        "bounds": True,
    }
    return answers, (a.bounds(), int(most) if abs(most) < 1 << 40 else 0)


def facts_about(
    runs: list[tuple[dict[Var, int], Elements, Elements]], size: Expr, claims: tuple[Interval, int]
) -> dict[str, bool]:
    """Return the true answers to the same questions, by the elements that were accessed."""
    facts = dict.fromkeys(("injective", "within", "within bounds", "disjoint", "covers", "bounds"), True)
    (low, high), most = claims
    for values, first, second in runs:
        (written, read), (other_written, other_read) = united(first), united(second)
        touched, other_touched = written | read, other_written | other_read
        facts["injective"] &= not has_race(first)
        facts["within"] &= touched <= set(range(value_of_expr(size, values)))
        facts["within bounds"] &= touched <= set(range(most))
        facts["disjoint"] &= not (written & other_touched or touched & other_written)
        facts["covers"] &= other_touched <= written
        facts["bounds"] &= all(low <= element <= high for element in touched)
    return facts


def typical_questions(nest: TypicalNest) -> Iterator[tuple[str, bool]]:
    """Yield the questions about a typical nest whose answer is True, each with the answer of the relation."""
    ranges, fixed = intervals(nest.parameters), {*nest.parameters}
    outer, inside = set(fixed), dict(ranges)
    for loop in nest.loops:
        yield f"injective in {loop.var.name}", is_injective(loop, inside, outer)
        inside[loop.var] = loop_var_interval(loop, inside)
        outer.add(loop.var)
    whole = relation_of(nest.loops[0], ranges)
    size = linear_form(nest.size, ranges)
    yield "within", whole.is_within(size)
    yield "bounds", whole.is_within(int(whole.bounds()[1]) + 1) if whole.bounds()[1] < 1 << 60 else False
    for part, other in zip(nest.parts, nest.parts[1:], strict=False):
        yield "disjoint", relation_of(part, ranges).is_disjoint_from(relation_of(other, ranges), fixed)
    e = Var("e")
    elements = relation_of(For(e, nest.size, Store(BUFFER, e * 1, const(0.0, BUFFER.dtype))), ranges)
    yield "covers", elements.covers(whole, fixed) if nest.reads else whole.covers(elements, fixed)
    if not nest.reads:
        yield "covers itself", whole.covers(whole, fixed)


@pytest.mark.parametrize("part", share(range(25), 1))
def test_typical_nests_are_proven(part: int) -> None:
    nests = list(typical_nests())[part::25]
    answers = {f"{nest.name}: {question}": answer for nest in nests for question, answer in typical_questions(nest)}
    unproven = [question for question, answer in answers.items() if not answer]
    assert len(unproven) <= 0.03 * len(answers), unproven


def test_a_divisor_in_a_loop_that_may_be_empty_may_be_zero() -> None:
    """With n == 0, no store is made, and element 0 is read without being written."""
    i, m, n = Var("i"), Var("m"), Var("n")
    quotient = Binary("floordiv", m * 1, n * 1)
    zero = const(0.0, BUFFER.dtype)
    fill, other = For(i, n, Store(BUFFER, i * 1, zero)), For(i, n, Store(BUFFER, quotient + i + 100, zero))
    ranges: dict[Var, Interval] = {m: (0, 9), n: (0, 3)}
    first_element = relation_of(Store(BUFFER, const(0, INDEX), zero), ranges)
    stores = relation_of(Block((fill, other)), ranges)
    assert not stores.covers(first_element, {m, n})
    assert relation_of(fill, {**ranges, n: (1, 3)}).covers(first_element, {m, n})


@pytest.mark.parametrize("bits", [21, 32, 62])
def test_loops_with_more_iterations_than_numbers_of_64_bits_are_not_enumerated(bits: int) -> None:
    """Sums of their trip counts overflow; the proof does not need them."""
    i, j, k, e, n, m = (Var(name) for name in "ijkenm")
    zero = const(0.0, BUFFER.dtype)
    ranges: dict[Var, Interval] = {n: (1, 1 << bits), m: (1, 1 << bits)}
    nest = For(i, n * 1, For(j, m * 1, For(k, m * 1, Store(BUFFER, (i * m + j) * m + k, zero))))
    whole, elements = relation_of(nest, ranges), relation_of(For(e, n * m * m, Store(BUFFER, e * 1, zero)), ranges)
    assert whole.covers(elements, {n, m})
    assert not whole.covers(relation_of(For(e, n * m * m + 1, Store(BUFFER, e * 1, zero)), ranges), {n, m})


@pytest.mark.parametrize("op", ["floordiv", "floormod"])
def test_a_store_that_would_divide_by_zero_says_nothing_of_a_load(op: str) -> None:
    """The loop over t is empty if n is 0, the one number that it may be; the load is made."""
    i, t, n = Var("i"), Var("t"), Var("n")
    zero = const(0.0, BUFFER.dtype)
    never = For(t, n, Store(BUFFER, Binary(op, i + t, n * 1), zero))
    stores = relation_of(For(i, const(4, INDEX), Block((never, Store(BUFFER, i * 2, zero)))), {n: (0, 0)})
    read = relation_of(For(i, const(4, INDEX), Store(BUFFER, i * 4, zero)), {n: (0, 0)})
    assert not stores.covers(read, {n})


def test_stores_are_enumerated_by_the_exact_ends_of_loops() -> None:
    """The interval of t is 0 to 1, as n // 3 - 1 is at most 1 by the ends of its operands; t is 0 alone."""
    i, t, k, n = Var("i"), Var("t"), Var("k"), Var("n")
    zero, four = const(0.0, BUFFER.dtype), const(4, INDEX)
    block = For(t, Binary("floordiv", n * 1, const(3, INDEX)), For(k, const(3, INDEX), Store(BUFFER, t * 3 + k, zero)))
    stores = relation_of(For(i, four, block), {n: (3, 3)})
    written, beyond = (relation_of(For(i, end, Store(BUFFER, i * 1, zero)), {n: (3, 3)}) for end in (n * 1, four))
    assert stores.covers(written, {n}) and not stores.covers(beyond, {n})


def test_a_term_that_changes_with_the_iteration_leaves_gaps() -> None:
    """Iteration 0 writes elements 0 to 3, iteration 1 elements 5 to 8."""
    i, n, zero = Var("i"), Var("n"), const(0.0, BUFFER.dtype)
    remainder = Binary("floormod", i * 1, const(4, INDEX))
    stores = relation_of(For(i, n, Store(BUFFER, i * 4 + remainder, Broadcast(zero, 4))), {n: (2, 9)})
    assert not stores.covers(relation_of(Store(BUFFER, const(4, INDEX), zero), {}), {n})


@pytest.mark.parametrize(("stride", "is_valid"), [("n", True), ("n + 1", False), ("n - 1", False)])
def test_a_kernel_is_verified_for_all_values_of_its_numbers(stride: str, is_valid: bool) -> None:
    """Rows of n + 1 elements are too long for the buffer, rows of n - 1 elements overlap."""
    kernel = parse_kernel(
        f"""kernel "twice" {{
          input x: float32[2048]
          output y: float32[2048]
          number m: int64 in [0, 8]
          number n: int64 in [0, 256]
          for i in 0..m independent {{ for j in 0..n independent {{
            y[i * ({stride}) + j] = x[i * ({stride}) + j] * 2.0
          }} }}
        }}"""
    )
    if is_valid:
        verify(kernel)
    else:
        with pytest.raises(AotcError, match=r"outside its 2048 elements|may access the same elements"):
            verify(kernel)


@pytest.mark.parametrize(("element", "is_proven"), [("i", True), ("i + 1", False), ("m - i", False)])
def test_loops_are_proven_for_the_buffer_that_a_result_shares(element: str, is_proven: bool) -> None:
    """Elements of y that other iterations write must not be read; what the kernel does to z does not count."""
    kernel = parse_kernel(
        f"""kernel "in place" {{
          output y: float32[9]
          output z: float32[4]
          number m: int64 in [0, 8]
          for i in 0..m independent {{
            y[i] = y[{element}] * 2.0
            z[i // 2] = 1.0
          }}
        }}"""
    )
    y, z = kernel.outputs
    assert are_loops_proven_for(kernel, [y]) == is_proven and not are_loops_proven_for(kernel, [z])
