# SPDX-License-Identifier: Apache-2.0
"""What the front ends share knows no format: neither its package, nor its error codes."""

from __future__ import annotations

import subprocess
import sys

import pytest
from evaluation import model_of
from onnx import helper

from aotc.ir.diagnostics import AotcError
from aotc.ir.types import TensorType
from aotc.relay.expr import Var
from aotc.relay.frontend import graph as g
from aotc.relay.frontend.onnx import from_onnx


@pytest.mark.parametrize(
    ("front_end", "other"), [(".graph", "onnx"), (".onnx", "torch"), pytest.param(".pytorch", "onnx", id="pytorch")]
)
def test_one_format_does_not_load_the_package_of_another(front_end: str, other: str) -> None:
    if front_end == ".pytorch":
        pytest.importorskip("torch")
    code = f"import sys, aotc.relay.frontend{front_end}; sys.exit({other!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_problems_get_the_name_of_the_front_end_that_is_entered() -> None:
    x = Var("x", TensorType((2, 3), "float32"))
    with pytest.raises(AotcError) as neutral:
        g.axis(2, g.rank(x))
    assert neutral.value.code == "graph-axis"
    with pytest.raises(AotcError) as named, g.codes_of("onnx"):
        g.reshape(x, (4,))
    assert named.value.code == "onnx-reshape"
    with pytest.raises(AotcError) as kept, g.codes_of("onnx"):
        g.check_unrolled(1 << 20, "a loop")
    assert kept.value.code == "budget"


def test_codes_of_the_vocabulary_in_onnx() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "x"], ["m"]),
        helper.make_node("Einsum", ["x"], ["e"], equation="abc->a"),
        helper.make_node("Softmax", ["x"], ["s"], axis=2),
        helper.make_node("Flatten", ["n"], ["f"]),
    ]
    with pytest.raises(AotcError) as caught:
        from_onnx(model_of(nodes, {"x": (2, 3), "n": ("k", 3)}, ["m", "e", "s", "f"]))
    assert [d.code for d in caught.value.diagnostics] == ["onnx-matmul", "onnx-einsum", "onnx-axis", "onnx-dynamic"]
    assert "pin the dynamic dimensions" in caught.value.diagnostics[-1].hint
