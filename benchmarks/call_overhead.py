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
from benchmarks.networks import Network

CALLS = 200
Call = Callable[[], object]


def policy() -> onnx.ModelProto:
    """Build three dense layers: observation[1, 8] -> action[1, 4]."""
    n = Network()
    x = n.activate(n.linear("observation", 8, 64), "relu")
    x = n.activate(n.linear(x, 64, 64), "relu")
    n.op("Tanh", n.linear(x, 64, 4), name="action")
    return n.model("policy", {"observation": [1, 8]}, {"action": [1, 4]})


def states() -> onnx.ModelProto:
    """Build a network with eight inputs and eight outputs, as streaming networks with states have,
    and trivial work.
    """
    n = Network()
    shapes = {f"in{k}": [1, 16] for k in range(8)}, {f"out{k}": [1, 16] for k in range(8)}
    for k in range(8):
        n.op("Mul", f"in{k}", n.constant(0.5), name=f"out{k}")
    return n.model("states", *shapes)


def callers(model: onnx.ModelProto, folder: Path) -> dict[str, Call]:
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


def measure(calls: dict[str, Call], turns: int) -> dict[str, list[float]]:
    """Return the microseconds per call for each function, one value per series of calls."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(turns):
        for name, call in calls.items():
            start = time.perf_counter_ns()
            for _ in range(CALLS):
                call()
            found[name].append((time.perf_counter_ns() - start) / CALLS / 1e3)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=300)
    turns = parser.parse_args().turns
    print("| network | bind min | median | run min | median | run - bind | onnxruntime min | median |")
    print("|---|---|---|---|---|---|---|---|")
    for model in (policy(), states()):
        with tempfile.TemporaryDirectory() as folder:
            found = measure(callers(model, Path(folder)), turns)
        least = {name: min(times) for name, times in found.items()}
        columns = [f"{least[n]:.1f} | {statistics.median(t):.1f}" for n, t in found.items()]
        columns.insert(2, f"{least['run'] - least['bind']:.1f}")
        print(f"| {model.graph.name} | {' | '.join(columns)} |")


if __name__ == "__main__":
    main()
