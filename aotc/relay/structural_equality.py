# SPDX-License-Identifier: Apache-2.0
"""Structural equality and hashing of expressions, modules and types, up to the names of bound
variables.

Spans and inferred types are ignored as well; annotations, attributes, constant values (bit for bit)
and the sharing of nodes are compared.

structural_equal(Function((x,), add(x, x)), Function((y,), add(y, y)))      # True
assert_structural_equal(before, after)                                      # AotcError says where they differ
"""

from __future__ import annotations

import ctypes
import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import numpy as np

from aotc.ir import (
    AotcError,
    Attrs,
    FuncType,
    Op,
    Type,
    TypeVar,
    component_types,
    replace_component_types,
    substitute_type_vars,
    type_vars,
)
from aotc.relay.adt import Pattern, PatternConstructor, TypeData, subpatterns
from aotc.relay.expr import Constant, Constructor, Expr, Function, GlobalVar, Let, Match, Node, Tuple, Var
from aotc.relay.graph_api import IRModule, children, node_kind, post_order, variables_bound_by_node

#: Number of leading elements of a constant that its hash covers; equality compares all elements.
_MAX_HASHED_ELEMENTS: Final = 64


#: Path from a node to the root, as a linked list of field names.
_Path: TypeAlias = "tuple[str, _Path | None]"
_Pair: TypeAlias = "tuple[Expr, Expr, _Path]"


def _text_of_path_labels(path: _Path | None) -> str:
    labels = []
    while path is not None:
        label, path = path
        labels.append(label)
    return "".join(reversed(labels))


@dataclass(slots=True)
class _Comparison:
    """State of one comparison of two programs: the nodes matched so far, and the pairs still to
    compare.
    """

    map_free_vars: bool
    exact: bool
    types: dict[TypeVar, Type] = field(default_factory=dict)  # type variables of the second program
    forth: dict[Expr, Expr] = field(default_factory=dict)
    back: dict[Expr, Expr] = field(default_factory=dict)
    stack: list[_Pair] = field(default_factory=list)

    def first_difference(self, a: Expr, b: Expr, root_label: str) -> str:
        """Return the first difference between two expressions with its path, "" if they are equal."""
        self.stack.append((a, b, (root_label, None)))
        while self.stack:
            left, right, path = self.stack.pop()
            problem = self._compare_nodes_and_push_children(left, right, path)
            if problem:
                return f"{_text_of_path_labels(path)}: {problem}"
        return ""

    def _compare_nodes_and_push_children(self, a: Expr, b: Expr, path: _Path) -> str:
        if type(a) is not type(b) and not (isinstance(a, Op) and isinstance(b, Op)):
            return f"{type(a).__name__} and {type(b).__name__}"
        if a in self.forth or b in self.back:
            same = self.forth.get(a) is b and self.back.get(b) is a
            return "" if same else _text_naming_two_variables(a, b) or "a node is shared on one side only"
        if isinstance(a, Var) and isinstance(b, Var):
            return self._variable_difference(a, b)
        if isinstance(a, Function) and isinstance(b, Function):
            self.types.update(zip(b.type_params, a.type_params, strict=False))
        problem = self._node_property_difference(a, b)
        if problem or _is_freely_shareable_leaf(a):
            return problem
        self._record_equal_nodes(a, b)
        problem = self._bind_variables_and_compare_types(a, b)
        if not problem:
            pairs = zip(_child_path_labels(a), children(a), children(b), strict=True)
            self.stack.extend(reversed([(x, y, (label, path)) for label, x, y in pairs]))
        return problem

    def _record_equal_nodes(self, a: Expr, b: Expr) -> None:
        self.forth[a] = b
        self.back[b] = a

    def _variable_difference(self, a: Var, b: Var) -> str:
        """Return the difference between two variables that have not been compared before, "" if
        there is none.
        """
        if not self.map_free_vars:
            return "" if a is b else _text_naming_two_variables(a, b)
        self._record_equal_nodes(a, b)
        return "" if a.annotation == self._rename_type_vars(b.annotation) else _text_naming_two_variables(a, b)

    def _rename_type_vars(self, value: Any) -> Any:
        """Return a property of the second program with its type variables replaced by those of the
        first program.
        """
        return substitute_type_vars(value, self.types) if self.types and isinstance(value, Type) else value

    def _node_property_difference(self, a: Expr, b: Expr) -> str:
        """Return the difference between two nodes of one class, apart from their children; "" if
        there is none.
        """
        for (text, left), (_, given) in zip(_compared_properties(a), _compared_properties(b), strict=True):
            right = self._rename_type_vars(given)
            if left != right and (self.exact or _normalize_attribute_value(left) != _normalize_attribute_value(right)):
                return text.format(left, given)
        if isinstance(a, Function) and isinstance(b, Function) and (a.ret_type or b.ret_type):
            # inferred result types count as declared ones
            mine, theirs = a.ret_type or a.body.checked_type, b.ret_type or b.body.checked_type
            if mine is not None and theirs is not None and mine != self._rename_type_vars(theirs):
                return f"result types {a.ret_type} and {b.ret_type}"
        if isinstance(a, Constant) and isinstance(b, Constant) and not are_bit_identical(a.data, b.data):
            return f"a constant of type {a.checked_type} and a constant of type {b.checked_type}"
        return ""

    def _bind_variables_and_compare_types(self, a: Expr, b: Expr) -> str:
        """Match the variables that two nodes bind; return a difference of their types, "" if there
        is none.
        """
        left, right = variables_bound_by_node(a), variables_bound_by_node(b)
        for x, y in zip(left, right, strict=True):
            mine, theirs = x.annotation, self._rename_type_vars(y.annotation)
            # inference writes types into the variables of lets and matches
            known = None if isinstance(a, Function) else x.checked_type
            if mine != theirs and (known is None or known != self._rename_type_vars(y.checked_type)):
                return f"variable {x.name} is declared as {mine}, {y.name} as {y.annotation}"
            self._record_equal_nodes(x, y)
        return ""


