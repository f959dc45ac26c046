# SPDX-License-Identifier: Apache-2.0
"""The operators: one value each, in one file per family, listed here.

from aotc.relay.op import REGISTRY
REGISTRY["nn.conv2d"].pattern          # OpPattern.OUT_ELEMWISE_FUSABLE
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from aotc.relay.op import (
    adaptive_pool,
    annotation,
    batch_space,
    binary,
    cast,
    conv,
    conv_transpose,
    create,
    dense,
    depth,
    dyn,
    elementwise,
    fast_math,
    grid,
    index,
    join,
    layout,
    norm,
    pad,
    pool,
    recurrent,
    reduce,
    resize,
    scan,
    scatter,
    shape,
    slice,
    softmax,
    sort,
    winograd,
)
from aotc.relay.op.opdef import OpDef

_FAMILIES = (
    elementwise, fast_math, binary, cast, reduce, shape, layout, join, pad, slice, index, scatter, create,
    conv, conv_transpose, winograd, dense, pool, adaptive_pool, norm, softmax, resize, depth, batch_space,
    grid, sort, scan, recurrent, dyn, annotation,
)  # fmt: skip

REGISTRY: Mapping[str, OpDef] = MappingProxyType({op.name: op for family in _FAMILIES for op in family.OPS})
"""Every operator by name."""


def op_def(name: str) -> OpDef:
    """The operator called `name` (which must exist)."""
    return REGISTRY[name]
