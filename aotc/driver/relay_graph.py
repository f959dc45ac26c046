# SPDX-License-Identifier: Apache-2.0
"""The static schedule of a program as JSON, in the form that TVM's graph executor reads.

json.loads(graph_json(program))["nodes"][-1]["attrs"]["func_name"]

Nodes are tensors from outside ("null": inputs under their names, constants as p0, p1, ...) and kernel calls
("tvm_op"), whose inputs are [node, output, version].  An input that several calls wrote parts of names them all.
Equal storage ids are equal places: outside, or at an offset of the arena.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from aotc.tir.plan.program import Program, Step, Storage


def constant_names(program: Program) -> dict[Storage, str]:
    """The constants in order of first use, and their names in the graph."""
    return {storage: f"p{k}" for k, storage in enumerate(program.constants)}


@dataclass(slots=True)
class _Graph:
    nodes: list[dict[str, Any]] = field(default_factory=list)
    rows: list[int] = field(default_factory=lambda: [0])
    tensors: list[Storage] = field(default_factory=list)
    writers: dict[Storage, list[list[int]]] = field(default_factory=dict)

    def add(self, node: dict[str, Any], outputs: Sequence[Storage]) -> None:
        """Append a node; calls that write other parts of the same storage stay its writers."""
        for k, storage in enumerate(outputs):
            written = self.writers.setdefault(storage, [])
            written.append([len(self.nodes), k, 0])
        self.nodes.append(node)
        self.tensors += outputs
        self.rows.append(self.rows[-1] + len(outputs))

    def call(self, step: Step) -> None:
        inputs = [entry for view in step.inputs for entry in self.writers.get(view.storage, [])]
        outputs = [view.storage for view in step.outputs]
        attrs = {
            "func_name": step.kernel.name,
            "num_inputs": str(len(inputs)),
            "num_outputs": str(len(outputs)),
            "flatten_data": "0",
        }
        self.add({"op": "tvm_op", "name": step.kernel.name, "attrs": attrs, "inputs": inputs}, outputs)


def graph_json(program: Program) -> str:
    """The graph of a program as JSON text."""
    graph = _Graph()
    names = {**{s: s.name for s in program.inputs}, **constant_names(program)}
    for storage, name in names.items():
        graph.add({"op": "null", "name": name, "inputs": []}, [storage])
    for step in program.steps:
        graph.call(step)
    ids: dict[object, int] = {}
    places = [program.plan.offsets.get(s, s) for s in graph.tensors]
    attrs = {
        "shape": ["list_shape", [list(s.shape) for s in graph.tensors]],
        "dltype": ["list_str", [str(s.dtype) for s in graph.tensors]],
        "storage_id": ["list_int", [ids.setdefault(place, len(ids)) for place in places]],
    }
    result = {
        "nodes": graph.nodes,
        "arg_nodes": list(range(len(names))),
        "heads": [entry for s in program.outputs for entry in graph.writers.get(s, [])],
        "attrs": attrs,
        "node_row_ptr": graph.rows,
    }
    return json.dumps(result)
