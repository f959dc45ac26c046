# SPDX-License-Identifier: Apache-2.0
"""Relay's table of operators, and functions of the user's own that passes ask before they rewrite calls.

get("nn.conv2d").get_attr("FTVMLegalize")

@register_legalize("nn.dense")
def legalize(attrs, inputs, types):                  # an expression in place of the call, None to leave it
    return relay.nn.dense(...)

The pass Legalize calls (attributes, arguments, types of arguments and result); AlterOpLayout, where the pipeline
runs it or the user does, (attributes, arguments, types of arguments, type of the result).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aotc.ir.op import OpPattern as OpPattern
from aotc.ir.op import get_op as get
from aotc.ir.op import installed_ops, register_op_attr
from aotc.relay.expr import const as const
from aotc.relay.op.custom import register as register
from aotc.relay.op.custom import register_pattern as register_pattern
from aotc.relay.op.custom import register_stateful as register_stateful

__all__ = [
    "OpPattern",
    "const",
    "get",
    "list_op_names",
    "register",
    "register_alter_op_layout",
    "register_legalize",
    "register_pattern",
    "register_stateful",
]
LEGALIZE, ALTER_OP_LAYOUT = "FTVMLegalize", "FTVMAlterOpLayout"
Rewrite = Callable[..., Any]


def list_op_names() -> list[str]:
    """The names of all operators."""
    return sorted(installed_ops())


def register_legalize(op_name: str, legal_op: Rewrite | None = None, level: int = 10) -> Any:
    """Have the pass Legalize ask a function about calls of an operator; a decorator without one."""
    return register_op_attr(op_name, LEGALIZE, legal_op, level)


def register_alter_op_layout(op_name: str, alter_layout: Rewrite | None = None, level: int = 10) -> Any:
    """Have the pass AlterOpLayout ask a function about calls of an operator; a decorator without one."""
    return register_op_attr(op_name, ALTER_OP_LAYOUT, alter_layout, level)
