# SPDX-License-Identifier: Apache-2.0
"""Models whose dimensions have ranges: types, evaluation at sizes within them, and refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import aotc
from aotc.ir.diagnostics import AotcError
from aotc.ir.dimension_ranges import dim_size_or_range
from aotc.relay.frontend.onnx import from_onnx
from aotc.relay.frontend.onnx.model_inputs import options_to_fix_dims, resolve_model_input_types
from aotc.relay.interpreter import evaluate
from aotc.relay.text.parser import parse
from aotc.relay.text.printer import astext
from aotc.relay.vm import compile as compile_vm
from aotc.runtime.vm import VirtualMachine


def model() -> onnx.ModelProto:
    """Relu of two inputs joined along an axis of size seq and 2 * seq."""
    shapes = {"x": ["batch", "seq"], "y": ["batch", "2*seq"]}
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()]
    nodes = [helper.make_node("Concat", ["x", "y"], ["z"], axis=1), helper.make_node("Relu", ["z"], ["out"])]
    out = helper.make_tensor_value_info("out", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "net", inputs, [out])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def feeds(batch: int, seq: int, other: int | None = None) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    sizes = (seq, 2 * seq if other is None else other)
    return [rng.standard_normal((batch, size)).astype(np.float32) for size in sizes]


DIMS: dict[str, Any] = {"batch": (1, 4), "seq": "2..8:2~4"}


def test_types_have_bounds() -> None:
    module = from_onnx(model(), dims=DIMS)
    x, y = (p.checked_type for p in module.main.params)
    assert str(x) == "Tensor[(1<=batch<=4, 2<=2*'seq/2'<=8), float32]"
    assert y is not None and (y.shape[1].lower, y.shape[1].upper) == (4, 16)
    assert str(parse(astext(module)).main.params[0].checked_type) == str(x)
    assert [d.upper for d in module.main.body.checked_type.shape] == [4, 24]


@pytest.mark.parametrize(("batch", "seq"), [(1, 2), (4, 8), (3, 4)])
def test_interpreter_and_vm_take_sizes_within_ranges(batch: int, seq: int) -> None:
    module = from_onnx(model(), dims=DIMS)
    inputs = feeds(batch, seq)
    want = np.maximum(np.concatenate(inputs, 1), 0)
    np.testing.assert_array_equal(evaluate(module, *inputs), want)


@pytest.mark.parametrize(
    "inputs", [feeds(5, 2), feeds(0, 2), feeds(1, 3), feeds(1, 10), feeds(1, 0), feeds(1, 4, 7)], ids=repr
)
def test_interpreter_refuses_other_sizes(inputs: list[np.ndarray[Any, Any]]) -> None:
    with pytest.raises(AotcError, match="must be Tensor"):
        evaluate(from_onnx(model(), dims=DIMS), *inputs)


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        ({"batch": (4, 1)}, "dimension 'batch': 4..1 does not go from"),
        ({"2*seq": (1, 4)}, "is a formula, which has no range of its own"),
        ({"sequence": (1, 4)}, "no input has a dimension called"),
        ({"seq": "1..x"}, "neither a size nor a range"),
    ],
)
def test_bad_ranges(dims: dict[str, Any], message: str) -> None:
    with pytest.raises(AotcError, match=message):
        from_onnx(model(), dims=dims)


def test_options_to_fix_ranges() -> None:
    """The options name dimensions as the caller does, and sizes within their ranges."""
    options = options_to_fix_dims(resolve_model_input_types(model(), {}, {"batch": "0..4", "seq": "4..8:2"}))
    assert [str(option).partition(" (")[0] for option in options] == ['dims={"batch": 1}', 'dims={"seq": 4}']


def test_ranges_contradicting_a_shape() -> None:
    with pytest.raises(AotcError, match=r"dimension 'batch' is 9, which is not in its range 1\.\.4"):
        from_onnx(model(), shape={"x": (9, 2)}, dims={"batch": (1, 4)})


def test_compile_names_all_open_dimensions_once() -> None:
    with pytest.raises(AotcError) as caught:
        aotc.compile(model(), build=False)
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "dynamic-shape" and 'dims={"batch": 1, "seq": 1}' in diagnostic.hint


def test_compile_keeps_ranges(tmp_path: Path) -> None:
    metadata = aotc.compile(model(), output=tmp_path / "out", build=False, dims=DIMS, target="c").metadata
    assert {name: dim_size_or_range(text) for name, text in metadata["dims"].items()} == {
        name: dim_size_or_range(given) for name, given in DIMS.items()
    }


def test_range_of_one_size_is_a_size() -> None:
    module = from_onnx(model(), dims={"batch": (2, 2), "seq": "4..4"})
    assert all(p.checked_type.is_static for p in module.main.params)


def test_vm_checks_ranges() -> None:
    machine = VirtualMachine(compile_vm(from_onnx(model(), dims=DIMS)))
    inputs = feeds(2, 4)
    np.testing.assert_array_equal(machine.run(*inputs).numpy(), np.maximum(np.concatenate(inputs, 1), 0))
    with pytest.raises(AotcError, match="must be Tensor"):
        machine.run(*feeds(1, 10))


SUMS = """
#[version = "0.0.5"]
def @main(%x: Tensor[(1<=n<=8, 3), float32], %y: Tensor[(1<=m<=8, 3), float32]) {
  add(nn.relu(%x), %y)
}
"""


def test_sizes_that_contradict_each_other_are_found_at_run_time() -> None:
    """Whether n equals m, or is 1, is not known before: the type rule decides for the sizes of each evaluation."""
    module = parse(SUMS)
    wide, narrow = np.ones((4, 3), np.float32), np.ones((1, 3), np.float32)
    for x, y in ((wide, wide), (wide, narrow), (narrow, wide)):
        np.testing.assert_array_equal(evaluate(module, x, y), x + y)
    with pytest.raises(AotcError) as caught:
        evaluate(module, wide, np.ones((3, 3), np.float32))
    assert "(4, 3)" in str(caught.value) and "(3, 3)" in str(caught.value)
