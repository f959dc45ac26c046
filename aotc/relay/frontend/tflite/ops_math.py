# SPDX-License-Identifier: Apache-2.0
"""Converters of arithmetic on elements.

OPS["ADD"](node=node)                   # with the activation that is fused into it
"""

from __future__ import annotations

from functools import partial

from aotc.relay.expr import Expr
from aotc.relay.frontend import graph as g
from aotc.relay.frontend.tflite.node import Node, Table


def _sum(sign: int, a: Expr, b: Expr, *, node: Node) -> Expr:
    if not node.in_integers:
        return node.activated(g.add(a, b) if sign > 0 else g.sub(a, b))
    x, y = node.whole(0), node.whole(1)
    return node.activated(node.rounding.add(x, y, node.onto(), sign))


OPS: Table = {"ADD": partial(_sum, 1), "SUB": partial(_sum, -1)}
