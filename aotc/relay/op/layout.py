# SPDX-License-Identifier: Apache-2.0
"""layout_transform (permuted and blocked axes), and support of blocked layouts for operators
without it.

layout_transform(x, "NCHW", "NCHW4c")  # C becomes ceil(C/4) blocks of 4 channels, zero-padded

A layout names each primal axis by a capital letter; `4c` is a block of 4 elements of axis C. If an
axis has several blocks, the leftmost block is the most significant.

conv2d = in_blocks(conv2d)             # conv2d is defined for unblocked layouts only
conv2d(x, w, data_layout="NCHW16c")    # its type, reference and expansion are derived:
layout_transform(conv2d(layout_transform(x, "NCHW16c", "NCHW"), w), "NCHW", "NCHW16c")

Incomplete blocks are padded with zeros, as `layout_transform` does: the extent of a blocked axis is
the number of its blocks times the block size.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from aotc.ir import Attrs, AxisMap, Dim, OpPattern, TensorType, Type, Types, frozen, get_op, require
from aotc.relay.expr import Call, Expr, call, tensor_type_of
from aotc.relay.op.operator_definition import (
    Array,
    Index,
    OpDef,
    Samples,
    Scalar,
    exact,
    extent_of,
    random_array,
    tensor,
)
from aotc.tir import Tensor, all_of, as_expr, const, select


class LayoutTransformAttrs(Attrs):
    """`data` converted from one layout to another; incomplete blocks are zero-padded."""

    src_layout: str
    dst_layout: str


@frozen
class Layout:
    """A layout as a tuple of axes (primal letter, block size); the block size is 0 for the primal
    axis itself.
    """

    axes: tuple[tuple[str, int], ...]

    @classmethod
    def parse(cls, text: str) -> Layout:
        """Parse a layout such as "NCHW4c"; raise AotcError (code "layout") if it is malformed."""
        well_formed = re.fullmatch(r"([A-Z]|[1-9]\d*[a-z])+", text) is not None
        require("layout", well_formed, lambda: f"layout {text!r} is malformed")
        items = re.findall(r"([A-Z])|(\d+)([a-z])", text)
        layout = cls(tuple((primal or block.upper(), int(size or 0)) for primal, size, block in items))
        primals = [letter for letter, size in layout.axes if not size]
        complete = len(set(primals)) == len(primals) and set(primals) == {letter for letter, _ in layout.axes}
        require("layout", complete, lambda: f"layout {text!r} must name each axis once, and no block without its axis")
        return layout

    @property
    def primals(self) -> frozenset[str]:
        return frozenset(letter for letter, _ in self.axes)

    def blocks(self, letter: str) -> int:
        """Return the number of elements of a primal axis in one of its blocks (1 if the axis is not
        blocked).
        """
        return prod(size for other, size in self.axes if other == letter and size)

    def extents(self, shape: Sequence[Dim]) -> dict[str, Dim]:
        """Return the extents of the primal axes of a tensor with this layout and shape, including
        block padding.
        """
        require("layout.rank", len(shape) == len(self.axes), f"the layout has {len(self.axes)} axes, not {len(shape)}")
        found: dict[str, Dim] = {}
        for (letter, size), d in zip(self.axes, shape, strict=True):
            require("layout.block", size in (0, d), f"a block of {size} has extent {d}")
            if not size:
                count = self.blocks(letter)
                found[letter] = extent_of(d, count.__mul__, unchanged=count == 1)
        return found

    def shape(self, extents: dict[str, Dim]) -> tuple[Dim, ...]:
        """Return the shape in this layout of a tensor with the given primal extents, rounded up to
        whole blocks.
        """
        return tuple(size or _ceil(extents[letter], self.blocks(letter)) for letter, size in self.axes)

    def primal_indices(self, indices: Sequence[Scalar]) -> dict[str, Scalar]:
        """Return the index along each primal axis of the element at `indices` in this layout."""
        outer = {letter: i for (letter, size), i in zip(self.axes, indices, strict=True) if not size}
        for (letter, size), i in zip(self.axes, indices, strict=True):
            if size:
                outer[letter] = outer[letter] * size + i
        return outer

    def grouped(self, letters: Sequence[str]) -> list[int]:
        """Return a permutation of the axes: ordered by `letters`, a primal axis first and then its
        blocks in order.
        """
        return sorted(range(len(self.axes)), key=lambda k: (letters.index(self.axes[k][0]), self.axes[k][1] != 0, k))

    def indices(self, primal: dict[str, Scalar]) -> tuple[Scalar, ...]:
        """Return the position in this layout of the element with the given primal indices."""
        rest = {letter: self.blocks(letter) for letter in primal}
        result: list[Scalar] = []
        for letter, size in self.axes:
            if not size:
                result.append(primal[letter] // self.blocks(letter))
                continue
            rest[letter] //= size
            whole = primal[letter] if rest[letter] == 1 else primal[letter] // rest[letter]
            result.append(whole % size)
        return tuple(result)


def _ceil(d: Dim, factor: int) -> Dim:
    return extent_of(d, lambda n: -(-n // factor), unchanged=factor == 1)


def _layouts(a: LayoutTransformAttrs) -> tuple[Layout, Layout]:
    source, target = Layout.parse(a.src_layout), Layout.parse(a.dst_layout)
    same = source.primals == target.primals
    require("layout", same, f"layouts {a.src_layout!r} and {a.dst_layout!r} have different axes")
    return source, target


def _infer(a: LayoutTransformAttrs, types: Types) -> Type:
    data = tensor(types[0])
    source, target = _layouts(a)
    return TensorType(target.shape(source.extents(data.shape)), data.dtype)


def fills(node: Call) -> bool:
    """Return True if a call is a layout_transform that may zero-pad incomplete blocks."""
    if node.op is not layout_transform:
        return False
    source = Layout.parse(node.attrs["src_layout"])
    target = Layout.parse(node.attrs["dst_layout"])
    extents = source.extents(tensor_type_of(node.args[0]).shape)
    for letter, extent in extents.items():
        block = target.blocks(letter)
        if block > 1 and (not isinstance(extent, int) or extent % block):
            return True
    return False


def _axes(a: LayoutTransformAttrs, types: Types) -> AxisMap:
    source, target = _layouts(a)
    place = {letter: k for k, (letter, size) in enumerate(source.axes) if not size and source.blocks(letter) == 1}
    whole = [None if size or target.blocks(letter) > 1 else place.get(letter) for letter, size in target.axes]
    return AxisMap((tuple(whole),))


def _reference(a: LayoutTransformAttrs, data: Array) -> Array:
    """Compute the transform through an unblocked tensor whose axes are in the order of the source
    layout.
    """
    source, target = _layouts(a)
    letters = [letter for letter, size in source.axes if not size]
    extents: Any = source.extents(data.shape)
    primal = data.transpose(source.grouped(letters)).reshape([extents[letter] for letter in letters])
    pads = [(0, -extents[letter] % target.blocks(letter)) for letter in letters]
    primal = np.pad(primal, pads) if any(p for _, p in pads) else primal
    order, shape = target.grouped(letters), target.shape(extents)
    return np.transpose(primal.reshape([shape[k] for k in order]), np.argsort(order))


def _element(a: LayoutTransformAttrs, index: Index, data: Tensor) -> Scalar:
    source, target = _layouts(a)
    extents: Any = source.extents(data.shape)
    primal = target.primal_indices(index)
    inside = all_of(*(primal[k] < extents[k] for k in extents if extents[k] % target.blocks(k)))
    return select(inside, data[source.indices(primal)], as_expr(const(0, data.dtype)))


_CASES = (
    ((1, 6, 2, 3), "NCHW", "NHWC"), ((1, 6, 2, 3), "NCHW", "NCHW4c"), ((1, 2, 2, 3, 4), "NCHW4c", "NCHW"),
    ((1, 2, 2, 3, 4), "NCHW4c", "NHWC2c"), ((5, 3, 3, 2), "OIHW", "OIHW4o"), ((5, 6, 1, 1), "OIHW", "OIHW4i2o2i"),
    ((3, 2, 1, 1, 4, 2), "OIHW4i2o", "IHWO"), ((7, 3), "NC", "NC4n"), ((7, 3), "NC", "CN"), ((0, 3), "NC", "NC2c"),
    ((4, 2, 3), "4cNC", "NC"),
)  # fmt: skip


def _samples() -> Samples:
    for shape, source, target in _CASES:
        attributes = LayoutTransformAttrs(src_layout=source, dst_layout=target)
        for dtype in ("float32", "int8", "float16") if source == "NC" else ("float32",):
            yield exact(attributes, random_array(shape, dtype))


layout_transform = OpDef(
    name="layout_transform",
    attrs=LayoutTransformAttrs,
    infer=_infer,
    reference=_reference,
    pattern=OpPattern.INJECTIVE,
    axes=_axes,
    element=_element,
    samples=_samples,
)


# --- layouts in blocks for operators that compute in layouts without


@frozen
class _Change:
    """A conversion between two layouts; no operation if they are equal."""

    source: str
    target: str

    @property
    def attrs(self) -> LayoutTransformAttrs:
        return LayoutTransformAttrs(src_layout=self.source, dst_layout=self.target)

    @property
    def back(self) -> _Change:
        return _Change(self.target, self.source)

    def by(self, make: Callable[[LayoutTransformAttrs, Any], Any], x: Any) -> Any:
        """Return `x` converted by `make`, or `x` itself if the layouts are equal."""
        return x if self.source == self.target or x is None else make(self.attrs, x)


@frozen
class _Plain:
    """Attributes with unblocked layouts, and the layout conversions of the arguments and of the
    result that they need.
    """

    attrs: Any
    args: tuple[_Change, ...]
    result: _Change

    def moved(self, move: Callable[[LayoutTransformAttrs, Any], Any], args: Sequence[Any]) -> list[Any]:
        """Return arguments, or their types, converted to the unblocked layouts by `move`."""
        return [change.by(move, x) for change, x in zip(self.args, args, strict=False)]


def without_blocks(layout: str) -> str:
    """Return the primal axes of a layout, in order, without its blocks."""
    return "".join(letter for letter in layout if letter.isupper())


def _without_blocks(a: Any, is_own: Callable[[str], bool]) -> _Plain | None:
    """Return the attributes with unblocked layouts; None if the layouts are unblocked or supported
    by the operator.

    is_own  predicate of kernel layouts that the operator computes directly
    """
    name = "data_layout" if hasattr(a, "data_layout") else "layout"
    data, kernel = getattr(a, name), getattr(a, "kernel_layout", "")
    out = getattr(a, "out_layout", "") or data
    plain_kernel = kernel if is_own(kernel) else without_blocks(kernel)
    if data.isupper() and out.isupper() and plain_kernel == kernel:
        return None
    changes = {name: without_blocks(data)}
    if kernel:
        changes["kernel_layout"] = plain_kernel
    if hasattr(a, "out_layout"):
        changes["out_layout"] = without_blocks(a.out_layout)
    args = (_Change(data, without_blocks(data)), _Change(kernel, plain_kernel))
    return _Plain(a.replace(**changes), args, _Change(without_blocks(out), out))


def _type(attrs: LayoutTransformAttrs, ty: Type) -> Type:
    return layout_transform.infer(attrs, [tensor(ty)])


@dataclass(frozen=True, eq=False)
class _InBlocks:
    """The functions of an OpDef (infer, reference, compute, ...) extended to blocked layouts; see
    `in_blocks`.
    """

    op: Any
    is_own: Callable[[str], bool]

    def plain(self, a: Any) -> _Plain | None:
        return _without_blocks(a, lambda kernel: not kernel or self.is_own(kernel))

    def infer(self, a: Any, types: Types) -> Any:
        found = self.plain(a)
        if found is None:
            return self.op.infer(a, types)
        return found.result.by(_type, self.op.infer(found.attrs, found.moved(_type, types)))

    def refine(self, a: Any, types: Sequence[Type | None]) -> Sequence[Type | None]:
        found = self.plain(a)
        if found is None or not isinstance(types[0], TensorType):
            return self.op.refine(a, types) if found is None else types
        known = [ty if isinstance(ty, TensorType) else None for ty in types]
        refined = self.op.refine(found.attrs, found.moved(_type, known))
        return [change.back.by(_type, ty) for change, ty in zip(found.args, refined, strict=False)]

    def _through(self, a: Any, args: Sequence[Any], facet: str) -> Any:
        found, run = self.plain(a), getattr(self.op, facet)
        if found is None:
            return run(a, *args)
        move = getattr(layout_transform, facet)
        return found.result.by(move, run(found.attrs, *found.moved(move, args)))

    def reference(self, a: Any, *args: Any) -> Any:
        return self._through(a, args, "reference")

    def compute(self, a: Any, *args: Any) -> Any:
        return self._through(a, args, "compute")

    def unblocked(self, a: Any, *args: Expr) -> Any:
        found = self.plain(a)
        if found is None:
            return None
        moved = call(get_op(self.op.name), found.moved(_transformed, args), found.attrs)
        return found.result.by(_transformed, moved)

    def expand(self, a: Any, *args: Expr) -> Any:
        return self.unblocked(a, *args) or self.op.expand(a, *args)

    def axes(self, a: Any, types: Types) -> AxisMap | None:
        return self.op.axes(a, types) if self.plain(a) is None else None

    def scratch(self, a: Any, types: Types) -> Any:
        found = self.plain(a)
        if found is None:
            return self.op.scratch(a, types)
        plain = found.moved(_type, types)
        return int(self.op.scratch(found.attrs, plain)) + sum(tensor(t).numel for t in plain)


def in_blocks(op: OpDef, is_own: Callable[[str], bool] = str.isupper) -> OpDef:
    """Return `op`, whose attributes include layouts, extended to blocked layouts by layout
    transforms.

    is_own   predicate of kernel layouts in which `op` computes directly
    """
    made = _InBlocks(op, is_own)
    facets = ("infer", "refine", "reference", "compute", "expand", "axes", "scratch")
    changes: dict[str, Any] = {name: getattr(made, name) for name in facets if getattr(op, name) is not None}
    return replace(op, **changes, unblocked=made.unblocked)


def _transformed(attrs: LayoutTransformAttrs, x: Expr) -> Expr:
    return layout_transform(x, attrs.src_layout, attrs.dst_layout)
