# SPDX-License-Identifier: Apache-2.0
"""Alias tracking for TorchScript programs: after an in-place operator, update all tensors that
share memory with its argument.

Input: names of values, in the order in which the program computes them. Output: the current value
of each name after every write.

    memory = Memory()
    memory.bind_name_and_rename_old_value("y", y)
    memory.bind_name_and_rename_old_value("row", row)
    memory.record_view_of_parent_value("row", "y", lambda value: row_of(value))
    memory.write_in_place_and_update_views("row", zeros)  # "y" has zeros in this row, and so have all of its views

Values are expressions, which are immutable: a write to a view computes a new value of its base
tensor, and from that new values of the other views. Expressions have no strides; where the strides
of a tensor decide if an operator returns a view or a copy, the values that a write may have changed
become Absent, and reading them is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from aotc.ir import AotcError, frozen
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.pytorch.value_conversion_and_promotion import (
    TorchValue,
    UncomputedValue,
    is_tensor,
    static_dims,
)
from aotc.relay.graph_api import Expr

ViewFunction = Callable[[TorchValue], TorchValue]


@frozen
class View:
    """The fact that a value shares memory with the value `parent`, for certain or possibly. `redo`
    computes the value from its parent; it is None if both are names of one tensor.
    """

    parent: str
    redo: ViewFunction | None
    certain: bool = True


_POSSIBLY_CHANGED_TENSORS: Final = UncomputedValue(
    "tensors that may share memory with one that was changed in place, but need not,"
)
_CHANGED_CONTAINERS: Final = UncomputedValue("lists of tensors of which one was changed in place afterwards")


@dataclass(slots=True)
class Memory:
    """The current values of a TorchScript program by name, and the aliases among them.

    views      for each name that is a view, its parent
    elements   names of the elements of lists and tuples, in order
    holders    names of the elements of containers whose order is unknown
    fixed      names of parameters and buffers, which must not be written, as the module calls them
    count      number of generated names
    """

    values: dict[str, TorchValue] = field(default_factory=dict)
    views: dict[str, View] = field(default_factory=dict)
    elements: dict[str, tuple[str, ...]] = field(default_factory=dict)
    holders: dict[str, frozenset[str]] = field(default_factory=dict)
    fixed: dict[str, str] = field(default_factory=dict)
    count: int = 0

    def bind_name_and_rename_old_value(self, name: str, value: TorchValue) -> None:
        """Bind a name to a new value. If the name is bound already, as in a loop, the old value
        gets a generated name, since other values may be views of it.
        """
        if name in self.values:
            self._rename_to_generated(name)
        self.values[name] = value

    def generate_unused_name(self, name: str) -> str:
        """Return a generated name, derived from `name`, that no value has."""
        self.count += 1
        return f"{name}#{self.count}"

    def record_view_of_parent_value(
        self, name: str, parent: str, view_function: ViewFunction | None, is_certainly_view: bool = True
    ) -> None:
        """Record that the value `name` is a view of the value `parent`, which `view_function`
        computes from it.
        """
        self.views[name] = View(parent, view_function, is_certainly_view)

    def record_container_elements(self, name: str, parts: Sequence[str], in_order: bool) -> None:
        """Record that the list, tuple or dictionary `name` holds the values named
        in `parts`: in this order if `in_order` is True, else in an unknown order.
        """
        if in_order:
            self.elements[name] = tuple(parts)
            return
        inner = (part for p in parts for part in (p, *self.elements.get(p, ()), *self.holders.get(p, ())))
        self.holders[name] = frozenset(inner)

    def container_element_names(self, name: str) -> tuple[str, ...] | None:
        """Return the names of the elements of a list or tuple in order, or None if they are not
        known.

        Results of an operator that are not views have memory of their own and get generated names
        here.
        """
        name = self.first_name_of_aliased_tensor(name)
        items = self.values[name]
        if isinstance(items, (list, tuple)) and not any(name in t for t in (self.elements, self.holders, self.views)):
            self.elements[name] = tuple(self.generate_unused_name(name) for _ in items)
            self.values |= zip(self.elements[name], items, strict=True)
        return self.elements.get(name)

    def first_name_of_aliased_tensor(self, name: str) -> str:
        """Follow aliases that are other names of a tensor back to its first name."""
        while (view := self.views.get(name)) is not None and view.certain and view.redo is None:
            name = view.parent
        return name

    def _rename_to_generated(self, name: str) -> str:
        """Rename a value to a generated name in all tables, which frees the old name, and return
        the new name.
        """
        fresh = self.generate_unused_name(name)
        self.values[fresh] = self.values.pop(name)
        tables: tuple[dict[str, Any], ...] = (self.views, self.elements, self.holders, self.fixed)
        for table in tables:
            if name in table:
                table[fresh] = table.pop(name)
        for other, view in self.views.items():
            if view.parent == name:
                self.views[other] = replace(view, parent=fresh)
        for other, parts in self.elements.items():
            if name in parts:
                self.elements[other] = tuple(fresh if p == name else p for p in parts)
        for other, members in self.holders.items():
            if name in members:
                self.holders[other] = members - {name} | {fresh}
        return fresh

    # --- changes

    def write_in_place_and_update_views(self, name: str, value: TorchValue) -> None:
        """Write a new value to `name`, and update its base tensor and all other views of that.

        Raises AotcError (code "torch-mutation") if the base is a parameter or buffer.
        """
        chain: list[View] = []
        base = name
        while base in self.views and self.views[base].certain:
            chain.append(self.views[base])
            base = chain[-1].parent
        if base in self.fixed:
            text = f"the program changes its parameter or buffer {self.fixed[base]!r}: compiled models keep no state"
            hint = "call .eval() on the module first, or change a copy (.clone())"
            raise AotcError("torch-mutation", text, hint=hint)
        real = [view for view in reversed(chain) if view.redo is not None]
        self.values[base] = _scatter_through_views(self.values[base], real, value) if real else value
        self._recompute_views_of(base)
        if base in self.views:
            root = self.views[base].parent
            while root in self.views:
                root = self.views[root].parent
            self.values[root] = _POSSIBLY_CHANGED_TENSORS
            self._recompute_views_of(root, base)

    def replace_tensor_by_view_of_its_memory(self, name: str, view_function: ViewFunction) -> None:
        """Replace a tensor by another view of its own memory, as `t_` does; other tensors that
        share the memory do not change.
        """
        name = self.first_name_of_aliased_tensor(name)
        value = view_function(self.values[name])
        before = self._rename_to_generated(name)
        for other, view in self.views.items():
            if view.parent == before and view.certain and view.redo is None:
                self.views[other] = replace(view, parent=name)
        for other, parts in self.elements.items():
            self.elements[other] = tuple(name if p == before else p for p in parts)
        self.values[name] = value
        self.record_view_of_parent_value(name, before, view_function)
        self._recompute_views_of(name)

    def may_share_memory_with_other_tensors(self, name: str) -> bool:
        """Return True if other tensors may share the memory of the tensor `name`."""
        name = self.first_name_of_aliased_tensor(name)
        view_flags = (view.parent == name and view.redo is not None for view in self.views.values())
        return name in self.views or any(view_flags)

    def _recompute_views_of(self, base: str, except_view: str = "") -> None:
        """Recompute all views of `base` and the containers that hold them, except the view
        `except_view` and its own views.
        """
        changed, work = {base}, [base]
        while work:
            parent = work.pop()
            for name, view in self.views.items():
                if view.parent == parent and name not in (*changed, except_view):
                    self.values[name] = self._recompute_view(view)
                    changed.add(name)
                    work.append(name)
            for name, parts in self.elements.items():
                if parent in parts and name not in changed:
                    old = self.values[name]
                    self.values[name] = (
                        [self.values[p] for p in parts] if isinstance(old, (list, tuple)) else _CHANGED_CONTAINERS
                    )
                    changed.add(name)
                    work.append(name)
            for name, members in self.holders.items():
                if parent in members and name not in changed:
                    self.values[name] = _CHANGED_CONTAINERS
                    changed.add(name)
                    work.append(name)

    def _recompute_view(self, view: View) -> TorchValue:
        source = self.values[view.parent]
        if isinstance(source, UncomputedValue) or not view.certain:
            return _POSSIBLY_CHANGED_TENSORS
        return source if view.redo is None else view.redo(source)


def _scatter_through_views(base: TorchValue, views: Sequence[View], value: Expr) -> Expr:
    """Return `base` with the elements that a chain of views selects replaced by `value`; the views
    are applied to an index tensor to find these elements.
    """
    if not is_tensor(base):
        raise AotcError("torch-op", "changing an element of a list in place is not supported")
    sizes = static_dims(base)
    places: TorchValue = g.constant(np.arange(int(np.prod(sizes))).reshape(sizes), "int64")
    for view in views:
        places = view.redo(places) if view.redo is not None else places
    flat = g.flatten(base)
    update = g.cast(g.flatten(value), g.dtype(base))
    merged = g.call_op("scatter_elements", flat, g.flatten(places), update, axis=0, reduction="update")
    return g.reshape(merged, sizes)
