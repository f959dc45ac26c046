# SPDX-License-Identifier: Apache-2.0
"""The text form of kernels is parsed back to the printed kernel."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings

from aotc.ir.diagnostics import AotcError
from aotc.ir.dtype import DType
from aotc.ir.span import Span
from aotc.tir.expr import BOOL, Binary, Broadcast, Buffer, Call, Cast, Const, Load, Pack, Select, Unary, Var, as_expr
from aotc.tir.kernel_parser import parse_kernel
from aotc.tir.kernel_text import to_text
from aotc.tir.kernel_verifier import verify
from aotc.tir.schedule import schedule
from aotc.tir.stmt import Assign, Block, Declare, For, If, Kernel, Stmt, Store, While
from aotc.tir.target import X86_64_V4
from tests.tir.graphs import Graph, graphs

F32, I8 = DType("float32"), DType("int8")


def kernel(body: Stmt, *buffers: Buffer) -> Kernel:
    return Kernel(name="k", inputs=buffers[:1], outputs=buffers[1:], body=body)


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(graph=graphs())
def test_scheduled_kernels_round_trip(graph: Graph) -> None:
    made = schedule("k", graph.inputs, graph.outputs, X86_64_V4)
    verify(made)
    text = to_text(made)
    again = parse_kernel(text)
    verify(again)
    assert to_text(again) == text


def test_every_construct_round_trips() -> None:
    x, y, z = Buffer("x", F32, 64, align=64), Buffer("y", F32, 64), Buffer("input:1", I8, 64)
    i, r, v, c = Var("i"), Var("for", F32), Var("v", F32, 8), Var("c", BOOL)
    value = Call("fma", (Load(x, i), Unary("neg", r), Const(float("nan"), F32)))
    body = Block(
        (
            Declare(r, Const(-0.0, F32)),
            Declare(c, Const(True, BOOL)),
            For(i, 64, Assign(r, Select(Binary("lt", i, as_expr(3)), value, Const(-float("inf"), F32))), step=8),
            Declare(v, Binary("max", Load(x, as_expr(8), 8), Broadcast(r, 8))),
            Store(y, as_expr(0), Binary("add", v, Const(1.5, F32, 8))),
            Store(y, as_expr(8), Pack((r, Load(x, i), r))),
            While(c, Assign(c, Unary("not", Binary("and", c, Unary("not", c))))),
            If(c, Store(z, as_expr(-1) + 2, Const(-3, I8)), Store(z, as_expr(0), Cast(I8, r))),
            Store(z, as_expr(1), Select(c, Const(1, I8), Cast(I8, Const(2.0, F32)))),
            Store(z, as_expr(1), Binary("shl", Const(1, I8), Binary("truncmod", Const(7, I8), Const(2, I8)))),
        )
    )
    made = Kernel(
        name='a "name"', inputs=(x,), outputs=(y, z), body=body, inplace=((0, 0),), macs=7, span=Span("m", node="n*/")
    )
    text = to_text(made)
    again = parse_kernel(text.replace("{\n", "{  # a remark\n"))
    assert to_text(again) == "\n".join(text.splitlines()[1:]) + "\n"
    assert (again.name, again.inplace, again.macs) == (made.name, made.inplace, made.macs)
    assert [(b.dtype, b.size, b.align) for b in again.params] == [(b.dtype, b.size, b.align) for b in made.params]


@pytest.mark.parametrize("op", ["add", "sub", "mul", "floordiv", "floormod", "shl", "and", "xor", "or"])
@pytest.mark.parametrize("other", ["add", "sub", "mul", "floordiv", "floormod", "shl", "and", "xor", "or"])
def test_nesting_is_kept(op: str, other: str) -> None:
    x, y = Buffer("x", DType("int64"), 4), Buffer("y", DType("int64"), 4)
    a, b, c = (Load(x, as_expr(k)) for k in range(3))
    for value in (Binary(op, Binary(other, a, b), c), Binary(op, a, Binary(other, b, c))):
        body = parse_kernel(to_text(kernel(Store(y, as_expr(0), value), x, y))).body
        assert isinstance(body, Store)
        assert isinstance(body.value, Binary)
        assert body.value.op == op
        inner = body.value.a if isinstance(value.a, Binary) else body.value.b
        assert isinstance(inner, Binary)
        assert inner.op == other


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ('kernel "k" {\n  input x: float99[3]\n}', 2, "no type float99"),
        ('kernel "k" {\n  output x: int8[3]\n  y[0] = 1\n}', 3, "no register y"),
        ('kernel "k" {\n  output x: int8[3]\n  x[0] = ;\n}', 3, "unexpected"),
        ('kernel "k" {\n  output x: float32[3]\n  x[0] = exp(1.0, 2.0)\n}', 3, "no function exp"),
        ('kernel "k" {\n  output x: float32[3]\n  x[0] = 1.0', 3, "expected"),
    ],
)
def test_errors_name_the_line(text: str, line: int, message: str) -> None:
    with pytest.raises(AotcError, match=message) as caught:
        parse_kernel(text)
    span = caught.value.diagnostics[0].span
    assert (span.line if span else 0) == line
