# SPDX-License-Identifier: Apache-2.0
"""FoldConstant: what is evaluated, what stays, and that memory stays bounded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from passes.graphs import checked, const, module_of, noise, ops, var

from aotc.ir.diagnostics import AotcError
from aotc.ir.dimensions import SymDim
from aotc.ir.op import Op, OpPattern
from aotc.ir.span import Span
from aotc.ir.transform import PassContext
from aotc.ir.types import TensorType
from aotc.relay.constant_evaluation import evaluate_constant_call
from aotc.relay.expr import (
    Call,
    Constant,
    Expr,
    Function,
    If,
    Tuple,
    TupleGetItem,
    Var,
    splat_constant,
    type_of,
    typed_op_call,
)
from aotc.relay.module import IRModule
from aotc.relay.op import OPERATORS_BY_NAME
from aotc.relay.op.binary_elementwise import add, multiply
from aotc.relay.op.concat_split import concatenate, split
from aotc.relay.op.elementwise_unary import exp, relu
from aotc.relay.op.pad import pad
from aotc.relay.op.qnn.requantize import quantize
from aotc.relay.op.shape import broadcast_to, expand_dims, reshape, shape_of, transpose
from aotc.relay.op.tensor_creation import full, ones, zeros, zeros_like
from aotc.relay.transform import FoldConstant


def folded(body: Expr, *params: Var) -> Expr:
    return checked(FoldConstant(), module_of(body, *params)).main.body


def test_constant_operands_fold() -> None:
    x = var("x", 2, 3)
    result = folded(add(x, multiply(const(2.0), const(3.0))), x)
    assert isinstance(result, Call)
    assert isinstance(result.args[1], Constant)
    assert float(result.args[1].data) == 6.0


def test_nothing_to_fold_is_the_same_object() -> None:
    x = var("x", 2, 3)
    module = module_of(relu(x), x)
    assert FoldConstant()(module) is module


def test_tuples_and_choices() -> None:
    x = var("x", 2, 4)
    pair = Tuple((relu(x), exp(x)))
    assert ops(checked(FoldConstant(), module_of(TupleGetItem(pair, 1), x))) == {"exp": 1}
    choice = If(const(False, "bool"), relu(x), exp(x))
    assert ops(checked(FoldConstant(), module_of(choice, x))) == {"exp": 1}
    parts = split(const(np.arange(6)), 3)
    whole = folded(concatenate((TupleGetItem(parts, 2), TupleGetItem(parts, 0))))
    assert isinstance(whole, Constant)
    assert whole.data.tolist() == [4, 5, 0, 1]


def test_results_keep_spans() -> None:
    span = Span("net", node="sum")
    whole = folded(Call(add(const(1.0), const(1.0)).op, (const(1.0), const(1.0)), span=span))
    assert whole.span == span


def test_shapes_fold_without_values() -> None:
    x = var("x", 2, 5)
    result = folded(shape_of(exp(x), "int64"), x)
    assert isinstance(result, Constant)
    assert result.data.tolist() == [2, 5]
    n = Var("x", TensorType((SymDim("n"), 5)))
    assert isinstance(FoldConstant()(module_of(shape_of(n), n)).main.body, Call)


# --- splats: a million million elements, and no memory

HUGE = (1_000_000, 1_000_000)


def is_splat_of(expr: Expr, value: float, shape: tuple[int, ...]) -> bool:
    return isinstance(expr, Constant) and expr.is_splat and expr.data.shape == shape and expr.data.flat[0] == value


def test_splats_are_made() -> None:
    x = var("x", 1)

    def fold(body: Expr) -> Expr:
        return FoldConstant()(module_of(body, x)).main.body

    assert is_splat_of(fold(zeros(HUGE, "float32")), 0, HUGE)
    assert is_splat_of(fold(ones(HUGE, "int8")), 1, HUGE)
    assert is_splat_of(fold(full(const(7.0), HUGE)), 7, HUGE)
    assert is_splat_of(fold(broadcast_to(const([[3.0]]), HUGE)), 3, HUGE)
    big = Var("big", TensorType(HUGE))
    assert is_splat_of(FoldConstant()(module_of(zeros_like(big), big)).main.body, 0, HUGE)


def test_splats_stay_splats() -> None:
    x = var("x", 1)

    def fold(body: Expr) -> Expr:
        return FoldConstant()(module_of(body, x)).main.body

    two = splat_constant(2, HUGE, "float32")
    assert is_splat_of(fold(add(exp(multiply(two, const(0.0))), two)), 3, HUGE)
    assert is_splat_of(fold(transpose(two, (1, 0))), 2, HUGE)
    assert is_splat_of(fold(reshape(two, (-1,))), 2, (10**12,))
    assert is_splat_of(fold(expand_dims(two, 1)), 2, (10**6, 1, 10**6))


def test_what_would_be_too_large_stays() -> None:
    x = var("x", 1)
    row = const(np.arange(1000))
    body = add(reshape(row, (1, -1)), reshape(row, (-1, 1)))
    module = module_of(body, x)
    assert isinstance(FoldConstant()(module).main.body, Constant)
    with PassContext(config={"relay.FoldConstant.max_bytes": 1 << 20}):
        kept = FoldConstant()(module).main.body
    assert isinstance(kept, Call)
    assert kept.op is body.op
    bomb = module_of(add(splat_constant(1, HUGE, "float32"), const(np.arange(10**6))), x)
    assert isinstance(FoldConstant()(bomb).main.body, Call)


def test_what_is_no_larger_than_its_arguments_folds_whatever_the_limit() -> None:
    x = var("x", 1)
    module = module_of(transpose(noise(100, 100), (1, 0)), x)
    with PassContext(config={"relay.FoldConstant.max_bytes": 16}):
        assert isinstance(FoldConstant()(module).main.body, Constant)


def test_padding_a_splat_is_no_splat() -> None:
    x = var("x", 1)
    result = folded(pad(splat_constant(1, (2, 2), "float32"), ((1, 1), (0, 0))), x)
    assert isinstance(result, Constant)
    assert result.data.sum() == 4


def test_fused_functions_are_left_alone() -> None:
    p, x = var("p", 2), var("x", 2)
    fused = Function((p,), add(p, add(const(1.0), const(2.0))), attrs={"Primitive": 1})
    module = module_of(Call(fused, (x,), checked_type=p.checked_type), x)
    assert FoldConstant()(module) is module


def test_a_reference_that_breaks_its_promise_is_caught() -> None:
    liar = Op(name="liar", infer=lambda _, t: t[0], reference=lambda _, x: x[:1], pattern=OpPattern.OPAQUE)
    with pytest.raises(AotcError, match="evaluating liar gave"):
        evaluate_constant_call(typed_op_call(liar, (const([1.0, 2.0]),)))


def test_functions_marked_are_skipped() -> None:
    body = add(const(1.0), const(2.0))
    module = IRModule({"main": Function((), body, type_of(body), attrs={"SkipOptimization": 1})})
    assert FoldConstant()(module) is module


def splatted(value: Any) -> Any:
    """Arrays of the same shapes that hold one value, stored once."""
    if isinstance(value, tuple):
        return tuple(map(splatted, value))
    return np.broadcast_to(value.reshape(-1)[:1].reshape(()), value.shape) if value.size else value


def constants(value: Any) -> Expr:
    return Tuple(map(constants, value)) if isinstance(value, tuple) else Constant(value)


@pytest.mark.parametrize("name", sorted(n for n, op in OPERATORS_BY_NAME.items() if op.pattern <= OpPattern.INJECTIVE))
def test_splats_give_what_arrays_do(name: str) -> None:
    """What is computed on one element is what the operator gives on all: not so for triangles of ones."""
    op = OPERATORS_BY_NAME[name]
    for sample in op.samples():
        arguments = splatted(tuple(sample.args))
        try:
            found = evaluate_constant_call(typed_op_call(op, [constants(a) for a in arguments], sample.attrs))
        except AotcError:  # one value will not do: indices that must differ
            continue
        if isinstance(found, Constant):
            with np.errstate(all="ignore"):
                wanted = np.asarray(op.reference(sample.attrs, *arguments))
            same = (found.data == wanted) | ((found.data != found.data) & (wanted != wanted))
            assert found.data.shape == wanted.shape and bool(np.all(same)), sample.attrs


def test_quantized_operators_are_folded_where_that_is_asked_for() -> None:
    x = var("x", 3, dtype="int8")
    number = quantize(const([1.0, 2.0, 3.0]), const(0.5), const(0, "int32"), out_dtype="int8")
    module = module_of(add(x, number), x)
    assert ops(checked(FoldConstant(), module)) == {"qnn.quantize": 1, "add": 1}
    assert ops(checked(FoldConstant(fold_qnn=True), module)) == {"add": 1}
