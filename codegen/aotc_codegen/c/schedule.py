# SPDX-License-Identifier: Apache-2.0
"""The static schedule as C: rows for the templates.

In: a program, the C names of its kernels, tensors and parameters.  Out: lines of calls, checks, descriptors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from aotc.ir.dtype import DTYPES, DType
from aotc.tir.plan.program import Program, Step, Storage, View
from aotc_codegen.c.ctypes import memory_type
from aotc_codegen.c.kernels import PrintedKernels
from aotc_codegen.c.names import Names, comment_text, string_text
from aotc_codegen.c.params import Params

TEAM_ALIGN = 64
"""Threads do not write into each other's cache lines."""
DTYPE_CODES = {dtype: "AOTC_" + dtype.upper() for dtype in DTYPES}
"""Names in aotc.h."""


@dataclass(frozen=True, slots=True)
class TensorNames:
    """The struct members of inputs and outputs."""

    inputs: Mapping[Storage, str]
    outputs: Mapping[Storage, str]

    @classmethod
    def of(cls, program: Program) -> TensorNames:
        """Members made from the model's names, unique among inputs and among outputs, none of the header's macros."""
        prefix = f"{program.name.upper()}_"
        sides = []
        for storages in (program.inputs, program.outputs):
            names = Names(any_case=True)  # macros are made of them
            found = {s: names.fresh(s.name) for s in storages}
            sides.append({s: f"{name}_" if name.startswith(prefix) else name for s, name in found.items()})
        return cls(*sides)

    def all(self) -> Iterator[tuple[str, int, Storage, str]]:
        """Each input and then each output: its role, its number among those, its memory, its member."""
        for role, names in (("input", self.inputs), ("output", self.outputs)):
            yield from ((role, k, storage, ident) for k, (storage, ident) in enumerate(names.items()))


def dims_text(storage: Storage) -> str:
    """[1, 3, 224, 224]"""
    return "[" + ", ".join(map(str, storage.shape)) + "]"


def tensor_row(storage: Storage, ident: str, role: str) -> dict[str, str]:
    """What templates say of one input or output."""
    return {
        "role": role,
        "ident": ident,
        "dtype": str(storage.dtype),
        "dims": dims_text(storage),
        "title": comment_text(storage.name),
        "markdown_title": "`" + comment_text(storage.name).replace("`", "'").replace("|", "/") + "`",
        "ctype": memory_type(storage.dtype),
        "macro": f"{role.upper()}_{ident.upper()}",
        "elements": str(storage.size),
        "bytes": str(storage.nbytes),
        "rank": str(len(storage.shape)),
        "shape_macro": "{" + (", ".join(map(str, storage.shape)) or "0") + "}",
        "storage": str(max(1, storage.size)),
    }


