# SPDX-License-Identifier: Apache-2.0
"""Converters of matrix products.

OPS["Gemm"](node)                       # nn.bias_add(nn.dense(a, b), c)
"""

from __future__ import annotations

from aotc.ir.diagnostics import AotcError
from aotc.relay.expr import Expr
from aotc.relay.frontend import graph as g
from aotc.relay.frontend.einsum import einsum
from aotc.relay.frontend.matmul import matmul
from aotc.relay.frontend.onnx.node import Node, Table


def _gemm(node: Node) -> Expr:
    a, b, c = node[0], node[1], node.optional(2)
    if g.rank(a) != 2 or g.rank(b) != 2:
        raise AotcError("onnx-gemm", f"Gemm needs matrices, got shapes {g.dims(a)} and {g.dims(b)}")
    if node.integer("transA"):
        a = g.transpose(a, (1, 0))
    if node.integer("transB"):
        units = g.dims(b)[0]
        y = g.op("nn.dense", a, b, units=units if isinstance(units, int) else None)
    else:
        y = g.op("nn.matmul", a, b, units=None)
    y = g.scaled(y, node.number("alpha", 1.0))
    beta = node.number("beta", 1.0)
    if c is None or beta == 0.0:
        return y
    c = g.scaled(c, beta)
    if g.rank(c) == 1 and g.dims(c)[0] == g.dims(y)[1]:
        return g.op("nn.bias_add", y, c, axis=1)
    return g.add(y, c)


OPS: Table = {
    "Einsum": lambda node: einsum(node.text("equation"), node.all_inputs()),
    "Gemm": _gemm,
    "MatMul": lambda node: matmul(node[0], node[1]),
}
