# SPDX-License-Identifier: Apache-2.0
"""Window arithmetic, padding and layout strings of convolutions and pools.

pad_pairs((1, 2), 2)                   # ((1, 1), (2, 2)): before and after, per spatial axis
window_extent(224, 7, 2, 1, (3, 3))    # 112
positions("NHWC", "NCHW")              # (0, 3, 1, 2): the position of each axis of NCHW
"""

import re
from collections.abc import Sequence
from dataclasses import MISSING
from dataclasses import fields as dataclass_fields
from typing import Any, Final, TypeVar

import numpy as np

from aotc.ir import Dim, SymDim, param, require, variant
from aotc.relay.op.opdef import Array

T = TypeVar("T")
D = TypeVar("D", int, Dim)
Ints = int | Sequence[int]

#: Relay's data layout for 1 to 3 spatial axes.
DATA_LAYOUT: Final = {1: "NCW", 2: "NCHW", 3: "NCDHW"}
KERNEL_LAYOUT: Final = {1: "OIW", 2: "OIHW", 3: "OIDHW"}
#: Spatial axes as text for docstrings: "H, W".
AXES: Final = {n: ", ".join(layout[2:]) for n, layout in DATA_LAYOUT.items()}
#: Spatial axes of a kernel as text for docstrings: "KH, KW".
TAPS: Final = {n: ", ".join(f"K{axis}" for axis in layout[2:]) for n, layout in DATA_LAYOUT.items()}
TRANSPOSED_LAYOUT: Final = {1: "IOW", 2: "IOHW", 3: "IODHW"}


def spread(value: Ints, n: int) -> tuple[int, ...]:
    """Return one value for each of `n` spatial axes from one or `n` values; raise AotcError (code
    "window") for others.
    """
    items = (value,) if isinstance(value, int) else tuple(int(v) for v in value)
    require("window", len(items) in (1, n), f"expected 1 or {n} values, got {items}")
    return items * n if len(items) == 1 else items


def pad_pairs(padding: Ints, n: int) -> tuple[tuple[int, int], ...]:
    """Return (before, after) for each spatial axis from 1, `n` or 2n values (all befores, then all
    afters).

    Raise AotcError (code "padding") for another number of values and for negative ones.
    """
    items = (padding,) if isinstance(padding, int) else tuple(int(v) for v in padding)
    require("padding", len(items) in (1, n, 2 * n), lambda: f"expected 1, {n} or {2 * n} paddings, got {items}")
    require("padding", all(p >= 0 for p in items), f"negative padding {items}")
    both = items if len(items) == 2 * n else (items * n if len(items) == 1 else items) * 2
    return tuple(zip(both[:n], both[n:], strict=True))


def full_padding(padding: Ints, n: int) -> tuple[int, ...]:
    """Return padding as 2n values (all befores, then all afters), as Relay's Python functions store
    it.
    """
    pairs = pad_pairs(padding, n)
    return (*(b for b, _ in pairs), *(a for _, a in pairs))


def each_axis(n: int, default: Any = MISSING, given: Any = ...) -> Any:
    """Return an attribute field with a value for each of `n` spatial axes; a single value applies
    to all axes.
    """
    values = (default,) * n if isinstance(default, int) else default
    return param(default=values, given=given, takes=lambda value, _: spread(value, n))


def paddings(n: int, count: int | None = None) -> Any:
    """Return an attribute field for the padding of `n` spatial axes; the default is `count` (or
    `n`) zeros.
    """
    return param(default=(0,) * (count or n), takes=lambda values, _: full_padding(values, n))


def for_axes(n: int, base: type[T], name: str, **fields: Any) -> type[T]:
    """Return the attribute class of an operator over `n` spatial axes, derived from `base`.

    In the docstring of `base`, {n} stands for the number of axes, {axes} for the spatial axes of
    the data and {taps} for those of the kernel.
    """
    known = {
        "strides": each_axis(n, 1),
        "dilation": each_axis(n, 1),
        "padding": paddings(n),
        "kernel_size": each_axis(n, None),
        "layout": DATA_LAYOUT[n],
        "data_layout": DATA_LAYOUT[n],
    }
    own = {f.name for f in dataclass_fields(base)}  # type: ignore[arg-type]
    made = variant(base, name, **{k: v for k, v in (known | fields).items() if k in own})
    made.__doc__ = (base.__doc__ or "").format(n=n, axes=AXES[n], taps=TAPS[n])
    return made


def positions(layout: str, canonical: str) -> tuple[int, ...]:
    """Return the position in `layout` of each axis of `canonical`; raise AotcError (code "layout")
    if the axes differ.
    """
    same = sorted(layout) == sorted(canonical)
    require("layout", same, lambda: f"layout {layout!r} is not an order of the axes {', '.join(canonical)}")
    return tuple(layout.index(letter) for letter in canonical)


