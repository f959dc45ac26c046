# SPDX-License-Identifier: Apache-2.0
"""Write metadata.json, the machine-readable description of a compiled model.

describe(program, target, ...)["memory"]["peak"]
write_metadata(directory, metadata)
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from aotc.ir.version import VERSION
from aotc.tir import NUMBER, Kernel, Program, Target, code_bytes, largest_frame, lifetimes, stack_bytes
from aotc_codegen.c.c_identifiers import nodes_of
from aotc_codegen.c.parameter_files import Params
from aotc_codegen.c.schedule_calls import tensors_of
from aotc_codegen.c.workspace import workspaces_of

#: File name of the metadata.
METADATA: Final = "metadata.json"
#: Version of the layout of metadata.json.
FORMAT = 1
#: Bound on the error of a float32 output relative to the standard deviation of the exact output;
#: the second bound is for programs with algorithms that round more often than the operator's
#: definition.
BOUND, APPROXIMATE_BOUND = 1e-5, 1e-4
#: Register size in bytes by machine.
WORDS: Final = {"x86_64": 8, "aarch64": 8, "riscv64": 8}


def describe(program: Program, target: Target, kernels: Mapping[Kernel, str], params: Params) -> dict[str, Any]:
    """Return the metadata of a compiled program (tensors, memory, steps) as a value that JSON can
    represent.
    """
    plan, lives = program.plan, lifetimes(program)
    buffers = [
        {"name": s.name, "offset": at, "bytes": s.nbytes, "first_step": lives[s].first, "last_step": lives[s].last}
        for s, at in plan.offsets.items()
    ]
    inputs, outputs = tensors_of(program)
    steps = [
        {
            "kernel": kernels[step.kernel],
            "macs": step.kernel.macs,
            "bytes_read": sum(b.nbytes for b in step.kernel.inputs),
            "bytes_written": sum(b.nbytes for b in step.kernel.outputs),
            "nodes": nodes_of(step.span),
        }
        for step in program.steps
    ]
    return {
        "generator": "aotc",
        "format": FORMAT,
        "version": VERSION,
        "name": program.name,
        "target": target.name,
        "library": f"lib/lib{program.name}.{'a' if target.bare else 'so'}",
        "inputs": [t.described for t in inputs],
        "outputs": [t.described for t in outputs],
        "memory": {
            "peak": plan.peak,
            "lower_bound": plan.lower_bound,
            "gap": plan.gap,
            "alignment": plan.align,
            "buffers": buffers,
            "spaces": _spaces(program, target, params),
            **_parts(program),
        },
        "error_bound": APPROXIMATE_BOUND if any(s.kernel.approximate for s in program.steps) else BOUND,
        "weights_bytes": params.bytes,
        "macs": sum(step["macs"] for step in steps),
        "kernels": len(set(kernels.values())),
        "steps": steps,
    }


def _spaces(program: Program, target: Target, params: Params) -> dict[str, str]:
    """Return the name of the memory for each role of `target.ROLES`: arena, parameters and others."""
    taken = {part.memory: part.bytes for part in program.plan.parts}
    known = {"arena": " and ".join(taken), "parameters": " and ".join(piece.memory for piece in params.pieces)}
    sizes = {"arena": program.plan.peak, "parameters": params.bytes + params.behind}
    found = target.places({role: size for role, size in sizes.items() if not known[role]}, taken)
    return known | {role: space.name for role, space in found.items()}


def _parts(program: Program) -> dict[str, list[dict[str, Any]]]:
    """Return the metadata of the arena's parts in several memories; empty if they are not assigned
    to memories.
    """
    parts = zip(program.plan.parts, workspaces_of(program), strict=False)
    rows = [{"memory": p.memory, "member": w.member, "offset": p.begin, "bytes": p.bytes} for p, w in parts]
    return {"parts": rows} if rows else {}


def footprint(
    program: Program, target: Target, kernels: Mapping[Kernel, str], params: Params, numbers: Sequence[int] = ()
) -> dict[str, Any]:
    """Return the bytes a program needs: memory in runs, flash, stack; code and stack sizes are
    estimates.

    numbers   number of extra integer arguments of each kernel call

    Registers are assumed to have 4 bytes if the machine is unknown, as such targets are small.
    """
    distinct = {name: kernel for kernel, name in kernels.items()}
    word = WORDS.get(target.machine, 4)
    largest = largest_frame(program, word)
    return {
        "arena": program.plan.peak,
        "io": sum(s.nbytes for s in (*program.inputs, *program.outputs) if s not in program.resident),
        "code": code_bytes(distinct.values(), len(program.steps)) + NUMBER * sum(numbers),
        "code_measured": False,
        "parameters": params.bytes,
        "stack": stack_bytes(program, word) + 2 * word * max(numbers, default=0),
        "stack_kernel": kernels[largest] if largest is not None else "",
    }


def write_metadata(directory: Path, metadata: Mapping[str, Any]) -> None:
    """Write metadata.json into the directory of a project."""
    text = json.dumps(metadata, indent=2, ensure_ascii=True) + "\n"
    (directory / METADATA).write_text(text, encoding="utf-8")
