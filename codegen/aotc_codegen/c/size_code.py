# SPDX-License-Identifier: Apache-2.0
"""C code for the sizes of a run: functions that check them and set shapes, and the numbers of calls.

lines = size_lines(program, "ptrdiff_t", 64)       # const ptrdiff_t size_0 = 2 * inputs->batch;
size_template_values(program)["size_functions"]    # static int check_sizes(...) { ... }
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from aotc.ir import AotcError, SymDim, dim_of_text, frozen, option_text
from aotc.ir.dimension_formulas import formula_of_name
from aotc.ir.size_operands import NUMERATOR, PRODUCT, SizeDefinition
from aotc.tir import Const, Define, GrowingState, Program, ProgramNode
from aotc.tir.plan.program_nodes import sequences_in
from aotc_codegen.c.float_size_functions import float_functions
from aotc_codegen.c.run_time_sizes import (
    LARGEST_MAGNITUDE,
    LENGTH_PARAMETER,
    SizeInterface,
    SizePrinter,
    size_interface,
)
from aotc_codegen.c.schedule_calls import DefinitionLines, GenericArgument, ModelTensor, model_input_and_output_tensors
from aotc_codegen.c.template_rendering import render_template

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


def _functions_of_operands(program: Program, interface: SizeInterface, callers: str) -> str:
    """Return C functions for sizes that callers do not state: elements of inputs that code uses, and values of
    formulas.

    callers    C code that calls these functions
    """
    definitions = "".join(
        _size_function(program.name, f"definition_{number}", _value_of_definition(program, definition))
        for number, definition in enumerate(program.definitions)
    )
    operands = ""
    for member in interface.members:
        # no shape may depend on an operand, as that of a result that nothing uses
        if member.operand is None or f"{member.function}(" not in definitions + callers:
            continue
        o, value = member.operand, member.value
        if o.clipped:
            value = f"clip_size({value}, {o.least}, {o.most})"
        added = f" + {-o.least}" if o.least < 0 else f" - {o.least}" if o.least else ""
        operands += _size_function(program.name, member.function, value + added)
    clip = _CLIP_FUNCTION + "\n" if "clip_size(" in operands else ""
    return clip + float_functions(program) + operands + definitions


def _value_of_definition(program: Program, definition: SizeDefinition) -> str:
    """Return the value of a size that is defined, as a C expression."""
    printer = SizePrinter(program, "int64_t")
    number = printer.expression(dim_of_text(definition.formula))
    if not definition.function:
        return number
    value = f"float_of_bits({printer.expression(dim_of_text(definition.float_bits))})"
    if definition.function == PRODUCT:
        return f"floor_of_product({value}, (float)({number}))"
    return f"part_of_fraction({value}, {int(definition.function == NUMERATOR)})"


def _size_function(model: str, name: str, value: str) -> str:
    head = f"static int64_t {name}(const {model}_inputs *inputs) {{"
    return f"{head}\n  return {value};\n}}\n\n"


@frozen
class SizeLines:
    """C lines that compute the numbers of a program's calls from the sizes of a run.

    tier             line that finds the tier of the run; none for a program without tiers
    at_entry         lines in front of all calls
    at_definition    lines behind each definition of a size that a run finds
    names            name of each number
    """

    tier: list[str]
    at_entry: list[str]
    at_definition: Mapping[Define, list[str]]
    names: Mapping[SymDim, str]


def size_lines(program: Program, ctype: str, bits: int) -> SizeLines:
    """Return C lines that compute the numbers of a program's calls from the sizes of a run. Raise AotcError (code
    "dims") if tensors of the largest sizes do not fit into memory.

    ctype, bits    type of index arithmetic in kernels, and its number of bits
    """
    _require_sizes_fit_memory(program, bits)
    printer = SizePrinter(program, ctype, bits)
    dims = dict.fromkeys(n for step in program.steps for n in step.numbers if not isinstance(n, Const))
    names = {dim: f"size_{k}" for k, dim in enumerate(dims)}
    found = {node.size for node in program.defined}
    at_definition: dict[Define, list[str]] = {}
    at_entry: list[str] = []

    def line(dim: SymDim) -> str:
        return f"const {ctype} {names[dim]} = {printer.expression(dim)};"

    def add_lines(nodes: Sequence[ProgramNode], known: frozenset[str]) -> None:
        for node in nodes:
            if isinstance(node, Define):
                known |= {node.size}
                at_definition[node] = [line(dim) for dim in names if node.size in dim.symbols & found <= known]
            for part in sequences_in(node):
                add_lines(part, known)

    at_entry += [line(dim) for dim in names if not dim.symbols & found]
    add_lines(program.body, frozenset())
    tier = ["const int tier = find_tier(inputs);"] if program.tiers else []
    return SizeLines(tier, at_entry, at_definition, names)


def _require_sizes_fit_memory(program: Program, bits: int) -> None:
    """Raise AotcError (code "dims") if a tensor of the largest sizes, or the arena, has more bytes than
    a pointer of a number of bits can address.
    """
    largest = max((s.nbytes for s in (*program.inputs, *program.outputs, *program.storages_of_kind("temp"))), default=0)
    total = max(largest, program.plan.peak)
    if (program.sizes or program.defined) and total > LARGEST_MAGNITUDE[bits]:
        sizes = ", ".join(f"{name} {r}" for name, r in program.sizes.items())
        hint = "give smaller largest sizes: " + option_text("dims", {"NAME": "LEAST..MOST"})
        raise AotcError("dims", f"tensors of the largest sizes ({sizes}) need {total} bytes", hint=hint)


def definition_lines(program: Program, sizes: SizeLines, failure: str) -> dict[Define, DefinitionLines]:
    """Return the C lines for each point of the schedule where a value is checked.

    failure    statement that ends the run, in which STATUS is replaced by the status
    """
    interface = size_interface(program)
    if interface is None:
        return {}
    return {
        node: DefinitionLines(
            interface.variable(node),
            interface.variable(node).startswith("outputs->"),
            [f"if ({violation}) {failure.replace('STATUS', status)}" for violation, status in violations],
            sizes.at_definition[node],
        )
        for node, violations in zip(program.defined, interface.violations_of_definitions, strict=True)
    }


def size_template_values(program: Program, versions: Sequence[Program] = ()) -> dict[str, Any]:
    """Return the template values for the sizes of a run, beside those of `_values_of_found_sizes`.

    versions        the programs for other instruction sets, whose code calls the same functions

    sizes           the interface, if shapes depend on sizes
    tiers           the interface, if there are tiers
    size_members    the sizes of the interface
    size_arguments  the sizes as an input of generic calls
    outputs_type    type of what the parameter for outputs points to: a run sets their shapes
    size_functions  C functions for sizes
    size_status     C statements that return the status of sizes that are not allowed
    capacity_words  what the description of statuses adds for a state that grows
    generic_sizes   C functions for callers that load any model
    typical_sizes   C statements that set the sizes of a typical run
    """
    interface = size_interface(program)
    struct = f"{program.name}_outputs"
    if interface is None:
        rows = dict.fromkeys(("size_functions", "size_status", "generic_sizes", "capacity_words"), "")
        lists = dict.fromkeys(("sizes", "tiers", "size_members", "size_arguments", "typical_sizes"), ())
        return {"outputs_type": f"const {struct}", **lists, **rows, **_values_of_found_sizes(program, None, ())}
    _, outputs = model_input_and_output_tensors(program)
    assignments = _assignments_of_extents(outputs)
    found = interface.found_members
    words = {
        "name": program.name,
        "sizes": interface,
        "unread": [interface] if program.defined else [],
        # C has no arrays without elements
        "descriptors": [m.descriptor for m in interface.members] or ['{"", 0, 0, 1, 0}'],
        "found_functions": _functions_of_found_sizes(program, interface, outputs) if found else "",
        "num_found": len(found),
        "setter": "set_largest_shapes" if found else "set_shapes",
        "growing": _list_of(program.growing),
        "generic_status": interface.generic_status_lines,
        "shapes": _assignments_of_shapes(program, outputs),
        **_values_of_tiers(program, interface, versions or (program,)),
        "extents": assignments,
    }
    text = render_template("sizes.c", **words)
    users = (text, *_lengths_after_runs(program), *_expressions_in_calls((program, *versions)))
    return {
        "sizes": [interface],
        "tiers": words["tiers"],
        "size_members": interface.stated_members,
        "size_arguments": [_argument_of_sizes(interface)],
        "outputs_type": struct,
        **_values_of_found_sizes(program, interface, assignments),
        "size_functions": _helper_functions(program, interface, users) + text,
        "size_status": _SIZE_STATUS if program.growing is None else _SIZE_AND_STATE_STATUS,
        "capacity_words": "" if program.growing is None else _CAPACITY_WORDS,
        "generic_sizes": render_template("generic_sizes.c", **words),
        "typical_sizes": [f"inputs.{m.ident} = {m.typical};" for m in interface.stated_members],
    }


def _argument_of_sizes(interface: SizeInterface) -> GenericArgument:
    """Return the sizes of a run as an input of generic calls; examples have those of a typical run."""
    typical = ", ".join(str(member.typical) for member in interface.stated_members)
    return GenericArgument("sizes", "sizes", 8 * len(interface.members), "AOTC_INT64", typical)


def _values_of_tiers(program: Program, interface: SizeInterface, versions: Sequence[Program]) -> dict[str, Any]:
    """Return the template values for tiers.

    versions         the programs for all instruction sets

    tiers            the interface, if there are tiers
    tier_function    C function that finds the tier of a run
    bytes_of_tiers   C definition of the array of the bytes of workspace for each tier
    workspace_bytes  C expression of the bytes for the tier of a run, or of the only ones
    """
    if not program.tiers:
        return {"tiers": [], "tier_function": "", "bytes_of_tiers": "", "workspace_bytes": program.plan.peak}
    return {
        "tiers": [interface],
        "tier_function": _tier_function(program, interface),
        "bytes_of_tiers": _definition_of_tier_workspaces(versions),
        "workspace_bytes": "bytes[find_tier(inputs)]",
    }


def _tier_function(program: Program, interface: SizeInterface) -> str:
    """Return the C function that finds the tier of a run."""
    rows = [f"  if ({condition}) return {k};\n" for k, condition in enumerate(interface.tier_conditions)]
    comment = "/* The number of the first tier that has the sizes of a run; -1 if there is none. */\n"
    head = f"static int find_tier(const {program.name}_inputs *inputs) {{\n"
    return "".join([comment, head, *rows, "  return -1;\n}\n\n"])


def _definition_of_tier_workspaces(versions: Sequence[Program]) -> str:
    """Return the C line with the bytes of workspace for each tier, which suffice for each version of the program."""
    tiers = zip(*(program.tiers for program in versions), strict=True)
    sizes = (str(max(tier.workspace_bytes for tier in of_versions)) for of_versions in tiers)
    return f"static const size_t bytes[] = {{{', '.join(sizes)}}};"


def _helper_functions(program: Program, interface: SizeInterface, users: Sequence[str]) -> str:
    """Return the C functions that code for sizes calls: elements of inputs, and the quotient that is rounded down.

    users    the C code that may call them
    """
    functions = _functions_of_operands(program, interface, "\n".join(users))
    floor = any("floor_quotient(" in code for code in (functions, *users))
    return (_FLOOR_QUOTIENT_FUNCTION + "\n" if floor else "") + functions


def _assignments_of_shapes(program: Program, outputs: Sequence[ModelTensor]) -> list[str]:
    """Return C statements that set the shapes in the struct `outputs`."""
    printer = SizePrinter(program, "int64_t", length=LENGTH_PARAMETER)
    return [
        f"outputs->{t.shape_member}[{axis}] = {printer.expression(dim)};"
        for t in outputs
        if t.shape_member
        for axis, dim in enumerate(t.storage.run_time_shape)
    ]


def _assignments_of_extents(outputs: Sequence[ModelTensor]) -> list[str]:
    """Return C statements that set the array `shapes` to the shapes in the struct `out`."""
    extents = [
        f"out.{t.shape_member}[{axis}]" if t.shape_member else str(dim)
        for t in outputs
        for axis, dim in enumerate(t.storage.run_time_shape)
    ]
    return [f"shapes[{k}] = {extent};" for k, extent in enumerate(extents)]


def _values_of_found_sizes(
    program: Program, interface: SizeInterface | None, assignments: Sequence[str]
) -> dict[str, Any]:
    """Return the template values for the sizes that a run finds.

    assignments     C statements that set the array `shapes` to the shapes of outputs

    found_members   these sizes
    found_shapes    the shapes of outputs as one more output of generic calls, if a run finds sizes
    steps_outputs   type of what the parameter for outputs of the calls points to: they set sizes that they find
    begin_run       C statements that set shapes, or sizes that a run finds later, before the calls
    end_run         C statements behind the calls of a run that makes all of them
    generic_run     C statements that end a generic call
    ends_early      the interface, if a run may end before the last call
    """
    found = () if interface is None else interface.found_members
    struct = f"{program.name}_outputs"
    call = f"{program.name}_run(&in, &out, workspace, options)"
    ends_early = [interface] if program.defined else []
    growth = [f"set_state_length(inputs->state, {length});" for length in _lengths_after_runs(program)]
    if not found:
        begin = () if interface is None else [f"set_shapes(inputs, outputs{interface.length_argument});"]
        return {
            **dict.fromkeys(("found_members", "found_shapes"), ()),
            "steps_outputs": f"const {struct}",
            "begin_run": begin,
            "end_run": growth,
            "generic_run": [f"return {call};"],
            "ends_early": ends_early,
        }
    _, outputs = model_input_and_output_tensors(program)
    array = f"int64_t *const shapes = (int64_t *)outputs[{len(outputs)}];"
    shapes = GenericArgument("shapes", "shapes", 8 * len(assignments), "AOTC_INT64", role="output", number=len(outputs))
    lines = [f"status = {call};", "if (status == AOTC_OK) {", *(f"  {row}" for row in (array, *assignments)), "}"]
    return {
        "found_members": found,
        "found_shapes": [shapes],
        "steps_outputs": struct,
        "begin_run": [f"outputs->{m.output} = 0;" for m in found],
        "end_run": ["set_shapes(inputs, outputs);", *growth],
        "generic_run": [*lines, "return status;"],
        "ends_early": ends_early,
    }


def _lengths_after_runs(program: Program) -> list[str]:
    """Return the new length of the state after a run, as a C expression; none for a state that does not grow."""
    printer = SizePrinter(program, "int64_t")
    return [printer.expression(SymDim(g.size) + g.added) for g in _list_of(program.growing)]


def _functions_of_found_sizes(program: Program, interface: SizeInterface, outputs: Sequence[ModelTensor]) -> str:
    """Return C functions that set the largest shapes before the calls of a run that finds sizes."""
    names = {node.size for node in program.found}
    room = [f"outputs->{m.output} = {m.range.most};" for m in interface.found_members]
    largest = [
        f"outputs->{t.shape_member}[{axis}] = {t.storage.shape[axis]};"
        for t in outputs
        for axis, dim in enumerate(t.storage.run_time_shape)
        if isinstance(dim, SymDim) and dim.symbols & names
    ]
    return render_template("found_sizes.c", name=program.name, room=room, largest=largest)


def _list_of(growing: GrowingState | None) -> list[GrowingState]:
    """Return a list of one item for a state that grows, and an empty one otherwise: templates have loops only."""
    return [] if growing is None else [growing]


def _expressions_in_calls(programs: Sequence[Program]) -> list[str]:
    """Return C expressions of the sizes that the code of a run computes for its calls and the checks of pointers."""
    expressions: list[str] = []
    for program in programs:
        printer = SizePrinter(program, "int64_t")
        numbers = [n for step in program.steps for n in step.numbers if not isinstance(n, Const)]
        expressions += [printer.expression(n) for n in dict.fromkeys(numbers)]
    inputs, outputs = model_input_and_output_tensors(programs[0])
    return expressions + null_conditions(programs[0], [*inputs, *outputs])


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
        # a size that a run finds is not known before
        may_be_empty = isinstance(count, SymDim) and not t.is_found and _least_value(count, program) < 1
        rows.append((f"{printer.expression(count)} != 0 && " if may_be_empty else "") + f"{t.role}s->{t.ident}")
    return rows


def _least_value(dim: SymDim, program: Program) -> int | float:
    return formula_of_name(dim.name).interval(program.symbol_intervals)[0]
