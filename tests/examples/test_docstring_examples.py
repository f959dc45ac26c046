# SPDX-License-Identifier: Apache-2.0
"""Examples in the docstrings of public modules run: each imports what it uses, beside aotc and relay."""

from __future__ import annotations

import ast
import importlib.util
import re
import shutil
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
from tests.arch.test_floors import FACADES

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
#: Public modules that are no facades.
MORE = ("aotc.relay.op", "aotc.relay.frontend.onnx", "aotc.relay.frontend.pytorch", "aotc.relay.frontend.tflite")
#: Packages without which examples cannot run.
NEEDED = {"aotc.relay.frontend.pytorch": "torch", "aotc.relay.frontend.tflite": "ai_edge_litert"}


def document_of(name: str) -> str:
    """The docstring of a module, which is read without importing it, as its packages may be missing."""
    spec = importlib.util.find_spec(name)
    assert spec is not None and spec.origin is not None
    return ast.get_docstring(ast.parse(Path(spec.origin).read_text(encoding="utf-8")), clean=False) or ""


def examples(document: str) -> Iterator[str]:
    """The paragraphs after the first that are programs."""
    for paragraph in re.split(r"\n\s*\n", document)[1:]:
        source = textwrap.dedent(paragraph).strip("\n")
        try:
            tree = ast.parse(source)
        except SyntaxError:
            continue
        # a word alone parses, too
        if not all(isinstance(s, ast.Expr) and isinstance(s.value, ast.Name) for s in tree.body):
            yield source


EXAMPLES = [
    pytest.param(name, source, id=f"{name}-{number}")
    for name in sorted({*FACADES, *MORE})
    for number, source in enumerate(examples(document_of(name)))
]


def network() -> onnx.ModelProto:
    node = helper.make_node("Relu", ["input"], ["output"])
    ends = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", 3]) for n in ("input", "output"))
    x, y = ends
    graph = helper.make_graph([node], "net", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def fixed_network() -> onnx.ModelProto:
    made = network()
    for end in (made.graph.input[0], made.graph.output[0]):
        end.type.tensor_type.shape.dim[0].dim_value = 1
    return made


def names() -> dict[str, Any]:
    """What examples take for given."""
    x, image, kernel = (relay.var(n, shape=s) for n, s in (("x", (1, 3)), ("data", (1, 3, 8, 8)), ("w", (4, 3, 3, 3))))
    expr = relay.nn.relu(relay.nn.conv2d(image, kernel))
    return {
        "__name__": __name__, "aotc": aotc, "relay": relay, "np": np, "onnx": onnx,
        "array": np.ones((1, 3), np.float32), "model": fixed_network(), "x": x, "y": relay.var("y", shape=(1, 3)),
        "expr": expr, "mod": aotc.IRModule.from_expr(expr), "data": image,
    }  # fmt: skip


def stand_ins_of_packages(module: str, folder: Path) -> dict[str, Any]:
    """A network of torch with its input, or a TFLite file."""
    if module == "aotc.relay.frontend.pytorch":
        import torch

        return {"net": torch.nn.Linear(3, 3), "x": torch.ones(1, 3)}
    from tests.frontend_tflite.build import Builder

    made = Builder()
    x, y = made.tensor((1, 3)), made.tensor((1, 3))
    made.op("RELU", [x], [y])
    made.saved([x], [y], str(folder / "net.tflite"))
    return {}


@pytest.mark.parametrize(("module", "source"), EXAMPLES)
def test_docstring_examples_run(module: str, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(fixed_network(), tmp_path / "model.onnx")
    onnx.save(network(), tmp_path / "net.onnx")
    given = names()
    if module in NEEDED:
        pytest.importorskip(NEEDED[module])
        given |= stand_ins_of_packages(module, tmp_path)
    if module == "aotc.relay.vm":
        given["mod"] = aotc.IRModule.from_expr(relay.Function([given["x"]], relay.exp(given["x"])))
        given["x"] = given["array"]
    exec(compile(source, f"<docstring of {module}>", "exec"), given)


def test_there_are_examples() -> None:
    found = {case.values[0] for case in EXAMPLES}
    assert {"aotc", "aotc.relay", "aotc.relay.op", "aotc.relay.dataflow_pattern", "aotc.te"} <= found
