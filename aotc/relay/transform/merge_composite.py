# SPDX-License-Identifier: Apache-2.0
"""MergeComposite: what matches a pattern becomes a call of a function with the attribute Composite.

nn.relu(nn.dense(%x, %w))
fn (%a, %b, Composite="mine.dense_relu", ...) { nn.relu(nn.dense(%a, %b)) }(%x, %w)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from aotc.relay.dataflow_pattern.partitioner import partition
from aotc.relay.dataflow_pattern.patterns import DFPattern
from aotc.relay.expr import Expr, Function
from aotc.relay.transform.base import FunctionPass


def _always(_: Expr) -> bool:
    return True


@dataclass(frozen=True, repr=False)
class MergeComposite(FunctionPass):
    """Make composite functions of the matches of patterns, those of the first entries first.

    table    entries (name, pattern) or (name, pattern, check): check(expr) may refuse a match by its root.  The name
             is "COMPILER.WHAT" for AnnotateTarget("COMPILER") to take the function
    """

    opt_level = 0

    table: Sequence[tuple[str, DFPattern] | tuple[str, DFPattern, Callable[[Any], bool]]] = ()

    def rewritten(self, function: Function) -> Function:
        for entry in self.table:
            name, pattern = entry[:2]
            check = entry[2] if len(entry) == 3 else _always
            body = partition(pattern, function.body, {"Composite": name}, check)
            if body is not function.body:
                function = Function(function.params, body, function.ret_type, function.attrs, function.span)
        return function
