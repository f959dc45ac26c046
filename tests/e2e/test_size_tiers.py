# SPDX-License-Identifier: Apache-2.0
"""Sizes in tiers: one library with code for several sizes and ranges, which share their weights."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import aotc
from aotc.checking.verify import _evaluation_in_reduced_precision, verify
from aotc.driver.compile import CompileOptions
from aotc.ir.diagnostics import AotcError
from aotc.tir.passes import ProgramVerifier
from aotc.tir.program_interpreter import ProgramInterpreter
from tests.cli.invoke import call
from tests.e2e.test_models_with_size_ranges import encoder, inputs_of, model, perceptron, weights

ort = pytest.importorskip("onnxruntime")
STRICT = "-O0 -Wall -Wextra -Wconversion -pedantic -Werror"
SANITIZED = f"{STRICT} -g -fsanitize=address,undefined -fno-sanitize-recover=all"


def integers() -> onnx.ModelProto:
    """A convolution of bytes."""
    rng = np.random.default_rng(3)
    node = helper.make_node
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["a"]),
        node("QLinearConv", ["a", "s", "z", "w", "t", "zw", "u", "z"], ["b"], pads=[1, 1, 1, 1]),
        node("DequantizeLinear", ["b", "u", "z"], ["y"]),
    ]
    tensors = {
        "w": rng.integers(-60, 60, (8, 3, 3, 3), dtype=np.int8),
        "s": np.array(0.02, np.float32),
        "t": np.array(0.01, np.float32),
        "u": np.array(0.05, np.float32),
        "z": np.array(120, np.uint8),
        "zw": np.array(0, np.int8),
    }
    return model(nodes, {"x": (TensorProto.FLOAT, ["batch", 3, 6, 5])}, {"y": ["batch", 8, 6, 5]}, tensors)


MODELS = {
    "perceptron": (perceptron, {"batch": [8, 1, (2, 20)]}, [(8,), (1,), (2,), (7,), (20,)], [(0,), (21,)]),
    "encoder": (
        encoder,
        {"batch": [1, 3], "seq": ["4..8:4~4", 5, (9, 11)]},
        [(1, 5), (3, 5), (1, 4), (3, 8), (1, 9), (3, 11)],
        [(2, 5), (1, 6), (3, 3)],
    ),
    "integers": (integers, {"batch": "1,4"}, [(1,), (4,)], [(2,), (5,)]),
}


@pytest.mark.parametrize("name", MODELS)
def test_each_tier_is_the_model_of_its_sizes(name: str, tmp_path: Path) -> None:
    """Results are those of ONNX Runtime; for an exact size, bits, weights and code are those of one size."""
    make, dims, cases, refused = MODELS[name]
    proto = make()
    options: dict[str, Any] = {"target": "c", "cflags": ["-O0"], "name": "net"}
    compiled = aotc.compile(proto, dims=dims, output=tmp_path / "net", instruments=[ProgramVerifier()], **options)
    session = compiled.session()
    reference = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    is_exact = {size: isinstance(size, int) for given in dims.values() for size in given}
    for seed, sizes in enumerate(cases):
        arrays = inputs_of(session, dict(zip(dims, sizes, strict=True)), seed)
        results = session.run(None, arrays)
        for result, expected in zip(results, reference.run(None, arrays), strict=True):
            assert result.shape == expected.shape
            np.testing.assert_allclose(result, expected, rtol=1e-4, atol=0.051 if name == "integers" else 1e-5)
        binding = session.bind(arrays)
        binding.run()
        assert all(map(np.array_equal, binding.outputs.values(), results))
        if all(is_exact.get(size) for size in sizes) or name == "integers":
            one = aotc.compile(proto, dims=dict(zip(dims, sizes, strict=True)), output=tmp_path / str(seed), **options)
            assert all(map(np.array_equal, one.session().run(None, arrays), results))
            assert one.metadata["weights_bytes"] == compiled.metadata["weights_bytes"]
            assert bodies_of_kernels(tmp_path / str(seed)) <= bodies_of_kernels(tmp_path / "net")
    for sizes in refused:
        with pytest.raises(AotcError, match=r"the inputs have the size .*, which is not .* or ") as caught:
            session.run(None, inputs_of(session, dict(zip(dims, sizes, strict=True)), 0))
        assert {d.code for d in caught.value.diagnostics} == {"input-shape"}


ONLY_TIERS = {
    # the square root of a size is no formula
    "side of a square": (
        """<ir_version: 9, opset_import: ["": 17]> net (float[batch, 3, n] x) => (float[batch, 3, h, h] y)
        <int64[1] axis = {2}, int64[1] three = {3}> {
          all = Shape(x) n = Gather<axis=0>(all, axis) f = Cast<to=1>(n) r = Sqrt(f) h = Cast<to=7>(r)
          first = Shape<start=0, end=1>(x) shape = Concat<axis=0>(first, three, h, h)
          z = Reshape(x, shape) y = Softmax<axis=3>(z)
        }""",
        {"batch": [1, 2], "n": [4, 9, 16, 64]},
        [(1, 4), (2, 64), (2, 9), (1, 16)],
        [(1, 10), (3, 4)],
    ),
    # beside a range, whose shapes stay formulas
    "side of a square, any batch": (
        """<ir_version: 9, opset_import: ["": 17]> net (float[n, batch] x) => (float[h, m] y)
        <int64[1] rest = {-1}> {
          n = Shape<start=0, end=1>(x) f = Cast<to=1>(n) r = Sqrt(f) h = Cast<to=7>(r)
          shape = Concat<axis=0>(h, rest) z = Reshape(x, shape) y = Softmax<axis=1>(z)
        }""",
        {"n": [4, 9, 25], "batch": "2..12:2"},
        [(4, 2), (9, 12), (25, 6)],
        [(5, 2), (4, 14), (16, 4)],
    ),
    "number of parts": (
        """<ir_version: 9, opset_import: ["": 17]> net (float[n, 4] x) => (float[two, 4] y)
        <int64 z = {0}, int64 two = {2}> {
          parts = SplitToSequence<axis=0>(x, two) l = SequenceLength(parts) first = SequenceAt(parts, z)
          f = Cast<to=1>(l) y = Mul(first, f)
        }""",
        {"n": [2, 3, 9]},
        [(2,), (3,), (9,)],
        [(4,), (1,)],
    ),
    # a model for the whole range keeps an axis whose extent varies
    "rank of a squeezed tensor": (
        """<ir_version: 9, opset_import: ["": 17]> net (float[n, 4] x) => (float s) {
          a = Squeeze(x) s = ReduceSum<keepdims=0>(a)
        }""",
        {"n": [1, 3]},
        [(1,), (3,)],
        [(2,)],
    ),
    "rounded height": (
        """<ir_version: 9, opset_import: ["": 17]> net (float[1, 1, h, 2] x) => (float[1, 1, k, 2] y)
        <float[4] scale = {1, 1, 1.5, 1}> { y = Resize<mode="linear">(x, , scale) }""",
        {"h": [4, 7, 8]},
        [(4,), (7,), (8,)],
        [(5,)],
    ),
}


@pytest.mark.parametrize("name", ONLY_TIERS)
def test_tiers_compile_where_their_whole_range_does_not(name: str, tmp_path: Path) -> None:
    """Shapes are those of the tiers, and results those of ONNX Runtime."""
    text, dims, cases, refused = ONLY_TIERS[name]
    proto = onnx.parser.parse_model(text)
    options: dict[str, Any] = {"target": "c", "cflags": ["-O0"]}
    compiled = aotc.compile(proto, dims=dims, output=tmp_path / "net", instruments=[ProgramVerifier()], **options)
    session = compiled.session()
    reference = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    for seed, sizes in enumerate(cases):
        arrays = inputs_of(session, dict(zip(dims, sizes, strict=True)), seed)
        (result,), (expected,) = session.run(None, arrays), reference.run(None, arrays)
        assert result.shape == expected.shape
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)
        for extent, (least, most) in zip(result.shape, session.get_outputs()[0].bounds, strict=True):
            assert least <= extent <= most
    for sizes in refused:
        with pytest.raises(AotcError, match="the inputs have the size"):
            session.run(None, inputs_of(session, dict(zip(dims, sizes, strict=True)), 0))


def test_verification_of_tiers_without_their_whole_range(tmp_path: Path) -> None:
    """A project is compared too, and a reduced precision with the model of each tier."""
    text, dims, *_ = ONLY_TIERS["side of a square"]
    proto = onnx.parser.parse_model(text)
    aotc.compile(proto, dims=dims, target="c", output=tmp_path / "net", cflags=["-O0"])
    options: dict[str, Any] = {"target": "c", "seeds": 1}
    report = verify(proto, dims=dims, project=tmp_path / "net", **options)
    assert report.ok and len(report.cases) >= 8
    with pytest.raises(AotcError, match="the size n is 4, 9, 16 or 64, in the model 4 or 9"):
        verify(proto, dims={**dims, "n": [4, 9]}, project=tmp_path / "net", **options)


def test_reduced_precision_is_evaluated_by_the_model_of_a_tier() -> None:
    options = CompileOptions(target="x86-64-v4-bf16", precision="bfloat16", dims={"batch": [1, 3, (4, 6)]}, build=False)
    compilation = options.start_compilation(proto := perceptron())
    evaluate = _evaluation_in_reduced_precision(compilation, ["y"], 1 << 20)
    x = np.random.default_rng(1).standard_normal((5, 16)).astype(np.float32)
    exact = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    for batch in (1, 3, 5):
        (expected,) = exact.run(None, {"x": x[:batch]})
        np.testing.assert_allclose(evaluate({"x": x[:batch]})["y"], expected, atol=0.1)


def test_errors_are_those_of_the_tier_that_fails() -> None:
    text = """<ir_version: 9, opset_import: ["": 17]> net (float[n, 4] x) => (float[k, 5] y)
    <int64[2] shape = {-1, 5}> { y = Reshape(x, shape) }"""
    with pytest.raises(AotcError, match=r"Reshape.*4") as caught:
        CompileOptions(target="c", dims={"n": [5, 4, 10]}).start_compilation(onnx.parser.parse_model(text))
    assert "pin the dynamic" not in str(caught.value)


def test_outputs_of_different_ranks_are_refused() -> None:
    text = """<ir_version: 9, opset_import: ["": 17]> net (float[n, 4] x) => (float[4] y) { y = Squeeze(x) }"""
    compilation = CompileOptions(target="c", dims={"n": [1, 3]}).start_compilation(onnx.parser.parse_model(text))
    with pytest.raises(AotcError, match=r"equal interfaces: 'y' is float32\[4\] for n 1, and .*\[3, 4\] for n 3"):
        _ = compilation.scheduled_programs


def bodies_of_kernels(project: Path) -> set[str]:
    """The kernels of a project, without their names."""
    text = "".join(path.read_text(encoding="utf-8") for path in sorted((project / "src").glob("net_kernels*.c")))
    return set(re.findall(r"^void net_\w+(\([^;]*?\) \{\n.*?^\})$", text, re.MULTILINE | re.DOTALL))


def test_sessions_commands_and_metadata_know_tiers(tmp_path: Path) -> None:
    onnx.save(perceptron(), path := tmp_path / "net.onnx")
    compiled = aotc.compile(
        path, dims={"batch": [1, "8..64:8~16"]}, target="c", output=tmp_path / "net", cflags=["-O0"]
    )
    session = compiled.session()
    assert str(session.dims["batch"]) == "1,8..64:8~16"
    assert session.dims["batch"].typical == 16 and 16 in session.dims["batch"] and 2 not in session.dims["batch"]
    assert [info.shape for info in session.get_outputs()] == [["batch", 5]]
    assert session.get_inputs()[0].bounds == ((1, 64), (16, 16))
    tiers = json.loads((tmp_path / "net/metadata.json").read_text(encoding="utf-8"))["tiers"]
    assert [tier["dims"] for tier in tiers] == [{"batch": "1"}, {"batch": "8 to 64 in steps of 8"}]
    assert tiers[0]["arena"] < tiers[1]["arena"] == session.workspace_bytes
    told = call("inspect", path, "--dim", "batch=1,8..64:8~16", "--target", "c").out
    assert "tier         batch 1: arena" in told and "tier         batch 8 to 64 in steps of 8: arena" in told
    assert "float32 batchx16" in call("inspect", tmp_path / "net").out
    assert "y  float32[16, 5]" in call("run", tmp_path / "net").out


def test_verification_draws_sizes_of_each_tier() -> None:
    report = verify(perceptron(), dims={"batch": [3, 1, (2, 6)]}, target="c", seeds=1, check_compiler=False)
    assert report.ok
    drawn = [case.source.removesuffix(", seed 0") for case in report.cases]
    assert drawn[:3] == ["batch 3", "batch 1", "batch 2"] and "batch 6" in drawn


def test_interpreted_programs_choose_a_tier() -> None:
    chosen = CompileOptions(target="c", dims={"batch": [2, "4..8:4"]})
    (program,) = chosen.start_compilation(perceptron()).scheduled_programs
    assert 'tier "batch" 4 to 8 in steps of 4 {' in str(program)
    run, proto = ProgramInterpreter(program), perceptron()
    for batch in (2, 4, 8):
        x = np.random.default_rng(batch).standard_normal((batch, 16)).astype(np.float32)
        assert run({"x": x})["y"].shape == (batch, 5)
    with pytest.raises(ValueError, match=r"batch is 6, which is not in its range 2,4\.\.8:4"):
        run({"x": np.ones((6, 16), np.float32)})
    assert proto.graph.input


APP = """\
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "net.h"

