# SPDX-License-Identifier: Apache-2.0
"""One ONNX node as a converter sees it: inputs as expressions, attributes as Python values
with defaults.

def leaky_relu(node: Node) -> Expr:
    return emit("nn.leaky_relu", node[0], alpha=node.number("alpha"))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol, TypeAlias, TypeVar

import onnx
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto

from aotc.ir.diagnostics import AotcError
from aotc.relay.expr import Expr, known_data
from aotc.relay.frontend import graph as g
from aotc.relay.frontend.onnx.load import Array

T = TypeVar("T")


class Host(Protocol):
    """What a converter may ask of the conversion it is part of."""

    def tensor(self, tensor: TensorProto) -> Array:
        """The value of a tensor attribute."""

    def subgraph(self, graph: GraphProto, inputs: Sequence[Expr]) -> list[Expr]:
        """The outputs of a graph attribute (a branch, a loop body) for these inputs."""


@dataclass(slots=True)
class Node:
    """A node about to be converted.

    inputs    expressions; None for optional inputs that are left out
    attrs     attributes by name; defaults of the operator's version are filled in
    since     the version of the operator: the newest operator set that changed it, not newer than the model's
    wanted    per output, whether it has a name (an unnamed output need not be computed)
    """

    op_type: str
    inputs: list[Expr | None]
    attrs: Mapping[str, Any]
    since: int
    wanted: list[bool]
    host: Host

    def __getitem__(self, index: int) -> Expr:
        """An input that must be there."""
        found = self.optional(index)
        if found is None:
            raise AotcError("onnx-input", f"{self.op_type} needs input {index}")
        return found

    def optional(self, index: int) -> Expr | None:
        """An input, None where it is left out."""
        return self.inputs[index] if index < len(self.inputs) else None

    def all_inputs(self) -> list[Expr]:
        """The inputs of a variadic operator."""
        return [self[i] for i in range(len(self.inputs))]

    def wants(self, index: int) -> bool:
        """Whether an output is named."""
        return index < len(self.wanted) and self.wanted[index]

    def const(self, index: int, what: str) -> Array | None:
        """The value of an input that must be known at compile time, None where it is left out.

        Raises AotcError (code "onnx-runtime-shape") where the value depends on run-time data.
        """
        found = self.optional(index)
        if found is None:
            return None
        value = known_data(found)
        if value is None:
            raise AotcError("onnx-runtime-shape", f"{what} of {self.op_type} is not known at compile time")
        return value

    def const_ints(self, index: int, what: str) -> list[int] | None:
        """An integer vector (or scalar) known at compile time, None where it is left out."""
        value = self.const(index, what)
        return None if value is None else [int(v) for v in value.reshape(-1)]

    def const_int(self, index: int, what: str) -> int:
        """A single integer known at compile time."""
        values = self.const_ints(index, what)
        if values is None or len(values) != 1:
            raise AotcError("onnx-input", f"{self.op_type} needs one value for {what}")
        return values[0]

    def needed(self, value: T | None, what: str) -> T:
        """What an operator cannot do without; AotcError (code "onnx-input") where it is left out."""
        if value is None:
            raise AotcError("onnx-input", f"{self.op_type} needs {what}; it is left out")
        return value

    def ints_or_input(self, name: str, index: int) -> list[int] | None:
        """Integers that older versions have as attribute `name` and newer ones as input `index`."""
        return self.ints(name) if name in self.attrs else self.const_ints(index, f"`{name}`")

    def integer(self, name: str, default: int = 0) -> int:
        return int(self.attrs.get(name, default))

    def flag(self, name: str, default: int = 0) -> bool:
        return bool(self.integer(name, default))

    def axis(self, x: Expr, default: int = 0) -> int:
        """The attribute `axis` as an axis of a tensor, from 0."""
        return g.axis(self.integer("axis", default), g.rank(x))

    def number(self, name: str, default: float = 0.0) -> float:
        return float(self.attrs.get(name, default))

    def text(self, name: str, default: str = "") -> str:
        return str(self.attrs.get(name, default))

    def ints(self, name: str) -> list[int] | None:
        """An attribute that is a list of integers, None where it is absent."""
        value = self.attrs.get(name)
        return None if value is None else [int(v) for v in value]

    def graph(self, name: str) -> GraphProto:
        """A graph attribute."""
        if name not in self.attrs:
            raise AotcError("onnx-attribute", f"{self.op_type} needs the graph attribute {name!r}")
        found: GraphProto = self.attrs[name]
        return found


Converted: TypeAlias = "Expr | Sequence[Expr | None]"
Converter: TypeAlias = Callable[[Node], Converted]
"""What converts a node: one expression, or one per output (None for one that is not computed)."""
Table: TypeAlias = Mapping[str, Converter]


def of_input(function: Callable[[Expr], Expr]) -> Converter:
    """A converter for an operator of one input without attributes."""
    return lambda node: function(node[0])


def value_of(attribute: AttributeProto) -> Any:
    """The Python value of an attribute; tensors and graphs stay protos."""
    match attribute.type:
        case AttributeProto.FLOAT:
            return attribute.f
        case AttributeProto.INT:
            return attribute.i
        case AttributeProto.STRING:
            return attribute.s.decode("utf-8", "replace")
        case AttributeProto.TENSOR:
            return attribute.t
        case AttributeProto.GRAPH:
            return attribute.g
        case AttributeProto.FLOATS:
            return list(attribute.floats)
        case AttributeProto.INTS:
            return list(attribute.ints)
        case AttributeProto.STRINGS:
            return [s.decode("utf-8", "replace") for s in attribute.strings]
        case AttributeProto.TENSORS:
            return list(attribute.tensors)
        case AttributeProto.TYPE_PROTO:
            return attribute.tp
    raise AotcError("onnx-attribute", f"attribute {attribute.name!r} has a kind that is not supported")


@cache
def schema_of(op_type: str, domain: str, version: int) -> Any:
    """The definition of an operator in a version of its domain, None where there is none."""
    try:
        return onnx.defs.get_schema(op_type, version, domain)
    except onnx.defs.SchemaError:
        return None


_LEGACY = frozenset({"consumed_inputs"})
"""Attributes of operator sets 1 to 5 that never changed a result."""


def attributes_of(node: NodeProto, schema: Any) -> dict[str, Any]:
    """The attributes of a node with the schema's defaults filled in.

    Raises AotcError (code "onnx-attribute") for unknown, wrongly typed and missing attributes.
    """
    given = {a.name: a for a in node.attribute if a.name not in _LEGACY}
    if schema is None:
        return {name: value_of(a) for name, a in given.items()}
    result = {}
    for name, attribute in given.items():
        definition = schema.attributes.get(name)
        if definition is None:
            text = f"{node.op_type} version {schema.since_version} has no attribute {name!r}"
            known = ", ".join(sorted(schema.attributes))
            raise AotcError("onnx-attribute", text, hint=f"known: {known}" if known else "it has none")
        if int(definition.type) != attribute.type:
            expected = str(definition.type).rpartition(".")[2]
            raise AotcError("onnx-attribute", f"attribute {name!r} of {node.op_type} must be of kind {expected}")
        result[name] = value_of(attribute)
    for name, definition in schema.attributes.items():
        if name in result:
            continue
        if definition.required:
            raise AotcError("onnx-attribute", f"{node.op_type} needs the attribute {name!r}")
        if definition.default_value.type:
            result[name] = value_of(definition.default_value)
    return result


_UNBOUNDED = 2**31 - 1
"""What the schema of an operator says for any number of inputs."""


def _bounds(schema: Any) -> str:
    """How many inputs an operator takes, in words."""
    least, most = schema.min_input, schema.max_input
    if most >= _UNBOUNDED:
        return f"at least {least} inputs"
    return f"{least} inputs" if least == most else f"{least} to {most} inputs"


def check_arity(node: NodeProto, schema: Any) -> None:
    """AotcError (code "onnx-input") where a node has too few or too many inputs or outputs."""
    if not schema.min_input <= len(node.input) <= schema.max_input:
        raise AotcError("onnx-input", f"{node.op_type} takes {_bounds(schema)}, {len(node.input)} are given")
    if len(node.output) > schema.max_output:
        raise AotcError("onnx-input", f"{node.op_type} has at most {schema.max_output} outputs")