def _is_freely_shareable_leaf(node: Expr) -> bool:
    """Return True for a node that may be shared or duplicated without a structural difference."""
    return isinstance(node, (Constant, GlobalVar, Op, Constructor)) or (isinstance(node, Tuple) and not node.fields)


def _text_naming_two_variables(a: Expr, b: Expr) -> str:
    return f"variables {a.name} and {b.name}" if isinstance(a, Var) and isinstance(b, Var) else ""


def are_bit_identical(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    """Return True if two arrays of equal dtype and shape have equal bits (NaN equals NaN, 0.0
    differs from -0.0).
    """
    if a is b:
        return True
    raw = np.dtype(f"V{a.dtype.itemsize}")
    if a.size and not any(a.strides) and not any(b.strides):  # two splats, or two scalars
        return a.flat[:1].tobytes() == b.flat[:1].tobytes()
    return bool((np.ascontiguousarray(a).view(raw) == np.ascontiguousarray(b).view(raw)).all())


#: Properties of each kind of node besides its children, each with a message template for two values
#: that differ.
_COMPARED_PROPERTIES: Final[Mapping[str, Mapping[str, Callable[[Any], Any]]]] = MappingProxyType(
    {
        "call": {"{} and {} arguments": lambda n: len(n.args), "attributes {} and {}": lambda n: n.attrs},
        "tuple": {"{} and {} fields": lambda n: len(n.fields)},
        "tuple_getitem": {"fields {} and {}": lambda n: n.index},
        "function": {
            "{} and {} parameters": lambda n: len(n.params),
            "type parameters of kinds {} and {}": lambda n: [v.kind.name for v in n.type_params],
            "attributes {} and {}": lambda n: dict(n.attrs),
        },
        "global_var": {"@{} and @{}": lambda n: n.name},
        "op": {"{} and {}": lambda n: n.name},
        "constructor": {"{} and {}": lambda n: f"{n.belong_to}.{n.name_hint}"},
        "match": {
            "patterns {} and {}": lambda n: [n.complete, *(_pattern_without_variable_names(c.lhs) for c in n.clauses)]
        },
        "constant": {"a constant of type {} and a constant of type {}": lambda n: n.checked_type},
    }
)


def _pattern_without_variable_names(pattern: Pattern) -> list[Any]:
    """Return a nested list that describes a pattern without the names of its variables."""
    constructor = pattern.constructor if isinstance(pattern, PatternConstructor) else None
    head = type(pattern).__name__ if constructor is None else f"{constructor.belong_to}.{constructor.name_hint}"
    return [head, *map(_pattern_without_variable_names, subpatterns(pattern))]


def _compared_properties(node: Expr) -> list[tuple[str, Any]]:
    return [(text, fact(node)) for text, fact in _COMPARED_PROPERTIES.get(node_kind(node).name, {}).items()]


def _child_path_labels(node: Expr) -> Iterator[str]:
    """Yield a label for each of `children(node)`, in their order: the path of the field that holds
    it.
    """
    if isinstance(node, Match):
        yield from (".data", *(f".clauses{v.name}" for v in variables_bound_by_node(node)))
        yield from (f".clauses[{k}]" for k in range(len(node.clauses)))
        return
    for name, value in ((f.name, getattr(node, f.name)) for f in dataclasses.fields(node)):
        if isinstance(value, (Node, Op)):
            yield f".{name}"
        elif isinstance(value, tuple) and name != "type_params":
            yield from (f".{name}[{k}]" for k in range(len(value)))


def _type_difference(a: Type | TypeData, b: Type | TypeData, map_free_vars: bool) -> str:
    alike = False
    if isinstance(a, TypeData) and isinstance(b, TypeData):
        mine, theirs = ([(c.name_hint, c.checked_type) for c in data.constructors] for data in (a, b))
        alike = a.header == b.header and len(a.type_vars) == len(b.type_vars) and mine == theirs
    elif not isinstance(a, TypeData) and not isinstance(b, TypeData):
        a_vars, b_vars = (type_vars(t) if map_free_vars else [] for t in (a, b))
        alike = len(a_vars) == len(b_vars) and a == substitute_type_vars(b, dict(zip(b_vars, a_vars, strict=True)))
    return "" if alike else f"types {a} and {b}"


def structural_difference(a: Any, b: Any, map_free_vars: bool = False, exact: bool = False) -> str:
    """Return the first difference between two programs or types with its path; "" if they are
    structurally equal.
    """
    if isinstance(a, list | tuple) and isinstance(b, list | tuple) and len(a) == len(b):
        differences = (structural_difference(x, y, map_free_vars, exact) for x, y in zip(a, b, strict=True))
        return next((text for text in differences if text), "")
    if isinstance(a, Type | TypeData) and isinstance(b, Type | TypeData):
        return _type_difference(a, b, map_free_vars)
    if isinstance(a, Expr) and isinstance(b, Expr):
        return _Comparison(map_free_vars, exact).first_difference(a, b, "expr")
    if not isinstance(a, IRModule) or not isinstance(b, IRModule):
        return "" if isinstance(a, str | int) and a == b else f"{type(a).__name__} and {type(b).__name__}"
    if dict(a.attrs) != dict(b.attrs):
        return f"module attributes {dict(a.attrs)} and {dict(b.attrs)}"
    only = set(a) ^ set(b)
    if only:
        return f"function @{min(only)} is in one module only"
    kinds = a.type_definitions, b.type_definitions
    if names := kinds[0].keys() ^ kinds[1].keys():
        return f"type {min(map(str, names))} is in one module only"
    if text := next((t for n in kinds[0] if (t := _type_difference(kinds[0][n], kinds[1][n], False))), ""):
        return text
    differences = (
        _Comparison(map_free_vars, exact).first_difference(a[name], b[name], f"@{name}") for name in sorted(a)
    )
    return next((text for text in differences if text), "")


def structural_equal(a: Any, b: Any, map_free_vars: bool = False, exact: bool = False) -> bool:
    """Return True if two programs, types, or sequences of them are equal up to the names of bound
    variables.

    Free variables are equal only to themselves, unless `map_free_vars` matches them like bound
    variables. Numbers in attributes are compared after rounding to float32 or, with `exact`, as
    they are.
    """
    return not structural_difference(a, b, map_free_vars, exact)


def assert_structural_equal(a: Any, b: Any, map_free_vars: bool = False) -> None:
    """Raise AotcError (code "not-equal") with the first difference and its path unless the programs
    are equal.
    """
    text = structural_difference(a, b, map_free_vars)
    if text:
        raise AotcError("not-equal", f"the programs differ at {text}")


def structural_hash(x: Expr | IRModule | Type | Pattern, map_free_vars: bool = False) -> int:
    """Return a 64-bit hash that is equal for structurally equal programs, if types are inferred for
    both or neither.

    It is stable across processes for closed programs, and with `map_free_vars` for all programs.
    Otherwise a free variable is hashed by identity.
    """
    if isinstance(x, IRModule):
        parts = [f"{name}:{structural_hash(x[name], map_free_vars)}" for name in sorted(x)]
        return int.from_bytes(_hash_digest_of_parts("module", *parts), "little")
    if isinstance(x, Pattern):
        return int.from_bytes(_hash_digest_of_parts("pattern", _pattern_without_variable_names(x)), "little")
    if isinstance(x, Type):
        free = type_vars(x) if map_free_vars else ()
        return int.from_bytes(
            _hash_digest_of_parts("type", _canonical_type_text(x, _numbered_type_vars(free))), "little"
        )
    functions = (f for f in post_order(x) if isinstance(f, Function))
    generic = dict.fromkeys(v for f in functions for v in f.type_params)
    names = _numbered_type_vars(generic)
    numbers: dict[Var, int] = {}
    inferred = {v for node in post_order(x) if isinstance(node, Let | Match) for v in variables_bound_by_node(node)}
    bound = {var for node in post_order(x) for var in variables_bound_by_node(node)}
    digests: dict[Expr, bytes] = {}
    serial = 0
    for node in post_order(x):
        if isinstance(node, Var):
            known = node in bound or map_free_vars
            number = numbers.setdefault(node, len(numbers)) if known else id(node)
            ty = node.checked_type if node in inferred else node.annotation
            digests[node] = _hash_digest_of_parts("var", number, _canonical_type_text(ty, names))
        else:
            serial += not _is_freely_shareable_leaf(node)  # distinguishes a shared node from equal nodes
            below = (digests[child] for child in children(node))
            digests[node] = _hash_digest_of_parts(
                0 if _is_freely_shareable_leaf(node) else serial, *_hashed_node_properties(node, names), *below
            )
    return int.from_bytes(digests[x], "little")


def _hash_digest_of_parts(*parts: object) -> bytes:
    state = hashlib.blake2b(digest_size=8)
    for part in parts:
        state.update(part if isinstance(part, bytes) else f"{part}\0".encode())
    return state.digest()


def _numbered_type_vars(variables: Iterable[TypeVar]) -> dict[TypeVar, Type]:
    return {v: TypeVar(f"#{k}") for k, v in enumerate(variables)}


def _canonical_type_text(ty: Type | None, names: Mapping[TypeVar, Type]) -> str:
    """Return the text of a type; it is equal for equal types, whatever the names of their type
    variables.
    """
    return str(ty and _rename_type_vars_for_hash(ty, names))


def _rename_type_vars_for_hash(ty: Type, names: Mapping[TypeVar, Type]) -> Type:
    """Return `ty` with type variables renamed by `names`, and with polymorphic function types
    reduced to their kinds.
    """
    if isinstance(ty, FuncType) and ty.type_params:
        return TypeVar(str(ty.type_param_kinds))
    new_type: Type = replace_component_types(
        ty, tuple(_rename_type_vars_for_hash(t, names) for t in component_types(ty))
    )
    return names.get(new_type, new_type) if isinstance(new_type, TypeVar) else new_type


def _hashed_node_properties(node: Expr, names: Mapping[TypeVar, Type]) -> tuple[object, ...]:
    """Return the properties that identify a node besides its children: equal for equal nodes."""
    kind = "Op" if isinstance(node, Op) else type(node).__name__
    data = node.data.flat[:_MAX_HASHED_ELEMENTS].tobytes() if isinstance(node, Constant) else b""
    return (
        kind,
        data,
        *(
            _canonical_type_text(v, names) if isinstance(v, Type) else _normalize_attribute_value(v)
            for _, v in _compared_properties(node)
        ),
    )


def _normalize_attribute_value(value: object) -> object:
    """Return a normal form of an attribute value: 1, 1.0 and True are equal and have equal hashes."""
    if isinstance(value, (bool, int)):
        return float(value) if abs(value) < 1 << 53 else value
    if isinstance(value, (list, tuple)):
        return [_normalize_attribute_value(item) for item in value]
    if isinstance(value, Attrs):
        return [type(value).__name__, *(f"{k}={_normalize_attribute_value(v)}" for k, v in value.items())]
    if isinstance(value, Mapping):
        return sorted((str(k), str(_normalize_attribute_value(v))) for k, v in value.items())
    return ctypes.c_float(value).value if isinstance(value, float) and not value.is_integer() else value
