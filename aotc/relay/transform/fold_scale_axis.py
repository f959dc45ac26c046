# SPDX-License-Identifier: Apache-2.0
"""FoldScaleAxis: move multiplications by one constant per channel into the weights of convolutions and dense.

multiply(nn.conv2d(%x, w), s)                    # backward: after the convolution, its output channels
nn.conv2d(%x, multiply(w, s'))

nn.conv2d(nn.relu(multiply(%x, s)), w)           # forward: before it, its input channels; s > 0 passes nn.relu
nn.conv2d(nn.relu(%x), multiply(w, s'))

Both pass nn.relu and nn.leaky_relu (all factors positive), and sums and products with constants; backward also
nn.bias_add, and sums of which both sides end in weights.  The products of constants are left to FoldConstant.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import islice
from typing import Any, Final

import numpy as np

from aotc.ir import Op, Sequential, Span, TensorType, frozen, merge_spans, span_scope
from aotc.relay.analysis import users
from aotc.relay.expr import Call, Constant, Expr, Function, tensor_type_of
from aotc.relay.module import IRModule
from aotc.relay.op.binary import divide, multiply
from aotc.relay.op.conv import ConvAttrs, conv1d, conv2d, conv3d
from aotc.relay.op.dense import DenseAttrs, dense
from aotc.relay.transform.base import FunctionPass, GraphMutator, is_call, op_call, recall
from aotc.relay.transform.fold_constant import FoldConstant
from aotc.relay.visitor import post_order

_ANCHORS: Final = (conv1d, conv2d, conv3d, dense)
_POSITIVE: Final = ("nn.relu", "nn.leaky_relu")
_SUMS: Final = ("add", "subtract")
#: How many operators may lie between a multiplication and the weights.
_REACH: Final = 32


@frozen
class Scale:
    """Factors along one axis of a tensor; `axis` None: the same factor everywhere (`values` has one element)."""

    values: np.ndarray[Any, Any]
    axis: int | None

    @property
    def positive(self) -> bool:
        return bool((self.values > 0).all())

    def along(self, axis: int) -> Scale:
        """The factors along another axis, if they are along one."""
        return self if self.axis is None else Scale(self.values, axis)

    def constant(self, rank: int) -> Constant:
        """The factors shaped to broadcast along their axis of a tensor of `rank`."""
        if self.axis is None:
            return Constant(self.values.reshape(()))
        return Constant(self.values.reshape((-1,) + (1,) * (rank - self.axis - 1)))


def scaled_operand(expr: Expr) -> tuple[Expr, Scale] | None:
    """(x, s) where `expr` is multiply(x, s), or multiply(s, x), s being a Scale of x that does not enlarge it."""
    node = op_call(expr, "multiply")
    found = None if node is None else _product(node)
    scale = None if found is None else _scale_of(found[1], tensor_type_of(found[0]))
    return None if found is None or scale is None else (found[0], scale)


def _product(node: Call) -> tuple[Expr, Constant] | None:
    """(x, c) where `node` is x times any constant c that does not enlarge it."""
    for data, factor in (node.args, node.args[::-1]):
        if isinstance(factor, Constant) and not isinstance(data, Constant) and data.checked_type == node.checked_type:
            return data, factor
    return None


def _scale_of(factor: Constant, ty: TensorType) -> Scale | None:
    array = factor.data
    if not ty.dtype.is_float or array.ndim > ty.rank or not np.isfinite(array.astype(np.float64)).all():
        return None
    wide = [k for k, extent in enumerate(array.shape) if extent != 1]
    if not wide:
        return Scale(array.reshape(1), None)
    axis = ty.rank - array.ndim + wide[0]
    return Scale(array.reshape(-1), axis) if len(wide) == 1 and ty.shape[axis] == array.size else None


# --- weights


def _foldable(expr: Expr) -> bool:
    """Whether `expr` is a constant, or made of constants in a few steps (an earlier fold's product)."""
    nodes = list(islice(post_order(expr), _REACH))
    return nodes[-1] is expr and all(isinstance(n, (Constant, Call, Op)) for n in nodes)


@frozen
class _Channels:
    """The axes of channels: of the data, of the result, and those of the result in the weights."""

    data: int
    result: int
    weight: int


def _channels(node: Call) -> _Channels | None:
    """The channel axes of a convolution or dense with constant float weights in unpacked layouts; None for others."""
    a: Any = node.attrs
    if not isinstance(a, ConvAttrs | DenseAttrs) or not _foldable(node.args[1]):
        return None
    dtype = tensor_type_of(node.args[1]).dtype
    if not dtype.is_float or tensor_type_of(node).dtype != dtype:
        return None
    if isinstance(a, DenseAttrs):
        return _Channels(tensor_type_of(node.args[0]).rank - 1, tensor_type_of(node).rank - 1, 0)
    out = a.out_layout or a.data_layout
    if not (a.kernel_layout + a.data_layout + out).isupper():
        return None
    return _Channels(a.data_layout.index("C"), out.index("C"), a.kernel_layout.index("O"))


def scale_outputs(node: Call, scale: Scale) -> Call | None:
    """A convolution or dense with its output channels scaled; None where that is not the scale's axis."""
    channels = _channels(node)
    if channels is None or scale.axis not in (None, channels.result):
        return None
    data, weight = node.args
    return recall(node, (data, multiply(weight, scale.along(channels.weight).constant(tensor_type_of(weight).rank))))


def input_factor(node: Call, scale: Scale) -> Constant:
    """What to multiply the weights with, so that the data need not be scaled."""
    attributes, weight = node.attrs, node.args[1]
    if scale.axis is None or not isinstance(attributes, ConvAttrs):
        return Constant(scale.values.reshape(() if scale.axis is None else (1, -1)))
    shape = tensor_type_of(weight).static_shape
    layout = attributes.kernel_layout
    out, inner = layout.index("O"), layout.index("I")
    # output channel o of group g sees the data's channels g * inner ... of its group only
    table = np.repeat(scale.values.reshape(attributes.groups, shape[inner]), shape[out] // attributes.groups, axis=0)
    if out > inner:
        table = table.T
    return Constant(table.reshape([d if k in (out, inner) else 1 for k, d in enumerate(shape)]))


# --- backward


class _Backward(GraphMutator):
    """Pull multiplications up into the weights that their operands come from."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.uses = users(function)
        self.counts: dict[Expr, int] = {}
        self.origin: Span | None = None

    def rewrite(self, old: Expr, new: Expr) -> Expr:
        result = super().rewrite(old, new)
        self.counts[result] = len(self.uses.get(old, ()))
        return result

    def rewrite_call(self, old: Call, new: Call) -> Expr:
        found = scaled_operand(new)
        if found is None:
            return new
        self.origin = new.span
        return self.absorb(found[0], found[1], _REACH) or new

    def absorb(self, expr: Expr, scale: Scale, reach: int) -> Expr | None:
        """`expr` times the scale, with no multiplication left at run time; None if that cannot be."""
        node = op_call(expr, *_ANCHORS, "nn.bias_add", "multiply", *_SUMS, *_POSITIVE)
        if node is None or self.counts.get(expr, 1) != 1 or reach == 0:
            return None
        with span_scope(merge_spans([node.span, self.origin])):
            if is_call(node, *_ANCHORS):
                return scale_outputs(node, scale)
            return self._through(node, scale, reach - 1)

    def _through(self, node: Call, scale: Scale, reach: int) -> Expr | None:
        """An operator whose operands, or the one of them that matters, absorb the scale."""
        if is_call(node, *_SUMS):
            return self._through_sum(node, scale, reach)
        args, data = list(node.args), node.args[0]
        if is_call(node, *_POSITIVE) and not scale.positive:
            return None
        if is_call(node, "multiply"):  # a constant that stays where it is
            found = _product(node)
            if found is None:
                return None
            data = found[0]
        if is_call(node, "nn.bias_add"):
            axis = node.attrs["axis"] % tensor_type_of(data).rank
            if not isinstance(args[1], Constant) or scale.axis not in (None, axis):
                return None
            args[1] = multiply(args[1], scale.along(0).constant(1))
        inner = self.absorb(data, scale, reach)
        return None if inner is None else recall(node, [inner if a is data else a for a in args])

    def _through_sum(self, node: Call, scale: Scale, reach: int) -> Expr | None:
        ty = tensor_type_of(node)
        sides: list[Expr] = []
        for side in node.args:
            if isinstance(side, Constant) and tensor_type_of(side).rank <= ty.rank:
                sides.append(multiply(side, scale.constant(ty.rank)))
                continue
            absorbed = self.absorb(side, scale, reach) if side.checked_type == ty else None
            if absorbed is None:
                return None
            sides.append(absorbed)
        return recall(node, sides)


class BackwardFoldScaleAxis(FunctionPass):
    """Scales after convolutions and dense go into their output channels."""

    opt_level = 3

    def rewritten(self, function: Function) -> Function:
        return _Backward(function).visit_function(function)


# --- forward


class _Forward(GraphMutator):
    """Push multiplications down into the weights of everything that uses them."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.users = users(function)
        self.dropped: set[Expr] = set()
        self.scales: dict[Expr, list[Scale]] = defaultdict(list)
        for node in post_order(function, self.enter):
            found = scaled_operand(node)
            if found is not None:
                self._plan(node, found[1])

    def _plan(self, node: Expr, scale: Scale) -> None:
        """Note what changes if `node` is replaced by its data, provided that everything below can change."""
        changes: dict[Expr, None] = {}
        layer = {node: None}
        for _ in range(_REACH):
            pairs = [(user, source) for source in layer for user in self.users.get(source, ())]
            if not all(self._passes(user, source, scale) for user, source in pairs):
                return
            changes.update((user, None) for user, _ in pairs)
            layer = {user: None for user, _ in pairs if not is_call(user, *_ANCHORS)}
            if not layer:
                break
        else:
            return
        if changes:
            self.dropped.add(node)
            for user in changes:
                if not is_call(user, *_POSITIVE, "multiply"):
                    self.scales[user].append(scale)

    def _passes(self, user: Expr, source: Expr, scale: Scale) -> bool:
        """Whether `user` can have its operand `source` unscaled; if it hands the scale on, its users must too."""
        node = op_call(user, *_ANCHORS, "multiply", *_SUMS, *_POSITIVE)
        if node is None or not self.users.get(user):
            return False
        if is_call(node, *_POSITIVE):
            return scale.positive
        if is_call(node, "multiply"):
            found = _product(node)
            return found is not None and found[0] is source
        if is_call(node, *_SUMS):
            other = node.args[1] if node.args[0] is source else node.args[0]
            return node.checked_type == source.checked_type and _divisible(other, scale)
        channels = _channels(node)
        return node.args[0] is source and channels is not None and scale.axis in (None, channels.data)

    def rewrite_call(self, old: Call, new: Call) -> Expr:
        if old in self.dropped:
            return next(a for a in new.args if not isinstance(a, Constant))
        with span_scope(new.span):
            for scale in self.scales.get(old, ()):
                new = self._changed(old, new, scale)
        return new

    def _changed(self, old: Call, node: Call, scale: Scale) -> Call:
        if is_call(node, *_SUMS):
            addend = scale.constant(tensor_type_of(node).rank)
            pairs = zip(old.args, node.args, strict=True)
            return recall(node, [divide(new, addend) if isinstance(was, Constant) else new for was, new in pairs])
        data, weight = node.args
        return recall(node, (data, multiply(weight, input_factor(node, scale))))


def _divisible(other: Expr, scale: Scale) -> bool:
    """Whether `other` is a constant that stays finite when it is divided by the scale."""
    if not isinstance(other, Constant) or not scale.values.all():
        return False
    smallest = np.abs(scale.values.astype(np.float64)).min()
    largest = np.abs(other.data.astype(np.float64)).max(initial=0)
    return bool(largest / smallest < float(tensor_type_of(other).dtype.max))


class ForwardFoldScaleAxis(FunctionPass):
    """Scales before convolutions and dense go into the weights for their input channels."""

    opt_level = 3

    def rewritten(self, function: Function) -> Function:
        return _Forward(function).visit_function(function)


class FoldScaleAxis(Sequential[IRModule]):
    """Folds scales backward, then forward, then the products of constants that this made."""

    def __init__(self) -> None:
        super().__init__([BackwardFoldScaleAxis(), ForwardFoldScaleAxis(), FoldConstant()], name=self.name)
