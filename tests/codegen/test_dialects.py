# SPDX-License-Identifier: Apache-2.0
"""Differences between the emitted languages; every instruction computes the interpreter's results in each language."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from aotc_codegen.c.c_dialects import C99, GNU_C
from aotc_codegen.c.kernel_printer import print_kernel

from aotc.ir.diagnostics import AotcError
from aotc.ir.dtype import DType
from aotc.relay.op import OPERATORS_BY_NAME
from aotc.tir.expr import Buffer, Call, Expr, Load, Var, as_expr, call
from aotc.tir.instruction_definition import Execution, Extent, Instruction, InstructionText
from aotc.tir.instruction_statements import execute_to_memory
from aotc.tir.instruction_table import INSTRUCTIONS
from aotc.tir.interpreter import run_kernel
from aotc.tir.kernel_parser import parse_kernel
from aotc.tir.kernel_text import to_text
from aotc.tir.kernel_verifier import verify
from aotc.tir.stmt import For, Kernel, Store, is_barrier, walk_stmts
from aotc.tir.target import C
from aotc.tir.threads.parallel_kernels import parallelize_kernel
from tests.codegen import cuda
from tests.codegen.batch import run_batch
from tests.codegen.cases import call_cases
from tests.ops.harness import Job, kernel_job
from tests.tir.thread_teams import EAGER

F32 = DType("float32")
DOT = Instruction(
    name="dot_s8",
    takes=("int32x4", "int8x16", "int8x16"),
    gives="int32x4",
    meaning=lambda acc, a, b: acc + (a.astype(np.int32) * b).reshape(4, 4).sum(axis=1, dtype=np.int32),
    texts=(
        InstructionText(
            call="aotc_dot_s8({0}, {1}, {2})",
            dialects=("gnu-c",),
            function="""\
__attribute__((__noinline__, __unused__))
static aotc_int32x4 aotc_dot_s8(aotc_int32x4 c, aotc_int8x16 a, aotc_int8x16 b) {
  for (int i = 0; i < 16; ++i) c[i / 4] += (int32_t)a[i] * b[i];
  return c;
}
""",
        ),
    ),
)
"""Products of bytes, four of which add to one sum: what several processors have an instruction for."""


def vectors(name: str, types: list[tuple[str, int]]) -> Kernel:
    """y[i..] = name(a[i..], b[i..], ...), two vectors of each."""
    inputs = tuple(Buffer(f"x{k}", DType(dtype), 2 * lanes) for k, (dtype, lanes) in enumerate(types))
    i = Var("i")
    args: list[Expr] = [Load(b, i * lanes, lanes) for b, (_, lanes) in zip(inputs, types, strict=True)]
    value = call(name, *args)
    out = Buffer("out", value.dtype, 2 * value.lanes)
    return Kernel(name="k", inputs=inputs, outputs=(out,), body=For(i, 2, Store(out, i * value.lanes, value)))


def check(kernel: Kernel, folder: Path) -> None:
    """The verifier, the text form, the interpreter and compiled C agree."""
    verify(kernel)
    assert to_text(parse_kernel(to_text(kernel))) == to_text(kernel)
    rng = np.random.default_rng(5)
    arrays = [rng.integers(-100, 100, b.size).astype(b.dtype.numpy) for b in kernel.inputs]
    ((actual,),) = run_batch([(kernel, arrays)], folder)
    np.testing.assert_array_equal(actual, run_kernel(kernel, arrays)[0])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_multiply_add_of_vectors(dtype: str, tmp_path: Path) -> None:
    check(vectors("fma", [(dtype, 4)] * 3), tmp_path)


def test_an_instruction_is_a_row(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(INSTRUCTIONS, DOT.name, DOT)
    types = [("int32", 4), ("int8", 16), ("int8", 16)]
    kernel = vectors(DOT.name, types)
    check(kernel, tmp_path)
    assert print_kernel(kernel, GNU_C).definitions[DOT.name] == DOT.texts[0].function
    with pytest.raises(TypeError, match="dot_s8 of int8x8, not of int8x16"):
        vectors(DOT.name, [("int32", 4), ("int8", 16), ("int8", 8)])
    wrong = Store(kernel.outputs[0], Var("i"), Call(DOT.name, tuple(Load(b, Var("i"), 4) for b in kernel.inputs)))
    with pytest.raises(AotcError, match="dot_s8 of int8x4, not of int8x16"):
        verify(replace(kernel, body=For(Var("j"), 2, wrong)))


FLIP = Instruction(
    name="flip",
    takes=("float32[]", "int64", "int64"),
    meaning=lambda block, *_: block[::-1],
    execution=Execution(
        result="float32[]", extents=lambda _, pitch, to_pitch: (Extent(4, 4, to_pitch), Extent(4, 4, pitch))
    ),
    texts=(
        InstructionText(
            call="aotc_flip({0}, {3}, {1}, {2})",
            dialects=("gnu-c",),
            function="""\
