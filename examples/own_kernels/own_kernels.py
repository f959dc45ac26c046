# SPDX-License-Identifier: Apache-2.0
"""Routes the dense layers of a network to a kernel written by hand in C, and compares with the compiler's own.

    python examples/own_kernels/own_kernels.py [DIRECTORY]

In: nothing.  Out: two C projects in DIRECTORY (default build/own_kernels), and what they compute and how fast.
"""

from __future__ import annotations

import itertools
import sys
import time
from pathlib import Path

import numpy as np

import aotc
from aotc import relay
from aotc.contrib import external
from aotc.relay import transform
from aotc.relay.dataflow_pattern import is_constant, is_op, wildcard
from aotc.relay.op.contrib import get_pattern_table, register_pattern_table

KERNEL = (Path(__file__).parent / "kernel.c").read_text(encoding="utf-8")
SIZES = (64, 128, 128, 32)
RUNS = 200


def is_one_row(call: relay.Call) -> bool:
    return call.checked_type.static_shape[0] == 1 and call.checked_type.dtype == "float32"


@register_pattern_table("mine")
def patterns() -> list[tuple[str, object, object]]:
    """What the kernel computes: relu(bias_add(dense(x, weight), bias)) of one row."""
    dense = is_op("nn.dense")(wildcard(), is_constant())
    return [("mine.dense_relu", is_op("nn.relu")(is_op("nn.bias_add")(dense, is_constant())), is_one_row)]


def array(name: str, constant: relay.Constant) -> str:
    """A constant as C."""
    values = ", ".join(f"{float(v).hex()}f" for v in constant.data.reshape(-1))
    return f"static const float {name}[] = {{{values}}};"


@external.register("mine")
def generate(function: relay.Function, symbol: str) -> str:
    """The C code of one region: its layers in order, each a call of the kernel."""
    arrays, buffers, calls = [], [], []
    names = {function.params[0]: "in"}
    layers = [n for n in relay.analysis.post_order(function) if isinstance(n, relay.Call) and is_composite(n.op)]
    for k, call in enumerate(layers):
        weight, bias = (n for n in relay.analysis.post_order(call.op) if isinstance(n, relay.Constant))
        units, width = weight.data.shape
        arrays += [array(f"w{k}", weight), array(f"b{k}", bias)]
        names[call] = "out" if call is layers[-1] else f"h{k}"
        buffers += [] if call is layers[-1] else [f"  float h{k}[{units}];"]
        calls.append(f"  dense_relu({names[call.args[0]]}, w{k}, b{k}, {names[call]}, {units}, {width});")
    head = f"void {symbol}(const float *in, float *out) {{"
    return "\n".join([KERNEL, *arrays, head, *buffers, *calls, "}", ""])


def is_composite(callee: object) -> bool:
    return isinstance(callee, relay.Function) and callee.attrs.get("Composite") == "mine.dense_relu"


def network() -> aotc.IRModule:
    """Three dense layers and a softmax, with seeded weights."""
    rng = np.random.default_rng(0)
    x = body = relay.var("x", shape=(1, SIZES[0]))
    for width, units in itertools.pairwise(SIZES):
        weight = relay.const((rng.standard_normal((units, width)) / np.sqrt(width)).astype("float32"))
        bias = relay.const(rng.standard_normal(units).astype("float32"))
        body = relay.nn.relu(relay.nn.bias_add(relay.nn.dense(body, weight), bias))
    return aotc.IRModule.from_expr(relay.Function([x], relay.nn.softmax(body)))


def partitioned(module: aotc.IRModule) -> aotc.IRModule:
    """The module with the layers in functions of the compiler called "mine"."""
    passes = [
        transform.InferType(),
        transform.MergeComposite(get_pattern_table("mine")),
        transform.AnnotateTarget("mine"),
        transform.MergeCompilerRegions(),
        transform.PartitionGraph(),
    ]
    return aotc.transform.Sequential(passes)(module)


def main(directory: Path) -> None:
    """Compile both, compare, tell."""
    module = network()
    models = {
        "the compiler's kernels": aotc.compile(module, output=directory / "plain", name="plain"),
        "kernel.c": aotc.compile(partitioned(module), output=directory / "own", name="own"),
    }
    x = np.random.default_rng(1).standard_normal((1, SIZES[0])).astype("float32")
    results = []
    for title, model in models.items():
        binding = model.session().bind({"x": x})
        binding.run()
        times = []
        for _ in range(RUNS):
            start = time.perf_counter()
            binding.run()
            times.append(1e6 * (time.perf_counter() - start))
        results.append(next(iter(binding.outputs.values())).copy())
        steps = [step["kernel"] for step in model.metadata["steps"]]
        custom_calls = sum(step.startswith("tvmgen_") for step in steps)
        print(f"{title}: {len(steps)} calls, {custom_calls} of code written by hand, {min(times):.1f} us")
    print(f"largest difference: {np.abs(results[0] - results[1]).max():.1e}")
    np.testing.assert_allclose(results[1], results[0], rtol=1e-5, atol=1e-7)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("build/own_kernels"))
