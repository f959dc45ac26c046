# SPDX-License-Identifier: Apache-2.0
"""Contract products with dependent sums into fused multiply-adds, which round once.

x * y + z  ->  fma(x, y, z)          x * y - z  ->  fma(x, y, -z)          z - x * y  ->  fma(-x, y, z)
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from aotc.ir.persistent_memo import compute_with_memo_key
from aotc.tir import Binary, Call, Const, Expr, Kernel, Unary, Var, map_exprs, operands, with_operands

#: Types for which processors have fused multiply-adds; narrower floats are rounded after each
#: operation.
FMA_DTYPES: Final = frozenset({"float32", "float64"})


def contract_to_fma(expr: Expr) -> Expr:
    """Return the expression with fused multiply-adds; in a sum of two products, the second product
    is fused.
    """
    return _contract_to_fma_memoized(expr, {})


def _contract_to_fma_memoized(expr: Expr, memo: dict[int, Expr]) -> Expr:
    """Implement `contract_to_fma`; `memo` holds the results by the identity of expressions."""
    if isinstance(expr, (Var, Const)):
        return expr
    contracted = memo.get(id(expr))
    if contracted is None:
        fresh = with_operands(expr, tuple([_contract_to_fma_memoized(part, memo) for part in operands(expr)]))
        contracted = memo[id(expr)] = _contract_operation_to_fma(fresh)
    return contracted


def _contract_operation_to_fma(expr: Expr) -> Expr:
    """Return an expression whose operands are contracted as a fused multiply-add if it is a sum of
    a product; mark functions as fused.
    """
    match expr:
        case Call():
            return replace(expr, fused=expr.args[0].dtype.is_float)
        case Binary(op="add" | "sub") if expr.dtype in FMA_DTYPES:
            match expr.op, expr.a, expr.b:
                case "add", a, Binary(op="mul", a=x, b=y):
                    return Call("fma", (x, y, a))
                case "sub", a, Binary(op="mul", a=x, b=y):
                    return Call("fma", (_negate_folding_constants(x), y, a))
                case "add", Binary(op="mul", a=x, b=y), b:
                    return Call("fma", (x, y, b))
                case "sub", Binary(op="mul", a=x, b=y), b:
                    return Call("fma", (x, y, _negate_folding_constants(b)))
    return expr


def contract_kernel_to_fma(kernel: Kernel) -> Kernel:
    """Return the kernel with fused multiply-adds; kernels with user-supplied code are returned
    unchanged.
    """
    if kernel.source is not None:
        return kernel

    def kernel_with_contracted_body() -> Kernel:
        return replace(kernel, body=map_exprs(kernel.body, contract_to_fma))

    # contracting takes no longer than reading the result from a file
    return compute_with_memo_key("fuse", kernel, kernel_with_contracted_body)


def _negate_folding_constants(expr: Expr) -> Expr:
    return Const(-expr.value, expr.dtype, expr.lanes) if isinstance(expr, Const) else Unary("neg", expr)
