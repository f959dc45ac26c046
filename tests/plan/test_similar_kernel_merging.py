# SPDX-License-Identifier: Apache-2.0
"""Kernels that differ only in numbers become one kernel that takes the numbers as arguments."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from pathlib import Path

import numpy as np
import pytest
from aotc_codegen.c.c_dialects import DIALECTS
from aotc_codegen.c.kernel_files import KernelMerging, PrintedKernels, print_kernels
from aotc_codegen.c.template_rendering import render_template

from aotc.ir.dtype import DType
from aotc.tir.expr import (
    INDEX,
    Binary,
    Broadcast,
    Buffer,
    Const,
    Expr,
    Load,
    Var,
    as_expr,
    call,
    operands,
    with_operands,
)
from aotc.tir.interpreter import run_kernel
from aotc.tir.kernel_text import to_text
from aotc.tir.plan import similar_kernel_merging
from aotc.tir.plan.similar_kernel_merging import MergedKernel, merge_similar_kernels
from aotc.tir.stmt import Kernel, Store, loop_nest, map_exprs
from aotc.tir.target import CodeSize, Target, get_target
from tests.codegen.batch import Array, build
from tests.codegen.batch import call as run
from tests.codegen.bit_comparison import wrong
from tests.share import share
from tests.targets.random_kernels import drawn

M4 = get_target("cortex-m4")
Value = Callable[[Expr, Expr, Expr], Expr]


def transposed(rows: int, columns: int, value: Value, dtype: str = "float32", align: int = 4) -> Kernel:
    """`value` of an element, its row and its column, into the place that a transpose has for it."""
    x, y = (Buffer(name, DType(dtype), rows * columns, "param", align) for name in "xy")
    i, j = Var("i"), Var("j")
    body = loop_nest([(i, rows), (j, columns)], Store(y, j * rows + i, value(Load(x, i * columns + j), i, j)))
    return Kernel(name="t", inputs=(x,), outputs=(y,), body=body)


def scaled(*factors: float) -> Value:
    """An element times factors."""
    return lambda x, i, j: reduce(lambda made, factor: made * factor, factors, x)


def least(value: float) -> Value:
    """An element plus the least of zero and a number."""
    zero = Const(0.0, DType("float32"))
    return lambda x, i, j: x + Binary("min", zero, Const(value, zero.dtype))


def told(shared: MergedKernel, values: Sequence[Const]) -> Kernel:
    """A shared kernel with the values of its numbers written out."""
    mapping: dict[Expr, Const] = dict(zip((n.var for n in shared.kernel.numbers), values, strict=True))

    def value(expr: Expr) -> Expr:
        fresh = tuple(map(value, operands(expr)))
        if isinstance(expr, Broadcast) and expr.a in mapping:
            return replace(mapping[expr.a], lanes=expr.lanes)
        made = Binary(expr.op, *fresh) if isinstance(expr, Binary) else with_operands(expr, fresh)
        return mapping.get(expr, made) if isinstance(expr, Var) else made

    return replace(shared.kernel, body=map_exprs(shared.kernel.body, value), numbers=())


#: Figures by which sharing is always worth it.
ALWAYS = CodeSize(merged_growth=0, argument_bytes=0)


def shared_of(kernels: Sequence[Kernel]) -> list[MergedKernel]:
    """Whatever can be shared, whether or not it is worth it."""
    return merge_similar_kernels(kernels, ALWAYS)


def test_sizes_strides_and_values_are_numbers() -> None:
    sizes = ((4, 6), (8, 3), (4, 5))
    kernels = [transposed(r, c, scaled(float(r), -2.0)) for r, c in sizes]
    (shared,) = shared_of(kernels)
    assert [number.var.dtype for number in shared.kernel.numbers] == [INDEX, INDEX, "float32"]
    found = [tuple(v.value for v in values) for _, values in shared.members]
    assert found == [(4, 6, 4.0), (8, 3, 8.0), (4, 5, 4.0)]
    assert [number.interval for number in shared.kernel.numbers] == [(4, 8), (3, 6), (4.0, 8.0)]


@pytest.mark.parametrize(
    "value",
    [
        lambda k: lambda x, i, j: x + (i // k).astype("float32"),
        lambda k: lambda x, i, j: x / float(k),
        lambda k: lambda x, i, j: x + Const([np.nan, np.inf][k % 2], DType("float32")),
        lambda k: lambda x, i, j: x * call("exp", x) if k == 3 else x + call("exp", x),
    ],
    ids=["divisor", "float divisor", "nan and infinity", "operation"],
)
def test_what_is_no_number(value: Callable[[int], Value]) -> None:
    """C has no literal for some numbers, and others make other code."""
    assert not shared_of([transposed(4, 6, value(k)) for k in (2, 3)])
    assert len(shared_of([transposed(4, 6, value(2)), transposed(6, 5, value(2))])) == 1


def test_zeros_of_both_signs_differ() -> None:
    kernels = [transposed(4, 6, scaled(zero)) for zero in (0.0, -0.0)]
    (shared,) = shared_of(kernels)
    assert [str(values[0].value) for _, values in shared.members] == ["0.0", "-0.0"]


def test_the_order_of_operands_stays() -> None:
    """The operands of a minimum keep their order, as min(0.0, -0.0) is its first operand."""
    kernels = [transposed(4, 6, least(value)) for value in (-0.0, -1.0)]
    (shared,) = shared_of(kernels)
    assert "min(0.0, n0)" in to_text(shared.kernel)


def test_types_are_no_numbers() -> None:
    kernels = [transposed(4, 6, lambda x, i, j: x + as_expr(1, x), d) for d in ("int8", "int16", "float16")]
    assert not shared_of(kernels)


def test_kernels_of_many_numbers_stay_apart() -> None:
    """What calls pass would be more code than the kernels."""
    for count, wanted in ((1, 1), (12, 0)):
        found = [transposed(4, 6, scaled(*(float(k**n) for n in range(1, count)))) for k in (2, 3)]
        assert len(merge_similar_kernels([*found, transposed(8, 3, lambda x, i, j: -x)], CodeSize())) == wanted


def sibling(kernel: Kernel, rng: np.random.Generator, sizes: bool) -> Kernel:
    """A kernel with other values; where it reads and writes stays."""

    def other(const: Const) -> Expr:
        if const.dtype == INDEX or rng.random() < 0.5:
            return const
        if const.dtype.is_float:
            return Const(float(np.float32(const.value * rng.normal())), const.dtype)
        info = np.iinfo(const.dtype.numpy)
        return Const(int(rng.integers(max(info.min, 1 - (1 << 31)), min(info.max, (1 << 31) - 1))), const.dtype)

    return similar_kernel_merging._replace_constants(kernel, other, sizes)


def caller(printed: PrintedKernels, kernels: Sequence[Kernel]) -> str:
    """Kernels, and functions kernel0, kernel1, ... of their buffers alone, which call them."""
    lines = [render_template("kernel.h", banner="test", upper="TEST")]
    text = printed.render_kernel_file("kernels.c", printed.kernels, banner="", name="net", team_includes=())
    lines.append(text.replace('#include "', "// "))
    for k, kernel in enumerate(kernels):
        names = [f"p{n}" for n in range(len(kernel.params))]
        lines.append(
            f"void kernel{k}({', '.join(f'void *{n}' for n in names)}) "
            f"{{ {printed.kernel_call_statement(kernel, names)} }}"
        )
    return "\n".join(lines)


def test_groups_with_one_text_are_one_function() -> None:
    """Alignments, which C does not say, keep them apart before."""
    sizes = {(4, 6): 64, (8, 3): 64, (5, 7): 16, (9, 2): 16}
    kernels = [transposed(*size, scaled(2.0), align=align) for size, align in sizes.items()]
    printed = print_kernels(kernels, "net", DIALECTS[M4.dialect], kernel_merging="numbers", code_size=ALWAYS)
    assert [one.name for one in printed.kernels] == ["net_t"]
    calls = [printed.kernel_call_statement(kernel, ["x", "y"]) for kernel in kernels]
    assert calls == [f"net_t(x, y, {rows}, {columns});" for rows, columns in sizes]


def test_values_are_numbers_of_vectors_and_of_teams() -> None:
    """Where time comes first, sizes stay literals; so do divisors that are powers of two."""
    lanes, f32 = 8, DType("float32")

    def kernel(size: int, factor: float, divisor: float) -> Kernel:
        x, y = (Buffer(name, f32, size * lanes) for name in "xy")
        i = Var("i")
        value = Load(x, i * lanes, lanes) * Const(factor, f32, lanes) / Const(divisor, f32, lanes)
        return Kernel(
            name="t", inputs=(x,), outputs=(y,), body=loop_nest([(i, size)], Store(y, i * lanes, value)), team=True
        )

    kernels = [kernel(4, 2.5, 3.0), kernel(4, 1.5, 5.0), kernel(6, 1.5, 5.0), kernel(4, 2.5, 2.0), kernel(4, 2.5, 4.0)]
    (shared,) = merge_similar_kernels(kernels, CodeSize(), may_differ_in_sizes=False)
    assert [[v.value for v in values] for _, values in shared.members] == [[2.5, 3.0], [1.5, 5.0]]
    assert [member for member, _ in shared.members] == kernels[:2]
    assert "broadcast(n0, 8) / broadcast(n1, 8)" in to_text(shared.kernel)
    printed = print_kernels(kernels, "net", kernel_merging="values")
    assert len(printed.kernels) == 4
    assert printed.kernel_call_statement(kernels[1], ["x", "y"]).endswith("(x, y, 1.5f, 5.0f, team);")
    assert len(print_kernels(kernels, "net").kernels) == 5


V3 = get_target("x86-64-v3")
HERE: list[tuple[Target, KernelMerging]] = [(M4, "numbers"), (V3, "values")]


@pytest.mark.parametrize(("seed", "how"), share([(seed, how) for seed in range(20) for how in HERE], 2))
def test_random_kernels_with_other_numbers(seed: int, how: tuple[Target, KernelMerging], tmp_path: Path) -> None:
    """They are the kernels that they stand for, and compiled they compute the same bits.

    Other values in vectors may be shifts by more than the width, of which compilers and the interpreter make something
    else: these are compared with the kernels that they stand for, compiled alone.
    """
    target, kind = how
    rng, jobs, sizes = np.random.default_rng(seed), [], kind == "numbers"
    for k in range(8):
        kernel, inputs = drawn(8 * seed + k, target)
        jobs += [(sibling(kernel, rng, sizes), inputs) for _ in range(3)]
    kernels = [kernel for kernel, _ in jobs]
    found = merge_similar_kernels(kernels, ALWAYS, may_differ_in_sizes=sizes)
    assert sum(len(one.members) for one in found) > 8
    for one in found:
        for kernel, values in one.members:
            assert to_text(told(one, values)).split("{", 1)[1] == to_text(kernel).split("{", 1)[1]
    printed = print_kernels(kernels, "net", DIALECTS[target.dialect], kernel_merging=kind, code_size=ALWAYS)
    assert printed.numbers
    flags = target.cflags if target is V3 else ()
    library = ctypes.CDLL(str(build(caller(printed, kernels), tmp_path, "-O0", *flags)))
    (tmp_path / "alone").mkdir()
    each = print_kernels(kernels, "net", DIALECTS[target.dialect])
    alone = ctypes.CDLL(str(build(caller(each, kernels), tmp_path / "alone", "-O0", *flags)))
    for k, (kernel, inputs) in enumerate(jobs):
        results: list[Array] = run(library, f"kernel{k}", kernel, inputs)
        wanted = run_kernel(kernel, inputs) if target is M4 else run(alone, f"kernel{k}", kernel, inputs)
        assert not wrong(kernel, results, wanted)
