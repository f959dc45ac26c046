# SPDX-License-Identifier: Apache-2.0
"""Matrix products as nn.matmul and nn.batch_matmul, and Einstein
summation as transposes, sums and batched products.

matmul(a, b)                            # (2, 1, 3, 4) and (5, 4, 6): (2, 5, 3, 6)
einsum("bij,bjk->bik", [a, b])          # nn.batch_matmul(a, b)

An equation contracts its operands from left to right; an axis named
twice in one operand is its diagonal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from aotc.ir import AotcError, Dim, frozen, is_static, require
from aotc.relay.expr import Expr
from aotc.relay.frontend import graph as g
from aotc.relay.op.rules import broadcast_shape


@frozen
class Products:
    """The products that a larger one is made of: of anything with a
    matrix, and of two stacks of matrices.
    """

    matrix: Callable[[Expr, Expr], Expr]
    batched: Callable[[Expr, Expr], Expr]


def matmul(a: Expr, b: Expr, of: Products | None = None) -> Expr:
    """numpy's matmul: vectors are promoted, leading axes broadcast."""
    of = of or _PLAIN
    if not g.rank(a) or not g.rank(b):
        raise AotcError("graph-matmul", "a matrix product needs operands of rank 1 or more")
    if g.rank(b) == 1:
        product = matmul(a, g.unsqueeze(b, [1]), of)
        return g.op("squeeze", product, axis=(g.rank(product) - 1,))
    if g.rank(a) == 1:
        product = matmul(g.unsqueeze(a, [0]), b, of)
        return g.op("squeeze", product, axis=(g.rank(product) - 2,))
    if g.dims(a)[-1] != g.dims(b)[-2] and is_static((g.dims(a)[-1], g.dims(b)[-2])):
        raise AotcError("graph-matmul", f"shapes {g.dims(a)} and {g.dims(b)} do not fit a matrix product")
    if g.rank(b) == 2:
        return of.matrix(a, b)
    return _batched(a, b, of.batched)


def _batched(a: Expr, b: Expr, of: Callable[[Expr, Expr], Expr]) -> Expr:
    lead = broadcast_shape(g.dims(a)[:-2], g.dims(b)[:-2])
    if g.rank(a) == g.rank(b) == 3:
        return of(a, b)
    if not is_static(lead):
        g.shape(a, "an operand of MatMul")
        g.shape(b, "an operand of MatMul")
    left, right = _flat_batch(a, lead), _flat_batch(b, lead)
    rows, columns = g.dims(a)[-2], g.dims(b)[-1]
    product = of(left, right)
    return g.reshape(product, [d for d in (*lead, rows, columns) if isinstance(d, int)])


def _flat_batch(x: Expr, lead: Sequence[Dim]) -> Expr:
    """`x` with one leading axis: 1 if all its own are 1, else all
    of `lead`.
    """
    shape = g.shape(x, "an operand of MatMul")
    own = math.prod(shape[:-2])
    if own == 1:
        return g.reshape(x, (1, *shape[-2:]))
    full = [d for d in lead if isinstance(d, int)]
    if own != math.prod(full):
        x = g.broadcast(g.reshape(x, (*(1,) * (len(full) + 2 - len(shape)), *shape)), (*full, *shape[-2:]))
    return g.reshape(x, (math.prod(full), *shape[-2:]))


def _batch_matmul(a: Expr, b: Expr) -> Expr:
    return g.op("nn.batch_matmul", a, b, transpose_a=False, transpose_b=False)


def _matmul(a: Expr, b: Expr) -> Expr:
    return g.op("nn.matmul", a, b, units=None)


_PLAIN: Final = Products(_matmul, _batch_matmul)


def einsum(equation: str, operands: Sequence[Expr]) -> Expr:
    """The sum that `equation` describes (numpy's notation, "..."
    and implicit outputs included).

    Raises AotcError (code "graph-einsum") for an equation that does
    not fit the operands.
    """
    inputs, output = _parse(equation, [g.rank(x) for x in operands])
    sizes = _sizes(inputs, [g.shape(x) for x in operands])
    terms = [_diagonal(x, axes) for x, axes in zip(operands, inputs, strict=True)]
    x, axes = terms[0]
    for k in range(1, len(terms)):
        needed = set(output).union(*(later for _, later in terms[k + 1 :]))
        x, axes = _contract(x, axes, *terms[k], needed, sizes)
    x, axes = _summed(x, axes, set(output))
    missing = [a for a in output if a not in axes]
    require("graph-einsum", not missing, f"output axes {missing} occur in no operand of {equation!r}")
    full = tuple(sizes[a] for a in output)
    return g.broadcast(g.transpose(x, [axes.index(a) for a in output]), full)


def _parse(equation: str, ranks: Sequence[int]) -> tuple[list[list[str]], list[str]]:
    """Axis names per operand and of the output; axes of "..." are
    named "0", "1", ... from the right.
    """
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
    """An axis named twice becomes one: off-diagonal elements are
    zeroed and summed away.
    """
    axes = list(axes)
    while len(set(axes)) != len(axes):
        name = next(a for a in axes if axes.count(a) > 1)
        first = axes.index(name)
        second = axes.index(name, first + 1)
        row, column = (g.along(g.iota(g.dim(x, k)), k, len(axes)) for k in (first, second))
        mask = g.cast(g.equal(row, column), g.dtype(x))
        x = g.reduce("sum", g.mul(x, mask), (second,), False)
        del axes[second]
    return x, axes


def _summed(x: Expr, axes: list[str], needed: set[str]) -> tuple[Expr, list[str]]:
    """`x` summed over the axes that are not needed, and the axes
    that are left.
    """
    gone = [k for k, a in enumerate(axes) if a not in needed]
    return g.reduce("sum", x, gone, False), [a for a in axes if a in needed]


def _contract(
    x: Expr, left: list[str], y: Expr, right: list[str], needed: set[str], sizes: dict[str, int]
) -> tuple[Expr, list[str]]:
    """The product of two terms, summed over the axes that both have
    and nobody needs.
    """
    x, left = _summed(x, left, needed | set(right))
    y, right = _summed(y, right, needed | set(left))
    shared = [a for a in left if a in right]
    batch = [a for a in shared if a in needed]
    inner = [a for a in shared if a not in needed]
    rows = [a for a in left if a not in shared]
    columns = [a for a in right if a not in shared]
    a = _matrix(x, left, (batch, rows, inner), sizes)
    b = _matrix(y, right, (batch, inner, columns), sizes)
    product = _batch_matmul(a, b)
    axes = [*batch, *rows, *columns]
    return g.reshape(product, [sizes[a] for a in axes]), axes


def _matrix(x: Expr, axes: list[str], groups: tuple[list[str], list[str], list[str]], sizes: dict[str, int]) -> Expr:
    """`x` as (batch, rows, columns), each a group of axes; axes of
    size 1 that broadcast are repeated.
    """
    order = [a for group in groups for a in group]
    y = g.transpose(x, [g.axis(axes.index(a), len(axes)) for a in order])
    y = g.broadcast(y, tuple(sizes[a] for a in order))
    return g.reshape(y, [math.prod(sizes[a] for a in group) for group in groups])
