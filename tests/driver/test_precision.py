# SPDX-License-Identifier: Apache-2.0
"""The option `precision`: which operators are reduced, its errors, its bits, and how results are judged."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from aotc.checking.compare_model_runs import Run, compare_runs_in_reduced_precision
from aotc.checking.input_generation import InputSet
from aotc.checking.verify import verify
from aotc.driver.compile import CompileOptions, compile
from aotc.ir.diagnostics import AotcError
from aotc.ir.dtype import DType
from aotc.ir.types import TensorType, tensor_types
from aotc.relay.expr import Call, Constant, Function, Var, typed_op_call
from aotc.relay.module import IRModule
from aotc.relay.op.conv import ConvAttrs, conv2d
from aotc.relay.transform import ToMixedPrecision
from aotc.relay.transform.pack_constant_weights import pack_convolution_weight
from aotc.relay.visitor import post_order
from aotc.tir.target import TARGETS, get_target
from tests.conftest import require_tool
from tests.targets.machines import native_targets

TARGET = "x86-64-v4-bf16"
ROWS, WIDTH, HIDDEN = 6, 32, 80


def two_layers(largest_weight: float = 0.0) -> onnx.ModelProto:
    """softmax(relu(x up + bias) down), a convolution and a depthwise one; `largest_weight` replaces a
    weight of `up`.
    """
    rng = np.random.default_rng(0)
    shapes = {
        "up_w": (WIDTH, HIDDEN),
        "up_b": (HIDDEN,),
        "down_w": (HIDDEN, WIDTH),
        "conv_w": (8, 4, 3, 3),
        "dw_w": (8, 1, 3, 3),
    }
    arrays = {name: (rng.standard_normal(shape) / 4).astype(np.float32) for name, shape in shapes.items()}
    if largest_weight:
        arrays["up_w"][3, 5] = largest_weight
    pads = {"pads": [1, 1, 1, 1]}
    nodes = [
        helper.make_node("MatMul", ["x", "up_w"], ["h"], name="block/up"),
        helper.make_node("Add", ["h", "up_b"], ["biased"], name="block/bias"),
        helper.make_node("Relu", ["biased"], ["r"], name="block/relu"),
        helper.make_node("MatMul", ["r", "down_w"], ["d"], name="block/down"),
        helper.make_node("Softmax", ["d"], ["y"], name="softmax"),
        helper.make_node("Conv", ["image", "conv_w"], ["c"], name="conv", **pads),
        helper.make_node("Conv", ["c", "dw_w"], ["z"], name="depthwise", group=8, **pads),
    ]
    inputs = {"x": [ROWS, WIDTH], "image": [1, 4, 9, 9]}
    outputs = {"y": [ROWS, WIDTH], "z": [1, 8, 9, 9]}
    infos = [
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in group.items()]
        for group in (inputs, outputs)
    ]
    weights = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = helper.make_graph(nodes, "two_layers", *infos, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def imported(model: onnx.ModelProto) -> IRModule:
    return CompileOptions(target="c").import_as_graph_module(model)


def inputs() -> dict[str, Any]:
    rng = np.random.default_rng(1)
    shapes = {"x": (ROWS, WIDTH), "image": (1, 4, 9, 9)}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def operand_types(module: IRModule) -> dict[str, set[str]]:
    """Types of the operands of each operator, without casts."""
    types: dict[str, set[str]] = {}
    for node in post_order(module.main):
        if (
            isinstance(node, Call)
            and not isinstance(node.op, Function)
            and (name := node.span.node if node.span else "")
        ):
            kinds = {
                str(t.dtype) for a in node.args if a.checked_type is not None for t in tensor_types(a.checked_type)
            }
            if str(getattr(node.op, "name", "")) != "cast":
                types.setdefault(name, set()).update(kinds)
    return types


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_only_products_by_weights_are_reduced(precision: str) -> None:
    module = imported(two_layers())
    reduced = ToMixedPrecision(precision, 2, only_weight_products=True, float32_layers=("*/down",))(module)
    assert reduced.main.ret_type == module.main.ret_type or reduced.main.checked_type == module.main.checked_type
    types = operand_types(reduced)
    assert types["block/up"] == types["conv"] == {precision}
    others = ("block/bias", "block/relu", "block/down", "softmax", "depthwise")
    assert all(types[name] == {"float32"} for name in others), types
    weights = {str(n.data.dtype) for n in post_order(reduced.main) if isinstance(n, Constant) and n.data.ndim > 1}
    assert weights == {precision, "float32"}


def test_weights_take_half_of_the_bytes() -> None:
    sizes = [
        compile(two_layers(), target=TARGET, precision=precision, build=False).metadata["weights_bytes"]
        for precision in ("float32", "bfloat16")
    ]
    assert sizes[1] < 0.65 * sizes[0]


@pytest.mark.parametrize(("shape", "kernel", "data_layout", "packed_layout"), [
    ((1, 3, 32, 32), (16, 3, 8, 8), "NCHW", "OHWI16o2w"),  # pairs along rows, which are contiguous
    ((1, 3, 33, 33), (16, 3, 3, 3), "NCHW", "OHWI16o2w"),
    ((1, 8, 9, 9), (16, 8, 3, 3), "NCHW", "OHWI16o2i"),  # pairs of channels need no padding
    ((1, 9, 9, 8), (16, 8, 4, 4), "NHWC", "OHWI16o2i"),
])  # fmt: skip
def test_pairs_of_a_convolution(
    shape: tuple[int, ...], kernel: tuple[int, ...], data_layout: str, packed_layout: str
) -> None:
    weight = Constant(np.zeros(kernel, ml_dtypes.bfloat16))
    data = Var("x", TensorType(shape, DType("bfloat16")))
    attributes = conv2d.attrs(data_layout=data_layout, out_dtype="float32", kernel_size=kernel[2:], channels=kernel[0])
    call = typed_op_call(conv2d, (data, weight), attributes)
    assert isinstance(call.attrs, ConvAttrs)
    packed = pack_convolution_weight(call, call.attrs, get_target(TARGET))
    assert isinstance(packed.attrs, ConvAttrs) and packed.attrs.kernel_layout == packed_layout


ERRORS = {
    "target": ({"target": "x86-64-v3", "precision": "bfloat16"},
               "target x86-64-v3 has no instructions for products of bfloat16",
               "targets that have them: x86-64-v4-bf16, x86-64-v4-amx, aarch64-bf16, cuda"),
    "float16": ({"target": TARGET, "precision": "float16"},
                f"target {TARGET} has no instructions for products of float16",
                "targets that have them: cuda"),
    "unknown": ({"precision": "int4"}, "unknown precision 'int4'", "known: float32, bfloat16, float16"),
    "pattern": ({"target": TARGET, "precision": "bfloat16", "float32_layers": ["blocks/*"]},
                "no convolution or matrix product by weights matches 'blocks/*'", "block"),
    "text": ({"target": TARGET, "precision": "bfloat16", "float32_layers": "conv"},
             "float32_layers must be a list of strings, not 'conv'", 'float32_layers=["conv"]'),
    **{
        f"configured {type(layers).__name__}": (
            {"target": TARGET, "precision": "bfloat16", "config": {"compile.float32_layers": layers}},
            "layers in float32 must be a list of names and patterns, not ", 'float32_layers=["NAME"]',
        )
        for layers in ("conv", 5, [5], b"conv", {"conv": 1}, iter(["conv"]), None, np.array("conv"))
    },
    "float32": ({"float32_layers": ["conv"]}, "all layers are computed in float32, not only conv", "bfloat16"),
}  # fmt: skip


@pytest.mark.parametrize("name", ERRORS)
def test_one_diagnostic_for_each_error(name: str) -> None:
    options, message, hint = ERRORS[name]
    with pytest.raises(AotcError) as caught:
        compile(two_layers(), build=False, **options)
    (diagnostic,) = caught.value.diagnostics
    assert message in diagnostic.message and hint in diagnostic.hint, diagnostic


def test_layers_in_float32_may_be_an_array_of_names() -> None:
    context = CompileOptions(float32_layers=np.array(["conv", "block/up"])).pass_context()
    assert context.get_config("compile.float32_layers") == ("conv", "block/up")


def test_weights_beyond_the_range_of_float16() -> None:
    with pytest.raises(AotcError) as caught:
        compile(two_layers(1e5), target="cuda", precision="float16", build=False)
    (diagnostic,) = caught.value.diagnostics
    assert (
        diagnostic.code == "precision" and "is 100000, and the largest number of float16 is 65504" in diagnostic.message
    )
    assert diagnostic.span is not None and diagnostic.span.node == "block/up" and "block/up" in diagnostic.hint
    module = imported(two_layers(1e5))
    ToMixedPrecision("float16", 2, only_weight_products=True, float32_layers=("block/up",))(module)


def test_reproducible_bits_need_no_instruction(tmp_path: Path) -> None:
    """With accuracy "reproducible", products are multiplied and added in float32 on every target."""
    results, hashes = [], set()
    for target in ("c", "x86-64-v3", TARGET):
        if target not in native_targets():
            pytest.skip(f"this processor does not run {target}")
        options: dict[str, Any] = {"precision": "bfloat16", "accuracy": "reproducible", "name": "net"}
        made = compile(two_layers(), target=target, output=tmp_path / target, **options)
        results.append(made.session().run(None, inputs()))
        hashes.add(str(made.metadata["numerics"]))
        sources = "".join(path.read_text(encoding="utf-8") for path in made.path.glob("src/*.c"))
        assert "vdpbf16ps" not in sources
    assert len(hashes) == 1
    for result in results[1:]:
        assert all(a.tobytes() == b.tobytes() for a, b in zip(results[0], result, strict=True))


def test_versions_of_a_library_with_products_of_bfloat16() -> None:
    """A version whose instructions for integers are not used differs by those for bfloat16."""
    versions = (TARGETS[TARGET], TARGETS["x86-64-v4-vnni"], TARGETS["x86-64-v4"])
    target = replace(TARGETS[TARGET], name="several", versions=versions)
    for precision, names in (("bfloat16", [TARGET, "x86-64-v4"]), ("", ["x86-64-v4"])):
        work = CompileOptions(target=target, precision=precision).start_compilation(two_layers())
        assert [version.name for version in work.target_versions] == names


def test_compilers_give_equal_bits_and_verify_judges_them(tmp_path: Path) -> None:
    if TARGET not in native_targets():
        pytest.skip(f"this processor does not run {TARGET}")
    results = []
    for cc in ("gcc", "clang"):
        options: dict[str, Any] = {"precision": "bfloat16", "name": "net", "cc": require_tool(cc)}
        made = compile(two_layers(), target=TARGET, output=tmp_path / cc, **options)
        results.append(made.session().run(None, inputs()))
    assert all(a.tobytes() == b.tobytes() for a, b in zip(*results, strict=True))
    sources = "".join(path.read_text(encoding="utf-8") for path in made.path.glob("src/*.c"))
    assert "vdpbf16ps" in sources
    # three products, each with 8 bits
    assert made.metadata["precision"] == "bfloat16" and made.metadata["reduced_products"] == 3
    assert made.metadata["error_bound"] == pytest.approx(4 * 2**-8 * math.sqrt(3))


def test_verify_judges_a_project_by_the_bound_of_its_precision(tmp_path: Path) -> None:
    """With accuracy "reproducible", every target has products of bfloat16."""
    options: dict[str, Any] = {"target": "c", "precision": "bfloat16", "accuracy": "reproducible"}
    made = compile(two_layers(), output=tmp_path / "net", cflags=("-O1",), **options)
    report = verify(two_layers(), project=made.path, seeds=1, **options)
    bounds = {c.bound for case in report.cases for c in case.outputs}
    assert report.ok and bounds == {made.metadata["error_bound"]} and max(bounds) > 0.01


def test_outputs_near_a_second_evaluation_pass() -> None:
    """A wrong bias leaves outputs within the bound, but not near those of a second evaluation."""
    rng = np.random.default_rng(0)
    expected = rng.standard_normal((20, 4)).astype(np.float32)
    reduced = expected * (1 + rng.uniform(-0.004, 0.004, expected.shape)).astype(np.float32)
    biased = reduced + np.float32(0.03) * (np.arange(4) == 1)

    def run(actual: Any, usual: bool = True) -> Run:
        return Run(InputSet("seed 0", {}, usual=usual), {}, {"y": actual.astype(np.float32)}, {"y": expected})

    def out_of_memory(_: Any) -> Any:
        raise AotcError("memory", "too large")

    cases = [run(reduced), run(biased), run(biased, usual=False), run(expected + 1)]
    judged = compare_runs_in_reduced_precision(cases, 0.05, 2.0**-8, lambda _: {"y": reduced})
    assert [case.ok for case in judged] == [True, False, True, False]
    (unknown,) = compare_runs_in_reduced_precision(cases[1:2], 0.05, 2.0**-8, out_of_memory)
    assert unknown.ok
    with pytest.raises(AotcError):
        compare_runs_in_reduced_precision(cases[3:], 0.05, 2.0**-8, out_of_memory)


def test_verify_judges_reduced_precision(tmp_path: Path) -> None:
    """Errors beyond the bound, which softmax amplifies, are explained by another evaluation; those of
    a wrong weight are not.
    """
    if TARGET not in native_targets():
        pytest.skip(f"this processor does not run {TARGET}")
    options: dict[str, Any] = {"target": TARGET, "precision": "bfloat16", "seeds": 2, "check_compiler": False}
    report = verify(two_layers(), **options)
    comparisons = [comparison for case in report.cases for comparison in case.outputs]
    assert report.ok, comparisons
    assert max(c.relative for c in comparisons) > max(c.bound for c in comparisons) > 0.01
    assert {c.rounding is None for c in comparisons} == {True, False}
    wrong = compile(two_layers(0.5), target=TARGET, precision="bfloat16", output=tmp_path / "net")
    assert verify(two_layers(), project=wrong.path, **options).verdict == "differ"
    for precision, reference in (("bfloat16", "float32"), ("float32", "bfloat16")):
        project = compile(two_layers(), target=TARGET, precision=precision, output=tmp_path / precision).path
        with pytest.raises(AotcError) as caught:
            verify(two_layers(), project=project, **options | {"precision": reference})
        (diagnostic,) = caught.value.diagnostics
        assert f"the precision {precision}, not {reference}" in diagnostic.message and precision in diagnostic.hint
