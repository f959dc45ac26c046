# SPDX-License-Identifier: Apache-2.0
"""Annotations of graphs for passes: operators that return their argument unchanged.

nn.relu(annotation.stop_fusion(add(x, y)))       # two kernels, where FuseOps would make one
"""

from __future__ import annotations

from typing import Any

from aotc.ir import NO_ATTRS, REQUIRED, Attrs, Infer, Precision, Quantized, TensorType, param
from aotc.relay.op.operator_definition import OpDef, Samples, exact, random_array
from aotc.relay.op.type_rules import pointwise, same_type
from aotc.tir import te


class CompilerAttrs(Attrs):
    compiler: str = param(default="", given=REQUIRED)


def _samples(attributes: Attrs) -> Samples:
    for shape, dtype in (((2, 3), "float32"), ((), "int8"), ((4, 1, 2), "float16"), ((0, 2), "int64")):
        yield exact(attributes, random_array(shape, dtype))


def _views(data: Any) -> Any:
    return tuple(map(_views, data)) if isinstance(data, tuple) else te.view(data, data.shape)


def _mark(
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
        axes=lambda a, types: pointwise(a, types) if isinstance(types[0], TensorType) else None,
        compute=lambda _, data: _views(data),
        samples=lambda: _samples(attributes),
        **facets,
    )


_MINE = CompilerAttrs(compiler="mine")

stop_fusion = _mark(
    "stop_fusion",
    "no kernel computes together with what uses it",
    infer=same_type,
    precision=Precision.FOLLOW,
    quantized=Quantized.PASS,
)
checkpoint = _mark("checkpoint", "gradients may compute again rather than keep")
compiler_begin = _mark("compiler_begin", "enters a region for the external compiler `compiler`", _MINE)
compiler_end = _mark("compiler_end", "leaves a region for the external compiler `compiler`", _MINE)
