# SPDX-License-Identifier: Apache-2.0
"""ONNX converter of If.

An If whose condition is constant becomes its chosen branch, any other becomes an If of the graph IR.

    OPS["If"](condition, node=node)         # the outputs of one branch
"""

from collections.abc import Sequence

from onnx import GraphProto

from aotc.ir import require
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.onnx.node import OnnxNode, Table, table_by_function_name
from aotc.relay.graph_api import Constant, Expr, If, Tuple, TupleGetItem, type_of


def _if(condition: Expr, *, then_branch: GraphProto, else_branch: GraphProto, node: OnnxNode) -> Sequence[Expr]:
    if isinstance(condition, Constant):
        is_true = g.require_single_element(condition.data, "the condition of If")
        return node.subgraph(then_branch if is_true else else_branch, [])
    yes, no = (node.subgraph(branch, []) for branch in (then_branch, else_branch))
    require("onnx-if", len(yes) == len(no), f"the branches of If have {len(yes)} and {len(no)} outputs")
    types = [(type_of(a), type_of(b)) for a, b in zip(yes, no, strict=True)]
    differ = "; ".join(f"{a} and {b}" for a, b in types if a != b)
    require("onnx-if", not differ, f"the branches of If have outputs of different types: {differ}")
    dims = g.dims(condition)
    has_one_value = all(dim == 1 for dim in dims if isinstance(dim, int))
    text = f"the condition of If must be one value, it has shape ({', '.join(map(str, dims))})"
    require("onnx-if", has_one_value, text)
    scalar = g.reshape(condition, ())
    if len(yes) == 1:
        return [If(scalar, yes[0], no[0])]
    both = If(scalar, Tuple(yes), Tuple(no))
    return [TupleGetItem(both, k) for k in range(len(yes))]


OPS: Table = table_by_function_name(_if)
