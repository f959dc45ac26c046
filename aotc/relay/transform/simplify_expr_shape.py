# SPDX-License-Identifier: Apache-2.0
"""Rules of SimplifyExpr about where elements lie: reshapes, transposes, slices, joins and pads that do nothing,
or that are one.

    Rewriter(RULES).rewrite(function)             # reshape(reshape(%x)) => reshape(%x)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from aotc.ir import NoAttrs, OpPattern, TensorType
from aotc.relay.expr import Call, Expr, Tuple, tensor_type_of
from aotc.relay.op import REGISTRY
from aotc.relay.op.layout import LayoutTransformAttrs
from aotc.relay.op.pad import MirrorPadAttrs, PadAttrs
from aotc.relay.op.shape import TransposeAttrs, permutation, reshape, transpose
from aotc.relay.op.slice import StridedSliceAttrs
from aotc.relay.transform.base import Outcome, Rule, WhyNot, op_call, recall

VIEWS: Final = tuple(sorted(name for name, op in REGISTRY.items() if op.view))
"""Operators whose result is the argument's elements in the same order."""
_BROADCASTS: Final = tuple(
    sorted(
        n for n, op in REGISTRY.items() if op.pattern is OpPattern.BROADCAST and op.arity > 1 and op.attrs is NoAttrs
    )
)
"""Operators that broadcast their operands against each other, as numpy does."""
_DYNAMIC: Final = WhyNot("the shape is not static")


def _unchanged(node: Call) -> Outcome:
    """The argument, where the type says that the operator can do nothing to it."""
    source = node.args[0]
    if source.checked_type != node.checked_type:
        return None
    return source if tensor_type_of(node).is_static else _DYNAMIC


def as_reshape(x: Expr, ty: TensorType) -> Expr:
    """`x` in the shape of `ty` (static, of as many elements)."""
    return x if x.checked_type == ty else reshape(x, ty.static_shape, allowzero=0 in ty.shape)


def _view_of_view(node: Call) -> Outcome:
    inner = op_call(node.args[0], *VIEWS)
    if inner is None:
        return None
    ty = tensor_type_of(node)
    return as_reshape(inner.args[0], ty) if ty.is_static else _DYNAMIC


def _axes(node: Call) -> tuple[int, ...]:
    assert isinstance(node.attrs, TransposeAttrs)
    return permutation(node.attrs, tensor_type_of(node).rank)


def _transpose(node: Call) -> Outcome:
    axes, source = _axes(node), node.args[0]
    if axes == tuple(range(len(axes))):
        return source
    inner = op_call(source, "transpose")
    if inner is not None:
        before = _axes(inner)
        return transpose(inner.args[0], tuple(before[k] for k in axes))
    shape = tensor_type_of(source).shape
    moved = [k for k in axes if shape[k] != 1]
    if moved != sorted(moved):
        return None
    return as_reshape(source, tensor_type_of(node)) if tensor_type_of(node).is_static else _DYNAMIC


def _slice(node: Call) -> Outcome:
    assert isinstance(node.attrs, StridedSliceAttrs)
    return _unchanged(node) if all(s == 1 for s in node.attrs.strides) else None


def _pad(node: Call) -> Outcome:
    assert isinstance(node.attrs, (PadAttrs, MirrorPadAttrs))
    return node.args[0] if all(pair == (0, 0) for pair in node.attrs.pad_width) else None


def _concatenate(node: Call) -> Outcome:
    fields = node.args[0]
    if not isinstance(fields, Tuple):
        return None
    if len(fields.fields) == 1:
        return fields.fields[0]
    # a part without elements adds nothing
    parts = [f for f in fields.fields if 0 not in tensor_type_of(f).shape]
    if len(parts) == len(fields.fields) or not parts:
        return None
    return recall(node, [Tuple(parts)])


def _split(node: Call) -> Outcome:
    source = node.args[0]
    ty = node.checked_type
    alone = ty is not None and getattr(ty, "fields", None) == (source.checked_type,)
    return Tuple((source,)) if alone else None


def _broadcast_operands(node: Call) -> Outcome:
    """Operands that are broadcast beforehand, where the operator broadcasts them itself."""
    args: list[Expr] = list(node.args)
    for k, arg in enumerate(args):
        inner = op_call(arg, "broadcast_to")
        if inner is not None:
            trial = [*args[:k], inner.args[0], *args[k + 1 :]]
            args = trial if _result_shape(trial) == tensor_type_of(node).shape else args
    return None if all(a is b for a, b in zip(args, node.args, strict=True)) else recall(node, args)


def _result_shape(args: Sequence[Expr]) -> Any:
    """The broadcast of static shapes; None for others."""
    types = [tensor_type_of(a) for a in args]
    if not all(t.is_static for t in types):
        return None
    rank = max(t.rank for t in types)
    padded = [(1,) * (rank - t.rank) + t.static_shape for t in types]
    return tuple(next((d for d in column if d != 1), 1) for column in zip(*padded, strict=True))


def _layout_transform(node: Call) -> Outcome:
    outer = node.attrs
    assert isinstance(outer, LayoutTransformAttrs)
    source = node.args[0]
    if outer.src_layout == outer.dst_layout:
        return source
    inner = op_call(source, "layout_transform")
    if inner is None:
        return None
    first = inner.attrs
    assert isinstance(first, LayoutTransformAttrs)
    back = first.dst_layout == outer.src_layout and first.src_layout == outer.dst_layout
    if not back:
        return None
    return inner.args[0] if inner.args[0].checked_type == node.checked_type else WhyNot("padding is cut off")


RULES: Final = (
    Rule("view(x) => x", (*VIEWS, "broadcast_to", "tile", "repeat"), _unchanged),
    Rule("view(view(x)) => reshape(x)", VIEWS, _view_of_view),
    Rule("transpose(x) => x, reshape(x) or one transpose", ("transpose",), _transpose),
    Rule("x[:] => x", ("strided_slice",), _slice),
    Rule("pad(x, 0) => x", ("nn.pad", "nn.mirror_pad"), _pad),
    Rule("concatenate((x,)) => x", ("concatenate",), _concatenate),
    Rule("split(x, 1) => (x,)", ("split",), _split),
    Rule("broadcast_to(x) op y => x op y", _BROADCASTS, _broadcast_operands),
    Rule("layout_transform(layout_transform(x)) => x", ("layout_transform",), _layout_transform),
)
