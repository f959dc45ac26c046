# SPDX-License-Identifier: Apache-2.0
"""The fusion kind of every operator agrees with its axis map and its tensor expression on all of its samples."""

from __future__ import annotations

from enum import Enum

import pytest

from aotc.ir.op import OpPattern
from aotc.ir.types import TensorType, TupleType, Type, tensor_types
from aotc.relay.op import OPERATORS_BY_NAME
from aotc.relay.op.opdef import OpDef, Sample, TeArg
from aotc.tir import te
from aotc.tir.tensor_graph import tensors_in_topological_order
from tests.ops.harness import type_of_value


class Kind(Enum):
    """What a kernel of one call does, and the patterns that say so; the most general last."""

    POINTWISE = (OpPattern.ELEMWISE, OpPattern.BROADCAST)
    INJECTIVE = (OpPattern.BROADCAST, OpPattern.INJECTIVE)  # Relay calls repeat and tile broadcasts
    REDUCTION = (OpPattern.COMM_REDUCE, OpPattern.OUT_ELEMWISE_FUSABLE)
    CONTRACTION = (OpPattern.OUT_ELEMWISE_FUSABLE,)
    PROGRAM = (OpPattern.OPAQUE,)  # written by hand


OTHERWISE = {
    "concatenate": Kind.PROGRAM,  # of many tensors only, part by part
    "image.resize1d": Kind.REDUCTION,  # with wide filters only
    "image.resize2d": Kind.REDUCTION,
    "image.resize3d": Kind.REDUCTION,
    "nn.batch_norm": Kind.INJECTIVE,  # several results; an anchor in Relay, as one_hot is
    "one_hot": Kind.INJECTIVE,
    "trilu": Kind.INJECTIVE,  # elementwise in Relay
    "nn.lrn": Kind.REDUCTION,  # opaque in Relay, as those below are
    "nn.dropout": Kind.INJECTIVE,
    "arange": Kind.POINTWISE,
    "shape_of": Kind.INJECTIVE,
    "ndarray_size": Kind.INJECTIVE,
    "annotation.stop_fusion": Kind.POINTWISE,  # that is what they are for
    "annotation.checkpoint": Kind.POINTWISE,
    "annotation.compiler_begin": Kind.POINTWISE,
    "annotation.compiler_end": Kind.POINTWISE,
    "after": Kind.INJECTIVE,  # calls of these are no kernels: the order of calls depends on them
    "leading_rows": Kind.INJECTIVE,
    "require_range": Kind.POINTWISE,
}
"""Operators that state another pattern than the one derived, which is the kind here."""


def placeholders(ty: Type) -> TeArg:
    if isinstance(ty, TupleType):
        return tuple(te.placeholder(t.static_shape, t.dtype, "x") for t in tensor_types(ty))
    assert isinstance(ty, TensorType)
    return te.placeholder(ty.static_shape, ty.dtype, "x")


def is_pointwise(op: OpDef, sample: Sample, types: list[Type]) -> bool:
    """Whether each element of the result needs one element of each argument, at its own place or broadcast."""
    result = op.infer(sample.attrs, types)
    found = op.axes(sample.attrs, types) if op.axes is not None else None
    if found is None or not isinstance(result, TensorType):
        return False
    for row, ty in zip(found.inputs, types, strict=True):
        if not isinstance(ty, TensorType) or ty.rank > result.rank:
            return False
        own = result.rank - ty.rank
        for k, axis in enumerate(row):
            extent = 1 if k < own else ty.shape[k - own]
            if axis != k - own and not (axis is None and extent == 1):
                return False
    return True


def kind(op: OpDef, sample: Sample) -> Kind:
    """The fusion kind of one sample."""
    assert op.compute is not None
    types = [type_of_value(value) for value in sample.args]
    outputs = op.compute(sample.attrs, *map(placeholders, types))
    order = tensors_in_topological_order(outputs if isinstance(outputs, tuple) else (outputs,))
    if any(isinstance(t, te.Extern) for t in order):
        return Kind.PROGRAM
    if any(isinstance(t, (te.Contraction, te.Winograd)) for t in order):
        return Kind.CONTRACTION
    if any(isinstance(t, te.Reduce) for t in order):
        return Kind.REDUCTION
    return Kind.POINTWISE if is_pointwise(op, sample, types) else Kind.INJECTIVE


COMPUTED = {name: op for name, op in OPERATORS_BY_NAME.items() if op.compute is not None}


@pytest.mark.parametrize("op", COMPUTED.values(), ids=COMPUTED)
def test_the_stated_pattern_is_the_derived_one(op: OpDef) -> None:
    found = max((kind(op, sample) for sample in op.samples()), key=list(Kind).index)
    if op.name in OTHERWISE:
        assert found is OTHERWISE[op.name] and op.pattern not in found.value
    else:
        assert op.pattern in found.value
