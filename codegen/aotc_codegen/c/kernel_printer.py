# SPDX-License-Identifier: Apache-2.0
"""Print tensor-IR kernels as C or CUDA text; the printer walks statements, the dialect supplies the
syntax.

It makes no optimization decisions: the text follows the kernel's statements.

made = print_kernel(kernel, GNU_C)
made.prototype("net_k0")             # "void net_k0(const float *AOTC_RESTRICT p0, ...)"
made.text("net_k0")                  # its definition
made.definitions                     # of the helper functions it calls, by name
"""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from aotc.ir import DType, assert_never, frozen
from aotc.tir import INDEX, Buffer, Expr, Interval, Load, Select, Var, bounds, launch_of
from aotc.tir import stmt as tir
from aotc_codegen.c.c_dialects import Dialect
from aotc_codegen.c.c_identifiers import Names, comment_text, nodes_of
from aotc_codegen.c.c_types import is_small
from aotc_codegen.c.elementary_functions import define
from aotc_codegen.c.expressions import address, assigned, bits, index, no_word, place, register_type, spelled, value
from aotc_codegen.c.helper_functions import Helpers
from aotc_codegen.c.index_arithmetic import Indices
from aotc_codegen.c.outlined_expressions import Outline
from aotc_codegen.c.printing_scope import SHIFT, TERNARY, UNARY, Scope
from aotc_codegen.c.vector_expressions import Vectors

#: Largest size in bytes of a stack array that is zero-initialized.
SMALL_ARRAY: Final = 64
#: Largest alignment in bytes of arrays in GPU kernels: the size of the largest single access.
MOST_ALIGNED: Final = 16


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

    def prototype(self, name: str) -> str:
        """Return the kernel's C declaration under the given name, without the semicolon."""
        return self.head.format(name=name)

    def text(self, name: str) -> str:
        """Return the kernel's C definition under the given name."""
        return f"{self.prototype(name)} {{\n{self.body}}}\n"


def print_kernel(kernel: tir.Kernel, dialect: Dialect, numbers: Mapping[Var, Interval] | None = None) -> PrintedKernel:
    """Print a kernel; `numbers` are extra integer parameters after its buffers, with their value
    ranges.

    Return the text together with the helper functions and vector types that it needs.
    """
    body = tir.drop_dead(kernel.body)
    scope = _scope(kernel, dialect, numbers or {})
    head = _head(kernel, scope, "{name}", tuple(numbers or ()))
    lines = []
    for buffer in kernel.local:
        # compilers put small arrays into registers, and cannot see that they are written before
        # they are read
        start = " = {0}" if buffer.nbytes <= SMALL_ARRAY and buffer.scope == "stack" else ""
        array = dialect.shared if buffer.scope == "shared" else dialect.array
        words = {"type": dialect.types[buffer.dtype], "name": scope.name(buffer), "size": max(1, buffer.size)}
        align = max(min(buffer.align, MOST_ALIGNED), buffer.dtype.itemsize)
        lines.append(f"  {array.format(**words, align=align)}{start};")
    used = tir.changed(body) | {n.buffer for n in tir.nodes(body) if isinstance(n, Load)}
    lines += [f"  (void){scope.name(b)};" for b in (*kernel.params, *kernel.local) if b not in used]
    outline = Outline(body)
    scope.outlined = partial(outline.printed, scope)
    lines += _block(scope, body, 1)
    text = "".join(f"{line}\n" for line in lines)
    define(scope)
    outline.define(scope)
    definitions, vectors = scope.helpers.definitions, frozenset(scope.vectors)
    reach = max((high for _, high in scope.ranges.values() if high < math.inf), default=0)
    return PrintedKernel(head, text, definitions, vectors, reach)


def prototype(kernel: tir.Kernel, dialect: Dialect) -> str:
    """Return the declaration of a kernel under its own name, without the semicolon."""
    return _head(kernel, _scope(kernel, dialect), kernel.name)


