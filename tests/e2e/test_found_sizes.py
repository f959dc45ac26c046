# SPDX-License-Identifier: Apache-2.0
"""Models that find sizes in a run: one library gives the outputs of ONNX Runtime for all numbers of elements found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from aotc_codegen.c.bare_metal_project import emit_bare_metal_project
from onnx import TensorProto, helper, numpy_helper

import aotc
from aotc.driver.compile import CompileOptions
from aotc.driver.toolchain import resolve_target
from aotc.ir import AotcError
from aotc.relay.frontend.onnx import from_onnx
from aotc.relay.interpreter import evaluate
from aotc.relay.text.parser import parse
from aotc.relay.text.printer import astext
from aotc.tir.passes import ProgramVerifier
from aotc.tir.program_interpreter import ProgramInterpreter
from tests.codegen.test_project import run

ort = pytest.importorskip("onnxruntime")
Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(0)
STRICT = ["-O0", "-Wall", "-Wextra", "-Wconversion", "-pedantic", "-Werror"]
SANITIZE = ["-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
#: Position from which on a status has the number of a condition, and the code of sizes that do not fit.
NUMBER_SHIFT, SHAPE = 8, 23


def model(
    nodes: list[onnx.NodeProto], inputs: dict[str, list[Any]], outputs: dict[str, int], **tensors: Any
) -> onnx.ModelProto:
    """A model of float inputs and outputs of the given element types."""
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info(name, FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, dtype, None) for name, dtype in outputs.items()],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in tensors.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def rows_above_zero() -> onnx.ModelProto:
    """Operators on the indices of the elements of relu(x @ w) that are not 0."""
    node = helper.make_node
    nodes = [
        node("MatMul", ["x", "w"], ["product"]),
        node("Relu", ["product"], ["positive"]),
        node("NonZero", ["positive"], ["indices"], name="/find"),
        node("Transpose", ["indices"], ["rows"]),
        node("GatherND", ["product", "rows"], ["values"]),
        node("Shape", ["indices"], ["shape"]),
        node("Cast", ["rows"], ["numbers"], to=FLOAT),
        node("MatMul", ["numbers", "v"], ["mixed"]),
        node("Concat", ["mixed", "mixed"], ["twice"], axis=0),
        node("Gather", ["shape", "one"], ["count"]),
        node("ConstantOfShape", ["count"], ["zeros"]),
        node("Reshape", ["indices", "flat_shape"], ["flat"]),
        node("ReduceSum", ["twice", "zero"], ["sums"], keepdims=0),
        node("Squeeze", ["count"], ["number"]),
        node("Range", ["first", "number", "step"], ["range"]),
    ]
    outputs = dict.fromkeys(("indices", "shape", "count", "flat", "range"), INT64)
    outputs |= dict.fromkeys(("values", "twice", "zeros", "sums"), FLOAT)
    tensors = {"w": RNG.standard_normal((16, 8)).astype(np.float32), "v": RNG.random((2, 5), np.float32)}
    numbers = {"one": [1], "zero": [0], "flat_shape": [-1], "first": 3, "step": 2}
    return model(nodes, {"x": [6, 16]}, outputs, **tensors, **numbers)


def inputs_of(made: onnx.ModelProto) -> list[dict[str, Array]]:
    """Inputs for which nothing, everything, and something is found."""
    w = numpy_helper.to_array(made.graph.initializer[0])
    least_norm = np.linalg.pinv(w.astype(np.float64))
    rows = [np.zeros((6, 16)), np.ones((6, 8)) @ least_norm, -np.ones((6, 8)) @ least_norm]
    rows += [RNG.standard_normal((6, 16)) for _ in range(3)]
    return [{"x": row.astype(np.float32)} for row in rows]


@pytest.fixture(scope="module")
def made() -> onnx.ModelProto:
    return rows_above_zero()


@pytest.fixture(scope="module")
def compiled(made: onnx.ModelProto, tmp_path_factory: pytest.TempPathFactory) -> aotc.CompiledModel:
    return aotc.compile(made, name="net", output=tmp_path_factory.mktemp("net"), target="c", cflags=STRICT)


def check(results: list[Array], expected: list[Array]) -> None:
    for got, want in zip(results, expected, strict=True):
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_one_library_for_all_numbers_of_elements(made: onnx.ModelProto, compiled: aotc.CompiledModel) -> None:
    session, reference = compiled.session(), ort.InferenceSession(made.SerializeToString())
    shapes = {info.name: info.shape for info in session.get_outputs()}
    assert shapes["indices"] == [2, "found0"] and shapes["twice"] == ["2*found0", 5]
    assert {i.name: i.bounds for i in session.get_outputs()}["values"] == ((0, 48),)
    assert not session.dims
    sets = inputs_of(made)
    binding = session.bind({"x": np.empty((6, 16), np.float32)})
    counts = set()
    for given in sets:
        expected = reference.run(None, given)
        check(session.run(None, given), expected)
        counts.add(expected[2].item())
        binding.inputs["x"][:] = given["x"]
        binding.run()
        check(list(binding.outputs.values()), expected)
    assert {0, 48} <= counts and len(counts) >= 4


def test_interpreters_find_sizes(made: onnx.ModelProto) -> None:
    """Also the interpreter of programs, in which all memory behind the elements that are found holds a pattern."""
    module = from_onnx(made)
    read = parse(astext(module))
    chosen = CompileOptions(target="c", instruments=(ProgramVerifier(),))
    (program,) = chosen.start_compilation(made).scheduled_programs
    assert [(node.size, node.most) for node in program.found] == [("found0", 48)]
    assert 'size "found0" = ' in str(program)
    interpret = ProgramInterpreter(program)
    reference = ort.InferenceSession(made.SerializeToString())
    for given in inputs_of(made):
        expected = reference.run(None, given)
        check(list(evaluate(read, given["x"])), expected)
        check(list(interpret(given).values()), expected)


def test_threads_and_vectors(made: onnx.ModelProto, tmp_path: Path) -> None:
    """Kernels that threads share take a size that one of them has found."""
    node = helper.make_node
    nodes = [
        node("MatMul", ["x", "w"], ["a"]),
        node("Relu", ["a"], ["b"]),
        node("NonZero", ["b"], ["c"]),
        node("Transpose", ["c"], ["rows"]),
        node("GatherND", ["a", "rows"], ["values"]),
        node("Unsqueeze", ["values", "axis"], ["column"]),
        node("Mul", ["column", "v"], ["wide"]),
        node("MatMul", ["wide", "u"], ["y"]),
    ]
    tensors = {"w": RNG.standard_normal((64, 64)), "v": RNG.random((1, 64)), "u": RNG.standard_normal((64, 64))}
    large = model(nodes, {"x": [64, 64]}, {"y": FLOAT}, axis=np.array([1]), **{
        name: value.astype(np.float32) for name, value in tensors.items()
    })  # fmt: skip
    compiled = aotc.compile(large, name="model", output=tmp_path / "net", cflags=["-O1"])
    assert "outputs->found0 = " in (schedule := (compiled.path / "src" / "model.c").read_text())
    assert "AOTC_TEAM_SYNC" in schedule
    reference = ort.InferenceSession(large.SerializeToString())
    sessions = [compiled.session(), compiled.session(threads=2)]
    for seed in range(3):
        given = {"x": np.random.default_rng(seed).standard_normal((64, 64)).astype(np.float32)}
        alone, together = (session.run(None, given)[0] for session in sessions)
        np.testing.assert_array_equal(alone, together)
        np.testing.assert_allclose(alone, reference.run(None, given)[0], rtol=1e-3, atol=1e-3)


def test_exact_buffers_and_the_example(made: onnx.ModelProto, compiled: aotc.CompiledModel, tmp_path: Path) -> None:
    """No byte behind the room of a tensor is used, and the example program writes what was found."""
    folder = compiled.path
    sources = [*(folder / "src").glob("*.c"), *(folder / "runtime").glob("*.c")]
    flags = ["-std=c99", *SANITIZE, "-Iinclude", "-Isrc", "-DMODEL=net_info"]
    for caller in (Path(__file__).with_name("exact_buffers.c"), folder / "examples" / "main.c"):
        program = tmp_path / caller.stem
        run(["gcc", *flags, caller, *sources, "-lm", "-pthread", "-o", program], folder)
        if caller.stem == "exact_buffers":
            assert run([program], folder) == "0 outputs differ\n"
            continue
        reference = ort.InferenceSession(made.SerializeToString())
        given = inputs_of(made)[3]
        given["x"].tofile(tmp_path / "x.bin")
        outputs = compiled.session().get_outputs()
        run([program, tmp_path / "x.bin", *(tmp_path / f"{o.name}.out" for o in outputs)], folder)
        for info, want in zip(outputs, reference.run(None, given), strict=True):
            got = np.fromfile(tmp_path / f"{info.name}.out", want.dtype)
            np.testing.assert_allclose(got, want.reshape(-1), rtol=1e-5, atol=1e-5)


def two_sets() -> onnx.ModelProto:
    """The sum of the indices of two tensors, which must have equally many elements that are not 0."""
    node = helper.make_node
    nodes = [
        node("NonZero", ["x"], ["a"], name="/first"),
        node("NonZero", ["y"], ["b"], name="/second"),
        node("Add", ["a", "b"], ["z"], name="/add"),
    ]
    return model(nodes, {"x": [2, 5], "y": [2, 5]}, {"z": INT64})


def test_sizes_that_do_not_fit_are_a_status(tmp_path: Path) -> None:
    made = two_sets()
    session = aotc.compile(made, output=tmp_path / "net", target="c", cflags=STRICT).session()
    reference = ort.InferenceSession(made.SerializeToString())
    first, second = np.zeros((2, 5), np.float32), np.zeros((2, 5), np.float32)
    first[0, 2:4], second[1, 1:4] = 1, 1
    with pytest.raises(AotcError, match=rf"status {SHAPE + (2 << NUMBER_SHIFT)}: .*node /add: found0 == found1"):
        session.run(None, {"x": first, "y": second})
    second[1, 1] = 0
    check(session.run(None, {"x": first, "y": second}), reference.run(None, {"x": first, "y": second}))


def test_microcontrollers(tmp_path: Path) -> None:
    chosen = CompileOptions(target="cortex-m4")
    (program,) = chosen.start_compilation(two_sets()).scheduled_programs
    emit_bare_metal_project(program, tmp_path, target=resolve_target("cortex-m4"), single_file=True)
    sources = [s for s in (tmp_path / "src").glob("*.c") if s.name != "params_to_c.c"]
    run(["gcc", "-std=c99", *STRICT, *SANITIZE, "-Iinclude", "-Isrc", "-c", *sources], tmp_path)
    assert "if (!(outputs->found0 == outputs->found1)) return" in "".join(s.read_text() for s in sources)


def test_graphics_processors_are_refused() -> None:
    with pytest.raises(AotcError, match=r"node /first: code for cuda has no results whose size") as caught:
        _ = CompileOptions(target="cuda").start_compilation(two_sets()).scheduled_programs
    assert caught.value.code == "target"


def test_no_hint_pins_a_size_that_a_run_finds() -> None:
    node = helper.make_node
    nodes = [node("NonZero", ["x"], ["a"]), node("CumSum", ["a", "axis"], ["y"])]
    made = model(nodes, {"x": [3]}, {"y": INT64}, axis=np.array(1))
    with pytest.raises(AotcError, match=r"cumsum has no program for sizes .*: found0<=3") as caught:
        _ = CompileOptions(target="c").start_compilation(made).scheduled_programs
    assert not any(d.hint for d in caught.value.diagnostics)


def selections() -> onnx.ModelProto:
    """Operators whose results have sizes that values decide, and operators on these results."""
    node = helper.make_node
    nodes = [
        node("Greater", ["scores", "zero"], ["flags"]),
        node("Squeeze", ["flags", "axes"], ["flat_flags"]),
        node("Compress", ["values", "flat_flags"], ["columns"], axis=1),
        node("Compress", ["values", "flat_flags"], ["elements"]),
        node("ReduceSum", ["columns", "last"], ["sums"], keepdims=0),
        node("NonMaxSuppression", ["boxes", "scores", "most", "overlap", "least"], ["rows"]),
        node("NonMaxSuppression", ["boxes", "scores", "two", "overlap"], ["centers"], center_point_box=1),
        node("Slice", ["rows", "two", "three", "last"], ["numbers"]),
        node("Squeeze", ["numbers", "last"], ["chosen"]),
        node("Squeeze", ["boxes", "first"], ["all_boxes"]),
        node("Gather", ["all_boxes", "chosen"], ["remaining"]),
        node("Round", ["values"], ["rounded"]),
        node("Unique", ["rounded"], ["sorted", "s1", "s2", "s3"]),
        node("Unique", ["rounded"], ["unsorted", "u1", "u2", "u3"], sorted=0),
        node("Unique", ["rounded"], ["slices", "a1", "a2", "a3"], axis=1),
        node("Unique", ["rounded"], ["lines", "b1", "b2", "b3"], axis=0, sorted=0),
    ]
    inputs = {"values": [3, 8], "boxes": [1, 8, 4], "scores": [1, 1, 8], "overlap": [1], "least": [1]}
    numbers = ["rows", "centers", *(f"{c}{k}" for c in "suab" for k in (1, 2, 3))]
    floats = ["columns", "elements", "sums", "remaining", "sorted", "unsorted", "slices", "lines"]
    integers = {"axes": [0, 1], "most": [4], "two": [2], "three": [3], "first": [0], "last": [1]}
    tensors = {name: np.array(value) for name, value in integers.items()}
    outputs = dict.fromkeys(numbers, INT64) | dict.fromkeys(floats, FLOAT)
    return model(nodes, inputs, outputs, zero=np.zeros(1, np.float32), **tensors)


def inputs_of_selections(seed: int) -> dict[str, Array]:
    """Inputs for which nothing is found, or everything, or something."""
    rng = np.random.default_rng(seed)
    least, scale = (-1.0, 0.0) if seed == 0 else (9.0, 9.0) if seed == 1 else (0.3, 2.0)
    arrays = {
        "values": rng.standard_normal((3, 8)) * scale,
        "boxes": np.round(rng.random((1, 8, 4)) * 6) / 4,
        "scores": np.full((1, 1, 8), -1.0) if seed == 1 else rng.random((1, 1, 8)) - (0.5 if seed else 0),
        "overlap": np.array([0.0, 1.0, 0.2, 0.5, 0.7])[[seed]],
        "least": np.array([least]),
    }
    return {name: array.astype(np.float32) for name, array in arrays.items()}


def test_selections_and_distinct_values(tmp_path: Path) -> None:
    made = selections()
    options = {"target": "c", "cflags": STRICT, "instruments": [ProgramVerifier()]}
    compiled = aotc.compile(made, name="net", output=tmp_path / "net", **options)
    session, reference = compiled.session(), ort.InferenceSession(made.SerializeToString())
    (program,) = CompileOptions(target="c").start_compilation(made).scheduled_programs
    interpret, module = ProgramInterpreter(program), from_onnx(made)
    found = set()
    for seed in range(5):
        given = inputs_of_selections(seed)
        expected = reference.run(None, given)
        check(session.run(None, given), expected)
        check(list(interpret(given).values()), expected)
        check(list(evaluate(module, *given.values())), expected)
        found.add(expected[0].shape[0])
    assert {0} < found
    folder = compiled.path
    sources = [*(folder / "src").glob("*.c"), *(folder / "runtime").glob("*.c")]
    flags = ["-std=c99", *SANITIZE, "-Iinclude", "-Isrc", "-DMODEL=net_info"]
    program_path, caller = tmp_path / "exact", Path(__file__).with_name("exact_buffers.c")
    run(["gcc", *flags, caller, *sources, "-lm", "-pthread", "-o", program_path], folder)
    assert run([program_path], folder) == "0 outputs differ\n"


def test_the_sum_of_flags_is_the_number_of_their_positions() -> None:
    """PyTorch exports x[x > 0] = value like this."""
    node = helper.make_node
    nodes = [
        node("Greater", ["x", "zero"], ["flags"]),
        node("NonZero", ["flags"], ["indices"]),
        node("Transpose", ["indices"], ["rows"]),
        node("Reshape", ["flags", "flat_shape"], ["flat"]),
        node("Cast", ["flat"], ["numbers"], to=INT64),
        node("ReduceSum", ["numbers", "axis"], ["count"]),
        node("Expand", ["value", "count"], ["updates"]),
        node("ScatterND", ["x", "rows", "updates"], ["result"]),
    ]
    tensors = {"zero": np.float32(0), "value": np.float32(-3), "flat_shape": [-1], "axis": [0]}
    made = model(nodes, {"x": [3, 4]}, {"result": FLOAT, "updates": FLOAT}, **tensors)
    session, reference = aotc.compile(made, cflags=["-O0"]).session(), ort.InferenceSession(made.SerializeToString())
    for row in (np.zeros((3, 4)), np.ones((3, 4)), RNG.standard_normal((3, 4))):
        given = {"x": row.astype(np.float32)}
        check(session.run(None, given), reference.run(None, given))
