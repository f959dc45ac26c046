# SPDX-License-Identifier: Apache-2.0
"""The memory that callers give to a run, as C: one pointer, or one for each memory that the arena lies in.

In: a program with its plan.  Out: words for templates.

    workspaces_of(program)[1].arena                # "arena_sram"
    workspace_words(program)["parameter"]          # "const net_workspace *workspace"
"""

from typing import Any

from aotc.ir import frozen
from aotc.tir.plan.program import Program, Storage
from aotc_codegen.c.c_identifiers import Names, comment_text
from aotc_codegen.c.file_templates import render


@frozen
class Workspace:
    """One piece of memory.

    member   of the struct of pointers; "" where there is one pointer
    memory   what holds it; "" where nobody says
    """

    member: str
    memory: str
    bytes: int

    @property
    def arena(self) -> str:
        """The variable with its address."""
        return f"arena_{self.member}" if self.member else "arena"

    @property
    def size(self) -> str:
        """The macro of its bytes, without the model's name."""
        return f"WORKSPACE_{self.member.upper()}_BYTES" if self.member else "WORKSPACE_BYTES"


def workspaces_of(program: Program) -> list[Workspace]:
    """What a run is given, in the order of the plan's parts."""
    parts, prefix = program.plan.parts, f"{program.name.upper()}_"
    if len(parts) < 2:
        return [Workspace("", parts[0].memory if parts else "", program.plan.peak)]
    names = Names(any_case=True)
    members = (names.fresh(part.memory, "memory") for part in parts)
    own = (f"{name}_" if name.startswith(prefix) else name for name in members)
    return [Workspace(name, part.memory, part.bytes) for name, part in zip(own, parts, strict=True)]


def placed(program: Program, storage: Storage) -> tuple[Workspace, int]:
    """What a temporary lies in, and where in that."""
    number, at = program.plan.place(storage)
    return workspaces_of(program)[number], at


def workspace_words(program: Program) -> dict[str, Any]:
    """What templates take.

    parameter   of a run
    sizes       macros, without the model's name, and their values
    pointers    members of the struct, none where there is one pointer
    arenas      variables, and their addresses
    required    what must not be NULL
    given       pieces with what an example calls them
    """
    found, name = workspaces_of(program), program.name
    several = len(found) > 1
    where = [f"workspace->{w.member}" if several else "workspace" for w in found]
    guard = "workspace == NULL ? NULL : " if several else ""
    arenas = [f"{w.arena} = {guard}(unsigned char *){at}" for w, at in zip(found, where, strict=True)]
    return {
        "parameter": f"const {name}_workspace *workspace" if several else "void *workspace",
        "sizes": [f"{w.size} {w.bytes}" for w in found],
        "pointers": [f"void *{w.member}; /* {name.upper()}_{w.size}: {comment_text(w.memory)} */" for w in found]
        if several
        else [],
        "arenas": arenas,
        "symbols": [w.arena for w in found],
        "required": (["workspace", *where] if several else where) if program.plan.peak else [],
        "aligned": [f"{at} % {program.plan.align}" for at in where] if program.plan.peak else [],
        "given": [(w.member or "workspace", w.size) for w in found],
        "several": several,
    }


def struct_of(name: str, words: dict[str, Any]) -> str:
    """The struct of pointers; "" where there is one."""
    return render("workspaces.h", name=name, **words) if words["several"] else ""
