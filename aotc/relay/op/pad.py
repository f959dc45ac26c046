# SPDX-License-Identifier: Apache-2.0
"""Padding of tensors with a constant or with the tensor's own elements (edge, reflect, wrap).

pad(x, ((0, 0), (1, 1)), pad_value=0.0)
pad(x, ((0, 0), (2, 1)), pad_mode="reflect")
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, Final

import numpy as np

from aotc.ir import (
    Arg,
    Attrs,
    AxisMap,
    Dim,
    OpPattern,
    QuantizationTreatment,
    SymDim,
    TensorType,
    Type,
    Types,
    assume_at_least,
    declare_arguments,
    is_static,
    maximum_of_dims,
    require,
    require_static_shape,
    sum_of_dims,
)
from aotc.relay.op.opdef import Array, Index, OpDef, Sample, Samples, Scalar, compute_from_element_function
from aotc.relay.op.operator_definition import ANY_DTYPE_KIND, exact_sample, number_converter_with_dtype_of, random_array
from aotc.relay.op.type_rules import (
    require_known_name,
    require_same_dtype,
    require_scalar_tensor_type,
    require_tensor_type,
)
from aotc.tir import Tensor, all_of, as_expr, maximum, minimum, select

PAD_MODES: Final = ("constant", "edge", "reflect", "wrap")


class PadAttrs(Attrs):
    """`data` with (before, after) elements added to each axis.

    pad_value  a number, or a scalar expression of the data's type; only for "constant"
    pad_mode   "constant" (negative widths crop), "edge", "reflect" (without the edge) or "wrap"
    """

    pad_width: tuple[tuple[int | SymDim, int | SymDim], ...]
    pad_mode: str = "constant"


class MirrorPadAttrs(Attrs):
    """Padding by reflection, with the edge repeated ("SYMMETRIC") or not ("REFLECT")."""

    mode: str = "SYMMETRIC"
    pad_width: tuple[tuple[int, int], ...]


def _padded_extent(data_extent: Dim, width: tuple[Dim, Dim], mode: str) -> Dim:
    extent = sum_of_dims((data_extent, *width))
    some = isinstance(extent, SymDim) or extent >= 0
    require("pad.width", some, lambda: f"padding of {width} leaves nothing of an extent of {data_extent}")
    repeatable = data_extent != 0 or mode == "constant" or width == (0, 0)
    require("pad.empty", repeatable, "an empty axis has no elements to pad with")
    return extent


def _infer_padded_type(data: TensorType, widths: Sequence[tuple[Dim, Dim]], mode: str) -> TensorType:
    fits = len(widths) == data.rank
    require("pad.rank", fits, lambda: f"padding of {len(widths)} axes for a tensor of rank {data.rank}")
    if mode != "constant":
        crops = any(isinstance(w, int) and w < 0 for pair in widths for w in pair)
        require("pad.width", not crops, lambda: f"negative padding in mode {mode!r}")
        for d, pair in zip(data.shape, widths, strict=True):
            for w in pair:
                assume_at_least(w, 0)
            if pair != (0, 0):
                assume_at_least(d, 1)
    return TensorType((_padded_extent(d, w, mode) for d, w in zip(data.shape, widths, strict=True)), data.dtype)


def _infer_pad_type(a: PadAttrs, types: Types) -> Type:
    data = require_tensor_type(types[0], "data")
    require_known_name("pad.mode", "padding mode", a.pad_mode, PAD_MODES)
    require_same_dtype(data, require_scalar_tensor_type("pad.value", types[1], "pad value"))
    return _infer_padded_type(data, a.pad_width, a.pad_mode)


def _pad_axis_map(attrs: Any, _: Types) -> AxisMap:
    return AxisMap((tuple(k if w == (0, 0) else None for k, w in enumerate(attrs.pad_width)),))


def _pad_attrs_after_permutation(attrs: Any, _: Types, new_axis_of: Callable[[int], int]) -> Any:
    return attrs.replace(
        pad_width=tuple(attrs.pad_width[k] for k in sorted(range(len(attrs.pad_width)), key=new_axis_of))
    )


def _pad_reference(a: PadAttrs, data: Array, value: Array) -> Array:
    if a.pad_mode != "constant":
        return _numpy_pad_in_non_constant_mode(data, a.pad_width, a.pad_mode)
    widths = [require_static_shape(pair) for pair in a.pad_width]
    added = [(max(before, 0), max(after, 0)) for before, after in widths]
    whole = np.pad(data, added, constant_values=value) if added else data
    ends = zip(whole.shape, widths, strict=True)
    return whole[tuple(slice(max(-before, 0), d - max(-after, 0)) for d, (before, after) in ends)]


def _numpy_pad_in_non_constant_mode(data: Array, widths: Any, mode: Any) -> Array:
    """Pad an array by indexing with padded indices, which works for every data type."""
    for axis, width in enumerate(widths):
        if tuple(width) != (0, 0):
            data = data.take(np.pad(np.arange(data.shape[axis]), width, mode=mode), axis)
    return data


def _padding_source_index(padded_index: Scalar, extent: Dim, width: tuple[Dim, Dim], mode: str) -> Scalar:
    """Return the index of the data element that the padded element `padded_index` along one axis
    repeats.

    If the padding is no wider than the data, the index is a choice among three affine expressions,
    so that loops can be split at the borders.
    """
    at = padded_index - width[0]
    if width == (0, 0):
        return at
    if extent == 1:
        return as_expr(0)
    if isinstance(extent, SymDim) or not is_static(width):
        return _padding_source_index_of_any_width(at, extent, mode)
    before_width, after_width = require_static_shape(width)
    doubled = mode == "symmetric"  # the outermost elements are repeated
    last = 2 * extent - (1 if doubled else 2)
    wide = max(before_width, after_width) >= extent
    if wide and mode == "wrap":
        return at % extent
    if wide and mode != "edge":
        folded = at % (last + doubled)
        return minimum(folded, last - folded)
    before, after = {
        "edge": (as_expr(0), as_expr(extent - 1)),
        "wrap": (at + extent, at - extent),
        "reflect": (-at, last - at),
        "symmetric": (-1 - at, last - at),
    }[mode]
    inside = select(at >= extent, after, at) if after_width > 0 else at
    return select(at < 0, before, inside) if before_width > 0 else inside


def _padding_source_index_of_any_width(at: Scalar, extent: Dim, mode: str) -> Scalar:
    """Return the index of the data element at position `at`, which may be far outside of the data."""
    if mode == "edge":
        return minimum(maximum(at, as_expr(0)), as_expr(extent) - 1)
    if mode == "wrap":
        return at % as_expr(extent)
    period = maximum_of_dims((2 * extent - 2, 1)) if mode == "reflect" else 2 * extent
    folded = at % as_expr(period)
    return minimum(folded, as_expr(2 * extent - 2 if mode == "reflect" else 2 * extent - 1) - folded)


def _padded_element_in_non_constant_mode(
    data: Tensor, i: Index, widths: Sequence[tuple[Dim, Dim]], mode: str
) -> Scalar:
    return data[tuple(_padding_source_index(k, d, w, mode) for k, d, w in zip(i, data.shape, widths, strict=True))]


def _may_be_positive(width: Dim) -> bool:
    return isinstance(width, SymDim) or width > 0


def _pad_result_element(a: PadAttrs, i: Index, data: Tensor, value: Tensor) -> Scalar:
    if a.pad_mode != "constant":
        return _padded_element_in_non_constant_mode(data, i, a.pad_width, a.pad_mode)
    at = tuple(k - w[0] for k, w in zip(i, a.pad_width, strict=True))
    bounds = zip(at, data.shape, a.pad_width, strict=True)
    sides = [((k >= 0, w[0]), (k < d, w[1])) for k, d, w in bounds]
    inside = [condition for pair in sides for condition, width in pair if _may_be_positive(width)]
    return select(all_of(*inside), data[at], value[()])


_PAD_TEST_CASES: Final[Any] = (
    ((2, 3), ((1, 2), (0, 1))), ((2, 3), ((0, 0), (1, 0))), ((1, 3), ((2, 2), (2, 2))), ((4,), ((3, 3),)),
    ((3,), ((7, 5),)), ((2, 3), ((0, 0), (0, 0))), ((), ()),
)  # fmt: skip


def _pad_test_samples() -> Samples:
    def pad_sample(shape: Sequence[int], width: Any, mode: str = "constant", dtype: str = "float32") -> Sample:
        data = random_array(shape, dtype)
        return exact_sample(PadAttrs(pad_width=width, pad_mode=mode), data, np.ones((), data.dtype))

    for (shape, width), mode in product(_PAD_TEST_CASES, PAD_MODES):
        yield pad_sample(shape, width, mode)
    for dtype in ANY_DTYPE_KIND.examples:
        yield pad_sample((2, 3), ((1, 0), (0, 2)), "constant", dtype)
    for width in (((-1, 1), (0, -2)), ((-1, -1), (0, 0)), ((0, 0), (-3, 1)), ((5, -6), (-4, 2))):
        yield pad_sample((4, 3), width)
    yield pad_sample((0, 2), ((1, 0), (0, 0)))


pad = OpDef(
    name="nn.pad",
    attrs=PadAttrs,
    args=declare_arguments(
        "data", Arg("pad_value", "Expr | float", given=0, takes=number_converter_with_dtype_of("data"))
    ),
    order="data pad_width pad_value pad_mode",
    infer=_infer_pad_type,
    reference=_pad_reference,
    pattern=OpPattern.INJECTIVE,
    axes=_pad_axis_map,
    moved=_pad_attrs_after_permutation,
    quantized=QuantizationTreatment.PASS,
    element=_pad_result_element,
    samples=_pad_test_samples,
)


# --- mirror_pad


def _infer_mirror_pad_type(a: MirrorPadAttrs, types: Types) -> Type:
    require_known_name("pad.mode", "mirror padding mode", a.mode, ("SYMMETRIC", "REFLECT"))
    return _infer_padded_type(require_tensor_type(types[0]), a.pad_width, a.mode)


def _mirror_pad_test_samples() -> Samples:
    for (shape, width), mode in product(_PAD_TEST_CASES, ("SYMMETRIC", "REFLECT")):
        yield exact_sample(MirrorPadAttrs(mode=mode, pad_width=width), random_array(shape))


mirror_pad = OpDef(
    name="nn.mirror_pad",
    attrs=MirrorPadAttrs,
    order="data pad_width mode",
    infer=_infer_mirror_pad_type,
    reference=lambda a, data: _numpy_pad_in_non_constant_mode(data, a.pad_width, a.mode.lower()),
    pattern=OpPattern.INJECTIVE,
    axes=_pad_axis_map,
    moved=_pad_attrs_after_permutation,
    compute=compute_from_element_function(
        "pad",
        _infer_mirror_pad_type,
        lambda a, i, data: _padded_element_in_non_constant_mode(data, i, a.pad_width, a.mode.lower()),
    ),
    samples=_mirror_pad_test_samples,
)
