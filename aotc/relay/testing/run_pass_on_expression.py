# SPDX-License-Identifier: Apache-2.0
"""Apply a pass or type inference to a single expression, for tests.

run_opt_pass(relay.add(x, y), relay.transform.FoldConstant())    # the expression after the pass
run_infer_type(relay.add(x, y)).checked_type
"""

from typing import Any

from aotc.ir import Device, Pass, cpu, cuda
from aotc.relay.graph_api import Expr, Function, IRModule, infer_module


def _main_or_its_body(original: Expr, module: IRModule) -> Expr:
    return module.main if isinstance(original, Function) else module.main.body


def run_opt_pass(expr: Expr, opt_pass: Pass[IRModule], import_prelude: bool = False) -> Expr:
    """Apply a pass to an expression and return the result. An expression that is not a function is
    processed as the body of a function of its free variables, and the body is returned.

    `import_prelude` is ignored; it exists for compatibility with TVM's tests.

    Raises the errors of type inference and of the pass.
    """
    return _main_or_its_body(expr, opt_pass(infer_module(IRModule.from_expr(expr))))


def enabled_targets() -> list[tuple[str, Device]]:
    """Return the targets whose models can run on this machine, with a device for each."""
    return [("llvm", cpu(0)), *([("cuda", gpu)] if (gpu := cuda(0)).exist else [])]


def count(prelude: object, nat_value: Any) -> int:
    """Return the number that a value of the prelude's data type nat represents: the number of its
    constructors `S`.
    """
    number = 0
    while nat_value.fields:
        (nat_value,) = nat_value.fields
        number += 1
    return number


def run_infer_type(expr: Expr) -> Expr:
    """Infer the type of an expression and return the typed expression. Raises AotcError if it is
    ill-typed.
    """
    return _main_or_its_body(expr, infer_module(IRModule.from_expr(expr)))
