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

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Final

from aotc.ir import AotcError, Dim, DimRange, Span, SymDim, frozen, option_text, symbol_of_multiples
from aotc.ir.dimension_formulas import Formula, FormulaCall, Interval, constant, formula_of_name, product_of_intervals
from aotc.ir.size_operands import SizeOperand
from aotc.tir import Define, Program, SizeCheck, Target
from aotc_codegen.c.c_identifiers import (
    UniqueIdentifiers,
    escape_for_c_comment,
    escape_for_c_string,
    model_node_names_of_span,
)
from aotc_codegen.c.project_metadata import REGISTER_BYTES_BY_MACHINE
from aotc_codegen.c.schedule_calls import model_input_and_output_tensors

#: Bits of a status from which on it carries the number of a condition.
CHECK_NUMBER_SHIFT: Final = 8
#: Largest magnitude of formulas, by the number of bits of the type in which they are computed.
LARGEST_MAGNITUDE: Final = {32: (1 << 31) - 1, 64: (1 << 63) - 1}
#: C expression for the length of a state that grows, and the name of a parameter with it.
_STATE_LENGTH: Final = "state_length(inputs->state)"
LENGTH_PARAMETER: Final = "length"


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
    output      name of the member of the outputs with a size that a run finds; "" for other sizes
    node        name of the node of the model that finds the size; "" for other sizes
    """

    name: str
    ident: str
    range: DimRange
    number: int = 0
    capacity: int | None = None
    operand: SizeOperand | None = None
    array: str = ""
    is_float: bool = False
    output: str = ""
    node: str = ""

    @property
    def function(self) -> str:
        """Name of the C function that computes the size from an element of an input."""
        return f"operand_{self.number}"

    @property
    def element(self) -> str:
        """C expression of the element of an input that is the size."""
        return "" if self.operand is None else f"inputs->{self.array}[{self.operand.element}]"

    @property
    def value(self) -> str:
        """C expression of the element as an integer."""
        is_bits = self.operand is not None and self.operand.is_bits
        return f"bits_of_float({self.element})" if is_bits else f"(int64_t){self.element}"

    @property
    def requirement(self) -> str:
        """Condition that the value fulfills, as text: "the size n is 1 to 8"."""
        o = self.operand
        if self.output:
            where = f"node {self.node}: " if self.node else ""
            return f"{where}the size {self.name}, which the run finds, is {self.comment}"
        if o is not None and o.clipped:
            return f"the input {o.input} is given"
        if o is not None:
            return f"element {o.element} of the input {o.input} is {o.range_text}"
        if self.ident:
            return f"the size {self.name} is {self.comment}"
        return f"the length {self.name} of the state is {self.comment}, as its capacity is {self.capacity}"

    @property
    def comment(self) -> str:
        """The allowed values, as text."""
        return self.range.description

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
        """C expression that is true for a value that is not allowed; "" for a size that a run finds."""
        if self.output:
            return ""
        if self.operand is not None:
            is_missing = f"inputs->{self.array} == NULL"
            least, most = _int64_literal(self.operand.least), _int64_literal(self.operand.most)
            if self.operand.clipped:
                return is_missing
            if self.is_float and not self.operand.is_bits:  # also for NaN
                return f"{is_missing} || !({self.element} >= {least} && {self.element} <= {most})"
            return f"{is_missing} || {self.value} < {least} || {self.value} > {most}"
        value, r = f"inputs->{self.ident}" if self.ident else LENGTH_PARAMETER, self.range
        if r.tiers:
            conditions = map(self.condition_of_tier, r.tiers)
            return f"!({' || '.join(f'({c})' if '&&' in c else c for c in conditions)})"
        step = f" || {value} % {r.step} != 0" if r.step != 1 else ""
        return f"{value} < {r.least} || {value} > {r.most}{step}"

    def condition_of_tier(self, tier: DimRange) -> str:
        """Return a C expression that is true for a value in the range of a tier."""
        value = f"inputs->{self.ident}"
        if tier.least == tier.most:
            return f"{value} == {tier.least}"
        step = f" && {value} % {tier.step} == 0" if tier.step != 1 else ""
        return f"{value} >= {tier.least} && {value} <= {tier.most}{step}"

    @property
    def descriptor(self) -> str:
        """C initializer of the aotc_size that describes the size to callers."""
        r = self.range
        return f'{{"{escape_for_c_string(self.name)}", {r.least}, {r.most}, {r.step}, {self.typical}}}'


@frozen
class SizeInterface:
    """The sizes that callers state for each run of a model, and how statuses name a violated condition.

    members             the sizes, in the order of the members of the struct of inputs; the length of the state
                        and elements of inputs are among them, but no members of the struct; then those that a run
                        finds, which are members of the struct of outputs
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
            (f"node {d.node}: " if d.node else "") + f"the size {d} is {d.least} to {d.most}"
            for d in self.program.definitions
        ]
        growing = [] if self._growth_check is None else [f"the state has room: {self._growth_check}"]
        checks = map(_text_of_check, (*self.program.checks, *(check for _, check in self._tier_checks)))
        found = (text for conditions in self._conditions_of_definitions for text, _ in conditions)
        return [escape_for_c_string(text) for text in (*ranges, *defined, *growing, *checks, *found)]

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
        rows = []
        for m in self.members:
            if m.operand is not None:
                conversion = "float_of_bits" if m.operand.is_bits else f"({ctypes[m.array]})"
                value = f"{conversion}(sizes[{m.number}] + ({m.operand.least}))"
                rows.append(f"{m.array}_values[{m.operand.element}] = {value};")
        return rows

    @property
    def _growth_check(self) -> SizeCheck | None:
        """Condition that the state has room for what a run appends; None if it follows from the ranges."""
        growing = self.program.growing
        if growing is None or _least_difference(growing.check, self.program) >= 0:
            return None
        return growing.check

    @property
    def _tier_checks(self) -> list[tuple[int, SizeCheck]]:
        """The conditions that runs of one tier must fulfill, with its number."""
        return [(number, check) for number, tier in enumerate(self.program.tiers) for check in tier.checks]

    @property
    def tier_conditions(self) -> list[str]:
        """For each tier, a C expression that is true for sizes in its ranges."""
        return [
            " && ".join(
                m.condition_of_tier(tier.sizes[m.name]) for m in self.members if self.program.sizes[m.name].tiers
            )
            for tier in self.program.tiers
        ]

    @property
    def tier_descriptors(self) -> list[str]:
        """C initializers of the aotc_size of each size in each tier."""
        return [replace(m, range=tier.sizes[m.name]).descriptor for tier in self.program.tiers for m in self.members]

    @property
    def stated_members(self) -> tuple[SizeMember, ...]:
        """The sizes that are members of the struct of inputs."""
        return tuple(m for m in self.members if m.ident)

    @property
    def found_members(self) -> tuple[SizeMember, ...]:
        """The sizes that a run finds, which are members of the struct of outputs."""
        return tuple(m for m in self.members if m.output)

    @property
    def length_parameter(self) -> str:
        """Declaration of one more parameter of functions of sizes: the length of the state; "" for others."""
        return f", int64_t {LENGTH_PARAMETER}" if self.program.growing is not None else ""

    @property
    def length_argument(self) -> str:
        """Argument for this parameter, where `inputs` are those of a run."""
        return f", {_STATE_LENGTH}" if self.program.growing is not None else ""

    @property
    def generic_status_lines(self) -> list[str]:
        """C statements that set the status and the shapes of outputs for the sizes in the array `sizes`."""
        lengths = [f"sizes[{m.number}]" for m in self.members if not m.ident and not m.output and m.operand is None]
        if not lengths:
            return [f"status = {self.program.name}_shapes(&in, &out);"]
        (length,) = lengths
        return [f"status = check_sizes(&in, {length});", f"if (status == AOTC_OK) set_shapes(&in, &out, {length});"]

    @property
    def violations(self) -> list[tuple[str, str]]:
        """For each condition that is checked when a run begins: a C expression that is true where it is violated,
        and the status.
        """
        printer = SizePrinter(self.program, "int64_t", length=LENGTH_PARAMETER)
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
            rows.append((printer.violation(check), status))
        for number, check in self._tier_checks:
            rows.append((f"find_tier(inputs) == {number} && {printer.violation(check)}", "AOTC_ERROR_SHAPE"))
        return [(text, _status(status, k)) for k, (text, status) in enumerate(rows) if text]

    @property
    def _conditions_of_definitions(self) -> list[list[tuple[str, str]]]:
        """For each point of the schedule where a value is checked, the conditions that have no member of their own:
        what must hold, and a C expression that is true where it is violated.
        """
        printer = SizePrinter(self.program, "int64_t")
        rows: list[list[tuple[str, str]]] = []
        for node in self.program.defined:
            conditions = [(_text_of_check(check), printer.violation(check)) for check in node.checks]
            if node not in self.program.found:
                what = node.requirement or f"the size {node.size}, which the run finds, is {node.least} to {node.most}"
                text = _where(node.span) + what
                conditions.insert(0, (text, self._violated_range(node)))
            rows.append(conditions)
        return rows

    def variable(self, node: Define) -> str:
        """Return the C expression that holds the value of a definition."""
        members = {m.name: f"outputs->{m.output}" for m in self.found_members}
        return members.get(node.size) or local_name_of_found_size(self.program, node.size) or "value"

    def _violated_range(self, node: Define) -> str:
        value = self.variable(node)
        return f"{value} < {node.least} || {value} > {node.most}"

    @property
    def violations_of_definitions(self) -> list[list[tuple[str, str]]]:
        """For each point of the schedule where a value is checked, what `violations` has for the start of a run."""
        number = len(self.texts_of_conditions) - sum(map(len, self._conditions_of_definitions))
        numbers_of_members = {m.name: m.number for m in self.found_members}
        rows: list[list[tuple[str, str]]] = []
        for node, conditions in zip(self.program.defined, self._conditions_of_definitions, strict=True):
            violations: list[tuple[str, str]] = []
            if node in self.program.found:
                status = _status("AOTC_ERROR_SHAPE", numbers_of_members[node.size])
                violations.append((self._violated_range(node), status))
            for _, violation in conditions:
                violations.append((violation, _status("AOTC_ERROR_SHAPE", number)))
                number += 1
            rows.append(violations)
        return rows

    @property
    def dim_texts(self) -> list[str]:
        """The dimensions of the inputs and of the outputs, in order, as C strings without their quotes."""
        storages = (*self.program.inputs, *self.program.outputs)
        return [escape_for_c_string(text) for s in storages for text in s.dim_texts]


