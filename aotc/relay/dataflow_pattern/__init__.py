# SPDX-License-Identifier: Apache-2.0
"""Patterns over graphs under Relay's names: match, rewrite, partition.

from aotc.relay.dataflow_pattern import is_op, wildcard
conv_relu = is_op("nn.relu")(is_op("nn.conv2d")(wildcard(), wildcard()))
conv_relu.match(expr)                            # True or False
conv_relu.partition(mod["main"])                 # with a function for each match
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from aotc.ir.lazy import lazy_names
from aotc.relay.dataflow_pattern import matcher as _matcher
from aotc.relay.dataflow_pattern import partitioner as _partitioner
from aotc.relay.dataflow_pattern.patterns import install_search as _install_search

if TYPE_CHECKING:
    from aotc.relay.dataflow_pattern.matcher import match as match
    from aotc.relay.dataflow_pattern.partitioner import partition as partition
    from aotc.relay.dataflow_pattern.patterns import AltPattern as AltPattern
    from aotc.relay.dataflow_pattern.patterns import AttrPattern as AttrPattern
    from aotc.relay.dataflow_pattern.patterns import CallPattern as CallPattern
    from aotc.relay.dataflow_pattern.patterns import ConstantPattern as ConstantPattern
    from aotc.relay.dataflow_pattern.patterns import DataTypePattern as DataTypePattern
    from aotc.relay.dataflow_pattern.patterns import DFPattern as DFPattern
    from aotc.relay.dataflow_pattern.patterns import DominatorPattern as DominatorPattern
    from aotc.relay.dataflow_pattern.patterns import ExprPattern as ExprPattern
    from aotc.relay.dataflow_pattern.patterns import FunctionPattern as FunctionPattern
    from aotc.relay.dataflow_pattern.patterns import IfPattern as IfPattern
    from aotc.relay.dataflow_pattern.patterns import LetPattern as LetPattern
    from aotc.relay.dataflow_pattern.patterns import ShapePattern as ShapePattern
    from aotc.relay.dataflow_pattern.patterns import TupleGetItemPattern as TupleGetItemPattern
    from aotc.relay.dataflow_pattern.patterns import TuplePattern as TuplePattern
    from aotc.relay.dataflow_pattern.patterns import TypePattern as TypePattern
    from aotc.relay.dataflow_pattern.patterns import VarPattern as VarPattern
    from aotc.relay.dataflow_pattern.patterns import WildcardPattern as WildcardPattern
    from aotc.relay.dataflow_pattern.patterns import dominates as dominates
    from aotc.relay.dataflow_pattern.patterns import has_attr as has_attr
    from aotc.relay.dataflow_pattern.patterns import has_dtype as has_dtype
    from aotc.relay.dataflow_pattern.patterns import has_shape as has_shape
    from aotc.relay.dataflow_pattern.patterns import has_type as has_type
    from aotc.relay.dataflow_pattern.patterns import is_constant as is_constant
    from aotc.relay.dataflow_pattern.patterns import is_expr as is_expr
    from aotc.relay.dataflow_pattern.patterns import is_if as is_if
    from aotc.relay.dataflow_pattern.patterns import is_let as is_let
    from aotc.relay.dataflow_pattern.patterns import is_op as is_op
    from aotc.relay.dataflow_pattern.patterns import is_tuple as is_tuple
    from aotc.relay.dataflow_pattern.patterns import is_tuple_get_item as is_tuple_get_item
    from aotc.relay.dataflow_pattern.patterns import is_var as is_var
    from aotc.relay.dataflow_pattern.patterns import wildcard as wildcard
    from aotc.relay.dataflow_pattern.rewriter import DFPatternCallback as DFPatternCallback
    from aotc.relay.dataflow_pattern.rewriter import rewrite as rewrite


_install_search(_matcher.match, _partitioner.partition)


def _prepare() -> None:
    importlib.import_module("aotc.driver.wiring").install()


__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "aotc.relay.dataflow_pattern.matcher": "match",
        "aotc.relay.dataflow_pattern.partitioner": "partition",
        "aotc.relay.dataflow_pattern.patterns": "AltPattern AttrPattern CallPattern ConstantPattern "
        "DFPattern DataTypePattern DominatorPattern ExprPattern FunctionPattern IfPattern LetPattern "
        "ShapePattern TupleGetItemPattern TuplePattern TypePattern VarPattern WildcardPattern dominates "
        "has_attr has_dtype has_shape has_type is_constant is_expr is_if is_let is_op is_tuple "
        "is_tuple_get_item is_var wildcard",
        "aotc.relay.dataflow_pattern.rewriter": "DFPatternCallback rewrite",
    },
    prepare=_prepare,
)
