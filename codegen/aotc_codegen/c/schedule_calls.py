# SPDX-License-Identifier: Apache-2.0
"""The static schedule as C: rows for the templates.

In: a program, the C names of its kernels, tensors and parameters.  Out: lines of
calls, what is said of tensors.
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

#: Threads do not write into each other's cache lines.
TEAM_ALIGN = 64


@frozen
class Tensor:
    """What templates say of one input or output.

    role     "input" or "output"
    number   among those
    ident    the struct member
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
        """What examples call the array with its elements."""
        return f"{self.role}_{self.ident}"

    @property
    def type(self) -> str:
        """float32[1, 3, 224, 224]"""
        return f"{self.storage.dtype}{list(self.storage.shape)}"

    @property
    def title(self) -> str:
        """The name in the model, for a comment."""
        return comment_text(self.storage.name)

    @property
    def descriptor(self) -> str:
        """What callers are told of it, as an aotc_tensor."""
        s = self.storage
        name = string_text(s.name)
        shape = f"{self.role}{self.number}_shape"
        meaning = f"&{self.role}{self.number}_quantization" if s.quantization else "NULL"
        return f'{{"{name}", {shape}, {s.nbytes}, {len(s.shape)}, AOTC_{s.dtype.upper()}, {meaning}}}'

    @property
    def described(self) -> dict[str, Any]:
        """For the metadata."""
        s, meaning = self.storage, self.storage.quantization
        known = {key: getattr(meaning, key) for key in ("scale", "zero_point", "axis")} if meaning else None
        found = {"name": s.name, "c_name": self.ident, "dtype": str(s.dtype), "shape": list(s.shape)}
        return found | {"bytes": s.nbytes} | ({"quantization": known} if known else {})

    @property
    def dims(self) -> str:
        """{1, 3, 224, 224}; an array has an element at least."""
        return "{" + (", ".join(map(str, self.storage.shape)) or "0") + "}"


def tensors_of(program: Program) -> tuple[list[Tensor], list[Tensor]]:
    """The inputs, and the outputs; members are unique among those, and none of the header's macros."""
    prefix = f"{program.name.upper()}_"
    return _tensors("input", program.inputs, prefix), _tensors("output", program.outputs, prefix)


def _tensors(role: str, storages: Iterable[Storage], prefix: str) -> list[Tensor]:
    # macros are made of them
    names = Names(any_case=True)
    idents = {s: names.fresh(s.name) for s in storages}
    return [
        Tensor(role, number, f"{name}_" if name.startswith(prefix) else name, s)
        for number, (s, name) in enumerate(idents.items())
    ]


def team_aligned(size: int) -> int:
    """Bytes up to where another thread may write."""
    return -(-size // TEAM_ALIGN) * TEAM_ALIGN


def team_scratch(program: Program) -> tuple[dict[View, int], int]:
    """Where a thread after the first finds scratch of its own, from the start of that; and the bytes of all of it."""
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
    """The argument for a view; `own` is its place in a thread's scratch, if it has one there."""
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
    """One line per step; where kernels are for teams, the others are the first thread's."""
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
    """Whether a step copies an input or output of the caller's to its place in the arena, or from there."""
    ends = [view.storage for view in step.args]
    return len(ends) == 2 and any(program.resident.get(a) is b for a, b in (ends, ends[::-1]))


def resident_note(program: Program) -> str:
    """What a header says of inputs and outputs in the workspace; "" where they cannot be there."""
    resident, rows, beginning = program.resident, list[str](), "its beginning"
    for tensor in (t for side in tensors_of(program) for t in side if t.storage in resident):
        workspace, at = placed(program, resident[tensor.storage])
        prefix = f"{program.name.upper()}_{tensor.role.upper()}_{tensor.ident.upper()}"
        rows.append(f"{prefix}_OFFSET {at}")
        if workspace.member:
            rows.append(f"{prefix}_MEMBER {workspace.member}")
            beginning = "where a member points"
    return render("resident.h", offsets=rows, beginning=beginning) if rows else ""
