# SPDX-License-Identifier: Apache-2.0
"""Models with names that are not text, ranks beyond all limits, or external data at impossible paths."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from aotc.ir.diagnostics import AotcError
from aotc.relay.frontend.onnx import from_onnx
from tests.cli.invoke import DIGITS, call, refused, save, value

TENSOR = numpy_helper.from_array(np.ones((2, 2), np.float32), "weight_name")
VALUE = helper.make_tensor_value_info


def model(*nodes: NodeProto, rank: int = 2, weights: tuple[TensorProto, ...] = (TENSOR,)) -> ModelProto:
    inputs = [VALUE("input_name", TensorProto.FLOAT, [1] * (rank - 1) + [2])]
    graph = helper.make_graph(list(nodes), "graph_name", inputs, [onnx.ValueInfoProto(name="output_name")], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def complaint(path: Path, found: ModelProto | bytes, code: str) -> str:
    """The one diagnostic of a model, which the command repeats; nothing is left behind."""
    path.write_bytes(found if isinstance(found, bytes) else found.SerializeToString())
    before = set(path.parent.iterdir())
    with pytest.raises(AotcError) as caught:
        from_onnx(path)
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == code
    for arguments in (["compile", path, "-o", path.parent / "out"], ["inspect", path], ["verify", path]):
        said = refused(*arguments)
        assert said.count("error") == 1 and len(said) < 2000
    assert set(path.parent.iterdir()) == before
    return str(caught.value)


# --- names


def named(dimension: str = "") -> bytes:
    """A model with a text of its own in every kind of field; with a fixed shape unless a dimension is named."""
    branch = helper.make_graph(
        [helper.make_node("Neg", ["input_name"], ["branch_value"], name="branch_node")],
        "branch_name", [], [onnx.ValueInfoProto(name="branch_value")],
    )  # fmt: skip
    constant = helper.make_tensor("attribute_tensor", TensorProto.BOOL, [], [True])
    other = helper.make_node("Constant", [], ["condition"], value=constant)
    chosen = helper.make_node("If", ["condition"], ["chosen"], then_branch=branch, else_branch=branch)
    last = helper.make_node("MatMul", ["chosen", "weight_name"], ["product"], name="node_name", domain="ai.onnx")
    padded = helper.make_node("Pad", ["product", "pads"], ["output_name"], mode="constant")
    pads = numpy_helper.from_array(np.array([0, 0, 0, 1]), "pads")
    found = model(other, chosen, last, padded, weights=(TENSOR, pads))
    if dimension:
        found.graph.input[0].type.tensor_type.shape.dim[0].dim_param = dimension
    found.graph.doc_string = "graph_prose"
    found.producer_name = "producer_prose"
    found.graph.node[0].doc_string = "node_prose"
    found.metadata_props.add(key="key_prose", value="value_prose")
    found.graph.input[0].type.denotation = "denotation_prose"
    return found.SerializeToString()


NAMES = {
    "graph_name": "graph.name", "node_name": "graph.node[2].name", "MatMul": "op_type", "ai.onnx": "domain",
    "weight_name": "", "input_name": "", "output_name": "", "product": "", "dimension_name": "dim_param",
    "attribute_tensor": "attribute[0].t.name", "then_branch": "graph.node[1].attribute", "branch_name": "g.name",
    "branch_node": "g.node[0].name", "branch_value": "g.", "value": "",
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("odd", [b"\xff", b"\xc0\xaf", b"\xed\xa0\x80"], ids=["byte", "overlong", "surrogate"])
def test_names_that_are_not_utf8(tmp_path: Path, name: str, odd: bytes) -> None:
    data = named("dimension_name")
    assert name.encode() in data
    changed = data.replace(name.encode(), (odd + name.encode())[: len(name)])
    text = complaint(tmp_path / "m.onnx", changed, "onnx-name")
    assert "m.onnx" in text and "is not UTF-8" in text and NAMES[name] in text and "hint: " in text


def test_attributes_that_are_not_utf8(tmp_path: Path) -> None:
    """Texts in attributes are bytes; what an operator takes among some is named as what it is."""
    with pytest.raises(AotcError, match="mode") as caught:
        (tmp_path / "m.onnx").write_bytes(named().replace(b"constant", b"constan\xff"))
        from_onnx(tmp_path / "m.onnx")
    assert len(caught.value.diagnostics) == 1
    refused("compile", tmp_path / "m.onnx", "-o", tmp_path / "out")


def test_prose_need_not_be_utf8(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(named().replace(b"prose", b"pro\xff\xfe"))
    from_onnx(tmp_path / "m.onnx")
    assert call("inspect", tmp_path / "m.onnx").code == 0


# --- ranks


def of_rank(rank: int, name: str = "weight") -> TensorProto:
    return TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[1] * rank, raw_data=bytes(4))


def _with(op: str, value: np.ndarray, **attributes: object) -> ModelProto:
    node = helper.make_node(op, ["input_name", "value"], ["output_name"], name="wide", **attributes)
    return model(node, weights=(numpy_helper.from_array(value, "value"),))


RELU = helper.make_node("Relu", ["input_name"], ["output_name"])
RANKS: dict[str, Callable[[int], ModelProto]] = {
    "input": lambda rank: model(RELU, rank=rank),
    "initializer": lambda rank: model(
        helper.make_node("Add", ["input_name", "weight"], ["output_name"], name="wide"), weights=(of_rank(rank),)
    ),
    "constant": lambda rank: model(
        helper.make_node("Constant", [], ["c"], name="wide", value=of_rank(rank)),
        helper.make_node("Add", ["input_name", "c"], ["output_name"]),
    ),
    "Unsqueeze": lambda rank: _with("Unsqueeze", np.arange(rank - 2)),
    "Reshape": lambda rank: _with("Reshape", np.array([1] * (rank - 1) + [2])),
    "Expand": lambda rank: _with("Expand", np.array([1] * (rank - 1) + [2])),
    "ConstantOfShape": lambda rank: model(
        helper.make_node("ConstantOfShape", ["ones"], ["c"], name="wide"),
        helper.make_node("Add", ["input_name", "c"], ["output_name"]),
        weights=(numpy_helper.from_array(np.ones(rank, np.int64), "ones"),),
    ),
}


@pytest.mark.parametrize("rank", [33, 64, 65, 100])
@pytest.mark.parametrize("kind", RANKS)
def test_ranks_that_no_tensor_has(tmp_path: Path, kind: str, rank: int) -> None:
    text = complaint(tmp_path / "m.onnx", RANKS[kind](rank), "rank")
    assert f"{rank} dimensions; at most 32" in text and "m.onnx" in text


def test_rank_32_is_taken(tmp_path: Path) -> None:
    for make in RANKS.values():
        assert f"[({'1, ' * 31}2), float32]" in str(from_onnx(make(32)).main.body.checked_type)


# --- external data


PATHS = {
    "long name": "w" * 5000,
    "long path": "w/" * 2500 + "w",
    "long path of dots": "./" * 2500 + "w" * 300,
    "long in UTF-8": "ü" * 5000,
    "NUL": "weights\0.bin",
    "NUL at the end": "weights.bin\0",
    "NUL in a long path": "w" * 5000 + "\0",
    "long path outside": "../" * 1700 + "etc/passwd",
}


@pytest.mark.parametrize("kind", PATHS)
def test_external_data_at_impossible_paths(tmp_path: Path, kind: str) -> None:
    tensor = TensorProto(name="weight", data_type=TensorProto.FLOAT, dims=[2], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=PATHS[kind])
    (tmp_path / "weights.bin").write_bytes(bytes(8))
    node = helper.make_node("Add", ["input_name", "weight"], ["output_name"])
    text = complaint(tmp_path / "m.onnx", model(node, weights=(tensor,)), "onnx-external-data")
    assert "'weight'" in text and len(text) < 500 and "embedded" not in text


# --- branches


def branch(name: str, shape: tuple[int, ...], outputs: int) -> onnx.GraphProto:
    values = [f"{name}{k}" for k in range(outputs)]
    data = numpy_helper.from_array(np.zeros(shape, np.float32))
    nodes = [helper.make_node("Constant", [], [value], value=data) for value in values]
    return helper.make_graph(nodes, name, [], [onnx.ValueInfoProto(name=value) for value in values])


def choice(then: onnx.GraphProto, other: onnx.GraphProto, *nodes: NodeProto, known: bool | None = None) -> ModelProto:
    chosen = helper.make_node("If", ["c"], ["chosen"], name="choice", then_branch=then, else_branch=other)
    weights = [numpy_helper.from_array(np.ones((1, 8, 2), np.float32), name) for name in ("w", "r")]
    if known is not None:
        weights.append(numpy_helper.from_array(np.array(known), "c"))
    found = model(chosen, *nodes, weights=tuple(weights))
    if known is None:
        found.graph.input.append(VALUE("c", TensorProto.BOOL, []))
    return found


CELL = helper.make_node("LSTM", ["chosen", "w", "r"], ["output_name"], name="cell", hidden_size=2)
KEPT = helper.make_node("Identity", ["chosen"], ["output_name"], name="kept")


@pytest.mark.parametrize(("then", "other"), [(1, 2), (2, 1), (0, 1), (1, 0), (0, 0)])
def test_branches_of_unlike_numbers_of_outputs(tmp_path: Path, then: int, other: int) -> None:
    found = choice(branch("yes", (3, 1, 2), then), branch("no", (3, 1, 2), other), KEPT)
    path = tmp_path / "m.onnx"
    path.write_bytes(found.SerializeToString())
    with pytest.raises(AotcError) as caught:
        from_onnx(path)
    text = str(caught.value)
    assert "choice" in text and str(then) in text and str(other) in text
    assert not any(word in text for word in ("unpack", "zip()", "index out", "Error"))
    refused("compile", path, "-o", tmp_path / "out")


@pytest.mark.parametrize("known", [None, True, False])
@pytest.mark.parametrize(("then", "other"), [((3, 2), (3, 2)), ((3, 1, 5), (3, 1, 5)), ((3, 1, 2), (3, 2)), ((), ())])
def test_branches_whose_shapes_do_not_fit_what_follows(
    tmp_path: Path, then: tuple[int, ...], other: tuple[int, ...], known: bool | None
) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(choice(branch("yes", then, 1), branch("no", other, 1), CELL, known=known).SerializeToString())
    if known and then == (3, 1, 2):
        from_onnx(path)
        return
    with pytest.raises(AotcError) as caught:
        from_onnx(path)
    text = str(caught.value)
    unlike = known is None and then != other
    shown = {(3, 1, 5): "(1, 8, 5)"}  # the weights that 5 features need
    taken = [then, other] if unlike else [other if known is False else then]
    assert ("choice" if unlike else "cell") in text
    assert all(shown.get(shape, str(shape)) in text for shape in taken)
    assert not any(word in text for word in ("unpack", "malformed", "Error"))
    refused("compile", path, "-o", tmp_path / "out")


def embedding(path: Path, rows: int) -> Path:
    """Rows of a table by number."""
    table = np.arange(2.0 * rows, dtype=np.float32).reshape(rows, 2)
    gather = helper.make_node("Gather", ["table", "i"], ["y"])
    return save(path, [gather], [value("i", (3,), TensorProto.INT64)], [value("y", None)], table=table)


@pytest.mark.parametrize("command", ["verify", "bench"])
def test_a_reference_that_fails_is_one_diagnostic(tmp_path: Path, command: str) -> None:
    """Integers beyond the rows of a table, which ONNX Runtime refuses."""
    model = embedding(tmp_path / "table.onnx", 2)
    text = refused(command, model, "--cflags=-O1", "--input-range", "i=5:9")
    assert "onnxruntime cannot run the model on these inputs" in text and "--inputs FILE.npz" in text
    np.savez(tmp_path / "valid.npz", i=np.array([0, 1, -1]))
    more = ("--against", "onnxruntime", "--repeat", "1") if command == "bench" else ()
    assert call(command, model, "--cflags=-O1", "--inputs", tmp_path / "valid.npz", *more).code == 0


def test_verify_names_the_file(tmp_path: Path) -> None:
    model = save(tmp_path / "unknown.onnx", [helper.make_node("Nothing", ["x"], ["y"])], [value("x")], [value("y")])
    assert "unknown.onnx" in refused("verify", model)


def test_small_things_said_clearly(tmp_path: Path) -> None:
    assert "it is a model, not a library" in refused("run", DIGITS)
    assert "for TFLite models alone" in refused("verify", DIGITS, "--rounding", "litert")
    assert "the name of the C compiler is empty" in refused("compile", DIGITS, "-o", tmp_path / "a", "--cc", "")
    assert "compile.max_work must not be negative, got -1" in refused(
        "inspect", DIGITS, "--config", "compile.max_work=-1"
    )
    (tmp_path / "file").write_text("mine")
    text = refused("compile", DIGITS, "-o", tmp_path / "file" / "below", "--no-build")
    assert "file is not a directory" in text and "tensor passes" not in text
    deep = "(" * 300 + "%x" + ",)" * 300
    (tmp_path / "deep.relay").write_text(f'#[version = "0.0.5"]\ndef @main(%x: int32) {{\n  {deep}\n}}\n')
    assert "deep.relay:3:" in refused("inspect", tmp_path / "deep.relay")
