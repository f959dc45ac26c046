# SPDX-License-Identifier: Apache-2.0
"""metadata.json: what tools and people ask of a compiled model.

describe(program, target, ...)["memory"]["peak"]
write_metadata(directory, metadata)
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aotc.ir.span import Span
from aotc.tir import Kernel, Target
from aotc.tir.plan.program import Program, Storage
from aotc_codegen.c.params import Params
from aotc_codegen.c.schedule import TensorNames

FORMAT = 1
"""Version of the layout of this file."""
BOUND, APPROXIMATE_BOUND = 1e-5, 1e-4
"""What the error of a float32 output may be, relative to the standard deviation of the exact one; the second with
algorithms that round more than an operator's definition."""


def _tensor(storage: Storage, ident: str) -> dict[str, Any]:
    return {
        "name": storage.name,
        "c_name": ident,
        "dtype": str(storage.dtype),
        "shape": list(storage.shape),
        "bytes": storage.nbytes,
    }


def _nodes(span: Span | None) -> list[str]:
    return [o.node for o in span.origins() if o.node] if span is not None else []


def _memory(program: Program) -> dict[str, Any]:
    plan = program.plan
    first: dict[Storage, int] = {}
    last: dict[Storage, int] = {}
    for k, step in enumerate(program.steps):
        for view in step.args:
            first.setdefault(view.storage, k)
            last[view.storage] = k
    buffers = [
        {"name": s.name, "offset": offset, "bytes": s.nbytes, "first_step": first.get(s), "last_step": last.get(s)}
        for s, offset in plan.offsets.items()
    ]
    return {
        "peak": plan.peak,
        "lower_bound": plan.lower_bound,
        "gap": plan.gap,
        "alignment": plan.align,
        "buffers": buffers,
    }


def describe(
    program: Program, target: Target, version: str, tensors: TensorNames, kernels: Mapping[Kernel, str], params: Params
) -> dict[str, Any]:
    """The metadata of a program, ready for JSON."""
    steps = [
        {
            "kernel": kernels[step.kernel],
            "macs": step.kernel.macs,
            "bytes_read": sum(b.nbytes for b in step.kernel.inputs),
            "bytes_written": sum(b.nbytes for b in step.kernel.outputs),
            "nodes": _nodes(step.span),
        }
        for step in program.steps
    ]
    return {
        "generator": "aotc",
        "format": FORMAT,
        "version": version,
        "name": program.name,
        "target": target.name,
        "library": f"lib/lib{program.name}.so",
        "inputs": [_tensor(s, i) for s, i in tensors.inputs.items()],
        "outputs": [_tensor(s, i) for s, i in tensors.outputs.items()],
        "memory": _memory(program),
        "error_bound": APPROXIMATE_BOUND if any(s.kernel.approximate for s in program.steps) else BOUND,
        "weights_bytes": params.bytes,
        "macs": sum(step.kernel.macs for step in program.steps),
        "kernels": len(set(kernels.values())),
        "steps": steps,
    }


def write_metadata(directory: Path, metadata: Mapping[str, Any]) -> None:
    """Write metadata.json into the directory of a project."""
    text = json.dumps(metadata, indent=2, ensure_ascii=True) + "\n"
    (directory / "metadata.json").write_text(text, encoding="utf-8")
