# SPDX-License-Identifier: Apache-2.0
"""Check the operands and the result of an instruction that is a statement against its row in the
instruction table: their number, types, and the elements of those in memory.

    tile[0] = pairs2x4(col[0:16], w[0:32])    # none
    tile[0] = pairs2x4(col[0:16], w[0:16])    # "pairs2x4 reads 32 elements of w, but the operand has 16"
"""

from collections.abc import Iterator

from aotc.ir import DType
from aotc.tir.expr import Const, Expr, Load, Select
from aotc.tir.instruction_definition import Instruction, is_memory_type, parse_vector_type
from aotc.tir.instruction_table import INSTRUCTIONS
from aotc.tir.stmt import Destination, Execute, operand_size_or_literal


def instruction_problems(stmt: Execute) -> Iterator[str]:
    """Yield the violations of a statement that executes an instruction; the first one may be the
    cause of the others.
    """
    row = INSTRUCTIONS.get(stmt.instruction)
    if row is None:
        yield f"there is no instruction {stmt.instruction}"
    elif row.execution is None:
        yield f"{row.name} is a function of values, not a statement"
    elif problem := row.operand_type_problem((e.dtype, e.lanes) for e in stmt.operands):
        yield problem
    elif row.execution.extents is not None and not all(
        isinstance(operand, Const)
        for kind, operand in zip(row.takes, stmt.operands, strict=True)
        if not is_memory_type(kind)
    ):
        yield f"an operand that determines which elements {row.name} accesses is not a literal"
    else:
        yield from _result_problems(stmt, row)
        yield from _memory_operand_problems(stmt, row)
        if row.execution.counts_blocks and not isinstance(stmt.operands[0], Load):
            yield f"the first operand of {row.name} is not an element of a buffer"
        if row.execution.awaits_copies and not isinstance(stmt.operands[0], Const):
            yield f"the number of groups of {row.name} is not a literal"


def _result_problems(stmt: Execute, row: Instruction) -> Iterator[str]:
    """Yield the violations of the result: no result, a register or a destination of another type."""
    assert row.execution is not None
    kind = row.execution.result
    expected = "no result" if not kind else "memory" if is_memory_type(kind) else "a register"
    match stmt.result:
        case None:
            actual, dtype, lanes = "no result", DType("bool"), 1
        case Destination(buffer=buffer):
            actual, dtype, lanes = "memory", buffer.dtype, 1
        case register:
            actual, dtype, lanes = "a register", register.dtype, register.lanes
    if actual != expected:
        yield f"the result of {row.name} is {actual}, not {expected}"
        return
    stem = kind.partition("[")[0]
    if stem:
        required = (stmt.operands[0].dtype, 1) if stem == "number" else parse_vector_type(stem, 1)
        if (dtype, lanes) != required:
            yield f"the result of {row.name} is {dtype}x{lanes}, not {required[0]}x{required[1]}"


def _memory_operand_problems(stmt: Execute, row: Instruction) -> Iterator[str]:
    """Yield the violations of operands in memory: values, distances between elements, or other
    numbers of elements than the row declares.
    """
    assert row.execution is not None
    written, extents = stmt.extents
    is_empty = any(extent is not None and min(extent.elements, extent.rows) < 1 for extent in (written, *extents))
    pairs = zip(stmt.operands, extents, strict=True)
    if is_empty and all(operand_size_or_literal(operand) for operand, extent in pairs if extent is not None):
        numbers = ", ".join(str(operand_size_or_literal(operand)) for operand in stmt.operands)
        yield f"{row.name} accesses no elements with operands of these sizes and values: {numbers}"
        return
    for operand, extent in zip(stmt.operands, extents, strict=True):
        if extent is None:
            continue
        alternatives = list(_selected_operands(operand))
        loads = [x for x in alternatives if isinstance(x, Load)]
        zeros = [x for x in alternatives if isinstance(x, Const) and row.execution.asynchronous]
        if not loads or len(loads) + len(zeros) < len(alternatives):
            yield f"an operand of {row.name} must be in memory, but is a value"
            continue
        for load in loads:
            if load.stride != 1:
                yield f"{row.name} reads every {load.stride}th element of {load.buffer.name}"
            if load.lanes != extent.span:
                yield f"{row.name} reads {extent.span} elements of {load.buffer.name}, but the operand has {load.lanes}"
            # functions in C may write a result before they have read all operands; fragments of a warp are registers
            same = isinstance(stmt.result, Destination) and stmt.result.buffer is load.buffer
            if same and row.execution.scope == "thread":
                yield f"{row.name} reads and writes {load.buffer.name}"
    if any(extent is not None and extent.rows > 1 and extent.pitch < extent.elements for extent in (written, *extents)):
        yield f"the rows that {row.name} accesses overlap"


def _selected_operands(operand: Expr) -> Iterator[Expr]:
    """Yield the expressions between which an operand is selected."""
    if isinstance(operand, Select):
        yield from _selected_operands(operand.a)
        yield from _selected_operands(operand.b)
    else:
        yield operand