def blocked(layout: str, letter: str) -> tuple[str, int]:
    """Parse a layout with an optional block of one axis: ("OIHW", 16) for "OIHW16o", ("OIHW", 0)
    for "OIHW".
    """
    found = re.fullmatch(rf"([A-Z]+)(?:([1-9]\d*){letter})?", layout)
    require("layout", found is not None, lambda: f"layout {layout!r} is not supported")
    assert found is not None
    return found[1], int(found[2] or 0)


def grouped(layout: str, letter: str) -> tuple[str, int, int, str]:
    """Parse a layout with an optional block, as `blocked` does, and an optional innermost group of
    another axis.

    The result is ("OHWI", 16, 4, "I") for "OHWI16o4i" and ("OIHW", 16, 0, "") for "OIHW16o".
    """
    found = re.fullmatch(r"(.*[a-z])([1-9]\d*)([a-z])", layout)
    plain, block = blocked(found[1] if found else layout, letter)
    known = found is None or (found[3].upper() in plain and found[3] != letter)
    require("layout", known, lambda: f"layout {layout!r} is not supported")
    return (plain, block, int(found[2]), found[3].upper()) if found else (plain, block, 0, "")


def pick(values: Sequence[T], where: Sequence[int]) -> tuple[T, ...]:
    """Return values that are in the order of a layout in canonical order."""
    return tuple(values[p] for p in where)


def arrange(values: Sequence[T], where: Sequence[int]) -> tuple[T, ...]:
    """Return values that are in canonical order in the order of a layout."""
    found = dict(zip(where, values, strict=True))
    return tuple(found[p] for p in range(len(values)))


def canonical(x: Array, where: Sequence[int]) -> Array:
    """Return an array transposed from a layout to canonical axis order."""
    return np.transpose(x, where)


def laid_out(x: Array, where: Sequence[int]) -> Array:
    """Return an array transposed from canonical axis order to a layout."""
    return np.transpose(x, np.argsort(where))


def steps(n: int, a: Any) -> tuple[tuple[int, ...], tuple[int, ...], tuple[tuple[int, int], ...]]:
    """Return strides, dilations and padding pairs from attributes, each with a value for each of
    `n` spatial axes.
    """
    return spread(a.strides, n), spread(a.dilation, n), pad_pairs(a.padding, n)


def layouts(n: int, data: str, out: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the positions of the canonical axes in the data and in the result; an empty `out`
    means the data's layout.
    """
    return positions(data, DATA_LAYOUT[n]), positions(out or data, DATA_LAYOUT[n])


def axes_kept(source: Sequence[int], result: Sequence[int], count: int) -> tuple[int | None, ...]:
    """Return an axis-map row that maps the first `count` canonical axes of the data; None for the
    other result axes.
    """
    found = dict(zip(result[:count], source[:count], strict=True))
    return tuple(found.get(k) for k in range(len(result)))


def may_equal(a: Dim, b: Dim) -> bool:
    """Return False if two dimensions are static and differ, else True."""
    return isinstance(a, SymDim) or isinstance(b, SymDim) or a == b


def _extent(size: int, kernel: int, stride: int, dilation: int, pad: tuple[int, int], ceil: bool) -> int:
    room = size + sum(pad) - dilation * (kernel - 1) - 1
    if room < 0 and not ceil:
        return 0
    # if the data is shorter than the window by less than one stride, the first window is partial,
    # too
    count = (room + (stride - 1 if ceil else 0)) // stride + 1
    # a window that starts after the data and its leading padding covers no element
    return max(0, count - 1 if ceil and (count - 1) * stride >= size + pad[0] else count)


def window_extent(
    dim: D, kernel: int, stride: int = 1, dilation: int = 1, pad: tuple[int, int] = (0, 0), ceil: bool = False
) -> D:
    """Return the number of windows along an axis; with `ceil`, a last partial window counts.

    Raise AotcError (code "window") if no window fits.
    """
    for name, number in (("size", kernel), ("stride", stride), ("dilation", dilation)):
        text = f"a {name} of {number} of a window"
        require("window", number > 0, text, hint=f"{name} must be at least 1 along each axis")
    if isinstance(dim, SymDim):
        if stride == 1 and sum(pad) == dilation * (kernel - 1):
            return dim
        upper = dim.upper and _extent(dim.upper, kernel, stride, dilation, pad, ceil)
        return SymDim(upper=upper)
    count = _extent(dim, kernel, stride, dilation, pad, ceil)
    require("window", count > 0, lambda: f"a window of {kernel} (dilation {dilation}) does not fit {dim} + {pad}")
    return count


def window_extents(n: int, a: Any, space: Sequence[D], sizes: Sequence[int], ceil: bool = False) -> list[D]:
    """Return the number of windows of the given sizes along each of `n` axes, with the attributes'
    strides and padding.
    """
    windows = zip(space, sizes, *steps(n, a), strict=True)
    return [window_extent(*window, ceil) for window in windows]
