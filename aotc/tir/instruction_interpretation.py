# SPDX-License-Identifier: Apache-2.0
"""Python source that the interpreter runs for an instruction: the meaning of its row, applied to
the elements that the row declares.

    y[0] = transpose_square(x[4:28], 4, 8, 5)
    # put(y, rows + np.arange(4), intrinsic_transpose_square(take(x, ...), 4, 8, 5), "y")

Instructions of several threads yield to the scheduler of the interpreter: a barrier yields None, an
instruction of a warp a list of the thread, the meaning and the operands, whose first element
becomes the result.
"""

from collections.abc import Iterator
from typing import Protocol

from aotc.tir.expr import Buffer, Expr, Load, Select, Var
from aotc.tir.instruction_definition import Extent
from aotc.tir.stmt import Execute


class PythonExpressions(Protocol):
    """The part of the interpreter that writes names and expressions."""

    def python_name(self, item: Var | Buffer) -> str: ...

    def python_expr_text(self, expr: Expr) -> str: ...


def instruction_python_lines(stmt: Execute, writer: PythonExpressions, thread: str) -> Iterator[str]:
    """Yield the lines of Python for an instruction; `thread` is the name of the variable with the
    number of the GPU thread.
    """
    effects, (written, inputs) = stmt.effects, stmt.extents
    operands = [
        writer.python_expr_text(e) if extent is None else _region_text(e, extent, writer)
        for e, extent in zip(stmt.operands, inputs, strict=True)
    ]
    if effects.barrier:
        yield "yield"
    if effects.awaits_copies:
        yield f"land(copies, {operands[0]})"
    if stmt.result is None:
        return
    value = f"intrinsic_{stmt.instruction}({', '.join(operands)})"
    if effects.scope == "warp":
        event = ", ".join((thread, f"intrinsic_{stmt.instruction}", *operands))
        value = f"(met := [{event}], (yield met), met[0])[2]"
    if effects.counts_blocks:
        counter = stmt.operands[0]
        assert isinstance(counter, Load)
        count = f"{writer.python_name(counter.buffer)}[{writer.python_expr_text(counter.index)}]"
        yield f"if {thread} == 0: common[0], {count} = {value}"
        yield "yield"
        value = "common[0]"
    if isinstance(stmt.result, Var):
        yield f"{writer.python_name(stmt.result)} = {value}"
        return
    assert written is not None
    buffer, index = stmt.result.buffer, _region_index_text(stmt.result.index, written, writer)
    function = "begin(copies, " if effects.asynchronous else "put("
    yield f"{function}{writer.python_name(buffer)}, {index}, {value}, {buffer.name!r})"


def _region_text(operand: Expr, extent: Extent, writer: PythonExpressions) -> str:
    """Return the array of the elements that an instruction reads from an operand in memory."""
    if isinstance(operand, Select):
        a, b = _region_text(operand.a, extent, writer), _region_text(operand.b, extent, writer)
        return f"({a} if {writer.python_expr_text(operand.cond)} else {b})"
    if not isinstance(operand, Load):
        return writer.python_expr_text(operand)
    index = _region_index_text(operand.index, extent, writer)
    return f"take({writer.python_name(operand.buffer)}, {index}, None, {operand.buffer.name!r})"


def _region_index_text(index: Expr, extent: Extent, writer: PythonExpressions) -> str:
    """Return the array of the indices of an extent: one row of them, or a matrix of rows."""
    columns = f"np.arange({extent.elements})"
    rows = f"np.arange({extent.rows})[:, None] * {extent.pitch} + {columns}" if extent.rows > 1 else columns
    return f"{rows} + {writer.python_expr_text(index)}"
