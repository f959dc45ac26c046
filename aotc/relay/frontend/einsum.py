# SPDX-License-Identifier: Apache-2.0
"""Einstein summation as transposes, sums and batched matrix products.

In: an equation and operands.  Out: an expression.  Operands are contracted from left to
right; an axis named twice in one operand is its diagonal.

    einsum("bij,bjk->bik", [a, b])          # nn.batch_matmul(a, b)
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from aotc.ir.diagnostics import AotcError
from aotc.relay.expr import Expr
from aotc.relay.frontend import graph as g


def einsum(equation: str, operands: Sequence[Expr]) -> Expr:
    """The sum that `equation` describes (numpy's notation, "..." and implicit outputs included).

    Raises AotcError (code "graph-einsum") for an equation that does not fit the operands.
    """
    inputs, output = _parse(equation, [g.rank(x) for x in operands])
    sizes = _sizes(inputs, [g.shape(x) for x in operands])
    terms = [_diagonal(x, axes) for x, axes in zip(operands, inputs, strict=True)]
    x, axes = terms[0]
    for k in range(1, len(terms)):
        needed = set(output).union(*(t[1] for t in terms[k + 1 :])) if k + 1 < len(terms) else set(output)
        x, axes = _contract(x, axes, *terms[k], needed, sizes)
    x, axes = _summed(x, axes, set(output))
    missing = [a for a in output if a not in axes]
    if missing:
        raise AotcError("graph-einsum", f"output axes {missing} occur in no operand of {equation!r}")
    full = tuple(sizes[a] for a in output)
    return g.broadcast(g.transpose(x, [axes.index(a) for a in output]), full)


def _parse(equation: str, ranks: Sequence[int]) -> tuple[list[list[str]], list[str]]:
    """Axis names per operand and of the output; axes of "..." are named "0", "1", ... from the right."""
    text = equation.replace(" ", "")
    left, arrow, right = text.partition("->")
    parts = left.split(",")
    letters = left.replace(",", "").replace("...", "") + right.replace("...", "")
    if len(parts) != len(ranks) or not all(c.isalpha() for c in letters):
        raise AotcError("graph-einsum", f"equation {equation!r} does not fit {len(ranks)} operands")
    inputs = [_named(part, rank, equation) for part, rank in zip(parts, ranks, strict=True)]
    dots = max((sum(a.isdigit() for a in axes) for axes in inputs), default=0)
    ellipsis = [str(k) for k in reversed(range(dots))]
    if not arrow:
        once = sorted(c for c in set(letters) if letters.count(c) == 1)
        return inputs, [*ellipsis, *once]
    head, found, tail = right.partition("...")
    return inputs, [*head, *(ellipsis if found else []), *tail]


def _named(part: str, rank: int, equation: str) -> list[str]:
    head, found, tail = part.partition("...")
    missing = rank - len(head) - len(tail)
    if missing < 0 or (missing and not found):
        raise AotcError("graph-einsum", f"{part!r} of equation {equation!r} does not fit rank {rank}")
    return [*head, *(str(k) for k in reversed(range(missing))), *tail]


def _sizes(inputs: Sequence[Sequence[str]], shapes: Sequence[Sequence[int]]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for axes, shape in zip(inputs, shapes, strict=True):
        for axis, size in zip(axes, shape, strict=True):
            known = sizes.get(axis, 1)
            if size not in (1, known) and known != 1:
                raise AotcError("graph-einsum", f"axis {axis!r} is both {known} and {size}")
            sizes[axis] = size if known == 1 else known
    return sizes


def _diagonal(x: Expr, axes: list[str]) -> tuple[Expr, list[str]]:
    """An axis named twice becomes one: off-diagonal elements are zeroed and summed away."""
    axes = list(axes)
    while len(set(axes)) != len(axes):
        name = next(a for a in axes if axes.count(a) > 1)
        first = axes.index(name)
        second = axes.index(name, first + 1)
        shape = g.shape(x)
        row = g.reshape(g.iota(shape[first]), [shape[first] if k == first else 1 for k in range(len(shape))])
        column = g.reshape(g.iota(shape[second]), [shape[second] if k == second else 1 for k in range(len(shape))])
        mask = g.cast(g.binary("equal", row, column), g.dtype(x))
        x = g.reduce("sum", g.mul(x, mask), (second,), False)
        del axes[second]
    return x, axes


def _summed(x: Expr, axes: list[str], needed: set[str]) -> tuple[Expr, list[str]]:
    """Axes that nobody needs, summed away."""
    gone = [k for k, a in enumerate(axes) if a not in needed]
    return g.reduce("sum", x, gone, False), [a for a in axes if a in needed]


def _contract(
    x: Expr, left: list[str], y: Expr, right: list[str], needed: set[str], sizes: dict[str, int]
) -> tuple[Expr, list[str]]:
    """The product of two terms, summed over the axes that both have and nobody needs."""
    x, left = _summed(x, left, needed | set(right))
    y, right = _summed(y, right, needed | set(left))
    shared = [a for a in left if a in right]
    batch, inner = [a for a in shared if a in needed], [a for a in shared if a not in needed]
    rows, columns = [a for a in left if a not in shared], [a for a in right if a not in shared]
    a = _matrix(x, left, (batch, rows, inner), sizes)
    b = _matrix(y, right, (batch, inner, columns), sizes)
    product = g.op("nn.batch_matmul", a, b, transpose_a=False, transpose_b=False)
    axes = [*batch, *rows, *columns]
    return g.reshape(product, [sizes[a] for a in axes]), axes


def _matrix(x: Expr, axes: list[str], groups: tuple[list[str], list[str], list[str]], sizes: dict[str, int]) -> Expr:
    """`x` as (batch, rows, columns), each a group of axes; axes of size 1 that broadcast are repeated."""
    order = [a for group in groups for a in group]
    y = g.transpose(x, [g.axis(axes.index(a), len(axes)) for a in order])
    y = g.broadcast(y, tuple(sizes[a] for a in order))
    return g.reshape(y, [math.prod(sizes[a] for a in group) for group in groups])
