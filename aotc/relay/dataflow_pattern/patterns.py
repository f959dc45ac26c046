# SPDX-License-Identifier: Apache-2.0
"""Pattern language for expression graphs: immutable pattern objects for calls, tuples, constants,
wildcards etc.

A pattern object that occurs twice in a pattern must match one and the same node at both places.

x, w = wildcard(), wildcard()
conv = is_op("nn.conv2d")(x, w).has_attr({"kernel_size": [3, 3]})
conv.optional(is_op("nn.relu")).match(expr)                  # True or False
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Final

from aotc.ir import AotcTypeError, DType, Op, Type, dataclass_transform, get_op
from aotc.relay.graph_api import Call, Expr, Function, If, Let, Tuple, TupleGetItem, depth_first_post_order

#: Index with which a TupleGetItemPattern matches an access to any field.
ANY_INDEX: Final = -1


def _infix_method_for_op(op_name: str) -> Callable[[DFPattern, DFPattern], CallPattern]:
    """Return the method of a Python infix operator that builds a pattern for calls of operator
    `op_name`.
    """
    return lambda left, right: is_op(op_name)(left, right)


@dataclass_transform(frozen_default=True, eq_default=False)
@dataclass(frozen=True, eq=False, repr=False)
class DFPattern:
    """Base class of the dataflow patterns.

    `+ - * /` build patterns of calls; `p | q` matches what `p` or `q` matches, `p` being tried
    first. Subclasses are frozen dataclasses that are compared by identity. The constructor raises
    AotcTypeError if a sub-pattern is not a DFPattern.
    """

    #: Return True if an expression matches this pattern; `aotc.relay.dataflow_pattern` sets it to
    #: `matcher.match`.
    match: ClassVar[Callable[[DFPattern, Expr], bool]]
    #: Extract each match in an expression into a function; `aotc.relay.dataflow_pattern` sets it to
    #: `groups.partition`.
    partition: ClassVar[Callable[..., Expr]]

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, eq=False, repr=False)(cls)

    def __post_init__(self) -> None:
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            if f.type == "DFPattern":
                _require_values_are_patterns(value)
            elif f.type == "Sequence[DFPattern] | None" and value is not None:
                object.__setattr__(self, f.name, tuple(value))
                _require_values_are_patterns(*getattr(self, f.name))

    def __repr__(self) -> str:
        values = (getattr(self, field.name) for field in dataclasses.fields(self))
        return f"{type(self).__name__}({', '.join(map(str, values))})"

    def __call__(self, *args: Any) -> CallPattern:
        """Return a pattern for calls with this pattern as callee; `pattern(None)` matches any
        number of any arguments.
        """
        return CallPattern(self, None if args == (None,) else args)

    def __or__(self, other: DFPattern) -> AltPattern:
        return AltPattern(self, other)

    __add__, __sub__ = _infix_method_for_op("add"), _infix_method_for_op("subtract")
    __mul__, __truediv__ = _infix_method_for_op("multiply"), _infix_method_for_op("divide")

    def optional(self, option_constructor: Callable[[DFPattern], DFPattern]) -> AltPattern:
        """Return a pattern that matches this pattern alone or wrapped by `option_constructor`, e.g.
        an optional ReLU.
        """
        return self | option_constructor(self)

    def has_attr(self, attrs: Mapping[str, Any]) -> AttrPattern:
        """Return a pattern that matches this pattern if the node has the given attributes.

        Attributes are those of a call, of its operator ("TOpPattern") or of a function.
        """
        return AttrPattern(self, MappingProxyType(dict(attrs)))

    def has_type(self, ttype: Type) -> TypePattern:
        """Return a pattern that matches this pattern if the inferred type of the node equals
        `ttype`.
        """
        return TypePattern(self, ttype)

    def has_dtype(self, dtype: str) -> DataTypePattern:
        """Return a pattern that matches this pattern if the node is a tensor with data type
        `dtype`.
        """
        return DataTypePattern(self, DType(dtype))

    def has_shape(self, shape: Iterable[Any]) -> ShapePattern:
        """Return a pattern that matches this pattern if the node is a tensor with shape `shape`."""
        return ShapePattern(self, tuple(shape))

    def dominates(self, parent: DFPattern, path: DFPattern | None = None) -> DominatorPattern:
        """Return a DominatorPattern: this pattern as child, dominated by `parent`, with all nodes
        between matching `path`.

        A `path` of None matches any nodes.
        """
        return DominatorPattern(parent, wildcard() if path is None else path, self)


def _require_values_are_patterns(*values: object) -> None:
    for value in values:
        if not isinstance(value, DFPattern):
            hint = "is_expr(...) matches one expression, is_constant() any constant"
            raise AotcTypeError("pattern", f"expected a pattern, not {type(value).__name__}", hint=hint)


class WildcardPattern(DFPattern):
    """Pattern that matches any expression."""


class ExprPattern(DFPattern):
    """Pattern that matches an expression structurally equal to `expr`, or the operator `expr`.

    A variable matches only itself.
    """

    expr: Expr


class VarPattern(DFPattern):
    """Pattern that matches a variable named `name`, or any variable if `name` is empty."""

    name: str = ""


class ConstantPattern(DFPattern):
    """Pattern that matches any constant."""


class CallPattern(DFPattern):
    """Pattern that matches a call by its callee and arguments; `args` of None matches any
    arguments.

    The arguments of `add` and `multiply` match in either order.
    """

    op: DFPattern
    args: Sequence[DFPattern] | None


class FunctionPattern(DFPattern):
    """Pattern that matches a function by its parameters and body; `params` of None matches any
    parameters.
    """

    params: Sequence[DFPattern] | None
    body: DFPattern


class TuplePattern(DFPattern):
    """Pattern that matches a tuple by its fields; `fields` of None matches any fields."""

    fields: Sequence[DFPattern] | None


class TupleGetItemPattern(DFPattern):
    """Pattern that matches an access to field `index` of a tuple, or to any field if `index` is
    ANY_INDEX.
    """

    tuple: DFPattern
    index: int = ANY_INDEX


class IfPattern(DFPattern):
    """Pattern that matches an if expression by its condition and both branches."""

    cond: DFPattern
    true_branch: DFPattern
    false_branch: DFPattern


class LetPattern(DFPattern):
    """Pattern that matches a let expression by its variable, value and body."""

    var: DFPattern
    value: DFPattern
    body: DFPattern


class AltPattern(DFPattern):
    """Pattern that matches what `left` or `right` matches; `left` is tried first."""

    left: DFPattern
    right: DFPattern


class PropertyPattern(DFPattern):
    """Base class of patterns that match `pattern` and check a property (attributes, type, dtype,
    shape).
    """

    pattern: DFPattern


class AttrPattern(PropertyPattern):
    """Pattern that matches `pattern` if the node has all the attributes in `attrs`."""

    attrs: Mapping[str, Any]


class TypePattern(PropertyPattern):
    """Pattern that matches `pattern` if the node has the inferred type `type`."""

    type: Type


class DataTypePattern(PropertyPattern):
    """Pattern that matches `pattern` if the node is a tensor with data type `dtype`."""

    dtype: DType


class ShapePattern(PropertyPattern):
    """Pattern that matches `pattern` if the node is a tensor with shape `shape`."""

    shape: tuple[Any, ...]


class DominatorPattern(DFPattern):
    """Pattern that matches a single-entry, single-exit region: `parent`, nodes that match `path`,
    `child`.

    Every operand chain upwards from `child` consists of nodes that match `path` and ends in one
    common node that matches `parent`. Nodes outside of the region use only `child`. Variables and
    constants may be operands anywhere in the region; every other node of it depends on `parent`.
    """

    parent: DFPattern
    path: DFPattern
    child: DFPattern


#: For each pattern that matches a node by its children, the class of that node.
#:
#: The sub-patterns correspond to the children in order.  A list of sub-patterns that is None
#: matches any children.
NODE_CLASS_BY_PATTERN_CLASS: Final[Mapping[type[DFPattern], type[Expr]]] = MappingProxyType(
    {
        CallPattern: Call,
        FunctionPattern: Function,
        TuplePattern: Tuple,
        TupleGetItemPattern: TupleGetItem,
        IfPattern: If,
        LetPattern: Let,
    }
)


# --- constructors


wildcard: Final = WildcardPattern
is_expr: Final = ExprPattern
is_var: Final = VarPattern
is_constant: Final = ConstantPattern
is_tuple: Final = TuplePattern
is_if: Final = IfPattern
is_let: Final = LetPattern
dominates: Final = DominatorPattern


def is_op(op_name: str) -> ExprPattern:
    """Return a pattern that matches the operator named `op_name`; call the pattern to match calls
    of the operator.

    Raise AotcError (code "unknown-op") for an unknown operator name.
    """
    return ExprPattern(get_op(op_name))


def is_tuple_get_item(tuple_value: DFPattern, index: int | None = None) -> TupleGetItemPattern:
    """Return a pattern that matches an access to field `index` of a tuple, or to any field if
    `index` is None.
    """
    return TupleGetItemPattern(tuple_value, ANY_INDEX if index is None else index)


def has_type(ttype: Type, pattern: DFPattern | None = None) -> TypePattern:
    """Return a pattern that matches `pattern` (default: any expression) if the node has the type
    `ttype`.
    """
    return (pattern or wildcard()).has_type(ttype)


def has_dtype(dtype: str, pattern: DFPattern | None = None) -> DataTypePattern:
    """Return a pattern that matches `pattern` (default: any expression) if the node is a tensor of
    data type `dtype`.
    """
    return (pattern or wildcard()).has_dtype(dtype)


def has_shape(shape: Iterable[Any], pattern: DFPattern | None = None) -> ShapePattern:
    """Return a pattern that matches `pattern` (default: any expression) if the node is a tensor of
    shape `shape`.
    """
    return (pattern or wildcard()).has_shape(shape)


def has_attr(attrs: Mapping[str, Any], pattern: DFPattern | None = None) -> AttrPattern:
    """Return a pattern that matches `pattern` (default: any expression) if the node has the
    attributes `attrs`.
    """
    return (pattern or wildcard()).has_attr(attrs)


# --- questions


def direct_subpatterns(pattern: DFPattern) -> Iterator[DFPattern]:
    """Yield the direct sub-patterns of a pattern in field order."""
    for value in (getattr(pattern, f.name) for f in dataclasses.fields(pattern)):
        yield from (p for p in (value if isinstance(value, tuple) else (value,)) if isinstance(p, DFPattern))


def subpatterns_in_post_order(pattern: DFPattern) -> list[DFPattern]:
    """Return `pattern` and all patterns nested in it, each once, in post-order (sub-patterns
    first).
    """
    return list(depth_first_post_order([pattern], direct_subpatterns))


def needs_inferred_types(pattern: DFPattern) -> bool:
    """Return True if a pattern contains a type, dtype or shape constraint, so that matching needs
    inferred types.
    """
    return any(isinstance(p, (TypePattern, DataTypePattern, ShapePattern)) for p in subpatterns_in_post_order(pattern))


def possible_root_ops(pattern: DFPattern) -> frozenset[Op] | None:
    """Return the operators of which a node matched by `pattern` must be a call; None if other nodes
    may match, too.
    """
    match pattern:
        case CallPattern(op=ExprPattern(expr=Op() as op)):
            return frozenset([op])
        case AltPattern(left=left, right=right):
            a, b = possible_root_ops(left), possible_root_ops(right)
            return None if a is None or b is None else a | b
        case PropertyPattern():
            return possible_root_ops(pattern.pattern)
        case DominatorPattern(child=child):
            return possible_root_ops(child)
        case _:
            return None
