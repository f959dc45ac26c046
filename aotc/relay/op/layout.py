# SPDX-License-Identifier: Apache-2.0
"""layout_transform (permuted and blocked axes), and support of blocked layouts for operators
without it.

layout_transform(x, "NCHW", "NCHW4c")  # C becomes ceil(C/4) blocks of 4 channels, zero-padded

A layout names each primal axis by a capital letter; `4c` is a block of 4 elements of axis C. If an
axis has several blocks, the leftmost block is the most significant.

conv2d = add_blocked_layout_support(conv2d)  # conv2d is defined for unblocked layouts only
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
from aotc.relay.expr import Call, Expr, tensor_type_of, typed_op_call
from aotc.relay.op.operator_definition import (
    Array,
    Index,
    OpDef,
    Samples,
    Scalar,
    exact_sample,
    random_array,
    require_tensor_type,
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
    def parse_layout(cls, text: str) -> Layout:
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
    def primal_axes(self) -> frozenset[str]:
        return frozenset(letter for letter, _ in self.axes)

    def elements_per_block(self, primal_axis: str) -> int:
        """Return the number of elements of a primal axis in one of its blocks (1 if the axis is not
        blocked).
        """
        return prod(size for other, size in self.axes if other == primal_axis and size)

    def primal_extents(self, shape: Sequence[Dim]) -> dict[str, Dim]:
        """Return the extents of the primal axes of a tensor with this layout and shape, including
        block padding.
        """
        require("layout.rank", len(shape) == len(self.axes), f"the layout has {len(self.axes)} axes, not {len(shape)}")
        extents: dict[str, Dim] = {}
        for (letter, size), d in zip(self.axes, shape, strict=True):
            require("layout.block", size in (0, d), f"a block of {size} has extent {d}")
            if not size:
                count = self.elements_per_block(letter)
                extents[letter] = d * count
        return extents

    def shape_of_extents(self, primal_extents: dict[str, Dim]) -> tuple[Dim, ...]:
        """Return the shape in this layout of a tensor with the given primal extents, rounded up to
        whole blocks.
        """
        return tuple(
            size or _ceil_divide_dim(primal_extents[letter], self.elements_per_block(letter))
            for letter, size in self.axes
        )

    def primal_indices(self, indices: Sequence[Scalar]) -> dict[str, Scalar]:
        """Return the index along each primal axis of the element at position `indices` in
        this layout.
        """
        outer = {letter: i for (letter, size), i in zip(self.axes, indices, strict=True) if not size}
        for (letter, size), i in zip(self.axes, indices, strict=True):
            if size:
                outer[letter] = outer[letter] * size + i
        return outer

    def permutation_to_primal_then_blocks(self, primal_order: Sequence[str]) -> list[int]:
        """Return a permutation of the axes: ordered by `primal_order`, a primal axis first and then
        its blocks in order.
        """
        return sorted(
            range(len(self.axes)), key=lambda k: (primal_order.index(self.axes[k][0]), self.axes[k][1] != 0, k)
        )

    def indices_in_layout(self, primal_indices: dict[str, Scalar]) -> tuple[Scalar, ...]:
        """Return the position in this layout of the element with the given primal indices."""
        rest = {letter: self.elements_per_block(letter) for letter in primal_indices}
        result: list[Scalar] = []
        for letter, size in self.axes:
            if not size:
                result.append(primal_indices[letter] // self.elements_per_block(letter))
                continue
            rest[letter] //= size
            whole = primal_indices[letter] if rest[letter] == 1 else primal_indices[letter] // rest[letter]
            result.append(whole % size)
        return tuple(result)


def _ceil_divide_dim(extent: Dim, divisor: int) -> Dim:
    return (extent + (divisor - 1)) // divisor


def _source_and_target_layouts(a: LayoutTransformAttrs) -> tuple[Layout, Layout]:
    source, target = Layout.parse_layout(a.src_layout), Layout.parse_layout(a.dst_layout)
    same = source.primal_axes == target.primal_axes
    require("layout", same, f"layouts {a.src_layout!r} and {a.dst_layout!r} have different axes")
    return source, target


def _infer_layout_transform_type(a: LayoutTransformAttrs, types: Types) -> Type:
    data = require_tensor_type(types[0])
    source, target = _source_and_target_layouts(a)
    return TensorType(target.shape_of_extents(source.primal_extents(data.shape)), data.dtype)


def may_zero_pad_blocks(node: Call) -> bool:
    """Return True if a call is a layout_transform that may zero-pad incomplete blocks."""
    if node.op is not layout_transform:
        return False
    source = Layout.parse_layout(node.attrs["src_layout"])
    target = Layout.parse_layout(node.attrs["dst_layout"])
    extents = source.primal_extents(tensor_type_of(node.args[0]).shape)
    for letter, extent in extents.items():
        block = target.elements_per_block(letter)
        if block > 1 and (not isinstance(extent, int) or extent % block):
            return True
    return False


def _layout_transform_axis_map(a: LayoutTransformAttrs, types: Types) -> AxisMap:
    source, target = _source_and_target_layouts(a)
    place = {
        letter: k for k, (letter, size) in enumerate(source.axes) if not size and source.elements_per_block(letter) == 1
    }
    whole = [
        None if size or target.elements_per_block(letter) > 1 else place.get(letter) for letter, size in target.axes
    ]
    return AxisMap((tuple(whole),))


def _layout_transform_reference(a: LayoutTransformAttrs, data: Array) -> Array:
    """Compute the transform through an unblocked tensor whose axes are in the order of the source
    layout.
    """
    source, target = _source_and_target_layouts(a)
    letters = [letter for letter, size in source.axes if not size]
    extents: Any = source.primal_extents(data.shape)
    primal = data.transpose(source.permutation_to_primal_then_blocks(letters)).reshape(
        [extents[letter] for letter in letters]
    )
    pads = [(0, -extents[letter] % target.elements_per_block(letter)) for letter in letters]
    primal = np.pad(primal, pads) if any(p for _, p in pads) else primal
    order, shape = target.permutation_to_primal_then_blocks(letters), target.shape_of_extents(extents)
    return np.transpose(primal.reshape([shape[k] for k in order]), np.argsort(order))


def _layout_transform_element(a: LayoutTransformAttrs, index: Index, data: Tensor) -> Scalar:
    source, target = _source_and_target_layouts(a)
    extents: Any = source.primal_extents(data.shape)
    primal = target.primal_indices(index)
    inside = all_of(*(primal[k] < extents[k] for k in extents if extents[k] % target.elements_per_block(k)))
    return select(inside, data[source.indices_in_layout(primal)], as_expr(const(0, data.dtype)))


_LAYOUT_TRANSFORM_TEST_CASES = (
    ((1, 6, 2, 3), "NCHW", "NHWC"), ((1, 6, 2, 3), "NCHW", "NCHW4c"), ((1, 2, 2, 3, 4), "NCHW4c", "NCHW"),
    ((1, 2, 2, 3, 4), "NCHW4c", "NHWC2c"), ((5, 3, 3, 2), "OIHW", "OIHW4o"), ((5, 6, 1, 1), "OIHW", "OIHW4i2o2i"),
    ((3, 2, 1, 1, 4, 2), "OIHW4i2o", "IHWO"), ((7, 3), "NC", "NC4n"), ((7, 3), "NC", "CN"), ((0, 3), "NC", "NC2c"),
    ((4, 2, 3), "4cNC", "NC"),
)  # fmt: skip


def _layout_transform_test_samples() -> Samples:
    for shape, source, target in _LAYOUT_TRANSFORM_TEST_CASES:
        attributes = LayoutTransformAttrs(src_layout=source, dst_layout=target)
        for dtype in ("float32", "int8", "float16") if source == "NC" else ("float32",):
            yield exact_sample(attributes, random_array(shape, dtype))


layout_transform = OpDef(
    name="layout_transform",
    attrs=LayoutTransformAttrs,
    infer=_infer_layout_transform_type,
    reference=_layout_transform_reference,
    pattern=OpPattern.INJECTIVE,
    axes=_layout_transform_axis_map,
    element=_layout_transform_element,
    samples=_layout_transform_test_samples,
)


# --- layouts in blocks for operators that compute in layouts without


@frozen
class _LayoutConversion:
    """A conversion between two layouts; no operation if they are equal."""

    source: str
    target: str

    @property
    def layout_transform_attrs(self) -> LayoutTransformAttrs:
        return LayoutTransformAttrs(src_layout=self.source, dst_layout=self.target)

    @property
    def inverse_conversion(self) -> _LayoutConversion:
        return _LayoutConversion(self.target, self.source)

    def convert_unless_layouts_equal(self, convert: Callable[[LayoutTransformAttrs, Any], Any], value: Any) -> Any:
        """Return `value` converted by `convert`, or `value` itself if the layouts are equal."""
        return value if self.source == self.target or value is None else convert(self.layout_transform_attrs, value)


@frozen
class _UnblockedForm:
    """Attributes with unblocked layouts, and the layout conversions of the arguments and of the
    result that they need.
    """

    attrs: Any
    args: tuple[_LayoutConversion, ...]
    result: _LayoutConversion

    def convert_arguments_to_unblocked(
        self, convert: Callable[[LayoutTransformAttrs, Any], Any], args: Sequence[Any]
    ) -> list[Any]:
        """Return arguments, or their types, converted to the unblocked layouts by `convert`."""
        return [change.convert_unless_layouts_equal(convert, x) for change, x in zip(self.args, args, strict=False)]


def remove_blocks_from_layout(layout: str) -> str:
    """Return the primal axes of a layout, in order, without its blocks."""
    return "".join(letter for letter in layout if letter.isupper())


def _unblocked_form_or_none(attrs: Any, is_supported_kernel_layout: Callable[[str], bool]) -> _UnblockedForm | None:
    """Return the attributes with unblocked layouts; None if the layouts are unblocked or supported
    by the operator.

    is_supported_kernel_layout    predicate of kernel layouts that the operator computes directly
    """
    name = "data_layout" if hasattr(attrs, "data_layout") else "layout"
    data, kernel = getattr(attrs, name), getattr(attrs, "kernel_layout", "")
    out = getattr(attrs, "out_layout", "") or data
    plain_kernel = kernel if is_supported_kernel_layout(kernel) else remove_blocks_from_layout(kernel)
    if data.isupper() and out.isupper() and plain_kernel == kernel:
        return None
    changes = {name: remove_blocks_from_layout(data)}
    if kernel:
        changes["kernel_layout"] = plain_kernel
    if hasattr(attrs, "out_layout"):
        changes["out_layout"] = remove_blocks_from_layout(attrs.out_layout)
    args = (_LayoutConversion(data, remove_blocks_from_layout(data)), _LayoutConversion(kernel, plain_kernel))
    return _UnblockedForm(attrs.replace(**changes), args, _LayoutConversion(remove_blocks_from_layout(out), out))


def _layout_transform_type(attrs: LayoutTransformAttrs, data_type: Type) -> Type:
    return layout_transform.infer(attrs, [require_tensor_type(data_type)])


@dataclass(frozen=True, eq=False)
class _BlockedLayoutSupport:
    """The functions of an OpDef (infer, reference, compute, ...) extended to blocked layouts; see
    `add_blocked_layout_support`.
    """

    op: Any
    is_own: Callable[[str], bool]

    def unblocked_form_or_none(self, attrs: Any) -> _UnblockedForm | None:
        return _unblocked_form_or_none(attrs, lambda kernel: not kernel or self.is_own(kernel))

    def infer(self, attrs: Any, types: Types) -> Any:
        plain_form = self.unblocked_form_or_none(attrs)
        if plain_form is None:
            return self.op.infer(attrs, types)
        return plain_form.result.convert_unless_layouts_equal(
            _layout_transform_type,
            self.op.infer(plain_form.attrs, plain_form.convert_arguments_to_unblocked(_layout_transform_type, types)),
        )

    def refine(self, attrs: Any, types: Sequence[Type | None]) -> Sequence[Type | None]:
        plain_form = self.unblocked_form_or_none(attrs)
        if plain_form is None or not isinstance(types[0], TensorType):
            return self.op.refine(attrs, types) if plain_form is None else types
        known = [ty if isinstance(ty, TensorType) else None for ty in types]
        refined = self.op.refine(
            plain_form.attrs, plain_form.convert_arguments_to_unblocked(_layout_transform_type, known)
        )
        return [
            change.inverse_conversion.convert_unless_layouts_equal(_layout_transform_type, ty)
            for change, ty in zip(plain_form.args, refined, strict=False)
        ]

    def _run_op_function_on_unblocked_layouts(self, attrs: Any, args: Sequence[Any], function_name: str) -> Any:
        plain_form, run = self.unblocked_form_or_none(attrs), getattr(self.op, function_name)
        if plain_form is None:
            return run(attrs, *args)
        move = getattr(layout_transform, function_name)
        return plain_form.result.convert_unless_layouts_equal(
            move, run(plain_form.attrs, *plain_form.convert_arguments_to_unblocked(move, args))
        )

    def reference(self, attrs: Any, *args: Any) -> Any:
        return self._run_op_function_on_unblocked_layouts(attrs, args, "reference")

    def compute(self, attrs: Any, *args: Any) -> Any:
        return self._run_op_function_on_unblocked_layouts(attrs, args, "compute")

    def call_in_unblocked_layouts_or_none(self, attrs: Any, *args: Expr) -> Any:
        plain_form = self.unblocked_form_or_none(attrs)
        if plain_form is None:
            return None
        plain_call = typed_op_call(
            get_op(self.op.name),
            plain_form.convert_arguments_to_unblocked(_layout_transform_call, args),
            plain_form.attrs,
        )
        return plain_form.result.convert_unless_layouts_equal(_layout_transform_call, plain_call)

    def expand(self, attrs: Any, *args: Expr) -> Any:
        return self.call_in_unblocked_layouts_or_none(attrs, *args) or self.op.expand(attrs, *args)

    def axes(self, attrs: Any, types: Types) -> AxisMap | None:
        return self.op.axes(attrs, types) if self.unblocked_form_or_none(attrs) is None else None

    def scratch(self, attrs: Any, types: Types) -> Any:
        plain_form = self.unblocked_form_or_none(attrs)
        if plain_form is None:
            return self.op.scratch(attrs, types)
        plain = plain_form.convert_arguments_to_unblocked(_layout_transform_type, types)
        return int(self.op.scratch(plain_form.attrs, plain)) + sum(require_tensor_type(t).numel for t in plain)


def add_blocked_layout_support(op: OpDef, is_supported_kernel_layout: Callable[[str], bool] = str.isupper) -> OpDef:
    """Return `op`, whose attributes include layouts, extended to blocked layouts by layout
    transforms.

    is_supported_kernel_layout    predicate of kernel layouts in which `op` computes directly
    """
    support = _BlockedLayoutSupport(op, is_supported_kernel_layout)
    facets = ("infer", "refine", "reference", "compute", "expand", "axes", "scratch")
    changes: dict[str, Any] = {name: getattr(support, name) for name in facets if getattr(op, name) is not None}
    return replace(op, **changes, unblocked=support.call_in_unblocked_layouts_or_none)


def _layout_transform_call(attrs: LayoutTransformAttrs, x: Expr) -> Expr:
    return layout_transform(x, attrs.src_layout, attrs.dst_layout)
