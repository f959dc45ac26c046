# SPDX-License-Identifier: Apache-2.0
"""Layouts in blocks for operators that compute in layouts without: "NCHW16c" of data, "OIHW4i16o" of kernels.

conv2d = in_blocks(conv2d)
conv2d(x, w, data_layout="NCHW16c")    # its type, its reference, and what it is made of:
layout_transform(conv2d(layout_transform(x, "NCHW16c", "NCHW"), w), "NCHW", "NCHW16c")

Blocks are filled up with zeros, as `layout_transform` does: a tensor has all the elements that its blocks hold.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from aotc.ir import AxisMap, TensorType, Type, Types, frozen
from aotc.ir.op import get_op
from aotc.relay.expr import Expr, call
from aotc.relay.op.layout import LayoutTransformAttrs, layout_transform
from aotc.relay.op.opdef import OpDef
from aotc.relay.op.rules import tensor


@frozen
class _Change:
    """From one layout to another; nothing where both are equal."""

    source: str
    target: str

    @property
    def attrs(self) -> LayoutTransformAttrs:
        return LayoutTransformAttrs(src_layout=self.source, dst_layout=self.target)

    @property
    def back(self) -> _Change:
        return _Change(self.target, self.source)

    def by(self, make: Callable[[LayoutTransformAttrs, Any], Any], x: Any) -> Any:
        """`x` as `make` transforms it."""
        return x if self.source == self.target or x is None else make(self.attrs, x)


@frozen
class _Plain:
    """Attributes without blocks, and the changes of the arguments and of the result that go with them."""

    attrs: Any
    args: tuple[_Change, ...]
    result: _Change

    def moved(self, move: Callable[[LayoutTransformAttrs, Any], Any], args: Sequence[Any]) -> list[Any]:
        """Arguments, or their types, as `move` transforms them."""
        return [change.by(move, x) for change, x in zip(self.args, args, strict=False)]


def without_blocks(layout: str) -> str:
    """The primal axes of a layout in their order."""
    return "".join(letter for letter in layout if letter.isupper())


def _plain(a: Any, is_own: Callable[[str], bool]) -> _Plain | None:
    """The attributes without blocks; None where they have none, but for those of kernels of the operator's own."""
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
    """The facets of an operator for layouts in blocks as well; see `in_blocks`."""

    op: Any
    is_own: Callable[[str], bool]

    def plain(self, a: Any) -> _Plain | None:
        return _plain(a, lambda kernel: not kernel or self.is_own(kernel))

    def infer(self, a: Any, types: Types) -> Type:
        found = self.plain(a)
        if found is None:
            return self.op.infer(a, types)  # type: ignore[no-any-return]
        return found.result.by(_type, self.op.infer(found.attrs, found.moved(_type, types)))  # type: ignore[no-any-return]

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

    def unblocked(self, a: Any, *args: Expr) -> Expr | None:
        found = self.plain(a)
        if found is None:
            return None
        moved = call(get_op(self.op.name), found.moved(_transformed, args), found.attrs)
        return found.result.by(_transformed, moved)  # type: ignore[no-any-return]

    def expand(self, a: Any, *args: Expr) -> Expr:
        return self.unblocked(a, *args) or self.op.expand(a, *args)

    def axes(self, a: Any, types: Types) -> AxisMap | None:
        return self.op.axes(a, types) if self.plain(a) is None else None

    def scratch(self, a: Any, types: Types) -> int:
        found = self.plain(a)
        if found is None:
            return self.op.scratch(a, types)  # type: ignore[no-any-return]
        plain = found.moved(_type, types)
        return int(self.op.scratch(found.attrs, plain)) + sum(tensor(t).numel for t in plain)


def in_blocks(op: OpDef, is_own: Callable[[str], bool] = str.isupper) -> OpDef:
    """`op`, whose attributes name layouts, for layouts in blocks as well.

    is_own   (kernel layout) -> whether `op` computes in it as it is
    """
    made = _InBlocks(op, is_own)
    facets = ("infer", "refine", "reference", "compute", "expand", "axes", "scratch")
    changes: dict[str, Any] = {name: getattr(made, name) for name in facets if getattr(op, name) is not None}
    return replace(op, **changes, unblocked=made.unblocked)


def _transformed(attrs: LayoutTransformAttrs, x: Expr) -> Expr:
    return layout_transform(x, attrs.src_layout, attrs.dst_layout)
