# SPDX-License-Identifier: Apache-2.0
"""ONNX converters of If and of sequence operators.

An If whose condition is constant becomes its chosen branch, any other becomes an If of the graph
IR. A sequence is a tuple of tensors, and positions in it must be known at compile time.

    OPS["If"](condition, node=node)         # the outputs of one branch
"""

from collections.abc import Sequence

from onnx import GraphProto

from aotc.ir import require
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.converter_signatures import Axis
from aotc.relay.frontend.onnx.node import KnownArray, KnownInt, OnnxNode, Table, TensorList, table_by_function_name
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


# --- sequences


def _normalize_sequence_index(index: int, count: int, valid_positions_past_end: int = 0) -> int:
    """Convert a possibly negative position in a sequence of `count` elements to one counted from 0.
    `valid_positions_past_end` is 1 where the position after the last element is valid too. Raises
    AotcError (code "onnx-sequence") if it is out of range.
    """
    fits = -count <= index < count + valid_positions_past_end
    require("onnx-sequence", fits, f"index {index} is out of range for a sequence of {count} elements")
    return index + count if index < 0 else index


def _sequence_at(items: TensorList, position: KnownInt) -> Expr:
    return items[_normalize_sequence_index(position, len(items))]


def _sequence_insert(items: TensorList, item: Expr, position: KnownInt | None = None) -> Expr:
    items.insert(
        len(items) if position is None else _normalize_sequence_index(position, len(items), valid_positions_past_end=1),
        item,
    )
    return Tuple(items)


def _sequence_erase(items: TensorList, position: KnownInt = -1) -> Expr:
    del items[_normalize_sequence_index(position, len(items))]
    return Tuple(items)


def _sequence_length(items: TensorList) -> Expr:
    return g.constant(len(items), "int64")


def _concat_from_sequence(items: TensorList, *, axis: int, new_axis: int = 0) -> Expr:
    require("onnx-sequence", bool(items), "an empty sequence cannot be concatenated")
    if new_axis:
        return g.stack(items, g.normalize_axis(axis, g.rank(items[0]) + 1))
    return g.concat(items, g.normalize_axis(axis, g.rank(items[0])))


def _split_to_sequence(x: Expr, split: KnownArray | None = None, *, axis: Axis = 0, keepdims: int = 1) -> Expr:
    size = g.dim(x, axis)
    if split is None or split.ndim == 0:
        sizes = g.equal_part_sizes(size, 1 if split is None else int(split))
    else:
        g.check_unroll_count(split.size, "a split")
        sizes = [int(v) for v in split.reshape(-1)]
    require("onnx-split", sum(sizes) == size, f"parts {sizes[:16]} do not add up to {size} elements")
    parts = g.split(x, sizes, axis)
    return Tuple([g.squeeze(p, [axis]) for p in parts] if split is None and keepdims != 1 else parts)


OPS: Table = {
    **table_by_function_name(_concat_from_sequence, _if, _sequence_at, _sequence_erase, _sequence_insert),
    **table_by_function_name(_sequence_length, _split_to_sequence),
    "OptionalGetElement": lambda x: x,
    "OptionalHasElement": lambda x=None: g.constant(x is not None),
    "SequenceConstruct": lambda *items: Tuple(items),
    "SequenceEmpty": lambda: Tuple(()),
}
