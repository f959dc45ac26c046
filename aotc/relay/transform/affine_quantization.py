# SPDX-License-Identifier: Apache-2.0
"""What the integers of a tensor stand for, and regions of operators on real numbers as operators on such integers.

real = scale * (stored - zero point)

region.exact(nn.relu(qnn.dequantize(%q, 0.5f, 3)))     # maximum(%q, 3), of TensorAffineType(0.5, 3, "int8")
region.rounded(expr, wanted)                           # the integers that qnn.quantize makes of it, or Refused
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

import numpy as np

from aotc.ir import DType, frozen, get_op
from aotc.relay.expr import Call, Constant, Expr, Tuple, TupleGetItem, call, item_of, tensor_type_of
from aotc.relay.op.qnn.quant_params import known
from aotc.relay.transform.pass_base import is_call
from aotc.relay.visitor import children, depth_first

Array: TypeAlias = "np.ndarray[Any, Any]"
#: How many operators a wanted type is handed down through.
_REACH: Final = 64
#: Types of integers that operators compute on.
NARROW: Final = ("int8", "uint8")


class Refused(Exception):
    """An operator stays on real numbers, and the reason."""

    def __init__(self, reason: str, node: Expr) -> None:
        super().__init__(reason)
        self.reason = reason
        self.node = node

    def at(self, node: Expr) -> Refused:
        """The same of an operator: what is refused may be an operand of it that is none."""
        return self if isinstance(self.node, Call) else Refused(self.reason, node)


@frozen(eq=False)
class TensorAffineType:
    """What the elements of a tensor stand for.

    scale, zero_point   one value, or one for each element along `axis`; constants
    dtype               of the integers
    """

    scale: Constant
    zero_point: Constant
    dtype: str
    axis: int = -1

    @property
    def is_single(self) -> bool:
        """Whether one scale and one zero point hold for the whole tensor."""
        return self.scale.data.size == 1 and self.zero_point.data.size == 1

    @property
    def factor(self) -> Array:
        """The scale: one number, or those along the axis."""
        return self.scale.data.reshape(()) if self.scale.data.size == 1 else self.scale.data

    @property
    def zero(self) -> int:
        """The one zero point."""
        return int(self.zero_point.data.reshape(-1)[0])

    @property
    def scalar(self) -> Constant:
        """The one zero point as the tensor has it."""
        return Constant(np.asarray(self.zero, DType(self.dtype).numpy))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TensorAffineType) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[Any, ...]:
        scale, zero = self.factor, self.zero_point.data.astype(np.int64)
        axis = None if self.is_single else self.axis
        return str(self.dtype), scale.shape, scale.tobytes(), zero.tobytes() if zero.any() else b"", axis


@frozen
class TupleAffineType:
    """What the fields of a tuple stand for."""

    types: tuple[TensorAffineType, ...]


AffineType: TypeAlias = TensorAffineType | TupleAffineType


def affine(scale: Any, zero: Any, dtype: str, axis: int = -1) -> TensorAffineType:
    """The type of arrays or numbers; equal zero points are one, and one scale lies along no axis."""
    scales, zeros = np.asarray(scale, np.float32), np.asarray(zero, np.int32)
    zeros = zeros.reshape(-1)[:1].reshape(()) if zeros.size and (zeros == zeros.flat[0]).all() else zeros
    if scales.size == zeros.size == 1:
        axis = -1
    return TensorAffineType(Constant(scales), Constant(zeros), dtype, axis)


@frozen(eq=False)
class Integers:
    """Integers in the place of real numbers.

    bound   what sums in int32 cannot exceed; None where they are no sums
    """

    expr: Expr
    type: AffineType
    bound: float | None = None

    @property
    def tensor(self) -> TensorAffineType:
        """What the elements of the tensor stand for."""
        assert isinstance(self.type, TensorAffineType)
        return self.type

    @property
    def is_narrow(self) -> bool:
        """Whether it is a tensor of bytes with one scale."""
        return isinstance(self.type, TensorAffineType) and self.type.dtype in NARROW and self.type.is_single

    def over(self, expr: Expr, **changes: Any) -> Integers:
        """Other integers with the same meaning, but for changes of it."""
        return Integers(expr, replace(self.tensor, **changes) if changes else self.type, self.bound)


def qnn(name: str, *args: Expr, **attributes: Any) -> Call:
    """A call of a quantized operator."""
    op = get_op(f"qnn.{name}")
    return call(op, args, op.attrs(**attributes))


def pair(ty: TensorAffineType) -> tuple[Expr, Expr]:
    """Scale and zero point as arguments."""
    return ty.scale, ty.zero_point


# --- between real numbers and integers


def stated(node: Call, dtype: str) -> TensorAffineType:
    """What a call of qnn.quantize or qnn.dequantize says of its integers; Refused where it is not constant."""
    scale, zero = (known(a) for a in node.args[1:])
    if scale is None or zero is None:
        raise Refused("the scale or the zero point is not known at compile time", node)
    if not (np.isfinite(scale) & (scale > 0)).all():
        raise Refused("a scale is not positive and finite", node)
    axis = node.attrs["axis"] % max(tensor_type_of(node).rank, 1)
    return affine(
        scale if scale.size > 1 else scale.reshape(()), zero if zero.size > 1 else zero.reshape(()), dtype, axis
    )


# --- regions

Exact: TypeAlias = "Callable[[Region, Call], Integers]"
Rounded: TypeAlias = "Callable[[Region, Call, TensorAffineType], Expr]"


@frozen
class AbsorbRule:
    """How an operator is computed on integers.

    name      an equation
    exact     (region, call) -> integers that stand for exactly the result, of a type that follows from the operands'
    rounded   (region, call, wanted) -> the integers that the result's quantization to `wanted` gives
    sums      whether it sums products, which is worth while even if the result is not quantized

    Both raise Refused where that would be wrong.
    """

    name: str
    exact: Exact | None = None
    rounded: Rounded | None = None
    sums: bool = False


@dataclass(eq=False)
class Region:
    """Finds integers for expressions of real numbers by rules.

    rules      by operator
    fallback   the rule of an operator that has none; None where there is none
    rounding   how sums are rounded, as the attribute of qnn.requantize
    rescale    integers as those of another type
    table      functions of one byte
    inside     the nodes that are computed from dequantized tensors, which whoever walks the graph adds to
    """

    rules: Mapping[str, AbsorbRule]
    fallback: Callable[[Call], AbsorbRule | None]
    rounding: str
    rescale: Callable[[Region, Integers, TensorAffineType], Expr]
    table: Rounded
    inside: set[Expr] = field(default_factory=set)
    _known: dict[Expr, Integers | Refused] = field(default_factory=dict)
    _depth: int = 0

    def find(self, node: Call) -> AbsorbRule | None:
        """The rule of a call, if there is one."""
        return self.rules.get(str(node.op)) or self.fallback(node)

    def rule(self, node: Call) -> AbsorbRule:
        """The rule of a call; Refused if there is none."""
        found = self.find(node)
        if found is None:
            raise Refused(f"there is no rule for {node.op}", node)
        return found

    def exact(self, expr: Expr) -> Integers:
        """Integers that stand for exactly the value of `expr`."""
        if expr not in self._known:
            for node in depth_first([expr], self._unknown):
                self._learn(node)
        found = self._known[expr]
        if isinstance(found, Refused):
            raise found
        return found

    def _unknown(self, node: Expr) -> list[Expr]:
        """What is looked at before a node, so that no call is deep."""
        inside = node in self.inside and not is_call(node, "qnn.dequantize")
        return [c for c in children(node) if c in self.inside and c not in self._known] if inside else []

    def _learn(self, node: Expr) -> None:
        if node in self._known:
            return
        try:
            self._known[node] = self._exact(node)
        except Refused as refused:
            self._known[node] = refused.at(node)

    def real(self, found: Integers) -> Expr:
        """The real numbers that integers stand for, for those who want them."""
        ty = found.tensor
        made = qnn("dequantize", found.expr, *pair(ty), axis=ty.axis)
        self._known[made] = found
        self.inside.add(made)
        return made

    def _exact(self, expr: Expr) -> Integers:
        match expr:
            case Tuple(fields=fields):
                parts = [self.exact(f) for f in fields]
                return Integers(Tuple([p.expr for p in parts]), TupleAffineType(tuple(p.tensor for p in parts)))
            case TupleGetItem(tuple_value=whole, index=index):
                found = self.exact(whole)
                assert isinstance(found.type, TupleAffineType)
                return Integers(item_of(found.expr, index), found.type.types[index], found.bound)
            case Call() if str(expr.op) == "qnn.dequantize":
                return Integers(expr.args[0], stated(expr, str(tensor_type_of(expr.args[0]).dtype)))
            case Call() if expr in self.inside:
                rule = self.rule(expr)
                if rule.exact is None:
                    raise Refused("the type of its result does not follow from those of its operands", expr)
                return rule.exact(self, expr)
        raise Refused("an operand is not quantized", expr)

    def rounded(self, expr: Expr, wanted: TensorAffineType) -> Expr:
        """The integers that quantizing `expr` gives."""
        if self._depth >= _REACH or not (isinstance(expr, Call) and expr in self.inside):
            return self.rescale(self, self.exact(expr), wanted)
        if str(expr.op) == "qnn.dequantize":
            return self.rescale(self, self.exact(expr), wanted)
        rule = self.rule(expr)
        first: Refused | None = None
        for attempt in (rule.rounded, self._rescaled, self.table):
            if attempt is None:
                continue
            self._depth += 1
            try:
                return attempt(self, expr, wanted)
            except Refused as refused:
                first = first or refused.at(expr)
            finally:
                self._depth -= 1
        assert first is not None
        raise first

    @staticmethod
    def _rescaled(region: Region, node: Call, wanted: TensorAffineType) -> Expr:
        """Exactly the value, brought to another scale."""
        return region.rescale(region, region.exact(node), wanted)
