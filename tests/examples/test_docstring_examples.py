# SPDX-License-Identifier: Apache-2.0
"""Examples in the docstrings of public modules run.

An example imports the modules that it uses, except aotc, relay, numpy and onnx.  `names` lists the variables that
examples may use without defining them.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import aotc
from aotc import relay
from tests.arch.test_layers import FACADES
from tests.conftest import require_tool, skip_or_fail_without

#: Public modules with examples that are not in FACADES.
MORE = ("aotc.relay.op", "aotc.relay.frontend.onnx", "aotc.relay.frontend.pytorch", "aotc.relay.frontend.tflite")
#: The optional package that the examples of a module need.
NEEDED = {"aotc.relay.frontend.pytorch": "torch", "aotc.relay.frontend.tflite": "ai_edge_litert"}


def document_of(name: str) -> str:
    """Return the docstring of a module without importing the module, as packages that it needs may be missing."""
    spec = importlib.util.find_spec(name)
    assert spec is not None and spec.origin is not None
    return ast.get_docstring(ast.parse(Path(spec.origin).read_text(encoding="utf-8")), clean=False) or ""


def examples(document: str) -> Iterator[str]:
    """Yield the paragraphs of a docstring that are Python programs; the first paragraph is never one."""
    for paragraph in re.split(r"\n\s*\n", document)[1:]:
        source = textwrap.dedent(paragraph).strip("\n")
        try:
            tree = ast.parse(source)
        except SyntaxError:
            continue
        # a paragraph of one word is valid Python, too
        if not all(isinstance(s, ast.Expr) and isinstance(s.value, ast.Name) for s in tree.body):
            yield source


EXAMPLES = [
    pytest.param(name, source, id=f"{name}-{number}")
    for name in sorted({*FACADES, *MORE})
    for number, source in enumerate(examples(document_of(name)))
]


def network() -> onnx.ModelProto:
    """A ReLU with a dynamic dimension."""
    node = helper.make_node("Relu", ["input"], ["output"])
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", 3]) for n in ("input", "output"))
    graph = helper.make_graph([node], "net", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def fixed_network() -> onnx.ModelProto:
    model = network()
    for tensor in (model.graph.input[0], model.graph.output[0]):
        tensor.type.tensor_type.shape.dim[0].dim_value = 1
    return model


def names() -> dict[str, Any]:
    """Return the variables that examples use without defining them."""
    x, image, kernel = (relay.var(n, shape=s) for n, s in (("x", (1, 3)), ("data", (1, 3, 8, 8)), ("w", (4, 3, 3, 3))))
    expr = relay.nn.relu(relay.nn.conv2d(image, kernel))
    return {
        "__name__": __name__, "aotc": aotc, "relay": relay, "np": np, "onnx": onnx,
        "array": np.ones((1, 3), np.float32), "model": fixed_network(), "x": x, "y": relay.var("y", shape=(1, 3)),
        "expr": expr, "mod": aotc.IRModule.from_expr(expr), "data": image,
    }  # fmt: skip


def models_of_optional_packages(module: str, folder: Path) -> dict[str, Any]:
    """Return the variables that the examples of a front end use: a network of torch with its input.  For TFLite, write
    the file net.tflite that they read."""
    if module == "aotc.relay.frontend.pytorch":
        import torch

        return {"net": torch.nn.Linear(3, 3), "x": torch.ones(1, 3)}
    from tests.frontend_tflite.model_builder import Builder

    builder = Builder()
    x, y = builder.tensor((1, 3)), builder.tensor((1, 3))
    builder.op("RELU", [x], [y])
    builder.saved([x], [y], str(folder / "net.tflite"))
    return {}


@pytest.mark.parametrize(("module", "source"), EXAMPLES)
def test_docstring_examples_run(module: str, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_tool("cc")
    monkeypatch.chdir(tmp_path)
    onnx.save(fixed_network(), tmp_path / "model.onnx")
    onnx.save(network(), tmp_path / "net.onnx")
    given = names()
    if module in NEEDED:
        if importlib.util.find_spec(NEEDED[module]) is None:
            skip_or_fail_without(NEEDED[module])
        given |= models_of_optional_packages(module, tmp_path)
    if module == "aotc.relay.vm":
        given["mod"] = aotc.IRModule.from_expr(relay.Function([given["x"]], relay.exp(given["x"])))
        given["x"] = given["array"]
    exec(compile(source, f"<docstring of {module}>", "exec"), given)


def test_there_are_examples() -> None:
    found = {case.values[0] for case in EXAMPLES}
    assert {"aotc", "aotc.relay", "aotc.relay.op", "aotc.relay.dataflow_pattern", "aotc.te"} <= found
