# SPDX-License-Identifier: Apache-2.0
"""Addresses that a search for common elements finds are accessed for some value of each variable."""

import math

import pytest

from aotc.tir import Var
from aotc.tir.kernel_parser import parse_kernel
from aotc.tir.loops.access_collection import collect_accesses
from aotc.tir.loops.access_relation import AccessRelation
from aotc.tir.loops.common_element_search import addresses_at_first_iterations
from aotc.tir.simplify import Interval
from aotc.tir.stmt import Stmt


def addresses(body: str, ranges: dict[str, Interval] | None = None) -> set[int]:
    """Return the addresses found for the store to y of a kernel with the number n from 1 to 16."""
    kernel = parse_kernel(
        f"""kernel "k" {{
          output y: float32[4096]
          number n: int64 in [1, 16]
          {body}
        }}"""
    )
    n: Var = kernel.numbers[0].var
    relation = AccessRelation()
    stmt: Stmt = kernel.body
    collect_accesses(stmt, {n: (1, 16)}, {kernel.outputs[0]: relation})
    (access,) = relation.accesses
    return set(addresses_at_first_iterations(access, access.form.const, (), {n}))


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("for i in 0..4 { for j in 0..n { y[i * n + j] = 1.0 } }", {0, 1, 16, 17}),
        ("for i in 0..8 step 3 { y[i + 2] = 1.0 }", {2, 5}),
        ("for i in 0..n - 15 { y[i] = 1.0 }", {0}),
        ("for i in 0..n - 16 { y[i] = 1.0 }", set()),
    ],
)
def test_addresses_of_first_iterations(body: str, found: set[int]) -> None:
    assert addresses(body) == found


def test_a_common_element_refutes_that_accesses_are_disjoint() -> None:
    """Rows of n elements from 0 on, and the elements behind the first row: equal from the second row on."""
    kernel = parse_kernel(
        """kernel "k" {
          output y: float32[4096]
          number n: int64 in [1, 16]
          for i in 0..4 { for j in 0..n { y[i * n + j] = 1.0 } }
          for i in 0..4 { y[n + i] = 2.0 }
        }"""
    )
    n = kernel.numbers[0].var
    first, second = (AccessRelation(), AccessRelation())
    for stmt, relation in zip(kernel.body.stmts, (first, second), strict=True):
        collect_accesses(stmt, {n: (1, 16)}, {kernel.outputs[0]: relation})
    assert not first.is_disjoint_from(second, {n})
    assert first.bounds()[1] < math.inf
