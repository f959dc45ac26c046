# SPDX-License-Identifier: Apache-2.0
"""Window arithmetic, padding and layout strings of convolutions and pools.

pad_pairs_of_axes((1, 2), 2)           # ((1, 1), (2, 2)): before and after, per spatial axis
window_count(224, 7, 2, 1, (3, 3))     # 112
canonical_axis_positions("NHWC", "NCHW")  # (0, 3, 1, 2): the position of each axis of NCHW
"""

import re
from collections.abc import Sequence
from dataclasses import MISSING
from dataclasses import fields as dataclass_fields
from typing import Any, Final, TypeVar

import numpy as np

from aotc.ir import Dim, SymDim, assume_at_least, attribute_field, attrs_class_with_defaults, require
from aotc.relay.op.opdef import Array

T = TypeVar("T")
D = TypeVar("D", int, Dim)
Ints = int | Sequence[int]

#: Relay's data layout for 1 to 3 spatial axes.
DATA_LAYOUT_BY_RANK: Final = {1: "NCW", 2: "NCHW", 3: "NCDHW"}
KERNEL_LAYOUT_BY_RANK: Final = {1: "OIW", 2: "OIHW", 3: "OIDHW"}
#: Spatial axes as text for docstrings: "H, W".
SPATIAL_AXES_TEXT_BY_RANK: Final = {n: ", ".join(layout[2:]) for n, layout in DATA_LAYOUT_BY_RANK.items()}
#: Spatial axes of a kernel as text for docstrings: "KH, KW".
KERNEL_AXES_TEXT_BY_RANK: Final = {
    n: ", ".join(f"K{axis}" for axis in layout[2:]) for n, layout in DATA_LAYOUT_BY_RANK.items()
}
TRANSPOSED_KERNEL_LAYOUT_BY_RANK: Final = {1: "IOW", 2: "IOHW", 3: "IODHW"}


def repeat_for_each_axis(value: Ints, axis_count: int) -> tuple[int, ...]:
    """Return one value for each of `axis_count` spatial axes from one or `axis_count` values; raise
    AotcError (code "window") for others.
    """
    items = (value,) if isinstance(value, int) else tuple(int(v) for v in value)
    require("window", len(items) in (1, axis_count), f"expected 1 or {axis_count} values, got {items}")
    return items * axis_count if len(items) == 1 else items


def pad_pairs_of_axes(padding: Ints, axis_count: int) -> tuple[tuple[int, int], ...]:
    """Return (before, after) for each spatial axis from 1, `axis_count` or `2 * axis_count`
    values (all befores, then all afters).

    Raise AotcError (code "padding") for another number of values and for negative ones.
    """
    items = (padding,) if isinstance(padding, int) else tuple(int(v) for v in padding)
    require(
        "padding",
        len(items) in (1, axis_count, 2 * axis_count),
        lambda: f"expected 1, {axis_count} or {2 * axis_count} paddings, got {items}",
    )
    require("padding", all(p >= 0 for p in items), f"negative padding {items}")
    both = items if len(items) == 2 * axis_count else (items * axis_count if len(items) == 1 else items) * 2
    return tuple(zip(both[:axis_count], both[axis_count:], strict=True))


def befores_then_afters_padding(padding: Ints, axis_count: int) -> tuple[int, ...]:
    """Return padding as `2 * axis_count` values (all befores, then all afters), as Relay's Python
    functions store it.
    """
    pairs = pad_pairs_of_axes(padding, axis_count)
    return (*(b for b, _ in pairs), *(a for _, a in pairs))


def per_axis_attribute_field(axis_count: int, default: Any = MISSING, given: Any = ...) -> Any:
    """Return an attribute field with a value for each of `axis_count` spatial axes; a single value
    applies to all axes.
    """
    values = (default,) * axis_count if isinstance(default, int) else default
    return attribute_field(
        default=values, parameter_default=given, convert=lambda value, _: repeat_for_each_axis(value, axis_count)
    )


