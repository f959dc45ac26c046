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

from aotc.driver.compile import CompileOptions
from aotc.driver.pipeline import footprint
from aotc.ir import AotcError, Span, TensorType
from aotc.ir.diagnostics import texts_of
from aotc.relay.frontend.onnx import load_model
from aotc.relay.frontend.onnx.model_inputs import declared_types, pin_flags
from aotc.relay.graph_api import Constant, IRModule, list_op_freqs, post_order
from aotc.relay.transform.fake_quantization_to_integer import left_real
from aotc.relay.transform.pipeline import FAKE_QUANTIZATION
from aotc.runtime.library import is_project, read_metadata
from aotc.tir import Program, Storage, Target, accessed, moments, scalar_loops

#: Number of kernels in the list of the largest ones.
LARGEST = 10
#: File name extensions of shared libraries.
LIBRARIES = (".so", ".dylib", ".dll")


def _tensors(storages: Sequence[Storage]) -> list[dict[str, Any]]:
    return [{"name": s.name, "dtype": str(s.dtype), "shape": list(s.shape)} for s in storages]


def _places(span: Span | None) -> list[str]:
    """Return the names of the model nodes, or the text lines, of a span."""
    origins = span.origins() if span is not None else ()
    return [o.node or f"line {o.line}" for o in origins if o.node or o.line]


def _largest(program: Program) -> list[dict[str, Any]]:
    steps = sorted(program.steps, key=lambda step: -step.kernel.macs)[:LARGEST]
    return [{"kernel": s.kernel.name, "macs": s.kernel.macs, "nodes": _places(s.span)} for s in steps]


def _memory(program: Program) -> list[dict[str, Any]]:
    """Return for each step the kernel, and the tensors live in the arena with sizes and offsets in
    bytes.
    """
    rows = list[dict[str, Any]]()
    for moment, step in zip(moments(program), program.steps, strict=True):
        live = [{"name": s.name, "bytes": s.nbytes, "offset": program.plan.offsets[s]} for s in moment.live]
        rows.append({"kernel": step.kernel.name, "nodes": _places(step.span), "bytes": moment.size, "live": live})
    return rows


def _parts(program: Program, target: Target) -> list[dict[str, Any]]:
    """Return the memory regions of the arena and the bytes used of each; [] if the target defines
    none.
    """
    plan, sizes = program.plan, {space.name: space.bytes for space in target.spaces}
    times = Counter[int]()
    for storage, count in accessed(program).items():
        if storage in plan.offsets:
            times[plan.place(storage)[0]] += count
    return [
        {"memory": p.memory, "offset": p.begin, "bytes": p.bytes, "room": sizes[p.memory], "accesses": times[k]}
        for k, p in enumerate(plan.parts)
    ]


def _scalar(program: Program, target: Target) -> list[dict[str, Any]]:
    """Return the loop nests of a program that are not vectorized, with the reasons."""
    rows = list[dict[str, Any]]()
    for kernel in program.kernels:
        facts = {"kernel": kernel.name, "nodes": _places(kernel.span)}
        rows += [{**facts, "loop": s.loop, "reason": s.reason} for s in scalar_loops(kernel, target)]
    return rows


def _real(module: IRModule) -> list[dict[str, Any]]:
    """Return the operators between quantized tensors that are computed in floating point, with the
    reasons.
    """
    rows = left_real(module, FAKE_QUANTIZATION)
    return [{"operator": str(r.node.op), "nodes": _places(r.node.span), "reason": r.reason} for r in rows]


def inspect_model(path: str | Path, **options: Any) -> dict[str, Any]:
    """Describe a model file: inputs, outputs, parameters, operators, MACs, arena, largest kernels
    and scalar loops.

    options   as for `aotc.compile`

    "pins" lists the options that fix unknown dimensions; if there are any, only inputs and
    operators are reported (of the file, for ONNX).  "unsupported" lists problems that prevent
    compilation; if there are any, figures of the whole model are absent.  "scalar_loops" lists
    loops without vectorization on a target with vectors, with reasons; "left_real" lists operators
    of a quantized model that are not computed on integers; "moments" lists the tensors live in the
    arena during each step.  "footprint" is the estimated memory of a bare-metal project, as in its
    metadata; None for other targets.
    """
    chosen = CompileOptions(**options)
    try:
        work = chosen.compilation(path)
    except AotcError as error:
        if error.code == "onnx-dynamic":
            return _open_onnx(path, chosen)
        if error.code not in ("onnx-unsupported", "onnx-op", "tflite-op"):
            raise
        return {"model": str(path), "unsupported": texts_of(error.diagnostics)}
    if flags := pin_flags(types := _parameters(work.module)):
        operators = list_op_freqs(work.module.main)
        return _open(path, types, flags, operators)
    constants = [n for n in post_order(work.module.main) if isinstance(n, Constant)]
    program = work.programs[0]
    plan = program.plan
    return {
        "model": str(path),
        "unsupported": [],
        "pins": [],
        "parameters": sum(c.data.size for c in constants),
        "parameter_bytes": sum(0 if c.is_splat else c.data.nbytes for c in constants),
        "operators": list_op_freqs(work.module.main),
        "inputs": _tensors(program.inputs),
        "outputs": _tensors(program.outputs),
        "macs": sum(step.kernel.macs for step in program.steps),
        "steps": len(program.steps),
        "kernels": len(program.kernels),
        "arena": {
            "peak": plan.peak,
            "lower_bound": plan.lower_bound,
            "gap": plan.gap,
            "parts": _parts(program, work.machine),
        },
        "footprint": footprint(work),
        "moments": _memory(program),
        "largest": _largest(program),
        "accuracy": work.accuracy,
        "numerics": work.numerics[0],
        "left_real": _real(work.module),
        "scalar_loops": _scalar(program, work.versions[0]),
    }


def _parameters(module: IRModule) -> dict[str, TensorType]:
    """Return the types of the tensor parameters of @main, by name."""
    typed = {p.name: p.checked_type for p in module.main.params}
    return {name: ty for name, ty in typed.items() if isinstance(ty, TensorType)}


def _open_onnx(path: str | Path, options: CompileOptions) -> dict[str, Any]:
    """Describe an ONNX model whose operators depend on unknown dimensions."""
    types = declared_types(path, options.input_shapes or {}, options.dims or {})
    nodes = Counter(node.op_type for node in load_model(path).graph.node)
    return _open(path, types, pin_flags(types), nodes)


def _open(
    path: str | Path, types: Mapping[str, TensorType], flags: Sequence[str], operators: Mapping[str, int]
) -> dict[str, Any]:
    """Describe a model with unknown dimensions, without the figures that depend on them.

    flags    options that fix the dimensions
    """
    rows = [
        {"name": n, "dtype": str(t.dtype), "shape": [d if isinstance(d, int) else str(d) for d in t.shape]}
        for n, t in types.items()
    ]
    return {"model": str(path), "unsupported": [], "pins": list(flags), "inputs": rows, "operators": dict(operators)}


def inspect_project(path: str | Path) -> dict[str, Any]:
    """Return the metadata of an emitted project, given by its directory or by the library built in
    it.

    Raise AotcError (code "not-a-project") if there is no project.
    """
    folder = Path(path)
    folder = folder if folder.is_dir() else folder.absolute().parent.parent
    if not is_project(folder):
        raise AotcError("not-a-project", f"{folder} holds no project written by aotc", hint="run `aotc compile` first")
    return read_metadata(folder)
