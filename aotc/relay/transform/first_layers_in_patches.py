# SPDX-License-Identifier: Apache-2.0
"""PatchFirstLayers: compute the first convolutions of a network patch by patch (in bands of rows)
to save memory.

PatchFirstLayers(2): relu(nn.conv2d(%x, %w, padding=[1, 1, 1, 1])) of 8 rows, data_layout="NHWC"

%0 = strided_slice(%x, begin=[0, 0, 0, 0], end=[1, 5, ...]);
%1 = relu(nn.conv2d(%0, %w, padding=[1, 1, 0, 1]));
%2 = strided_slice(%x, begin=[0, 3, 0, 0], end=[1, 8, ...]);
%3 = relu(nn.conv2d(%2, %w, padding=[0, 1, 1, 1]));
concatenate((%1, %3), axis=1)

Input: typed functions. Output: functions with equal values, in which only the tensors of one patch
and the result are in memory at a time. Rows that two patches need are computed twice. The chain of
calls begins at a parameter of the function and ends where the peak memory is least; its inner
values must have no other readers.

Source of the idea: Lin et al., "MCUNetV2: Memory-efficient patch-based inference for tiny deep
learning" (2021).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

from aotc.ir import OpPattern, TensorType, frozen, span_scope
from aotc.relay.graph_api import Call, Expr, Function, Tuple, require_op_of_call, tensor_type_of, users
from aotc.relay.op.concat_split import concatenate
from aotc.relay.op.slice import strided_slice
from aotc.relay.op.window_attributes import pad_pairs_of_axes, repeat_for_each_axis
from aotc.relay.transform.pass_base import FunctionPass, as_op_call, rebuild_call, rewrite_nodes

#: A half-open range of rows: the first row, and the row after the last one.
Rows: TypeAlias = tuple[int, int]


@frozen
class _RowWindow:
    """How rows of a result depend on rows of the data: a window of `size` rows with stride `step`,
    after padding `before`.
    """

    size: int = 1
    step: int = 1
    before: int = 0

    def input_rows_and_padding(self, rows: Rows, height: int) -> tuple[Rows, tuple[int, int]]:
        """Return the rows of data of the given height that some rows of the result need, and the
        padding before and after them.
        """
        first = rows[0] * self.step - self.before
        last = (rows[1] - 1) * self.step - self.before + self.size
        inside = (max(first, 0), min(last, height))
        return inside, (inside[0] - first, last - inside[1])


@frozen
class _ChainCall:
    """One call in a chain of calls; argument number `data` is the result of the previous call."""

    node: Call
    data: int
    window: _RowWindow

    @property
    def data_argument(self) -> Expr:
        return self.node.args[self.data]

    def apply_to_rows(self, source: Expr, padding: tuple[int, int]) -> Call:
        """Return the call applied to a band of rows of its data, with the given padding of rows."""
        args = [source if k == self.data else a for k, a in enumerate(self.node.args)]
        with span_scope(self.node.span):
            if not _is_conv2d_or_max_pool2d(self.node):
                return rebuild_call(self.node, args)
            (_, left), (_, right) = zip(*pad_pairs_of_axes(self.node.attrs["padding"], 2), strict=True)
            return rebuild_call(self.node, args, padding=(padding[0], left, padding[1], right))


def _data_layout_of_conv2d_or_pool(node: Call) -> str:
    attrs: Any = node.attrs
    return str(attrs.data_layout if as_op_call(node, "nn.conv2d") else attrs.layout)


def _is_conv2d_or_max_pool2d(node: Call) -> bool:
    return as_op_call(node, "nn.conv2d", "nn.max_pool2d") is not None


def _axis_extent(expr: Expr, axis: int) -> int:
    return tensor_type_of(expr).static_shape[axis]


def _row_window_of_conv_or_pool(node: Call, axis: int) -> _RowWindow | None:
    """Return how rows of a convolution's or pool's result depend on rows of its data.

    None if `axis` is not its row axis or it rounds the number of rows up.
    """
    attrs: Any = node.attrs
    conv = as_op_call(node, "nn.conv2d") is not None
    other = conv and attrs.out_layout not in ("", None, attrs.data_layout)
    if _data_layout_of_conv2d_or_pool(node).find("H") != axis or other or (not conv and attrs.ceil_mode):
        return None
    taps = attrs.kernel_size if conv else attrs.pool_size
    if taps is None:
        kernel = attrs.kernel_layout
        taps = [_axis_extent(node.args[1], kernel.find(letter)) for letter in "HW"]
    size = (repeat_for_each_axis(taps, 2)[0] - 1) * repeat_for_each_axis(attrs.dilation, 2)[0] + 1
    return _RowWindow(size, repeat_for_each_axis(attrs.strides, 2)[0], pad_pairs_of_axes(attrs.padding, 2)[0][0])


def _as_chain_call(node: Expr, source: Expr, axis: int) -> _ChainCall | None:
    """Return a node as the next call of a chain whose last value is `source`; None if the node cannot
    be computed in bands of rows.
    """
    types = [e.checked_type for e in (node, *node.args)] if isinstance(node, Call) else []
    if not isinstance(node, Call) or not all(isinstance(ty, TensorType) and ty.is_static for ty in types):
        return None
    if _is_conv2d_or_max_pool2d(node):
        window = _row_window_of_conv_or_pool(node, axis) if node.args[0] is source else None
        return _ChainCall(node, 0, window) if window is not None else None
    named = {name for name, _ in node.attrs.items()}
    local = as_op_call(node) is not None and require_op_of_call(node).pattern in (
        OpPattern.ELEMWISE,
        OpPattern.BROADCAST,
    )
    if not local or named & {"axis", "shape"}:
        return None
    rank, places = len(tensor_type_of(source).shape), [k for k, a in enumerate(node.args) if a is source]
    other_shapes = [tensor_type_of(a).shape for a in node.args if a is not source]
    # from the end, where broadcasting begins to count
    broadcasts_rows = all(len(shape) < rank - axis or shape[axis - rank] == 1 for shape in other_shapes)
    same = tensor_type_of(node).shape == tensor_type_of(source).shape
    return _ChainCall(node, places[0], _RowWindow()) if len(places) == 1 and broadcasts_rows and same else None


def _longest_row_local_chain(begin: Expr, users_of: dict[Expr, list[Expr]], axis: int) -> list[_ChainCall]:
    """Return the longest chain of calls, from producer to consumer, that can be computed in bands
    of rows.

    The chain begins with the only user of `begin`; each call has one user and is local along
    `axis`.
    """
    chain: list[_ChainCall] = []
    end = begin
    while len(users_of.get(end, ())) == 1 and (link := _as_chain_call(users_of[end][0], end, axis)) is not None:
        chain.append(link)
        end = link.node
    return chain


def _split_rows_into_bands(rows: int, count: int) -> list[Rows]:
    return list(pairwise(rows * k // count for k in range(count + 1)))


def _rows_needed_by_each_call(chain: Sequence[_ChainCall], rows: Rows, axis: int) -> list[tuple[Rows, tuple[int, int]]]:
    """Return for each call the rows of its data that some rows of the last result need, and the
    padding around them.
    """
    rows_and_padding: list[tuple[Rows, tuple[int, int]]] = []
    for link in reversed(chain):
        rows_and_padding.append(link.window.input_rows_and_padding(rows, _axis_extent(link.data_argument, axis)))
        rows = rows_and_padding[-1][0]
    return rows_and_padding[::-1]


def _compute_in_row_bands(chain: Sequence[_ChainCall], band_count: int, axis: int) -> Expr:
    """Return the last value of a chain of calls, computed in `band_count` bands of rows that are
    concatenated.
    """
    begin, end = chain[0].data_argument, chain[-1].node
    shape = tensor_type_of(begin).static_shape
    bands: list[Expr] = []
    for rows in _split_rows_into_bands(_axis_extent(end, axis), band_count):
        traced = _rows_needed_by_each_call(chain, rows, axis)
        (first, last), _ = traced[0]
        starts = [first if k == axis else 0 for k in range(len(shape))]
        ends = [last if k == axis else n for k, n in enumerate(shape)]
        with span_scope(chain[0].node.span):
            value: Expr = strided_slice(begin, begin=starts, end=ends)
        for link, (_, padding) in zip(chain, traced, strict=True):
            value = link.apply_to_rows(value, padding)
        bands.append(value)
    with span_scope(end.span):
        return concatenate(Tuple(bands), axis=axis)


def _is_chain_result_stored_in_memory(link: _ChainCall, following: _ChainCall | None) -> bool:
    """Return True if the result of a call in the chain is stored in memory.

    It is the last one, or the next call (convolution or pool) reads windows of it.
    """
    return following is None or _is_conv2d_or_max_pool2d(following.node)


def _chain_length_of_least_peak_memory(chain: Sequence[_ChainCall], band_count: int, axis: int) -> int:
    """Return how many calls of a chain to compute in bands of rows for the least peak memory; 0 if
    that does not help.
    """
    after = [*chain[1:], None]
    following = zip(chain, after, strict=True)
    stored_lengths = [k for k, pair in enumerate(following, 1) if _is_chain_result_stored_in_memory(*pair)]
    whole = {k: tensor_type_of(chain[k - 1].node).nbytes for k in stored_lengths}
    pairs = {b: whole[a] + whole[b] for a, b in pairwise(stored_lengths)}
    best, least = 0, max(pairs.values(), default=0)
    for k in stored_lengths:
        rows = _axis_extent(chain[k - 1].node, axis)
        # the largest part of each inner tensor
        parts = (
            [_rows_needed_by_each_call(chain[:k], part, axis) for part in _split_rows_into_bands(rows, band_count)]
            if rows >= band_count
            else []
        )
        if not parts or any(first >= last for part in parts for (first, last), _ in part):
            break
        inner = [
            max((part[j][0][1] - part[j][0][0]) * whole[j] // _axis_extent(chain[j - 1].node, axis) for part in parts)
            for j in stored_lengths
            if j < k
        ]
        most = whole[k] + max([*map(sum, pairwise([*inner, whole[k] // band_count])), 0])
        most = max([most, *(size for j, size in pairs.items() if j > k)])
        if most < least:
            best, least = k, most
    return best


@dataclass(frozen=True, repr=False)
class PatchFirstLayers(FunctionPass):
    """Pass that computes the first convolutions of a network on bands of rows, if that takes less
    memory.

    count   number of bands into which the rows are divided; below 2 nothing changes
    """

    opt_level = 0

    count: int = 0

    def rewrite_function_body(self, function: Function) -> Function:
        uses = users(function.body)
        patched: dict[Expr, Expr] = {}
        for param in function.params if self.count > 1 else ():
            ty = param.checked_type
            for axis in range(1, ty.rank if isinstance(ty, TensorType) and ty.is_static else 0):
                chain = _longest_row_local_chain(param, uses, axis)
                if any(_is_conv2d_or_max_pool2d(link.node) for link in chain) and (
                    length := _chain_length_of_least_peak_memory(chain, self.count, axis)
                ):
                    patched[chain[length - 1].node] = _compute_in_row_bands(chain[:length], self.count, axis)
        return rewrite_nodes(function, lambda old, new: patched.get(old, new)) if patched else function
