# SPDX-License-Identifier: Apache-2.0
"""Load programs that TVM (0.6 and later) saved as JSON graphs of nodes.

{"root": 1, "nodes": [{"type_key": ""}, {"type_key": "GlobalVar", "attrs": {"name_hint": "f"}}],
"b64ndarrays": []}

Supported nodes: types, variables, constants, functions, control flow, modules of functions, numbers
and containers. Calls of operators with attributes are not supported, since the format does not
distinguish a number "1" from a reference to node 1 in attributes.
"""

from __future__ import annotations

import base64
import operator
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from aotc.ir import (
    AotcError,
    FloatImm,
    GlobalVar,
    IncompleteType,
    IntImm,
    ParameterFileReader,
    SymDim,
    Task,
    get_op,
    maximum_of_dims,
    minimum_of_dims,
    run_recursive_task,
)
from aotc.ir.types import FuncType, GlobalTypeVar, RefType, TensorType, TupleType, TypeCall, TypeKind, TypeVar
from aotc.relay.expr import Call, Constant, Function, If, Let, RefCreate, RefRead, RefWrite, Tuple, TupleGetItem, Var
from aotc.relay.module import IRModule


def _call_from_json_fields(op: Any, args: Any, attrs: Any) -> Call:
    return Call(op, args, attrs)


#: For each type key, without its namespace: the constructor of the object, and its fields.
#: "=field" is text, "$field" a name, "#field" an array; fields without a prefix are nodes.
_CONSTRUCTORS_BY_TYPE_KEY: Final[Mapping[str, tuple[Callable[..., Any], str]]] = MappingProxyType(
    {
        "IntImm": (lambda dtype, value: IntImm(dtype, int(value)), "=dtype =value"),
        "FloatImm": (lambda dtype, value: FloatImm(dtype, float(value)), "=dtype =value"),
        "tir.Var": (SymDim, "$name"),
        "Variable": (SymDim, "$name"),
        "SizeVar": (SymDim, "$name"),
        "Any": (SymDim, ""),
        "Add": (operator.add, "a b"),
        "Sub": (operator.sub, "a b"),
        "Mul": (operator.mul, "a b"),
        "FloorDiv": (operator.floordiv, "a b"),
        "Max": (lambda *dims: maximum_of_dims(dims), "a b"),
        "Min": (lambda *dims: minimum_of_dims(dims), "a b"),
        "TensorType": (lambda shape, dtype: TensorType(shape or (), dtype), "shape =dtype"),
        "TupleType": (TupleType, "fields"),
        "FuncType": (FuncType, "arg_types ret_type type_params"),
        "RefType": (RefType, "value"),
        "RelayRefType": (RefType, "value"),
        "TypeVar": (lambda name, kind: TypeVar(name, TypeKind(int(kind))), "$name_hint =kind"),
        "GlobalTypeVar": (lambda name, kind: GlobalTypeVar(name, TypeKind(int(kind))), "$name_hint =kind"),
        "IncompleteType": (lambda kind: IncompleteType(TypeKind(int(kind))), "=kind"),
        "TypeCall": (TypeCall, "func args"),
        "Id": (str, "$name_hint"),
        "Var": (Var, "vid type_annotation"),
        "GlobalVar": (GlobalVar, "$name_hint"),
        "Constant": (Constant, "#data"),
        "Tuple": (Tuple, "fields"),
        "TupleGetItem": (lambda value, index: TupleGetItem(value, int(index)), "tuple_value =index"),
        "Let": (Let, "var value body"),
        "If": (If, "cond true_branch false_branch"),
        "RefCreate": (RefCreate, "value"),
        "RefRead": (RefRead, "ref"),
        "RefWrite": (RefWrite, "ref value"),
        "Call": (_call_from_json_fields, "op args attrs"),
        "Function": (Function, "params body ret_type type_params attrs"),
        "DictAttrs": (dict, "__dict__"),
        "IRModule": (lambda functions, attrs: IRModule(functions, attrs or {}), "functions attrs"),
    }
)


class _JsonGraph:
    """The nodes of one JSON graph; the object of each node is constructed once."""

    def __init__(self, data: Any) -> None:
        self.nodes: list[Any] = data["nodes"]
        self.arrays: list[str] = data.get("b64ndarrays", [])
        self.node_by_index: dict[int, Any] = {0: None}
        self.open: set[int] = set()

    def object_of_node(self, node_index: int) -> Task[Any]:
        """Return the object of the node with this index; raise ValueError if the node contains
        itself.
        """
        if node_index not in self.node_by_index:
            if node_index < 0 or node_index in self.open:
                raise ValueError(f"node {node_index} is part of itself")
            self.open.add(node_index)
            self.node_by_index[node_index] = yield from self._construct_node_object(self.nodes[node_index])
        return self.node_by_index[node_index]

    def _construct_node_object(self, node: Any) -> Task[Any]:
        if "global_key" in node:
            return get_op(node["global_key"])
        key, attrs = node["type_key"], node.get("attrs", {})
        if key == "runtime.String":
            return node["repr_str"]
        if key in ("Array", "Map", "StrMap"):
            items = []
            for index in node.get("data", ()):
                items.append((yield self.object_of_node(index)))
            if key == "Array":
                return tuple(items)
            keys = node["keys"] if "keys" in node else items[::2]
            return dict(zip(keys, items if "keys" in node else items[1::2], strict=True))
        form = _CONSTRUCTORS_BY_TYPE_KEY.get(key) or _CONSTRUCTORS_BY_TYPE_KEY.get(key.rpartition(".")[2])
        if form is None:
            raise AotcError("text", f"a node of type {key!r} cannot be read: the type is not supported")
        constructor, fields = form
        values = []
        for field in fields.split():
            values.append((yield self._decode_json_field_value(field, attrs)))
        return constructor(*values)

    def _decode_json_field_value(self, field: str, attrs: Mapping[str, str]) -> Task[Any]:
        name = field.lstrip("=$#")
        if field == "$name_hint" and "var" in attrs:  # TVM 0.6 stores the name of a type variable in its "var"
            return (yield self.object_of_node(int(attrs["var"]))).name
        text = attrs.get(name, "0")
        if field[0] == "=":
            return text
        if field[0] == "#":
            return ParameterFileReader(base64.b64decode(self.arrays[int(text)])).read_array()
        if field[0] == "$":
            string_node = self.nodes[int(text)] if text.isdigit() and int(text) < len(self.nodes) else {}
            return string_node["repr_str"] if string_node.get("type_key") == "runtime.String" else text
        return (yield self.object_of_node(int(text)))


def load_tvm_json_graph(data: Any) -> Any:
    """Return the object of the root node of a parsed JSON graph.

    Raise AotcError (code "text") if the graph is damaged or contains an unsupported node.
    """
    try:
        graph = _JsonGraph(data)
        return run_recursive_task(graph.object_of_node(int(data["root"])))
    except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, AotcError):
            raise
        raise AotcError("text", f"the JSON graph is damaged: {error}") from error
