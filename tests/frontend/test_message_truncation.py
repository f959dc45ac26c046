# SPDX-License-Identifier: Apache-2.0
"""Text of a model is truncated in messages, and its terminal control characters are removed, wherever it occurs."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
from onnx import AttributeProto, ModelProto, TensorProto, helper

from aotc.ir import AotcError, Diagnostic, Span
from aotc.ir.terminal_safe_text import MAX_TEXT_CHARACTERS, escape_unsafe_text
from aotc.relay.frontend.onnx import from_onnx
from tests.frontend.evaluation import model_of

LONG = "\x1b[2J\n\u202e" + "n" * 1_000_000 + " " + "m n " * 100_000
UNSAFE = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e]")


def plain() -> ModelProto:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["h"], name="conv", auto_pad="VALID", kernel_shape=[3, 3]),
        helper.make_node("Own", ["h"], ["y"], name="own", domain="local"),
    ]
    model = model_of(nodes, {"x": (1, 2, 5, 5)}, ["y"], constants={"w": np.ones((3, 2, 3, 3), np.float32)})
    imports = [helper.make_opsetid("local", 1), helper.make_opsetid("", 20)]
    body = [helper.make_node("Relu", ["a"], ["b"], name="relu")]
    model.functions.append(helper.make_function("local", "Own", ["a"], ["b"], body, imports))
    model.opset_import.append(imports[0])
    return model


def attribute(model: ModelProto, name: str) -> AttributeProto:
    return next(a for a in model.graph.node[0].attribute if a.name == name)


def lose_input(model: ModelProto) -> None:
    """A node whose name is long, with an input that is missing."""
    model.graph.node[0].name = LONG
    del model.graph.node[0].input[1]


def contradict_type(model: ModelProto) -> None:
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info(LONG, TensorProto.INT32, [1]))
    model.graph.node[1].output[0] = LONG


def pin_dim(model: ModelProto) -> None:
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_param = LONG
    model.graph.node[0].CopyFrom(helper.make_node("SpaceToDepth", ["x"], ["h"], blocksize=5))


def swap_dtype(model: ModelProto) -> None:
    model.graph.initializer[0].name = model.graph.node[0].input[1] = LONG
    model.graph.initializer[0].data_type = 77


def equation(model: ModelProto) -> None:
    model.graph.node[0].CopyFrom(helper.make_node("Einsum", ["x"], ["h"], equation=LONG))


def activation(model: ModelProto) -> None:
    node = helper.make_node("RNN", ["x", "w", "w"], ["h"], activations=[LONG], direction=LONG)
    model.graph.node[0].CopyFrom(node)


def rename_function(model: ModelProto) -> None:
    """A function that calls itself."""
    model.functions[0].name = model.graph.node[1].op_type = LONG
    model.functions[0].node[0].op_type, model.functions[0].node[0].domain = LONG, "local"


PLACES: dict[str, Callable[[ModelProto], object]] = {
    "node": lose_input,
    "operator": lambda m: setattr(m.graph.node[0], "op_type", LONG),
    "domain": lambda m: setattr(m.graph.node[0], "domain", LONG),
    "input of a node": lambda m: m.graph.node[0].input.__setitem__(1, LONG),
    "input": lambda m: setattr(m.graph.input[0], "name", LONG),
    "output": lambda m: setattr(m.graph.output[0], "name", LONG),
    "output of another type": contradict_type,
    "initializer": swap_dtype,
    "initializer twice": lambda m: [m.graph.initializer.add().CopyFrom(TensorProto(name=LONG)) for _ in range(2)],
    "attribute": lambda m: setattr(attribute(m, "auto_pad"), "name", LONG),
    "string": lambda m: setattr(attribute(m, "auto_pad"), "s", LONG.encode()),
    "equation": equation,
    "activation": activation,
    "dimension": pin_dim,
    "function": rename_function,
    "domain of an operator set": lambda m: setattr(m.opset_import[0], "domain", LONG),
    "graph": lambda m: (setattr(m.graph, "name", LONG), setattr(m.graph.node[0], "op_type", "Nothing")),
    "external data": lambda m: (
        setattr(m.graph.initializer[0], "data_location", TensorProto.EXTERNAL),
        m.graph.initializer[0].external_data.add(key="location", value=LONG),
    ),
}


@pytest.mark.parametrize("place", PLACES)
def test_messages_are_short_and_harmless(place: str) -> None:
    model = plain()
    PLACES[place](model)
    with pytest.raises(AotcError) as caught:
        from_onnx(model)
        pytest.fail("converted")
    text = str(caught.value)
    assert len(text) < 4 * MAX_TEXT_CHARACTERS * len(caught.value.diagnostics)
    assert not UNSAFE.search(text)
    assert text.count("\n") < 6 * len(caught.value.diagnostics)


def test_documents_and_metadata_are_not_looked_at() -> None:
    model = plain()
    for holder in (model, model.graph, model.graph.node[0], model.graph.input[0]):
        holder.doc_string = LONG
    model.producer_name, model.domain = LONG, LONG
    from_onnx(model)


def test_every_part_of_a_diagnostic_is_made_printable() -> None:
    span = Span(f"{LONG}.onnx", node=LONG)
    text = str(Diagnostic("code", LONG, span, (LONG, "second"), LONG))
    assert len(text) < 6 * MAX_TEXT_CHARACTERS
    assert not UNSAFE.search(text)
    assert text.count("\n") == 3


def test_ordinary_text_stays_as_it_is() -> None:
    for text in ("conv/weights:0", "größe", "一", "a" * 400, "word " * 700):
        assert escape_unsafe_text(text) == text
    assert escape_unsafe_text("a\x1bb\nc\u202ed") == "a\\x1bb\\nc\\u202ed"
    assert escape_unsafe_text(escape_unsafe_text(LONG)) == escape_unsafe_text(LONG)
