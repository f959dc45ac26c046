# SPDX-License-Identifier: Apache-2.0
"""Describe a model and estimate its costs, without a C compiler.

report = inspect_model("net.onnx")
report["macs"], report["arena"]["peak"], report["unsupported"]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from aotc.driver.compile import CompileOptions, show_compile_options_in_signature
from aotc.driver.pipeline import Compilation, bare_metal_footprint_or_none
from aotc.driver.size_tiers import dims_of_all_tiers
from aotc.driver.state_pairs import ModelInterface, typed_interface
from aotc.driver.state_proposals import propose_growing_state, propose_state_pairs
from aotc.ir import COMPILE_CALL, AotcError, Span, TensorType, are_bounded
from aotc.ir.diagnostics import diagnostic_texts
from aotc.relay.frontend.onnx import load_model
from aotc.relay.frontend.onnx.model_inputs import declared_output_types, options_to_fix_dims, resolve_model_input_types
from aotc.relay.graph_api import Constant, IRModule, list_op_freqs, post_order
from aotc.relay.transform.fake_quantization_to_integer import find_operators_left_in_float
from aotc.relay.transform.pipeline import FAKE_QUANTIZATION
from aotc.runtime.library import is_aotc_project, read_project_metadata
from aotc.tir import Program, Storage, Target, element_accesses_per_storage, memory_use_of_steps, scalar_loops
from aotc.tir.plan.size_tiers import describe_tiers

#: Number of kernels in the list of the largest ones.
MAX_LARGEST_KERNELS = 10
#: File name extensions of shared libraries.
SHARED_LIBRARY_SUFFIXES = (".so", ".dylib", ".dll")


def _describe_storages(program: Program, storages: Sequence[Storage]) -> list[dict[str, Any]]:
    return [{"name": s.name, "dtype": str(s.dtype), "shape": program.extents_or_formulas(s)} for s in storages]


def _model_nodes_of_span(span: Span | None) -> list[str]:
    """Return the names of the model nodes, or the text lines, of a span."""
    origins = span.all_origins() if span is not None else ()
    return [o.node or f"line {o.line}" for o in origins if o.node or o.line]


def _largest_kernel_rows(program: Program) -> list[dict[str, Any]]:
    steps = sorted(program.steps, key=lambda step: -step.kernel.macs)[:MAX_LARGEST_KERNELS]
    return [{"kernel": s.kernel.name, "macs": s.kernel.macs, "nodes": _model_nodes_of_span(s.span)} for s in steps]


def _live_memory_of_each_step(program: Program) -> list[dict[str, Any]]:
    """Return for each step the kernel, and the tensors live in the arena with sizes and offsets in
    bytes.
    """
    rows = list[dict[str, Any]]()
    for moment, step in zip(memory_use_of_steps(program), program.steps, strict=True):
        live = [{"name": s.name, "bytes": s.nbytes, "offset": program.plan.offsets[s]} for s in moment.live]
        rows.append(
            {"kernel": step.kernel.name, "nodes": _model_nodes_of_span(step.span), "bytes": moment.size, "live": live}
        )
    return rows


def _arena_bytes_by_memory_region(program: Program, target: Target) -> list[dict[str, Any]]:
    """Return the memory regions of the arena and the bytes used of each; [] if the target defines
    none.
    """
    plan, sizes = program.plan, {space.name: space.bytes for space in target.spaces}
    times = Counter[int]()
    for storage, count in element_accesses_per_storage(program).items():
        if storage in plan.offsets:
            times[plan.arena_part_and_offset(storage)[0]] += count
    return [
        {"memory": p.memory, "offset": p.begin, "bytes": p.bytes, "room": sizes[p.memory], "accesses": times[k]}
        for k, p in enumerate(plan.parts)
    ]


def _scalar_loop_rows(program: Program, target: Target) -> list[dict[str, Any]]:
    """Return the loop nests of a program that are not vectorized, with the reasons."""
    rows = list[dict[str, Any]]()
    for kernel in program.distinct_kernels:
        facts = {"kernel": kernel.name, "nodes": _model_nodes_of_span(kernel.span)}
        rows += [{**facts, "loop": s.loop, "reason": s.reason} for s in scalar_loops(kernel, target)]
    return rows


def _float_operators_in_quantized_graph(module: IRModule) -> list[dict[str, Any]]:
    """Return the operators between quantized tensors that are computed in floating point, with the
    reasons.
    """
    rows = find_operators_left_in_float(module, FAKE_QUANTIZATION)
    return [{"operator": str(r.node.op), "nodes": _model_nodes_of_span(r.node.span), "reason": r.reason} for r in rows]


@show_compile_options_in_signature
def inspect_model(path: str | Path, **options: Any) -> dict[str, Any]:
    """Describe a model file: inputs, outputs, parameters, operators, MACs, arena, largest kernels
    and scalar loops.

    options   as for `aotc.compile`

    "pins" lists the options that fix unknown dimensions; if there are any, only inputs and
    operators are reported (of the file, for ONNX).  "unsupported" lists problems that prevent
    compilation; if there are any, figures of the whole model are absent.  "scalar_loops" lists
    loops without vectorization on a target with vectors, with reasons; "left_real" lists operators
    of a quantized model that are not computed on integers; "moments" lists the tensors live in the
    arena during each step.  "proposed_state" lists pairs of an input and an output whose names and
    types suggest the option `state`, with a capacity for state that grows.  "footprint" is the
    estimated memory of a bare-metal project, as in its
    metadata; None for other targets.
    """
    chosen = CompileOptions.from_keywords(options, inspect_model)
    try:
        work = chosen.start_compilation(path)
    except AotcError as error:
        if error.code == "onnx-dynamic":
            return _describe_onnx_with_unknown_dims(path, chosen)
        if error.code not in ("onnx-unsupported", "onnx-op", "tflite-op"):
            raise
        return {"model": str(path), "unsupported": diagnostic_texts(error.diagnostics)}
    types = _parameter_types(work.module)
    has_ranges = work.target.gpu is None and all(are_bounded(ty.shape) for ty in types.values())
    if not has_ranges and (flags := options_to_fix_dims(types)):
        operators = list_op_freqs(work.module.main)
        proposals = _proposed_state(work)
        return _describe_model_with_unknown_dims(path, types, flags, operators, proposals)
    return _describe_compiled_model(path, work)


def _describe_compiled_model(path: str | Path, work: Compilation) -> dict[str, Any]:
    """Return the description of a model whose programs are scheduled."""
    constants = [n for n in post_order(work.module.main) if isinstance(n, Constant)]
    program = work.scheduled_programs[0]
    plan = program.plan
    return {
        "model": str(path),
        "unsupported": [],
        "pins": [],
        "parameters": sum(c.data.size for c in constants),
        "parameter_bytes": sum(0 if c.is_splat else c.data.nbytes for c in constants),
        "operators": list_op_freqs(work.module.main),
        "inputs": _describe_storages(program, program.inputs),
        "outputs": _describe_storages(program, program.outputs),
        "proposed_state": _proposed_state(work),
        "macs": sum(step.kernel.macs for step in program.typical_steps),
        "steps": len(program.steps),
        "tiers": describe_tiers(program),
        "kernels": len(program.distinct_kernels),
        "arena": {
            "peak": plan.peak,
            "lower_bound": plan.lower_bound,
            "gap": plan.bytes_above_lower_bound,
            "parts": _arena_bytes_by_memory_region(program, work.target_without_duplicate_versions),
        },
        "footprint": bare_metal_footprint_or_none(work),
        "moments": _live_memory_of_each_step(program),
        "largest": _largest_kernel_rows(program),
        "accuracy": work.accuracy,
        "numerics": work.numerics_id_per_target_version[0],
        "left_real": _float_operators_in_quantized_graph(work.module),
        "scalar_loops": _scalar_loop_rows(program, work.target_versions[0]),
    }


def _proposed_state(work: Compilation) -> list[tuple[str, str]]:
    """Return values of the option `state` that names and types suggest; [] for a model that has state, by the option
    or by variables of its own.
    """
    if work.state:
        return []
    return [*propose_state_pairs(work.module), *propose_growing_state(typed_interface(work.module))]


def _parameter_types(module: IRModule) -> dict[str, TensorType]:
    """Return the types of the tensor parameters of @main, by name."""
    typed = {p.name: p.checked_type for p in module.main.params}
    return {name: ty for name, ty in typed.items() if isinstance(ty, TensorType)}


def _describe_onnx_with_unknown_dims(path: str | Path, options: CompileOptions) -> dict[str, Any]:
    """Describe an ONNX model whose operators depend on unknown dimensions."""
    types = resolve_model_input_types(path, options.input_shapes or {}, dims_of_all_tiers(options.dims or {}))
    graph = load_model(path).graph
    nodes = Counter(node.op_type for node in graph.node)
    interface = ModelInterface(types, declared_output_types(path))
    proposals = [] if options.state else propose_growing_state(interface)
    return _describe_model_with_unknown_dims(path, types, options_to_fix_dims(types), nodes, proposals)


def _describe_model_with_unknown_dims(
    path: str | Path,
    types: Mapping[str, TensorType],
    pin_options: Sequence[str],
    operators: Mapping[str, int],
    proposed_state: Sequence[tuple[str, str]],
) -> dict[str, Any]:
    """Describe a model with unknown dimensions, without the figures that depend on them.

    pin_options       options that fix the dimensions
    proposed_state    values of the option `state`
    """
    rows = [
        {"name": n, "dtype": str(t.dtype), "shape": [d if isinstance(d, int) else str(d) for d in t.shape]}
        for n, t in types.items()
    ]
    return {
        "model": str(path),
        "unsupported": [],
        "pins": list(pin_options),
        "proposed_state": list(proposed_state),
        "inputs": rows,
        "operators": dict(operators),
    }


def inspect_project(path: str | Path) -> dict[str, Any]:
    """Return the metadata of an emitted project, given by its directory or by the library built in
    it.

    Raise AotcError (code "not-a-project") if there is no project.
    """
    folder = Path(path)
    folder = folder if folder.is_dir() else folder.absolute().parent.parent
    if not is_aotc_project(folder):
        raise AotcError(
            "not-a-project", f"{folder} holds no project written by aotc", hint=COMPILE_CALL + " writes one"
        )
    return read_project_metadata(folder)