def padding_attribute_field(axis_count: int, default_length: int | None = None) -> Any:
    """Return an attribute field for the padding of `axis_count` spatial axes; the default is
    `default_length` (or `axis_count`) zeros.
    """
    return attribute_field(
        default=(0,) * (default_length or axis_count),
        convert=lambda values, _: befores_then_afters_padding(values, axis_count),
    )


def attrs_class_for_rank(axis_count: int, base: type[T], name: str, **fields: Any) -> type[T]:
    """Return the attribute class of an operator over `axis_count` spatial axes, derived from
    `base`.

    In the docstring of `base`, {n} stands for the number of axes, {axes} for the spatial axes of
    the data and {taps} for those of the kernel.
    """
    known = {
        "strides": per_axis_attribute_field(axis_count, 1),
        "dilation": per_axis_attribute_field(axis_count, 1),
        "padding": padding_attribute_field(axis_count),
        "kernel_size": per_axis_attribute_field(axis_count, None),
        "layout": DATA_LAYOUT_BY_RANK[axis_count],
        "data_layout": DATA_LAYOUT_BY_RANK[axis_count],
    }
    base_fields = {f.name for f in dataclass_fields(base)}  # type: ignore[arg-type]
    attrs_class = attrs_class_with_defaults(
        base, name, **{k: v for k, v in (known | fields).items() if k in base_fields}
    )
    attrs_class.__doc__ = (base.__doc__ or "").format(
        n=axis_count, axes=SPATIAL_AXES_TEXT_BY_RANK[axis_count], taps=KERNEL_AXES_TEXT_BY_RANK[axis_count]
    )
    return attrs_class


def canonical_axis_positions(layout: str, canonical_layout: str) -> tuple[int, ...]:
    """Return the position in `layout` of each axis of `canonical_layout`; raise AotcError (code
    "layout") if the axes differ.
    """
    same = sorted(layout) == sorted(canonical_layout)
    require("layout", same, lambda: f"layout {layout!r} is not an order of the axes {', '.join(canonical_layout)}")
    return tuple(layout.index(letter) for letter in canonical_layout)


def parse_blocked_layout(layout: str, block_letter: str) -> tuple[str, int]:
    """Parse a layout with an optional block of one axis: ("OIHW", 16) for "OIHW16o", ("OIHW", 0)
    for "OIHW".
    """
    layout_match = re.fullmatch(rf"([A-Z]+)(?:([1-9]\d*){block_letter})?", layout)
    require("layout", layout_match is not None, lambda: f"layout {layout!r} is not supported")
    assert layout_match is not None
    return layout_match[1], int(layout_match[2] or 0)


def parse_layout_with_up_to_two_blocks(layout: str, block_letter: str) -> tuple[str, int, int, str]:
    """Parse a layout with an optional block, as `parse_blocked_layout` does, and an optional
    innermost group of another axis.

    The result is ("OHWI", 16, 4, "I") for "OHWI16o4i" and ("OIHW", 16, 0, "") for "OIHW16o".
    """
    layout_match = re.fullmatch(r"(.*[a-z])([1-9]\d*)([a-z])", layout)
    plain, block = parse_blocked_layout(layout_match[1] if layout_match else layout, block_letter)
    known = layout_match is None or (layout_match[3].upper() in plain and layout_match[3] != block_letter)
    require("layout", known, lambda: f"layout {layout!r} is not supported")
    return (plain, block, int(layout_match[2]), layout_match[3].upper()) if layout_match else (plain, block, 0, "")


def layout_to_canonical_order(values: Sequence[T], axis_positions: Sequence[int]) -> tuple[T, ...]:
    """Return values that are in the order of a layout in canonical order."""
    return tuple(values[p] for p in axis_positions)


def canonical_to_layout_order(values: Sequence[T], axis_positions: Sequence[int]) -> tuple[T, ...]:
    """Return values that are in canonical order in the order of a layout."""
    value_by_position = dict(zip(axis_positions, values, strict=True))
    return tuple(value_by_position[p] for p in range(len(values)))


def transpose_to_canonical(x: Array, axis_positions: Sequence[int]) -> Array:
    """Return an array transposed from a layout to canonical axis order."""
    return np.transpose(x, axis_positions)


