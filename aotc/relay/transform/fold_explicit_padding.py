# SPDX-License-Identifier: Apache-2.0
"""FoldExplicitPadding: give padding to the operator that can do it itself.

nn.conv2d(nn.pad(%x, 0f, pad_width=[[0, 0], [0, 0], [1, 1], [1, 1]]), %w, padding=[0, 0, 0, 0])
nn.conv2d(%x, %w, padding=[1, 1, 1, 1])

Convolutions and averages take zeros, maxima the least value of their type; only spatial axes are padded.  Weights that
are not constant count as finite: padding adds nothing to a sum, where zeros times an infinite weight would add NaN.
"""

from __future__ import annotations

from typing import Any, Final

from aotc.relay.expr import Call, Constant, Expr, tensor_type_of
from aotc.relay.op.pad import PadAttrs
from aotc.relay.op.window import DATA_LAYOUT, pad_pairs
from aotc.relay.transform.base import Outcome, Rule, RulePass, WhyNot, is_finite, op_call, recall, uniform_value

_CONVS: Final = ("nn.conv1d", "nn.conv2d", "nn.conv3d")
_AVERAGES: Final = ("nn.avg_pool1d", "nn.avg_pool2d", "nn.avg_pool3d")
_MAXIMA: Final = ("nn.max_pool1d", "nn.max_pool2d", "nn.max_pool3d")


def _merged(pad: PadAttrs, layout: str, padding: tuple[int, ...]) -> tuple[int, ...] | None:
    """`padding` and that of nn.pad together, as befores then afters; None where that pads other axes, or crops."""
    n = len(layout) - 2
    if pad.pad_mode != "constant" or sorted(layout) != sorted(DATA_LAYOUT[n]):
        return None
    outside = [pad.pad_width[layout.index(letter)] for letter in "NC"]
    inside = [pad.pad_width[layout.index(letter)] for letter in DATA_LAYOUT[n][2:]]
    if any(pair != (0, 0) for pair in outside) or any(w < 0 for pair in inside for w in pair):
        return None
    own = pad_pairs(padding, n)
    befores = [b + o for (b, _), (o, _) in zip(inside, own, strict=True)]
    afters = [a + o for (_, a), (_, o) in zip(inside, own, strict=True)]
    return (*befores, *afters)


def _parts(node: Call, layout: str, padding: tuple[int, ...]) -> tuple[Call, Any, tuple[int, ...]] | WhyNot | None:
    """(the nn.pad, its value, the padding of both) of an operator on padded data."""
    pad = op_call(node.args[0], "nn.pad")
    if pad is None:
        return None
    assert isinstance(pad.attrs, PadAttrs)
    together = _merged(pad.attrs, layout, padding)
    if together is None:
        return WhyNot("more than spatial axes are padded, or not with a constant")
    value = uniform_value(pad.args[1])
    return (pad, float(value), together) if value is not None else WhyNot("the pad value is not constant")


def _conv(node: Call) -> Outcome:
    attributes: Any = node.attrs
    parts = _parts(node, attributes.data_layout, attributes.padding)
    if parts is None or isinstance(parts, WhyNot):
        return parts
    pad, value, padding = parts
    if value != 0:
        return WhyNot("the pad value is not zero")
    if isinstance(node.args[1], Constant) and not is_finite(node.args[1]):
        return WhyNot("zeros times the infinite among the weights are NaN, which padding is not")
    return recall(node, (pad.args[0], *node.args[1:]), padding=padding)


def _average(node: Call) -> Outcome:
    attributes: Any = node.attrs
    parts = _parts(node, attributes.layout, attributes.padding)
    if parts is None or isinstance(parts, WhyNot):
        return parts
    pad, value, padding = parts
    if value != 0:
        return WhyNot("the pad value is not zero")
    if attributes.ceil_mode or (any(attributes.padding) and not attributes.count_include_pad):
        return WhyNot("some padding is counted and some is not")
    return recall(node, (pad.args[0],), padding=padding, count_include_pad=True)


def _maximum(node: Call) -> Outcome:
    attributes: Any = node.attrs
    parts = _parts(node, attributes.layout, attributes.padding)
    if parts is None or isinstance(parts, WhyNot):
        return parts
    pad, value, padding = parts
    dtype = tensor_type_of(node).dtype
    if value != (float("-inf") if dtype.is_float else dtype.min):
        return WhyNot("the pad value is not the least")
    windows = zip(padding, (*attributes.pool_size, *attributes.pool_size), strict=True)
    if attributes.ceil_mode or any(p >= k for p, k in windows):
        return WhyNot("a window may lie in the padding")
    return recall(node, (pad.args[0],), padding=padding)


def _pad_of_pad(node: Call) -> Expr | WhyNot | None:
    inner = op_call(node.args[0], "nn.pad")
    if inner is None:
        return None
    outer, first = node.attrs, inner.attrs
    assert isinstance(outer, PadAttrs)
    assert isinstance(first, PadAttrs)
    one, other = uniform_value(node.args[1]), uniform_value(inner.args[1])
    if outer.pad_mode != "constant" or first.pad_mode != "constant" or one is None or one != other:
        return WhyNot("the two pads fill in different values")
    widths = tuple((a + c, b + d) for (a, b), (c, d) in zip(outer.pad_width, first.pad_width, strict=True))
    if any(w < 0 for attributes in (outer, first) for pair in attributes.pad_width for w in pair):
        return WhyNot("a pad crops")
    return recall(node, inner.args, pad_width=widths)


RULES: Final = (
    Rule("pad(pad(x)) => pad(x)", ("nn.pad",), _pad_of_pad),
    Rule("conv(pad(x), w) => conv(x, w)", _CONVS, _conv),
    Rule("avg_pool(pad(x)) => avg_pool(x)", _AVERAGES, _average),
    Rule("max_pool(pad(x)) => max_pool(x)", _MAXIMA, _maximum),
)


class FoldExplicitPadding(RulePass):
    """nn.pad goes into the convolutions and pools that use it."""

    rules = RULES
