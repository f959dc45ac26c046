# SPDX-License-Identifier: Apache-2.0
"""Contract products with dependent sums into fused multiply-adds, which round once.

x * y + z  ->  fma(x, y, z)          x * y - z  ->  fma(x, y, -z)          z - x * y  ->  fma(-x, y, z)
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from aotc.tir import Binary, Call, Const, Expr, Kernel, Unary, map_exprs, memoized_kernel, operands, with_operands

#: Types for which processors have fused multiply-adds; narrower floats are rounded after each
#: operation.
FMA_DTYPES: Final = frozenset({"float32", "float64"})


def contract_to_fma(expr: Expr) -> Expr:
    """Return the expression with fused multiply-adds; in a sum of two products, the second product
    is fused.
    """
    expr = with_operands(expr, tuple(map(contract_to_fma, operands(expr))))
    match expr:
        case Call():
            return replace(expr, fused=expr.args[0].dtype.is_float)
        case Binary(op="add" | "sub") if expr.dtype in FMA_DTYPES:
            match expr.op, expr.a, expr.b:
                case "add", a, Binary(op="mul", a=x, b=y):
                    return Call("fma", (x, y, a))
                case "sub", a, Binary(op="mul", a=x, b=y):
                    return Call("fma", (_arithmetic_negative(x), y, a))
                case "add", Binary(op="mul", a=x, b=y), b:
                    return Call("fma", (x, y, b))
                case "sub", Binary(op="mul", a=x, b=y), b:
                    return Call("fma", (x, y, _arithmetic_negative(b)))
    return expr


def contract_kernel_to_fma(kernel: Kernel) -> Kernel:
    """Return the kernel with fused multiply-adds; kernels with user-supplied code are returned
    unchanged.
    """
    if kernel.source is not None:
        return kernel

    def contract_body_to_fma() -> Kernel:
        return replace(kernel, body=map_exprs(kernel.body, contract_to_fma))

    return memoized_kernel("fuse", ("fuse", kernel), kernel.span, contract_body_to_fma)


def _arithmetic_negative(expr: Expr) -> Expr:
    return Const(-expr.value, expr.dtype, expr.lanes) if isinstance(expr, Const) else Unary("neg", expr)
