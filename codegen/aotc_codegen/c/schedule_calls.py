# SPDX-License-Identifier: Apache-2.0
"""Print the static schedule (kernel calls in order) as C for the templates of project files.

Input: a program, and the C names of its kernels, tensors and parameters. Output: lines with the
calls, and descriptions of the input and output tensors.
"""

import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from aotc.ir import SymDim, frozen
from aotc.tir import Const
from aotc.tir.plan.program import Program
from aotc.tir.plan.program_nodes import (
    Branch,
    Define,
    Leave,
    Loop,
    ProgramNode,
    Step,
    TierChoice,
    definitions_in,
    has_team_steps,
    may_leave_loop,
)
from aotc.tir.plan.storage import Storage, View
from aotc_codegen.c.c_identifiers import (
    UniqueIdentifiers,
    escape_for_c_comment,
    escape_for_c_string,
    model_node_names_of_span,
)
from aotc_codegen.c.c_types import c_memory_type
from aotc_codegen.c.kernel_files import PrintedKernels, c_number_argument
from aotc_codegen.c.parameter_files import ParameterLayout
from aotc_codegen.c.state_block import StateLayout
from aotc_codegen.c.template_rendering import render_template
from aotc_codegen.c.workspace_parameter import workspace_part_and_offset

#: Alignment in bytes of each thread's scratch, so that threads do not write to a common cache line.
TEAM_SCRATCH_ALIGNMENT_BYTES = 64


@frozen
class DefinitionLines:
    """C lines for a point of the schedule where a value is checked.

    variable     C expression that holds the value
    is_member    True if it is a member of the struct of outputs, and no variable of the block
    checks       statements that end the run if a condition is violated
    numbers      lines that compute the numbers of later calls
    """

    variable: str
    is_member: bool
    checks: list[str]
    numbers: list[str]


@frozen
class ModelTensor:
    """Template values of an input or output tensor.

    role     "input" or "output"
    number   position among the inputs or outputs
    ident    name of the struct member
    typical_shape    shape of the tensor in a typical run
    shape_member     name of the struct member with the shape of an output that depends on sizes; else ""
    is_found         True for an output whose shape depends on a size that a run finds
    """

    role: str
    number: int
    ident: str
    storage: Storage
    typical_shape: tuple[int, ...]
    shape_member: str = ""
    is_found: bool = False

    @property
    def typical_elements(self) -> int:
        """Number of elements of the tensor in a typical run."""
        return math.prod(self.typical_shape)

    @property
    def typical_bytes(self) -> int:
        """Number of bytes of the tensor in a typical run."""
        return self.typical_elements * self.storage.dtype.itemsize

    @property
    def elements_after_run(self) -> str:
        """C expression for the number of elements after a typical run with the struct `outputs`."""
        if not self.is_found:
            return str(self.typical_elements)
        return " * ".join(f"outputs.{self.shape_member}[{axis}]" for axis in range(len(self.storage.shape)))

    @property
    def bytes_after_run(self) -> str:
        """C expression for the number of bytes after a typical run with the struct `outputs`."""
        if not self.is_found:
            return str(self.typical_bytes)
        return f"(size_t)({self.elements_after_run}) * {self.storage.dtype.itemsize}"

    @property
    def ctype(self) -> str:
        return c_memory_type(self.storage.dtype)

    @property
    def argument(self) -> str:
        """Name of the array that holds the tensor's elements in example programs."""
        return f"{self.role}{self.number}"

    @property
    def type(self) -> str:
        """Element type and shape of the tensor as text, for example "float32[1, 3, 224, 224]"; the shape of
        the slots for strings, "strings[3, 64]".
        """
        if self.storage.is_string:
            return escape_for_c_comment(f"strings[{', '.join(self.storage.dim_texts)}]")
        return escape_for_c_comment(f"{self.storage.dtype}[{', '.join(self.storage.dim_texts)}]")

    @property
    def title(self) -> str:
        """Name of the tensor in the model, as text for a comment."""
        return escape_for_c_comment(self.storage.name)

    @property
    def descriptor(self) -> str:
        """C initializer of the aotc_tensor that describes the tensor to callers."""
        s = self.storage
        name = escape_for_c_string(s.name)
        shape = f"{self.role}{self.number}_shape"
        meaning = f"&{self.role}{self.number}_quantization" if s.quantization else "NULL"
        dtype = "STRING" if s.is_string else s.dtype.upper()
        return f'{{"{name}", {shape}, {s.nbytes}, {len(s.shape)}, AOTC_{dtype}, {meaning}}}'

    @property
    def metadata_entry_of_model_tensor(self) -> dict[str, Any]:
        """Entry of the tensor in the metadata."""
        s, meaning = self.storage, self.storage.quantization
        known = {key: getattr(meaning, key) for key in ("scale", "zero_point", "axis")} if meaning else None
        dtype = "string" if s.is_string else str(s.dtype)
        entry = {"name": s.name, "c_name": self.ident, "dtype": dtype, "shape": list(s.shape)}
        dims = {} if s.dims is None else {"dims": s.dim_texts}
        return entry | dims | {"bytes": s.nbytes} | ({"quantization": known} if known else {})

    @property
    def shape_initializer(self) -> str:
        """C initializer of the shape, for example "{1, 3, 224, 224}"; "{0}" for scalars, as a C
        array has at least one element.
        """
        return "{" + (", ".join(map(str, self.storage.shape)) or "0") + "}"


