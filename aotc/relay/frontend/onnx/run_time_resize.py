# SPDX-License-Identifier: Apache-2.0
"""Convert ONNX's operators Resize and Upsample whose sizes, scale factors or data have extents that are known at
run time only.

Factors and regions become fractions: sizes of a run are their numerators and denominators, so that coordinates are
those of a resize that is known when the model is compiled.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from aotc.ir import AotcError, Dim, interval_of_dim, largest_size, product_of_dims, require, same_dim, sign_bit_of_dim
from aotc.ir.size_operands import DENOMINATOR, MAX_DENOMINATOR, NUMERATOR, PRODUCT, bits_of_float32, float32_of_bits
from aotc.relay.expr import Expr
from aotc.relay.frontend import conv_pool
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.onnx.node import OnnxNode, SizeInput
from aotc.relay.frontend.size_operands import bits_of_float_operand, define_by_function, define_size
from aotc.relay.graph_api import Var, compile_time_elements

#: Numerator and denominator.
Ratio = tuple[Dim, Dim]
#: Largest number of axes that one operator resizes.
MAX_RESIZED_AXES: Final = 3
_WHOLE: Final = ((0, 1), (1, 1))


class RunTimeAxis(NamedTuple):
    """The resizing of an axis: the extents of the data and of the result, the factor, and the start and the end of
    the cropped region as fractions of the extent.
    """

    extent: Dim
    size: Dim
    scale: Ratio
    region: tuple[Ratio, Ratio] = _WHOLE

    @property
    def is_identity(self) -> bool:
        """True if the axis stays as it is."""
        return same_dim(self.extent, self.size) and same_dim(*self.scale) and self.region == _WHOLE


def resize_at_run_time(
    x: Expr, method: str, mode: str, nearest_mode: str, node: OnnxNode, numbers: Mapping[str, Any]
) -> Expr:
    """Convert a Resize, in groups of at most three axes: interpolation is separable.

    Raises AotcError (code "onnx-runtime-shape" or "onnx-resize") for factors and regions that are neither constant
    nor inputs of the model.
    """
    axes = _axes_of_node(g.dims(x), node, mode == "tf_crop_and_resize")
    changed = [k for k, axis in axes.items() if not axis.is_identity]
    dtype = g.dtype(x)
    result = [axes[k].size if k in axes else d for k, d in enumerate(g.dims(x))]
    g.checked_dims(result, dtype, f"the result of {node.op_type}")
    groups = [sorted(changed)[k : k + MAX_RESIZED_AXES] for k in range(0, len(changed), MAX_RESIZED_AXES)]
    # only the last group rounds to integers
    if len(groups) > 1 and not dtype.is_float and method != "nearest_neighbor":
        x = g.cast(x, "float64" if dtype.bits > 8 else "float32")
    for group in reversed(groups):
        dims, rank = g.dims(x), g.rank(x)
        order = [*(k for k in range(rank) if k not in group), *group]
        others = product_of_dims(dims[k] for k in order[: -len(group)])
        chosen = [axes[k] for k in group]
        regions = [axis.region for axis in chosen]
        y = conv_pool.build_resize(
            g.reshape(g.transpose(x, order), (1, others, *(axis.extent for axis in chosen))),
            [axis.size for axis in chosen],
            method,
            mode,
            nearest_mode,
            numbers.get("cubic_coeff_a", -0.75),
            cubic_exclude=numbers.get("exclude_outside", 0),
            extrapolation_value=numbers.get("extrapolation_value", 0.0),
            antialias=bool(numbers.get("antialias")) and method != "nearest_neighbor",
            scale_fractions=tuple(axis.scale for axis in chosen),
            roi_fractions=(*(start for start, _ in regions), *(end for _, end in regions)),
            out_dtype=str(dtype) if group is groups[0] else "",
        )
        y = g.reshape(y, [axes[k].size if k in group else dims[k] for k in order])
        x = g.transpose(y, [order.index(k) for k in range(rank)])
    return x


def _axes_of_node(dims: Sequence[Dim], node: OnnxNode, crops: bool) -> dict[int, RunTimeAxis]:
    """Return the resizing of each axis in the attribute `axes` (all axes by default) of a Resize."""
    places = [g.normalize_axis(a, len(dims)) for a in node.attrs.get("axes") or range(len(dims))]
    extents, count = [dims[a] for a in places], len(places)
    newer = node.op_type != "Upsample" and node.since >= 11
    has_sizes = newer and _is_given(node, 3)
    regions: list[tuple[Ratio, Ratio]] = [_WHOLE] * count
    if crops:
        require("onnx-resize", has_sizes, "tf_crop_and_resize by factors needs sizes that are known at compile time")
        ratios = [_ratio_of_float(bits, 0) for bits in _float_bits(node, 1, "roi", 2 * count)]
        regions = list(zip(ratios[:count], ratios[count:], strict=True))
    if has_sizes:
        sizes = SizeInput(node, 3, "sizes").within(1, None)
        require("onnx-resize", len(sizes) == count, f"sizes {sizes} must have one value for each of {count} axes")
        policy = node.attrs.get("keep_aspect_ratio_policy", "stretch")
        scales: list[Ratio] = list(zip(sizes, extents, strict=True))
        if policy != "stretch":
            sizes, scales = _sizes_of_common_scale(scales, policy)
    else:
        floats = _float_bits(node, 2 if newer else 1, "scales", count)
        scales = [_ratio_of_float(bits, 1) for bits in floats]
        sizes = list(itertools.starmap(_scaled_extent, zip(extents, floats, strict=True)))
    rows = zip(extents, sizes, scales, regions, strict=True)
    return dict(zip(places, itertools.starmap(RunTimeAxis, rows), strict=True))


def _is_given(node: OnnxNode, index: int) -> bool:
    value = node.optional_input(index)
    elements = None if value is None else compile_time_elements(value)
    return value is not None and (elements is None or elements.size > 0)


def _float_bits(node: OnnxNode, index: int, name: str, count: int) -> list[Dim]:
    """Return the bits of float32 numbers in an input or attribute."""
    value = node.optional_input(index)
    if "height_scale" in node.attrs:  # Upsample of operator set 1
        known = np.array([1.0, 1.0, node.attrs["height_scale"], node.attrs["width_scale"]])
    elif name in node.attrs or value is None or compile_time_elements(value) is not None:
        given = node.constant_value_of_attribute_or_input(index, name)
        require("onnx-resize", given is not None, f"{node.op_type} needs `{name}`")
        known = np.asarray(given)
    else:
        found = None
        if isinstance(value, Var) and g.shape(value) == (count,):
            found = [bits_of_float_operand(value, k) for k in range(count)]
        if found is None or None in found:
            text = f"`{name}` of {node.op_type} is neither constant nor an input of {count} float32 numbers"
            raise AotcError("onnx-runtime-shape", text)
        return [bits for bits in found if bits is not None]
    fits = known.size == count and bool(np.isfinite(known).all()) and bool((known >= 0).all())
    require("onnx-resize", fits, f"`{name}` must be {count} finite numbers that are not negative, got {known}")
    return [bits_of_float32(float(v)) for v in known.reshape(-1)]


def _ratio_of_float(bits: Dim, least: int) -> Ratio:
    """Return the fraction nearest to a float of at least 0, whose numerator is at least `least`."""
    most = math.ceil(float32_of_bits(largest_size(bits)))
    parts = (NUMERATOR, least, most * MAX_DENOMINATOR), (DENOMINATOR, 1, MAX_DENOMINATOR)
    numerator, denominator = (define_by_function(f, bits, 0, low, high) for f, low, high in parts)
    return numerator, denominator


def _scaled_extent(extent: Dim, bits: Dim) -> Dim:
    """Return an extent times a factor, rounded down from the product as float32."""
    most = int(np.float32(largest_size(extent)) * np.float32(float32_of_bits(largest_size(bits))))
    return define_by_function(PRODUCT, bits, extent, 1, max(most, 1))


def _sizes_of_common_scale(scales: Sequence[Ratio], policy: str) -> tuple[list[Dim], list[Ratio]]:
    """Return the sizes and the factors of axes, all of which use the smallest or the largest factor, as ONNX's
    keep_aspect_ratio_policy defines.
    """
    require("onnx-resize", policy in ("not_larger", "not_smaller"), f"unknown keep_aspect_ratio_policy {policy!r}")
    numerator, denominator = scales[0]
    for size, extent in scales[1:]:
        left, right = product_of_dims((size, denominator)), product_of_dims((numerator, extent))
        difference = left - right if policy == "not_larger" else right - left
        is_chosen = define_size(sign_bit_of_dim(difference), 0, 1)
        kept = 1 - is_chosen
        pairs = ((numerator, size), (denominator, extent))
        numerator, denominator = (
            define_size(
                product_of_dims((kept, old)) + product_of_dims((is_chosen, new)), 1, max(map(largest_size, (old, new)))
            )
            for old, new in pairs
        )
    # halves are rounded up
    sizes: list[Dim] = []
    for _, extent in scales:
        doubled = 2 * product_of_dims((extent, numerator)) + denominator
        size = doubled // (2 * denominator)
        sizes.append(define_size(size, 1, max(int(interval_of_dim(size)[1]), 1)))
    return sizes, [(numerator, denominator)] * len(scales)