def size_interface(program: Program) -> SizeInterface | None:
    """Return the interface of a model to the sizes of a run; None if all its shapes are known."""
    if not program.sizes and not program.defined:
        return None
    inputs, outputs = model_input_and_output_tensors(program)
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
    names = UniqueIdentifiers([name for t in outputs for name in (t.ident, t.shape_member) if name], any_case=True)
    for node in program.found:
        ident = names.unique_identifier(node.size, "size")
        at = "".join(model_node_names_of_span(node.span)[-1:])
        members.append(SizeMember(node.size, "", DimRange(0, node.most), len(members), output=ident, node=at))
    return SizeInterface(program, tuple(members))


def _status(code: str, number: int) -> str:
    """Return the C expression of a status with the number of a condition."""
    return f"{code} + {number << CHECK_NUMBER_SHIFT}"


def _least_difference(check: SizeCheck, program: Program) -> int | float:
    """Return a lower bound of the left side of a condition less its right side."""
    left, right = (formula_of_name(d.name) if isinstance(d, SymDim) else constant(d) for d in (check.left, check.right))
    return (left - right).interval(program.symbol_intervals)[0]


def _text_of_check(check: SizeCheck) -> str:
    return f"{_where(check.span)}{check} must hold"


def _where(span: Span | None) -> str:
    """Return the node of a location as the beginning of a text; "" for none."""
    return "".join(f"node {name}: " for name in model_node_names_of_span(span)[-1:])


