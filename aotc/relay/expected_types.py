# SPDX-License-Identifier: Apache-2.0
"""Backward propagation of types: types of variables that follow from the expected type of an
expression.

expected_types(f(x), int32, types_of)            # f: fn (type of x) -> int32
"""

from collections.abc import Callable, Iterator, Sequence

from aotc.ir import FuncType, Type
from aotc.relay.graph_api import Call, Expr, Function, If, Let, Pattern, PatternConstructor, PatternVar, Var


def expected_types(
    node: Expr, ty: Type, types_of: Callable[[Sequence[Expr]], list[Type]]
) -> Iterator[tuple[Expr, Type]]:
    """Yield the variables in expression `node` whose types follow from its type `ty`, with these
    types.

    types_of    returns the types of arguments
    """
    match node, ty:
        case If(), _:
            for branch in (node.true_branch, node.false_branch):
                yield from expected_types(branch, ty, types_of)
        case Let(), _:
            yield from expected_types(node.body, ty, types_of)
        case Function(), FuncType():
            yield from zip(node.params, ty.arg_types, strict=False)
        case Call(op=Var() as callee), _:
            yield callee, FuncType(types_of(node.args), ty)


def expected_fields(data: Expr, pattern: Pattern) -> Iterator[tuple[Expr, Type]]:
    """Yield arguments of a constructor call, each with the type declared for the pattern variable
    that matches it.
    """
    match data, pattern:
        case Call(op=op, args=args), PatternConstructor(constructor=c, patterns=inside) if op is c:
            for arg, part in zip(args, inside, strict=False):
                if isinstance(part, PatternVar) and part.var.annotation is not None:
                    yield arg, part.var.annotation
