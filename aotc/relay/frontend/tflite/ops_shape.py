# SPDX-License-Identifier: Apache-2.0
"""Converters of what moves elements without computing.

OPS["RESHAPE"](x, [1, -1], node=node)   # g.reshape(x, (1, -1))
"""

from __future__ import annotations

from typing import Any

from aotc.ir import require
from aotc.relay.expr import Expr
from aotc.relay.frontend import graph as g
from aotc.relay.frontend.tflite.node import Ints, Node, Table


def _reshape(x: Expr, shape: Ints | None = None, *, new_shape: Any = None, node: Node) -> Expr:
    target = new_shape if shape is None else shape
    require("tflite-input", target is not None, "RESHAPE has no shape")
    return g.reshape(x, target)


OPS: Table = {"RESHAPE": _reshape}
