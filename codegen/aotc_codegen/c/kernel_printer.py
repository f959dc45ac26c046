# SPDX-License-Identifier: Apache-2.0
"""Print tensor-IR kernels as C or CUDA text; the printer walks statements, the dialect supplies the
syntax.

It makes no optimization decisions: the text follows the kernel's statements.

made = print_kernel(kernel, GNU_C)
made.prototype("net_k0")             # "void net_k0(const float *AOTC_RESTRICT p0, ...)"
made.definition_with_name("net_k0")  # its definition
made.definitions                     # of the helper functions it calls, by name
"""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from aotc.ir import DType, assert_never, frozen
from aotc.tir import INDEX, Buffer, Const, Expr, Load, Select, Var, bounds, launch_of
from aotc.tir import stmt as tir
from aotc_codegen.c.c_dialects import Dialect
from aotc_codegen.c.c_identifiers import UniqueIdentifiers, escape_for_c_comment, model_node_names_of_span
from aotc_codegen.c.c_types import is_sub_byte_integer
from aotc_codegen.c.classify_int64_as_index_or_data import IndexVariables
from aotc_codegen.c.elementary_functions import define_elementary_functions_used
from aotc_codegen.c.expression_printer import (
    c_type_of_register_var,
    print_assigned_value,
    print_element_address,
    print_element_lvalue,
    print_index,
    print_narrow_float_bits,
    print_value,
    statement_instruction_template,
    unavailable_in_dialect_error,
)
from aotc_codegen.c.helper_functions import HelperFunctions
from aotc_codegen.c.outlined_expressions import ExpressionOutliner
from aotc_codegen.c.printing_scope import SHIFT, TERNARY, UNARY, PrintingScope
from aotc_codegen.c.vector_expressions import VectorPrinter

#: Largest size in bytes of a stack array that is zero-initialized.
MAX_ZERO_INITIALIZED_BYTES: Final = 64
#: Largest alignment in bytes of arrays in GPU kernels: the size of the largest single access.
MAX_GPU_ARRAY_ALIGNMENT_BYTES: Final = 16


@frozen
class PrintedKernel:
    """Printed text of a kernel in which the kernel's name is still a placeholder.

    head          declaration, with the placeholder {name}
    body          lines between the braces
    definitions   definitions of the helper functions it calls, by name, callees first
    vectors       vector types it uses: element type, number of lanes
    reach         largest known upper bound of its loop variables and index registers
    """

    head: str
    body: str
    definitions: Mapping[str, str]
    vectors: frozenset[tuple[DType, int]]
    reach: float = 0

    def prototype_with_name(self, name: str) -> str:
        """Return the kernel's C declaration under the given name, without the semicolon."""
        return self.head.format(name=name)

    def definition_with_name(self, name: str) -> str:
        """Return the kernel's C definition under the given name."""
        return f"{self.prototype_with_name(name)} {{\n{self.body}}}\n"


def print_kernel(kernel: tir.Kernel, dialect: Dialect) -> PrintedKernel:
    """Print a kernel; return the text together with the helper functions and vector types that it
    needs.
    """
    body = tir.remove_dead_registers(kernel.body)
    scope = _make_printing_scope(kernel, dialect)
    head = _kernel_function_head(kernel, scope, "{name}")
    lines = []
    for buffer in kernel.stack_and_shared_buffers:
        # compilers put small arrays into registers, and cannot see that they are written before
        # they are read
        start = " = {0}" if buffer.nbytes <= MAX_ZERO_INITIALIZED_BYTES and buffer.scope == "stack" else ""
        array = dialect.shared if buffer.scope == "shared" else dialect.array
        words = {"type": dialect.types[buffer.dtype], "name": scope.c_name(buffer), "size": max(1, buffer.size)}
        align = max(min(buffer.align, MAX_GPU_ARRAY_ALIGNMENT_BYTES), buffer.dtype.itemsize)
        lines.append(f"  {array.format(**words, align=align)}{start};")
    used = tir.modified_vars_and_buffers(body) | {n.buffer for n in tir.all_exprs_in_stmt(body) if isinstance(n, Load)}
    lines += [
        f"  (void){scope.c_name(b)};" for b in (*kernel.params, *kernel.stack_and_shared_buffers) if b not in used
    ]
    outline = ExpressionOutliner(body)
    scope.outlined = partial(outline.print_call_of_outlined_function, scope)
    lines += _print_statement_lines(scope, body, 1)
    text = "".join(f"{line}\n" for line in lines)
    define_elementary_functions_used(scope)
    outline.define_called_outlined_functions(scope)
    definitions, vectors = scope.helpers.definitions, frozenset(scope.vectors)
    reach = max((high for _, high in scope.ranges.values() if high < math.inf), default=0)
    return PrintedKernel(head, text, definitions, vectors, reach)


def kernel_prototype(kernel: tir.Kernel, dialect: Dialect) -> str:
    """Return the declaration of a kernel under its own name, without the semicolon."""
    return _kernel_function_head(kernel, _make_printing_scope(kernel, dialect), kernel.name)


