# SPDX-License-Identifier: Apache-2.0
"""Count how often the nodes of an expression occur in the tree that it represents.

square = x * x
occurrences(square * square)           # the product once, square twice, x four times
"""

from __future__ import annotations

from typing import Any

from aotc.tir.expr import Const, Expr, Var, operands


def occurrences(expr: Expr) -> list[tuple[Expr, int]]:
    """Return every sub-expression once, users before operands, with the number of times that it
    occurs in the tree that the expression represents.

    The work grows with the number of objects, the numbers with the size of the tree.
    """
    order: list[Expr] = []
    visited_ids = set[int]()
    stack: list[Any] = [expr]
    while stack:  # depth first; a node is appended after its operands
        node = stack.pop()
        if node is None:
            order.append(stack.pop())
        elif id(node) not in visited_ids:
            visited_ids.add(id(node))
            if isinstance(node, (Var, Const)):
                order.append(node)
            else:
                stack += (node, None, *operands(node))
    counts = dict.fromkeys(visited_ids, 0)
    counts[id(expr)] = 1
    order.reverse()
    for node in order:
        if not isinstance(node, (Var, Const)):
            count = counts[id(node)]
            for part in operands(node):
                counts[id(part)] += count
    return [(node, counts[id(node)]) for node in order]
