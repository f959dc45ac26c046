# SPDX-License-Identifier: Apache-2.0
"""Fused functions of networks with smaller extents, so that the interpreter runs their kernels quickly.

small = reduced(function, 16)           # of 1x128x384 by 96x384x16 to 1x1536: 1x16x16 by 1x16x16 to 1x16

A large extent becomes a smaller one with its remainder after division by what is asked for, such as the elements of a
vector or of a tile; that of what is packed becomes the quotient that fits.  Type rules say which choices go together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final

import numpy as np

from aotc.ir.attrs import Attrs
from aotc.ir.diagnostics import AotcError
from aotc.ir.op import Op
from aotc.ir.types import TensorType, TupleType, Type, tensor_types
from aotc.relay.expr import Call, Constant, Expr, Function, Tuple, TupleGetItem, Var, type_of, typed_op_call
from aotc.relay.op.opdef import OpDef
from aotc.relay.visitor import post_order

SMALL, LARGE = 3, 16
"""Extents up to the first stay; those up to the other, too, but for the number of blocks of a packed axis."""
PACKED: Final = (4, 8, 16, 24, 32, 48)
TRIES: Final = 400
Sizes = Mapping[int, int]


def reduced(function: Function, unit: int) -> Function:
    """The function with the smallest extents of those that are tried, itself where its type rules take no others."""
    types = [t for p in function.params for t in tensor_types(type_of(p))]
    large = {d for t in types for d in t.static_shape if d > LARGE}
    blocks = {d for t in types for d in t.static_shape[:-1] if SMALL < d <= LARGE and {d * p for p in PACKED} & large}
    extents = sorted(large | blocks, reverse=True)
    for sizes in islice(_choices(extents, {}, unit), TRIES):
        try:
            return _rebuilt(function, sizes, unit)
        except (AotcError, ArithmeticError):
            continue
    return function


def _choices(extents: list[int], chosen: Sizes, unit: int) -> Iterator[Sizes]:
    """New sizes for extents, from the largest on, smaller ones first."""
    if not extents:
        yield chosen
        return
    extent, *others = extents
    parts = {new * extent // old for old, new in chosen.items() if old in [extent * p for p in PACKED]}
    least = extent % unit + unit
    own = range(least, min(extent, least + 3 * unit), unit) if extent > LARGE else ()
    for size in sorted({*parts, *own, extent} - {0}):
        yield from _choices(others, {**chosen, extent: size}, unit)


def _rebuilt(function: Function, sizes: Sizes, unit: int) -> Function:
    """The function of other extents; ArithmeticError where one that it computes leaves another remainder."""
    done: dict[Expr, Expr] = {p: Var(p.name, _resized(type_of(p), sizes)) for p in function.params}
    for node in post_order(function.body):
        match node:
            case Var() | Op():
                continue
            case Constant():
                shape = tuple(sizes.get(d, d) for d in node.data.shape)
                done[node] = node if shape == node.data.shape else Constant(np.resize(node.data, shape))
            case Call(op=OpDef() as op):
                done[node] = typed_op_call(op, [done[a] for a in node.args], _with_sizes(node.attrs, sizes))
            case Tuple():
                done[node] = Tuple([done[f] for f in node.fields])
            case TupleGetItem():
                done[node] = TupleGetItem(done[node.tuple_value], node.index)
        for old, new in zip(tensor_types(type_of(node)), tensor_types(type_of(done[node])), strict=True):
            for a, b in zip(old.static_shape, new.static_shape, strict=True):
                if a != b and sizes.get(a) != b and (b < unit or (a - b) % unit):
                    raise ArithmeticError(f"{a} becomes {b}")
    return Function([done[p] for p in function.params], done[function.body], attrs=function.attrs)  # type: ignore[misc]


def _resized(ty: Type, sizes: Sizes) -> Type:
    if isinstance(ty, TupleType):
        return TupleType([_resized(f, sizes) for f in ty.fields])
    assert isinstance(ty, TensorType)
    shape = ty.static_shape
    rest = [d if d <= LARGE else sizes.get(d, d) for d in shape[-1:]]  # elements of a block, which stay
    return TensorType([sizes.get(d, d) for d in shape[:-1]] + rest, ty.dtype)


def _with_sizes(attributes: Attrs, sizes: Sizes) -> Attrs:
    """Attributes that say extents."""

    def changed(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(changed, value))
        return sizes.get(value, value) if type(value) is int else value

    return attributes.replace(**{name: changed(value) for name, value in attributes.items()})