int main(void) {
  for (int64_t batch = -1; batch <= 21; ++batch) {
    const size_t rows = batch < 1 ? 1 : (size_t)batch;
    float *x = calloc(rows * 16, sizeof(float)), *y = malloc(rows * 5 * sizeof(float));
    net_inputs inputs = {x, batch};
    net_outputs outputs = {y, {-1, -1}};
    const size_t bytes = net_workspace_bytes(&inputs);
    void *workspace = aligned_alloc(NET_WORKSPACE_ALIGNMENT, bytes ? bytes : NET_WORKSPACE_ALIGNMENT);
    int status;
    for (size_t k = 0; k < rows * 16; ++k) x[k] = (float)(k % 7);
    memset(y, 0x5A, rows * 5 * sizeof(float));
    status = net_run(&inputs, &outputs, workspace, NULL);
    if (status == AOTC_OK) printf("%d: %d bytes, %d\\n", (int)batch, (int)bytes, (int)outputs.y_shape[0]);
    else if (bytes != 0 || outputs.y_shape[0] != -1 || *(unsigned char *)y != 0x5A) return 1;
    else printf("%d: %s\\n", (int)batch, net_check(status));
    if (net_shapes(&inputs, &outputs) != status) return 1;
    free(x);
    free(y);
    free(workspace);
  }
  return 0;
}
"""


@pytest.mark.always
@pytest.mark.parametrize("environment", [None, "bare"])
def test_tiers_in_c(environment: str | None, tmp_path: Path) -> None:
    """A run with the workspace of its tier stays in its memory; one with other sizes writes nothing."""
    options = {"target": "c", "environment": environment, "output": tmp_path / "net", "build": False, "name": "net"}
    aotc.compile(perceptron(), dims={"batch": [1, "4..8:4", 20]}, **options)
    (tmp_path / "app.c").write_text(APP, encoding="utf-8")
    sources = [*(tmp_path / "net/src").glob("*.[cS]"), *(tmp_path / "net/runtime").glob("*.c")]
    sources = [s for s in sources if s.name != "params_to_c.c"]
    command = [
        "gcc",
        *SANITIZED.split(),
        f"-I{tmp_path}/net/include",
        f"-I{tmp_path}/net/src",
        tmp_path / "app.c",
        *sources,
    ]
    subprocess.run([*map(str, command), "-lm", "-o", str(tmp_path / "app")], check=True, cwd=tmp_path / "net")
    lines = subprocess.run([tmp_path / "app"], check=True, capture_output=True, text=True).stdout.splitlines()
    ran = {int(n): text for n, _, text in (line.partition(": ") for line in lines) if "bytes" in text}
    assert list(ran) == [1, 4, 8, 20]
    assert ran[4].split()[0] == ran[8].split()[0] != ran[20].split()[0]
    assert lines[3] == "2: the size batch is 1, 4 to 8 in steps of 4 or 20"


def test_threads_share_the_calls_of_a_tier(tmp_path: Path) -> None:
    """For the processor of this machine; only tiers of many rows are divided among threads."""
    node = helper.make_node
    nodes = [node("MatMul", ["x", "w"], ["a"]), node("Relu", ["a"], ["b"]), node("MatMul", ["b", "v"], ["y"])]
    tensors = {"w": weights(64, 96), "v": weights(96, 40)}
    proto = model(nodes, {"x": (TensorProto.FLOAT, ["batch", 64])}, {"y": ["batch", 40]}, tensors)
    compiled = aotc.compile(proto, dims={"batch": [1, 40, (2, 64)]}, output=tmp_path / "net", cflags=["-O1"])
    alone, team = compiled.session(), compiled.session(threads=2)
    for batch in (1, 40, 64, 3):
        x = np.random.default_rng(batch).standard_normal((batch, 64)).astype(np.float32)
        expected = np.maximum(x @ tensors["w"], 0) @ tensors["v"]
        (result,) = alone.run(None, {"x": x})
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(team.run(None, {"x": x})[0], result)


def products(inputs: int, outputs: int) -> onnx.ModelProto:
    shape = {"x": (TensorProto.FLOAT, ["batch", inputs])}
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    return model(nodes, shape, {"y": ["batch", outputs]}, {"w": weights(inputs, outputs)})


@pytest.mark.parametrize(
    ("sizes", "options", "copies"), [((64, 96), {}, 2), ((512, 520), {}, 1), ((64, 96), {"size": True}, 1)]
)
def test_weights_have_two_layouts_only_where_that_pays(
    sizes: tuple[int, int], options: dict[str, Any], copies: int, tmp_path: Path
) -> None:
    """A single row is multiplied by wider blocks of weights than several rows."""
    proto = products(*sizes)
    target = {"target": "x86-64-v3", "build": False, "dims": {"batch": [1, 8]}}
    compiled = aotc.compile(proto, output=tmp_path / "net", **target, **options)
    one = aotc.compile(proto, output=tmp_path / "one", **{**target, "dims": {"batch": 8}}, **options)
    bytes_of_both = compiled.metadata["weights_bytes"]
    assert bytes_of_both == one.metadata["weights_bytes"] if copies == 1 else bytes_of_both > 4 * 1.9 * np.prod(sizes)


def test_a_single_row_is_right_with_weights_of_other_tiers(tmp_path: Path) -> None:
    proto = products(512, 520)
    session = aotc.compile(proto, dims={"batch": [1, 8]}, output=tmp_path / "net", cflags=["-O1"]).session()
    reference = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    x = np.random.default_rng(0).standard_normal((8, 512)).astype(np.float32)
    for batch in (1, 8):
        (expected,) = reference.run(None, {"x": x[:batch]})
        np.testing.assert_allclose(session.run(None, {"x": x[:batch]})[0], expected, rtol=1e-4, atol=1e-5)


def difference() -> onnx.ModelProto:
    nodes = [helper.make_node("Relu", [name], [f"{name}1"]) for name in ("x", "y", "z")]
    inputs = {"x": (TensorProto.FLOAT, ["n"]), "y": (TensorProto.FLOAT, ["m"]), "z": (TensorProto.FLOAT, ["n - m + 9"])}
    return model(nodes, inputs, {"x1": ["n"], "y1": ["m"], "z1": ["k"]}, {})


def test_conditions_of_a_tier_are_checked(tmp_path: Path) -> None:
    """Only sizes of the first tier can make an extent negative."""
    dims = {"n": "1..4,5..9", "m": (0, 12)}
    session = aotc.compile(difference(), dims=dims, target="c", output=tmp_path / "net", cflags=["-O0"]).session()
    for n, m in ((4, 12), (1, 10), (1, 0), (5, 12), (9, 0)):
        arrays = {name: -np.ones(size, np.float32) for name, size in (("x", n), ("y", m), ("z", n - m + 9))}
        assert [r.shape for r in session.run(None, arrays)] == [(n,), (m,), (n - m + 9,)]
    assert session._sizes is not None
    with pytest.raises(AotcError, match=r"sizes n 2, m 12: .*n.* >= "):
        session._sizes.output_shapes({"n": 2, "m": 12})


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        ([], "the list of sizes is empty"),
        ([4, 4], "a run never takes 4, as 4 comes first"),
        ("1..8,4", "a run never takes 4, as 1 to 8 comes first"),
        ("1..64,8..64:8", "a run never takes 8 to 64 in steps of 8"),
        ([(8, 1), 9], "8..1 does not go from"),
        ("1,", "'' is neither a size nor a range"),
        ("1,8~4", "'8~4' is neither a size nor a range"),
        ([1, [2]], "neither a size nor a range"),
        ([1, True], "True is neither a size nor a range"),
        ([0, 1], "a tier of dimension 'batch' has the value 0"),
        ((1, 8, 32), r"\(1, 8, 32\) is neither a size nor a range"),
        ([*range(1, 67)], "66 tiers together, and a model has at most 64"),
    ],
)
def test_wrong_tiers_are_one_diagnostic(dims: Any, message: str) -> None:
    with pytest.raises(AotcError, match=message) as caught:
        CompileOptions(target="c", dims={"batch": dims}).start_compilation(perceptron())
    assert [d.code for d in caught.value.diagnostics] == ["dims"]


def accumulator() -> onnx.ModelProto:
    node = helper.make_node
    nodes = [node("ReduceMean", ["x"], ["mean"], axes=[0]), node("Add", ["mean", "past"], ["present"])]
    shapes = {"x": (TensorProto.FLOAT, ["batch", 2]), "past": (TensorProto.FLOAT, [1, 2])}
    return model(nodes, shapes, {"mean": [1, 2], "present": [1, 2]}, {})


def found() -> onnx.ModelProto:
    node = helper.make_node
    nodes = [
        node("NonZero", ["x"], ["a"]),
        node("Cast", ["a"], ["y"], to=TensorProto.FLOAT),
        node("Relu", ["u"], ["v"]),
    ]
    inputs = {"x": (TensorProto.FLOAT, [3]), "u": (TensorProto.FLOAT, ["batch"])}
    return model(nodes, inputs, {"y": [1, "n"], "v": ["batch"]}, {})


def repeated() -> onnx.ModelProto:
    node = helper.make_node("Tile", ["x", "repeats"], ["y"])
    inputs = {"x": (TensorProto.FLOAT, ["batch"]), "repeats": (TensorProto.INT64, [1])}
    return model([node], inputs, {"y": ["n"]}, {})


def resized(*operators: str) -> onnx.ModelProto:
    """A model whose resized height is the rounded product of a size and a float."""
    nodes = [helper.make_node("Resize", ["x", "", "scale"], ["0"], mode="linear")]
    nodes += [helper.make_node(op, [str(k)], [str(k + 1)]) for k, op in enumerate(operators)]
    nodes.append(helper.make_node("Relu", [str(len(operators))], ["y"]))
    inputs = {"x": (TensorProto.FLOAT, ["batch", 1, "h", 2])}
    return model(nodes, inputs, {"y": ["n", 1, "k", "m"]}, {"scale": np.array([1, 1, 1.5, 1], np.float32)})


@pytest.mark.parametrize(
    ("proto", "options", "code", "message"),
    [
        (
            resized("GlobalAveragePool"),
            {"dims": {"batch": 1, "h": [4, (5, 8)]}},
            "dims",
            "sizes that are rounded products of others: s0 cannot",
        ),
        (
            accumulator(),
            {"state": {"past": "present"}},
            "dims",
            "keeps state between runs cannot be compiled in several",
        ),
        (found(), {}, "dims", "a model that has sizes that a run finds: found0 cannot"),
        (repeated(), {"dims": {"batch": [1, 4], "repeats[0]": (0, 3)}}, "dims", "has sizes that are values of inputs"),
        (repeated(), {"dims": {"batch": 1, "repeats[0]": [1, 3]}}, "dims", "the shape of no input depends on it"),
        (perceptron(), {"config": {"compile.workspace_io": True}}, "dims", "has inputs or outputs in the workspace"),
    ],
)
def test_what_tiers_cannot_be_combined_with(
    proto: onnx.ModelProto, options: dict[str, Any], code: str, message: str
) -> None:
    chosen = CompileOptions(**{"target": "c", "dims": {"batch": [1, 4]}, **options})
    with pytest.raises(AotcError, match=message) as caught:
        _ = chosen.start_compilation(proto).scheduled_programs
    assert [d.code for d in caught.value.diagnostics] == [code]
