# SPDX-License-Identifier: Apache-2.0
"""Matrix products as nn.matmul and nn.batch_matmul.

matmul(a, b)                            # (2, 1, 3, 4) and (5, 4, 6): (2, 5, 3, 6)
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from aotc.ir import AotcError, Dim, is_static
from aotc.relay.expr import Expr
from aotc.relay.frontend import graph as g
from aotc.relay.op.rules import broadcast_shape


def matmul(a: Expr, b: Expr, out_dtype: str = "") -> Expr:
    """numpy's matmul: vectors are promoted, leading axes broadcast."""
    if not g.rank(a) or not g.rank(b):
        raise AotcError("graph-matmul", "a matrix product needs operands of rank 1 or more")
    if g.rank(b) == 1:
        product = matmul(a, g.unsqueeze(b, [1]), out_dtype)
        return g.op("squeeze", product, axis=(g.rank(product) - 1,))
    if g.rank(a) == 1:
        product = matmul(g.unsqueeze(a, [0]), b, out_dtype)
        return g.op("squeeze", product, axis=(g.rank(product) - 2,))
    if g.dims(a)[-1] != g.dims(b)[-2] and is_static((g.dims(a)[-1], g.dims(b)[-2])):
        raise AotcError("graph-matmul", f"shapes {g.dims(a)} and {g.dims(b)} do not fit a matrix product")
    if g.rank(b) == 2:
        return g.op("nn.matmul", a, b, units=None, out_dtype=out_dtype)
    return _batched(a, b, out_dtype)


def _batched(a: Expr, b: Expr, out_dtype: str) -> Expr:
    lead = broadcast_shape(g.dims(a)[:-2], g.dims(b)[:-2])
    if g.rank(a) == g.rank(b) == 3:
        return _batch_matmul(a, b, out_dtype)
    if not is_static(lead):
        g.shape(a, "an operand of MatMul")
        g.shape(b, "an operand of MatMul")
    left, right = _flat_batch(a, lead), _flat_batch(b, lead)
    rows, columns = g.dims(a)[-2], g.dims(b)[-1]
    product = _batch_matmul(left, right, out_dtype)
    return g.reshape(product, [d for d in (*lead, rows, columns) if isinstance(d, int)])


def _flat_batch(x: Expr, lead: Sequence[Dim]) -> Expr:
    """`x` with one leading axis: 1 if all its own are 1, else all of `lead`."""
    shape = g.shape(x, "an operand of MatMul")
    own = math.prod(shape[:-2])
    if own == 1:
        return g.reshape(x, (1, *shape[-2:]))
    full = [d for d in lead if isinstance(d, int)]
    if own != math.prod(full):
        x = g.broadcast(g.reshape(x, (*(1,) * (len(full) + 2 - len(shape)), *shape)), (*full, *shape[-2:]))
    return g.reshape(x, (math.prod(full), *shape[-2:]))


def _batch_matmul(a: Expr, b: Expr, out_dtype: str) -> Expr:
    return g.op("nn.batch_matmul", a, b, out_dtype=out_dtype, transpose_a=False, transpose_b=False)
