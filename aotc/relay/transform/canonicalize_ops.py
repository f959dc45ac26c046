# SPDX-License-Identifier: Apache-2.0
"""CanonicalizeOps: say with general operators what special ones say.

nn.bias_add(%x, %b, axis=1)
add(%x, expand_dims(%b, axis=1, num_newaxis=2))
"""

from __future__ import annotations

from typing import Final

from aotc.relay.expr import Call, Expr, tensor_type_of
from aotc.relay.op.binary import add
from aotc.relay.op.dense import BiasAddAttrs
from aotc.relay.transform.base import Rule, RulePass
from aotc.relay.transform.simplify_inference import along_axis


def _bias_add(node: Call) -> Expr:
    data, bias = node.args
    assert isinstance(node.attrs, BiasAddAttrs)
    rank = tensor_type_of(data).rank
    return add(data, along_axis(bias, node.attrs.axis % rank, rank))


RULES: Final = (Rule("bias_add(x, b) => x + expand_dims(b)", ("nn.bias_add",), _bias_add),)


class CanonicalizeOps(RulePass):
    """bias_add becomes an addition."""

    rules = RULES
    opt_level = 3
