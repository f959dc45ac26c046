# SPDX-License-Identifier: Apache-2.0
"""Write metadata.json, the machine-readable description of a compiled model.

describe_compiled_program(program, target, ...)["memory"]["peak"]
write_metadata_file(directory, metadata)
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from aotc.ir import Dim, SymDim, sum_of_dims
from aotc.ir.dimension_formulas import formula_of_name, formula_text
from aotc.ir.version import VERSION
from aotc.tir import (
    Buffer,
    Kernel,
    Program,
    Step,
    Storage,
    Target,
    View,
    estimated_code_bytes,
    estimated_stack_bytes,
    kernel_with_largest_stack_frame,
    lifetimes_of_temporaries,
)
from aotc.tir.plan.size_tiers import describe_tiers
from aotc_codegen.c.c_identifiers import model_node_names_of_span
from aotc_codegen.c.parameter_files import ParameterLayout
from aotc_codegen.c.schedule_calls import model_input_and_output_tensors
from aotc_codegen.c.state_block import state_block_layout
from aotc_codegen.c.workspace_parameter import workspace_parts

#: File name of the metadata.
METADATA_FILE_NAME: Final = "metadata.json"
#: Version of the layout of metadata.json.
METADATA_FORMAT_VERSION = 1
#: Bound on the error of a float32 output relative to the standard deviation of the exact output;
#: the second bound is for programs with algorithms that round more often than the operator's
#: definition.
BOUND, APPROXIMATE_BOUND = 1e-5, 1e-4
#: Register size in bytes by machine.
REGISTER_BYTES_BY_MACHINE: Final = {"x86_64": 8, "aarch64": 8, "riscv64": 8}


def describe_compiled_program(
    program: Program, target: Target, kernel_names: Mapping[Kernel, str], params: ParameterLayout
) -> dict[str, Any]:
    """Return the metadata of a compiled program (tensors, memory, steps) as a value that JSON can
    represent.
    """
    plan, lives = program.plan, lifetimes_of_temporaries(program)
    buffers = [
        {
            "name": s.name,
            "offset": at,
            "bytes": s.nbytes,
            "first_step": lives[s].first_step,
            "last_step": lives[s].last_step,
        }
        for s, at in plan.offsets.items()
    ]
    inputs, outputs = model_input_and_output_tensors(program)
    steps = [
        {
            "kernel": kernel_names[step.kernel],
            "macs": step.kernel.macs,
            "bytes_read": sum(b.nbytes for b in step.kernel.inputs),
            "bytes_written": sum(b.nbytes for b in step.kernel.outputs),
            "nodes": model_node_names_of_span(step.span),
            **_counts_by_size(step),
        }
        for step in program.steps
    ]
    return {
        "generator": "aotc",
        "format": METADATA_FORMAT_VERSION,
        "version": VERSION,
        "name": program.name,
        "target": target.name,
        "library": f"lib/lib{program.name}.{'a' if target.bare else 'so'}",
        "inputs": [t.metadata_entry_of_model_tensor for t in inputs],
        "outputs": [t.metadata_entry_of_model_tensor for t in outputs],
        **({"dims": {name: str(r) for name, r in program.sizes.items()}} if program.sizes else {}),
        **({"tiers": describe_tiers(program)} if program.tiers else {}),
        "memory": {
            "peak": plan.peak,
            "lower_bound": plan.lower_bound,
            "gap": plan.bytes_above_lower_bound,
            "alignment": plan.align,
            "buffers": buffers,
            "parameters": _parameter_rows(program, params),
            "spaces": _memory_name_of_each_role(program, target, params),
            **_arena_parts_metadata(program),
        },
        "error_bound": APPROXIMATE_BOUND if any(s.kernel.approximate for s in program.steps) else BOUND,
        "weights_bytes": params.bytes,
        "macs": sum(step.kernel.macs for step in program.typical_steps),
        "kernels": len(set(kernel_names.values())),
        "steps": steps,
    }


def _counts_by_size(step: Step) -> dict[str, dict[str, str]]:
    """Return the entry of a call whose counts depend on sizes that are known at run time only: the formulas of those
    that do. The counts themselves are then those of the largest sizes.
    """
    kernel = step.kernel
    counts = {
        "bytes_read": _bytes_of_run(kernel.inputs, step.inputs),
        "bytes_written": _bytes_of_run(kernel.outputs, step.outputs),
    }
    formulas = {name: count.name for name, count in counts.items() if isinstance(count, SymDim) and count.name}
    if kernel.macs_formula:
        # a number that merging kernels has added comes later, and may have the name of another one
        numbers = reversed(list(zip(kernel.numbers, step.numbers, strict=True)))
        values = {n.var.name: formula_of_name(v.name) for n, v in numbers if isinstance(v, SymDim)}
        formulas["macs"] = formula_text(formula_of_name(kernel.macs_formula).substitute(values))
    return {"by_size": formulas} if formulas else {}


def _bytes_of_run(params: Sequence[Buffer], arguments: Sequence[View]) -> Dim:
    """Return the number of bytes of arguments in a run; that of a part of a storage is the largest one."""
    storages = [(b, view.storage) for b, view in zip(params, arguments, strict=True)]
    return sum_of_dims(s.element_count * s.dtype.itemsize if b.nbytes == s.nbytes else b.nbytes for b, s in storages)


def _parameter_rows(program: Program, params: ParameterLayout) -> list[dict[str, Any]]:
    """Return for each stored constant its name in C, the array that holds it with the offset there, its bytes without
    padding, its memory (if the target has several), and the model nodes of the first step that reads it.
    """
    nodes: dict[Storage, list[str]] = {}
    for step in program.steps:
        for view in step.inputs:
            if view.storage in params.homes:
                nodes.setdefault(params.stored_equal_constant(view.storage), model_node_names_of_span(step.span))
    rows = []
    for storage in params.offsets:
        name, at = params.c_symbol_of_constant(storage), params.byte_offset_in_file(storage)
        piece = next(p for p in reversed(params.pieces) if p.begin <= at)
        place = {"array": params.c_array_name(piece), "offset": at - piece.begin}
        if params.stores_parameters_as_c_arrays:
            place = {"array": name, "offset": 0}
        memory = {"memory": piece.memory} if piece.memory else {}
        rows.append({"name": name, **place, "bytes": storage.nbytes, **memory, "nodes": nodes.get(storage, [])})
    return rows


def _memory_name_of_each_role(program: Program, target: Target, params: ParameterLayout) -> dict[str, str]:
    """Return the name of the memory for each role of `target.DATA_KINDS_OF_ROLE`: arena, parameters
    and others.
    """
    used_bytes = {part.memory: part.bytes for part in program.plan.parts}
    known = {"arena": " and ".join(used_bytes), "parameters": " and ".join(piece.memory for piece in params.pieces)}
    sizes = {"arena": program.plan.peak, "parameters": params.bytes + params.trailing_bytes}
    spaces = target.choose_memory_spaces({role: size for role, size in sizes.items() if not known[role]}, used_bytes)
    return known | {role: space.name for role, space in spaces.items()}


def _arena_parts_metadata(program: Program) -> dict[str, list[dict[str, Any]]]:
    """Return the metadata of the arena's parts in several memories; empty if they are not assigned
    to memories.
    """
    parts = zip(program.plan.parts, workspace_parts(program), strict=False)
    rows = [{"memory": p.memory, "member": w.member, "offset": p.begin, "bytes": p.bytes} for p, w in parts]
    return {"parts": rows} if rows else {}


def estimate_memory_footprint(
    program: Program,
    target: Target,
    kernel_names: Mapping[Kernel, str],
    params: ParameterLayout,
    extra_argument_counts: Sequence[int] = (),
) -> dict[str, Any]:
    """Return the bytes a program needs: memory in runs, flash, stack; code and stack sizes are
    estimates.

    extra_argument_counts    number of extra integer arguments of each kernel call

    Registers are assumed to have 4 bytes if the machine is unknown, as such targets are small.
    """
    distinct = {name: kernel for kernel, name in kernel_names.items()}
    costs, word = target.code_size, REGISTER_BYTES_BY_MACHINE.get(target.machine, 4)
    largest = kernel_with_largest_stack_frame(program, costs, word)
    state = state_block_layout([program], "")
    return {
        "arena": program.plan.peak,
        "io": sum(s.nbytes for s in (*program.inputs, *program.outputs) if s not in program.resident),
        **({"state": state.bytes} if state else {}),
        "code": estimated_code_bytes(distinct.values(), costs, len(program.steps))
        + int(costs.argument_bytes * sum(extra_argument_counts)),
        "code_measured": False,
        "parameters": params.bytes,
        "stack": estimated_stack_bytes(program, costs, word) + 2 * word * max(extra_argument_counts, default=0),
        "stack_kernel": kernel_names[largest] if largest is not None else "",
    }


def write_metadata_file(directory: Path, metadata: Mapping[str, Any]) -> None:
    """Write metadata.json into the directory of a project."""
    text = json.dumps(metadata, indent=2, ensure_ascii=True) + "\n"
    (directory / METADATA_FILE_NAME).write_text(text, encoding="utf-8")
