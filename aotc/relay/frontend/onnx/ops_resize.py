# SPDX-License-Identifier: Apache-2.0
"""Converters of resizing: Resize of all versions, and Upsample.

The resized axes must be among the last three once axes that keep their size are set aside;
they become the spatial axes of `image.resize1d`, `resize2d` or `resize3d`.

    OPS["Resize"](node)                     # image.resize2d(x, size=(8, 8), ...)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from aotc.ir.diagnostics import AotcError
from aotc.relay.expr import Expr
from aotc.relay.frontend import graph as g
from aotc.relay.frontend.matmul import matmul
from aotc.relay.frontend.onnx.load import Array
from aotc.relay.frontend.onnx.node import Node, Table
from aotc.relay.frontend.resize import grid_sample, resize

_METHODS = {"nearest": "nearest_neighbor", "linear": "linear", "bilinear": "linear", "cubic": "cubic"}


@dataclass(frozen=True, slots=True)
class _Plan:
    """What to do per axis of the input: the size to reach, the factor, and the region as
    parts of the extent.
    """

    sizes: list[int]
    scales: list[float]
    starts: list[float]
    ends: list[float]

    def changed(self, shape: Sequence[int], crops: bool) -> list[int]:
        """Axes that are not left as they are."""
        return [
            k
            for k, size in enumerate(shape)
            if self.sizes[k] != size or self.scales[k] != 1.0 or (crops and (self.starts[k], self.ends[k]) != (0, 1))
        ]


def _plan(node: Node, shape: tuple[int, ...], crops: bool) -> _Plan:
    rank = len(shape)
    axes = [g.axis(a, rank) for a in node.ints("axes") or range(rank)]
    plan = _Plan(list(shape), [1.0] * rank, [0.0] * rank, [1.0] * rank)
    if crops:
        roi = node.const(1, "the region")
        if roi is None or roi.size != 2 * len(axes):
            raise AotcError("onnx-resize", "tf_crop_and_resize needs a region with a start and an end per axis")
        for k, axis in enumerate(axes):
            plan.starts[axis], plan.ends[axis] = float(roi.flat[k]), float(roi.flat[k + len(axes)])
    scales, sizes = _given(node)
    if not all(map(math.isfinite, (*scales, *plan.starts, *plan.ends))):
        raise AotcError("onnx-resize", f"scales {scales} or the region are not finite")
    if sizes:
        _fit_sizes(node, plan, shape, axes, sizes)
    else:
        if len(scales) != len(axes) or min(scales, default=1.0) <= 0:
            raise AotcError("onnx-resize", f"scales {scales} do not fit {len(axes)} axes")
        for axis, scale in zip(axes, scales, strict=True):
            plan.scales[axis] = scale
            plan.sizes[axis] = math.floor(shape[axis] * (plan.ends[axis] - plan.starts[axis]) * scale)
    return plan


def _given(node: Node) -> tuple[list[float], list[int]]:
    """The factors and the sizes; one of them is empty."""
    if "scales" in node.attrs:  # Upsample of version 7
        return [float(s) for s in node.attrs["scales"]], []
    place = 1 if node.op_type == "Upsample" or node.since < 11 else 2
    scales = node.const(place, "`scales`")
    sizes = node.const_ints(3, "`sizes`") if place == 2 else None
    given = [] if scales is None else [float(s) for s in scales.reshape(-1)]
    if bool(given) == bool(sizes):
        raise AotcError("onnx-resize", f"{node.op_type} needs either scales or sizes")
    return given, sizes or []


def _fit_sizes(node: Node, plan: _Plan, shape: Sequence[int], axes: Sequence[int], sizes: Sequence[int]) -> None:
    """Sizes as they are, or one common factor that fits them all in or round them."""
    if len(sizes) != len(axes) or min(sizes) < 0:
        raise AotcError("onnx-resize", f"sizes {list(sizes)} do not fit {len(axes)} axes")
    policy = node.text("keep_aspect_ratio_policy", "stretch")
    factors = [size / shape[axis] for size, axis in zip(sizes, axes, strict=True)]
    common = {"not_larger": min, "not_smaller": max}.get(policy)
    for size, axis, factor in zip(sizes, axes, factors, strict=True):
        if common is None:
            plan.sizes[axis], plan.scales[axis] = size, factor
        else:
            plan.scales[axis] = common(factors)
            plan.sizes[axis] = math.floor(shape[axis] * common(factors) + 0.5)


def _coordinates(node: Node) -> str:
    """The coordinate mode; operator sets up to 10 have no choice."""
    return node.text("coordinate_transformation_mode", "asymmetric" if node.since <= 10 else "half_pixel")


def _resize(node: Node) -> Expr:
    x = node[0]
    shape, mode = g.shape(x), _coordinates(node)
    method = _METHODS.get(node.text("mode", "nearest"))
    if method is None:
        raise AotcError("onnx-resize", f"mode {node.text('mode')!r} is not known")
    crops = mode == "tf_crop_and_resize"
    plan = _plan(node, shape, crops)
    g.checked_shape(plan.sizes, g.dtype(x), f"the result of {node.op_type}")
    axes = plan.changed(shape, crops)
    if not axes:
        return x
    if len(axes) > 3:
        raise AotcError("onnx-resize", f"resizing {len(axes)} axes at once is not supported (3 are)")
    return _resample(node, x, plan, axes, method, mode)


def _resample(node: Node, x: Expr, plan: _Plan, axes: list[int], method: str, mode: str) -> Expr:
    """Bring the resized axes to the end, the others into one, resize, and take that back."""
    shape = g.shape(x)
    kept = [k for k in range(len(shape)) if k not in axes]
    order = [*kept, *axes]
    y = g.reshape(g.transpose(x, order), (1, math.prod(shape[k] for k in kept), *(shape[k] for k in axes)))
    roi = (*(plan.starts[k] for k in axes), *(plan.ends[k] for k in axes)) if mode == "tf_crop_and_resize" else None
    exact = all(plan.scales[k] * shape[k] == plan.sizes[k] for k in axes) and not roi
    y = resize(
        y,
        [plan.sizes[k] for k in axes],
        method,
        mode,
        _rounding(node),
        node.number("cubic_coeff_a", -0.75),
        roi=roi,
        cubic_exclude=node.integer("exclude_outside"),
        extrapolation_value=node.number("extrapolation_value"),
        scales=None if exact else tuple(plan.scales[k] for k in axes),
        antialias=node.flag("antialias") and method != "nearest_neighbor",
    )
    y = g.reshape(y, (*(shape[k] for k in kept), *(plan.sizes[k] for k in axes)))
    return g.transpose(y, [order.index(k) for k in range(len(shape))])


def _rounding(node: Node) -> str:
    return node.text("nearest_mode", "floor" if node.since <= 10 else "round_prefer_floor")


_SAMPLING = {"linear": "bilinear", "cubic": "bicubic"}


def _grid_sample(node: Node) -> Expr:
    mode, corners = node.text("mode", "bilinear"), node.flag("align_corners")
    method = _SAMPLING.get(mode, mode)
    return grid_sample(node[0], node[1], method, node.text("padding_mode", "zeros"), corners)


def _affine_grid(node: Node) -> Expr:
    """Positions of all output elements, transformed: a product of constant coordinates with the matrices."""
    theta, size = node[0], node.const_ints(1, "the size")
    spatial = (size or [])[2:]
    if len(spatial) not in (2, 3) or g.shape(theta)[1:] != (len(spatial), len(spatial) + 1):
        raise AotcError("onnx-grid", f"matrices of shape {g.shape(theta)} do not fit the size {size}")
    dtype = g.dtype(theta)
    g.check_materialized((*spatial, len(spatial) + 1), "float64", "the positions of AffineGrid")
    axes = [_positions(n, node.flag("align_corners")) for n in spatial]
    places = np.stack([*reversed(np.meshgrid(*axes, indexing="ij")), np.ones(spatial)], -1)
    base = g.constant(places.reshape(1, -1, len(spatial) + 1), dtype)
    grid = matmul(base, g.transpose(theta, (0, 2, 1)))
    return g.reshape(grid, (g.shape(theta)[0], *spatial, len(spatial)))


def _positions(count: int, align_corners: bool) -> Array:
    """Coordinates in -1..1 of the elements of an axis."""
    if align_corners:
        return np.linspace(-1.0, 1.0, count)
    return (np.arange(count) * 2 + 1) / count - 1


OPS: Table = {"AffineGrid": _affine_grid, "GridSample": _grid_sample, "Resize": _resize, "Upsample": _resize}