@frozen
class GenericArgument:
    """Template values of memory that a generic call takes behind the tensors: the sizes of a run, the block of state,
    the file of parameters, or the shapes that a run finds.

    title       name that callers see
    ident       beginning of the name of its shape in C
    bytes       size of the memory
    ctype       type of its elements in C, a constant of the enumeration aotc_dtype
    argument    initializers of its members of the struct of inputs in examples; "" for none
    role        "input" or "output"
    number      position among the arguments of this role
    """

    title: str
    ident: str
    bytes: int
    ctype: str = "AOTC_UINT8"
    argument: str = ""
    role: str = "input"
    number: int = 0

    @property
    def elements(self) -> int:
        """Number of elements, of one byte or of eight."""
        return self.bytes // 8 if self.ctype == "AOTC_INT64" else self.bytes

    @property
    def descriptor(self) -> str:
        """C initializer of the aotc_tensor that describes the memory to callers."""
        return f'{{"{self.title}", {self.ident}_shape, {self.bytes}, 1, {self.ctype}, NULL}}'


def model_input_and_output_tensors(program: Program) -> tuple[list[ModelTensor], list[ModelTensor]]:
    """Return the inputs and the outputs; member names are unique in each group and do not clash
    with the header's macros.
    """
    prefix = f"{program.name.upper()}_"
    reserved = ["state"] if program.state else []
    inputs = _tensors_with_unique_idents("input", program, prefix, reserved)
    return inputs, _tensors_with_unique_idents("output", program, prefix)


def _tensors_with_unique_idents(
    role: str, program: Program, macro_prefix: str, reserved: Iterable[str] = ()
) -> list[ModelTensor]:
    storages = program.inputs if role == "input" else program.outputs
    # macros are derived from the names, in upper case
    names = UniqueIdentifiers(reserved, any_case=True)
    idents = {s: names.unique_identifier(s.name) for s in storages}
    found = {node.size for node in program.found}
    shaped = [s for s in storages if role == "output" and s.dims is not None]
    shape_members = {s: names.unique_identifier(f"{idents[s]}_shape") for s in shaped}
    return [
        ModelTensor(
            role,
            number,
            f"{name}_" if name.startswith(macro_prefix) else name,
            s,
            program.typical_shape(s),
            shape_members.get(s, ""),
            any(isinstance(d, SymDim) and d.symbols & found for d in s.run_time_shape),
        )
        for number, (s, name) in enumerate(idents.items())
    ]


