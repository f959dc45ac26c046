# SPDX-License-Identifier: Apache-2.0
"""How many launches networks take: between one and the next, a GPU does nothing."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, parser

from aotc.driver.compile import CompileOptions
from benchmarks.networks import NETWORKS
from tests.tir.programs import run_program

SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("name", "most"), [("resnet18", 21), pytest.param("resnet50", 53, marks=SLOW), ("mobilenet_v2", 53), ("minilm", 31)]
)
def test_launches_of_a_network(name: str, most: int) -> None:
    options = CompileOptions(target="cuda")
    (program,) = options.compilation(options.imported(NETWORKS[name]())).programs
    assert len(program.steps) <= most


#: Normalisations, and how many launches they take with the elementwise operators behind them: statistics of groups of
#: channels are one of their own.
NORMS = {
    "LayerNormalization(x, g, b)": 1,
    "RMSNormalization(x, g)": 1,
    "GroupNormalization<num_groups = 8>(x, g, b)": 2,
    "InstanceNormalization(x, g, b)": 1,
    "Softmax(x)": 1,
}


@pytest.mark.parametrize(("norm", "launches"), NORMS.items())
def test_norms_and_what_follows(norm: str, launches: int) -> None:
    text = f"""<ir_version: 10, opset_import: ["" : 23]>
net (float[2, 64, 64] x, float[64] g, float[64] b, float[2, 64, 64] r) => (float[2, 64, 64] y) {{
  n = {norm}
  s = Add(n, r)
  y = Relu(s)
}}
"""
    options = CompileOptions(target="cuda")
    (program,) = options.compilation(options.imported(parser.parse_model(text))).programs
    assert len(program.steps) == launches


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
    (program,) = options.compilation(options.imported(model)).programs
    assert max(len(kernel.params) for kernel in program.kernels) <= 512
    rng = np.random.default_rng(7)
    given = {name: rng.integers(-9, 9, shape).astype(np.float32) for name, shape in shapes.items()}
    (made,) = run_program(program, list(given.values()))
    whole = np.concatenate([given[f"x{k}"] for k in range(fields)], axis=1)
    np.testing.assert_array_equal(made, sum((given[f"a{k}"] for k in range(sums)), whole).ravel())
