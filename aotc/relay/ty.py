# SPDX-License-Identifier: Apache-2.0
"""Relay's types under their names: `relay.ty.TensorType((1, 3), "float32")`."""

from aotc.ir.types import FuncType as FuncType
from aotc.ir.types import GlobalTypeVar as GlobalTypeVar
from aotc.ir.types import IncompleteType as IncompleteType
from aotc.ir.types import RefType as RefType
from aotc.ir.types import TensorType as TensorType
from aotc.ir.types import TupleType as TupleType
from aotc.ir.types import Type as Type
from aotc.ir.types import TypeCall as TypeCall
from aotc.ir.types import TypeKind as TypeKind
from aotc.ir.types import TypeRelation as TypeRelation
from aotc.ir.types import TypeVar as TypeVar
