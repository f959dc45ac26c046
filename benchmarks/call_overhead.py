# SPDX-License-Identifier: Apache-2.0
"""Measure the overhead of calls from Python: bound runs, `Session.run`, and ONNX Runtime's `run`,
on tiny networks.

All variants run in one process on one thread, alternately in series of 200 calls. The table shows
microseconds per call, as minimum and median of the series.

    python -m benchmarks.call_overhead
    python -m benchmarks.call_overhead --turns 1000
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

from aotc.driver.compile import compile
from aotc.runtime.session import load
from benchmarks.networks import NetworkBuilder

CALLS_PER_SERIES = 200
RunFunction = Callable[[], object]


def build_policy_network() -> onnx.ModelProto:
    """Build three dense layers: observation[1, 8] -> action[1, 4]."""
    n = NetworkBuilder()
    x = n.append_activation(n.append_linear_layer("observation", 8, 64), "relu")
    x = n.append_activation(n.append_linear_layer(x, 64, 64), "relu")
    n.append_named_node("Tanh", n.append_linear_layer(x, 64, 4), name="action")
    return n.build_checked_model("policy", {"observation": [1, 8]}, {"action": [1, 4]})


def build_network_with_eight_states() -> onnx.ModelProto:
    """Build a network with eight inputs and eight outputs, as streaming networks with states have,
    and trivial work.
    """
    n = NetworkBuilder()
    shapes = {f"in{k}": [1, 16] for k in range(8)}, {f"out{k}": [1, 16] for k in range(8)}
    for k in range(8):
        n.append_named_node("Mul", f"in{k}", n.add_constant(0.5), name=f"out{k}")
    return n.build_checked_model("states", *shapes)


def compile_check_and_make_run_functions(model: onnx.ModelProto, folder: Path) -> dict[str, RunFunction]:
    """Compile a model, check its outputs against ONNX Runtime, and return functions that run it
    once, by their names.
    """
    path = folder / f"{model.graph.name}.onnx"
    onnx.save(model, path)
    session = load(compile(path, output=folder / model.graph.name).path)
    feeds = {i.name: np.ones(i.shape, i.dtype.numpy) for i in session.get_inputs()}
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    rival = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    for ours, theirs in zip(session.run(None, feeds), rival.run(None, feeds), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    return {
        "bind": session.bind(feeds).run,
        "run": lambda: session.run(None, feeds),
        "onnxruntime": lambda: rival.run(None, feeds),
    }


def microseconds_per_call_by_series(calls: dict[str, RunFunction], series_count: int) -> dict[str, list[float]]:
    """Return the microseconds per call for each function, one value per series of calls."""
    call_times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(series_count):
        for name, call in calls.items():
            start = time.perf_counter_ns()
            for _ in range(CALLS_PER_SERIES):
                call()
            call_times[name].append((time.perf_counter_ns() - start) / CALLS_PER_SERIES / 1e3)
    return call_times


def print_call_overhead_table() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=300)
    series_count = parser.parse_args().turns
    print("| network | bind min | median | run min | median | run - bind | onnxruntime min | median |")
    print("|---|---|---|---|---|---|---|---|")
    for model in (build_policy_network(), build_network_with_eight_states()):
        with tempfile.TemporaryDirectory() as folder:
            call_times = microseconds_per_call_by_series(
                compile_check_and_make_run_functions(model, Path(folder)), series_count
            )
        least = {name: min(times) for name, times in call_times.items()}
        columns = [f"{least[n]:.1f} | {statistics.median(t):.1f}" for n, t in call_times.items()]
        columns.insert(2, f"{least['run'] - least['bind']:.1f}")
        print(f"| {model.graph.name} | {' | '.join(columns)} |")


if __name__ == "__main__":
    print_call_overhead_table()
