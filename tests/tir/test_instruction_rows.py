# SPDX-License-Identifier: Apache-2.0
"""Rows of the instruction table state all facts, and instructions access the elements that their rows state."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from aotc.ir.diagnostics import AotcError
from aotc.ir.dtype import DType
from aotc.tir.expr import Buffer, Expr, Load, as_expr, const
from aotc.tir.instruction_definition import Execution, Extent, Instruction, check_instruction_rows, is_memory_type
from aotc.tir.instruction_statements import execute_to_memory
from aotc.tir.instruction_table import INSTRUCTIONS
from aotc.tir.interpreter import run_kernel
from aotc.tir.kernel_verifier import verify
from aotc.tir.loops.loop_dependence import direct_accesses
from aotc.tir.stmt import Destination, Execute, Kernel
from tests.codegen.batch import build, source_of

Array = np.ndarray[Any, Any]
#: Elements before and after the elements that a row states.
MARGIN: Final = 24
#: Integer operands of calls for AMX.
AMX: Final = ((17, 9, 2, 64, 4, 1, 2, 8, 64, 1, 0, 0), (16, 13, 2, 512, 8, 1, 3, 20, 128, 2, 30, 400))
#: For each micro-kernel: the elements of operands in memory, and the values of the others.
SAMPLES: Final[dict[str, tuple[tuple[int, ...], ...]]] = {
    "transpose_square": ((34, 4, 10, 7), (16, 4, 4, 4), (232, 8, 32, 9)),
    "sum_square_rows": ((34, 4, 10), (64, 8, 8), (256, 16, 16)),
    "pairs2": ((7, 7), (16, 16), (1, 1)),
    "pairs2x4": ((16, 32), (40, 80)),
    "bytes1x4": ((9, 48), (4, 16)),
    "bytes": ((1,), (37,)),
    "byte_rows": ((9, 45), (16, 16), (33, 99)),
    "byte_taps": ((27, 47, 3, 19), (32, 32, 2, 16), (4, 4, 1, 4)),
    "requantize_once": ((5, 5, 5, 5, 3, -128, 127), (16, 16, 16, 16, -7, -100, 90)),
    "requantize_twice": ((5, 5, 5, 5, 3, -128, 127), (16, 16, 16, 16, -7, -100, 90)),
}


def samples(row: Instruction) -> tuple[tuple[int, ...], ...]:
    if not row.name.startswith("brgemm_"):
        return SAMPLES[row.name]
    calls, is_int4 = [], len(row.takes) > len(AMX[0]) + 2
    for numbers in AMX:
        sizes = row.accessed_extents([0, 0, *numbers, *[0] * is_int4])[1]
        spans = [extent.span for extent in sizes if extent is not None]
        calls.append((*spans, *numbers, *[3] * is_int4))
    return tuple(calls)


ROWS: Final = [
    row
    for row in INSTRUCTIONS.values()
    if row.execution is not None
    and row.execution.writes_memory
    and row.execution.scope == "thread"
    and not row.execution.asynchronous
]


def kernel_of(row: Instruction, sample: tuple[int, ...]) -> Kernel:
    """An instruction in the middle of each of its buffers."""
    assert row.execution is not None
    written, _ = row.accessed_extents(sample)
    assert written is not None
    inputs: list[Buffer] = []
    operands: list[Expr] = []
    for kind, number in zip(row.takes, sample, strict=True):
        if is_memory_type(kind):
            dtype = DType(kind.partition("[")[0].replace("number", "float32"))
            inputs.append(Buffer(f"x{len(inputs)}", dtype, number + 2 * MARGIN, align=16))
            operands.append(Load(inputs[-1], as_expr(MARGIN), number))
        else:
            operands.append(const(number, kind))
    dtype = DType(row.execution.result.partition("[")[0].replace("number", "float32"))
    y = Buffer("y", dtype, written.span + 2 * MARGIN, align=16)
    body = execute_to_memory(row.name, y, MARGIN, *operands)
    return Kernel(
        name=f"{row.name}_{'_'.join(map(str, sample))}".replace("-", "m"), inputs=tuple(inputs), outputs=(y,), body=body
    )


def accessed(kernel: Kernel, buffer: Buffer, *, stores: bool) -> Array:
    """A mask of the elements of a buffer that the row says an instruction reads, or writes."""
    mask = np.zeros(buffer.size, np.bool_)
    for other, index, elements in direct_accesses(kernel.body, reads=not stores, stores=stores):
        if other is buffer:
            first = int(index.value) if hasattr(index, "value") else -1
            mask[first : first + elements] = True
    return mask


def some_values(rng: np.random.Generator, buffer: Buffer, row: Instruction, number: int) -> Array:
    if row.name.startswith("requantize") and number == 3:
        return rng.integers(0, 20, buffer.size).astype(buffer.dtype.numpy)
    low, high = (-100, 100) if buffer.dtype.is_float or buffer.dtype.is_signed else (0, 200)
    scale = 10**7 if buffer.dtype == "int32" else 1
    return (rng.integers(low, high, buffer.size) * scale).astype(buffer.dtype.numpy)


def run_in_c(library: ctypes.CDLL, number: int, kernel: Kernel, inputs: list[Array], fill: Array) -> Array:
    result = fill.copy()
    library[f"kernel{number}"](*(ctypes.c_void_p(a.ctypes.data) for a in (*inputs, result)))
    return result


def test_instructions_access_what_their_rows_state(tmp_path: Path) -> None:
    """Other values around it do not change results, nothing around the result changes, and all of it is written."""
    jobs = [(row, kernel_of(row, sample)) for row in ROWS for sample in samples(row)]
    library = ctypes.CDLL(str(build(source_of(kernel for _, kernel in jobs), tmp_path, "-fno-strict-aliasing")))
    rng = np.random.default_rng(0)
    for number, (row, kernel) in enumerate(jobs):
        verify(kernel)
        (y,) = kernel.outputs
        inputs = [some_values(rng, b, row, k) for k, b in enumerate(kernel.inputs)]
        others = [
            np.where(accessed(kernel, b, stores=False), a, some_values(rng, b, row, k))
            for k, (a, b) in enumerate(zip(inputs, kernel.inputs, strict=True))
        ]
        written = accessed(kernel, y, stores=True)
        fills = [np.full(y.nbytes, byte, np.uint8).view(y.dtype.numpy) for byte in (0x5A, 0x3C)]
        results = [
            run(values, fill)
            for run in (
                lambda values, fill, number=number, kernel=kernel: run_in_c(library, number, kernel, values, fill),
                lambda values, fill, kernel=kernel: run_kernel(kernel, values, output_init=[fill])[0],
            )
            for values, fill in ((inputs, fills[0]), (others, fills[1]))
        ]
        for result, fill in zip(results, [*fills, *fills], strict=True):
            np.testing.assert_array_equal(result[written], results[0][written], err_msg=kernel.name)
            np.testing.assert_array_equal(result[~written], fill[~written], err_msg=kernel.name)


ROW: Final = Instruction(
    name="sum_rows",
    takes=("float32[]", "int64"),
    meaning=lambda x, count: x.reshape(int(count), -1).sum(0),
    execution=Execution(result="float32[]", extents=lambda x, count: (x // max(count, 1), x // max(count, 1) * count)),
)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "fma"}, "another row has this name"),
        ({"execution": None}, "a function of values has no operands in memory"),
        ({"gives": "float32"}, "the type of its result in Execution.result"),
        ({"execution": Execution(result="float32[]")}, "stated neither by its type nor by extents"),
        ({"execution": Execution(result="float32[4]", scope="grid")}, "unknown scope 'grid'"),
        ({"execution": Execution(extents=lambda *_: (1,))}, "extents are of operands in memory"),
        ({"execution": Execution(result="float32", asynchronous=True)}, "has its result in memory"),
        ({"execution": Execution(awaits_copies=True)}, "a wait for copies has one operand, int64"),
        ({"execution": Execution(barrier=True)}, "a barrier has the scope block"),
        ({"execution": Execution(barrier=True, scope="block", counts_blocks=True)}, "a counter of blocks is an int32"),
    ],
)
def test_what_rows_lack_is_named(change: dict[str, Any], message: str) -> None:
    check_instruction_rows([*INSTRUCTIONS.values(), ROW])
    with pytest.raises(ValueError, match=f"instruction {change.get('name', ROW.name)}: .*{message}"):
        check_instruction_rows([*INSTRUCTIONS.values(), replace(ROW, **change)])


N = Buffer("n", DType("int64"), 1)
X, Y = Buffer("x", DType("float32"), 32), Buffer("y", DType("float32"), 32)


PART = Load(X, as_expr(0), 12)


def executed(instruction: str, index: int, *operands: Expr, result: Buffer | None = Y) -> Execute:
    return Execute(instruction, None if result is None else Destination(result, as_expr(index)), operands)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (executed("sum_rows", 0, PART, as_expr(5)), "sum_rows reads 10 elements of x, but the operand has 12"),
        (executed("sum_rows", 0, Load(X, as_expr(0), 12, 2), as_expr(3)), "sum_rows reads every 2th element of x"),
        (executed("sum_rows", 0, PART), "sum_rows with 1 operands"),
        (executed("sum_rows", 0, PART, const(3, "int32")), "sum_rows of int32x1, not of int64"),
        (
            executed("sum_rows", 0, const(1, "float32", 12), as_expr(3)),
            "an operand of sum_rows must be in memory, but is a value",
        ),
        (executed("sum_rows", 30, PART, as_expr(3)), r"y\[30 .. 33\] is outside its 32 elements"),
        (executed("sum_rows", 0, Load(X, as_expr(24), 12), as_expr(3)), r"x\[24 .. 35\] is outside its 32 elements"),
        (executed("sum_rows", 0, Load(Y, as_expr(0), 12), as_expr(3), result=X), "input x is written"),
        (executed("sum_rows", 0, PART, as_expr(3), result=None), "the result of sum_rows is no result"),
        (
            executed("sum_rows", 0, PART, as_expr(3), result=Buffer("z", DType("int32"), 32)),
            "the result of sum_rows is int32x1, not float32x1",
        ),
        (
            executed("sum_rows", 0, PART, as_expr(1) + Load(Buffer("n", DType("int64"), 1), as_expr(0))),
            "an operand that determines which elements sum_rows accesses is not a literal",
        ),
        (executed("sum_rows", 0, Load(Y, as_expr(16), 12), as_expr(3)), "sum_rows reads and writes y"),
        (executed("wait", 0, result=None), "wait with 0 operands"),
        (executed("fma", 0, Load(X, as_expr(0))), "fma is a function of values, not a statement"),
        (executed("sum_columns", 0), "there is no instruction sum_columns"),
    ],
)
def test_wrong_statements_are_refused(body: Execute, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(INSTRUCTIONS, ROW.name, ROW)
    kernel = Kernel(
        name="k", inputs=(X,), outputs=(Y,), body=executed("sum_rows", 4, Load(X, as_expr(8), 12), as_expr(3))
    )
    verify(kernel)
    x = np.arange(32, dtype=np.float32)
    np.testing.assert_array_equal(run_kernel(kernel, [x])[0][4:8], x[8:20].reshape(3, 4).sum(0))
    with pytest.raises(AotcError, match=message):
        verify(replace(kernel, body=body))


def test_rows_of_an_extent() -> None:
    assert Extent(4, 3, 10).span == 24 and Extent(5).span == 5


@pytest.mark.parametrize(
    ("instruction", "sizes", "numbers"),
    [
        # distances below 0 would read before the first element
        ("byte_taps", (16, 4), (2, -4)),
        ("byte_taps", (16, 16), (0, 12)),
        ("brgemm_int8_int8", (16, 64), (4, -4, 1, 64, 4, 1, 1, 0, 0, 1, 0, 0)),
        ("brgemm_int8_int8", (4, 64), (0, 0, 1, 64, 4, 1, 1, 0, 0, 1, 0, 0)),
        # steps are groups of four bytes
        ("brgemm_int8_int8", (6, 96), (1, 6, 1, 96, 6, 1, 1, 0, 0, 1, 0, 0)),
    ],
)
def test_numbers_that_no_instruction_can_have(
    instruction: str, sizes: tuple[int, int], numbers: tuple[int, ...]
) -> None:
    inputs = tuple(Buffer("x", DType("int8"), size) for size in sizes)
    y = Buffer("y", DType("int32"), 64)
    loads = (Load(x, as_expr(0), x.size) for x in inputs)
    body = executed(instruction, 0, *loads, *(const(n, "int32") for n in numbers), result=y)
    with pytest.raises(AotcError, match=f"{instruction} accesses no elements .* {numbers[-2]}, {numbers[-1]}"):
        verify(Kernel(name="k", inputs=inputs, outputs=(y,), body=body))
