# SPDX-License-Identifier: Apache-2.0
"""Which tensors of a TorchScript program share memory: an operator in
place changes all of them.

In: names of values, in the order in which the program computes them.
Out: the values, current after each change.

    memory = Memory()
    memory.bind("y", y)
    memory.bind("row", row)
    memory.share("row", "y", lambda value: row_of(value))
    memory.write("row", zeros)              # "y" has zeros in this row, and so have all of its views

Values are expressions, which do not change: a write computes the
base of a view anew, and from it the other views.  Where the strides
of a tensor, which expressions do not have, decide whether something
is a view, the values that a write may have changed become absent:
reading them is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from aotc.ir import AotcError, frozen
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.pytorch.converter_values import Absent, Value, is_tensor, shape
from aotc.relay.graph_api import Expr

Redo = Callable[[Value], Value]


@frozen
class View:
    """A value that shares memory with another one, for certain or
    perhaps, and how it follows from that.

    `redo` is None for another name of the same tensor.
    """

    parent: str
    redo: Redo | None
    certain: bool = True


_UNCERTAIN: Final = Absent("tensors that may share memory with one that was changed in place, but need not,")
_HOLDERS: Final = Absent("lists of tensors of which one was changed in place afterwards")


@dataclass(slots=True)
class Memory:
    """The values by name, and what they share.

    elements   the names of what lists and tuples hold, in order
    holders    those of containers that hold them in an unknown order
    fixed      what the owner calls parameters, which must not change
    count      how many names were invented
    """

    values: dict[str, Value] = field(default_factory=dict)
    views: dict[str, View] = field(default_factory=dict)
    elements: dict[str, tuple[str, ...]] = field(default_factory=dict)
    holders: dict[str, frozenset[str]] = field(default_factory=dict)
    fixed: dict[str, str] = field(default_factory=dict)
    count: int = 0

    def bind(self, name: str, value: Value) -> None:
        """Let a name stand for a new value; in a loop it stood for another one before, which others may still see."""
        if name in self.values:
            self._rename(name)
        self.values[name] = value

    def unused(self, name: str) -> str:
        """A name like another one that nothing has."""
        self.count += 1
        return f"{name}#{self.count}"

    def share(self, name: str, parent: str, redo: Redo | None, certain: bool = True) -> None:
        """Note that a value is a view of another one."""
        self.views[name] = View(parent, redo, certain)

    def hold(self, name: str, parts: Sequence[str], in_order: bool) -> None:
        """Note what a container holds."""
        if in_order:
            self.elements[name] = tuple(parts)
            return
        inner = (part for p in parts for part in (p, *self.elements.get(p, ()), *self.holders.get(p, ())))
        self.holders[name] = frozenset(inner)

    def parts(self, name: str) -> tuple[str, ...] | None:
        """The names of what a container holds, in order; None where that is not known.

        The results of an operator that are no views get names here: each has memory of its own.
        """
        name = self.original(name)
        items = self.values[name]
        if isinstance(items, (list, tuple)) and not any(name in t for t in (self.elements, self.holders, self.views)):
            self.elements[name] = tuple(self.unused(name) for _ in items)
            self.values |= zip(self.elements[name], items, strict=True)
        return self.elements.get(name)

    def original(self, name: str) -> str:
        """The first name of a tensor."""
        while (view := self.views.get(name)) is not None and view.certain and view.redo is None:
            name = view.parent
        return name

    def _rename(self, name: str) -> str:
        """Call a value by a name that nobody uses; the old one is free."""
        fresh = self.unused(name)
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
        for other, held in self.holders.items():
            if name in held:
                self.holders[other] = held - {name} | {fresh}
        return fresh

    # --- changes

    def write(self, name: str, value: Value) -> None:
        """`name` has a new value: so have what it is a view of, and
        all other views of that.
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
        self.values[base] = _merged(self.values[base], real, value) if real else value
        self._spread(base)
        if base in self.views:
            root = self.views[base].parent
            while root in self.views:
                root = self.views[root].parent
            self.values[root] = _UNCERTAIN
            self._spread(root, base)

    def change_view(self, name: str, redo: Redo) -> None:
        """A tensor becomes another view of its own memory: others that share this memory stay as they are."""
        name = self.original(name)
        value = redo(self.values[name])
        before = self._rename(name)
        for other, view in self.views.items():
            if view.parent == before and view.certain and view.redo is None:
                self.views[other] = replace(view, parent=name)
        for other, parts in self.elements.items():
            self.elements[other] = tuple(name if p == before else p for p in parts)
        self.values[name] = value
        self.share(name, before, redo)
        self._spread(name)

    def is_shared(self, name: str) -> bool:
        """Whether other tensors may see the memory of one."""
        name = self.original(name)
        seen = (view.parent == name and view.redo is not None for view in self.views.values())
        return name in self.views or any(seen)

    def _spread(self, base: str, but: str = "") -> None:
        """Compute all views of `base` again, except `but` and its own, and the containers that hold them."""
        changed, work = {base}, [base]
        while work:
            parent = work.pop()
            for name, view in self.views.items():
                if view.parent == parent and name not in (*changed, but):
                    self.values[name] = self._again(view)
                    changed.add(name)
                    work.append(name)
            for name, parts in self.elements.items():
                if parent in parts and name not in changed:
                    old = self.values[name]
                    self.values[name] = [self.values[p] for p in parts] if isinstance(old, (list, tuple)) else _HOLDERS
                    changed.add(name)
                    work.append(name)
            for name, held in self.holders.items():
                if parent in held and name not in changed:
                    self.values[name] = _HOLDERS
                    changed.add(name)
                    work.append(name)

    def _again(self, view: View) -> Value:
        source = self.values[view.parent]
        if isinstance(source, Absent) or not view.certain:
            return _UNCERTAIN
        return source if view.redo is None else view.redo(source)


def _merged(base: Value, chain: Sequence[View], value: Expr) -> Expr:
    """`base` with the part that a chain of views shows replaced; the
    views tell where that part lies.
    """
    if not is_tensor(base):
        raise AotcError("torch-op", "changing an element of a list in place is not supported")
    sizes = shape(base)
    places: Value = g.constant(np.arange(int(np.prod(sizes))).reshape(sizes), "int64")
    for view in chain:
        places = view.redo(places) if view.redo is not None else places
    flat = g.flat(base)
    update = g.cast(g.flat(value), g.dtype(base))
    merged = g.op("scatter_elements", flat, g.flat(places), update, axis=0, reduction="update")
    return g.reshape(merged, sizes)
