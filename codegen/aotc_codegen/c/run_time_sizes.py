# SPDX-License-Identifier: Apache-2.0
"""Print the sizes that callers state for a run: members of the inputs, conditions on them, and the
shapes that follow.

sizes = size_interface(program)        # None for a model all of whose shapes are known
sizes.members[0].ident                 # "batch"
SizePrinter(program, "int64_t").expression(dim)     # "2 * inputs->batch + 1"

Sizes are compared with their ranges before anything is computed from them. The compiler has checked
that no formula over sizes in their ranges leaves the type in which it is computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Final

from aotc.ir import AotcError, Dim, DimRange, SymDim, dim_of_text, frozen, option_text, symbol_of_multiples
from aotc.ir.dimension_formulas import Formula, FormulaCall, Interval, constant, formula_of_name, product_of_intervals
from aotc.ir.size_operands import SizeOperand
from aotc.tir import Const, GrowingState, Program, SizeCheck, Target
from aotc_codegen.c.c_identifiers import (
    UniqueIdentifiers,
    escape_for_c_comment,
    escape_for_c_string,
    model_node_names_of_span,
)
from aotc_codegen.c.project_metadata import REGISTER_BYTES_BY_MACHINE
from aotc_codegen.c.schedule_calls import ModelTensor, model_input_and_output_tensors
from aotc_codegen.c.template_rendering import render_template

#: Bits of a status from which on it carries the number of a condition.
CHECK_NUMBER_SHIFT: Final = 8
#: Largest magnitude of formulas, by the number of bits of the type in which they are computed.
_LARGEST_MAGNITUDE: Final = {32: (1 << 31) - 1, 64: (1 << 63) - 1}
_FLOOR_QUOTIENT_FUNCTION: Final = """\
/* a / b for b > 0, rounded down. */
static int64_t floor_quotient(int64_t a, int64_t b) {
  return a / b - (a % b < 0);
}
"""
#: Function that limits an element of an input to a range.
_CLIP_FUNCTION: Final = """\
static int64_t clip_size(int64_t value, int64_t least, int64_t most) {
  return value < least ? least : value > most ? most : value;
}
"""
_SIZE_STATUS: Final = """\
  {
    const int status = check_sizes(inputs);
    if (status != AOTC_OK) return status;
  }
"""
_SIZE_AND_STATE_STATUS: Final = """\
  {
    const int found = check_state(inputs->state);
    const int status = found == AOTC_OK ? check_sizes(inputs, state_length(inputs->state)) : found;
    if (status != AOTC_OK) return status;
  }
