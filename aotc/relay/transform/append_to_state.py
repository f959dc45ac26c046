# SPDX-License-Identifier: Apache-2.0
"""Lay out state that grows, such as the cache of a decoder, so that a run appends to it in place.

    present = concatenate((past, new), axis=2); scores = nn.batch_matmul(q, present)

Input: a module with the inputs and outputs that are states.  Output: a module in which the axis along
which a state grows is the outermost one of the input and of the output:

    rows = concatenate((past_rows, transpose(new))); scores = nn.batch_matmul(q, transpose(rows))

The new elements then lie behind the old ones, at any length, and what reads the state reads it with
strides.  The concatenation is a kernel of its own, for which `aotc.tir.plan.state_placement` only
writes the new elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from aotc.ir import AotcError, TensorType, option_text
from aotc.relay.expr import Call, Expr, Tuple, Var, const, tensor_type_of
from aotc.relay.graph_api import IRModule, infer_module, map_children, output_names_or_default, post_order
from aotc.relay.op.annotation import stop_fusion
from aotc.relay.op.concat_split import ConcatenateAttrs, concatenate
from aotc.relay.op.gather import take
from aotc.relay.op.shape import shape_of, transpose
from aotc.relay.op.type_rules import normalize_axis
from aotc.relay.state_pair import StatePair


def append_to_states(module: IRModule, pairs: Sequence[StatePair]) -> IRModule:
    """Return a module whose growing states are rows: the axis along which they grow is the outermost one.

    Raise AotcError (code "state") for a state whose output is not a concatenation of its input and of
    other tensors, in this order.
    """
    grown = [pair for pair in pairs if pair.growth is not None]
    for pair in grown:
        assert pair.growth is not None
        module = _append_to_state(module, pair, pair.growth.axis, grown[0].past)
    return module


def _append_to_state(module: IRModule, pair: StatePair, axis: int, first: str) -> IRModule:
    """Return a module in which the state `pair` consists of rows. Shapes of a state are those of the state `first`
    where both have the same rows, so that layers share what is computed of the length.
    """
    main = module.main
    outputs = list(main.body.fields) if isinstance(main.body, Tuple) else [main.body]
    position = list(output_names_or_default(module, len(outputs))).index(pair.present)
    past, present = next(p for p in main.params if p.name == pair.past), outputs[position]
    ty = tensor_type_of(past)
    to_rows = (axis, *(k for k in range(ty.rank) if k != axis))
    from_rows = tuple(to_rows.index(k) for k in range(ty.rank))
    past_rows = Var(past.name, TensorType((ty.shape[k] for k in to_rows), ty.dtype), past.span)
    new: dict[Expr, Expr] = {past: _transposed(past_rows, from_rows)}
    rows: Expr | None = None
    source = next(
        (p for p in main.params if p.name == first and p.checked_type == past_rows.type_annotation), past_rows
    )
    for node in post_order(main.body):
        if node is past:
            continue
        mapped = map_children(node, lambda child: new.get(child, child))
        if isinstance(node, Call) and node.op is shape_of and node.args[0] is past:
            # without the transposed elements
            mapped = take(Call(shape_of, [source], node.attrs), const(np.array(from_rows, np.int32)), axis=0)
        if node is present:
            added = _added_elements(node, past, axis, pair)
            added_rows = stop_fusion(_transposed(new.get(added, added), to_rows))
            rows = concatenate((past_rows, added_rows), axis=0)
            mapped = _transposed(stop_fusion(rows), from_rows)
        new[node] = mapped
    assert rows is not None
    results = [rows if k == position else new[result] for k, result in enumerate(outputs)]
    params = tuple(past_rows if p is past else p for p in main.params)
    body = results[0] if not isinstance(main.body, Tuple) else Tuple(results)
    return infer_module(module.with_function("main", replace(main, params=params, body=body, ret_type=None)))


def _transposed(tensor: Expr, axes: tuple[int, ...]) -> Expr:
    return tensor if axes == tuple(sorted(axes)) else transpose(tensor, axes)


def _added_elements(present: Expr, past: Var, axis: int, pair: StatePair) -> Expr:
    """Return what a concatenation appends to the old contents of a state."""
    if isinstance(present, Call) and present.op is concatenate and isinstance(present.args[0], Tuple):
        attrs, fields = present.attrs, present.args[0].fields
        assert isinstance(attrs, ConcatenateAttrs)
        is_along_axis = normalize_axis(attrs.axis, tensor_type_of(present).rank) == axis
        if is_along_axis and len(fields) > 1 and fields[0] is past:
            return fields[1] if len(fields) == 2 else concatenate(fields[1:], axis=axis)
    text = f"the state {pair.present!r} does not grow by elements that are appended to {pair.past!r}"
    hint = "its last operator must concatenate both; else pass it as an input and an output, without "
    raise AotcError("state", text, span=present.span, hint=hint + option_text("state", {pair.past: pair.present}))
