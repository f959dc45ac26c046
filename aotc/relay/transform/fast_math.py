# SPDX-License-Identifier: Apache-2.0
"""FastMath: approximations instead of elementary functions.

nn.softmax(tanh(%x))
nn.fast_softmax(fast_tanh(%x))

In: typed functions.  Out: equal but for the errors that `aotc.relay.op.fast_math` states.
"""

from __future__ import annotations

from typing import Final

from aotc.ir import Op
from aotc.relay.expr import Call, call
from aotc.relay.op.fast_math import fast_erf, fast_exp, fast_tanh
from aotc.relay.op.softmax import fast_softmax
from aotc.relay.transform.base import Outcome, Rule, RulePass

_FAST: Final[dict[str, Op]] = {"exp": fast_exp, "tanh": fast_tanh, "erf": fast_erf, "nn.softmax": fast_softmax}


def _rewrite(node: Call) -> Outcome:
    assert isinstance(node.op, Op)
    return call(_FAST[node.op.name], node.args, node.attrs)


_RULE: Final = Rule("f(x) => fast_f(x)", tuple(_FAST), _rewrite)


class FastMath(RulePass):
    """exp, tanh, erf and nn.softmax become fast_exp, fast_tanh, fast_erf and nn.fast_softmax."""

    rules = (_RULE,)
    opt_level = 4
