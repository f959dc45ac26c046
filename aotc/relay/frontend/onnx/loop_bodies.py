# SPDX-License-Identifier: Apache-2.0
"""Convert bodies of ONNX loops that carry values whose types change: sequences that grow, and tensors whose extents
change from iteration to iteration.

A body is converted as a trial for what the loop begins with, then for forms (`run_time_values`) that also hold what an
iteration gives, until the forms do not change any more. Forms that grow by the same sizes in each iteration get room
for the largest number of iterations.

    stable = find_stable_body(convert, state, sequences)     # a body and the forms of what it carries
    body = stable.body(most_iterations)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from aotc.ir import AotcError, TensorType, require
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.found_sizes import with_required_range
from aotc.relay.frontend.onnx.node import ClosedSubgraph
from aotc.relay.frontend.onnx.run_time_values import (
    Form,
    PlainForm,
    RunTimeSequences,
    form_after_iteration,
    form_of_result,
    grown_form,
    growth,
    initial_form,
)
from aotc.relay.frontend.run_time_sequences import Layout, fields_of_tensor, rows_of_fields
from aotc.relay.frontend.size_conditions import collect_size_conditions, state_conditions
from aotc.relay.frontend.size_operands import sizes_of_trial
from aotc.relay.frontend.tail_recursion import LoopParameter
from aotc.relay.graph_api import Expr, Var, tensor_type_of, type_of

#: Largest number of trials: what a loop carries then still changes in a way that no form has room for.
MAX_TRIALS: Final = 8

#: Function that converts the body of a loop for values of the state.
ConvertBody: TypeAlias = Callable[[Sequence[Expr]], ClosedSubgraph]


@dataclass(frozen=True, slots=True)
class LoopBody:
    """A converted body of a loop.

    forms      of the carried values
    variables  for each carried value, the variables of the tensors of its form
    flag       the condition after an iteration
    state      the carried values after an iteration
    rows       one row of each scan output
    captured   what the body reads of enclosing graphs, by variable
    """

    forms: Sequence[Form]
    variables: Sequence[Sequence[Var]]
    flag: Expr
    state: Sequence[Expr]
    rows: Sequence[Expr]
    captured: Mapping[Var, Expr]

    def parameters(self, given: Sequence[Expr], sequences: RunTimeSequences) -> list[LoopParameter]:
        """Return the parameters of the loop for the carried values, of which `given` are the first ones."""
        result: list[LoopParameter] = []
        for form, variables, first, later in zip(self.forms, self.variables, given, self.state, strict=True):
            result += map(LoopParameter, variables, form.fields(first, sequences), form.fields(later, sequences))
        return result

    def values(self, results: Sequence[Expr], given: Sequence[Expr], sequences: RunTimeSequences) -> list[Expr]:
        """Return the carried values whose tensors are results of a loop, which begins with `given`."""
        rest = iter(results)
        return [
            form_of_result(form, first, sequences).value([next(rest) for _ in variables], sequences)
            for form, variables, first in zip(self.forms, self.variables, given, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class StableBody:
    """A body of a loop whose carried values have forms that hold after any number of iterations.

    known     the converted body, if its forms do not depend on the number of iterations
    forms     the forms after some iterations
    steps     by how much each form grows in an iteration; None if it does not
    trials    the number of these iterations
    """

    convert: ConvertBody
    state: Sequence[Expr]
    sequences: RunTimeSequences
    forms: Sequence[Form]
    steps: Sequence[object | None]
    trials: int
    known: LoopBody | None

    @property
    def is_growing(self) -> bool:
        """True if the forms depend on the largest number of iterations."""
        return any(step is not None for step in self.steps)

    def body(self, most_iterations: int) -> LoopBody:
        """Return the body, with room for a largest number of iterations."""
        if self.known is not None:
            return self.known
        forms = [
            form if step is None else grown_form(form, step, most_iterations - self.trials)  # type: ignore[arg-type]
            for form, step in zip(self.forms, self.steps, strict=True)
        ]
        return _converted(self.convert, forms, self.state, self.sequences)


def _converted(
    convert: ConvertBody, forms: Sequence[Form], state: Sequence[Expr], sequences: RunTimeSequences
) -> LoopBody:
    variables: list[list[Var]] = []
    for k, (form, given) in enumerate(zip(forms, state, strict=True)):
        fields = form.fields(given, sequences)
        names = [f"x{k}"] if isinstance(form, PlainForm) else [f"x{k}_{j}" for j in range(len(fields))]
        variables.append([Var(name, type_of(field)) for name, field in zip(names, fields, strict=True)])
    inputs = [form.value(names, sequences) for form, names in zip(forms, variables, strict=True)]
    outputs, captured = convert(inputs)
    count = 1 + len(state)
    return LoopBody(forms, variables, outputs[0], outputs[1:count], outputs[count:], captured)


def find_stable_body(convert: ConvertBody, state: Sequence[Expr], sequences: RunTimeSequences) -> StableBody:
    """Return a body with forms of its carried values that hold after each iteration.

    Raises AotcError (code "onnx-loop") for values that keep changing in other ways than by the same sizes.
    """
    forms: list[Form] = [initial_form(x, sequences) for x in state]
    steps: list[object | None] = []
    for trial in range(MAX_TRIALS):
        with sizes_of_trial() as is_used, collect_size_conditions() as conditions:
            body = _converted(convert, forms, state, sequences)
            before = [form.value(names, sequences) for form, names in zip(forms, body.variables, strict=True)]
            rows = zip(forms, before, body.state, strict=True)
            later = [form_after_iteration(form, old, new, sequences) for form, old, new in rows]
            if later == forms:
                is_used.append(True)
        if later == forms:
            state_conditions(conditions)
            return StableBody(convert, state, sequences, forms, [None] * len(forms), trial, body)
        last, steps = steps, [growth(old, new) for old, new in zip(forms, later, strict=True)]
        forms = later
        if steps == last and None not in steps:
            return StableBody(convert, state, sequences, forms, steps, trial + 1, None)
    text = "a value that the loop carries changes in each iteration, in other ways than by the same number of elements"
    hint = "keep its shape, or make the number of iterations a constant: then the loop is unrolled"
    raise AotcError("onnx-loop", text, hint=hint)


# --- rows of scan outputs


@dataclass(frozen=True, slots=True)
class ScanRow:
    """A row of a scan output whose extents a run finds in each iteration.

    padded      the row with room for its largest extents
    extents     parameter of the loop: the extents of the rows, which are equal in all iterations
    """

    layout: Layout
    padded: Expr
    extents: LoopParameter

    def output(self, rows: Expr, extents: Expr) -> Expr:
        """Return the scan output for the rows and extents that a loop returns."""
        return rows_of_fields(rows, g.maximum(extents, 0), self.layout)


def scan_row(row: Expr, number: Expr, position: int) -> ScanRow | None:
    """Return a row whose extents a run finds in each iteration; None for a row of known extents.

    number      the iteration number
    position    of the scan output
    """
    layout = Layout.of_type(tensor_type_of(row))
    if not layout.varying:
        return None
    require("onnx-loop", bool(layout.rank), "a row of a scan output has no extents")
    padded, extents = fields_of_tensor(row, layout)
    known = Var(f"e{position}", TensorType((layout.rank,), "int64"))
    is_equal = g.logical_or(g.equal(number, 0), g.call_op("all", g.equal(known, extents)))
    text = "the rows of a scan output have equal extents in all iterations"
    later = with_required_range(extents, is_equal, 1, 1, text)
    return ScanRow(layout, padded, LoopParameter(known, g.filled(0, (layout.rank,), "int64"), later))
