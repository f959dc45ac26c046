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
from typing import Any, Final, TypeAlias

from aotc.ir import DType, JsonFormat, Span, frozen, give_new_value_memo_key_of_old, load_or_compute_memoized_result
from aotc.tir import expr as values
from aotc.tir.expr import Buffer, Call, Expr, Load, Operand, Var, as_expr, substitute, vars_and_buffers_in, walk_once
from aotc.tir.expr_occurrences import occurrences
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
    """Write `value` (as many elements as it has lanes) to a buffer from flat `index` on.

    asynchronous   True for an asynchronous copy to shared memory, which is complete after a `Wait` and a `Sync`.
                   The value is a load of 4, 8 or 16 bytes from a multiple of them on, or zeros by a condition
    """

    buffer: Buffer
    index: Expr
    value: Expr
    asynchronous: bool = False


@frozen(eq=False)
class Intrinsic:
    """An instruction of INSTRUCTIONS that computes a square block of memory from another one:
    `turn` transposes it.

    The rows of the block that is written begin at `buffer[index + i * stride]`, those of the block
    that is read, of which `source` loads the first, `source_stride` elements apart.  A block has
    as many rows as `source` has lanes; the two do not overlap.
    """

    name: str
    buffer: Buffer
    index: Expr
    stride: int
    source: Load
    source_stride: int

    @property
    def transposed_block_side(self) -> int:
        return self.source.lanes


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


@frozen(eq=False)
class Sync:
    """A barrier: all threads of a team or block wait for each other.  Nothing where one thread runs
    alone.
    """


@frozen(eq=False)
class Wait:
    """Wait for asynchronous copies of the thread, except those of the latest groups.

    A group is the set of asynchronous stores between two `Wait` statements."""

    groups: int


Stmt: TypeAlias = "For | While | If | Store | Intrinsic | Declare | Assign | Block | Sync | Wait"


@frozen
class UserSource:
    """C source from a user's code generator, with the generator's name for messages."""

    text: str
    author: str


@frozen(kw_only=True, eq=False)
class Kernel:
    """One function over flat memory.

    inputs, outputs   parameters, in the order of the call; no two overlap unless `inplace` was applied or `overlaps`
                      says so
    workspace         scratch buffers, planned into the arena, passed after the outputs
    stack             small local arrays; on a device, each thread has its own
    shared            memory of a device that the threads of each block share; every block finds it unset
    inplace           (output, input) index pairs that may be the same memory, because every element of the
                      output is written after the last read of the elements of the input at that index
    overlaps          (output, input) index pairs whose memory may overlap as far as the order of its accesses lets
                      it (aotc/tir/plan/inplace_overlap.py): iterations run in the order in which they stand
    macs              multiply-accumulate operations of one call
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
    approximate: bool = False
    span: Span | None = None
    source: UserSource | None = None
    team: bool = False
    private: tuple[Buffer, ...] = ()

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
        *(For, While, If, Store, Intrinsic, Declare, Assign, Block, Sync, Wait, UserSource, Kernel),
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
    Store: (lambda s: (s.index, s.value), _no_parts, lambda s, at, value: Store(s.buffer, at, value, s.asynchronous)),
    Intrinsic: (lambda s: (s.index, s.source), _no_parts, None),
    Declare: (lambda s: (s.value,), _no_parts, lambda s, value: Declare(s.var, value)),
    Assign: (lambda s: (s.value,), _no_parts, lambda s, value: Assign(s.var, value)),
    Block: (_no_parts, lambda s: s.stmts, lambda _, *stmts: Block(stmts)),
    Sync: (_no_parts, _no_parts, lambda s: s),
    Wait: (_no_parts, _no_parts, lambda s: s),
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


def warp_instruction_of_stmt(stmt: Stmt) -> Call | None:
    """Return the warp-level instruction that a statement executes, or None."""
    value = stmt.value if isinstance(stmt, (Store, Declare, Assign)) else None
    return value if isinstance(value, Call) and INSTRUCTIONS[value.name].warp else None


def micro_kernel_call_of_stmt(stmt: Stmt) -> Call | None:
    """Return the micro-kernel call whose result a statement stores, or None."""
    value = stmt.value if isinstance(stmt, Store) else None
    return value if isinstance(value, Call) and INSTRUCTIONS[value.name].memory else None


def last_block_counter_increment(stmt: Stmt) -> Call | None:
    """Return the call that increments a last-block counter in a statement, or None; it is a barrier
    for the block.

    `let last: bool = arrive(count[g], 8:int32)` is true in the last of 8 blocks that execute it,
    which then sees the memory writes of the other blocks.  The counter is reset to 0.
    """
    value = stmt.value if isinstance(stmt, Declare) else None
    return value if isinstance(value, Call) and value.name == "arrive" else None


def is_barrier(stmt: Stmt) -> bool:
    """Return True if a statement synchronizes the threads of a block."""
    return isinstance(stmt, Sync) or last_block_counter_increment(stmt) is not None


def modified_vars_and_buffers(stmt: Stmt) -> set[Var | Buffer]:
    """Return the registers, loop variables and buffers that a statement modifies."""
    modifiers = (s for s in walk_stmts(stmt) if isinstance(s, (Store, Intrinsic, Declare, Assign, For)))
    return {s.buffer if isinstance(s, (Store, Intrinsic)) else s.var for s in modifiers}


def rebuild_stmt(stmt: Stmt, map_child: Callable[[Stmt], Stmt], map_expr: Callable[[Expr], Expr] = lambda e: e) -> Stmt:
    """`stmt` with `map_child` applied to the statements directly inside it and `map_expr` to its
    own expressions.

    The source of an instruction on blocks stays a load: `map_expr` is applied to its index.
    """
    exprs, children, build = _PARTS_AND_BUILDER_OF_KIND[type(stmt)]
    if isinstance(stmt, Intrinsic):
        source = Load(stmt.source.buffer, map_expr(stmt.source.index), stmt.transposed_block_side)
        return replace(stmt, index=map_expr(stmt.index), source=source)
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
    return new_stmt


def rename_declared_vars(stmt: Stmt) -> Stmt:
    """Return a copy with renamed loop variables and registers, so that one block can hold both."""
    declared = [s.var for s in walk_stmts(stmt) if isinstance(s, (For, Declare))]
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
