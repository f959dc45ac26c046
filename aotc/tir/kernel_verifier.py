# SPDX-License-Identifier: Apache-2.0
"""The kernel verifier: check the rules of the tensor-program language; raise AotcError with every
violation.

    verify(kernel)

Types and lanes of operands agree; buffers and registers are declared before use, each once in a
scope; scratch is written before it is read; inputs are not written; no access is provably outside
its buffer; the kinds that loops state (independent, reduction, block, thread) are proven by
dependence analysis.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Sequence
from dataclasses import dataclass, field, replace

from aotc.ir import AotcError, Diagnostic, assert_never, frozen
from aotc.tir import INSTRUCTIONS, Binary, Bitcast, Block, Broadcast, Buffer, Element, Pack, While, operands
from aotc.tir.expr import ARITHMETIC, BITWISE, BOOL, COMPARE, INDEX, Call, Const, Expr, Load, Select, Unary, Var, unary
from aotc.tir.gpu_launch import buffers_of_last_block_counters, has_gpu_loops, launch_of
from aotc.tir.instruction_definition import Extent
from aotc.tir.instruction_operand_check import instruction_problems
from aotc.tir.loops.access_collection import ContextLinearizer
from aotc.tir.loops.access_relation import AccessRelation
from aotc.tir.loops.async_copy_wait_check import async_copy_violation
from aotc.tir.loops.gpu_vector_access_predicate import is_single_instruction_vector_access
from aotc.tir.loops.last_block_reduction_check import split_at_last_block_counters
from aotc.tir.loops.loop_dependence import (
    assigned_registers,
    direct_loads,
    ranges_inside_loops,
    read_buffers,
    written_buffers,
)
from aotc.tir.loops.loop_kind_proof import why_gpu_loop_may_race, why_loop_kind_unproven
from aotc.tir.loops.out_of_bounds_index_search import EnclosingContext, sample_reachable_index_values
from aotc.tir.simplify import Interval, bounds, linear_form
from aotc.tir.stmt import (
    GPU_LOOP_KINDS,
    LOOP_KINDS,
    THREAD_COUNT,
    THREAD_NUMBER,
    Assign,
    Declare,
    Destination,
    Execute,
    For,
    If,
    Kernel,
    Number,
    Stmt,
    Store,
    block_stmts_or_self,
    direct_exprs_of_stmt,
    executions_in,
    increments_block_counter,
    register_declared_by,
    walk_stmts,
)

_INTEGER_ONLY_OPS = frozenset({"floordiv", "floormod", "truncdiv", "truncmod", "shl", "shr", "xor"})


#: No team is larger: shares of loops are computed without overflow.
_MAX_TEAM_THREADS = 1 << 16


def verify(kernel: Kernel) -> None:
    """Raise AotcError (code "tir-verify") with one diagnostic for each violation in the kernel.

    Instructions that violate their rows in the table are reported alone: nothing is known of what
    they access.
    """
    body = kernel.body
    violations = [text for s in executions_in(body) for text in instruction_problems(s)]
    if violations:
        raise AotcError.collect(
            [Diagnostic("tir-verify", f"kernel {kernel.name}: {text}", kernel.span) for text in violations]
        )
    scratch = frozenset((*kernel.workspace, *kernel.stack_and_shared_buffers))
    parameters, changing = _ranges_of_integer_parameters(kernel), assigned_registers(body)
    checker = _KernelChecker(kernel, changing, parameters, written_buffers(body), scratch - read_buffers(body))
    checker.check_buffer_declarations()
    for text in _number_declaration_problems(kernel.numbers, changing):
        checker.report_problem(text)
    checker.check_last_block_counters()
    on_device = [s for s in block_stmts_or_self(body) if _needs_gpu(s, kernel.shared)]
    launches = [s for s in on_device if launch_of(replace(kernel, body=s)) is not None]
    if len(launches) < len(on_device) or (kernel.shared and not launches):
        checker.report_problem("blocks and threads are not two loops around all statements, from 0 to literals")
    checker.check_stmt(body, _scope_of_kernel(kernel))
    moves = any(s.effects.asynchronous for s in executions_in(body))
    if moves and (problem := async_copy_violation(body)) is not None:
        checker.report_problem(problem)
    if checker.problems:
        raise AotcError.collect(checker.problems)


def are_loops_proven_for(kernel: Kernel, buffers: Collection[Buffer]) -> bool:
    """Return True if the loops of a kernel are proven to be of the kinds that they state, as far as accesses to some
    of its buffers count. Nothing else is checked.
    """
    body, unchecked = kernel.body, {*kernel.params, *kernel.stack_and_shared_buffers} - {*buffers}
    parameters = _ranges_of_integer_parameters(kernel)
    checker = _LoopKindChecker(
        kernel, assigned_registers(body), parameters, written_buffers(body), frozenset(unchecked)
    )
    checker.check_stmt(body, _scope_of_kernel(kernel))
    return not checker.problems


def _ranges_of_integer_parameters(kernel: Kernel) -> dict[Var, Interval]:
    """Return the ranges of the numbers of a kernel that are indices; for a team, of the number of a thread and of
    threads, too.
    """
    team: dict[Var, Interval] = {THREAD_NUMBER: (0, _MAX_TEAM_THREADS - 1), THREAD_COUNT: (1, _MAX_TEAM_THREADS)}
    numbers = {number.var: number.interval for number in kernel.numbers if number.var.dtype == INDEX}
    return {**(team if kernel.team else {}), **numbers}


def _scope_of_kernel(kernel: Kernel) -> _Scope:
    """Return the context of the body of a kernel."""
    parameters = _ranges_of_integer_parameters(kernel)
    visible = frozenset((*parameters, *(number.var for number in kernel.numbers)))
    # an extent is one value in each call, as the variable of a loop around the kernel is in each iteration
    extents = tuple(
        For(number.var, int(number.most) + 1, Block(()), begin=int(number.least))
        for number in kernel.numbers
        if number.var in parameters
    )
    return _Scope(visible, parameters, extents)


def _number_declaration_problems(numbers: Sequence[Number], changing: Container[Var]) -> Iterator[str]:
    """Yield a text for each number that is no scalar with an interval, declared once, which nothing
    assigns.
    """
    variables = [number.var for number in numbers]
    for number in numbers:
        var, (least, most) = number.var, number.interval
        if variables.count(var) > 1:
            yield f"number {var.name} is declared twice"
        if var.lanes != 1 or var.dtype.is_bool or var.dtype.is_narrow_float or not least <= most:
            yield f"number {var.name} is {_type_text(var)} in [{least}, {most}]"
        if var in changing:
            yield f"number {var.name} is assigned"


def _needs_gpu(stmt: Stmt, shared_memory_buffers: Container[Buffer]) -> bool:
    """Return True if a statement can run on a GPU only: it has blocks, threads, or operations on
    shared memory.
    """
    is_gpu_only = has_gpu_loops(stmt) or any(s.effects.needs_gpu for s in executions_in(stmt))
    return is_gpu_only or any(b in shared_memory_buffers for b in (*read_buffers(stmt), *written_buffers(stmt)))


@frozen
class _Scope:
    """The context of a statement: enclosing loops, conditions and visible registers.

    visible    visible registers
    ranges     known ranges of loop variables, and of registers that hold an index
    contexts   enclosing loops, constant registers and conditions, the outermost first; None if the
               number of executions depends on data
    """

    visible: frozenset[Var] = frozenset()
    ranges: dict[Var, Interval] = field(default_factory=dict)
    contexts: tuple[EnclosingContext, ...] | None = ()

    def nested_scope_within_contexts(self, *contexts: EnclosingContext) -> _Scope:
        return replace(self, contexts=None if self.contexts is None else (*self.contexts, *contexts))

    @property
    def is_execution_conditional(self) -> bool:
        return self.contexts is None or not all(isinstance(item, (For, Declare)) for item in self.contexts)


@dataclass(slots=True)
class _KernelChecker:
    """Checker that walks a kernel and collects violations.

    changing   registers that are assigned to
    ranges_of_parameters   the ranges of integer parameters; for a team, of the number of a thread and of threads
    unread     scratch memory that is never read
    written    buffers that any statement writes; `filled` are those written before the current statement
    last       registers that hold the result of a last-block counter
    linearizers      for the loops and conditions around accesses, their linear forms
    """

    kernel: Kernel
    changing: frozenset[Var]
    ranges_of_parameters: dict[Var, Interval]
    written: set[Buffer]
    unread: frozenset[Buffer]
    filled: set[Buffer] = field(default_factory=set)
    last: set[Expr] = field(default_factory=set)
    problems: list[Diagnostic] = field(default_factory=list)
    linearizers: dict[tuple[EnclosingContext, ...], ContextLinearizer] = field(default_factory=dict)

    def report_problem(self, message: str) -> None:
        self.problems.append(Diagnostic("tir-verify", f"kernel {self.kernel.name}: {message}", self.kernel.span))

    def check_buffer_declarations(self) -> None:
        kernel = self.kernel
        declared = (*kernel.params, *kernel.stack_and_shared_buffers)
        for buffer in {b for b in declared if declared.count(b) > 1}:
            self.report_problem(f"buffer {buffer.name} is declared twice")
        places = {"param": (*kernel.inputs, *kernel.outputs), "workspace": kernel.workspace, "stack": kernel.stack}
        places["shared"] = kernel.shared
        for scope, group in places.items():
            for buffer in group:
                if buffer.scope != scope or buffer.size < 0:
                    self.report_problem(
                        f"buffer {buffer.name}[{buffer.size}] of scope {buffer.scope} stands as {scope}"
                    )
        for output, source in (*kernel.inplace, *kernel.overlaps):
            if not (0 <= output < len(kernel.outputs) and 0 <= source < len(kernel.inputs)):
                self.report_problem(f"no output {output} or input {source} to share memory")

    def check_last_block_counters(self) -> None:
        """Check that last-block counters start at zero and are used for nothing else."""
        stmts = list(walk_stmts(self.kernel.body))
        arrivals = {s for s in stmts if increments_block_counter(s)}
        counters = buffers_of_last_block_counters(self.kernel) if arrivals else frozenset()
        self.filled |= counters
        other_buffers = {load.buffer for s in stmts if counters for load in direct_loads(s) if s not in arrivals}
        alone = len(counters) == len(arrivals) and not counters & (other_buffers | self.written)
        if not (alone and counters <= {*self.kernel.workspace}):
            self.report_problem(
                "a last-block counter is not a workspace buffer that one counting instruction alone accesses"
            )

    # statements

    def check_stmt(self, stmt: Stmt, scope: _Scope) -> None:
        for expr in direct_exprs_of_stmt(stmt):
            self.check_expr(expr, scope)
        match stmt:
            case For():
                self.check_loop(stmt, scope)
            case While():
                self.check_condition_type(stmt.cond)
                self.check_stmt(stmt.body, replace(scope, contexts=None))
            case If():
                self.check_if(stmt, scope)
            case Store():
                self.check_store(stmt, scope)
            case Execute():
                self.check_instruction(stmt, scope)
            case Assign():
                self.check_assign(stmt, scope)
            case Block():
                self.check_stmt_sequence(stmt, scope)
            case Declare():
                self.check_register_type(stmt.var, _type_text(stmt.value))
            case _:
                assert_never(stmt)

    def check_if(self, stmt: If, scope: _Scope) -> None:
        self.check_condition_type(stmt.cond)
        known = () if stmt.cond in self.last else (stmt.cond,)
        if not known:
            self.filled -= {*self.kernel.stack_and_shared_buffers}  # which of several blocks it is must not show
        self.check_stmt(stmt.then, scope.nested_scope_within_contexts(*known))
        if stmt.orelse is not None:
            self.check_stmt(stmt.orelse, scope.nested_scope_within_contexts(unary("not", stmt.cond)))

    def check_stmt_sequence(self, block: Block, scope: _Scope) -> None:
        here: set[Var] = set()
        for stmt in block.stmts:
            self.check_stmt(stmt, scope)
            var = register_declared_by(stmt)
            if var is None:
                continue
            if var in here or var in scope.visible - frozenset(here):
                self.report_problem(f"register {var.name} is declared twice")
            here.add(var)
            if isinstance(stmt, Declare) and var.dtype == INDEX and var not in self.changing:
                known = {**scope.ranges, var: _bounds_of_index(stmt.value, scope.ranges)}
                scope = replace(scope.nested_scope_within_contexts(stmt), ranges=known)
            scope = replace(scope, visible=scope.visible | {var})

    def check_loop(self, loop: For, scope: _Scope) -> None:
        if loop.step < 1 or loop.kind not in LOOP_KINDS:
            self.report_problem(f"loop over {loop.var.name} has step {loop.step} and kind {loop.kind!r}")
            return
        if loop.var.dtype != INDEX or loop.var.lanes != 1 or loop.begin.dtype != INDEX or loop.end.dtype != INDEX:
            self.report_problem(f"loop over {loop.var.name} does not count in {INDEX}")
            return
        if loop.var in scope.visible:
            self.report_problem(f"loop variable {loop.var.name} is in use already")
        private_buffers = {"block": self.kernel.stack_and_shared_buffers, "thread": self.kernel.stack}.get(
            loop.kind, ()
        )
        proven = why_gpu_loop_may_race if loop.kind in GPU_LOOP_KINDS else why_loop_kind_unproven
        stages = split_at_last_block_counters(loop) if loop.kind == "block" else [loop]
        if stages is None:
            self.report_problem(
                "last-block counters are used in another form than that of aotc.tir.loops.last_block_reduction_check"
            )
        problems = (
            proven(stage, scope.ranges, scope.visible, {*private_buffers, *self.unread}) for stage in stages or ()
        )
        if (problem := next(filter(None, problems), None)) is not None:
            self.report_problem(f"loop over {loop.var.name} is not {loop.kind}: {problem}")
        if isinstance(loop.begin, Const) and isinstance(loop.end, Const) and loop.begin.value >= loop.end.value:
            return  # never runs
        ranges = ranges_inside_loops([loop], scope.ranges)
        self.check_stmt(
            loop.body,
            replace(scope.nested_scope_within_contexts(loop), visible=scope.visible | {loop.var}, ranges=ranges),
        )

    def check_store(self, stmt: Store, scope: _Scope) -> None:
        self.check_write(stmt.buffer, stmt.index, stmt.value.lanes, scope)
        if isinstance(stmt.value, Load) and stmt.value.lanes > 1 and has_gpu_loops(self.kernel.body):
            self.check_alignment(stmt.buffer, stmt.index, stmt.value.lanes, scope)
            self.check_alignment(stmt.value.buffer, stmt.value.index, stmt.value.lanes, scope)
        if stmt.value.dtype != stmt.buffer.dtype:
            self.report_problem(f"{stmt.value.dtype} is stored to {stmt.buffer.name}, which holds {stmt.buffer.dtype}")

    def check_alignment(self, buffer: Buffer, index: Expr, elements: int, scope: _Scope) -> None:
        """Report an access that is not one aligned access of at most 16 bytes."""
        if not is_single_instruction_vector_access(buffer, linear_form(index, scope.ranges), elements):
            self.report_problem(f"{buffer.name} is not accessed at multiples of {elements} elements")

    def check_instruction(self, stmt: Execute, scope: _Scope) -> None:
        """Check the memory that an instruction accesses, and its copies to shared memory."""
        effects, (written, inputs) = stmt.effects, stmt.extents
        match stmt.result:
            case Var():
                self.last |= {stmt.result} if effects.counts_blocks else set()
            case Destination(buffer=buffer, index=index):
                assert written is not None
                self.check_write(buffer, index, written.span, scope)
        if effects.asynchronous and not self.is_valid_async_copy(stmt):
            self.report_problem(f"{stmt.instruction} must copy memory that the kernel does not write to shared memory")
        if effects.is_aligned:
            self.check_alignment_of_instruction(stmt, (written, *inputs), scope)

    def check_alignment_of_instruction(self, stmt: Execute, extents: Sequence[Extent | None], scope: _Scope) -> None:
        """Report the operands in memory, and the result, that are not one aligned access."""
        for place, extent in zip((stmt.result, *stmt.operands), extents, strict=True):
            for access in (place, *operands(place)) if isinstance(place, Select) else (place,):
                if extent is not None and isinstance(access, (Load, Destination)):
                    self.check_alignment(access.buffer, access.index, extent.span, scope)

    def is_valid_async_copy(self, stmt: Execute) -> bool:
        """Return True if an instruction copies at least 4 bytes of memory that the kernel does not
        write, or zeros in their place, to shared memory.
        """
        (source,), destination = stmt.operands, stmt.result
        if isinstance(source, Select):
            if not isinstance(source.b, Const) or source.b.value:
                return False
            source = source.a
        if not isinstance(source, Load) or source.buffer in self.written or not isinstance(destination, Destination):
            return False
        return destination.buffer.scope == "shared" and source.lanes * source.dtype.itemsize >= 4

    def check_write(self, buffer: Buffer, index: Expr, lanes: int, scope: _Scope) -> None:
        self.check_access_bounds(buffer, index, lanes, scope)
        self.filled.add(buffer)
        if buffer in self.kernel.inputs:
            self.report_problem(f"input {buffer.name} is written")

    def check_assign(self, stmt: Assign, scope: _Scope) -> None:
        self.check_register_type(stmt.var, _type_text(stmt.value))
        if stmt.var not in scope.visible or stmt.var in scope.ranges:
            self.report_problem(f"{stmt.var.name} is assigned, but is not a register in sight")

    def check_register_type(self, var: Var, value_type: str) -> None:
        if _type_text(var) != value_type:
            self.report_problem(f"register {var.name} is {_type_text(var)}, its value {value_type}")

    def check_condition_type(self, cond: Expr) -> None:
        if cond.dtype != BOOL or cond.lanes != 1:
            self.report_problem(f"a condition is {_type_text(cond)}")

    # expressions

    def check_expr(self, expr: Expr, scope: _Scope) -> None:
        stack = [(expr, scope)]
        while stack:
            node, here = stack.pop()
            for message in _node_type_problems(node):
                self.report_problem(message)
            if isinstance(node, Var) and node not in here.visible:
                self.report_problem(f"{node.name} is used, but not declared")
            if isinstance(node, Call) and INSTRUCTIONS[node.name].execution is not None:
                self.report_problem(f"{node.name} is a statement, and cannot be part of an expression")
            if isinstance(node, Load):
                self.check_access_bounds(node.buffer, *node.lowest_index_and_extent, here)
                self.check_written_before_read(node.buffer, here)
            if isinstance(node, Select):
                other = here.nested_scope_within_contexts(unary("not", node.cond))
                stack += [(node.cond, here), (node.a, here.nested_scope_within_contexts(node.cond)), (node.b, other)]
            else:
                stack += [(o, here) for o in operands(node)]

    def check_access_bounds(self, buffer: Buffer, index: Expr, lanes: int, scope: _Scope) -> None:
        if not any(buffer is b for b in (*self.kernel.params, *self.kernel.stack_and_shared_buffers)):
            self.report_problem(f"buffer {buffer.name} is not declared")
        if index.dtype != INDEX or index.lanes != 1:
            self.report_problem(f"{buffer.name} is indexed by {_type_text(index)}")
            return
        low, high = bounds(index, scope.ranges)
        if scope.contexts is None or (low >= 0 and high <= buffer.size - lanes):
            return
        if self.is_proven_in_bounds(buffer, index, lanes, scope.contexts):
            return
        indices = sorted(sample_reachable_index_values(scope.contexts, index))
        if indices and (indices[0] < 0 or indices[-1] > buffer.size - lanes):
            self.report_problem(
                f"{buffer.name}[{indices[0]} .. {indices[-1] + lanes - 1}] is outside its {buffer.size} elements"
            )

    def is_proven_in_bounds(
        self, buffer: Buffer, index: Expr, lanes: int, contexts: tuple[EnclosingContext, ...]
    ) -> bool:
        """Return True if an access inside loops and conditions is proven to be within its buffer."""
        if contexts not in self.linearizers:
            changing = self.changing | self.written
            self.linearizers[contexts] = ContextLinearizer.from_context(contexts, self.ranges_of_parameters, changing)
        access = self.linearizers[contexts].load_at_index(index, lanes)
        return AccessRelation([access]).is_within(buffer.size)

    def check_written_before_read(self, buffer: Buffer, scope: _Scope) -> None:
        """Report scratch memory that is read before it is written."""
        if buffer.scope == "param" or buffer in self.filled:
            return
        if buffer not in self.written or not scope.is_execution_conditional:
            self.filled.add(buffer)  # one message is enough
            self.report_problem(f"{buffer.name} is read before anything is written to it")


@dataclass(slots=True)
class _LoopKindChecker(_KernelChecker):
    """Checker that looks at the kinds of loops only, up to the first violation; it ignores accesses to `unread`."""

    def check_loop(self, loop: For, scope: _Scope) -> None:
        if not self.problems:
            _KernelChecker.check_loop(self, loop, scope)

    def check_expr(self, expr: Expr, scope: _Scope) -> None:
        pass

    def check_access_bounds(self, buffer: Buffer, index: Expr, lanes: int, scope: _Scope) -> None:
        pass


def _bounds_of_index(value: Expr, ranges: dict[Var, Interval]) -> Interval:
    """Return the smallest and largest value of an index, which may depend on a thread's share of a
    team loop.
    """
    if isinstance(value, Binary) and value.op == "truncdiv" and bounds(value.b, ranges)[0] >= 1:
        low, high = bounds(value.a, ranges)
        return min(low, 0), max(high, 0)
    return bounds(value, ranges)


def _node_type_problems(node: Expr) -> Iterator[str]:
    match node:
        case Binary():
            yield from _binary_type_problems(node)
        case Unary(op=op, a=a) if op not in ("neg", "not") or (op == "neg" and a.dtype == BOOL):
            yield f"{op} of {a.dtype}"
        case Select(cond=cond, a=a, b=b):
            if cond.dtype != BOOL or cond.lanes not in (1, node.lanes):
                yield f"a selection by {_type_text(cond)}"
            if _type_text(a) != _type_text(b):
                yield f"a selection between {_type_text(a)} and {_type_text(b)}"
        case Bitcast(dtype=dtype, a=a) if dtype.bits != a.dtype.bits:
            yield f"a bitcast of {a.dtype} to {dtype}"
        case Broadcast(a=a) if a.lanes != 1:
            yield "a broadcast of a vector"
        case Pack(parts=parts) if any(_type_text(p) != f"{node.dtype}x1" for p in parts):
            yield f"a pack of {', '.join(map(_type_text, parts))}"
        case Call():
            problem = INSTRUCTIONS[node.name].operand_type_problem((a.dtype, a.lanes) for a in node.args)
            yield from (problem,) if problem else ()
        case Element():
            yield f"an element of {node.tensor.name}, which was not scheduled"


def _type_text(value: Expr) -> str:
    return f"{value.dtype}x{value.lanes}"


def _binary_type_problems(node: Binary) -> Iterator[str]:
    a, b = node.a, node.b
    if node.op not in ARITHMETIC | BITWISE | COMPARE:
        yield f"no operation {node.op!r}"
    if _type_text(a) != _type_text(b):
        yield f"{node.op} of {_type_text(a)} and {_type_text(b)}"
    elif node.op == "div" and not a.dtype.is_float:
        yield f"div of {a.dtype}"
    elif node.op in _INTEGER_ONLY_OPS | BITWISE and a.dtype.is_float:
        yield f"{node.op} of {a.dtype}"