def round_up_to_team_alignment(size: int) -> int:
    """Return a size in bytes rounded up to `TEAM_SCRATCH_ALIGNMENT_BYTES`, so that threads share no
    cache line.
    """
    return -(-size // TEAM_SCRATCH_ALIGNMENT_BYTES) * TEAM_SCRATCH_ALIGNMENT_BYTES


def thread_scratch_layout(program: Program) -> tuple[dict[View, int], int]:
    """Return the scratch layout of each thread after the first: byte offset of each private view,
    and the total in bytes.
    """
    places: dict[View, int] = {}
    most = 0
    for step in program.steps:
        offset = 0
        for buffer, view in zip(step.kernel.workspace, step.workspace, strict=True):
            if buffer in step.kernel.private:
                places[view] = offset
                offset += round_up_to_team_alignment(buffer.nbytes)
        most = max(most, offset)
    return places, most


def _c_pointer_argument(
    view: View,
    struct_members: Mapping[Storage, str],
    params: ParameterLayout,
    program: Program,
    const_qualifier: str,
    thread_scratch_offset: str,
    state: StateLayout | None,
) -> str:
    """Return the C argument for a view.

    `thread_scratch_offset` is the view's offset in a thread's scratch, "" if all threads share the
    view's memory.
    """
    storage = view.storage
    if storage.kind == "temp":
        workspace, at = workspace_part_and_offset(program, storage)
        offset = at + view.offset * storage.dtype.itemsize
        shared = f"{workspace.c_variable_of_workspace_part_address} + {offset}"
        place = f"first ? {shared} : own + {thread_scratch_offset}" if thread_scratch_offset else shared
        return f"({const_qualifier}{c_memory_type(storage.dtype)} *)(void *)({place})"
    if storage.kind == "state" and state is not None:
        offset = view.offset * storage.dtype.itemsize
        place = state.address(program, storage) + (f" + {offset}" if offset else "")
        return f"({const_qualifier}{c_memory_type(storage.dtype)} *)(void *)({place})"
    base = struct_members.get(storage) or params.c_symbol_of_constant(storage)
    return f"{base} + {view.offset}" if view.offset else base


def schedule_call_lines(
    program: Program,
    kernels: PrintedKernels,
    params: ParameterLayout,
    state: StateLayout | None = None,
    sizes: Mapping[SymDim, str] = MappingProxyType({}),
    definitions: Mapping[Define, DefinitionLines] = MappingProxyType({}),
) -> list[str]:
    """Return C lines with the calls of a program; steps that are not split among threads run on the
    first thread.

    state    layout of the block of state; None for a model without state
    sizes    C variables with the numbers of calls that depend on the sizes of a run
    definitions    the lines for each point where a value is checked
    """
    printer = _SchedulePrinter(program, kernels, params, state, sizes, definitions)
    return printer.lines_of_nodes(program.body, program.has_team_steps)


class _SchedulePrinter:
    """Printer of the calls of a program, in the order of the text, in which they are numbered."""

    def __init__(
        self,
        program: Program,
        kernels: PrintedKernels,
        params: ParameterLayout,
        state: StateLayout | None,
        sizes: Mapping[SymDim, str],
        definitions: Mapping[Define, DefinitionLines],
    ) -> None:
        self._program, self._kernels, self._params, self._state = program, kernels, params, state
        self._sizes, self._definitions = sizes, definitions
        self._members = {
            t.storage: f"{t.role}s->{t.ident}" for side in model_input_and_output_tensors(program) for t in side
        }
        self._scratch, _ = thread_scratch_layout(program)
        self._number = self._branch_count = 0

    def lines_of_nodes(self, nodes: Iterable[ProgramNode], teams: bool) -> list[str]:
        """Return the lines of a sequence that begins when all threads are at one point.

        teams    True if every thread of a team runs the sequence, False if one thread does
        """
        rows: list[str] = []
        last: bool | None = None
        for node in nodes:
            # all threads end a run together
            is_common = has_team_steps([node]) or may_leave_loop([node]) or any(True for _ in definitions_in([node]))
            team = teams and is_common
            if last is not None and (last or team):
                rows.append("AOTC_TEAM_SYNC(team);")
            last = team
            alone = "if (first) " if teams and not team else ""
            match node:
                case Step():
                    rows.append(f"STEP({self._next_number()}) {alone}{self._call(node)}")
                case Branch():
                    rows += self._lines_of_branch(node, team, alone)
                case Loop():
                    rows += self._lines_of_loop(node, team, alone)
                case Define():
                    rows += self._lines_of_definition(node, team)
                case TierChoice():
                    rows += self._lines_of_choice(node, team)
                case Leave():
                    rows.append("break;")
        return rows

    def _lines_of_definition(self, node: Define, team: bool) -> list[str]:
        """Return the lines that read a value, which all threads do before the calls that follow, and end the run if it
        is not allowed.
        """
        lines = self._definitions[node]
        value = f"(int64_t)*({self._pointer(node.value, 'const ')});"
        head = ("if (first) " if team else "") if lines.is_member else "const int64_t "
        assign = f"{head}{lines.variable} = {value}{_comment_on_node(node)}"
        begin = [assign, *(["AOTC_TEAM_SYNC(team);"] if team else []), *lines.checks]
        return [*begin, *lines.numbers] if node.size else ["{", *(f"  {row}" for row in begin), "}"]

    def _lines_of_choice(self, choice: TierChoice, team: bool) -> list[str]:
        """Return the lines of a choice: those of each tier, if it is the one of the run. All threads that run the
        choice find the same one, as it depends on inputs only.
        """
        rows: list[str] = []
        for number, tier in enumerate(choice.tiers):
            is_team = team and has_team_steps(tier.body)
            alone = " && first" if team and not is_team else ""
            body = (f"  {row}" for row in self.lines_of_nodes(tier.body, is_team))
            rows += [f"if (tier == {number}{alone}) {{", *body, "}"]
        return rows

    def _lines_of_loop(self, loop: Loop, team: bool, alone: str) -> list[str]:
        """Return the lines of a loop; a team that runs it waits at the end of each iteration."""
        body = [*self.lines_of_nodes(loop.body, team), *(["AOTC_TEAM_SYNC(team);"] if team else [])]
        return [f"{alone}for (;;) {{{_comment_on_node(loop)}", *(f"  {row}" for row in body), "}"]

    def _next_number(self) -> int:
        self._number += 1
        return self._number - 1

    def _call(self, step: Step) -> str:
        args = [self._pointer(v, "const " if k < len(step.inputs) else "") for k, v in enumerate(step.args)]
        args += (c_number_argument(n) if isinstance(n, Const) else self._sizes[n] for n in step.numbers)
        elsewhere = (
            f"if ((const void *){args[0]} != (const void *){args[1]}) "
            if _is_copy_between_caller_and_arena(self._program, step)
            else ""
        )
        return f"{elsewhere}{self._kernels.kernel_call_statement(step.kernel, args)}{_comment_on_node(step)}"

    def _pointer(self, view: View, const_qualifier: str) -> str:
        scratch_offset = str(self._scratch.get(view, ""))
        return _c_pointer_argument(
            view, self._members, self._params, self._program, const_qualifier, scratch_offset, self._state
        )

    def _lines_of_branch(self, branch: Branch, team: bool, alone: str) -> list[str]:
        """Return the lines of a branch.

        All threads that run the branch read the condition after it is written, and before any of
        them runs an arm, which may write other data to its memory.
        """
        condition = f"*({self._pointer(branch.condition, 'const ')})"
        variable = f"is_true_{self._branch_count}"
        self._branch_count += 1
        begin = [f"if ({condition}) {{{_comment_on_node(branch)}"]
        if alone:
            begin = [f"{alone}{{", f"  {begin[0]}"]
        elif team:
            begin = [f"const int {variable} = {condition} != 0;", "AOTC_TEAM_SYNC(team);", f"if ({variable}) {{"]
        yes, no = ([f"  {row}" for row in self.lines_of_nodes(arm, team)] for arm in branch.arms)
        rows = [*yes, *(["} else {", *no] if no else []), "}"]
        return [*begin, *([f"  {row}" for row in rows] + ["}"] if alone else rows)]


def _comment_on_node(node: ProgramNode) -> str:
    """Return a C comment with the name of the model's node that a call or branch stems from."""
    return "".join(f" /* {escape_for_c_comment(name)} */" for name in model_node_names_of_span(node.span)[-1:])


def _is_copy_between_caller_and_arena(program: Program, step: Step) -> bool:
    """Return True if a step copies an input or output of the caller into or out of the arena."""
    ends = [view.storage for view in step.args]
    return len(ends) == 2 and any(program.resident.get(a) is b for a, b in (ends, ends[::-1]))


def resident_tensors_header_text(program: Program) -> str:
    """Return the header text on inputs and outputs that may be placed in the workspace; "" if there
    are none.
    """
    resident, rows, beginning = program.resident, list[str](), "its beginning"
    for tensor in (t for side in model_input_and_output_tensors(program) for t in side if t.storage in resident):
        workspace, at = workspace_part_and_offset(program, resident[tensor.storage])
        prefix = f"{program.name.upper()}_{tensor.role.upper()}_{tensor.ident.upper()}"
        rows.append(f"{prefix}_OFFSET {at}")
        if workspace.member:
            rows.append(f"{prefix}_MEMBER {workspace.member}")
            beginning = "where a member points"
    return render_template("resident.h", offsets=rows, beginning=beginning) if rows else ""