def _head(kernel: tir.Kernel, scope: Scope, name: str, numbers: Sequence[Var] = ()) -> str:
    launch = launch_of(kernel)
    if launch is None and scope.dialect.launched:
        raise no_word(scope, "a kernel that is not launched")
    threads = str(1 if launch is None else launch.block)
    # kernels with shared memory hide memory latency by prefetching: registers matter more than resident blocks
    if kernel.shared:
        threads += ", 1"
    return scope.dialect.kernel.format(name=name, parameters=_parameters(kernel, scope, numbers), threads=threads)


def _scope(kernel: tir.Kernel, dialect: Dialect, numbers: Mapping[Var, Interval] | None = None) -> Scope:
    team: dict[Var | Buffer, str] = {tir.PART: dialect.part, tir.PARTS: dialect.parts} if kernel.team else {}
    indices = Indices(kernel.body, (n for n in numbers or () if n.dtype == INDEX))
    return Scope(Helpers(dialect), indices, Names(dialect.reserved), team, dict(numbers or {}))


def _parameters(kernel: tir.Kernel, scope: Scope, numbers: Sequence[Var] = ()) -> str:
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
        rows.append(f"{element} *{restrict}{scope.name(buffer)}")
    for number in numbers:
        rows.append(f"{dialect.index if number.dtype == INDEX else dialect.types[number.dtype]} {scope.name(number)}")
    if kernel.team and dialect.team:
        rows.append(dialect.team)
    return ", ".join(rows) or "void"


def _block(scope: Scope, stmt: tir.Stmt, depth: int) -> list[str]:
    """Return the C lines of an IR statement, indented by `depth` levels."""
    pad = "  " * depth
    match stmt:
        case tir.Block():
            return [line for s in stmt.stmts for line in _block(scope, s, depth)]
        case tir.For():
            return _for(scope, stmt, depth)
        case tir.While():
            return [f"{pad}while ({value(scope, stmt.cond)}) {{", *_block(scope, stmt.body, depth + 1), f"{pad}}}"]
        case tir.If():
            lines = [f"{pad}if ({value(scope, stmt.cond)}) {{", *_block(scope, stmt.then, depth + 1)]
            if stmt.orelse is not None:
                lines += [f"{pad}}} else {{", *_block(scope, stmt.orelse, depth + 1)]
            return [*lines, f"{pad}}}"]
        case tir.Store():
            return [f"{pad}{_store(scope, stmt)};"]
        case tir.Intrinsic():
            return [f"{pad}{_intrinsic(scope, stmt)};"]
        case tir.Declare():
            return [f"{pad}{_declare(scope, stmt)};"]
        case tir.Assign():
            made = scope.outlined(stmt.value) or assigned(scope, stmt.var, stmt.value)
            return [f"{pad}{scope.name(stmt.var)} = {made};"]
        case tir.Sync():
            return [f"{pad}{scope.dialect.barrier}"]
        case tir.Wait():
            return [f"{pad}{spelled(scope, 'wait', DType('int32'), 1).format(stmt.groups)};"]
        case _:
            assert_never(stmt)


def _declare(scope: Scope, stmt: tir.Declare) -> str:
    # the value is printed before the register gets its name, which it cannot mention
    made = scope.outlined(stmt.value) or assigned(scope, stmt.var, stmt.value)
    if stmt.var in scope.indices.fixed:
        scope.ranges[stmt.var] = bounds(stmt.value, scope.ranges)
    return f"{register_type(scope, stmt.var)} {scope.name(stmt.var)} = {made}"


def _for(scope: Scope, loop: tir.For, depth: int) -> list[str]:
    """Return the lines of a loop.

    A loop that is mapped to GPU blocks or threads becomes a constant with the block's or thread's
    index, if it is used.
    """
    pad, dialect, var = "  " * depth, scope.dialect, scope.name(loop.var)
    scope.ranges[loop.var] = (bounds(loop.begin, scope.ranges)[0], bounds(loop.end, scope.ranges)[1] - 1)
    if loop.kind in tir.LAUNCHED:
        if loop.kind not in dialect.launched:
            raise no_word(scope, f"a loop of kind {loop.kind!r}")
        number = f"{pad}const {dialect.index} {var} = {dialect.launched[loop.kind]};"
        return [*([number] if loop.var in tir.nodes(loop.body) else []), *_block(scope, loop.body, depth)]
    step = f"++{var}" if loop.step == 1 else f"{var} += {loop.step}"
    begin = f"{dialect.index} {var} = {index(scope, loop.begin)}"
    head = f"{pad}for ({begin}; {var} < {index(scope, loop.end, SHIFT)}; {step}) {{"
    return [head, *_block(scope, loop.body, depth + 1), f"{pad}}}"]


