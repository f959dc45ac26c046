# SPDX-License-Identifier: Apache-2.0
"""Tensors without elements, as constants, inputs and results, are known at compile time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from evaluation import Array, model_of, run_model
from onnx import ModelProto, TensorProto, helper
from onnx.reference import ReferenceEvaluator

from aotc.ir.diagnostics import AotcError
from aotc.relay.frontend.onnx import from_onnx

REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
CASES: dict[str, tuple[str, tuple[int, ...], dict[str, str], dict[str, Any]]] = {
    # operator, shape of x, the operands (name by role; "none..." have no elements), attributes
    **{f"Reduce{r}": (f"Reduce{r}", (1, 2, 3), {"axes": "none"}, {}) for r in REDUCTIONS},
    **{f"Reduce{r} noop": (f"Reduce{r}", (2, 3), {"axes": "none"}, {"noop_with_empty_axes": 1}) for r in REDUCTIONS},
    "Reduce a number": ("ReduceSum", (), {"axes": "none"}, {}),
    "Squeeze": ("Squeeze", (1, 2), {"axes": "none"}, {}),
    "Unsqueeze": ("Unsqueeze", (1, 2), {"axes": "none"}, {}),
    "Slice": ("Slice", (2, 3), {"starts": "none", "ends": "none", "axes": "none", "steps": "none"}, {}),
    "Pad": ("Pad", (2, 3), {"pads": "none", "value": "", "axes": "none"}, {}),
    "Reshape": ("Reshape", (1, 1), {"shape": "none"}, {}),
    "Expand": ("Expand", (2, 3), {"shape": "none"}, {}),
    "Tile": ("Tile", (), {"repeats": "none"}, {}),
    "Resize": ("Resize", (1, 1, 2, 3), {"roi": "none.f", "scales": "none.f", "sizes": "sizes"}, {}),
}
SOURCES = ("constant", "input", "computed")
INTS = np.zeros(0, np.int64)


def build(
    op: str, shape: tuple[int, ...], roles: dict[str, str], attributes: dict[str, Any], source: str
) -> ModelProto:
    """One node whose operands without elements come from `source`."""
    known = {"none": INTS, "none.f": INTS.astype(np.float32), "sizes": np.array([1, 1, 4, 6], np.int64)}
    node = helper.make_node(op, ["x", *roles.values()], ["y"], **attributes)
    empty = sorted({r for r in roles.values() if r.startswith("none")})
    constants = {r: known[r] for r in roles.values() if r and (source == "constant" or not r.startswith("none"))}
    if source == "constant":
        return model_of([node], {"x": shape}, ["y"], constants=constants)
    kinds = {"none": TensorProto.INT64, "none.f": TensorProto.FLOAT}
    casts = [helper.make_node("Cast", [f"{r}.raw"], [r], to=kinds[r]) for r in empty]
    model = model_of([*(casts if source == "computed" else ()), node], {"x": shape}, ["y"], constants=constants)
    for r in empty:
        name, kind = (f"{r}.raw", TensorProto.INT32) if source == "computed" else (r, kinds[r])
        model.graph.input.append(helper.make_tensor_value_info(name, kind, [0]))
    return model


def values(model: ModelProto) -> dict[str, Array]:
    """A value of each input."""
    rng = np.random.default_rng(0)
    found = {}
    for entry in model.graph.input:
        tensor = entry.type.tensor_type
        dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        found[entry.name] = (rng.random([d.dim_value for d in tensor.shape.dim]) + 1).astype(dtype)
    return found


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("case", CASES)
def test_the_result_is_that_of_the_reference_evaluator(case: str, source: str) -> None:
    model = build(*CASES[case], source)
    inputs = values(model)
    (got,), (want,) = run_model(from_onnx(model), inputs), ReferenceEvaluator(model).run(None, inputs)
    assert got.shape == np.shape(want)
    np.testing.assert_allclose(got, want, rtol=1e-5)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(
    ("op", "operands"),
    [
        ("Slice", {"starts": "one", "ends": "one", "axes": "none"}),
        ("Slice", {"starts": "one", "ends": "one", "axes": "one", "steps": "none"}),
        ("Pad", {"pads": "one", "value": "", "axes": "none"}),
        ("Tile", {"repeats": "none"}),
        ("Split", {"split": "none"}),
        ("CumSum", {"axis": "none"}),
        ("TopK", {"k": "none"}),
        ("Resize", {"roi": "none.f", "scales": "none.f", "sizes": "none"}),
    ],
)
def test_operands_of_which_something_is_missing_are_refused(op: str, operands: dict[str, str], source: str) -> None:
    """ONNX asks for as many steps (axes, repeats, ...) as there are starts (pads, dimensions, ...)."""
    model = build(op, (2, 3), {role: name for role, name in operands.items() if name != "one"}, {}, source)
    node = model.graph.node[-1]
    del node.input[1:]
    node.input.extend(operands.values())
    model.graph.initializer.append(helper.make_tensor("one", TensorProto.INT64, [1], [1]))
    with pytest.raises(AotcError, match=r"do not|needs|reshaped|must be one (value|number)|two per axis|single value"):
        from_onnx(model)