def _kernel_function_head(kernel: tir.Kernel, scope: PrintingScope, name: str) -> str:
    launch = launch_of(kernel)
    if launch is None and scope.dialect.launched:
        raise unavailable_in_dialect_error(scope, "a kernel that is not launched")
    threads = str(1 if launch is None else launch.block)
    # kernels with shared memory hide memory latency by prefetching: registers matter more than resident blocks
    if kernel.shared:
        threads += ", 1"
    return scope.dialect.kernel.format(name=name, parameters=_kernel_parameter_list(kernel, scope), threads=threads)


def _make_printing_scope(kernel: tir.Kernel, dialect: Dialect) -> PrintingScope:
    team: dict[Var | Buffer, str] = (
        {tir.THREAD_NUMBER: dialect.part, tir.THREAD_COUNT: dialect.parts} if kernel.team else {}
    )
    ranges = {number.var: number.interval for number in kernel.numbers}
    indices = IndexVariables(kernel.body, (var for var in ranges if var.dtype == INDEX))
    return PrintingScope(HelperFunctions(dialect), indices, UniqueIdentifiers(dialect.reserved), team, ranges)


def _kernel_parameter_list(kernel: tir.Kernel, scope: PrintingScope) -> str:
    dialect, rows = scope.dialect, []
    inputs, outputs = frozenset(kernel.inputs), frozenset(kernel.outputs)
    meets = any(map(tir.is_barrier, tir.walk_stmts(kernel.body)))
    overlapping = {b for o, i in kernel.overlaps for b in (kernel.outputs[o], kernel.inputs[i])}
    for buffer in kernel.params:
        read_only = buffer in inputs and buffer not in outputs
        # other threads write the buffer between barriers, so that it must be read again after
        # each: no restrict
        alone = (read_only or not meets or buffer in kernel.private) and buffer not in overlapping
        restrict = dialect.restrict if alone else ""
        element = f"const {dialect.types[buffer.dtype]}" if read_only else dialect.types[buffer.dtype]
        rows.append(f"{element} *{restrict}{scope.c_name(buffer)}")
    for var in (number.var for number in kernel.numbers):
        rows.append(f"{dialect.index if var.dtype == INDEX else dialect.types[var.dtype]} {scope.c_name(var)}")
    if kernel.team and dialect.team:
        rows.append(dialect.team)
    return ", ".join(rows) or "void"


def _print_statement_lines(scope: PrintingScope, stmt: tir.Stmt, depth: int) -> list[str]:
    """Return the C lines of an IR statement, indented by `depth` levels."""
    pad = "  " * depth
    match stmt:
        case tir.Block():
            return [line for s in stmt.stmts for line in _print_statement_lines(scope, s, depth)]
        case tir.For():
            return _print_loop_lines(scope, stmt, depth)
        case tir.While():
            return [
                f"{pad}while ({print_value(scope, stmt.cond)}) {{",
                *_print_statement_lines(scope, stmt.body, depth + 1),
                f"{pad}}}",
            ]
        case tir.If():
            lines = [
                f"{pad}if ({print_value(scope, stmt.cond)}) {{",
                *_print_statement_lines(scope, stmt.then, depth + 1),
            ]
            if stmt.orelse is not None:
                lines += [f"{pad}}} else {{", *_print_statement_lines(scope, stmt.orelse, depth + 1)]
            return [*lines, f"{pad}}}"]
        case tir.Store():
            return [f"{pad}{_print_store(scope, stmt)};"]
        case tir.Execute():
            return [f"{pad}{_print_instruction(scope, stmt)};"]
        case tir.Declare():
            return [f"{pad}{_print_declaration(scope, stmt)};"]
        case tir.Assign():
            value_text = scope.outlined(stmt.value) or print_assigned_value(scope, stmt.var, stmt.value)
            return [f"{pad}{scope.c_name(stmt.var)} = {value_text};"]
        case _:
            assert_never(stmt)


def _print_declaration(scope: PrintingScope, stmt: tir.Declare) -> str:
    # the value is printed before the register gets its name, which it cannot mention
    value_text = scope.outlined(stmt.value) or print_assigned_value(scope, stmt.var, stmt.value)
    if stmt.var in scope.indices.fixed:
        scope.ranges[stmt.var] = bounds(stmt.value, scope.ranges)
    return f"{c_type_of_register_var(scope, stmt.var)} {scope.c_name(stmt.var)} = {value_text}"


def _print_loop_lines(scope: PrintingScope, loop: tir.For, depth: int) -> list[str]:
    """Return the lines of a loop.

    A loop that is mapped to GPU blocks or threads becomes a constant with the block's or thread's
    index, if it is used.
    """
    pad, dialect, var = "  " * depth, scope.dialect, scope.c_name(loop.var)
    scope.ranges[loop.var] = (bounds(loop.begin, scope.ranges)[0], bounds(loop.end, scope.ranges)[1] - 1)
    if loop.kind in tir.GPU_LOOP_KINDS:
        if loop.kind not in dialect.launched:
            raise unavailable_in_dialect_error(scope, f"a loop of kind {loop.kind!r}")
        number = f"{pad}const {dialect.index} {var} = {dialect.launched[loop.kind]};"
        return [
            *([number] if loop.var in tir.all_exprs_in_stmt(loop.body) else []),
            *_print_statement_lines(scope, loop.body, depth),
        ]
    step = f"++{var}" if loop.step == 1 else f"{var} += {loop.step}"
    begin = f"{dialect.index} {var} = {print_index(scope, loop.begin)}"
    head = f"{pad}for ({begin}; {var} < {print_index(scope, loop.end, SHIFT)}; {step}) {{"
    return [head, *_print_statement_lines(scope, loop.body, depth + 1), f"{pad}}}"]