def _intrinsic(scope: Scope, stmt: tir.Intrinsic) -> str:
    scope.vector(stmt.buffer.dtype, stmt.size)
    call = spelled(scope, stmt.name, stmt.buffer.dtype, stmt.size)
    to = address(scope, stmt.buffer, stmt.index)
    return call.format(to, stmt.stride, address(scope, stmt.source.buffer, stmt.source.index), stmt.source_stride)


def _store(scope: Scope, stmt: tir.Store) -> str:
    dtype, lanes = stmt.buffer.dtype, stmt.value.lanes
    if stmt.asynchronous:
        return _copy(scope, stmt)
    alone = lanes > 1 and tir.warp_call(stmt) is not None
    if (call := tir.warp_call(stmt) if alone else tir.memory_call(stmt)) is not None:
        operands = [value(scope, a) if alone and a.lanes == 1 else _argument(scope, a) for a in call.args]
        made = spelled(scope, call.name, dtype, lanes)
        counts = {"n": call.args[-1].lanes, "m": call.args[0].lanes}
        return made.format(address(scope, stmt.buffer, stmt.index), *operands, **counts)
    buffer = scope.bits_of(stmt.buffer) if dtype.is_narrow_float else stmt.buffer
    if lanes > 1 and scope.dialect.move and isinstance(stmt.value, Load):
        source = address(scope, stmt.value.buffer, stmt.value.index)
        return scope.dialect.move.format(lanes=lanes, to=address(scope, buffer, stmt.index), source=source)
    return f"{place(scope, buffer, stmt.index, lanes)} = {_stored(scope, stmt)}"


def _argument(scope: Scope, expr: Expr) -> str:
    """Return an operand of a function on memory: for a load, the address that is loaded from."""
    if isinstance(expr, Load):
        return address(scope, expr.buffer, expr.index)
    if isinstance(expr, Select):
        found = (value(scope, expr.cond, TERNARY + 1), _argument(scope, expr.a), _argument(scope, expr.b))
        return "({} ? {} : {})".format(*found)
    return value(scope, expr)


def _copy(scope: Scope, stmt: tir.Store) -> str:
    source, inside = stmt.value, "true"
    if isinstance(source, Select):
        inside, source = value(scope, source.cond), source.a
    assert isinstance(source, Load)
    ends = address(scope, stmt.buffer, stmt.index), address(scope, source.buffer, source.index)
    size = source.lanes * source.dtype.itemsize
    return spelled(scope, "copy_async", source.dtype, source.lanes).format(*ends, size, inside)


def _stored(scope: Scope, store: tir.Store) -> str:
    dtype, source = store.buffer.dtype, store.value
    if dtype.is_narrow_float:
        return bits(scope, source)
    if source.lanes > 1 and dtype.is_bool:
        return f"({scope.vector(DType('uint8'), source.lanes)})({Vectors(scope, value).mask(source, 8)} & 1)"
    if source.lanes > 1:
        return scope.outlined(source) or value(scope, source)
    if isinstance(source, Load) and is_small(dtype):
        # the bits are copied
        return place(scope, source.buffer, source.index, 1)
    if dtype.is_bool:
        return f"({scope.dialect.types[dtype]}){value(scope, source, UNARY)}"
    if is_small(dtype):
        return f"({scope.dialect.types[dtype]})({value(scope, source, UNARY)} & {(1 << dtype.bits) - 1})"
    return value(scope, source)


def origin(kernel: tir.Kernel) -> Sequence[str]:
    """Return a C comment with the names of the model's nodes that a kernel computes; no lines if
    there are none.
    """
    nodes = nodes_of(kernel.span)
    shown = ", ".join(nodes[:8]) + (f" and {len(nodes) - 8} more" if len(nodes) > 8 else "")
    return [f"/* {comment_text(shown)} */"] if nodes else []