def local_name_of_found_size(program: Program, size: str) -> str:
    """Return the C variable of a size that is found in a branch or loop; "" for others."""
    members = {node.size for node in program.found}
    names = list(dict.fromkeys(node.size for node in program.defined if node.size and node.size not in members))
    return f"found_{names.index(size)}" if size in names else ""


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
        self._members = {symbol_of_multiples(m.name, step): (m, step) for m in members for step in m.range.steps}
        self._definitions = {d.name: f"definition_{k}" for k, d in enumerate(program.definitions)}

    @cached_property
    def _intervals(self) -> Mapping[str, Interval]:
        return self._program.symbol_intervals

    def violation(self, check: SizeCheck) -> str:
        """Return a C expression that is true where a condition does not hold."""
        return f"!({self.expression(check.left)} {check.relation} {self.expression(check.right)})"

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
        member, _ = self._members.get(symbol, (None, 1))
        return member.function if member is not None and member.operand is not None else None

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
        if most > LARGEST_MAGNITUDE[self._bits]:
            raise _too_large_error(str(formula), self._bits)
        return text or "0"

    def _interval_of_factor(self, factor: str | FormulaCall) -> Interval:
        return Formula((((factor,), 1),)).interval(self._intervals)

    def _factor(self, factor: str | FormulaCall) -> str:
        if isinstance(factor, str):
            if (function := self._function_of_symbol(factor)) is not None:
                return f"({self._ctype}){function}(inputs)" if self._ctype != "int64_t" else f"{function}(inputs)"
            if local := local_name_of_found_size(self._program, factor):
                return local if self._ctype == "int64_t" else f"({self._ctype}){local}"
            member, step = self._members[factor]
            if member.output:
                return ("" if self._ctype == "int64_t" else f"({self._ctype})") + f"outputs->{member.output}"
            value = f"inputs->{member.ident}" if member.ident else self._length
            value = f"({self._ctype}){value}" if self._ctype != "int64_t" else value
            return value if step == 1 else f"({value} / {step})"
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


def _too_large_error(text: str, bits: int) -> AotcError:
    hint = "give a smaller largest size: " + option_text("dims", {"NAME": "LEAST..MOST"})
    return AotcError("dims", f"the size {text} may need more than {bits} bits", hint=hint)


def pointer_bits(target: Target) -> int:
    """Return the number of bits of an address; 32 where the machine is unknown, as such targets are
    small.
    """
    is_small = target.bare or target.machine == "wasm32"
    return 8 * REGISTER_BYTES_BY_MACHINE.get(target.machine, 4) if is_small else 64
