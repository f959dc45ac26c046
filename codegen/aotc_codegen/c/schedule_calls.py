# SPDX-License-Identifier: Apache-2.0
"""Print the static schedule (kernel calls in order) as C for the templates of project files.

Input: a program, and the C names of its kernels, tensors and parameters. Output: lines with the
calls, and descriptions of the input and output tensors.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from aotc.ir import frozen
from aotc.tir.plan.program import Program, Step, Storage, View
from aotc_codegen.c.c_identifiers import Names, comment_text, nodes_of, string_text
from aotc_codegen.c.c_types import memory_type
from aotc_codegen.c.file_templates import render
from aotc_codegen.c.kernel_files import PrintedKernels
from aotc_codegen.c.parameter_files import Params
from aotc_codegen.c.workspace import placed

#: Alignment in bytes of each thread's scratch, so that threads do not write to a common cache line.
TEAM_ALIGN = 64


@frozen
class Tensor:
    """Template values of an input or output tensor.

    role     "input" or "output"
    number   position among the inputs or outputs
    ident    name of the struct member
    """

    role: str
    number: int
    ident: str
    storage: Storage

    @property
    def ctype(self) -> str:
        return memory_type(self.storage.dtype)

    @property
    def argument(self) -> str:
        """Name of the array that holds the tensor's elements in example programs."""
        return f"{self.role}_{self.ident}"

    @property
    def type(self) -> str:
        """Element type and shape of the tensor as text, for example "float32[1, 3, 224, 224]"."""
        return f"{self.storage.dtype}{list(self.storage.shape)}"

    @property
    def title(self) -> str:
        """Name of the tensor in the model, as text for a comment."""
        return comment_text(self.storage.name)

    @property
    def descriptor(self) -> str:
        """C initializer of the aotc_tensor that describes the tensor to callers."""
        s = self.storage
        name = string_text(s.name)
        shape = f"{self.role}{self.number}_shape"
        meaning = f"&{self.role}{self.number}_quantization" if s.quantization else "NULL"
        return f'{{"{name}", {shape}, {s.nbytes}, {len(s.shape)}, AOTC_{s.dtype.upper()}, {meaning}}}'

    @property
    def described(self) -> dict[str, Any]:
        """Entry of the tensor in the metadata."""
        s, meaning = self.storage, self.storage.quantization
        known = {key: getattr(meaning, key) for key in ("scale", "zero_point", "axis")} if meaning else None
        found = {"name": s.name, "c_name": self.ident, "dtype": str(s.dtype), "shape": list(s.shape)}
        return found | {"bytes": s.nbytes} | ({"quantization": known} if known else {})

    @property
    def dims(self) -> str:
        """C initializer of the shape, for example "{1, 3, 224, 224}"; "{0}" for scalars, as a C
        array has at least one element.
        """
        return "{" + (", ".join(map(str, self.storage.shape)) or "0") + "}"


def tensors_of(program: Program) -> tuple[list[Tensor], list[Tensor]]:
    """Return the inputs and the outputs; member names are unique in each group and do not clash
    with the header's macros.
    """
    prefix = f"{program.name.upper()}_"
    return _tensors("input", program.inputs, prefix), _tensors("output", program.outputs, prefix)


def _tensors(role: str, storages: Iterable[Storage], prefix: str) -> list[Tensor]:
    # macros are derived from the names, in upper case
    names = Names(any_case=True)
    idents = {s: names.fresh(s.name) for s in storages}
    return [
        Tensor(role, number, f"{name}_" if name.startswith(prefix) else name, s)
        for number, (s, name) in enumerate(idents.items())
    ]


def team_aligned(size: int) -> int:
    """Return a size in bytes rounded up to `TEAM_ALIGN`, so that threads share no cache line."""
    return -(-size // TEAM_ALIGN) * TEAM_ALIGN


def team_scratch(program: Program) -> tuple[dict[View, int], int]:
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
                offset += team_aligned(buffer.nbytes)
        most = max(most, offset)
    return places, most


def _pointer(view: View, members: Mapping[Storage, str], params: Params, program: Program, const: str, own: str) -> str:
    """Return the C argument for a view.

    `own` is the view's offset in a thread's scratch, "" if all threads share the view's memory.
    """
    storage = view.storage
    if storage.kind == "temp":
        workspace, at = placed(program, storage)
        offset = at + view.offset * storage.dtype.itemsize
        shared = f"{workspace.arena} + {offset}"
        place = f"first ? {shared} : own + {own}" if own else shared
        return f"({const}{memory_type(storage.dtype)} *)(void *)({place})"
    base = members.get(storage) or params.symbol(storage)
    return f"{base} + {view.offset}" if view.offset else base


def call_rows(program: Program, kernels: PrintedKernels, params: Params) -> list[str]:
    """Return a C line per step with the kernel call; steps that are not split among threads run on
    the first thread.
    """
    rows: list[str] = []
    members = {t.storage: f"{t.role}s->{t.ident}" for side in tensors_of(program) for t in side}
    scratch, _ = team_scratch(program)
    teams = any(step.kernel.team for step in program.steps)
    last: bool | None = None
    for number, step in enumerate(program.steps):
        args = [
            _pointer(v, members, params, program, "const " if k < len(step.inputs) else "", str(scratch.get(v, "")))
            for k, v in enumerate(step.args)
        ]
        if last is not None and (last or step.kernel.team):
            rows.append("AOTC_TEAM_SYNC(team);")
        last = step.kernel.team
        alone = "if (first) " if teams and not last else ""
        elsewhere = f"if ((const void *){args[0]} != (const void *){args[1]}) " if _is_ends(program, step) else ""
        comment = "".join(f" /* {comment_text(node)} */" for node in nodes_of(step.span)[-1:])
        rows.append(f"STEP({number}) {alone}{elsewhere}{kernels.launch(step.kernel, args)}{comment}")
    return rows


def _is_ends(program: Program, step: Step) -> bool:
    """Return True if a step copies an input or output of the caller into or out of the arena."""
    ends = [view.storage for view in step.args]
    return len(ends) == 2 and any(program.resident.get(a) is b for a, b in (ends, ends[::-1]))


def resident_note(program: Program) -> str:
    """Return the header text on inputs and outputs that may be placed in the workspace; "" if there
    are none.
    """
    resident, rows, beginning = program.resident, list[str](), "its beginning"
    for tensor in (t for side in tensors_of(program) for t in side if t.storage in resident):
        workspace, at = placed(program, resident[tensor.storage])
        prefix = f"{program.name.upper()}_{tensor.role.upper()}_{tensor.ident.upper()}"
        rows.append(f"{prefix}_OFFSET {at}")
        if workspace.member:
            rows.append(f"{prefix}_MEMBER {workspace.member}")
            beginning = "where a member points"
    return render("resident.h", offsets=rows, beginning=beginning) if rows else ""