def transpose_to_layout(x: Array, axis_positions: Sequence[int]) -> Array:
    """Return an array transposed from canonical axis order to a layout."""
    return np.transpose(x, np.argsort(axis_positions))


def strides_dilations_and_pads(
    axis_count: int, attrs: Any
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[tuple[int, int], ...]]:
    """Return strides, dilations and padding pairs from attributes, each with a value for each of
    `axis_count` spatial axes.
    """
    return (
        repeat_for_each_axis(attrs.strides, axis_count),
        repeat_for_each_axis(attrs.dilation, axis_count),
        pad_pairs_of_axes(attrs.padding, axis_count),
    )


def data_and_result_axis_positions(
    axis_count: int, data_layout: str, out_layout: str
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the positions of the canonical axes in the data and in the result; an empty
    `out_layout` means the data's layout.
    """
    return canonical_axis_positions(data_layout, DATA_LAYOUT_BY_RANK[axis_count]), canonical_axis_positions(
        out_layout or data_layout, DATA_LAYOUT_BY_RANK[axis_count]
    )


def axis_map_row_of_leading_axes(
    data_positions: Sequence[int], result_positions: Sequence[int], leading_axis_count: int
) -> tuple[int | None, ...]:
    """Return an axis-map row: for each axis of the result, the corresponding axis of the data if it is
    one of the first `leading_axis_count` canonical axes, else None.
    """
    data_axis_of = dict(zip(result_positions[:leading_axis_count], data_positions[:leading_axis_count], strict=True))
    return tuple(data_axis_of.get(k) for k in range(len(result_positions)))


def _window_count_of_static_axis(
    extent: int, kernel: int, stride: int, dilation: int, pad: tuple[int, int], count_partial: bool
) -> int:
    room = extent + sum(pad) - dilation * (kernel - 1) - 1
    if room < 0 and not count_partial:
        return 0
    # if the data is shorter than the window by less than one stride, the first window is partial,
    # too
    count = (room + (stride - 1 if count_partial else 0)) // stride + 1
    # a window that starts after the data and its leading padding covers no element
    return max(0, count - 1 if count_partial and (count - 1) * stride >= extent + pad[0] else count)


def window_count(
    extent: D,
    kernel: int,
    stride: int = 1,
    dilation: int = 1,
    pad: tuple[int, int] = (0, 0),
    count_partial: bool = False,
) -> D:
    """Return the number of windows along an axis; with `count_partial`, a last partial window
    counts.

    Raise AotcError (code "window") if no window fits.
    """
    for name, number in (("size", kernel), ("stride", stride), ("dilation", dilation)):
        text = f"a {name} of {number} of a window"
        require("window", number > 0, text, hint=f"{name} must be at least 1 along each axis")
    if isinstance(extent, SymDim):
        if stride == 1 and sum(pad) == dilation * (kernel - 1):
            return extent
        upper = extent.upper and _window_count_of_static_axis(
            extent.upper, kernel, stride, dilation, pad, count_partial
        )
        if count_partial:
            return SymDim(upper=upper)
        assume_at_least(extent, dilation * (kernel - 1) + 1 - sum(pad))
        count = (extent + (sum(pad) - dilation * (kernel - 1) - 1)) // stride + 1
        return SymDim(count.name, upper, count.lower) if isinstance(count, SymDim) else count
    count = _window_count_of_static_axis(extent, kernel, stride, dilation, pad, count_partial)
    require("window", count > 0, lambda: f"a window of {kernel} (dilation {dilation}) does not fit {extent} + {pad}")
    return count


def window_counts_of_axes(
    axis_count: int, attrs: Any, spatial_extents: Sequence[D], window_sizes: Sequence[int], count_partial: bool = False
) -> list[D]:
    """Return the number of windows of the given sizes along each of `axis_count` axes, with the
    attributes' strides and padding.
    """
    windows = zip(spatial_extents, window_sizes, *strides_dilations_and_pads(axis_count, attrs), strict=True)
    return [window_count(*window, count_partial) for window in windows]
