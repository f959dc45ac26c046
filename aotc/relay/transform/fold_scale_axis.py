# SPDX-License-Identifier: Apache-2.0
"""FoldScaleAxis: fold multiplications by per-channel constants into the weights of convolutions and
nn.dense.

multiply(nn.conv2d(%x, w), s)                    # backward: after the convolution, its output channels
nn.conv2d(%x, multiply(w, s'))

nn.conv2d(nn.relu(multiply(%x, s)), w)           # forward: before it, its input channels; s > 0 passes nn.relu
nn.conv2d(nn.relu(%x), multiply(w, s'))

Scales move in both directions across nn.relu and nn.leaky_relu (if all factors are positive) and
across sums and products with constants; backward also across nn.bias_add and across sums whose
operands both come from foldable weights. FoldConstant then evaluates the products of constants.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence as Items
from dataclasses import dataclass
from itertools import islice
from math import prod
from typing import Any, ClassVar, Final

import numpy as np

from aotc.ir import Op, Sequential, Span, TensorType, frozen, merge_spans, span_scope
from aotc.relay.graph_api import Call, Constant, Expr, Function, IRModule, post_order, tensor_type_of, users
from aotc.relay.op.binary_elementwise import divide, multiply
from aotc.relay.op.conv import ConvAttrs, conv1d, conv2d, conv3d
from aotc.relay.op.dense import DenseAttrs, dense
from aotc.relay.op.layout import Layout
from aotc.relay.op.shape import reshape, squeeze
from aotc.relay.transform.expand_ops import expand_vector_along_axis
from aotc.relay.transform.fold_constant import FoldConstant
from aotc.relay.transform.pass_base import FunctionPass, GraphMutator, as_op_call, is_op_call, rebuild_call
from aotc.relay.transform.simplify_expr import VIEWS

_ANCHORS: Final = (conv1d, conv2d, conv3d, dense)
_SIGN_DEPENDENT_OPERATORS: Final = ("nn.relu", "nn.leaky_relu")
_SUMS: Final = ("add", "subtract")
#: Largest number of operators between a multiplication and the weights.
_MAX_OPERATORS_TO_WEIGHTS: Final = 32


@frozen
class Scale:
    """Factors by which a tensor is multiplied, to be folded into the weights of a convolution or
    dense layer: along several axes if the channels are blocked (NCHWc), none for one factor of
    the whole tensor.

    expr     the factors as an expression, squeezed to these axes
    values   the value of `expr`
    """

    expr: Expr
    values: np.ndarray[Any, Any]
    axes: tuple[int, ...]

    @property
    def is_every_scale_factor_positive(self) -> bool:
        return bool((self.values > 0).all())

    def scale_factors_broadcast_along_axes(self, axes: Items[int], expr: Expr) -> Expr:
        """Return the scale factors reshaped to broadcast along these axes of `expr`."""
        if not self.axes:
            return Constant(self.values.reshape(()))
        shape = tensor_type_of(expr).shape
        if len(axes) > 1:
            return reshape(self.expr, [d if k in axes else 1 for k, d in enumerate(shape)])
        return expand_vector_along_axis(self.expr, axes[0], len(shape))

    def varies_only_along_scale_axes(self, expr: Expr, rank: int) -> bool:
        """Return True if `expr` varies along the axes of the factors only and broadcasts to a
        tensor of rank `rank`.

        It then has as many elements as there are factors, or one element.
        """
        ty = tensor_type_of(expr)
        start = rank - ty.rank
        wide = [k + start for k, extent in enumerate(ty.shape) if extent != 1]
        return start >= 0 and set(wide) <= set(self.axes)


def match_scaled_operand(expr: Expr) -> tuple[Expr, Scale] | None:
    """Return (x, s) if `expr` is multiply(x, s) or multiply(s, x) with s a Scale that does not
    enlarge x; else None.
    """
    node = as_op_call(expr, "multiply")
    product = None if node is None else _match_constant_product(node)
    scale = None if product is None else _scale_from_factor(product[1], tensor_type_of(product[0]))
    return None if product is None or scale is None else (product[0], scale)


def _value_of_possibly_reshaped_constant(expr: Expr) -> np.ndarray[Any, Any] | None:
    """Return the array of a constant or of a reshaped constant; None for other expressions."""
    if isinstance(expr, Constant):
        return expr.data
    node = as_op_call(expr, *VIEWS)
    source = None if node is None or len(node.args) != 1 else _value_of_possibly_reshaped_constant(node.args[0])
    return None if source is None else source.reshape(tensor_type_of(expr).static_shape)


def _match_constant_product(node: Call) -> tuple[Expr, Expr] | None:
    """Return (x, c) if `node` multiplies x by a constant c that does not enlarge it; else None."""
    for data, factor in (node.args, node.args[::-1]):
        if (
            _value_of_possibly_reshaped_constant(factor) is None
            or _value_of_possibly_reshaped_constant(data) is not None
        ):
            continue
        if data.checked_type == node.checked_type:
            return data, factor
    return None


def _scale_from_factor(factor: Expr, ty: TensorType) -> Scale | None:
    array = _value_of_possibly_reshaped_constant(factor)
    assert array is not None
    if not ty.dtype.is_float or array.ndim > ty.rank or not np.isfinite(array.astype(np.float64)).all():
        return None
    ones = [k for k, extent in enumerate(array.shape) if extent == 1]
    if len(ones) == array.ndim:
        return Scale(factor, array.reshape(1), ())
    start = ty.rank - array.ndim
    axes = tuple(k + start for k in range(array.ndim) if k not in ones)
    values = array.squeeze()
    if tuple(ty.shape[k] for k in axes) != values.shape:
        return None
    return Scale(squeeze(factor, ones) if ones else factor, values, axes)


# --- weights


def _is_made_of_constants_by_few_operators(expr: Expr) -> bool:
    """Return True if `expr` is a constant, or is made of constants by few operators (the product of
    an earlier fold).
    """
    nodes = list(islice(post_order(expr), _MAX_OPERATORS_TO_WEIGHTS))
    return nodes[-1] is expr and all(isinstance(n, (Constant, Call, Op)) for n in nodes)


@frozen
class _ChannelAxes:
    """Channel axes of a convolution or nn.dense.

    data            axes of the input channels in the data
    result          axes of the output channels in the result
    weight_inputs   axes of the input channels in the weights
    weight          axes of the output channels in the weights
    """

    data: tuple[int, ...]
    result: tuple[int, ...]
    weight_inputs: tuple[int, ...]
    weight: tuple[int, ...]


def _axes_of_layout_letter(layout: str, letter: str) -> tuple[int, ...]:
    """Return the axes of a letter in a layout: its primal axis, then the axes of its blocks."""
    axes = Layout.parse_layout(layout).axes
    letters = sorted({axis_letter for axis_letter, _ in axes})
    return tuple(
        k for k in Layout.parse_layout(layout).permutation_to_primal_then_blocks(letters) if axes[k][0] == letter
    )


def _channel_axes(node: Call, only_constants: bool) -> _ChannelAxes | None:
    """Return the channel axes of a convolution or nn.dense with float weights; None for other
    calls.

    With `only_constants`, the weights must be foldable constants. In a blocked layout the weights
    must have the same blocks as the data; other packed weights give None.
    """
    a: Any = node.attrs
    if not isinstance(a, ConvAttrs | DenseAttrs) or (
        only_constants and not _is_made_of_constants_by_few_operators(node.args[1])
    ):
        return None
    dtype = tensor_type_of(node.args[1]).dtype
    if not dtype.is_float or tensor_type_of(node).dtype != dtype:
        return None
    if isinstance(a, DenseAttrs):
        return _ChannelAxes((tensor_type_of(node.args[0]).rank - 1,), (tensor_type_of(node).rank - 1,), (1,), (0,))
    out = a.out_layout or a.data_layout
    channel_axes = _ChannelAxes(
        *(_axes_of_layout_letter(x, "C") for x in (a.data_layout, out)),
        *(_axes_of_layout_letter(a.kernel_layout, x) for x in ("I", "O")),
    )
    in_blocks = len(channel_axes.data) > 1 and a.groups in (1, a.channels)
    plain = (a.kernel_layout + a.data_layout + out).isupper()
    return channel_axes if plain or in_blocks else None


def _has_as_many_elements_as_scale(expr: Expr, axes: Items[int], scale: Scale) -> bool:
    """Return True if these axes of a tensor have as many elements as there are scale factors.

    Blocks must come after the axes that they divide.
    """
    extents = [d for k in axes if isinstance(d := tensor_type_of(expr).shape[k], int)]
    in_order = len(extents) == len(axes) == len(scale.axes) and list(axes) == sorted(axes)
    return not scale.axes or (in_order and prod(extents) == scale.values.size)


def scale_weights_by_output_channel(node: Call, scale: Scale, only_constants: bool) -> Call | None:
    """Return a convolution or nn.dense with its weights scaled by output channel; None if the scale
    has another axis.
    """
    channels = _channel_axes(node, only_constants)
    if channels is None or scale.axes not in ((), channels.result):
        return None
    data, weight = node.args
    if not _has_as_many_elements_as_scale(weight, channels.weight, scale):
        return None
    factors = scale.scale_factors_broadcast_along_axes(channels.weight, weight)
    return rebuild_call(node, (data, multiply(weight, factors)))


def weight_factor_for_input_scale(node: Call, scale: Scale, only_constants: bool) -> Expr | None:
    """Return the factor to multiply weights with so that their input data need not be scaled; None
    if there is none.
    """
    a, weight = node.attrs, node.args[1]
    channels = _channel_axes(node, only_constants)
    if channels is None or scale.axes not in ((), channels.data):
        return None
    if not scale.axes or not isinstance(a, ConvAttrs) or a.groups == 1:
        if _has_as_many_elements_as_scale(weight, channels.weight_inputs, scale):
            return scale.scale_factors_broadcast_along_axes(channels.weight_inputs, weight)
        return None
    if _has_as_many_elements_as_scale(weight, channels.weight, scale) and a.groups == scale.values.size:
        return scale.scale_factors_broadcast_along_axes(channels.weight, weight)
    if not a.kernel_layout.isupper():
        return None
    shape = tensor_type_of(weight).static_shape
    layout = a.kernel_layout
    out, inner = layout.index("O"), layout.index("I")
    # output channel o of group g reads only the data's channels g * inner ... of its group
    values = scale.values.reshape(a.groups, shape[inner])
    table = np.repeat(values, shape[out] // a.groups, axis=0)
    if out > inner:
        table = table.T
    return Constant(table.reshape([d if k in (out, inner) else 1 for k, d in enumerate(shape)]))


# --- folding


class _Fold(GraphMutator):
    """Mutator that folds scales in one direction; the base of _Backward and _Forward."""

    def __init__(self, function: Function, only_constants: bool) -> None:
        super().__init__()
        self.only_constants = only_constants
        self.users = users(function)


@dataclass(frozen=True, repr=False)
class _FoldScale(FunctionPass):
    """Base of the passes that fold scales into weights.

    only_constants   do not scale weights and addends that are not constants: they would be scaled in every run
    """

    opt_level = 3
    fold: ClassVar[type[_Fold]]

    only_constants: bool = False

    def rewrite_function_body(self, function: Function) -> Function:
        return self.fold(function, self.only_constants).visit_function(function)


# --- backward


class _Backward(_Fold):
    """Mutator that moves multiplications up into the weights from which their operands are
    computed.
    """

    def __init__(self, function: Function, only_constants: bool) -> None:
        super().__init__(function, only_constants)
        self.counts: dict[Expr, int] = {}
        self.origin: Span | None = None

    def rewrite_rebuilt_node(self, old: Expr, new: Expr) -> Expr:
        result = super().rewrite_rebuilt_node(old, new)
        self.counts[result] = len(self.users.get(old, ()))
        return result

    def rewrite_call(self, old: Call, new: Call) -> Expr:
        scaled_operand = match_scaled_operand(new)
        if scaled_operand is None:
            return new
        self.origin = new.span
        return self.absorb_scale(scaled_operand[0], scaled_operand[1], _MAX_OPERATORS_TO_WEIGHTS) or new

    def absorb_scale(self, expr: Expr, scale: Scale, max_depth: int) -> Expr | None:
        """Return `expr` times a scale that is folded into weights, without a new multiplication at
        run time; None if impossible.
        """
        node = as_op_call(expr, *_ANCHORS, "nn.bias_add", "multiply", *_SUMS, *_SIGN_DEPENDENT_OPERATORS)
        if node is None or self.counts.get(expr, 1) != 1 or max_depth == 0:
            return None
        with span_scope(merge_spans([node.span, self.origin])):
            if is_op_call(node, *_ANCHORS):
                return scale_weights_by_output_channel(node, scale, self.only_constants)
            return self._push_scale_through(node, scale, max_depth - 1)

    def _push_scale_through(self, node: Call, scale: Scale, max_depth: int) -> Expr | None:
        """Push a scale through an operator into its operands; return the new call, or None if they
        cannot absorb it.
        """
        if is_op_call(node, *_SUMS):
            return self._push_scale_through_sum(node, scale, max_depth)
        args, data = list(node.args), node.args[0]
        if is_op_call(node, *_SIGN_DEPENDENT_OPERATORS) and not scale.is_every_scale_factor_positive:
            return None
        if is_op_call(node, "multiply"):  # the constant factor stays where it is
            product = _match_constant_product(node)
            if product is None:
                return None
            data = product[0]
        if is_op_call(node, "nn.bias_add"):
            axis = node.attrs["axis"] % tensor_type_of(data).rank
            if (self.only_constants and not isinstance(args[1], Constant)) or scale.axes not in ((), (axis,)):
                return None
            args[1] = multiply(args[1], scale.scale_factors_broadcast_along_axes((0,), args[1]))
        inner = self.absorb_scale(data, scale, max_depth)
        return None if inner is None else rebuild_call(node, [inner if a is data else a for a in args])

    def _push_scale_through_sum(self, node: Call, scale: Scale, max_depth: int) -> Expr | None:
        ty = tensor_type_of(node)
        sides: list[Expr] = []
        for side in node.args:
            constant = isinstance(side, Constant) and tensor_type_of(side).rank <= ty.rank
            absorbed = self.absorb_scale(side, scale, max_depth) if side.checked_type == ty and not constant else None
            if absorbed is not None:
                sides.append(absorbed)
            elif constant or (not self.only_constants and scale.varies_only_along_scale_axes(side, ty.rank)):
                sides.append(multiply(side, scale.scale_factors_broadcast_along_axes(scale.axes, node)))
            else:
                return None
        return rebuild_call(node, sides)


class BackwardFoldScaleAxis(_FoldScale):
    """Pass that folds scales after convolutions and nn.dense into the weights, by output channel.

    only_constants   do not scale weights and addends that are not constants: they would be scaled in every run
    """

    fold = _Backward


# --- forward


class _Forward(_Fold):
    """Mutator that moves multiplications down into the weights of all operators that use their
    results.
    """

    def __init__(self, function: Function, only_constants: bool) -> None:
        super().__init__(function, only_constants)
        self.dropped: set[Expr] = set()
        self.scales: dict[Expr, list[Scale]] = defaultdict(list)
        for node in post_order(function, self.should_rewrite_children):
            scaled_operand = match_scaled_operand(node)
            if scaled_operand is not None:
                self._record_scale_removal_if_absorbable(node, scaled_operand[1])

    def _record_scale_removal_if_absorbable(self, node: Expr, scale: Scale) -> None:
        """Record the changes that removing multiplication `node` requires, if every user downstream
        can absorb the scale.
        """
        changes: dict[Expr, None] = {}
        layer = {node: None}
        for _ in range(_MAX_OPERATORS_TO_WEIGHTS):
            pairs = [(user, source) for source in layer for user in self.users.get(source, ())]
            if not all(self._can_absorb_or_pass_scale(user, source, scale) for user, source in pairs):
                return
            changes.update((user, None) for user, _ in pairs)
            layer = {user: None for user, _ in pairs if not is_op_call(user, *_ANCHORS)}
            if not layer:
                break
        else:
            return
        if changes:
            self.dropped.add(node)
            for user in changes:
                if not is_op_call(user, *_SIGN_DEPENDENT_OPERATORS, "multiply"):
                    self.scales[user].append(scale)

    def _can_absorb_or_pass_scale(self, user: Expr, source: Expr, scale: Scale) -> bool:
        """Return True if `user` works with an unscaled operand `source`, or passes the scale on to
        its own users.
        """
        node = as_op_call(user, *_ANCHORS, "multiply", *_SUMS, *_SIGN_DEPENDENT_OPERATORS)
        if node is None or not self.users.get(user):
            return False
        if is_op_call(node, *_SIGN_DEPENDENT_OPERATORS):
            return scale.is_every_scale_factor_positive
        if is_op_call(node, "multiply"):
            product = _match_constant_product(node)
            return product is not None and product[0] is source
        if is_op_call(node, *_SUMS):
            other = node.args[1] if node.args[0] is source else node.args[0]
            return node.checked_type == source.checked_type and self._is_addend_divisible_by_scale(other, scale, source)
        data, weight = node.args
        if data is not source or weight is source:
            return False
        return weight_factor_for_input_scale(node, scale, self.only_constants) is not None

    def _is_addend_divisible_by_scale(self, addend: Expr, scale: Scale, source: Expr) -> bool:
        """Return True if an addend can be divided by a scale: a constant that stays finite, or a
        variable along its axes.
        """
        if isinstance(addend, Constant) or self.only_constants:
            return _is_constant_finite_after_division(addend, scale)
        along = scale.varies_only_along_scale_axes(addend, tensor_type_of(source).rank)
        return along and addend.checked_type != source.checked_type and bool(scale.values.all())

    def rewrite_call(self, old: Call, new: Call) -> Expr:
        if old in self.dropped:
            return new.args[0 if _value_of_possibly_reshaped_constant(old.args[0]) is None else 1]
        with span_scope(new.span):
            for scale in self.scales.get(old, ()):
                new = self._compensate_call_for_removed_scale(old, new, scale)
        return new

    def _compensate_call_for_removed_scale(self, old: Call, node: Call, scale: Scale) -> Call:
        if is_op_call(node, *_SUMS):
            divisor = scale.scale_factors_broadcast_along_axes(scale.axes, node)
            # an operand of the full type is scaled by its own rewriting
            whole = [not isinstance(x, Constant) and x.checked_type == old.checked_type for x in old.args]
            pairs = zip(whole, node.args, strict=True)
            return rebuild_call(node, [new if is_scaled else divide(new, divisor) for is_scaled, new in pairs])
        data, weight = node.args
        factor = weight_factor_for_input_scale(node, scale, self.only_constants)
        assert factor is not None
        return rebuild_call(node, (data, multiply(weight, factor)))


def _is_constant_finite_after_division(addend: Expr, scale: Scale) -> bool:
    """Return True if expression `addend` is a constant that stays finite when it is divided by a
    scale.
    """
    if not isinstance(addend, Constant) or not scale.values.all():
        return False
    smallest = np.abs(scale.values.astype(np.float64)).min()
    largest = np.abs(addend.data.astype(np.float64)).max(initial=0)
    return bool(largest / smallest < float(tensor_type_of(addend).dtype.max))


class ForwardFoldScaleAxis(_FoldScale):
    """Pass that folds scales before convolutions and nn.dense into the weights, by input channel.

    only_constants   do not scale weights and addends that are not constants: they would be scaled in every run
    """

    fold = _Forward


class FoldScaleAxis(Sequential[IRModule]):
    """Pass that folds scales into constants, backward, then forward, and evaluates the resulting
    products of constants.
    """

    def __init__(self) -> None:
        folds = BackwardFoldScaleAxis(only_constants=True), ForwardFoldScaleAxis(only_constants=True)
        super().__init__([*folds, FoldConstant(fold_qnn=True)], name=self.name)
