# SPDX-License-Identifier: Apache-2.0
"""Invalid and hostile ONNX files give one clear diagnostic each, quickly, and cause no large allocation."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from unittest import mock

import numpy as np
import onnx
import pytest
from evaluation import model_of, run_model
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper

from aotc.ir.compilation_work_and_memory_limits import running_or_new_budget_scope
from aotc.ir.diagnostics import AotcError
from aotc.relay.frontend.onnx import from_onnx, load_model

RELU = helper.make_node("Relu", ["x"], ["y"], name="act")


def small() -> ModelProto:
    weight = np.arange(12, dtype=np.float32).reshape(4, 3)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
    return model_of(nodes, {"x": (2, 4)}, ["y"], constants={"w": weight})


def code_of(model: object, **options: object) -> str:
    with pytest.raises(AotcError) as caught:
        from_onnx(model, **options)  # type: ignore[arg-type]
    return caught.value.code


# --- files


def test_missing_file(tmp_path: Path) -> None:
    assert code_of(tmp_path / "none.onnx") == "onnx-file"


def test_a_folder_is_no_model(tmp_path: Path) -> None:
    assert code_of(tmp_path) == "onnx-file"


@pytest.mark.parametrize("data", [b"", b"hello, world", bytes(range(256)) * 8, b"\x08"])
def test_not_a_model(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(data)
    assert code_of(path) == "onnx-file"


def test_every_truncation_is_refused_or_sound(tmp_path: Path) -> None:
    data = small().SerializeToString()
    path = tmp_path / "model.onnx"
    refused = 0
    for length in range(0, len(data), 3):
        path.write_bytes(data[:length])
        try:
            from_onnx(path)
        except AotcError:
            refused += 1
    assert refused > len(data) // 3 * 0.8


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 10_000), st.integers(0, 255))
def test_flipped_bytes_never_escape_as_other_errors(position: int, value: int) -> None:
    data = bytearray(small().SerializeToString())
    data[position % len(data)] = value
    proto = ModelProto()
    try:
        proto.ParseFromString(bytes(data))
    except Exception:
        return
    try:
        from_onnx(proto)
    except AotcError as error:
        assert error.diagnostics[0].message


# --- versions


@pytest.mark.parametrize("version", [0, 999])
def test_operator_set_versions(version: int) -> None:
    assert code_of(model_of([RELU], {"x": (2,)}, ["y"], opset=version)) == "onnx-version"


def test_ir_version_of_the_future() -> None:
    model = small()
    model.ir_version = 999
    assert code_of(model) == "onnx-version"


def test_domain_imported_twice() -> None:
    model = small()
    model.opset_import.append(helper.make_opsetid("ai.onnx", 7))
    assert code_of(model) == "onnx-version"


# --- graphs


def test_all_unsupported_operators_are_reported_at_once() -> None:
    nodes = [
        helper.make_node("Frobnicate", ["x"], ["a"], name="first"),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Wibble", ["b"], ["y"], domain="com.example"),
    ]
    model = model_of(nodes, {"x": (2,)}, ["y"])
    with pytest.raises(AotcError) as caught:
        from_onnx(model, name="net.onnx")
    messages = [str(d) for d in caught.value.diagnostics]
    assert len(messages) == 2
    assert "net.onnx: node first: operator Frobnicate" in messages[0]
    assert "Wibble#2" in messages[1]
    assert "com.example" in messages[1]


def test_cycle() -> None:
    nodes = [helper.make_node("Add", ["x", "b"], ["a"], name="one"), helper.make_node("Relu", ["a"], ["b"], name="two")]
    with pytest.raises(AotcError, match=r"cycle: .*one.*two|cycle: .*two.*one") as caught:
        from_onnx(model_of(nodes, {"x": (2,)}, ["b"]))
    assert caught.value.code == "onnx-cycle"


def test_unsorted_nodes_are_sorted() -> None:
    nodes = [helper.make_node("Relu", ["h"], ["y"]), helper.make_node("Neg", ["x"], ["h"])]
    module = from_onnx(model_of(nodes, {"x": (2,)}, ["y"]))
    np.testing.assert_array_equal(run_model(module, {"x": np.array([-1, 2], np.float32)})[0], [1, 0])


def test_tensor_defined_twice() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Neg", ["x"], ["y"])]
    assert code_of(model_of(nodes, {"x": (2,)}, ["y"])) == "onnx-duplicate"


def test_input_declared_twice() -> None:
    model = small()
    model.graph.input.append(model.graph.input[0])
    assert code_of(model) == "onnx-duplicate"


def test_undefined_tensor() -> None:
    assert code_of(model_of([helper.make_node("Add", ["x", "ghost"], ["y"])], {"x": (2,)}, ["y"])) == "onnx-undefined"


def test_undefined_output() -> None:
    assert code_of(model_of([RELU], {"x": (2,)}, ["y", "z"])) == "onnx-undefined"


def test_no_outputs() -> None:
    assert code_of(model_of([RELU], {"x": (2,)}, [])) == "onnx-output"


def test_recursive_function() -> None:
    body = [helper.make_node("Loopy", ["a"], ["b"], domain="local")]
    function = helper.make_function("local", "Loopy", ["a"], ["b"], body, [helper.make_opsetid("local", 1)])
    model = model_of([helper.make_node("Loopy", ["x"], ["y"], domain="local")], {"x": (2,)}, ["y"])
    model.functions.append(function)
    model.opset_import.append(helper.make_opsetid("local", 1))
    assert code_of(model) == "onnx-depth"


def test_functions_that_call_each_other() -> None:
    """Through a subgraph, too."""
    imports = [helper.make_opsetid("local", 1), helper.make_opsetid("", 20)]
    model = model_of([helper.make_node("A", ["x"], ["y"], domain="local")], {"x": (2,)}, ["y"])
    model.opset_import.append(imports[0])
    value = helper.make_tensor_value_info("c", TensorProto.FLOAT, [2])
    yes = helper.make_graph([helper.make_node("A", ["a"], ["c"], domain="local")], "yes", [], [value])
    no = helper.make_graph([helper.make_node("Relu", ["a"], ["c"])], "no", [], [value])
    flag = helper.make_node("Constant", [], ["flag"], value=helper.make_tensor("f", TensorProto.BOOL, [], [1]))
    choice = helper.make_node("If", ["flag"], ["b"], then_branch=yes, else_branch=no)
    calls = helper.make_node("B", ["a"], ["b"], domain="local")
    model.functions.append(helper.make_function("local", "A", ["a"], ["b"], [calls], imports))
    model.functions.append(helper.make_function("local", "B", ["a"], ["b"], [flag, choice], imports))
    with pytest.raises(AotcError, match=r"a function of the model calls itself: [AB] -> [AB] -> [AB]") as caught:
        from_onnx(model)
    assert len(caught.value.diagnostics) == 1


def test_functions_are_counted_before_they_are_expanded() -> None:
    """Each of 30 functions calls the one before it twice, of those every third in a branch."""
    imports = [helper.make_opsetid("local", 1), helper.make_opsetid("", 20)]
    model = model_of([helper.make_node("F29", ["x"], ["y"], domain="local")], {"x": (2,)}, ["y"])
    model.opset_import.append(imports[0])
    relu = helper.make_node("Relu", ["a"], ["b"])
    model.functions.append(helper.make_function("local", "F0", ["a"], ["b"], [relu], imports))
    for k in range(1, 30):
        steps = ((f"F{k - 1}", "a", "t"), (f"F{k - 1}", "t", "b"))
        body = [helper.make_node(name, [given], [made], domain="local") for name, given, made in steps]
        if k % 3 == 0:
            value = helper.make_tensor_value_info("b", TensorProto.FLOAT, [2])
            branch = helper.make_graph(body, "branch", [], [value])
            flag = helper.make_node("Constant", [], ["f"], value=helper.make_tensor("f", TensorProto.BOOL, [], [1]))
            body = [flag, helper.make_node("If", ["f"], ["b"], then_branch=branch, else_branch=branch)]
        model.functions.append(helper.make_function("local", f"F{k}", ["a"], ["b"], body, imports))
    with mock.patch("aotc.relay.frontend.onnx.convert.call_converter") as apply, pytest.raises(AotcError) as caught:
        from_onnx(model)
    assert caught.value.code == "budget"
    assert apply.call_count == 0


def test_function_bomb() -> None:
    """Each function calls the one before it ten times: 10^9 nodes from ten functions."""
    imports = [helper.make_opsetid("local", 1), helper.make_opsetid("", 20)]
    model = model_of([helper.make_node("F9", ["x"], ["y"], domain="local")], {"x": (2,)}, ["y"])
    model.opset_import.append(imports[0])
    body = [helper.make_node("Relu", ["a"], ["b"])]
    model.functions.append(helper.make_function("local", "F0", ["a"], ["b"], body, imports))
    for level in range(1, 10):
        names = ["a", *(f"t{k}" for k in range(9)), "b"]
        body = [helper.make_node(f"F{level - 1}", [names[k]], [names[k + 1]], domain="local") for k in range(10)]
        model.functions.append(helper.make_function("local", f"F{level}", ["a"], ["b"], body, imports))
    with (
        running_or_new_budget_scope({"compile.max_nodes": 1000}),
        pytest.raises(AotcError, match=r'max_nodes": \d{10}}$') as caught,
    ):
        from_onnx(model)
    assert len(caught.value.diagnostics) == 1


@pytest.mark.parametrize("elem", [TensorProto.COMPLEX64, TensorProto.COMPLEX128, 77])
def test_unsupported_element_types(elem: int) -> None:
    assert code_of(model_of([RELU], {"x": (2,)}, ["y"], elem=elem)) == "onnx-dtype"


def test_strings_where_numbers_are_needed() -> None:
    model = model_of([RELU], {"x": (2,)}, ["y"], elem=TensorProto.STRING)
    assert code_of(model) == "onnx-string"  # their length is not stated
    with pytest.raises(AotcError, match="Relu of strings is not supported"):
        from_onnx(model, dims={"x": 8})


def test_declared_output_type_contradicts() -> None:
    model = model_of([RELU], {"x": (2,)}, ["y"])
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.INT32, [2]))
    assert code_of(model) == "onnx-output"


def test_declared_shapes_are_not_relied_on() -> None:
    model = model_of([RELU], {"x": (2,)}, ["y"])
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, [77]))
    assert str(from_onnx(model).main.body.checked_type) == "Tensor[(2), float32]"


def test_attributes() -> None:
    unknown = helper.make_node("Relu", ["x"], ["y"], slope=2.0)
    wrong = helper.make_node("LeakyRelu", ["x"], ["y"], alpha=2)
    missing = helper.make_node("Concat", ["x"], ["y"])
    for node in (unknown, wrong, missing):
        assert code_of(model_of([node], {"x": (2,)}, ["y"])) == "onnx-attribute"


def test_too_many_inputs() -> None:
    assert code_of(model_of([helper.make_node("Relu", ["x", "x"], ["y"])], {"x": (2,)}, ["y"])) == "onnx-input"


# --- shapes and sizes


@pytest.mark.parametrize("shape", [(-1,), (2, -5)])
def test_negative_dimension(shape: tuple[int, ...]) -> None:
    assert code_of(model_of([RELU], {"x": shape}, ["y"])) == "onnx-shape"


def test_size_overflow() -> None:
    assert code_of(model_of([RELU], {"x": (1 << 40, 1 << 40)}, ["y"])) == "onnx-size"


@pytest.mark.parametrize("dims", [(1 << 62, 8), (-3,), (5,), (1 << 20, 1 << 20)])
def test_initializer_whose_data_does_not_fit(dims: tuple[int, ...]) -> None:
    model = small()
    del model.graph.initializer[0].dims[:]
    model.graph.initializer[0].dims.extend(dims)
    assert code_of(model) in ("onnx-tensor", "onnx-shape", "onnx-size")


BIG = [1 << 12, 1 << 12, 1 << 12]  # 64 Gi elements
BOMBS = {
    "Expand": ([helper.make_node("Expand", ["one", "big"], ["c"])], {"one": np.ones(1, np.float32)}),
    "ConstantOfShape": ([helper.make_node("ConstantOfShape", ["big"], ["c"])], {}),
    "Tile": ([helper.make_node("Tile", ["cube", "big"], ["c"])], {"cube": np.ones((1, 1, 1), np.float32)}),
    "Range": (
        [helper.make_node("Range", ["zero", "limit", "step"], ["c"])],
        {"zero": np.float32(0), "limit": np.float32(1e11), "step": np.float32(1)},
    ),
    "Pad": (
        [helper.make_node("Pad", ["one", "pads"], ["c"])],
        {"one": np.ones(1, np.float32), "pads": np.array([0, 1 << 36])},
    ),
    "EyeLike": (
        [helper.make_node("ConstantOfShape", ["square"], ["s"]), helper.make_node("EyeLike", ["s"], ["c"])],
        {"square": np.array([1 << 18, 1 << 18])},
    ),
    "OneHot": (
        [helper.make_node("OneHot", ["index", "depth", "values"], ["c"])],
        {"index": np.array([1]), "depth": np.array(1 << 36), "values": np.array([0, 1], np.float32)},
    ),
    "Outer": (
        [helper.make_node("ConstantOfShape", ["row"], ["r"]), helper.make_node("ConstantOfShape", ["column"], ["k"]),
         helper.make_node("Add", ["r", "k"], ["c"])],
        {"row": np.array([1, 1 << 17]), "column": np.array([1 << 17, 1])},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
def test_folding_bombs_take_no_memory(name: str) -> None:
    """Huge results of small constants: refused, or kept symbolic."""
    nodes, constants = BOMBS[name]
    total = helper.make_node("ReduceSum", ["c"], ["total"], keepdims=0)
    nodes = [*nodes, total, helper.make_node("Add", ["x", "total"], ["y"])]
    model = model_of(nodes, {"x": (2,)}, ["y"], constants={"big": np.array(BIG), **constants})
    tracemalloc.start()
    try:
        from_onnx(model)
    except AotcError as error:
        assert error.code in ("onnx-size", "budget")
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 100 << 20


def test_doubling_bomb() -> None:
    """A small constant doubled again and again stays within the budget of folding."""
    nodes = [helper.make_node("Concat", [f"c{k}", f"c{k}"], [f"c{k + 1}"], axis=0) for k in range(30)]
    nodes += [
        helper.make_node("ReduceSum", ["c30"], ["total"], keepdims=0),
        helper.make_node("Add", ["x", "total"], ["y"]),
    ]
    tracemalloc.start()
    from_onnx(model_of(nodes, {"x": (2,)}, ["y"], constants={"c0": np.ones(4, np.float32)}))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50 << 20


def test_endless_loop() -> None:
    graph = helper.make_graph(
        [helper.make_node("Identity", ["going"], ["on"]), helper.make_node("Add", ["v", "v"], ["w"])],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("going", TensorProto.BOOL, []),
            helper.make_tensor_value_info("v", TensorProto.FLOAT, [2]),
        ],
        [
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("w", TensorProto.FLOAT, [2]),
        ],
    )
    node = helper.make_node("Loop", ["", "", "x"], ["y"], body=graph)
    with running_or_new_budget_scope({"compile.max_unroll": 20}), pytest.raises(AotcError, match='max_unroll": 21'):
        from_onnx(model_of([node], {"x": (2,)}, ["y"]))


# --- external data


def with_external(tmp_path: Path, location: str) -> Path:
    model = small()
    onnx.save_model(
        model, str(tmp_path / "model.onnx"), save_as_external_data=True, location="weights.bin", size_threshold=0
    )
    proto = onnx.load_model(str(tmp_path / "model.onnx"), load_external_data=False)
    for entry in proto.graph.initializer[0].external_data:
        if entry.key == "location":
            entry.value = location
    (tmp_path / "model.onnx").write_bytes(proto.SerializeToString())
    return tmp_path / "model.onnx"


def test_external_data(tmp_path: Path) -> None:
    path = with_external(tmp_path, "weights.bin")
    x = np.ones((2, 4), np.float32)
    expected = run_model(from_onnx(small()), {"x": x})[0]
    np.testing.assert_array_equal(run_model(from_onnx(path), {"x": x})[0], expected)
    np.testing.assert_array_equal(run_model(from_onnx(load_model(path)), {"x": x})[0], expected)


@pytest.mark.parametrize(
    "location", ["../secret.bin", "/etc/passwd", "a/../../secret.bin", "", "none.bin", "\0", ".", "C:\\x"]
)
def test_external_data_outside_the_folder(tmp_path: Path, location: str) -> None:
    (tmp_path / "secret.bin").write_bytes(b"\0" * 4096)
    (tmp_path / "model").mkdir()
    assert code_of(with_external(tmp_path / "model", location)) == "onnx-external-data"


def test_external_data_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "secret.bin").write_bytes(b"\0" * 4096)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "link.bin").symlink_to(tmp_path / "secret.bin")
    assert code_of(with_external(tmp_path / "model", "link.bin")) == "onnx-external-data"


@pytest.mark.parametrize(("key", "value"), [("offset", "-8"), ("offset", "99999"), ("length", "3"), ("offset", "x")])
def test_external_data_that_does_not_fit(tmp_path: Path, key: str, value: str) -> None:
    path = with_external(tmp_path, "weights.bin")
    proto = onnx.load_model(str(path), load_external_data=False)
    entries = [e for e in proto.graph.initializer[0].external_data if e.key != key]
    del proto.graph.initializer[0].external_data[:]
    proto.graph.initializer[0].external_data.extend([*entries, onnx.StringStringEntryProto(key=key, value=value)])
    path.write_bytes(proto.SerializeToString())
    assert code_of(path) == "onnx-external-data"


def test_external_data_of_a_bare_proto(tmp_path: Path) -> None:
    proto = onnx.load_model(str(with_external(tmp_path, "weights.bin")), load_external_data=False)
    assert code_of(proto) == "onnx-external-data"


# --- names


@pytest.mark.parametrize(
    "name", ["*/", 'quo"te', "new\nline", "int", "input_1:0", "a/b/c", "ünï", " ", "%s%n", "x" * 5000]
)
def test_weird_names_are_kept(name: str) -> None:
    node = helper.make_node("Relu", [name], [name + "'"], name=name)
    module = from_onnx(model_of([node], {name: (2,)}, [name + "'"]))
    assert module.main.params[0].name == name
    assert module.attrs["output_names"] == (name + "'",)
    assert module.main.body.span is not None
    assert module.main.body.span.node == name


# --- what a node does not take


def test_stft_of_a_signal_without_parts() -> None:
    """Rank 2, as ONNX Runtime takes it."""
    stft = helper.make_node("STFT", ["x", "step", "", "length"], ["y"])
    constants = {"step": np.array(4), "length": np.array(8)}
    signal = np.arange(32, dtype=np.float32).reshape(2, 16)
    plain = run_model(from_onnx(model_of([stft], {"x": (2, 16)}, ["y"], constants=constants)), {"x": signal})
    parts = from_onnx(model_of([stft], {"x": (2, 16, 1)}, ["y"], constants=constants))
    np.testing.assert_array_equal(plain[0], run_model(parts, {"x": signal[..., None]})[0])


def test_wrong_ranks_name_the_shapes_and_nothing_internal() -> None:
    node = helper.make_node("LSTM", ["x", "w", "r"], ["y"], name="cell", hidden_size=2)
    weights = {"w": np.ones((1, 8, 2), np.float32), "r": np.ones((1, 8, 2), np.float32)}
    with pytest.raises(AotcError) as caught:
        from_onnx(model_of([node], {"x": (3, 2)}, ["y"], constants=weights))
    text = str(caught.value)
    assert "node cell: input 0 (X) of LSTM has shape (3, 2); rank 3 is required" in text
    assert "(3, 2)" in text
    assert not any(word in text for word in ("Error", "unpack", "malformed"))


def test_dimensions_whose_name_is_a_number() -> None:
    """They are fixed: "2" is 2, as yolov8n's exporter writes it; a number beyond 64 bits stays a name."""
    model = model_of([RELU], {"x": ("2", "n", 3)}, ["y"])
    (x,) = from_onnx(model, dims={"n": 4}).main.params
    assert str(x.checked_type) == "Tensor[(2, 4, 3), float32]"
    model = model_of([RELU], {"x": ("9" * 5000, 3)}, ["y"])
    (x,) = from_onnx(model).main.params
    assert not x.checked_type.is_static
