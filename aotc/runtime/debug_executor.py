# SPDX-License-Identifier: Apache-2.0
"""Relay's debug executor: run a model node by node, read every intermediate tensor, and time each
node.

module = GraphModuleDebug(library["debug_create"]("default", aotc.cpu()), [aotc.cpu()], library.get_graph_json())
module.run(data=array)                               # prints a table of times
module.debug_get_output("k3_conv2d").numpy()
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from aotc.ir import (
    AotcError,
    AotcTypeError,
    Device,
    NDArray,
    did_you_mean_hint,
    frozen,
    require_usable_device,
    translate_os_errors,
)
from aotc.ir.file_checksum_manifest import write_file_and_record_in_manifest
from aotc.runtime.graph_executor import BenchmarkResult, GraphModule, benchmark_function, require_positive_counts
from aotc.runtime.kernel_by_kernel_execution import GraphBinding, GraphMachine
from aotc.runtime.params import save_param_dict

#: Name of the manifest of the files that dumps wrote to a folder.
_DUMP_MANIFEST_NAME: Final = "aotc-dump.json"
_PROFILE_COLUMN_TITLES: Final = (
    "Node Name",
    "Ops",
    "Time(us)",
    "Time(%)",
    "Shape",
    "Inputs",
    "Outputs",
    "Measurements(us)",
)


@frozen
class ProfileRow:
    """Profile of one kernel call: node name, kernel name, output shape, numbers of inputs and
    outputs, times.
    """

    name: str
    kernel: str
    shape: tuple[int, ...]
    num_inputs: int
    num_outputs: int
    times: BenchmarkResult


@frozen
class Profile:
    """Times of all kernel calls, in the order of execution; as text a table with the slowest first."""

    rows: tuple[ProfileRow, ...]

    @property
    def total_mean_seconds(self) -> float:
        """Sum of the mean times of all kernel calls of the model, in seconds."""
        return float(sum(row.times.mean for row in self.rows))

    def __str__(self) -> str:
        lines = [_PROFILE_COLUMN_TITLES, tuple("-" * len(head) for head in _PROFILE_COLUMN_TITLES)]
        for row in sorted(self.rows, key=lambda r: -r.times.mean):
            share = 100 * row.times.mean / self.total_mean_seconds if self.total_mean_seconds else 0.0
            times = ", ".join(f"{1e6 * s:.3f}" for s in row.times.results)
            numbers = (f"{1e6 * row.times.mean:.3f}", f"{share:.3f}", str(row.shape), row.num_inputs, row.num_outputs)
            lines.append((row.name, row.kernel, *map(str, numbers), f"[{times}]"))
        lines.append(("Total_time", "-", f"{1e6 * self.total_mean_seconds:.3f}", *"-" * 5))
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


class GraphModuleDebug(GraphModule):
    """A `GraphModule` that runs, times and inspects its nodes one by one.

    module           executor created by "debug_create"
    device           the device to run on, or a list with it
    graph_json_str   graph of the library (`get_graph_json`)
    dump_root        folder to which each run writes the graph, the times and all intermediates

    A node is identified by its name or its position in the graph.  Raises AotcError for another
    kind of executor, for the graph of another model, and for a device that does not exist.
    """

    def __init__(
        self,
        module: GraphMachine,
        device: Device | Sequence[Device],
        graph_json_str: str,
        dump_root: str | Path | None = None,
    ) -> None:
        if not isinstance(module, GraphMachine):
            text = f"a {type(module).__name__} does not keep intermediates"
            raise AotcTypeError("executor", text, hint='lib["debug_create"]("default", device) makes one that does')
        for each_device in device if isinstance(device, (list, tuple)) else (device,):
            require_usable_device(each_device)
        super().__init__(module)
        assert isinstance(self._binding, GraphBinding)
        self._memory = self._binding
        self._nodes = module.nodes
        self._names = [node.name for node in self._nodes]
        self._graph_json = graph_json_str
        self._dump_root = dump_root
        self._profile = Profile(())
        if _node_names_in_graph_json(graph_json_str) != self._names:
            raise AotcError(
                "graph", "the graph is not that of the executor", hint="pass the result of get_graph_json()"
            )

    @property
    def nodes(self) -> tuple[str, ...]:
        """The names of all nodes of the model's graph (inputs, constants and calls), in order."""
        return tuple(self._names)

    def origins(self, node: int | str) -> tuple[str, ...]:
        """Return the model nodes, or positions in the model's text, from which a call was compiled."""
        span = self._nodes[self._require_node_index(node)].span
        return tuple(map(str, span.all_origins())) if span is not None else ()

    def run(self, number: int = 10, repeat: int = 1, min_repeat_ms: float = 1, **inputs: Any) -> None:
        """Set the given inputs, run all nodes one by one, and print their times.

        number, repeat, min_repeat_ms   as for `run_individual`.  Inputs with these names must be
        set with `set_input`
        """
        self.profile(number, repeat, min_repeat_ms, **inputs)
        self.display_debug_result()
        if self._dump_root is not None:
            self._write_dump_files(Path(self._dump_root))

    def profile(self, number: int = 1, repeat: int = 1, min_repeat_ms: float = 0, **inputs: Any) -> Profile:
        """Set the given inputs, run the model's nodes one by one, and return their times."""
        self.set_input(**inputs)
        times = self.run_individual(number, repeat, min_repeat_ms)
        self._profile = Profile(tuple(self._profile_row(k, t) for k, t in enumerate(times) if self._nodes[k].kernel))
        return self._profile

    def _profile_row(self, node_index: int, seconds: Sequence[float]) -> ProfileRow:
        node = self._nodes[node_index]
        outputs = self._memory.node_outputs(node_index)
        kernel = node.kernel.partition(":")[2]
        times = BenchmarkResult(tuple(seconds))
        return ProfileRow(node.name, kernel, outputs[0].shape, len(node.inputs), len(outputs), times)

    def display_debug_result(self) -> None:
        """Print a table with the times of all nodes in the last run."""
        print(self._profile)

    def run_individual(self, number: int, repeat: int = 1, min_repeat_ms: float = 0) -> list[list[float]]:
        """Time every node, in order; return `repeat` times per node in seconds per call, 0 for
        inputs and constants.

        number          calls averaged for one time, increased until they take `min_repeat_ms` milliseconds

        Raises AotcError if an input was never set, and for counts below 1.
        """
        require_positive_counts(repeat, number)
        super().run()
        nodes = range(len(self._nodes))
        return [[*self.run_individual_node(k, number, repeat, min_repeat_ms).results] for k in nodes]

    def run_individual_node(
        self, index: int | str, number: int = 10, repeat: int = 1, min_repeat_ms: float = 0
    ) -> BenchmarkResult:
        """Time one node of the model on the current values of its inputs."""
        node = self._require_node_index(index)
        if not self._nodes[node].kernel:
            return BenchmarkResult((0.0,) * repeat)
        return benchmark_function(lambda: self._memory.run_node(node), repeat, number, min_repeat_ms)

    def execute_node(self, index: int | str) -> None:
        """Run one node of the model on the current values of its inputs."""
        self._memory.run_node(self._require_node_index(index))

    def debug_get_output(self, node: int | str, out: NDArray | None = None, output: int = 0) -> NDArray:
        """Return result number `output` of a node from its last run, as a new tensor or copied into
        `out`.
        """
        results = self._memory.node_outputs(self._require_node_index(node))
        if not 0 <= output < len(results):
            raise AotcError(
                "node-output", f"node {node!r} has {len(results)} outputs, so output {output} does not exist"
            )
        return NDArray(results[output]) if out is None else out.copyfrom(results[output])

    def get_node_output(self, index: int | str, out_index: int = 0) -> NDArray:
        """Return output number `out_index` of a model node, as computed by the last run."""
        return self.debug_get_output(index, None, out_index)

    def _require_node_index(self, node: int | str) -> int:
        if isinstance(node, str) and node in self._names:
            return self._names.index(node)
        if isinstance(node, int) and 0 <= node < len(self._names):
            return node
        hint = did_you_mean_hint(node, self._names) if isinstance(node, str) else f"there are {len(self._names)}"
        raise AotcError("node", f"the graph has no node {node!r}", hint=hint)

    def _write_dump_files(self, folder: Path) -> None:
        """Write the graph, the times and all intermediates to a folder, in files named as in TVM's
        dumps.
        """
        outputs = {name: self._memory.node_outputs(n) for n, name in enumerate(self._names)}
        named = {f"{name}____{k}": a for name, arrays in outputs.items() for k, a in enumerate(arrays)}
        with translate_os_errors("dump", f"write to {folder}"):
            folder.mkdir(parents=True, exist_ok=True)
        files = {
            "_aotcdbg_graph_dump.json": self._graph_json.encode(),
            "times.txt": f"{self._profile}\n".encode(),
            "output_tensors.params": bytes(save_param_dict(named)),
        }
        for name, data in files.items():
            write_file_and_record_in_manifest(folder, _DUMP_MANIFEST_NAME, name, data, "dump")


def _node_names_in_graph_json(graph_json: str) -> list[str]:
    """Return the names of the nodes in the JSON of a graph; [] if it is not a graph."""
    try:
        return [node["name"] for node in json.loads(graph_json)["nodes"]]
    except (TypeError, ValueError, LookupError):
        return []


def create(graph_json_str: str, libmod: Any, device: Device, dump_root: str | Path | None = None) -> GraphModuleDebug:
    """Return the debug executor of a model; `libmod` is the result of `relay.build`, or the library
    in it.

    Raises AotcError for a library loaded from a file, and as `GraphModuleDebug` does.
    """
    name = getattr(libmod, "libmod_name", None) or getattr(libmod, "name", "default")
    return GraphModuleDebug(libmod["debug_create"](name, device), device, graph_json_str, dump_root)