$inline void aotc_flip(float *to, ptrdiff_t to_step, const float *from, ptrdiff_t from_step) {
  for (int i = 0; i < 4; ++i) memcpy(to + i * to_step, from + (3 - i) * from_step, 16);
}
""",
        ),
    ),
)
"""The rows of a block of four by four in reverse order."""


def test_an_instruction_on_blocks_is_a_row(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(INSTRUCTIONS, FLIP.name, FLIP)
    x, y, k = Buffer("x", F32, 48), Buffer("y", F32, 48), Var("k")
    body = For(k, 3, execute_to_memory("flip", y, k * 16, Load(x, k * 4, 40), as_expr(12), as_expr(4)))
    kernel = Kernel(name="k", inputs=(x,), outputs=(y,), body=body)
    assert "y[k * 16] = flip(x[k * 4:40], 12, 4)" in to_text(kernel)
    check(kernel, tmp_path)
    rows = np.arange(48, dtype=np.float32).reshape(4, 3, 4)
    np.testing.assert_array_equal(run_kernel(kernel, [rows.reshape(-1)])[0], rows[::-1].swapaxes(0, 1).reshape(-1))
    wide = replace(kernel, body=execute_to_memory("flip", y, 0, Load(x, as_expr(0), 34), as_expr(12), as_expr(4)))
    with pytest.raises(AotcError, match="flip reads 40 elements of x, but the operand has 34"):
        verify(wide)
    with pytest.raises(AotcError, match="flip cannot be printed: it is not available in other") as raised:
        print_kernel(kernel, replace(GNU_C, name="other"))
    assert raised.value.code == "c-instruction"
    with pytest.raises(TypeError, match="flip is a statement"):
        call("flip", Load(x, k, 4))


def test_what_a_language_lacks_is_said() -> None:
    with pytest.raises(AotcError, match="c99 has no vectors") as raised:
        print_kernel(vectors("fma", [("float32", 4)] * 3), C99)
    assert raised.value.code == "c-vector"
    i, x, y = Var("i"), Buffer("x", F32, 4), Buffer("y", F32, 4)
    kernel = Kernel(name="k", inputs=(x,), outputs=(y,), body=For(i, 4, Store(y, i, call("sqrt", Load(x, i)))))
    poor = replace(C99, name="poor", functions={})
    with pytest.raises(AotcError, match="sqrt cannot be printed: it is not available in poor") as raised:
        print_kernel(kernel, poor)
    assert raised.value.code == "c-instruction"


def test_plain_c_is_what_gnu_c_says_without_vectors() -> None:
    for case in islice(call_cases(), 0, None, 5):
        assert print_kernel(case.kernel, C99) == print_kernel(case.kernel, GNU_C)


@cache
def jobs() -> list[Job]:
    """Kernels with reductions, exponentials, borders, scratch and barriers, for one thread and for teams."""
    winograd = "nn.contrib_conv2d_winograd_without_weight_transform"
    names = ("nn.softmax", "nn.conv2d", winograd, "nn.avg_pool2d", "image.resize2d", "nn.log_softmax", "cumsum")
    ops = [OPERATORS_BY_NAME[name] for name in names]
    alone = [kernel_job(op, sample, C) for op in ops if op.expand is None for sample in islice(op.samples(), 2)]
    return [*alone, *(replace(job, kernel=parallelize_kernel(job.kernel, thread_costs=EAGER)) for job in alone)]


def test_a_block_of_cuda_threads_does_what_the_interpreter_does(tmp_path: Path) -> None:
    """Heads, qualifiers, indices, barriers and the numbers of threads are the dialect's; one thread or three."""
    kernels = [job.kernel for job in jobs()]
    assert any(is_barrier(s) for kernel in kernels for s in walk_stmts(kernel.body))
    library = cuda.build(kernels, tmp_path)
    assert "ptrdiff_t" not in "".join(print_kernel(kernel, cuda.CUDA).definition_with_name("k") for kernel in kernels)
    for number, job in enumerate(jobs()):
        expected = run_kernel(job.kernel, job.inputs)
        for threads in (1, 3) if job.kernel.team else (1,):
            for actual, wanted in zip(
                cuda.launch(library, number, job.kernel, job.inputs, threads), expected, strict=True
            ):
                np.testing.assert_allclose(actual, wanted, rtol=2e-6, atol=1e-6)


def test_blocks_and_threads_are_refused_by_c() -> None:
    b, t, y = Var("b"), Var("t"), Buffer("y", F32, 4)
    body = For(b, 1, For(t, 4, Store(y, t, as_expr(0).astype("float32")), kind="thread"), kind="block")
    with pytest.raises(AotcError, match="a loop of kind 'block' cannot be printed: it is not available in c99"):
        print_kernel(Kernel(name="k", inputs=(), outputs=(y,), body=body), C99)
