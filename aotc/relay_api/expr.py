# SPDX-License-Identifier: Apache-2.0
"""Relay's functions that build expressions: variables, scalar types, text, and operators by name.

x = var("x", shape=(1, 3))
op_functions_with_prefix("")["add"](x, const(1.0))
"""

import typing
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import MappingProxyType

from aotc.driver.operator_and_pass_registration import install_operators_and_passes
from aotc.ir import AotcError, Span, TensorType, Type
from aotc.ir.immediates import Any as Any
from aotc.relay.expr import const as const
from aotc.relay.graph_api import IRModule, Var
from aotc.relay.op.call_builders import FUNCTIONS
from aotc.relay.text.parser import parse

install_operators_and_passes()


def var(
    name_hint: str,
    type_annotation: Type | str | None = None,
    shape: Sequence[typing.Any] | None = None,
    dtype: str = "float32",
    span: Span | None = None,
) -> Var:
    """Create a variable with a type (the name of a dtype means a scalar), with a shape and dtype,
    or without a type, which is then inferred.

    Raises AotcError if both a type and a shape are given.
    """
    if type_annotation is not None and shape is not None:
        raise AotcError("var", f"variable {name_hint!r}: give a type or a shape, not both")
    if isinstance(type_annotation, str):
        return Var(name_hint, TensorType((), type_annotation), span)
    return Var(name_hint, TensorType(shape, dtype) if shape is not None else type_annotation, span)


def scalar_type(dtype: str) -> TensorType:
    """Return the tensor type of rank 0 with a data type."""
    return TensorType((), dtype)


def fromtext(text: str, source_name: str = "from_string") -> IRModule:
    """Parse the text form of a Relay module; see `aotc.relay.text.parser.parse`."""
    return parse(text, source_name)


@cache
def op_functions_with_prefix(prefix: str) -> Mapping[str, Callable[..., typing.Any]]:
    """Return the functions that build calls of the operators called PREFIX.name, by name; for ""
    the functions of operators without a prefix.
    """
    split = ((name.rpartition("."), function) for name, function in FUNCTIONS.items())
    return MappingProxyType({last: function for (first, _, last), function in split if first == prefix})
