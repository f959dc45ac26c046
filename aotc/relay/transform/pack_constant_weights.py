# SPDX-License-Identifier: Apache-2.0
"""AlterOpLayout: pack constant weights in blocks of output channels, as the target's vector
registers need them.

nn.conv2d(%x, %w, ...)    =>    nn.conv2d(%x, layout_transform(%w, "OIHW", "OIHW32o"), kernel_layout="OIHW32o", ...)
nn.conv2d(%x, %w, data_layout="NHWC", groups=channels)    =>    ... kernel_layout="HWOI"
nn.conv2d(%x, %w, out_dtype="int32") of bytes             =>    ... kernel_layout="OHWI16o4i"
nn.dense(%x, %w, out_dtype="float32") of bfloat16         =>    ... weight_layout="NC64n2c"
nn.dense(%x, %w)          =>    nn.contrib_dense_pack(%x, layout_transform(%w, "NC", "NC32n"), weight_layout="NC32n")
nn.lstm(%x, %w, %r, ...)  =>    nn.lstm(%x, layout_transform(reshape(%w, ...), "CGN", "NCG32n"), ...)
nn.conv2d(%x, %w3x3)      =>    nn.contrib_conv2d_winograd_without_weight_transform(%x, layout_transform(
                                    nn.contrib_conv2d_winograd_weight_transform(%w3x3), "HWOI", "HWOI32o"))

Input: typed functions. Output: functions with equal results, except for the rounding of Winograd's
algorithm. FoldConstant evaluates the weight transforms. Activations stay in their layout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from aotc.ir import Dim, DType, Op, PassContext, is_static, numel, span_scope
from aotc.relay.graph_api import (
    MAX_FOLDED_CONSTANT_BYTES,
    Call,
    Constant,
    Expr,
    Function,
    IRModule,
    evaluate_constant_call,
    tensor_type_of,
)
from aotc.relay.op import winograd_conv
from aotc.relay.op.conv import Conv2DAttrs, ConvAttrs
from aotc.relay.op.dense import BatchMatmulAttrs, DenseAttrs, DensePackAttrs, MatmulAttrs, contrib_dense_pack
from aotc.relay.op.layout import layout_transform
from aotc.relay.op.recurrent import RecurrentAttrs
from aotc.relay.op.shape import reshape
from aotc.relay.op.window_attributes import (
    DATA_LAYOUT_BY_RANK,
    KERNEL_LAYOUT_BY_RANK,
    canonical_axis_positions,
    layout_to_canonical_order,
    parse_layout_with_up_to_two_blocks,
)
from aotc.relay.transform.common_weight_layouts import common_weight_layout
from aotc.relay.transform.pass_base import FunctionPass, GraphMutator, rebuild_call
from aotc.relay.transform.user_alter_layout import apply_registered_layouts
from aotc.relay.transform.winograd_tiles import (
    choose_winograd_tiles,
    output_channel_block_size,
    padding_fraction,
    winograd_channel_block_size,
)
from aotc.tir import C, MicroKernel, Target
from aotc.tir.schedule.algorithms.cpu_recurrence import columns_per_weight_block, hidden_units_per_weight_block

#: Attribute classes of the operators that sum products of data and weights.
_CONTRACTION_ATTRS: Final = (ConvAttrs, DenseAttrs, DensePackAttrs, MatmulAttrs, BatchMatmulAttrs)


@dataclass(frozen=True, repr=False)
class AlterOpLayout(FunctionPass):
    """Pass that packs the constant weights of convolutions, nn.dense, nn.matmul and recurrent
    layers for `target`.

    A 3x3 convolution uses Winograd's algorithm if this saves at least
    `relay.AlterOpLayout.min_saving` cycles (estimated) per added byte, as long as the parameters
    stay within `relay.AlterOpLayout.max_growth` times their size (default: 2.5 times, or 1 MiB
    more). It is not used with `relay.AlterOpLayout.winograd` = False, nor on targets whose
    budget forbids parameters to grow.

    First, calls of operators with a registered function
    (`aotc.relay.op.op.register_alter_op_layout`) are replaced by the result of that function; the
    layouts that it chooses are propagated to the operators that follow.
    """

    opt_level = 3

    target: Target = C

    def transform(self, function: Function, module: IRModule, ctx: PassContext) -> Function:
        function = apply_registered_layouts(function)
        return _Pack(self.target, choose_winograd_tiles(function, self.target, ctx)).visit_function(function)


def pack_weight_by_groups(weight: Constant, source_layout: str, target_layout: str, groups: int) -> Call:
    """Return the transform of a constant kernel to the layout `target_layout`, each group of channels in
    its own blocks.

    The last block of a group is padded with zeros. Shapes: (O, ...) in any order becomes (groups *
    ceil(O / groups / block), ..., block).
    """
    channels = source_layout.index("O")
    shape = weight.data.shape
    _, block, *_ = parse_layout_with_up_to_two_blocks(target_layout, "o")
    if groups == 1 or block == 0 or shape[channels] // groups % block == 0:
        return layout_transform(weight, source_layout, target_layout)
    grouped_shape = (*shape[:channels], groups, shape[channels] // groups, *shape[channels + 1 :])
    by_group = layout_transform(
        Constant(weight.data.reshape(grouped_shape)), source_layout.replace("O", "GO"), f"G{target_layout}"
    )
    _, blocks, *rest_shape = tensor_type_of(by_group).static_shape
    return reshape(_evaluate_packed_weight_if_large(by_group), newshape=(groups * blocks, *rest_shape))


def pack_convolution_weight(
    call: Call,
    attrs: ConvAttrs,
    target: Target,
    pack: Callable[[Constant, str, str, int], Expr] = pack_weight_by_groups,
) -> Call:
    """Return a convolution with its constant weight packed for the target; `pack` builds the
    weight's transform.

    The call is returned unchanged if its weight is not constant or its layout is the best one
    already.
    """
    weight = call.args[1]
    if not attrs.data_layout.isupper():
        return call
    n = len(attrs.data_layout) - 2
    layout = _dot_product_kernel_layout(call, attrs, n, target) or _blocked_kernel_layout(call, attrs, n, target)
    layout = common_weight_layout(call, f"{attrs.data_layout} {attrs.kernel_layout} {attrs.groups}", layout, target)
    if layout == attrs.kernel_layout or not isinstance(weight, Constant):
        return call
    channels, _, *size = layout_to_canonical_order(
        weight.data.shape, canonical_axis_positions(attrs.kernel_layout, KERNEL_LAYOUT_BY_RANK[n])
    )
    packed = pack(weight, attrs.kernel_layout, layout, attrs.groups)
    return rebuild_call(call, (call.args[0], packed), kernel_layout=layout, channels=channels, kernel_size=tuple(size))


def types_of_contraction(node: Expr) -> tuple[DType, DType, DType] | None:
    """Return the types of data, weights and sums of a convolution or matrix product; None for any other
    node.
    """
    if not isinstance(node, Call) or not isinstance(node.attrs, _CONTRACTION_ATTRS):
        return None
    data, weights = (tensor_type_of(operand).dtype for operand in node.args[:2])
    return data, weights, tensor_type_of(node).dtype


def _packing_micro_kernel(call: Call, target: Target) -> MicroKernel | None:
    """Return the micro-kernel for which the weights of a contraction are packed; None if the target
    has none for its types, or one that reads any layout.
    """
    data, weight = (tensor_type_of(x).dtype for x in call.args[:2])
    kernel = target.micro_kernel_for_types(data, weight, tensor_type_of(call).dtype)
    return None if kernel is None or kernel.weights == "any" else kernel


def _outputs_per_dot_block(output_channels: int, kernel: MicroKernel, max_padding: float) -> int:
    """Return the number of output channels per block of weights that are packed for a micro-kernel:
    the largest whose padding is at most `max_padding` of the channels, or else the smallest.
    """
    blocks = [kernel.block << k for k in range(kernel.max_blocks.bit_length())]
    fitting = [n for n in blocks if -output_channels % n <= max_padding * output_channels]
    return max(fitting, default=kernel.block)


def _dot_product_kernel_layout(call: Call, attrs: ConvAttrs, spatial_rank: int, target: Target) -> str:
    """Return the kernel layout for the target's dot-product instruction, "" if it does not apply.

    An axis of the kernel is grouped for one instruction, see `_axis_grouped_for_dot_products`.
    """
    canonical, kernel = KERNEL_LAYOUT_BY_RANK[spatial_rank], attrs.kernel_layout
    micro_kernel = _packing_micro_kernel(call, target)
    if micro_kernel is None or sorted(kernel) != sorted(canonical):
        return ""
    shape = dict(zip(kernel, tensor_type_of(call.args[1]).static_shape, strict=True))
    outputs = shape["O"] // attrs.groups
    block = _outputs_per_dot_block(outputs, micro_kernel, target.budget.block_padding)
    group = micro_kernel.group
    whole = outputs % block == 0 and shape["I"] % group == 0 and micro_kernel.data == "broadcast"
    letter = _axis_grouped_for_dot_products(shape, canonical, attrs.data_layout, micro_kernel)
    if not letter or (attrs.groups > 1 and not whole):
        return ""
    if micro_kernel.weights == "rows":
        return f"O{''.join(axis for axis in f'{canonical[2:]}I' if axis != letter)}{letter}"
    return f"O{canonical[2:]}I{block}o{group}{letter.lower()}"


def _axis_grouped_for_dot_products(
    shape: Mapping[str, int], canonical_layout: str, data_layout: str, kernel: MicroKernel
) -> str:
    """Return the axis of a convolution kernel whose elements are grouped for a dot product, "" if the
    kernel has one element per output.

    shape    extents of the kernel by axis

    Bytes are grouped along the input channels; a kernel with one input channel is grouped along a
    spatial axis instead. Floats are grouped along the axis that is padded least, preferably the one
    along which the data is contiguous in memory: data of three channels, channels first, is then
    read without a copy.
    """
    axes = [axis for axis in ("I", *reversed(canonical_layout[2:])) if shape[axis] > 1]
    if kernel.sums != "float32" or not axes:
        return next(iter(axes), "")
    contiguous = "I" if data_layout.endswith("C") else data_layout[-1]
    return min(axes, key=lambda axis: (-shape[axis] % kernel.group / shape[axis], axis != contiguous))


def _uses_channel_vectors(target: Target) -> bool:
    """Return True if the target computes adjacent channels together, in one vector."""
    return not target.is_scalar or any(kernel.weights == "rows" for kernel in target.micro_kernels)


def _blocked_kernel_layout(call: Call, attrs: ConvAttrs, spatial_rank: int, target: Target) -> str:
    """Return the best layout of a kernel: axes in the order in which the data's are traversed,
    output channels in blocks.
    """
    first, canonical = DATA_LAYOUT_BY_RANK[spatial_rank], KERNEL_LAYOUT_BY_RANK[spatial_rank]
    last, spatial = f"{first[0]}{first[2:]}C", canonical[2:]
    kernel, ty = attrs.kernel_layout, tensor_type_of(call)
    if attrs.data_layout not in (first, last) or sorted(kernel) != sorted(canonical):
        return kernel
    channels = int(tensor_type_of(call.args[1]).static_shape[kernel.index("O")])
    per_group = channels // attrs.groups
    if per_group == 1 and attrs.groups > 1:
        return f"{spatial}OI" if attrs.data_layout == last and _uses_channel_vectors(target) else kernel
    outer = [d for d, letter in zip(ty.shape, attrs.out_layout or attrs.data_layout, strict=True) if letter != "C"]
    block = output_channel_block_size(call, per_group, outer, target, channels_last=attrs.data_layout == last)
    if (
        block == 0
        or per_group == 1
        or (attrs.groups > 1 and padding_fraction(per_group, block) > _max_padding_fraction(target))
    ):
        return kernel
    by_taps = attrs.data_layout == last or _needs_tap_major_weights(call, outer, target)
    return f"{f'O{spatial}I' if by_taps else canonical}{block}o"


def _needs_tap_major_weights(call: Call, outer_extents: Sequence[Dim], target: Target) -> bool:
    """Return True if the weights of a convolution are stored tap by tap, with the input channels of
    a tap next to each other.

    Tiles with borders compute the products of all channels at one tap, then those at the next tap.
    Weights that exceed half of the L2 cache are stored in that order, so that each pass reads them
    sequentially. Convolutions with fewer output positions keep the loop over taps inside.
    """
    far = tensor_type_of(call.args[1]).nbytes > target.l2 // 2
    return (
        far
        and is_static(outer_extents)
        and numel(outer_extents) >= target.tiles.min_tap_major_positions
        and not target.is_scalar
    )


def _max_padding_fraction(target: Target) -> float:
    """Return the largest padding of a group of channels, as a fraction of them; 0 where parameters
    must not grow.
    """
    return target.budget.group_padding if target.gpu is None and target.budget.parameter_growth > 1.0 else 0.0


def _evaluate_packed_weight_if_large(packed: Call) -> Expr:
    """Return a packed weight, evaluated now if it exceeds FoldConstant's limit, lest it be packed in every run."""
    size = tensor_type_of(packed).nbytes
    return packed if size <= MAX_FOLDED_CONSTANT_BYTES else evaluate_constant_call(packed, size) or packed


