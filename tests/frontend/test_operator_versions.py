# SPDX-License-Identifier: Apache-2.0
"""ONNX operator versions: if the newest is supported, so is every older one that ONNX Runtime runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnxruntime.capi import _pybind_state

from aotc.ir import AotcError
from aotc.relay.frontend.onnx import from_onnx
from aotc.relay.frontend.onnx.converter_table import converter_of
from tests.frontend.evaluation import model_of, ort_run, run_model

OPSETS = range(7, onnx.defs.onnx_opset_version() + 1)


def has_body(schema: Any) -> bool:
    return bool(schema.has_function or schema.has_context_dependent_function)


def run_by_ort() -> Iterator[tuple[str, int]]:
    """Operators in the versions for which ONNX Runtime has a kernel, or their definition a body."""
    ranges: dict[str, list[tuple[int, int]]] = {}
    for kernel in _pybind_state.get_all_opkernel_def():
        if kernel.provider == "CPUExecutionProvider" and kernel.domain == "":
            ranges.setdefault(kernel.op_name, []).append(kernel.version_range)
    every = [s for s in onnx.defs.get_all_schemas_with_history() if s.domain == ""]
    newest = {s.name: max(o.since_version for o in every if o.name == s.name) for s in every}
    for schema in every:
        later = [o.since_version for o in every if o.name == schema.name and o.since_version > schema.since_version]
        last = min(later, default=newest[schema.name] + 1) - 1
        found = any(low <= last and schema.since_version <= high for low, high in ranges.get(schema.name, ()))
        if last >= OPSETS[0] and (has_body(schema) or (found and not schema.deprecated)):
            yield schema.name, schema.since_version


def test_no_version_that_onnx_runtime_runs_is_refused_for_its_version() -> None:
    """A node without inputs is refused for these, not for its operator, if a converter takes the operator."""
    tried = 0
    for name, version in run_by_ort():
        newest = onnx.defs.get_schema(name)
        if converter_of("", name) is None and not has_body(newest):
            continue
        tried += 1
        node = helper.make_node(name, [], ["y"])
        message = ""
        try:
            from_onnx(model_of([node], {}, ["y"], opset=max(version, OPSETS[0])))
        except AotcError as error:
            message = str(error)
        assert "was removed" not in message, (name, version)
        assert "of operator set" not in message, (name, version)
    assert tried > 300


@pytest.mark.parametrize("opset", [18, 19, 20])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_group_normalization_of_version_18(opset: int, groups: int) -> None:
    """Scale and bias have an element per group; ONNX deprecated the version, and models have it still."""
    rng = np.random.default_rng(groups)
    x = rng.standard_normal((2, 4, 3, 2)).astype(np.float32)
    given = {k: rng.random(groups).astype(np.float32) for k in ("scale", "bias")}
    node = helper.make_node("GroupNormalization", ["x", "scale", "bias"], ["y"], num_groups=groups)
    model = model_of([node], {"x": x.shape}, ["y"], constants=given, opset=opset)
    (want,), (got,) = ort_run(model, {"x": x}), run_model(from_onnx(model), {"x": x})
    np.testing.assert_allclose(got, want, 1e-5, 1e-5)


@pytest.mark.parametrize("lengths", [None, [4, 2]])
@pytest.mark.parametrize("backwards", [0, 1])
def test_scan_of_version_8(lengths: list[int] | None, backwards: int) -> None:
    """A scan for each element of a batch, which may be shorter than the others."""
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [3]) for n in ("state", "item", "sum", "each")]
    nodes = [helper.make_node("Add", ["state", "item"], ["sum"]), helper.make_node("Identity", ["sum"], ["each"])]
    body = helper.make_graph(nodes, "body", values[:2], values[2:])
    names = ["lengths" if lengths else "", "first", "x"]
    node = helper.make_node("Scan", names, ["last", "all"], body=body, num_scan_inputs=1, directions=[backwards])
    constants = {"lengths": np.asarray(lengths, np.int64)} if lengths else {}
    model = model_of([node], {"first": (2, 3), "x": (2, 4, 3)}, ["last", "all"], constants=constants, opset=8)
    for output in model.graph.output:
        output.type.tensor_type.elem_type = TensorProto.FLOAT
    rng = np.random.default_rng(0)
    data = {"first": rng.random((2, 3)).astype(np.float32), "x": rng.random((2, 4, 3)).astype(np.float32)}
    for want, got in zip(ort_run(model, data), run_model(from_onnx(model), data), strict=True):
        np.testing.assert_allclose(got, want, 1e-6)


@pytest.mark.parametrize(
    ("op", "shape", "constants", "attributes", "want"),
    [
        (
            "Upsample",
            (1, 1, 2, 2),
            {},
            {"height_scale": 2.0, "width_scale": 3.0},
            lambda x: x.repeat(2, 2).repeat(3, 3),
        ),
        ("Tile", (2, 3), {"n": np.array([3]), "axis": np.array([1])}, {}, lambda x: np.tile(x, (1, 3))),
    ],
)
def test_forms_of_version_1(op: str, shape: Any, constants: Any, attributes: Any, want: Any) -> None:
    node = helper.make_node(op, ["x", *constants], ["y"], **attributes)
    model = model_of([node], {"x": shape}, ["y"], constants=constants, opset=1)
    x = np.random.default_rng(0).random(shape).astype(np.float32)
    np.testing.assert_array_equal(run_model(from_onnx(model), {"x": x})[0], want(x))


def test_attributes_that_state_no_kind() -> None:
    """Files of 2017 state no kinds; a value of another kind is still an error."""
    node = helper.make_node("LeakyRelu", ["x"], ["y"], alpha=0.5)
    model = model_of([node], {"x": (3,)}, ["y"], opset=6)
    (alpha,) = model.graph.node[0].attribute
    alpha.ClearField("type")
    x = np.float32([-2, 0, 3])
    np.testing.assert_array_equal(run_model(from_onnx(model), {"x": x})[0], np.float32([-1, 0, 3]))
    assert not alpha.type
    alpha.ClearField("f")
    alpha.i = 1
    with pytest.raises(AotcError, match="attribute 'alpha' of LeakyRelu must be of kind FLOAT"):
        from_onnx(model)


def test_batch_normalization_of_early_versions() -> None:
    """With five outputs it is in training mode; with `spatial` = 0 each element has statistics of its own."""
    rng = np.random.default_rng(0)
    x, (s, b, m, v) = rng.random((2, 3, 4)).astype(np.float32), rng.random((4, 3, 4)).astype(np.float32)
    names = ["x", "s", "b", "m", "v"]
    node = helper.make_node("BatchNormalization", names, ["y"], spatial=0, consumed_inputs=[0] * 5, is_test=1)
    model = model_of([node], {"x": x.shape}, ["y"], constants={"s": s, "b": b, "m": m, "v": v}, opset=1)
    (y,) = run_model(from_onnx(model), {"x": x})
    np.testing.assert_allclose(y, (x - m) / np.sqrt(v + 1e-5) * s + b, 1e-5)
    outputs = ["y", "mean", "variance", "saved_mean", "saved_variance"]
    node = helper.make_node("BatchNormalization", names, outputs, momentum=0.75)
    given = dict(zip("sbmv", (value[:, 0] for value in (s, b, m, v)), strict=True))
    model = model_of([node], {"x": x.shape}, outputs, constants=given, opset=7)
    y, mean, _, saved_mean, saved_variance = run_model(from_onnx(model), {"x": x})
    np.testing.assert_allclose(saved_mean, x.mean((0, 2)), 1e-5)
    np.testing.assert_allclose(saved_variance, x.var((0, 2)), 1e-5)
    np.testing.assert_allclose(mean, 0.75 * given["m"] + 0.25 * x.mean((0, 2)), 1e-5)
    np.testing.assert_allclose(y.mean((0, 2)), given["b"], 1e-4, 1e-5)
