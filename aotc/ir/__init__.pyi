# SPDX-License-Identifier: Apache-2.0
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
