# SPDX-License-Identifier: Apache-2.0
"""Check the numbers of attention heads that attributes of ONNX operators state against the shapes
of their inputs.

Input: an operator, its inputs and its attributes. Output: nothing, or one AotcError that names both
contradictory numbers. The check runs before the operator is expanded into its function body.

    check_head_counts("Attention", [query, key, value], {"q_num_heads": 3, "kv_num_heads": 3})
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from aotc.ir import require
from aotc.relay.expr import Expr
from aotc.relay.frontend import op_calls as g

#: For each operator, the attributes that state a number of heads, and the positions of the inputs
#: that have this number of heads.
_HEAD_COUNT_ATTRIBUTES: Final[Mapping[str, Mapping[str, tuple[int, ...]]]] = {
    "Attention": {"q_num_heads": (0,), "kv_num_heads": (1, 2)},
    "RotaryEmbedding": {"num_heads": (0,)},
}


def check_head_counts(operator: str, inputs: Sequence[Expr | None], attributes: Mapping[str, Any]) -> None:
    """Raise AotcError (code "onnx-attribute") if a number of heads contradicts the shape of an
    input, or if the query heads are not a multiple of the key and value heads.

    Inputs of rank 4 are (batch, heads, length, size) and need no attribute. Inputs of rank 3 are
    (batch, length, heads * size) and need one; an attribute of 0 counts as missing.
    """
    head_counts: dict[str, int] = {}
    for name, positions in _HEAD_COUNT_ATTRIBUTES.get(operator, {}).items():
        stated = attributes.get(name) or 0
        for x in (inputs[k] for k in positions if k < len(inputs)):
            if x is not None:
                head_counts[name] = _require_head_count(operator, x, name, stated)
    query, other = head_counts.get("q_num_heads", 1), head_counts.get("kv_num_heads", 1)
    text = f"{query} heads of the query cannot be divided evenly among {other} heads of key and value"
    require("onnx-attribute", query % other == 0, text)


def _require_head_count(operator: str, x: Expr, attribute_name: str, stated_count: int) -> int:
    shape = g.dims(x)
    if len(shape) == 4:
        count = g.dim(x, 1)
        text = f"{attribute_name} is {stated_count}, an input of shape {shape} has {count} heads"
        require(
            "onnx-attribute", stated_count in (0, count), text, hint=f"leave {attribute_name} out, or make them equal"
        )
        return max(1, count)
    text = f"{operator} with an input of shape {shape} needs {attribute_name}, the number of heads, of at least 1"
    require("onnx-attribute", stated_count > 0, f"{text}; it is {stated_count}")
    width = g.dim(x, -1)
    text = f"{attribute_name} is {stated_count}, which does not divide the {width} elements of the last axis of {shape}"
    require("onnx-attribute", width % stated_count == 0, text)
    return stated_count
