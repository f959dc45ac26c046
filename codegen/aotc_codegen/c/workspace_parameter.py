# SPDX-License-Identifier: Apache-2.0
"""Emit the workspace parameter of a model's run function: one pointer, or a struct with a pointer
for each memory.

Input: a program with a memory plan. Output: values for templates.

    workspace_parts(program)[1].arena              # "arena_sram"
    workspace_template_values(program)["parameter"]  # "const net_workspace *workspace"
"""

from typing import Any

from aotc.ir import frozen
from aotc.tir.plan.program import Program
from aotc.tir.plan.storage import Storage
from aotc_codegen.c.c_identifiers import UniqueIdentifiers, escape_for_c_comment
from aotc_codegen.c.template_rendering import render_template


@frozen
class WorkspacePart:
    """Part of the arena that lies in one memory and is passed by one pointer.

    member   name of the pointer in the workspace struct; "" if there is a single pointer
    memory   name of the memory; "" if the target does not say
    """

    member: str
    memory: str
    bytes: int

    @property
    def c_variable_of_workspace_part_address(self) -> str:
        """Name of the C variable that holds the address of this part of the workspace."""
        return f"arena_{self.member}" if self.member else "arena"

    @property
    def size_macro_name(self) -> str:
        """Name of the C macro with the size of this workspace part in bytes, without the model's
        prefix.
        """
        return f"WORKSPACE_{self.member.upper()}_BYTES" if self.member else "WORKSPACE_BYTES"


def workspace_parts(program: Program) -> list[WorkspacePart]:
    """Return the parts of the workspace of a run, in the order of the plan's parts."""
    parts, prefix = program.plan.parts, f"{program.name.upper()}_"
    if len(parts) < 2:
        return [WorkspacePart("", parts[0].memory if parts else "", program.plan.peak)]
    names = UniqueIdentifiers(any_case=True)
    members = (names.unique_identifier(part.memory, "memory") for part in parts)
    member_names = (f"{name}_" if name.startswith(prefix) else name for name in members)
    return [WorkspacePart(name, part.memory, part.bytes) for name, part in zip(member_names, parts, strict=True)]


def workspace_part_and_offset(program: Program, storage: Storage) -> tuple[WorkspacePart, int]:
    """Return the workspace part that holds a temporary, and its byte offset in this part."""
    number, at = program.plan.arena_part_and_offset(storage)
    return workspace_parts(program)[number], at


def workspace_template_values(program: Program) -> dict[str, Any]:
    """Return the template values for the workspace.

    parameter   parameter of the run function
    sizes       size macros, without the model's prefix, and their values
    pointers    members of the struct, none if there is a single pointer
    arenas      C variables with the addresses of the parts, and their initial values
    symbols     names of these C variables
    required    pointers that must not be NULL
    aligned     remainders that must be 0 for the pointers to be aligned
    given       names of the parts in example programs, and their size macros
    several     True if there are several parts
    """
    parts, name = workspace_parts(program), program.name
    several = len(parts) > 1
    where = [f"workspace->{w.member}" if several else "workspace" for w in parts]
    guard = "workspace == NULL ? NULL : " if several else ""
    arenas = [
        f"{w.c_variable_of_workspace_part_address} = {guard}(unsigned char *){at}"
        for w, at in zip(parts, where, strict=True)
    ]
    return {
        "parameter": f"const {name}_workspace *workspace" if several else "void *workspace",
        "sizes": [f"{w.size_macro_name} {w.bytes}" for w in parts],
        "pointers": [
            f"void *{w.member}; /* {name.upper()}_{w.size_macro_name}: {escape_for_c_comment(w.memory)} */"
            for w in parts
        ]
        if several
        else [],
        "arenas": arenas,
        "symbols": [w.c_variable_of_workspace_part_address for w in parts],
        "required": (["workspace", *where] if several else where) if program.plan.peak else [],
        "aligned": [f"{at} % {program.plan.align}" for at in where] if program.plan.peak else [],
        "given": [(w.member or "workspace", w.size_macro_name) for w in parts],
        "several": several,
    }


def workspace_struct_definition(name: str, workspace_values: dict[str, Any]) -> str:
    """Return the definition of the struct of pointers; "" if there is a single pointer."""
    return render_template("workspaces.h", name=name, **workspace_values) if workspace_values["several"] else ""