@dataclass(eq=False)
class _Pack(GraphMutator):
    target: Target
    tiles: Mapping[Expr, int]
    # packed weights by plain weight and layouts: calls that read a weight alike share its packed form
    packed_constant_cache: dict[tuple[Constant, str], Expr] = field(default_factory=dict)

    def rewrite_call(self, old: Call, new: Call) -> Expr:
        if not isinstance(new.op, Op) or len(new.args) < 2 or not isinstance(new.args[1], Constant):
            return new
        with span_scope(new.span):
            match new.attrs:
                case RecurrentAttrs():
                    return self._pack_recurrent_weights(new)
                case Conv2DAttrs() as attrs if old in self.tiles:
                    return self._conv2d_with_packed_winograd_weight(new, new.args[1], attrs, self.tiles[old])
                case ConvAttrs() as attrs:
                    return pack_convolution_weight(new, attrs, self.target, self._pack_weight_by_groups_cached)
                case DenseAttrs() as attrs:
                    return self._dense_call_with_packed_weight(new, new.args[1], "NC", attrs.out_dtype)
                case MatmulAttrs(transpose_a=False) as attrs:
                    return self._dense_call_with_packed_weight(
                        new, new.args[1], "NC" if attrs.transpose_b else "CN", attrs.out_dtype
                    )
                case _:
                    return new

    def _pack_weight_by_groups_cached(
        self, weight: Constant, source_layout: str, target_layout: str, groups: int
    ) -> Expr:
        """Return a convolution's weight packed by groups of channels, from the cache if it was
        packed before.
        """
        key = (weight, f"{source_layout} to {target_layout}/{groups} groups")
        if key not in self.packed_constant_cache:
            self.packed_constant_cache[key] = _evaluate_packed_weight_if_large(
                pack_weight_by_groups(weight, source_layout, target_layout, groups)
            )
        return self.packed_constant_cache[key]

    def _pack_weight_cached(self, weight: Constant, source_layout: str, target_layout: str, tile: int = 0) -> Expr:
        """Return a weight in another layout, first transformed for Winograd tiles of size `tile`
        unless that is 0.

        Weights that were packed before are returned from a cache.
        """
        key = (weight, f"{source_layout} to {target_layout}/{tile}")
        if key not in self.packed_constant_cache:
            plain = (
                _evaluate_packed_weight_if_large(winograd_conv.contrib_conv2d_winograd_weight_transform(weight, tile))
                if tile
                else weight
            )
            self.packed_constant_cache[key] = _evaluate_packed_weight_if_large(
                layout_transform(plain, source_layout, target_layout)
            )
        return self.packed_constant_cache[key]

    def _pack_recurrent_weights(self, call: Call) -> Expr:
        """Return a recurrent layer with its constant weights packed in blocks of units or of
        columns.

        The second weight may be a variable; it then stays as it is.
        """
        args = list(call.args)
        state, dtype = tensor_type_of(call.args[2]), tensor_type_of(call.args[0]).dtype
        hidden = int(state.static_shape[state.rank // 2 - 1])
        plain = [w for w in args[1:3] if isinstance(w, Constant) and w.data.ndim == 2]
        gates = tensor_type_of(call.args[3]).static_shape[0] // max(hidden, 1)
        columns = columns_per_weight_block(hidden, gates, dtype, self.target) if len(plain) == 2 else 0
        block = columns or hidden_units_per_weight_block(hidden, gates, dtype, self.target)
        for number, weight in enumerate(args[1:3], 1):
            if isinstance(weight, Constant) and weight.data.ndim == 2 and block:
                parts = Constant(weight.data.reshape(len(weight.data), 1 if columns else gates, -1))
                args[number] = self._pack_weight_cached(parts, "CGN", f"NCG{block}n")
        is_changed = any(new is not old for new, old in zip(args, call.args, strict=True))
        return rebuild_call(call, args) if is_changed else call

    def _conv2d_with_packed_winograd_weight(self, call: Call, weight: Constant, attrs: ConvAttrs, tile: int) -> Expr:
        block = winograd_channel_block_size(call, weight, tile, self.target)
        padded = self._pad_groups_to_whole_blocks(weight, attrs.groups, block)
        packed = self._pack_weight_cached(padded, "HWOI", f"HWOI{block}o", tile)
        return winograd_conv.contrib_conv2d_winograd_without_weight_transform(
            call.args[0],
            packed,
            tile,
            attrs.padding,
            channels=weight.data.shape[0],
            groups=attrs.groups,
            data_layout=attrs.data_layout,
        )

    def _pad_groups_to_whole_blocks(self, weight: Constant, groups: int, block: int) -> Constant:
        """Return a convolution weight with zero filters added to each of several groups, so that
        the groups are whole blocks of `block` output channels.
        """
        channels, *filter_shape = weight.data.shape
        added = -(channels // groups) % block
        if groups == 1 or added == 0:
            return weight
        key = (weight, f"{groups} groups of {block}")
        if key not in self.packed_constant_cache:
            by_group = weight.data.reshape(groups, channels // groups, *filter_shape)
            padding = ((0, 0), (0, added), *((0, 0) for _ in filter_shape))
            self.packed_constant_cache[key] = Constant(np.pad(by_group, padding).reshape(-1, *filter_shape))
        padded = self.packed_constant_cache[key]
        assert isinstance(padded, Constant)
        return padded

    def _dense_call_with_packed_weight(self, call: Call, weight: Constant, layout: str, out_dtype: str) -> Expr:
        if weight.data.ndim != 2:
            return call
        units = weight.data.shape[layout.index("N")]
        if (kernel := _packing_micro_kernel(call, self.target)) is not None:
            if kernel.weights == "rows":
                fits = layout == "NC" or not isinstance(call.attrs, MatmulAttrs)
                rows = self._pack_weight_cached(weight, layout, "NC")
                return call if fits else rebuild_call(call, (call.args[0], rows), transpose_b=True)
            block = _outputs_per_dot_block(units, kernel, self.target.budget.block_padding)
            target = f"NC{block}n{kernel.group}c"
        elif block := output_channel_block_size(call, units, tensor_type_of(call).shape[:-1], self.target):
            target = f"NC{block}n"
        else:
            target = ""  # as it is
        target = common_weight_layout(call, layout, target, self.target, is_product=True)
        if not target:
            return call
        packed = self._pack_weight_cached(weight, layout, target)
        return contrib_dense_pack(call.args[0], packed, target, units, out_dtype)
