# SPDX-License-Identifier: Apache-2.0
"""Floor 0: the words that both intermediate representations share.

Data types, dimensions, tensor types, source spans, diagnostics, operator attributes, the *shape* of an
operator, tensors and devices, and the pass infrastructure.  Nothing here knows a concrete operator, pass or target.

    from aotc.ir.dtype import DType
    from aotc.ir.types import TensorType
    TensorType((1, 3), "float32")          # Tensor[(1, 3), float32]

The package itself is a door: names that Relay's users look for here, such as `aotc.ir.structural_equal`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aotc.ir.lazy import lazy_names

if TYPE_CHECKING:
    from aotc.ir import instrument as instrument
    from aotc.ir import op as op
    from aotc.ir import transform as transform
    from aotc.ir.op import Op as Op
    from aotc.ir.op import register_op_attr as register_op_attr
    from aotc.ir.span import Span as Span
    from aotc.ir.types import FuncType as FuncType
    from aotc.ir.types import TensorType as TensorType
    from aotc.ir.types import TupleType as TupleType
    from aotc.relay.expr import GlobalVar as GlobalVar
    from aotc.relay.module import IRModule as IRModule
    from aotc.relay.structural import assert_structural_equal as assert_structural_equal
    from aotc.relay.structural import structural_equal as structural_equal
    from aotc.relay.structural import structural_hash as structural_hash

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "aotc.ir.op": "Op register_op_attr",
        "aotc.ir.span": "Span",
        "aotc.ir.types": "FuncType TensorType TupleType",
        "aotc.relay.expr": "GlobalVar",
        "aotc.relay.module": "IRModule",
        "aotc.relay.structural": "assert_structural_equal structural_equal structural_hash",
    },
    submodules="instrument op transform",
)
