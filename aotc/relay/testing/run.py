# SPDX-License-Identifier: Apache-2.0
"""Passes on single expressions, for tests.

run_opt_pass(relay.add(x, y), relay.transform.FoldConstant())    # the expression after the pass
run_infer_type(relay.add(x, y)).checked_type
"""

from typing import Any

from aotc.ir import Device, Pass, cpu, cuda
from aotc.relay.graph_api import Expr, Function, IRModule, infer_module


def _entry(expr: Expr, module: IRModule) -> Expr:
    return module.main if isinstance(expr, Function) else module.main.body


def run_opt_pass(expr: Expr, opt_pass: Pass[IRModule], import_prelude: bool = False) -> Expr:
    """`expr` after a pass: a function as a function, anything else as the body of one over its free variables.

    `import_prelude` is there for Relay's tests: what they run so needs nothing of the prelude.

    Raises what inference and the pass raise.
    """
    return _entry(expr, opt_pass(infer_module(IRModule.from_expr(expr))))


def enabled_targets() -> list[tuple[str, Device]]:
    """The targets whose models run here, with a device for each."""
    return [("llvm", cpu(0)), *([("cuda", gpu)] if (gpu := cuda(0)).exist else [])]


def count(prelude: object, value: Any) -> int:
    """What a value of the prelude's data type nat counts: how many constructors `S` are in it."""
    number = 0
    while value.fields:
        (value,) = value.fields
        number += 1
    return number


def run_infer_type(expr: Expr) -> Expr:
    """`expr` typed; AotcError where it has no type."""
    return _entry(expr, infer_module(IRModule.from_expr(expr)))
