# SPDX-License-Identifier: Apache-2.0
"""Models with ranges of sizes: one library gives the outputs of ONNX Runtime at every size."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import aotc
from aotc.driver.compile import CompileOptions
from aotc.ir.diagnostics import AotcError
from aotc.ir.dimension_ranges import DimRange
from aotc.ir.instrument import PassInfo
from aotc.runtime.session import Session
from aotc.tir.passes import ProgramVerifier
from aotc.tir.program_interpreter import ProgramInterpreter
from tests.cli.invoke import call

ort = pytest.importorskip("onnxruntime")
Array = np.ndarray[Any, Any]
Node = onnx.NodeProto
RNG = np.random.default_rng(0)


def weights(*shape: int) -> Array:
    return (RNG.standard_normal(shape) / np.sqrt(max(1, np.prod(shape[1:])))).astype(np.float32)


def model(
    nodes: list[Node],
    inputs: Mapping[str, tuple[int, list[Any]]],
    outputs: Mapping[str, list[Any]],
    tensors: Mapping[str, Array],
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info(name, dtype, shape) for name, (dtype, shape) in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs.items()],
        [numpy_helper.from_array(value, name) for name, value in tensors.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    made.ir_version = 8
    onnx.checker.check_model(made)
    return made


def perceptron() -> onnx.ModelProto:
    node = helper.make_node
    nodes = [
        node("MatMul", ["x", "w1"], ["a"]),
        node("Add", ["a", "b1"], ["b"]),
        node("Relu", ["b"], ["c"]),
        node("MatMul", ["c", "w2"], ["d"]),
        node("Softmax", ["d"], ["y"], axis=-1),
    ]
    tensors = {"w1": weights(16, 20), "b1": weights(20), "w2": weights(20, 5)}
    return model(nodes, {"x": (TensorProto.FLOAT, ["batch", 16])}, {"y": ["batch", 5]}, tensors)


def convolutions() -> onnx.ModelProto:
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w1", "b1"], ["a"], pads=[1, 1, 1, 1], strides=[2, 2]),
        node("Relu", ["a"], ["b"]),
        node("MaxPool", ["b"], ["c"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", ["c", "w2"], ["d"], pads=[1, 1, 1, 1]),
        node("Sigmoid", ["d"], ["map"]),
        node("GlobalAveragePool", ["d"], ["e"]),
        node("Flatten", ["e"], ["f"]),
        node("Gemm", ["f", "w3"], ["y"], transB=1),
    ]
    tensors = {"w1": weights(6, 3, 3, 3), "b1": weights(6), "w2": weights(6, 6, 3, 3), "w3": weights(4, 6)}
    image = {"x": (TensorProto.FLOAT, [1, 3, "height", "width"])}
    return model(nodes, image, {"map": [1, 6, "h", "w"], "y": [1, 4]}, tensors)


def encoder() -> onnx.ModelProto:
    """One layer of a transformer encoder with two heads and a mask."""
    node, nodes = helper.make_node, list[Node]()
    tensors = {
        "table": weights(30, 8) * 3,
        "heads": np.array([0, 0, 2, 4]),
        "joined": np.array([0, 0, 8]),
        "half": np.array(0.5, np.float32),
        "low": np.array(-1e4, np.float32),
        "axes": np.array([1, 2]),
        "g": weights(8) + 1,
        "be": weights(8),
    }

    def dense(x: str, y: str, rows: int, columns: int) -> None:
        tensors.update({f"w{y}": weights(rows, columns), f"b{y}": weights(columns)})
        nodes.extend([node("MatMul", [x, f"w{y}"], [f"{y}0"]), node("Add", [f"{y}0", f"b{y}"], [y])])

    nodes.append(node("Gather", ["table", "ids"], ["t"]))
    for name, order in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        dense("t", name, 8, 8)
        nodes.append(node("Reshape", [name, "heads"], [f"{name}1"]))
        nodes.append(node("Transpose", [f"{name}1"], [f"{name}2"], perm=order))
    nodes += [
        node("MatMul", ["q2", "k2"], ["s"]),
        node("Mul", ["s", "half"], ["s1"]),
        node("Mul", ["mask", "low"], ["m"]),
        node("Unsqueeze", ["m", "axes"], ["m1"]),
        node("Add", ["s1", "m1"], ["s2"]),
        node("Softmax", ["s2"], ["p"], axis=-1),
        node("MatMul", ["p", "v2"], ["c"]),
        node("Transpose", ["c"], ["c1"], perm=[0, 2, 1, 3]),
        node("Reshape", ["c1", "joined"], ["c2"]),
        node("Add", ["c2", "t"], ["r"]),
        node("LayerNormalization", ["r", "g", "be"], ["n"], axis=-1),
    ]
    dense("n", "f", 8, 12)
    nodes.append(node("Relu", ["f"], ["f1"]))
    dense("f1", "y", 12, 8)
    nodes.append(node("ReduceMean", ["y"], ["pooled"], axes=[1], keepdims=0))
    texts = {"ids": (TensorProto.INT64, ["batch", "seq"]), "mask": (TensorProto.FLOAT, ["batch", "seq"])}
    return model(nodes, texts, {"y": ["batch", "seq", 8], "pooled": ["batch", 8]}, tensors)


def decoder() -> onnx.ModelProto:
    """Two layers of causal attention with two heads, whose mask is computed from the length, and a perceptron."""
    node, nodes = helper.make_node, list[Node]()
    tensors = {
        "heads": np.array([0, 0, 2, 8]),
        "joined": np.array([0, 0, 16]),
        "low": np.array(-1e4, np.float32),
        **{name: np.array(value) for name, value in (("zero", 0), ("one", 1))},
        **{name: np.array([value]) for name, value in (("first", 0), ("second", 1))},
        "none": np.array(0, np.float32),
    }
    nodes += [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "one"], ["length"]),
        node("Range", ["zero", "length", "one"], ["places"]),
        node("Unsqueeze", ["places", "first"], ["columns"]),
        node("Unsqueeze", ["places", "second"], ["rows"]),
        node("Greater", ["columns", "rows"], ["later"]),
        node("Where", ["later", "low", "none"], ["mask"]),
    ]
    x = "x"
    for layer in "ab":
        for name, order in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
            tensors[f"{layer}w{name}"] = weights(16, 16)
            nodes.append(node("MatMul", [x, f"{layer}w{name}"], [f"{layer}{name}"]))
            nodes.append(node("Reshape", [f"{layer}{name}", "heads"], [f"{layer}{name}1"]))
            nodes.append(node("Transpose", [f"{layer}{name}1"], [f"{layer}{name}2"], perm=order))
        tensors |= {f"{layer}wo": weights(16, 16), f"{layer}wg": weights(16, 40), f"{layer}wu": weights(16, 40)}
        tensors[f"{layer}wd"] = weights(40, 16)
        steps = [
            ("MatMul", ["q2", "k2"], "s"),
            ("Add", ["s", "mask"], "s1"),
            ("Softmax", ["s1"], "p"),
            ("MatMul", ["p", "v2"], "c"),
            ("Transpose", ["c"], "c1"),
            ("Reshape", ["c1", "joined"], "c2"),
            ("MatMul", ["c2", "wo"], "o"),
            ("Add", ["o", x], "r"),
            ("MatMul", ["r", "wu"], "u"),
            ("MatMul", ["r", "wg"], "g"),
            ("Sigmoid", ["g"], "g1"),
            ("Mul", ["g1", "u"], "h"),
            ("MatMul", ["h", "wd"], "d"),
            ("Add", ["d", "r"], "y"),
        ]
        shared = {"mask", "joined", x}
        for kind, operands, result in steps:
            attributes = {"perm": [0, 2, 1, 3]} if kind == "Transpose" else {}
            names = [name if name in shared else f"{layer}{name}" for name in operands]
            nodes.append(node(kind, names, [f"{layer}{result}"], **attributes))
        x = f"{layer}y"
    return model(nodes, {"x": (TensorProto.FLOAT, [1, "seq", 16])}, {x: [1, "seq", 16]}, tensors)


MODELS: dict[str, tuple[Callable[[], onnx.ModelProto], dict[str, str], list[tuple[int, ...]]]] = {
    "perceptron": (perceptron, {"batch": "1..9~3"}, [(1,), (9,), (2,), (5,), (8,), (1,)]),
    "convolutions": (
        convolutions,
        {"height": "4..24~16", "width": "4..32:4"},
        [(4, 4), (24, 32), (5, 8), (13, 12), (16, 32), (23, 4)],
    ),
    "encoder": (encoder, {"batch": "1..3", "seq": "1..11"}, [(1, 1), (3, 11), (2, 7), (1, 4), (3, 1), (2, 10)]),
    "decoder": (decoder, {"seq": "1..40"}, [(1,), (40,), (7,), (24,), (33,)]),
}


def inputs_of(session: Session, sizes: Mapping[str, int], seed: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    arrays: dict[str, Array] = {}
    for info in session.get_inputs():
        shape = [sizes[d] if isinstance(d, str) else d for d in info.shape]
        values = rng.standard_normal(shape) if info.dtype.is_float else rng.integers(0, 30, shape)
        arrays[info.name] = (values > 0 if info.name == "mask" else values).astype(info.dtype.numpy)
    return arrays


@pytest.mark.parametrize("name", MODELS)
def test_equal_to_onnx_runtime_at_every_size(name: str, tmp_path: Path) -> None:
    make, dims, cases = MODELS[name]
    proto = make()
    compiled = aotc.compile(
        proto, dims=dims, target="c", output=tmp_path / "net", cflags=["-O0"], instruments=[ProgramVerifier()]
    )
    session = compiled.session()
    if name == "convolutions":
        assert "float32 1x3xheightxwidth" in call("inspect", tmp_path / "net").out
    reference = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    for seed, values in enumerate(cases):
        arrays = inputs_of(session, dict(zip(dims, values, strict=True)), seed)
        for result, expected in zip(session.run(None, arrays), reference.run(None, arrays), strict=True):
            assert result.shape == expected.shape
            np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)
    assert list(session.dims) == list(dims)


def test_outputs_overlap_inputs_at_every_size(tmp_path: Path) -> None:
    """Tensors that overlap in memory have the values that they have in memory of their own."""
    make, dims, cases = MODELS["convolutions"]
    proto = make()
    plain, overlapping = (
        aotc.compile(
            proto,
            dims=dims,
            target="c",
            output=tmp_path / str(overlaps),
            cflags=["-O0"],
            config={"compile.overlap": overlaps},
            instruments=[ProgramVerifier()] if overlaps else [],
        )
        for overlaps in (False, True)
    )
    assert overlapping.metadata["footprint"]["arena"] <= 0.8 * plain.metadata["footprint"]["arena"]
    sessions = [plain.session(), overlapping.session()]
    for seed, values in enumerate(cases):
        arrays = inputs_of(sessions[0], dict(zip(dims, values, strict=True)), seed)
        expected, results = (session.run(None, arrays) for session in sessions)
        assert all(map(np.array_equal, results, expected))


def test_masks_take_no_memory(tmp_path: Path) -> None:
    """The arena of the largest length is that of a compilation for this length, where the mask is a constant."""
    options = {"target": "x86-64-v3", "build": False}
    varying, fixed = (aotc.compile(decoder(), dims={"seq": seq}, **options) for seq in ("1..200", 200))
    arenas = [made.metadata["footprint"]["arena"] for made in (varying, fixed)]
    assert arenas[0] <= 1.02 * arenas[1]
    assert fixed.metadata["footprint"]["arena"] < 200 * 200 * 4


@pytest.mark.parametrize("name", ["perceptron", "encoder", "decoder"])
def test_vectors_and_threads_are_right_at_every_size(name: str, tmp_path: Path) -> None:
    """For the processor of this machine, where matrix products have tiles of several rows."""
    make, dims, cases = MODELS[name]
    proto = make()
    session = aotc.compile(proto, dims=dims, output=tmp_path / "net", cflags=["-O1"]).session(threads=2)
    reference = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    for seed, values in enumerate(cases):
        arrays = inputs_of(session, dict(zip(dims, values, strict=True)), seed)
        for result, expected in zip(session.run(None, arrays), reference.run(None, arrays), strict=True):
            np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


def test_equal_to_a_compilation_of_one_size(tmp_path: Path) -> None:
    proto = perceptron()
    varying = aotc.compile(proto, dims={"batch": (0, 6)}, target="c", output=tmp_path / "a", cflags=["-O0"]).session()
    fixed = aotc.compile(proto, dims={"batch": 6}, target="c", output=tmp_path / "b", cflags=["-O0"]).session()
    arrays = inputs_of(varying, {"batch": 6}, 0)
    (of_six,) = fixed.run(None, arrays)
    for count in (6, 0, 1, 4):
        (result,) = varying.run(None, {"x": arrays["x"][:count]})
        np.testing.assert_allclose(result, of_six[:count], rtol=1e-5, atol=1e-6)
    assert varying.workspace_bytes <= 1.02 * fixed.workspace_bytes


def two_inputs() -> onnx.ModelProto:
    nodes = [helper.make_node("Add", ["x", "y"], ["z"]), helper.make_node("Relu", ["y"], ["w"])]
    inputs = {"x": (TensorProto.FLOAT, ["n", 3]), "y": (TensorProto.FLOAT, ["m", 3])}
    return model(nodes, inputs, {"z": ["n", 3], "w": ["m", 3]}, {})


def test_sizes_that_must_be_equal_are_checked(tmp_path: Path) -> None:
    session = aotc.compile(
        two_inputs(), dims={"n": (1, 4), "m": (1, 4)}, target="c", output=tmp_path / "net", cflags=["-O0"]
    ).session()
    x = np.ones((3, 3), np.float32)
    np.testing.assert_array_equal(session.run(None, {"x": x, "y": x})[0], x + x)
    with pytest.raises(AotcError, match="n 3, m 2: node Add#0: n == m") as caught:
        session.run(None, {"x": x, "y": x[:2]})
    assert caught.value.diagnostics[0].code == "input-shape"


RELAY = """#[version = "0.0.5"]
def @main(%x: Tensor[(n<=9), float32], %z: Tensor[(LEAST"n-m+9"<=12), float32], %y: Tensor[(m<=9), float32]) {
  (nn.relu(%x), nn.relu(%z), nn.relu(%y))
}
"""


@pytest.mark.parametrize(("least", "check"), [("", "12 >= -m+n+9"), ("5<=", "-m+n+9 >= 5")])
def test_bounds_of_formulas_are_checked(least: str, check: str, tmp_path: Path) -> None:
    (path := tmp_path / "net.relay").write_text(RELAY.replace("LEAST", least), encoding="utf-8")
    chosen = CompileOptions(target="c", instruments=[ProgramVerifier()])
    (program,) = chosen.start_compilation(path).scheduled_programs
    assert check in map(str, program.checks)
    run = ProgramInterpreter(program)
    run({"x": np.ones(2, np.float32), "z": np.ones(6, np.float32), "y": np.ones(5, np.float32)})
    for n, m in ((9, 5), (4, 0)) if not least else ((0, 5), (3, 9)):
        with pytest.raises(ValueError, match="does not hold"):
            run({name: np.ones(size, np.float32) for name, size in (("x", n), ("z", n - m + 9), ("y", m))})


def test_numbers_of_calls_are_verified() -> None:
    program = CompileOptions(target="c", dims={"batch": (0, 6)}).start_compilation(perceptron()).scheduled_programs[0]
    outside = replace(program, sizes={"batch": DimRange(0, 7)})
    info = PassInfo(0, "Pass", level="tensor")
    ProgramVerifier().run_after_pass(program, info)
    with pytest.raises(AotcError, match=r"number n0 of kernel .* is in \[0, 6\], got 7"):
        ProgramVerifier().run_after_pass(outside, info)


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        ({"dims": {"n": (1, 4), "m": (5, 6)}}, "dynamic-shape", "1<=n<=4 == 5<=m<=6, which does not hold for any size"),
        ({"dims": {"n": (1, 4), "m": (1, 6)}}, "dims", "the typical sizes n 4, m 6 do not fulfill n == m"),
        (
            {"dims": {"n": (1, 4), "m": (1, 4)}, "target": "cuda"},
            "target",
            "has no sizes that vary at run time within a range: n 1..4",
        ),
        ({"dims": {"n": (1, 4), "m": (1, 4)}, "state": {"x": "z"}}, "state", "'x' has a shape that varies at run time"),
    ],
)
def test_what_cannot_be_compiled_is_refused(options: dict[str, Any], code: str, message: str) -> None:
    chosen = CompileOptions(**{"target": "c", **options})
    with pytest.raises(AotcError, match=message) as caught:
        _ = chosen.start_compilation(two_inputs()).scheduled_programs
    assert caught.value.diagnostics[0].code == code