def _print_instruction(scope: PrintingScope, stmt: tir.Execute) -> str:
    """Return the call of an instruction, without the semicolon; a register for its result is
    declared with the call as its initial value.
    """
    written, inputs = stmt.extents
    operands = [
        _print_operand_value(scope, e) if extent is None else _print_operand_address(scope, e)
        for e, extent in zip(stmt.operands, inputs, strict=True)
    ]
    dtype = stmt.operands[0].dtype if stmt.operands else INDEX
    template = statement_instruction_template(scope, stmt.instruction, dtype, written.elements if written else 1)
    facts: dict[str, object] = {}
    if stmt.operands:
        first, last = stmt.operands[0], stmt.operands[-1]
        facts = {"n": last.lanes, "m": first.lanes, "bytes": first.lanes * first.dtype.itemsize}
        facts["inside"] = print_value(scope, first.cond) if isinstance(first, Select) else "true"
    match stmt.result:
        case Var() as register:
            # the call is printed before the register gets its name, which it cannot mention
            call = template.format(*operands, **facts)
            return f"{c_type_of_register_var(scope, register)} {scope.c_name(register)} = {call}"
        case tir.Destination(buffer=buffer, index=index):
            operands.insert(0, print_element_address(scope, buffer, index))
    return template.format(*operands, **facts)


def _print_operand_value(scope: PrintingScope, expr: Expr) -> str:
    """Return an operand of an instruction that is a value."""
    return print_index(scope, expr) if scope.indices.is_index_arithmetic(expr) else print_value(scope, expr)


def _print_operand_address(scope: PrintingScope, expr: Expr) -> str:
    """Return the address of an operand of an instruction that is in memory."""
    if not isinstance(expr, Select):
        assert isinstance(expr, Load), "an operand in memory is a load, or a selection between loads"
        return print_element_address(scope, expr.buffer, expr.index)
    if isinstance(expr.b, Const):  # zeros in place of memory are up to the instruction
        return _print_operand_address(scope, expr.a)
    parts = (
        print_value(scope, expr.cond, TERNARY + 1),
        _print_operand_address(scope, expr.a),
        _print_operand_address(scope, expr.b),
    )
    return "({} ? {} : {})".format(*parts)


def _print_store(scope: PrintingScope, stmt: tir.Store) -> str:
    dtype, lanes = stmt.buffer.dtype, stmt.value.lanes
    buffer = scope.buffer_viewed_as_unsigned_integers(stmt.buffer) if dtype.is_narrow_float else stmt.buffer
    if lanes > 1 and scope.dialect.move and isinstance(stmt.value, Load):
        source = print_element_address(scope, stmt.value.buffer, stmt.value.index)
        return scope.dialect.move.format(
            lanes=lanes, to=print_element_address(scope, buffer, stmt.index), source=source
        )
    return f"{print_element_lvalue(scope, buffer, stmt.index, lanes)} = {_print_stored_value(scope, stmt)}"


def _print_stored_value(scope: PrintingScope, store: tir.Store) -> str:
    dtype, source = store.buffer.dtype, store.value
    if dtype.is_narrow_float:
        return print_narrow_float_bits(scope, source)
    if source.lanes > 1 and dtype.is_bool:
        mask = VectorPrinter(scope, print_value).print_bool_vector_as_mask(source, 8)
        return f"({scope.record_vector_type_and_return_c_name(DType('uint8'), source.lanes)})({mask} & 1)"
    if source.lanes > 1:
        return scope.outlined(source) or print_value(scope, source)
    if isinstance(source, Load) and is_sub_byte_integer(dtype):
        # the bits are copied
        return print_element_lvalue(scope, source.buffer, source.index, 1)
    if dtype.is_bool:
        return f"({scope.dialect.types[dtype]}){print_value(scope, source, UNARY)}"
    if is_sub_byte_integer(dtype):
        return f"({scope.dialect.types[dtype]})({print_value(scope, source, UNARY)} & {(1 << dtype.bits) - 1})"
    return print_value(scope, source)


def model_node_comment_lines(kernel: tir.Kernel) -> Sequence[str]:
    """Return a C comment with the names of the model's nodes that a kernel computes; no lines if
    there are none.
    """
    nodes = model_node_names_of_span(kernel.span)
    node_names = ", ".join(nodes[:8]) + (f" and {len(nodes) - 8} more" if len(nodes) > 8 else "")
    return [f"/* {escape_for_c_comment(node_names)} */"] if nodes else []
