# SPDX-License-Identifier: Apache-2.0
"""Patterns over graph expressions: immutable nodes that say what an expression looks like.

A pattern object stands for one node: used twice in a pattern, it matches the same node twice.

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
from aotc.relay.graph_api import Call, Expr, Function, If, Let, Tuple, TupleGetItem, depth_first

#: The index of a TupleGetItemPattern that takes any field.
ANY_INDEX: Final = -1


def _joined_by(op_name: str) -> Callable[[DFPattern, DFPattern], CallPattern]:
    """The method of an infix sign that stands for an operator."""
    return lambda left, right: is_op(op_name)(left, right)


@dataclass_transform(frozen_default=True, eq_default=False)
@dataclass(frozen=True, eq=False, repr=False)
class DFPattern:
    """What all patterns share.  `+ - * /` build patterns of calls, `|` is a choice, tried from left to right.

    Subclasses are frozen dataclasses, compared by identity.  Raises AotcTypeError where a part is no pattern.
    """

    #: Whether an expression looks like this; package `aotc.relay.dataflow_pattern` takes it from `matcher`.
    match: ClassVar[Callable[[DFPattern, Expr], bool]]
    #: An expression with matches in functions of their own; the package takes it from `groups`.
    partition: ClassVar[Callable[..., Expr]]

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, eq=False, repr=False)(cls)

    def __post_init__(self) -> None:
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            if f.type == "DFPattern":
                _check(value)
            elif f.type == "Sequence[DFPattern] | None" and value is not None:
                object.__setattr__(self, f.name, tuple(value))
                _check(*getattr(self, f.name))

    def __repr__(self) -> str:
        values = (getattr(self, field.name) for field in dataclasses.fields(self))
        return f"{type(self).__name__}({', '.join(map(str, values))})"

    def __call__(self, *args: Any) -> CallPattern:
        """A call of this pattern with arguments; `pattern(None)` takes any arguments, however many."""
        return CallPattern(self, None if args == (None,) else args)

    def __or__(self, other: DFPattern) -> AltPattern:
        return AltPattern(self, other)

    __add__, __sub__ = _joined_by("add"), _joined_by("subtract")
    __mul__, __truediv__ = _joined_by("multiply"), _joined_by("divide")

    def optional(self, option_constructor: Callable[[DFPattern], DFPattern]) -> AltPattern:
        """This pattern, or what `option_constructor` makes around it."""
        return self | option_constructor(self)

    def has_attr(self, attrs: Mapping[str, Any]) -> AttrPattern:
        """What matches this and has these attributes: a call's, its operator's ("TOpPattern"), or a function's."""
        return AttrPattern(self, MappingProxyType(dict(attrs)))

    def has_type(self, ttype: Type) -> TypePattern:
        """What matches this and has this type."""
        return TypePattern(self, ttype)

    def has_dtype(self, dtype: str) -> DataTypePattern:
        """A tensor of this dtype that matches this pattern."""
        return DataTypePattern(self, DType(dtype))

    def has_shape(self, shape: Iterable[Any]) -> ShapePattern:
        """A tensor of this shape that matches this pattern."""
        return ShapePattern(self, tuple(shape))

    def dominates(self, parent: DFPattern, path: DFPattern | None = None) -> DominatorPattern:
        """This pattern, fed by `parent` through `path` alone; see DominatorPattern."""
        return DominatorPattern(parent, wildcard() if path is None else path, self)


def _check(*values: object) -> None:
    for value in values:
        if not isinstance(value, DFPattern):
            hint = "is_expr(...) matches one expression, is_constant() any constant"
            raise AotcTypeError("pattern", f"expected a pattern, not {type(value).__name__}", hint=hint)


class WildcardPattern(DFPattern):
    """Anything."""


class ExprPattern(DFPattern):
    """An expression structurally equal to `expr`, or the operator `expr`; a variable only as itself."""

    expr: Expr


class VarPattern(DFPattern):
    """A variable, called `name` unless that is empty."""

    name: str = ""


class ConstantPattern(DFPattern):
    """A constant."""


class CallPattern(DFPattern):
    """A call; the arguments of `add` and `multiply` match in either order.  `args` None: any arguments."""

    op: DFPattern
    args: Sequence[DFPattern] | None


class FunctionPattern(DFPattern):
    """A function.  `params` None: any parameters."""

    params: Sequence[DFPattern] | None
    body: DFPattern


