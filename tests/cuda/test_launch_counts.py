# SPDX-License-Identifier: Apache-2.0
"""Numbers of kernel launches of networks, since a GPU is idle between launches."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, parser

from aotc.driver.compile import CompileOptions
from benchmarks.networks import NETWORK_BUILD_FUNCTIONS
from tests.tir.programs import run_program

SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("name", "most"), [("resnet18", 21), pytest.param("resnet50", 53, marks=SLOW), ("mobilenet_v2", 53), ("minilm", 31)]
)
def test_launches_of_a_network(name: str, most: int) -> None:
    options = CompileOptions(target="cuda")
    (program,) = options.start_compilation(
        options.import_as_graph_module(NETWORK_BUILD_FUNCTIONS[name]())
    ).scheduled_programs
    assert len(program.steps) <= most


NORMS = (
    "LayerNormalization(q, g, b)",
    "RMSNormalization(q, g)",
    "GroupNormalization<num_groups = 8>(q, g, b)",
    "InstanceNormalization(q, g, b)",
    "Softmax(q)",
    "LogSoftmax(q)",
)


def launches(body: str, shape: str, results: str = "y") -> int:
    """How many launches a network takes that computes results, of one shape, from x, r, g and b."""
    channels = shape.split(",")[1]
    declared = ", ".join(f"float[{shape}] {name}" for name in results.split())
    text = f"""<ir_version: 10, opset_import: ["" : 23]>
net (float[{shape}] x, float[{shape}] r, float[{channels}] g, float[{channels}] b) => ({declared}) {{ {body} }}
"""
    options = CompileOptions(target="cuda")
    (program,) = options.start_compilation(options.import_as_graph_module(parser.parse_model(text))).scheduled_programs
    return len(program.steps)


@pytest.mark.parametrize("norm", NORMS)
def test_norms_and_their_neighbors(norm: str) -> None:
    """What is before and behind, and the sum that others read, too."""
    assert launches(f"q = Add(x, r) n = {norm} s = Add(n, x) y = Relu(s)", "2, 64, 64") == 1
    assert launches(f"q = Add(x, r) n = {norm} s = Sigmoid(n) y = Mul(n, s)", "2, 64, 64", "y q") == 1


SILU = "n = GroupNormalization<num_groups = 32>(q, g, b) s = Sigmoid(n) y = Mul(n, s)"


@pytest.mark.parametrize(
    ("batch", "before", "expected"),
    [(1, "q = Identity(x)", 2), (1, "q = Add(x, r)", 3), (4, "q = Identity(x)", 1), (4, "q = Add(x, r)", 1)],
)
def test_few_long_rows_are_left_to_all_processors(batch: int, before: str, expected: int) -> None:
    """32 groups of 40,960 elements, a block each, would leave most processors idle; 128 groups do not."""
    assert launches(f"{before} {SILU}", f"{batch}, 320, 64, 64") == expected


def test_one_norm_of_a_sum() -> None:
    """A second one reads the sum from memory."""
    body = "q = Add(x, r) n = RMSNormalization(q, g) m = Softmax(q) y = Add(n, m)"
    assert launches(body, "2, 64, 64") == 2


@pytest.mark.parametrize(("fields", "sums"), [(300, 252), (600, 3)])
def test_no_launch_takes_more_arguments_than_it_can(fields: int, sums: int) -> None:
    """A wide concatenation, and a chain of sums behind it."""
    shapes = {f"x{k}": [1, 4] for k in range(fields)} | {f"a{k}": [1, 4 * fields] for k in range(sums)}
    nodes = [helper.make_node("Concat", [f"x{k}" for k in range(fields)], ["y0"], axis=1)]
    nodes += [helper.make_node("Add", [f"y{k}", f"a{k}"], [f"y{k + 1}"]) for k in range(sums)]
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    outputs = [helper.make_tensor_value_info(f"y{sums}", TensorProto.FLOAT, [1, 4 * fields])]
    options = CompileOptions(target="cuda")
    model = helper.make_model(helper.make_graph(nodes, "wide", inputs, outputs))
    (program,) = options.start_compilation(options.import_as_graph_module(model)).scheduled_programs
    assert max(len(kernel.params) for kernel in program.distinct_kernels) <= 512
    rng = np.random.default_rng(7)
    given = {name: rng.integers(-9, 9, shape).astype(np.float32) for name, shape in shapes.items()}
    (made,) = run_program(program, list(given.values()))
    whole = np.concatenate([given[f"x{k}"] for k in range(fields)], axis=1)
    np.testing.assert_array_equal(made, sum((given[f"a{k}"] for k in range(sums)), whole).ravel())
