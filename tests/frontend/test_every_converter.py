# SPDX-License-Identifier: Apache-2.0
"""Every ONNX converter, given unsuitable inputs and attributes, converts them or raises an AotcError."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import onnx
import pytest
from evaluation import Array
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from aotc.ir.diagnostics import AotcError
from aotc.relay.frontend.converter_signatures import converter_parameters
from aotc.relay.frontend.onnx import from_onnx, supported_ops
from aotc.relay.frontend.onnx.converter_table import converter_of
from aotc.relay.frontend.onnx.microsoft_operator_schemas import DEFINITIONS
from aotc.relay.frontend.onnx.node import operator_schema

DOMAINS: Final = {
    "": onnx.defs.onnx_opset_version(),
    "ai.onnx.ml": 5,
    "ai.onnx.preview.training": 1,
    "com.microsoft": 1,
}
RANKS: Final = (0, 1, 2, 3, 7)

INTERNALS: Final = re.compile(
    r"Error:|Exception|Traceback|unpack|NoneType|\bobject\b|index out of range|\bTuple|\btuple\b|'list'|'numpy|numpy\."
    r"|not subscriptable|not iterable|has no attribute '__|assert|\bstrict\b|zip\(\)|argument \d|positional"
    r"|<class|<aotc|Expr\b|literal for int|does not take these inputs"
)
"""What Python and its libraries would say, and the text of last resort, which names no constraint."""


def _branch(inputs: int, outputs: int) -> GraphProto:
    """A subgraph that gives constants."""
    value = numpy_helper.from_array(np.zeros((2,), np.float32))
    nodes = [helper.make_node("Constant", [], [f"o{k}"], value=value) for k in range(outputs)]
    infos = [helper.make_tensor_value_info(f"o{k}", TensorProto.FLOAT, None) for k in range(outputs)]
    given = [helper.make_tensor_value_info(f"i{k}", TensorProto.FLOAT, None) for k in range(inputs)]
    return helper.make_graph(nodes, "inner", given, infos)


NAMED: Final = re.compile("the_node|output 'y'")
"""Where the problem is: the node, or the output where it is no tensor."""


@pytest.mark.parametrize(
    ("op", "attributes", "text"),
    [
        (
            "MaxPool",
            {"strides": [0, 0]},
            "strides [0, 0] are not 2 numbers of 1 or more\n  hint: for example strides=[1, 1]",
        ),
        ("AveragePool", {"dilations": [1]}, "dilations [1] are not 2 numbers of 1 or more"),
        ("LpPool", {"pads": [0, 0, 0, -1]}, "pads [0, 0, 0, -1] are not 4 numbers of 0 or more"),
    ],
)
def test_windows_say_which_attribute_is_wrong(op: str, attributes: dict[str, Any], text: str) -> None:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 3, 8, 8]) for name in "xy")
    node = helper.make_node(op, ["x"], ["y"], name="the_node", kernel_shape=[2, 2], **attributes)
    with pytest.raises(AotcError, match=f"node the_node: {re.escape(text)}"):
        from_onnx(helper.make_model(helper.make_graph([node], "g", [x], [y])))


VALUES: Final[dict[int, list[Any]]] = {
    AttributeProto.INT: [1, 0, -9, 2**40],
    AttributeProto.FLOAT: [0.5, -1.0],
    AttributeProto.STRING: ["NOTSET", "", "sum"],
    AttributeProto.INTS: [[1, 1], [2], [0], [1, 2, 3, 4, 5, 6, 7, 8, 9], [-9, -9]],
    AttributeProto.FLOATS: [[0.5], [0.5] * 9],
    AttributeProto.STRINGS: [["a"], ["a", "b", "c"]],
    AttributeProto.TENSOR: [numpy_helper.from_array(np.zeros((2, 2), np.float32))],
    AttributeProto.GRAPH: [_branch(0, 1), _branch(1, 0), _branch(2, 2), _branch(0, 0)],
    AttributeProto.TYPE_PROTO: [helper.make_tensor_type_proto(TensorProto.FLOAT, [2])],
}
"""Values by kind; the first stands in where a node needs an attribute and another one is tried."""


def _required(schema: Any) -> dict[str, AttributeProto]:
    """The attributes without which a node is refused at once."""
    return {n: helper.make_attribute(n, VALUES[int(a.type)][0]) for n, a in schema.attributes.items() if a.required}


def _model(node: NodeProto, dtype: str, ranks: Sequence[int], known: Sequence[Array] = ()) -> ModelProto:
    """A model of one node whose inputs i0, i1, ... have these ranks; the `known` ones come after them."""
    elem = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    inputs = [helper.make_tensor_value_info(f"i{k}", elem, [2] * rank) for k, rank in enumerate(ranks)]
    constants = [numpy_helper.from_array(value, f"i{k}") for k, value in enumerate(known, len(ranks))]
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    graph = helper.make_graph([node], "g", inputs, outputs, constants)
    imports = [helper.make_opsetid(d, v) for d, v in DOMAINS.items()]
    return helper.make_model(graph, opset_imports=imports)


def _node(domain: str, op: str, inputs: Sequence[str], attributes: dict[str, AttributeProto]) -> NodeProto:
    node = helper.make_node(op, inputs, ["y"], name="the_node", domain=domain)
    node.attribute.extend(attributes.values())
    return node


def _shapes(domain: str, op: str, schema: Any) -> Iterator[ModelProto]:
    """Nodes with inputs of all ranks, known or not, floating or integer, as few and as many as may be."""
    most = min(schema.max_input, schema.min_input + 3)
    attributes = _required(schema)
    for count in sorted({schema.min_input, most}):
        node = _node(domain, op, [f"i{k}" for k in range(count)], attributes)
        for rank, dtype in itertools.product(RANKS, ("float32", "int64")):
            ones = np.ones((2,) * rank, dtype)
            for variable in sorted({0, min(count, 1), count}):
                yield _model(node, dtype, [rank] * variable, [ones] * (count - variable))
            yield _model(node, dtype, [rank] * min(count, 1), [np.ones(rank, np.int64)] * (count - 1))
        for first, rest in itertools.permutations(RANKS, 2):
            yield _model(node, "float32", [first, *[rest] * (count - 1)][:count])


def _counts(domain: str, op: str, schema: Any) -> Iterator[ModelProto]:
    """Nodes with too few and too many inputs, and with inputs left out."""
    attributes, most = _required(schema), min(schema.max_input, schema.min_input + 3)
    for count in {0, schema.min_input - 1, schema.max_input + 1}:
        if 0 <= count <= most + 1:
            yield _model(_node(domain, op, [f"i{k}" for k in range(count)], attributes), "float32", [2] * count)
    for left in range(most):
        node = _node(domain, op, ["" if k == left else f"i{k}" for k in range(most)], attributes)
        yield _model(node, "float32", [2] * most)


def _attributes(domain: str, op: str, schema: Any) -> Iterator[ModelProto]:
    """Nodes whose attributes have another kind, other values, or are missing or unknown."""
    inputs, required = [f"i{k}" for k in range(schema.min_input)], _required(schema)
    kinds = {name: int(a.type) for name, a in schema.attributes.items()}
    changes: list[tuple[str, Any]] = [("surplus", 1), *((name, None) for name in kinds)]
    changes += [(name, "a" if kind != AttributeProto.STRING else 1) for name, kind in kinds.items()]
    changes += [(name, value) for name, kind in kinds.items() for value in VALUES.get(kind, ())]
    for name, value in changes:
        attributes = {n: a for n, a in required.items() if n != name}
        if value is not None:
            attributes[name] = helper.make_attribute(name, value)
        node = _node(domain, op, inputs, attributes)
        yield _model(node, "float32", [3] * schema.min_input)
        yield _model(node, "float32", [], [np.ones((), np.int64)] * schema.min_input)


def _operators(domain: str) -> Iterator[tuple[str, Any]]:
    """The operators with a converter that the newest version of a domain has, and their definitions."""
    for op in supported_ops()[domain]:
        schema = operator_schema(op, domain, DOMAINS[domain])
        if schema is not None and not schema.deprecated:
            yield op, schema


def _complaint(model: ModelProto) -> str:
    """What the model is refused with, "" where it is converted."""
    try:
        from_onnx(model, name="m")
    except AotcError as error:
        return str(error)
    return ""


@pytest.mark.always
@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize("nodes", [_shapes, _counts, _attributes])
def test_what_does_not_fit_is_refused_in_plain_words(domain: str, nodes: Callable[..., Iterator[ModelProto]]) -> None:
    texts = {op: {_complaint(m) for m in nodes(domain, op, schema)} - {""} for op, schema in _operators(domain)}
    assert any(texts.values())
    assert not {t for found in texts.values() for t in found if INTERNALS.search(t) or not NAMED.search(t)}


@pytest.mark.parametrize("domain", DOMAINS)
def test_converters_ask_for_what_their_operators_have(domain: str) -> None:
    """A keyword that no operator knows is misspelt; one without a default must be there in every version."""
    every = [*onnx.defs.get_all_schemas_with_history(), *DEFINITIONS.values()]
    schemas = [s for s in every if s.domain == domain and not s.deprecated]
    known = set().union(*(s.attributes for s in schemas))
    for schema in schemas:
        converter = converter_of(domain, schema.name)
        if converter is None:
            continue
        asked = [p for p in converter_parameters(converter) if p.kind is p.KEYWORD_ONLY and p.name != "node"]
        assert {p.name for p in asked} <= known, schema.name
        given = {n for n, a in schema.attributes.items() if a.required or a.default_value.type}
        lacking = [p.name for p in asked if p.default is p.empty and p.name not in given]
        assert not lacking, f"{schema.name} {schema.since_version}"


@pytest.mark.parametrize("bounds", [(np.zeros(2), np.ones(())), (np.zeros(()), np.arange(2.0))])
def test_bounds_of_several_values_are_not_read_as_their_first(bounds: Sequence[Array]) -> None:
    known = [b.astype(np.float32) for b in bounds]
    model = _model(helper.make_node("Clip", ["i0", "i1", "i2"], ["y"], name="the_node"), "float32", [1], known)
    assert "value of Clip must be one value, it has shape (2,)" in _complaint(model)