class TuplePattern(DFPattern):
    """A tuple.  `fields` None: any fields."""

    fields: Sequence[DFPattern] | None


class TupleGetItemPattern(DFPattern):
    """Field `index` of a tuple, or any field (ANY_INDEX)."""

    tuple: DFPattern
    index: int = ANY_INDEX


class IfPattern(DFPattern):
    """A choice."""

    cond: DFPattern
    true_branch: DFPattern
    false_branch: DFPattern


class LetPattern(DFPattern):
    """A let."""

    var: DFPattern
    value: DFPattern
    body: DFPattern


class AltPattern(DFPattern):
    """`left`, or else `right`."""

    left: DFPattern
    right: DFPattern


class PropertyPattern(DFPattern):
    """`pattern` with a property that subclasses name."""

    pattern: DFPattern


class AttrPattern(PropertyPattern):
    """`pattern` with attributes."""

    attrs: Mapping[str, Any]


class TypePattern(PropertyPattern):
    """`pattern` with a type."""

    type: Type


class DataTypePattern(PropertyPattern):
    """`pattern`, a tensor of one dtype."""

    dtype: DType


class ShapePattern(PropertyPattern):
    """`pattern`, a tensor of one shape."""

    shape: tuple[Any, ...]


class DominatorPattern(DFPattern):
    """A region: from `child` upwards, every node matches `path` until one node, which all ways lead to, is `parent`.

    Nothing outside the region uses a node of it but `child`.  Variables and constants may feed it anywhere;
    every other node of it depends on `parent`.
    """

    parent: DFPattern
    path: DFPattern
    child: DFPattern


#: Patterns of a node and its children, with the kind of node: the parts of the one stand for the children of the other.
#:
#: Where the list among the parts is None, it stands for any children.
NODES: Final[Mapping[type[DFPattern], type[Expr]]] = MappingProxyType(
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
    """The operator itself (call the pattern for calls of it); AotcError (code "unknown-op") for unknown names."""
    return ExprPattern(get_op(op_name))


def is_tuple_get_item(tuple_value: DFPattern, index: int | None = None) -> TupleGetItemPattern:
    """Field `index` of a tuple value, or any field (None)."""
    return TupleGetItemPattern(tuple_value, ANY_INDEX if index is None else index)


def has_type(ttype: Type, pattern: DFPattern | None = None) -> TypePattern:
    """What has a type, and matches `pattern`."""
    return (pattern or wildcard()).has_type(ttype)


def has_dtype(dtype: str, pattern: DFPattern | None = None) -> DataTypePattern:
    """A tensor of a dtype that matches `pattern`."""
    return (pattern or wildcard()).has_dtype(dtype)


def has_shape(shape: Iterable[Any], pattern: DFPattern | None = None) -> ShapePattern:
    """A tensor of a shape that matches `pattern`."""
    return (pattern or wildcard()).has_shape(shape)


def has_attr(attrs: Mapping[str, Any], pattern: DFPattern | None = None) -> AttrPattern:
    """What has attributes, and matches `pattern`."""
    return (pattern or wildcard()).has_attr(attrs)


# --- questions


def parts(pattern: DFPattern) -> Iterator[DFPattern]:
    """The patterns that a pattern is made of, in order."""
    for value in (getattr(pattern, f.name) for f in dataclasses.fields(pattern)):
        yield from (p for p in (value if isinstance(value, tuple) else (value,)) if isinstance(p, DFPattern))


def pattern_order(pattern: DFPattern) -> list[DFPattern]:
    """Every pattern below `pattern` and itself once, parts first."""
    return list(depth_first([pattern], parts))


def needs_types(pattern: DFPattern) -> bool:
    """Whether a match depends on inferred types."""
    return any(isinstance(p, (TypePattern, DataTypePattern, ShapePattern)) for p in pattern_order(pattern))


def root_ops(pattern: DFPattern) -> frozenset[Op] | None:
    """The operators of which a match of `pattern` is a call; None if it may be anything else."""
    match pattern:
        case CallPattern(op=ExprPattern(expr=Op() as op)):
            return frozenset([op])
        case AltPattern(left=left, right=right):
            a, b = root_ops(left), root_ops(right)
            return None if a is None or b is None else a | b
        case PropertyPattern():
            return root_ops(pattern.pattern)
        case DominatorPattern(child=child):
            return root_ops(child)
        case _:
            return None