"""
_CAPACITY_WORDS: Final = """, AOTC_ERROR_CAPACITY if the state has no
 * room for what a run appends, or the error of the state"""
#: C expression for the length of a state that grows, and the name of a parameter with it.
_STATE_LENGTH: Final = "state_length(inputs->state)"
_LENGTH_PARAMETER: Final = "length"


@frozen
class SizeMember:
    """A size of a run: a member of the inputs, or the length of the state.

    name        name of the size in the model
    ident       name of the member; "" for the length of the state, and for elements of inputs
    number      position among all sizes
    capacity    largest length of the state; None for other sizes
    operand     element of an input that is the size; None for other sizes
    array       name of the member of the inputs with this element
    is_float    True for an element of a float type, which is truncated
    """

    name: str
    ident: str
    range: DimRange
    number: int = 0
    capacity: int | None = None
    operand: SizeOperand | None = None
    array: str = ""
    is_float: bool = False

    @property
    def function(self) -> str:
        """Name of the C function that computes the size from an element of an input."""
        return f"operand_{self.number}"

    @property
    def element(self) -> str:
        """C expression of the element of an input that is the size."""
        return "" if self.operand is None else f"inputs->{self.array}[{self.operand.element}]"

    @property
    def requirement(self) -> str:
        """Condition that the value fulfills, as text: "the size n is 1 to 8"."""
        o = self.operand
        if o is not None and o.clipped:
            return f"the input {o.input} is given"
        if o is not None:
            return f"element {o.element} of the input {o.input} is {o.least} to {o.most}"
        if self.ident:
            return f"the size {self.name} is {self.comment}"
        return f"the length {self.name} of the state is {self.comment}, as its capacity is {self.capacity}"

    @property
    def comment(self) -> str:
        """The allowed values, as text."""
        r = self.range
        return f"{r.least} to {r.most}" + (f" in steps of {r.step}" if r.step != 1 else "")

    @property
    def title(self) -> str:
        """Name of the size in the model, as text for a comment."""
        return escape_for_c_comment(self.name)

    @property
    def typical(self) -> int:
        """The size of a typical run."""
        return self.range.most if self.range.typical is None else self.range.typical

    @property
    def violation(self) -> str:
        """C expression that is true for a value that is not allowed."""
        if self.operand is not None:
            is_missing = f"inputs->{self.array} == NULL"
            least, most = _int64_literal(self.operand.least), _int64_literal(self.operand.most)
            if self.operand.clipped:
                return is_missing
            if self.is_float:  # also for NaN
                return f"{is_missing} || !({self.element} >= {least} && {self.element} <= {most})"
            element = f"(int64_t){self.element}"
            return f"{is_missing} || {element} < {least} || {element} > {most}"
        value, r = f"inputs->{self.ident}" if self.ident else _LENGTH_PARAMETER, self.range
        step = f" || {value} % {r.step} != 0" if r.step != 1 else ""
        return f"{value} < {r.least} || {value} > {r.most}{step}"

    @property
    def descriptor(self) -> str:
        """C initializer of the aotc_size that describes the size to callers."""
        r = self.range
        return f'{{"{escape_for_c_string(self.name)}", {r.least}, {r.most}, {r.step}, {self.typical}}}'


@frozen
class SizeInterface:
    """The sizes that callers state for each run of a model, and how statuses name a violated condition.

    members             the sizes, in the order of the members of the struct of inputs; the length of the state
                        and elements of inputs are among them, but no members of the struct
    shift, code_mask    the bits of a status from `shift` on are the number of the violated condition;
                        `code_mask` selects the bits below, which are the error code
    """

    program: Program
    members: tuple[SizeMember, ...]
    shift: int = CHECK_NUMBER_SHIFT
    code_mask: int = (1 << CHECK_NUMBER_SHIFT) - 1

    @property
    def texts_of_conditions(self) -> list[str]:
        """For each number of a condition, what must hold, as a C string without its quotes."""
        ranges = [m.requirement for m in self.members]
        defined = [
            (f"node {d.node}: " if d.node else "") + f"the size {d.formula} is {d.least} to {d.most}"
            for d in self.program.definitions
        ]
        growing = [] if self._growth_check is None else [f"the state has room: {self._growth_check}"]
        checks = map(_text_of_check, self.program.checks)
        return [escape_for_c_string(text) for text in (*ranges, *defined, *growing, *checks)]

    @property
    def operand_arrays(self) -> list[tuple[str, str, int]]:
        """Name of the member, element type and number of elements of each input whose elements are sizes."""
        inputs, _ = model_input_and_output_tensors(self.program)
        used = {operand.input for operand in self.program.operands.values()}
        return [(t.ident, t.ctype, t.storage.size) for t in inputs if t.storage.name in used]

    @property
    def operand_values(self) -> list[str]:
        """C statements that set the elements of inputs that are sizes for the sizes in the array `sizes`."""
        ctypes = {ident: ctype for ident, ctype, _ in self.operand_arrays}
        return [
            f"{m.array}_values[{m.operand.element}] = ({ctypes[m.array]})(sizes[{m.number}] + ({m.operand.least}));"
            for m in self.members
            if m.operand is not None
        ]

    @property
    def _growth_check(self) -> SizeCheck | None:
        """Condition that the state has room for what a run appends; None if it follows from the ranges."""
        growing = self.program.growing
        if growing is None or _least_difference(growing.check, self.program) >= 0:
            return None
        return growing.check

    @property
    def stated_members(self) -> tuple[SizeMember, ...]:
        """The sizes that are members of the struct of inputs."""
        return tuple(m for m in self.members if m.ident)

    @property
    def length_parameter(self) -> str:
        """Declaration of one more parameter of functions of sizes: the length of the state; "" for others."""
        return f", int64_t {_LENGTH_PARAMETER}" if self.program.growing is not None else ""

    @property
    def length_argument(self) -> str:
        """Argument for this parameter, where `inputs` are those of a run."""
        return f", {_STATE_LENGTH}" if self.program.growing is not None else ""

    @property
    def generic_status_lines(self) -> list[str]:
        """C statements that set the status and the shapes of outputs for the sizes in the array `sizes`."""
        lengths = [f"sizes[{m.number}]" for m in self.members if not m.ident and m.operand is None]
        if not lengths:
            return [f"status = {self.program.name}_shapes(&in, &out);"]
        (length,) = lengths
        return [f"status = check_sizes(&in, {length});", f"if (status == AOTC_OK) set_shapes(&in, &out, {length});"]

    @property
    def violations(self) -> list[tuple[str, str]]:
        """For each number of a condition: a C expression that is true where it is violated, and the
        status.
        """
        printer = SizePrinter(self.program, "int64_t", length=_LENGTH_PARAMETER)
        rows = [
            (m.violation, "AOTC_ERROR_DIMS" if m.ident or m.operand is not None else "AOTC_ERROR_CAPACITY")
            for m in self.members
        ]
        for number, definition in enumerate(self.program.definitions):
            value = f"definition_{number}(inputs)"
            rows.append((f"{value} < {definition.least} || {value} > {definition.most}", "AOTC_ERROR_SHAPE"))
        checks = [(check, "AOTC_ERROR_SHAPE") for check in self.program.checks]
        checks = [*([] if self._growth_check is None else [(self._growth_check, "AOTC_ERROR_CAPACITY")]), *checks]
        for check, status in checks:
            left, right = printer.expression(check.left), printer.expression(check.right)
            rows.append((f"!({left} {check.relation} {right})", status))
        return [(text, f"{status} + {number << CHECK_NUMBER_SHIFT}") for number, (text, status) in enumerate(rows)]

    @property
    def dim_texts(self) -> list[str]:
        """The dimensions of the inputs and of the outputs, in order, as C strings without their quotes."""
        storages = (*self.program.inputs, *self.program.outputs)
        return [escape_for_c_string(text) for s in storages for text in s.dim_texts]


def size_interface(program: Program) -> SizeInterface | None:
    """Return the interface of a model to the sizes of a run; None if all its shapes are known."""
    if not program.sizes:
        return None
    inputs, _ = model_input_and_output_tensors(program)
    taken = [t.ident for t in inputs] + (["state"] if program.state else [])
    names = UniqueIdentifiers(taken, any_case=True)
    growing = program.growing
    if growing is not None and program.definitions:
        raise AotcError("dims", "shapes of a model whose state grows cannot depend on values of inputs")
    arrays = {t.storage.name: t for t in inputs}
    members: list[SizeMember] = []
    for number, (name, r) in enumerate(program.sizes.items()):
        operand = program.operands.get(name)
        if operand is not None:
            t = arrays[operand.input]
            is_float = t.storage.dtype.is_float
            members.append(SizeMember(name, "", r, number, None, operand, t.ident, is_float))
        elif growing is None or name != growing.size:
            members.append(SizeMember(name, names.unique_identifier(name, "size"), r, number))
        else:
            members.append(SizeMember(name, "", r, number, growing.capacity))
    return SizeInterface(program, tuple(members))


def _least_difference(check: SizeCheck, program: Program) -> int | float:
    """Return a lower bound of the left side of a condition less its right side."""
    left, right = (formula_of_name(d.name) if isinstance(d, SymDim) else constant(d) for d in (check.left, check.right))
    return (left - right).interval(program.symbol_intervals)[0]


def _text_of_check(check: SizeCheck) -> str:
    where = model_node_names_of_span(check.span)[-1:]
    return "".join(f"node {name}: " for name in where) + str(check)


@frozen(eq=False)
class SizesArgument:
    """Template values of the sizes as an input of a generic call, behind the tensors."""

    members: tuple[SizeMember, ...]
    role: str = "input"

    @property
    def argument(self) -> str:
        """Initializers of the members of the inputs: the sizes of a typical run."""
        return ", ".join(str(member.typical) for member in self.members if member.ident)

    @property
    def descriptor(self) -> str:
        """C initializer of the aotc_tensor that describes the sizes to callers."""
        return f'{{"sizes", sizes_shape, {8 * len(self.members)}, 1, AOTC_INT64, NULL}}'


class SizePrinter:
    """Printer of formulas over the sizes of a run as C expressions.

    ctype    signed type in which they are computed
    bits     number of bits of this type
    length   C expression for the length of a state that grows

    Raise AotcError (code "dims") for a formula that may not fit this type, or divide by 0.
    """

    def __init__(self, program: Program, ctype: str, bits: int = 64, length: str = _STATE_LENGTH) -> None:
        self._program, self._ctype, self._bits, self._length = program, ctype, bits, length
        interface = size_interface(program)
        members = interface.members if interface is not None else ()
        self._members = {symbol_of_multiples(m.name, m.range.step): m for m in members}
        self._definitions = {d.name: f"definition_{k}" for k, d in enumerate(program.definitions)}

    @cached_property
    def _intervals(self) -> Mapping[str, Interval]:
        return self._program.symbol_intervals

    def expression(self, dim: Dim) -> str:
        """Return the value of a dimension as a C expression, which binds as tightly as a sum."""
        if isinstance(dim, int):
            return str(dim)
        if not dim.name:
            hint = "pin some sizes when the model is compiled: " + option_text("dims", {"NAME": 1})
            raise AotcError("dims", "the formula of a size is too long", hint=hint)
        return self._sum(formula_of_name(dim.name))

    def _function_of_symbol(self, symbol: str) -> str | None:
        """Return the C function that computes a size which callers do not state as a number."""
        if symbol in self._definitions:
            return self._definitions[symbol]
        return self._members[symbol].function if self._members[symbol].operand is not None else None

    def _sum(self, formula: Formula) -> str:
        text = ""
        most: int | float = 0
        for factors, number in formula.terms:
            interval: Interval = (number, number)
            for factor in factors:
                interval = product_of_intervals(interval, self._interval_of_factor(factor))
            most += max(map(abs, interval))
            pieces = [*([str(abs(number))] if abs(number) != 1 or not factors else []), *map(self._factor, factors)]
            sign = ("-" if number < 0 else "") if not text else (" - " if number < 0 else " + ")
            text += sign + " * ".join(pieces)
        if most > _LARGEST_MAGNITUDE[self._bits]:
            raise _too_large_error(str(formula), self._bits)
        return text or "0"

    def _interval_of_factor(self, factor: str | FormulaCall) -> Interval:
        return Formula((((factor,), 1),)).interval(self._intervals)

    def _factor(self, factor: str | FormulaCall) -> str:
        if isinstance(factor, str):
            if (function := self._function_of_symbol(factor)) is not None:
                return f"({self._ctype}){function}(inputs)" if self._ctype != "int64_t" else f"{function}(inputs)"
            member = self._members[factor]
            value = f"inputs->{member.ident}" if member.ident else self._length
            value = f"({self._ctype}){value}" if self._ctype != "int64_t" else value
            return value if member.range.step == 1 else f"({value} / {member.range.step})"
        texts = [self._sum(argument) for argument in factor.arguments]
        if factor.function == "//":
            dividend, divisor = (argument.interval(self._intervals) for argument in factor.arguments)
            if divisor[0] < 1:
                hint = "give a larger least size: " + option_text("dims", {"NAME": "LEAST..MOST"})
                raise AotcError("dims", f"the size {factor} divides by what may be 0", hint=hint)
            if dividend[0] >= 0:
                return f"(({texts[0]}) / ({texts[1]}))"
            call = f"floor_quotient({texts[0]}, {texts[1]})"
            return call if self._ctype == "int64_t" else f"({self._ctype}){call}"
        comparison = "<" if factor.function == "min" else ">"
        result = texts[0]
        for text in texts[1:]:
            result = f"(({result}) {comparison} ({text}) ? ({result}) : ({text}))"
        return result


def _int64_literal(value: int) -> str:
    """Return an int64 number as a C expression."""
    return f"({value + 1} - 1)" if value == -(1 << 63) else str(value)


def _functions_of_operands(program: Program, interface: SizeInterface) -> str:
    """Return C functions for sizes that callers do not state: elements of inputs, and values of formulas."""
    text = _CLIP_FUNCTION + "\n" if any(o.clipped for o in program.operands.values()) else ""
    for member in interface.members:
        if member.operand is None:
            continue
        o, value = member.operand, f"(int64_t){member.element}"
        if o.clipped:
            value = f"clip_size({value}, {o.least}, {o.most})"
        added = f" + {-o.least}" if o.least < 0 else f" - {o.least}" if o.least else ""
        text += _size_function(program.name, member.function, value + added)
    for number, definition in enumerate(program.definitions):
        value = SizePrinter(program, "int64_t").expression(dim_of_text(definition.formula))
        text += _size_function(program.name, f"definition_{number}", value)
    return text


def _size_function(model: str, name: str, value: str) -> str:
    head = f"static int64_t {name}(const {model}_inputs *inputs) {{"
    return f"{head}\n  return {value};\n}}\n\n"


def _too_large_error(text: str, bits: int) -> AotcError:
    hint = "give a smaller largest size: " + option_text("dims", {"NAME": "LEAST..MOST"})
    return AotcError("dims", f"the size {text} may need more than {bits} bits", hint=hint)


def size_lines(program: Program, ctype: str, bits: int) -> tuple[list[str], dict[SymDim, str]]:
    """Return C lines that compute the numbers of a program's calls from the sizes of a run, and the
    name of each number.

    ctype, bits    type of index arithmetic in kernels, and its number of bits
    """
    printer = SizePrinter(program, ctype, bits)
    dims = dict.fromkeys(n for step in program.steps for n in step.numbers if not isinstance(n, Const))
    names = {dim: f"size_{k}" for k, dim in enumerate(dims)}
    return [f"const {ctype} {name} = {printer.expression(dim)};" for dim, name in names.items()], names


def pointer_bits(target: Target) -> int:
    """Return the number of bits of an address; 32 where the machine is unknown, as such targets are
    small.
    """
    return 8 * REGISTER_BYTES_BY_MACHINE.get(target.machine, 4) if target.bare else 64


def require_sizes_fit_memory(program: Program, bits: int) -> None:
    """Raise AotcError (code "dims") if a tensor of the largest sizes, or the arena, has more bytes than
    a pointer of a number of bits can address.
    """
    largest = max((s.nbytes for s in (*program.inputs, *program.outputs, *program.storages_of_kind("temp"))), default=0)
    total = max(largest, program.plan.peak)
    if program.sizes and total > _LARGEST_MAGNITUDE[bits]:
        sizes = ", ".join(f"{name} {r}" for name, r in program.sizes.items())
        hint = "give smaller largest sizes: " + option_text("dims", {"NAME": "LEAST..MOST"})
        raise AotcError("dims", f"tensors of the largest sizes ({sizes}) need {total} bytes", hint=hint)


def size_template_values(program: Program) -> dict[str, Any]:
    """Return the template values for the sizes of a run.

    sizes           the interface, if shapes depend on sizes
    size_members    the sizes of the interface
    outputs_type    type of what the parameter for outputs points to: a run sets their shapes
    size_functions  C functions for sizes
    size_status     C statements that return the status of sizes that are not allowed
    capacity_words  what the description of statuses adds for a state that grows
    growth          the new length of the state after a run, as a C expression; none for a state that does not grow
    generic_sizes   C functions for callers that load any model
    typical_sizes   C statements that set the sizes of a typical run
    """
    interface = size_interface(program)
    struct = f"{program.name}_outputs"
    if interface is None:
        rows = dict.fromkeys(("size_functions", "size_status", "generic_sizes", "capacity_words"), "")
        lists = dict.fromkeys(("sizes", "size_members", "typical_sizes", "growth"), ())
        return {"outputs_type": f"const {struct}", **lists, **rows}
    _, outputs = model_input_and_output_tensors(program)
    printer = SizePrinter(program, "int64_t", length=_LENGTH_PARAMETER)
    shapes = [
        f"outputs->{t.shape_member}[{axis}] = {printer.expression(dim)};"
        for t in outputs
        if t.shape_member
        for axis, dim in enumerate(t.storage.run_time_shape)
    ]
    extents = [
        f"out.{t.shape_member}[{axis}]" if t.shape_member else str(dim)
        for t in outputs
        for axis, dim in enumerate(t.storage.run_time_shape)
    ]
    words = {
        "name": program.name,
        "sizes": interface,
        "growing": _list_of(program.growing),
        "generic_status": interface.generic_status_lines,
        "shapes": shapes,
        "workspace_bytes": program.plan.peak,
        "extents": [f"shapes[{k}] = {extent};" for k, extent in enumerate(extents)],
    }
    text = render_template("sizes.c", **words)
    functions = _functions_of_operands(program, interface)
    helper = _FLOOR_QUOTIENT_FUNCTION + "\n" if uses_floor_quotient(program, functions + text) else ""
    helper += functions
    return {
        "sizes": [interface],
        "size_members": interface.stated_members,
        "outputs_type": struct,
        "size_functions": helper + text,
        "size_status": _SIZE_STATUS if program.growing is None else _SIZE_AND_STATE_STATUS,
        "capacity_words": "" if program.growing is None else _CAPACITY_WORDS,
        "growth": [
            SizePrinter(program, "int64_t").expression(SymDim(g.size) + g.added) for g in _list_of(program.growing)
        ],
        "generic_sizes": render_template("generic_sizes.c", **words),
        "typical_sizes": [f"inputs.{m.ident} = {m.typical};" for m in interface.stated_members],
    }


def _list_of(growing: GrowingState | None) -> list[GrowingState]:
    """Return a list of one item for a state that grows, and an empty one otherwise: templates have loops only."""
    return [] if growing is None else [growing]


def uses_floor_quotient(program: Program, text: str) -> bool:
    """Return True if C code calls `floor_quotient`, or if the numbers of a program's calls need it."""
    printer = SizePrinter(program, "int64_t")
    numbers = [n for step in program.steps for n in step.numbers if not isinstance(n, Const)]
    return "floor_quotient(" in text or any("floor_quotient(" in printer.expression(n) for n in numbers)


def null_conditions(program: Program, tensors: Sequence[ModelTensor]) -> list[str]:
    """Return C expressions that are true for a pointer to a tensor that must not be NULL, without
    the comparison with NULL: a tensor without elements needs no memory.
    """
    printer = SizePrinter(program, "int64_t")
    rows: list[str] = []
    for t in tensors:
        if not t.storage.size:
            continue
        count = t.storage.element_count
        may_be_empty = isinstance(count, SymDim) and _least_value(count, program) < 1
        rows.append((f"{printer.expression(count)} != 0 && " if may_be_empty else "") + f"{t.role}s->{t.ident}")
    return rows


def _least_value(dim: SymDim, program: Program) -> int | float:
    return formula_of_name(dim.name).interval(program.symbol_intervals)[0]
