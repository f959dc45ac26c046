# SPDX-License-Identifier: Apache-2.0
"""Values of ONNX graphs that a run decides about: sequences of run-time length, optional values, and tensors whose
shape changes from iteration to iteration of a loop. Each has a form, the tensors of fixed types that stand for it.

    form = form_of_choice([xs, ys], sequences)      # results of two branches
    tensors = form.fields(xs, sequences)            # results of a branch of the graph IR
    form.value(tensors, sequences)                  # the sequence that a run chooses
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from aotc.ir import AotcError, TensorType, TupleType, Type, require
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.run_time_sequences import (
    Layout,
    RunTimeSequence,
    fields_of_tensor,
    layout_of,
    sequence_of,
    tensor_of_fields,
    with_layout,
)
from aotc.relay.graph_api import Expr, TupleGetItem, type_of

#: The type of an optional value that is absent, a tuple which no sequence is.
ABSENT_TYPE: Final = TupleType((TupleType(()),))


class RunTimeSequences:
    """The expressions of a model that are sequences of run-time length."""

    def __init__(self) -> None:
        self._known: dict[Expr, RunTimeSequence] = {}

    def of(self, expr: Expr | None) -> RunTimeSequence | None:
        """Return the sequence that an expression stands for; None for other values."""
        return None if expr is None else self._known.get(expr)

    def expression(self, sequence: RunTimeSequence) -> Expr:
        """Return a new expression that stands for a sequence."""
        expr = sequence.as_tuple()
        self._known[expr] = sequence
        return expr

    def add_copy(self, copy: Expr, original: Expr) -> None:
        """Remember that an expression of the type of another one stands for what that one stands for."""
        known = self._known.get(original)
        if known is not None:
            self._known[copy] = known.of_tuple(copy)


@dataclass(frozen=True, slots=True)
class PlainForm:
    """A value whose type does not change: the value itself."""

    type: Type

    def fields(self, value: Expr, _: RunTimeSequences) -> list[Expr]:
        """Return the value."""
        return [value]

    def value(self, fields: Sequence[Expr], _: RunTimeSequences) -> Expr:
        """Return the value."""
        return fields[0]


@dataclass(frozen=True, slots=True)
class TensorForm:
    """A tensor whose extents change: one with room for the largest ones, and the extents."""

    layout: Layout

    def fields(self, value: Expr, _: RunTimeSequences) -> list[Expr]:
        """Return the tensors for a value."""
        return fields_of_tensor(value, self.layout)

    def value(self, fields: Sequence[Expr], _: RunTimeSequences) -> Expr:
        """Return the value that tensors stand for."""
        return tensor_of_fields(fields, self.layout)


@dataclass(frozen=True, slots=True)
class SlotsForm:
    """A sequence or an optional value whose length changes.

    is_optional   True for an optional sequence that may be absent
    is_tensor     True for an optional tensor
    is_growing    see `RunTimeSequence`
    """

    layout: Layout
    capacity: int
    is_optional: bool = False
    is_tensor: bool = False
    is_growing: bool = True

    def sequence(self, value: Expr, sequences: RunTimeSequences) -> RunTimeSequence:
        """Return a value in this form."""
        known = sequences.of(value)
        if known is None:
            known = sequence_of(_elements(value), self.layout, self.capacity)
            if self.is_optional:
                known = replace(known, present=g.constant(type_of(value) != ABSENT_TYPE))
        known = with_layout(known, self.layout, self.capacity)
        if self.is_optional and known.present is None:
            known = replace(known, present=g.constant(True))
        return replace(known, is_tensor=self.is_tensor, is_growing=self.is_growing)

    def fields(self, value: Expr, sequences: RunTimeSequences) -> list[Expr]:
        """Return the tensors for a value."""
        return self.sequence(value, sequences).fields

    def value(self, fields: Sequence[Expr], sequences: RunTimeSequences) -> Expr:
        """Return the value that tensors stand for."""
        count, rows, *rest = fields
        shapes = rest.pop(0) if self.layout.varying else None
        present = rest.pop(0) if self.is_optional else None
        flags = {"is_tensor": self.is_tensor, "is_growing": self.is_growing}
        return sequences.expression(RunTimeSequence(self.layout, rows, count, shapes, present, **flags))


Form: TypeAlias = PlainForm | TensorForm | SlotsForm


def _elements(value: Expr) -> list[Expr]:
    """Return the elements of a sequence of known length; those of an optional value are the tensor, or none."""
    ty = type_of(value)
    if not isinstance(ty, TupleType):
        return [value]
    return [] if ty == ABSENT_TYPE else [TupleGetItem(value, k) for k in range(len(ty.fields))]


def form_of_choice(values: Sequence[Expr], sequences: RunTimeSequences) -> SlotsForm:
    """Return the form of sequences, or optional values, of which a run chooses one. Raises AotcError (code
    "onnx-sequence") if these are tensors and sequences.
    """
    known = [sequences.of(value) for value in values]
    layout: Layout | None = None
    tensors = sequence_count = 0
    for value, given in zip(values, known, strict=True):
        ty = type_of(value)
        is_tensor = isinstance(ty, TensorType) if given is None else given.is_tensor
        is_absent = given is None and ty == ABSENT_TYPE
        tensors, sequence_count = tensors + is_tensor, sequence_count + (not is_tensor and not is_absent)
        own = given.layout if given is not None else layout_of(_tensor_types(value))
        layout = own if layout is None else layout if own is None else layout.joined(own)
    text = "a run chooses between a tensor and a sequence, which have no type in common"
    require("onnx-sequence", not (tensors and sequence_count), text)
    is_optional = any(
        type_of(v) == ABSENT_TYPE if s is None else s.present is not None for v, s in zip(values, known, strict=True)
    )
    lengths = [len(_elements(v)) if s is None else s.capacity for v, s in zip(values, known, strict=True)]
    unknown = Layout(TensorType((), "float32").dtype, (), frozenset(), 0)
    is_growing = all(s is None or s.is_growing for s in known)
    return SlotsForm(
        unknown if layout is None else layout, max(1, *lengths), is_optional and not tensors, bool(tensors), is_growing
    )


def _tensor_types(value: Expr) -> list[TensorType]:
    types = [type_of(item) for item in _elements(value)]
    if not all(isinstance(ty, TensorType) for ty in types):
        raise AotcError("onnx-sequence", "the elements of a sequence must be tensors")
    return [ty for ty in types if isinstance(ty, TensorType)]


def needs_form(values: Sequence[Expr], sequences: RunTimeSequences) -> bool:
    """Return True for values of which a run can choose one only in another form: sequences of run-time length, or
    sequences and optional values of different types.
    """
    if any(sequences.of(value) is not None for value in values):
        return True
    types = [type_of(value) for value in values]
    return any(isinstance(ty, TupleType) for ty in types) and any(ty != types[0] for ty in types)


def initial_form(value: Expr, sequences: RunTimeSequences) -> Form:
    """Return the form of a value that a loop begins with."""
    if sequences.of(value) is not None:
        return form_of_choice([value], sequences)
    return PlainForm(type_of(value))


def form_after_iteration(form: Form, before: Expr, after: Expr, sequences: RunTimeSequences) -> Form:
    """Return the form of what a loop carries, which has the values of an earlier form and the value after an
    iteration.

    before    a value of the earlier form

    Raises AotcError (code "onnx-loop") for tensors that differ in their element type or rank.
    """
    ty = type_of(after)
    if isinstance(form, SlotsForm) or needs_form([before, after], sequences):
        return form_of_choice([before, after], sequences)
    if isinstance(form, PlainForm) and ty == form.type:
        return form
    old = type_of(before)
    assert isinstance(old, TensorType)
    assert isinstance(ty, TensorType)
    own = Layout.of_type(old) if isinstance(form, PlainForm) else form.layout
    fits = own.dtype == ty.dtype and own.rank == ty.rank
    hint = "keep its type and rank, or make the number of iterations a constant: then the loop is unrolled"
    require("onnx-loop", fits, f"a value that the loop carries is {old}, but {ty} after an iteration", hint=hint)
    layout = own.joined(Layout.of_type(ty))
    return TensorForm(layout) if layout.varying else PlainForm(ty)


def form_of_result(form: Form, given: Expr, sequences: RunTimeSequences) -> Form:
    """Return the form of what a loop has carried, behind the loop.

    form     form in the body, whose room for the largest number of iterations does not grow any more
    given    the value that the loop begins with

    Behind the loop there may be further elements, unless the loop is within one that has room for all of them.
    """
    if not isinstance(form, SlotsForm):
        return form
    known = sequences.of(given)
    return replace(form, is_growing=known is None or known.is_growing)


#: The capacity, or None, and the room of a form.
_Sizes: TypeAlias = tuple[int | None, tuple[int | None, ...]]


def sizes_of_form(form: Form) -> _Sizes:
    """Return what may grow from iteration to iteration."""
    if isinstance(form, PlainForm):
        return None, ()
    room = tuple(d if k in form.layout.varying and isinstance(d, int) else None for k, d in enumerate(form.layout.room))
    return (form.capacity if isinstance(form, SlotsForm) else None), room


def growth(before: Form, after: Form) -> _Sizes | None:
    """Return by how much the sizes of a form have grown in an iteration; None if the forms differ in more."""
    old, new = sizes_of_form(before), sizes_of_form(after)
    if type(before) is not type(after) or len(old[1]) != len(new[1]) or not _is_same_but_for_sizes(before, after):
        return None
    pairs = zip((old[0], *old[1]), (new[0], *new[1]), strict=True)
    capacity, *room = (None if a is None or b is None else b - a for a, b in pairs)
    return capacity, tuple(room)


def _is_same_but_for_sizes(before: Form, after: Form) -> bool:
    if isinstance(before, PlainForm) or isinstance(after, PlainForm):
        return before == after
    sizes = sizes_of_form(before)
    return with_sizes(after, sizes, replaces_growth=False) == before


def with_sizes(form: Form, sizes: _Sizes, *, replaces_growth: bool = True) -> Form:
    """Return a form with other sizes; elements that are inserted have no more room than it states if
    `replaces_growth`.
    """
    if isinstance(form, PlainForm):
        return form
    capacity, room = sizes
    dims = tuple(d if r is None else r for d, r in zip(form.layout.room, room, strict=True))
    layout = replace(form.layout, room=dims)
    if isinstance(form, TensorForm):
        return TensorForm(layout)
    assert capacity is not None
    is_growing = form.is_growing and not (replaces_growth and capacity != form.capacity)
    return replace(form, layout=layout, capacity=capacity, is_growing=is_growing)


def grown_form(form: Form, step: _Sizes, iterations: int) -> Form:
    """Return a form with room for further iterations, each of which makes it grow by the same sizes."""
    capacity, room = sizes_of_form(form)
    more = max(iterations, 0)

    def grown(size: int | None, by: int | None) -> int | None:
        return None if size is None else size + (by or 0) * more

    grown_sizes = grown(capacity, step[0]), tuple(map(grown, room, step[1]))
    result = with_sizes(form, grown_sizes)
    if isinstance(result, SlotsForm) and step[0]:
        result = replace(result, is_growing=False)
    return result
