# SPDX-License-Identifier: Apache-2.0
"""Backward propagation of types: types of variables that follow from the expected type of an
expression.

types_implied_by_result_type(f(x), int32, types_of)  # f: fn (type of x) -> int32
"""

from collections.abc import Callable, Iterator, Sequence

from aotc.ir import FuncType, Type
from aotc.relay.graph_api import Call, Expr, Function, If, Let, Pattern, PatternConstructor, PatternVar, Var


def types_implied_by_result_type(
    node: Expr, ty: Type, infer_argument_types: Callable[[Sequence[Expr]], list[Type]]
) -> Iterator[tuple[Expr, Type]]:
    """Yield the variables in expression `node` whose types follow from its type `ty`, with these
    types.

    infer_argument_types    returns the types of arguments
    """
    match node, ty:
        case If(), _:
            for branch in (node.true_branch, node.false_branch):
                yield from types_implied_by_result_type(branch, ty, infer_argument_types)
        case Let(), _:
            yield from types_implied_by_result_type(node.body, ty, infer_argument_types)
        case Function(), FuncType():
            yield from zip(node.params, ty.arg_types, strict=False)
        case Call(op=Var() as callee), _:
            yield callee, FuncType(infer_argument_types(node.args), ty)


def types_implied_by_pattern_annotations(data: Expr, pattern: Pattern) -> Iterator[tuple[Expr, Type]]:
    """Yield arguments of a constructor call, each with the type declared for the pattern variable
    that matches it.
    """
    match data, pattern:
        case Call(op=op, args=args), PatternConstructor(constructor=c, patterns=inside) if op is c:
            for arg, part in zip(args, inside, strict=False):
                if isinstance(part, PatternVar) and part.var.annotation is not None:
                    yield arg, part.var.annotation
