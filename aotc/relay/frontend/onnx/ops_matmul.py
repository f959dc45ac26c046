# SPDX-License-Identifier: Apache-2.0
"""Converters of matrix products.

OPS["Gemm"](node)                       # nn.bias_add(nn.dense(a, b), c)
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from aotc.ir.diagnostics import AotcError
from aotc.ir.dims import Dim, is_static
from aotc.relay.expr import Expr
from aotc.relay.frontend.onnx.build import (
    add,
    broadcast_to,
    dims_of,
    dtype_of,
    emit,
    mul,
    rank_of,
    reshape,
    shape_of,
    transpose,
    unsqueeze,
)
from aotc.relay.frontend.onnx.einsum import einsum
from aotc.relay.frontend.onnx.node import Node, Table
from aotc.relay.frontend.onnx.ops_conv import centred
from aotc.relay.op.rules import broadcast_shape


def matmul(a: Expr, b: Expr, out_dtype: str = "") -> Expr:
    """numpy's matmul: vectors are promoted, leading axes broadcast."""
    if not rank_of(a) or not rank_of(b):
        raise AotcError("onnx-matmul", "a matrix product needs operands of rank 1 or more")
    if rank_of(b) == 1:
        product = matmul(a, unsqueeze(b, [1]), out_dtype)
        return emit("squeeze", product, axis=(rank_of(product) - 1,))
    if rank_of(a) == 1:
        product = matmul(unsqueeze(a, [0]), b, out_dtype)
        return emit("squeeze", product, axis=(rank_of(product) - 2,))
    if dims_of(a)[-1] != dims_of(b)[-2] and is_static((dims_of(a)[-1], dims_of(b)[-2])):
        raise AotcError("onnx-matmul", f"shapes {dims_of(a)} and {dims_of(b)} do not fit a matrix product")
    if rank_of(b) == 2:
        return emit("nn.matmul", a, b, units=None, out_dtype=out_dtype)
    return _batched(a, b, out_dtype)


def _batched(a: Expr, b: Expr, out_dtype: str) -> Expr:
    lead = broadcast_shape(dims_of(a)[:-2], dims_of(b)[:-2])
    if rank_of(a) == rank_of(b) == 3:
        return _batch_matmul(a, b, out_dtype)
    if not is_static(lead):
        shape_of(a, "an operand of MatMul")
        shape_of(b, "an operand of MatMul")
    left, right = _flat_batch(a, lead), _flat_batch(b, lead)
    rows, columns = dims_of(a)[-2], dims_of(b)[-1]
    product = _batch_matmul(left, right, out_dtype)
    return reshape(product, [d for d in (*lead, rows, columns) if isinstance(d, int)])


def _flat_batch(x: Expr, lead: Sequence[Dim]) -> Expr:
    """`x` with one leading axis: 1 if all its own are 1, else all of `lead`."""
    shape = shape_of(x, "an operand of MatMul")
    own = math.prod(shape[:-2])
    if own == 1:
        return reshape(x, (1, *shape[-2:]))
    full = [d for d in lead if isinstance(d, int)]
    if own != math.prod(full):
        x = broadcast_to(reshape(x, (*(1,) * (len(full) + 2 - len(shape)), *shape)), (*full, *shape[-2:]))
    return reshape(x, (math.prod(full), *shape[-2:]))


def _batch_matmul(a: Expr, b: Expr, out_dtype: str) -> Expr:
    return emit("nn.batch_matmul", a, b, out_dtype=out_dtype, transpose_a=False, transpose_b=False)


def _matmul(node: Node) -> Expr:
    return matmul(node.input(0), node.input(1))


def _matmul_integer(node: Node) -> Expr:
    a = centred(node.input(0), node.optional(2), rank_of(node.input(0)) - 2)
    b = centred(node.input(1), node.optional(3), rank_of(node.input(1)) - 1)
    return matmul(a, b)


def _gemm(node: Node) -> Expr:
    a, b, c = node.input(0), node.input(1), node.optional(2)
    if rank_of(a) != 2 or rank_of(b) != 2:
        raise AotcError("onnx-gemm", f"Gemm needs matrices, got shapes {dims_of(a)} and {dims_of(b)}")
    if node.integer("transA"):
        a = transpose(a, (1, 0))
    if node.integer("transB"):
        units = dims_of(b)[0]
        y = emit("nn.dense", a, b, units=units if isinstance(units, int) else None)
    else:
        y = emit("nn.matmul", a, b, units=None)
    y = _scaled(y, node.number("alpha", 1.0))
    beta = node.number("beta", 1.0)
    if c is None or beta == 0.0:
        return y
    c = _scaled(c, beta)
    if rank_of(c) == 1 and dims_of(c)[0] == dims_of(y)[1]:
        return emit("nn.bias_add", y, c, axis=1)
    return add(y, c)


def _scaled(x: Expr, factor: float) -> Expr:
    if factor == 1.0:
        return x
    return mul(x, factor if dtype_of(x).is_float else int(factor))


def _einsum(node: Node) -> Expr:
    return einsum(node.text("equation"), node.all_inputs())


OPS: Table = {"Einsum": _einsum, "Gemm": _gemm, "MatMul": _matmul, "MatMulInteger": _matmul_integer}
