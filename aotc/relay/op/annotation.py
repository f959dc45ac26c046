# SPDX-License-Identifier: Apache-2.0
"""Annotations of graphs for passes: operators that return their argument unchanged.

nn.relu(annotation.stop_fusion(add(x, y)))       # two kernels, where FuseOps would make one
"""

from __future__ import annotations

from typing import Any

from aotc.ir import (
    NO_ATTRS,
    REQUIRED,
    Attrs,
    Infer,
    PrecisionTreatment,
    QuantizationTreatment,
    TensorType,
    attribute_field,
)
from aotc.relay.op.operator_definition import OpDef, Samples, exact_sample, random_array
from aotc.relay.op.type_rules import elementwise_axis_map, infer_type_of_first_argument
from aotc.tir import te


class CompilerAttrs(Attrs):
    compiler: str = attribute_field(default="", parameter_default=REQUIRED)


def _identity_test_samples(attributes: Attrs) -> Samples:
    for shape, dtype in (((2, 3), "float32"), ((), "int8"), ((4, 1, 2), "float16"), ((0, 2), "int64")):
        yield exact_sample(attributes, random_array(shape, dtype))


def _views_of_tensors(tensors: Any) -> Any:
    return tuple(map(_views_of_tensors, tensors)) if isinstance(tensors, tuple) else te.view(tensors, tensors.shape)


def _annotation_op(
    name: str, doc: str, attributes: Attrs = NO_ATTRS, infer: Infer = lambda _, types: types[0], **facets: Any
) -> OpDef:
    """Return an annotation operator, which returns its argument; `attributes` are the attributes of
    its samples.
    """
    return OpDef(
        name=f"annotation.{name}",
        doc=f"`data` itself, which {doc}.",
        attrs=type(attributes),
        infer=infer,
        reference=lambda _, data: data,
        axes=lambda a, types: elementwise_axis_map(a, types) if isinstance(types[0], TensorType) else None,
        compute=lambda _, data: _views_of_tensors(data),
        samples=lambda: _identity_test_samples(attributes),
        **facets,
    )


_SAMPLE_COMPILER_ATTRS = CompilerAttrs(compiler="mine")

stop_fusion = _annotation_op(
    "stop_fusion",
    "no kernel computes together with what uses it",
    infer=infer_type_of_first_argument,
    precision=PrecisionTreatment.FOLLOW,
    quantized=QuantizationTreatment.PASS,
)
checkpoint = _annotation_op("checkpoint", "gradients may compute again rather than keep")
compiler_begin = _annotation_op(
    "compiler_begin", "enters a region for the external compiler `compiler`", _SAMPLE_COMPILER_ATTRS
)
compiler_end = _annotation_op(
    "compiler_end", "leaves a region for the external compiler `compiler`", _SAMPLE_COMPILER_ATTRS
)