def team_scratch(program: Program) -> dict[View, int]:
    """Where a thread after the first finds the scratch that it needs for itself, from the start of its own."""
    places: dict[View, int] = {}
    for step in program.steps:
        offset = 0
        for buffer, view in zip(step.kernel.workspace, step.workspace, strict=True):
            if buffer in step.kernel.private:
                places[view] = offset
                offset += -(-buffer.nbytes // TEAM_ALIGN) * TEAM_ALIGN
    return places


def team_bytes(program: Program) -> int:
    """Bytes of a thread's own scratch."""
    places = team_scratch(program)
    ends = (at + -(-view.storage.nbytes // TEAM_ALIGN) * TEAM_ALIGN for view, at in places.items())
    return max(ends, default=0)


def thread_workspace_bytes(program: Program) -> int:
    """How much larger the workspace is for each thread after the first."""
    own = team_bytes(program)
    return own + team_base(program) - program.plan.peak if own else 0


def team_base(program: Program) -> int:
    """Where the scratch of threads begins, after the arena."""
    return -(-program.plan.peak // TEAM_ALIGN) * TEAM_ALIGN


def _pointer(view: View, tensors: TensorNames, params: Params, program: Program, const: bool, own: int | None) -> str:
    """The argument for a view; `own` is its place in a thread's scratch."""
    storage = view.storage
    ctype = memory_type(storage.dtype)
    match storage.kind:
        case "input":
            base = f"inputs->{tensors.inputs[storage]}"
        case "output":
            base = f"outputs->{tensors.outputs[storage]}"
        case "constant":
            base = params.symbol(storage)
        case _:
            offset = program.plan.offsets[storage] + view.offset * storage.dtype.itemsize
            qualifier = "const " if const else ""
            place = f"arena + {offset}" if own is None else f"first ? arena + {offset} : own + {own}"
            return f"({qualifier}{ctype} *)(void *)({place})"
    return f"{base} + {view.offset}" if view.offset else base


def call_rows(program: Program, kernels: PrintedKernels, tensors: TensorNames, params: Params) -> list[str]:
    """One line per step; where kernels are for teams, the others are the first thread's."""
    rows: list[str] = []
    scratch = team_scratch(program)
    teams = any(step.kernel.team for step in program.steps)
    last: bool | None = None
    for number, step in enumerate(program.steps):
        written = len(step.inputs)
        args = [_pointer(v, tensors, params, program, k < written, scratch.get(v)) for k, v in enumerate(step.args)]
        call = kernels.launch(step.kernel, args)
        if last is not None and (last or step.kernel.team):
            rows.append("AOTC_TEAM_SYNC(team);")
        last = step.kernel.team
        alone = "if (first) " if teams and not last else ""
        rows.append(f"STEP({number}) {alone}{call}{_step_comment(step)}")
    return rows


def _step_comment(step: Step) -> str:
    nodes = [o.node for o in step.span.origins() if o.node] if step.span is not None else []
    return f" /* {comment_text(nodes[-1])} */" if nodes else ""


def check_rows(program: Program, tensors: TensorNames) -> list[str]:
    """Tests of the caller's pointers."""
    rows = [
        f"if ({role}s->{ident} == NULL) return AOTC_ERROR_NULL_ARGUMENT;"
        for role, _, storage, ident in tensors.all()
        if storage.size
    ]
    if program.plan.peak:
        rows.append("if (workspace == NULL) return AOTC_ERROR_NULL_ARGUMENT;")
        rows.append(f"if (misaligned(workspace, {program.plan.align})) return AOTC_ERROR_ALIGNMENT;")
    for role, _, storage, ident in tensors.all():
        size = f"sizeof({memory_type(storage.dtype)})"
        rows.append(f"if (misaligned({role}s->{ident}, {size})) return AOTC_ERROR_ALIGNMENT;")
    return rows


def unpack_rows(tensors: TensorNames) -> list[str]:
    """From arrays of pointers to the typed structures."""
    rows = ["memset(&in, 0, sizeof in);"]
    for role, k, storage, ident in tensors.all():
        const = "const " if role == "input" else ""
        rows.append(f"{role.removesuffix('put')}.{ident} = ({const}{memory_type(storage.dtype)} *){role}s[{k}];")
    return rows


def shape_rows(tensors: TensorNames) -> list[str]:
    """Arrays of dimensions for the descriptors."""
    shapes = {f"{role}{k}": ", ".join(map(str, storage.shape)) or "0" for role, k, storage, _ in tensors.all()}
    return [f"static const int64_t {name}_shape[] = {{{dims}}};" for name, dims in shapes.items()]


def descriptor_rows(tensors: TensorNames) -> list[str]:
    """Tables of tensor descriptors."""
    rows = []
    for role, names in (("input", tensors.inputs), ("output", tensors.outputs)):
        if not names:
            continue
        rows.append(f"static const aotc_tensor {role}_tensors[] = {{")
        for k, s in enumerate(names):
            code = DTYPE_CODES[DType(s.dtype)]
            rows.append(f'    {{"{string_text(s.name)}", {role}{k}_shape, {s.nbytes}, {len(s.shape)}, {code}}},')
        rows.append("};")
    return rows
