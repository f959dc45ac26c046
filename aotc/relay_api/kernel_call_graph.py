# SPDX-License-Identifier: Apache-2.0
"""The static schedule of a program as a graph of kernel calls: in the JSON format of TVM's graph
executor, and in executable form.

json.loads(tvm_graph_json(program))["nodes"][-1]["attrs"]["func_name"]
compile_graph_interpreter(work).bind(inputs).run()   # call by call, every tensor with memory of its own

Nodes are external tensors ("null": inputs under their names, constants as p0, p1, ...) and kernel
calls ("tvm_op"), whose inputs are [node, output, version]. An input whose parts several calls wrote
lists all of these calls. Equal storage ids mean equal memory: an external tensor, or an offset of
the arena.
"""

import json
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from aotc.driver.pipeline import Compilation
from aotc.ir import AotcError
from aotc.relay.module import unused_name
from aotc.runtime.kernel_by_kernel_execution import GraphMachine, GraphNode
from aotc.runtime.tensor_info import TensorInfo
from aotc.tir.plan.program import Program
from aotc.tir.plan.program_nodes import Step
from aotc.tir.plan.storage import Storage, View


def constant_names_in_graph(program: Program) -> dict[Storage, str]:
    """Return the constants of a program in order of first use, and their names in the graph."""
    return {storage: f"p{k}" for k, storage in enumerate(program.constants)}


def input_and_constant_names_in_graph(program: Program) -> dict[Storage, str]:
    """Return the external tensors of the graph, inputs and constants, and their names."""
    return {**{s: s.name for s in program.inputs}, **constant_names_in_graph(program)}


def kernel_call_names_in_graph(program: Program) -> list[str]:
    """Return the names of the kernel calls in the graph, in order: the names of the kernels, with a
    number appended from the second call of a kernel on.
    """
    used_names = {*input_and_constant_names_in_graph(program).values()}
    names: list[str] = []
    for step in program.steps:
        names.append(unused_name(step.kernel.name, used_names))
        used_names.add(names[-1])
    return names


def _reject_control_flow(program: Program) -> None:
    """Raise AotcError (code "control-flow") if values at run time decide which kernels are called."""
    for node in program.body:
        if not isinstance(node, Step):
            text = "values at run time decide which kernels are called, which a graph of all calls cannot express"
            raise AotcError("control-flow", text, span=node.span, hint="the compiled library runs this model")


def compile_graph_interpreter(compilation: Compilation) -> GraphMachine:
    """Compile the kernels of a module and return them with the graph of their calls, whose nodes
    are those of `tvm_graph_json`.
    """
    program = compilation.lowered_programs[compilation.index_of_best_runnable_version]
    _reject_control_flow(program)
    kernels = {kernel: f"{k}:{kernel.name}" for k, kernel in enumerate(program.distinct_kernels)}
    given = input_and_constant_names_in_graph(program)
    nodes = [GraphNode(name, (View(s),), (s.shape,)) for s, name in given.items()]
    for name, step in zip(kernel_call_names_in_graph(program), program.steps, strict=True):
        nodes.append(GraphNode(name, step.outputs, step.output_shapes, kernels[step.kernel], step.inputs, step.span))
    between = [view.storage for step in program.steps for view in (*step.inputs, *step.outputs)]
    return GraphMachine(
        tensors={s: TensorInfo(s.name, list(s.shape), s.dtype) for s in (*given, *program.outputs, *between)},
        inputs=program.inputs,
        outputs=program.outputs,
        constants={s: np.ascontiguousarray(s.data) for s in given if s.data is not None},
        nodes=tuple(nodes),
        library=compilation.compile_kernels(
            {name: compilation.apply_kernel_passes(kernel) for kernel, name in kernels.items()}
        ),
    )


def tvm_graph_json(program: Program) -> str:
    """Return the graph of a program as JSON text in the format of TVM's graph executor."""
    _reject_control_flow(program)
    nodes: list[dict[str, Any]] = []
    tensors: list[Storage] = []
    rows = [0]
    writers: defaultdict[Storage, list[list[int]]] = defaultdict(list)

    def append_graph_node(node: dict[str, Any], outputs: Sequence[Storage]) -> None:
        # a storage whose parts several calls write has several writers
        for k, storage in enumerate(outputs):
            writers[storage].append([len(nodes), k, 0])
        nodes.append(node)
        tensors.extend(outputs)
        rows.append(len(tensors))

    names = input_and_constant_names_in_graph(program)
    for storage, name in names.items():
        append_graph_node({"op": "null", "name": name, "inputs": []}, [storage])
    for step, name in zip(program.steps, kernel_call_names_in_graph(program), strict=True):
        inputs = [entry for view in step.inputs for entry in writers[view.storage]]
        counts = {"num_inputs": str(len(inputs)), "num_outputs": str(len(step.outputs))}
        attrs = {"func_name": step.kernel.name, **counts, "flatten_data": "0"}
        node = {"op": "tvm_op", "name": name, "attrs": attrs, "inputs": inputs}
        append_graph_node(node, [view.storage for view in step.outputs])
    ids: dict[object, int] = {}
    places = [program.plan.offsets.get(s, s) for s in tensors]
    result = {
        "nodes": nodes,
        "arg_nodes": list(range(len(names))),
        "heads": [entry for s in program.outputs for entry in writers[s]],
        "attrs": {
            "shape": ["list_shape", [list(s.shape) for s in tensors]],
            "dltype": ["list_str", [str(s.dtype) for s in tensors]],
            "storage_id": ["list_int", [ids.setdefault(place, len(ids)) for place in places]],
        },
        "node_row_ptr": rows,
    }
    return json.dumps(result)
