# SPDX-License-Identifier: Apache-2.0
"""Build matrix products from nn.matmul and nn.batch_matmul, and expand einsum equations into
operator calls.

matmul(a, b)                            # (2, 1, 3, 4) and (5, 4, 6): (2, 5, 3, 6)
einsum("bij,bjk->bik", [a, b])          # nn.batch_matmul(a, b)
"""

import math
from collections.abc import Callable, Sequence
from typing import Final

from aotc.ir import AotcError, Dim, frozen, is_static, same_dim
from aotc.relay.expr import Expr
from aotc.relay.frontend import op_calls as g
from aotc.relay.op.einsum import expand_einsum
from aotc.relay.op.type_rules import broadcast_two_shapes


@frozen
class ProductBuilders:
    """The two functions from which `matmul` builds every product: `matrix` multiplies a tensor of
    any rank by a matrix, `batched` multiplies two stacks of matrices (rank 3).
    """

    matrix: Callable[[Expr, Expr], Expr]
    batched: Callable[[Expr, Expr], Expr]


def matmul(a: Expr, b: Expr, builders: ProductBuilders | None = None) -> Expr:
    """Build a matrix product with the rules of numpy.matmul: vectors are promoted to matrices,
    leading axes broadcast. `builders` replaces nn.matmul and nn.batch_matmul by other products, for
    example quantized ones.

    Raises AotcError (code "graph-matmul") for operands of rank 0 and for shapes that are not
    compatible.
    """
    builders = builders or _FLOAT_PRODUCTS
    if not g.rank(a) or not g.rank(b):
        raise AotcError("graph-matmul", "a matrix product needs operands of rank 1 or more")
    if g.rank(b) == 1:
        product = matmul(a, g.unsqueeze(b, [1]), builders)
        return g.call_op("squeeze", product, axis=(g.rank(product) - 1,))
    if g.rank(a) == 1:
        product = matmul(g.unsqueeze(a, [0]), b, builders)
        return g.call_op("squeeze", product, axis=(g.rank(product) - 2,))
    if g.dims(a)[-1] != g.dims(b)[-2] and is_static((g.dims(a)[-1], g.dims(b)[-2])):
        raise AotcError("graph-matmul", f"shapes {g.dims(a)} and {g.dims(b)} are not compatible for a matrix product")
    if g.rank(b) == 2:
        return builders.matrix(a, b)
    return _matmul_with_broadcast_batches(a, b, builders.batched)


def _matmul_with_broadcast_batches(a: Expr, b: Expr, batch_matmul: Callable[[Expr, Expr], Expr]) -> Expr:
    lead = broadcast_two_shapes(g.dims(a)[:-2], g.dims(b)[:-2])
    if g.rank(a) == g.rank(b) == 3:
        return batch_matmul(a, b)
    if (split := _split_of_two_equal_batch_axes(g.dims(a), g.dims(b))) is not None:
        product = batch_matmul(*(g.call_op("reshape", x, newshape=(-3, -2)) for x in (a, b)))
        return g.call_op("reshape", product, newshape=(-4, *split, -2))
    if not is_static(lead):
        g.shape(a, "an operand of MatMul")
        g.shape(b, "an operand of MatMul")
    left, right = _broadcast_and_flatten_batch_axes(a, lead), _broadcast_and_flatten_batch_axes(b, lead)
    rows, columns = g.dims(a)[-2], g.dims(b)[-1]
    product = batch_matmul(left, right)
    return g.reshape(product, [d for d in (*lead, rows, columns) if isinstance(d, int)])


def _split_of_two_equal_batch_axes(a: Sequence[Dim], b: Sequence[Dim]) -> tuple[int, int] | None:
    """Return how a reshape splits the product of the first two axes into these, for operands of rank 4
    of which both have these axes, and of which not all dimensions are static; None for others.
    """
    if not len(a) == len(b) == 4 or is_static((*a, *b)) or not all(map(same_dim, a[:2], b[:2])):
        return None
    match a[:2]:
        case int() as outer, inner:
            return outer, inner if isinstance(inner, int) else -1
        case _, int() as inner:
            return -1, inner
    return None


def _broadcast_and_flatten_batch_axes(x: Expr, batch_shape: Sequence[Dim]) -> Expr:
    """Reshape a stack of matrices to rank 3 for nn.batch_matmul: all leading axes become one axis
    of extent 1 if they all have extent 1, otherwise they are broadcast to the shape `batch_shape`
    and flattened.
    """
    shape = g.shape(x, "an operand of MatMul")
    batch_size = math.prod(shape[:-2])
    if batch_size == 1:
        return g.reshape(x, (1, *shape[-2:]))
    full = [d for d in batch_shape if isinstance(d, int)]
    if batch_size != math.prod(full):
        x = g.broadcast_to(g.reshape(x, (*(1,) * (len(full) + 2 - len(shape)), *shape)), (*full, *shape[-2:]))
    return g.reshape(x, (math.prod(full), *shape[-2:]))


def product_builders(sum_dtype: str = "") -> ProductBuilders:
    """Return the products by nn.matmul and nn.batch_matmul, whose sums have the type `sum_dtype`; "" for that of the
    operands.
    """

    def batch_matmul(a: Expr, b: Expr) -> Expr:
        return g.call_op("nn.batch_matmul", a, b, transpose_a=False, transpose_b=False, out_dtype=sum_dtype)

    def matrix_product(a: Expr, b: Expr) -> Expr:
        return g.call_op("nn.matmul", a, b, units=None, out_dtype=sum_dtype)

    return ProductBuilders(matrix_product, batch_matmul)


_FLOAT_PRODUCTS: Final = product_builders()


def einsum(equation: str, operands: Sequence[Expr]) -> Expr:
    """Return the sum of products that the einsum `equation` describes as operator calls; see
    `aotc.relay.op.einsum`.

    Raises AotcError (code "graph-einsum") if the equation does not fit the operands.
    """
    for x in operands:
        g.shape(x)
    try:
        return expand_einsum(equation, operands)
    except AotcError as error:
        if error.code != "einsum":
            raise
        raise AotcError("graph-einsum", error.diagnostics[0].message) from error
