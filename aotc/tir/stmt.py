# SPDX-License-Identifier: Apache-2.0
"""Statements of tensor programs, and the kernel: one function over flat buffers.

i = Var("i")
Kernel("double", inputs=(x,), outputs=(y,), body=For(i, 16, Store(y, i, Load(x, i) * 2.0)))
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from typing import Any, Final, TypeAlias, TypeGuard

from aotc.ir import DType, JsonFormat, Span, frozen, give_new_value_memo_key_of_old, load_or_compute_memoized_result
from aotc.tir import expr as values
from aotc.tir.expr import (
    Buffer,
    Const,
    Expr,
    Load,
    Operand,
    Select,
    Var,
    as_expr,
    substitute,
    vars_and_buffers_in,
    walk_once,
)
from aotc.tir.expr_occurrences import occurrences
from aotc.tir.instruction_definition import Execution, Extent, Instruction
from aotc.tir.instruction_table import INSTRUCTIONS

#: The number of a thread in its team, from 0.
THREAD_NUMBER: Final = Var("part")
#: How many threads the team has.
THREAD_COUNT: Final = Var("parts")
TEAM_VARS: Final = (THREAD_NUMBER, THREAD_COUNT)
#: What a loop may say of its iterations.
LOOP_KINDS: Final = ("serial", "reduction", "independent", "block", "thread")
#: Kinds of the loops whose iterations a device numbers when a kernel is launched.
GPU_LOOP_KINDS: Final = LOOP_KINDS[3:]


@frozen(init=False, eq=False)
class For:
    """`for var in begin, begin+step, ... < end`.

    kind   the dependence between iterations, stated by the code that builds the loop and proven by
           `aotc.tir.kernel_verifier`:

        "independent"   no iteration accesses memory that another iteration writes, except private scratch that each
                        initializes: they may run in any order or in parallel, each with its own private scratch
        "reduction"     iterations only update accumulators by one associative operation (sum, product, minimum,
                        maximum, and, or): another order changes the rounding only
        "block"         independent; each iteration is a GPU thread block with shared memory (`aotc.tir.gpu_launch`)
        "thread"        independent between barriers; each iteration is a thread of a block
        "serial"        nothing is known: iterations run in order

    Later passes decide from it whether iterations run on threads or in the lanes of vectors.
    """

    var: Var
    begin: Expr
    end: Expr
    body: Stmt
    step: int
    kind: str

    def __init__(
        self, var: Var, end: Operand, body: Stmt, *, begin: Operand = 0, step: int = 1, kind: str = "serial"
    ) -> None:
        fields = {"var": var, "begin": as_expr(begin), "end": as_expr(end), "body": body, "step": step, "kind": kind}
        for name, value in fields.items():
            object.__setattr__(self, name, value)


@frozen(eq=False)
class While:
    """Repeat `body` while `cond` holds (tested first)."""

    cond: Expr
    body: Stmt


@frozen(eq=False)
class If:
    """`then` if `cond` holds, else `orelse` (which may be absent)."""

    cond: Expr
    then: Stmt
    orelse: Stmt | None = None


@frozen(eq=False)
class Store:
    """Write `value` (as many elements as it has lanes) to a buffer from flat `index` on."""

    buffer: Buffer
    index: Expr
    value: Expr


@frozen(eq=False)
class Destination:
    """The place in memory where an instruction writes its result: a buffer, from flat `index` on.
    The row of the instruction tells how many elements.
    """

    buffer: Buffer
    index: Expr


@frozen(eq=False)
class Execute:
    """Execution of an instruction that accesses memory, waits for other threads, or takes effect
    later: a row of INSTRUCTIONS that has an `Execution`.

    instruction   name of the row
    result        destination in memory; or a new register, visible to the end of the enclosing block; None for
                  an instruction without a result
    operands      values; an operand in memory is a load of all elements from the first accessed one to
                  the last, or a selection between such loads
    """

    instruction: str
    result: Var | Destination | None
    operands: tuple[Expr, ...]

    @property
    def row(self) -> Instruction:
        return INSTRUCTIONS[self.instruction]

    @property
    def effects(self) -> Execution:
        """The effects of the instruction on memory and on other threads."""
        effects = self.row.execution
        assert effects is not None, f"{self.instruction} is a function of values"
        return effects

    @property
    def extents(self) -> tuple[Extent | None, tuple[Extent | None, ...]]:
        """The extent of the result and those of the operands in memory; None for registers and
        values.
        """
        return self.row.accessed_extents([*map(operand_size_or_literal, self.operands)])

    @property
    def has_rows_apart(self) -> bool:
        """True if the result or an operand in memory consists of several rows with gaps between them."""
        result, inputs = self.extents
        return any(extent is not None and extent.rows > 1 for extent in (result, *inputs))


def operand_size_or_literal(operand: Expr) -> int:
    """Return the number of elements of an operand in memory, the value of an integer literal, and 0
    for other values.
    """
    match operand:
        case Load(lanes=lanes) | Select(a=Load(lanes=lanes)):
            return lanes
        case Const(value=int() as value):
            return value
    return 0


@frozen(eq=False)
class Declare:
    """Declaration of a named register with its initial value, visible to the end of the enclosing
    block.
    """

    var: Var
    value: Expr


@frozen(eq=False)
class Assign:
    """Assignment of a new value to a declared register."""

    var: Var
    value: Expr


@frozen(eq=False, init=False)
class Block:
    """Statements in order; nested blocks are flattened at construction."""

    stmts: tuple[Stmt, ...]

    def __init__(self, stmts: Iterable[Stmt]) -> None:
        object.__setattr__(self, "stmts", tuple(chain.from_iterable(map(block_stmts_or_self, stmts))))


Stmt: TypeAlias = "For | While | If | Store | Execute | Declare | Assign | Block"


@frozen
class UserSource:
    """C source from a user's code generator, with the generator's name for messages."""

    text: str
    author: str


@frozen
class Number:
    """Scalar parameter of a kernel: in each call, `var` has one value from `least` to `most`.

    typical    for an extent: the value for which the scheduler compares costs, `most` if it is None. It has no part in
               the text of a kernel
    """

    var: Var
    least: int | float
    most: int | float
    typical: int | None = None

    @property
    def interval(self) -> tuple[int | float, int | float]:
        """The least and the greatest value."""
        return self.least, self.most


@frozen(kw_only=True, eq=False)
class Kernel:
    """One function over flat memory.

    inputs, outputs   parameters, in the order of the call; no two overlap unless `inplace` was applied or `overlaps`
                      says so
    workspace         scratch buffers, planned into the arena, passed after the outputs
    numbers           scalars that the caller passes after the buffers, such as extents that are known at run time only;
                      a buffer whose size depends on them has its largest size
    stack             small local arrays; on a device, each thread has its own
    shared            memory of a device that the threads of each block share; every block finds it unset
    inplace           (output, input) index pairs that may be the same memory, because every element of the
                      output is written after the last read of the elements of the input at that index
    overlaps          (output, input) index pairs whose memory may overlap as far as the order of its accesses lets
                      it (aotc/tir/plan/inplace_overlap.py): iterations run in the order in which they stand
    macs              multiply-accumulate operations of one call; the most of all calls if they depend on `numbers`
    macs_formula      formula of these operations in the names of `numbers`; "" if they do not depend on numbers, or if
                      no formula is known. The text form leaves it out
    approximate       True if the algorithm (Winograd's) has larger rounding errors than the operator's definition
    span              the model nodes it computes
    source            the user's code, which defines it under this very name; the body is empty then
    team              every thread of a team calls it, and does its share (see aotc/tir/threads/parallel_kernels.py)
    private           workspace of which each thread needs its own
    """

    name: str
    inputs: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]
    body: Stmt
    workspace: tuple[Buffer, ...] = ()
    stack: tuple[Buffer, ...] = ()
    shared: tuple[Buffer, ...] = ()
    inplace: tuple[tuple[int, int], ...] = ()
    overlaps: tuple[tuple[int, int], ...] = ()
    macs: int = 0
    macs_formula: str = ""
    approximate: bool = False
    span: Span | None = None
    source: UserSource | None = None
    team: bool = False
    private: tuple[Buffer, ...] = ()
    numbers: tuple[Number, ...] = ()

    @property
    def params(self) -> tuple[Buffer, ...]:
        """The buffers that the caller passes: inputs, outputs and workspace."""
        return (*self.inputs, *self.outputs, *self.workspace)

    @property
    def stack_and_shared_buffers(self) -> tuple[Buffer, ...]:
        """The buffers that the kernel declares itself: stack and shared memory."""
        return (*self.stack, *self.shared)


_KERNEL_FORM: Final = JsonFormat(
    Kernel,
    [
        *(DType, Buffer, Span, *values.EXPR_KINDS),
        *(For, While, If, Store, Destination, Execute, Declare, Assign, Block, UserSource, Number, Kernel),
    ],
    shared=TEAM_VARS,
)


def memoized_kernel(memo_kind: str, memo_key: object, span: Span | None, make_kernel: Callable[[], Kernel]) -> Kernel:
    """Return `make_kernel()`, or the memoized kernel of an equal source, with `span` set.

    The results are stored by `aotc.ir.persistent_memo`.
    """
    kernel = load_or_compute_memoized_result(memo_kind, memo_key, make_kernel, _KERNEL_FORM)
    return give_new_value_memo_key_of_old(replace(kernel, span=span), kernel)


def _no_parts(_: Any) -> tuple[()]:
    return ()


def _exprs_of_execute(stmt: Execute) -> tuple[Expr, ...]:
    index = (stmt.result.index,) if isinstance(stmt.result, Destination) else ()
    return (*index, *stmt.operands)


def _rebuild_execute(stmt: Execute, *exprs: Expr) -> Execute:
    if not isinstance(stmt.result, Destination):
        return Execute(stmt.instruction, stmt.result, exprs)
    index, *new_operands = exprs
    return Execute(stmt.instruction, Destination(stmt.result.buffer, index), tuple(new_operands))


_Exprs: TypeAlias = Callable[[Any], tuple[Expr, ...]]
_Stmts: TypeAlias = "Callable[[Any], tuple[Stmt, ...]]"
#: For each kind of statement its expressions, the statements inside it, and how it is made of others.
_PARTS_AND_BUILDER_OF_KIND: Final[dict[type, tuple[_Exprs, _Stmts, Any]]] = {
    For: (
        lambda s: (s.begin, s.end),
        lambda s: (s.body,),
        lambda s, begin, end, body: For(s.var, end, body, begin=begin, step=s.step, kind=s.kind),
    ),
    While: (lambda s: (s.cond,), lambda s: (s.body,), lambda _, cond, body: While(cond, body)),
    If: (
        lambda s: (s.cond,),
        lambda s: (s.then,) if s.orelse is None else (s.then, s.orelse),
        lambda _, *parts: If(*parts),
    ),
    Store: (lambda s: (s.index, s.value), _no_parts, lambda s, at, value: Store(s.buffer, at, value)),
    Execute: (_exprs_of_execute, _no_parts, _rebuild_execute),
    Declare: (lambda s: (s.value,), _no_parts, lambda s, value: Declare(s.var, value)),
    Assign: (lambda s: (s.value,), _no_parts, lambda s, value: Assign(s.var, value)),
    Block: (_no_parts, lambda s: s.stmts, lambda _, *stmts: Block(stmts)),
}


def direct_exprs_of_stmt(stmt: Stmt) -> tuple[Expr, ...]:
    """The expressions directly in `stmt` (not those of statements inside it)."""
    return _PARTS_AND_BUILDER_OF_KIND[type(stmt)][0](stmt)


def direct_child_stmts(stmt: Stmt) -> tuple[Stmt, ...]:
    """The statements directly inside `stmt`."""
    return _PARTS_AND_BUILDER_OF_KIND[type(stmt)][1](stmt)


def block_stmts_or_self(stmt: Stmt) -> tuple[Stmt, ...]:
    """The statements of a block; another statement by itself."""
    return stmt.stmts if isinstance(stmt, Block) else (stmt,)


def walk_stmts(stmt: Stmt) -> Iterator[Stmt]:
    """Every statement, outer before inner, in program order."""
    stack = [stmt]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(reversed(direct_child_stmts(node)))


def all_exprs_in_stmt(stmt: Stmt) -> Iterator[Expr]:
    """Every expression and sub-expression in a statement, at any depth of statements.

    An object with several users in one expression occurs once: see `count_exprs_in_stmt` for the
    number of occurrences.
    """
    return (n for s in walk_stmts(stmt) for e in direct_exprs_of_stmt(s) for n in walk_once(e))


def count_exprs_in_stmt(stmt: Stmt, count_of_expr: Callable[[Expr], int] = lambda _: 1) -> int:
    """Return the sum of `count_of_expr(node)` over all occurrences of expression nodes in a statement, at
    any depth of statements.
    """
    exprs = (e for s in walk_stmts(stmt) for e in direct_exprs_of_stmt(s))
    return sum(count_of_expr(node) * times for e in exprs for node, times in occurrences(e))


def count_reads_in_stmt(stmt: Stmt) -> Counter[object]:
    """Return how often a statement, at any depth, mentions each register and loads from each buffer.

    An object may occur several times in an expression: every occurrence counts.
    """
    reads: Counter[object] = Counter()
    for expr in (e for s in walk_stmts(stmt) for e in direct_exprs_of_stmt(s)):
        for node, times in occurrences(expr):
            if isinstance(node, (Load, Var)):
                reads[node.buffer if isinstance(node, Load) else node] += times
    return reads


def destination_of_stmt(stmt: Stmt) -> Destination | None:
    """Return the place in memory that a statement itself writes; None if it writes none."""
    if isinstance(stmt, Store):
        return Destination(stmt.buffer, stmt.index)
    return stmt.result if isinstance(stmt, Execute) and isinstance(stmt.result, Destination) else None


def buffer_written_by(stmt: Stmt) -> Buffer | None:
    """Return the buffer that a statement itself writes; None if it writes none."""
    if isinstance(stmt, Store):
        return stmt.buffer
    return stmt.result.buffer if isinstance(stmt, Execute) and isinstance(stmt.result, Destination) else None


def redirect_destination(stmt: Stmt, buffer: Buffer, index: Expr) -> Stmt:
    """Return a statement that writes memory with another buffer and index as its destination."""
    if isinstance(stmt, Execute):
        return replace(stmt, result=Destination(buffer, index))
    assert isinstance(stmt, Store)
    return replace(stmt, buffer=buffer, index=index)


def register_declared_by(stmt: Stmt) -> Var | None:
    """Return the register that a statement itself declares; None if it declares none."""
    if isinstance(stmt, Declare):
        return stmt.var
    return stmt.result if isinstance(stmt, Execute) and isinstance(stmt.result, Var) else None


def executions_in(stmt: Stmt) -> Iterator[Execute]:
    """Yield every execution of an instruction in a statement, at any depth of statements."""
    return (s for s in walk_stmts(stmt) if isinstance(s, Execute))


def is_barrier(stmt: Stmt) -> bool:
    """Return True if a statement synchronizes the threads of a block, or of a team."""
    return isinstance(stmt, Execute) and stmt.effects.barrier


def is_warp_wide(stmt: Stmt) -> bool:
    """Return True if all threads of a warp execute a statement together."""
    return isinstance(stmt, Execute) and stmt.effects.scope == "warp"


def increments_block_counter(stmt: Stmt) -> TypeGuard[Execute]:
    """Return True if a statement increments a last-block counter; it is a barrier for the block.

    `let last: bool = arrive(count[g], 8:int32)` is true in the last of 8 blocks that execute it,
    which then sees the memory writes of the other blocks.  The counter is reset to 0.
    """
    return isinstance(stmt, Execute) and stmt.effects.counts_blocks


def modified_vars_and_buffers(stmt: Stmt) -> set[Var | Buffer]:
    """Return the registers, loop variables and buffers that a statement modifies."""
    modified: set[Var | Buffer] = set()
    for s in walk_stmts(stmt):
        if isinstance(s, (Declare, Assign, For)):
            modified.add(s.var)
        elif (written := buffer_written_by(s) or register_declared_by(s)) is not None:
            modified.add(written)
    return modified


def rebuild_stmt(stmt: Stmt, map_child: Callable[[Stmt], Stmt], map_expr: Callable[[Expr], Expr] = lambda e: e) -> Stmt:
    """`stmt` with `map_child` applied to the statements directly inside it and `map_expr` to its
    own expressions.
    """
    exprs, children, build = _PARTS_AND_BUILDER_OF_KIND[type(stmt)]
    fresh: Stmt = build(stmt, *map(map_expr, exprs(stmt)), *map(map_child, children(stmt)))
    return fresh


def map_exprs(stmt: Stmt, fn: Callable[[Expr], Expr]) -> Stmt:
    """`stmt` with `fn` applied to every expression in it, at any depth of statements."""
    return rebuild_stmt(stmt, lambda s: map_exprs(s, fn), fn)


def substitute_in_stmt(stmt: Stmt, mapping: Mapping[Var, Expr]) -> Stmt:
    """`stmt` with variables replaced: in its expressions, and by other variables where it declares
    or assigns them.
    """
    new_stmt = rebuild_stmt(stmt, lambda s: substitute_in_stmt(s, mapping), lambda e: substitute(e, mapping))
    if isinstance(new_stmt, (For, Declare, Assign)) and isinstance(var := mapping.get(new_stmt.var), Var):
        return replace(new_stmt, var=var)
    if (
        isinstance(new_stmt, Execute)
        and isinstance(register := new_stmt.result, Var)
        and isinstance(var := mapping.get(register), Var)
    ):
        return replace(new_stmt, result=var)
    return new_stmt


def declared_registers(stmt: Stmt) -> Iterator[Var]:
    """Yield the registers that a statement declares, at any depth of statements."""
    return (var for s in walk_stmts(stmt) if (var := register_declared_by(s)) is not None)


def rename_declared_vars(stmt: Stmt) -> Stmt:
    """Return a copy with renamed loop variables and registers, so that one block can hold both."""
    declared = [s.var for s in walk_stmts(stmt) if isinstance(s, For)]
    declared += declared_registers(stmt)
    fresh: dict[Var, Expr] = {var: Var(var.name, var.dtype, var.lanes) for var in declared}
    return substitute_in_stmt(stmt, fresh) if fresh else stmt


def bind_to_new_register(name: str, value: Expr, stmts: list[Stmt]) -> Var:
    """Bind an expression to a new register: append its declaration to `stmts` and return the
    register.
    """
    register = Var(name, value.dtype, value.lanes)
    stmts.append(Declare(register, value))
    return register


def forall(var: Var, end: Operand, body: Stmt, *, begin: Operand = 0, step: int = 1) -> For:
    """Return a loop whose iterations are independent."""
    return For(var, end, body, begin=begin, step=step, kind="independent")


def loop_nest(axes: Iterable[tuple[Var, Operand]], body: Stmt, kind: str = "serial") -> Stmt:
    """A nest of loops of a kind from 0, the first axis outermost.

    An axis of extent 1 still gets its loop: the simplifier removes it.
    """
    for var, extent in reversed(tuple(axes)):
        body = For(var, extent, body, kind=kind)
    return body


def remove_dead_registers(stmt: Stmt) -> Stmt:
    """Remove dead registers: those that only other dead registers read."""
    read_for: dict[Var, list[Var]] = {}
    needed: list[Var] = []
    for s in walk_stmts(stmt):
        read_vars = [n for e in direct_exprs_of_stmt(s) for n in vars_and_buffers_in(e) if isinstance(n, Var)]
        (read_for.setdefault(s.var, []) if isinstance(s, (Declare, Assign)) else needed).extend(read_vars)
    live: set[Var] = set()
    while needed:
        var = needed.pop()
        if var not in live:
            live.add(var)
            needed.extend(read_for.get(var, ()))
    dead: set[Stmt] = {s for s in walk_stmts(stmt) if isinstance(s, (Declare, Assign)) and s.var not in live}
    return remove_stmts(stmt, dead) if dead else stmt


def remove_stmts(stmt: Stmt, dead: Container[Stmt]) -> Stmt:
    """Return `stmt` without the statements in `dead`."""
    return Block(()) if stmt in dead else rebuild_stmt(stmt, lambda s: remove_stmts(s, dead))
