# SPDX-License-Identifier: Apache-2.0
"""Spans, wrong references of operators, and splats of all operators; `fold_constant.test` has all other cases."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from passes.graphs import const, module_of

from aotc.ir.diagnostics import AotcError
from aotc.ir.op import Op, OpPattern
from aotc.ir.span import Span
from aotc.relay.constant_evaluation import evaluate_constant_call
from aotc.relay.expr import Call, Constant, Expr, Tuple, typed_op_call
from aotc.relay.op import OPERATORS_BY_NAME
from aotc.relay.op.binary_elementwise import add
from aotc.relay.transform import FoldConstant


def test_results_keep_spans() -> None:
    span = Span("net", node="sum")
    call = Call(add(const(1.0), const(1.0)).op, (const(1.0), const(1.0)), span=span)
    assert FoldConstant()(module_of(call)).main.body.span == span


def test_a_reference_that_breaks_its_promise_is_caught() -> None:
    liar = Op(name="liar", infer=lambda _, t: t[0], reference=lambda _, x: x[:1], pattern=OpPattern.OPAQUE)
    with pytest.raises(AotcError, match="evaluating liar gave"):
        evaluate_constant_call(typed_op_call(liar, (const([1.0, 2.0]),)))


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
