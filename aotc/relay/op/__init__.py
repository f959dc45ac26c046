# SPDX-License-Identifier: Apache-2.0
"""The operators: one value each, in one file per family, listed here.

from aotc.relay.op import REGISTRY
REGISTRY["nn.conv2d"].pattern          # OpPattern.OUT_ELEMWISE_FUSABLE
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType, ModuleType

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

FAMILIES = (
    elementwise, fast_math, binary, cast, reduce, shape, layout, join, pad, slice, index, scatter, create,
    conv, conv_transpose, winograd, dense, pool, adaptive_pool, norm, softmax, resize, depth, batch_space,
    grid, sort, scan, recurrent, dyn, annotation,
)  # fmt: skip


def operators_of(family: ModuleType) -> tuple[OpDef, ...]:
    """The operators that a file defines, in the order in which they are written; it imports none by name."""
    return tuple(value for value in vars(family).values() if isinstance(value, OpDef))


REGISTRY: Mapping[str, OpDef] = MappingProxyType({op.name: op for family in FAMILIES for op in operators_of(family)})
"""Every operator by name."""
