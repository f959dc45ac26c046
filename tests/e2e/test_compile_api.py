# SPDX-License-Identifier: Apache-2.0
"""aotc.compile and aotc.load: every form of model, every level, raised errors, imported modules."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import aotc
from aotc.ir.instrument import PassTimingInstrument
from aotc.relay.testing import mlp
from aotc.tir.target import get_target
from tests.e2e.projects import DIGITS, affine, run

QUICK = ("-O1",)
IMAGE = np.random.default_rng(0).random((1, 1, 8, 8), np.float32)


def reference(model: onnx.ModelProto, feeds: dict[str, Any]) -> list[np.ndarray[Any, Any]]:
    return list(ReferenceEvaluator(model).run(None, feeds))


def check_relative(actual: np.ndarray[Any, Any], expected: np.ndarray[Any, Any], bound: float = 1e-5) -> None:
    """The largest error over the standard deviation of what is expected."""
    assert actual.shape == expected.shape and actual.dtype == expected.dtype
    assert np.abs(actual - expected).max() <= bound * expected.std()


@pytest.mark.parametrize("form", [str, Path, onnx.load])
def test_paths_and_protos(form: Any, tmp_path: Path) -> None:
    model = aotc.compile(form(str(DIGITS)), output=tmp_path / "out", cflags=QUICK)
    name = "model" if form is onnx.load else "digits"
    assert model.path == tmp_path / "out" and model.library == tmp_path / "out" / "lib" / f"lib{name}.so"
    assert model.metadata["name"] == name
    (scores,) = model.session().run(["scores"], {"image": IMAGE})
    check_relative(scores, reference(onnx.load(DIGITS), {"image": IMAGE})[0])
    (again,) = aotc.load(model.path).run(None, {"image": IMAGE})
    np.testing.assert_array_equal(again, scores)


def test_a_module_with_params() -> None:
    module, params = mlp.get_workload(batch_size=2, num_classes=10, image_shape=(1, 28, 28))
    model = aotc.compile(module, params=params, cflags=QUICK)
    session = model.session()
    assert [i.name for i in session.get_inputs()] == ["data"]
    data = np.random.default_rng(1).standard_normal((2, 1, 28, 28)).astype(np.float32)
    (found,) = session.run(None, {"data": data})
    x = data.reshape(2, -1)
    values = {k: np.asarray(v) for k, v in params.items()}
    for layer in ("fc1", "fc2", "fc3"):
        x = x @ values[f"{layer}_weight"].T + values[f"{layer}_bias"]
        x = np.maximum(x, 0) if layer != "fc3" else x
    expected = np.exp(x - x.max(1, keepdims=True))
    check_relative(found, (expected / expected.sum(1, keepdims=True)).astype(np.float32))


def test_params_bake_inputs_of_a_model_in() -> None:
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, [3]) for n in "xw"],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    w = np.array([1, 2, 3], np.float32)
    session = aotc.compile(model, params={"w": w}, cflags=QUICK).session()
    assert [i.name for i in session.get_inputs()] == ["x"]
    np.testing.assert_array_equal(session.run(None, {"x": w})[0], w + w)


def block(seed: int = 0) -> onnx.ModelProto:
    """A graph in which every pass has something to do: batch norms, shapes computed, common parts, dead parts."""
    rng = np.random.default_rng(seed)

    def weight(name: str, *shape: int) -> TensorProto:
        return numpy_helper.from_array(rng.uniform(0.1, 0.5, shape).astype(np.float32), name)

    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w1", "b1"], ["c1"], pads=[1, 1, 1, 1]),
        node("BatchNormalization", ["c1", "g", "b", "m", "v"], ["n1"]),
        node("Relu", ["n1"], ["r1"]),
        node("Conv", ["r1", "w2"], ["c2"], pads=[1, 1, 1, 1], group=4),
        node("Sigmoid", ["c2"], ["s1"]),
        node("Sigmoid", ["c2"], ["s2"]),
        node("Mul", ["c2", "s1"], ["silu"]),
        node("Add", ["silu", "s2"], ["a"]),
        node("Exp", ["a"], ["dead"]),
        node("Shape", ["a"], ["shape"]),
        node("Slice", ["shape", "zero", "two"], ["head"]),
        node("Concat", ["head", "minus"], ["flat"], axis=0),
        node("Reshape", ["a", "flat"], ["rows"]),
        node("Transpose", ["rows"], ["columns"], perm=[0, 2, 1]),
        node("MatMul", ["columns", "w3"], ["p"]),
        node("Softmax", ["p"], ["y"], axis=-1),
        node("ReduceMean", ["p"], ["z"], axes=[1], keepdims=0),
    ]
    weights = [weight("w1", 4, 3, 3, 3), weight("w2", 4, 1, 3, 3), weight("w3", 4, 5)]
    weights += [weight(n, 4) for n in ("b1", "g", "b", "m", "v")]
    weights += [numpy_helper.from_array(np.array([v]), n) for n, v in (("zero", 0), ("two", 2), ("minus", -1))]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "block",
        [value("x", TensorProto.FLOAT, ["n", 3, 9, 7])],
        [value("y", TensorProto.FLOAT, ["n", 63, 5]), value("z", TensorProto.FLOAT, ["n", 5])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("target", ["c", "host"])
@pytest.mark.parametrize("opt_level", [0, 1, 2, 3])
def test_levels_and_targets_agree(opt_level: int, target: str) -> None:
    model = block()
    x = np.random.default_rng(2).standard_normal((2, 3, 9, 7)).astype(np.float32)
    compiled = aotc.compile(model, opt_level=opt_level, target=target, dims={"n": 2}, cflags=QUICK)
    for found, expected in zip(compiled.session().run(None, {"x": x}), reference(model, {"x": x}), strict=True):
        check_relative(found, expected)


def test_levels_do_more_and_more() -> None:
    """The work of a higher level shows: fewer steps."""
    compiled = [aotc.compile(block(), opt_level=k, target="c", dims={"n": 1}, build=False) for k in (0, 3)]
    steps = [len(model.metadata["steps"]) for model in compiled]
    assert steps[1] < steps[0]


def test_instruments_see_the_passes() -> None:
    timer = PassTimingInstrument()
    aotc.compile(DIGITS, instruments=[timer], build=False)
    assert "FuseOps" in timer.render()


def test_input_shapes_and_dims_pin_the_same_model() -> None:
    models = [
        aotc.compile(block(), build=False, **pins)  # type: ignore[arg-type]
        for pins in ({"dims": {"n": 3}}, {"input_shapes": {"x": (3, 3, 9, 7)}})
    ]
    assert models[0].metadata == models[1].metadata
    assert models[0].metadata["outputs"][0]["shape"] == [3, 63, 5]


def test_a_target_value_is_accepted() -> None:
    assert aotc.compile(affine(4, 0), target=get_target("c"), build=False).metadata["target"] == "c"


def test_a_temporary_project_lives_as_long_as_its_session() -> None:
    model = aotc.compile(affine(4, 0), cflags=QUICK)
    path, session = model.path, model.session()
    del model
    gc.collect()
    assert path.exists()
    assert session.run(None, {"x": np.zeros((1, 4), np.float32)})[0].shape == (1, 4)
    del session
    gc.collect()
    assert not path.exists()


def test_compiling_again_replaces(tmp_path: Path) -> None:
    """A session of the former library goes on."""
    x = {"x": np.ones((1, 4), np.float32)}
    sessions = [aotc.compile(affine(4, seed), output=tmp_path / "m", cflags=QUICK).session() for seed in (0, 1)]
    first, second = (s.run(None, x)[0] for s in sessions)
    assert not np.array_equal(first, second)
    for seed, found in ((0, first), (1, second)):
        check_relative(found, reference(affine(4, seed), x)[0])


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"target": "toaster"}, "unknown target 'toaster'"),
        ({"opt_level": 4}, "opt_level"),
        ({"accuracy": "stric"}, "did you mean 'strict'|strict"),
        ({"accuracy": "exact"}, "known: fast, strict, reproducible"),
        ({"config": {"compile.accuracy": "exact"}}, "known: fast, strict, reproducible"),
        ({"cc": "no-such-compiler"}, "no-such-compiler"),
        ({"name": "a b"}, "a_b"),
        ({"dims": {"m": 1}}, "'m'"),
        ({"input_shapes": {"q": (1,)}}, "'q'"),
        ({"params": {"q": np.zeros(1)}}, "q"),
        ({"params": {"image": np.zeros((3, 3), np.float32)}}, "image"),
    ],
)
def test_wrong_arguments(options: dict[str, Any], complaint: str, tmp_path: Path) -> None:
    with pytest.raises(aotc.AotcError, match=complaint):
        aotc.compile(DIGITS, output=tmp_path / "out", **options)
    assert list(tmp_path.iterdir()) == []


def test_sources_only_have_no_session() -> None:
    model = aotc.compile(DIGITS, build=False)
    assert model.library is None
    with pytest.raises(aotc.AotcError, match="sources but no library"):
        model.session()


def test_loading_pulls_in_no_compiler(tmp_path: Path) -> None:
    model = aotc.compile(affine(4, 0), output=tmp_path / "net", cflags=QUICK)
    code = f"""
import sys
import aotc
known = {{m for m in sys.modules if m.startswith("aotc.") and not m.startswith("aotc.ir")}}
assert not known and "numpy" not in sys.modules, "import aotc is lazy"
import numpy
aotc.load({str(model.library)!r}).run(None, {{"x": numpy.zeros((1, 4), numpy.float32)}})
heavy = ("onnx", "jinja2", "click", "rich", "aotc_codegen", "aotc.relay", "aotc.tir", "aotc.driver")
print(sorted(m for m in sys.modules if m in heavy))
"""
    root = Path(aotc.__file__).parents[1]
    assert run([sys.executable, "-c", code], root).strip() == "[]"


@pytest.mark.parametrize("model", [None, b"bytes", [1], 3])
def test_what_is_no_model(model: object) -> None:
    with pytest.raises(TypeError, match=f"not {type(model).__name__}") as caught:
        aotc.compile(model)  # type: ignore[arg-type]
    assert isinstance(caught.value, aotc.AotcError)
