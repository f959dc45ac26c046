# SPDX-License-Identifier: Apache-2.0
"""Runs the `aotc` command within the test process, and builds the models for its tests.

call("compile", path, "-o", folder).code
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from click.testing import CliRunner
from onnx import NodeProto, TensorProto, helper, numpy_helper

from aotc.cli.main import main

DIGITS = Path(__file__).parents[2] / "examples" / "digits" / "digits.onnx"


@dataclass(frozen=True)
class Outcome:
    """What one call did."""

    code: int
    out: str
    err: str


def call(*arguments: str | Path, env: dict[str, str] | None = None) -> Outcome:
    """Run `aotc` with arguments; an exception that escapes fails the test."""
    result = CliRunner().invoke(main, [str(a) for a in arguments], env=env)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert "Traceback" not in result.output
    return Outcome(result.exit_code, result.stdout, result.stderr)


def refused(*arguments: str | Path, env: dict[str, str] | None = None) -> str:
    """The complaint about what the user did: on the error stream, exit code 2, nothing on the output."""
    outcome = call(*arguments, env=env)
    assert outcome.code == 2, outcome
    assert outcome.out == "" and outcome.err.strip()
    return outcome.err


def value(name: str, shape: Sequence[int | str | None] | None = (2, 3), elem: int = TensorProto.FLOAT) -> object:
    return helper.make_tensor_value_info(name, elem, shape)


def save(
    path: Path, nodes: Sequence[NodeProto], inputs: Sequence[object], outputs: Sequence[object], **weights: object
) -> Path:
    """A model file."""
    tensors = [numpy_helper.from_array(np.asarray(w), name) for name, w in weights.items()]
    graph = helper.make_graph(list(nodes), "graph", list(inputs), list(outputs), tensors)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("my.ops", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


def relu(path: Path, *dims: int | str | None, name: str = "x") -> Path:
    """y = relu(x)."""
    shape = dims or (2, 3)
    return save(path, [helper.make_node("Relu", [name], ["y"], name="relu")], [value(name, shape)], [value("y", shape)])
