# SPDX-License-Identifier: Apache-2.0
"""The interpreter of kernels: run a kernel on numpy arrays with every memory access checked.

A kernel becomes Python source; innermost loops whose iterations are independent (or only
accumulate) become numpy operations, with the results that the loop would give, in the loop's order
of rounding.

    run_kernel(kernel, [x, w])                 # [y], flat
    run = compile_kernel(kernel)               # for repeated runs: run([x, w])

GPU blocks run one after another. The threads of a GPU block, or of a team of CPU threads, are
interleaved at barriers: the first thread runs to its first barrier, then the second thread, and so
on; then each runs to its second barrier. The 32 threads of a warp are interleaved at warp-level
instructions as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from operator import itemgetter
from typing import Any, Final, TypeAlias

import numpy as np

from aotc.ir import AotcError, DType, assert_never, frozen
from aotc.tir import (
    OP_OF_SYMBOL,
    Binary,
    Bitcast,
    Broadcast,
    Element,
    Pack,
    buffers_of_last_block_counters,
    operands,
    vars_and_buffers_in,
)
from aotc.tir.expr import (
    BOOL,
    COMPARE,
    INDEX,
    Buffer,
    Call,
    Cast,
    Const,
    Expr,
    Load,
    Select,
    Unary,
    Var,
    loads_in,
    walk_once,
)
from aotc.tir.functions.elementary_function_table import EXACT_FUNCTIONS, elementary_function_definition
from aotc.tir.functions.function_from_formula import ElementaryFunction
from aotc.tir.instruction_interpretation import instruction_python_lines
from aotc.tir.instruction_table import INSTRUCTIONS, THREADS_PER_WARP
from aotc.tir.loops.loop_dependence import (
    assigns_to_outer_registers,
    constant_trip_count,
    read_buffers,
    straight_line_stmts,
    written_buffers,
)
from aotc.tir.numpy_semantics import NAMESPACE, wrap_to_int64
from aotc.tir.stmt import (
    GPU_LOOP_KINDS,
    THREAD_COUNT,
    THREAD_NUMBER,
    Assign,
    Block,
    Declare,
    Execute,
    For,
    If,
    Kernel,
    Stmt,
    Store,
    While,
    all_exprs_in_stmt,
    executions_in,
)

Array: TypeAlias = "np.ndarray[Any, Any]"

_PYTHON_SYMBOL_OF_OP: Final = {op: symbol for symbol, op in OP_OF_SYMBOL.items()}
_NUMPY_UFUNC_OF_OP: Final = {
    "add": "np.add", "mul": "np.multiply", "min": "np.minimum", "max": "np.maximum",
    "and": "np.logical_and", "or": "np.logical_or",
}  # fmt: skip
#: Loops of fewer iterations are not worth a numpy call.
_MIN_VECTORIZED_ITERATIONS: Final = 4


def run_kernel(kernel: Kernel, inputs: Sequence[Array], **how: Any) -> list[Array]:
    """Run a kernel on input arrays and return its outputs as flat arrays, in order.

    inputs        one array for each input buffer, of its dtype and size, any shape
    numbers       one value for each number of the kernel
    output_init   initial contents of the outputs; by default NaN, or a bit pattern that is unlikely to be a result
    participants  number of threads of the team
    backwards     True to run threads and blocks in reverse order; a kernel whose results depend on this order lacks
                  a barrier

    Raises AotcError (code "tir-run") for wrong arguments, for any access outside a buffer, and for
    threads that do not come to the barriers equally often.
    """
    return compile_kernel(kernel)(inputs, **how)


@frozen
class CompiledKernel:
    """A kernel translated to a Python generator, which yields at barriers; `source` is its Python
    text.
    """

    kernel: Kernel
    source: str
    function: Callable[..., Iterator[None]]

    def __call__(
        self,
        inputs: Sequence[Array],
        *,
        numbers: Sequence[int | float] = (),
        output_init: Sequence[Array] | None = None,
        participants: int = 1,
        backwards: bool = False,
    ) -> list[Array]:
        """Run the kernel on `inputs` and return its outputs; the arguments are those of
        `run_kernel`.
        """
        kernel = self.kernel
        values = _checked_numbers(kernel, numbers)
        arguments = _check_and_flatten_arrays(kernel, "input", kernel.inputs, inputs)
        if output_init is None:
            outputs = [_poisoned_array(b) for b in kernel.outputs]
        else:
            outputs = [a.copy() for a in _check_and_flatten_arrays(kernel, "output", kernel.outputs, output_init)]
        common = {b: _poisoned_array(b) for b in kernel.workspace if b not in kernel.private}
        counts = buffers_of_last_block_counters(kernel)
        common |= {b: np.zeros(b.size, b.dtype.numpy) for b in counts}
        for array in arguments:
            array.flags.writeable = False
        order: Callable[[Any], Iterable[Any]] = reversed if backwards else iter
        runs: list[Iterator[None]] = []
        for part in range(participants if kernel.team else 1):
            scratch = [
                common[b] if b in common else _poisoned_array(b)
                for b in (*kernel.workspace, *kernel.stack_and_shared_buffers)
            ]
            runs.append(
                self.function(
                    *arguments,
                    *outputs,
                    *scratch,
                    *values,
                    part,
                    participants,
                    order,
                    self._run_threads_between_barriers,
                )
            )
        with np.errstate(all="ignore"):
            self._run_threads_between_barriers(order(runs))
        if any(common[b].any() for b in counts):
            raise self._barrier_divergence_error(
                "a last-block counter is not 0 at the end: fewer blocks incremented it than its group has"
            )
        return outputs

    def run_kernel_in_place(self, memory: Sequence[Array], numbers: Sequence[int | float] = ()) -> None:
        """Run the kernel in place on one array per buffer parameter, and a value per number; arrays may
        overlap as `Kernel.overlaps` allows.
        """
        values = _checked_numbers(self.kernel, numbers)
        scratch = [_poisoned_array(b) for b in self.kernel.stack_and_shared_buffers]
        with np.errstate(all="ignore"):
            self._run_threads_between_barriers(
                [self.function(*memory, *scratch, *values, 0, 1, iter, self._run_threads_between_barriers)]
            )

    def _run_threads_between_barriers(self, threads: Iterable[Iterator[None]]) -> None:
        """Run each thread to its next barrier, and repeat this until all threads have ended."""
        runs = tuple(threads)
        warps = [runs[k : k + THREADS_PER_WARP] for k in range(0, len(runs), THREADS_PER_WARP)]
        waiting_count = len(runs)
        while waiting_count:
            waiting_count = sum(map(self._run_warp_to_barrier, warps))
            if waiting_count not in (0, len(runs)):
                text = f"{waiting_count} of {len(runs)} threads wait at a barrier, but the other threads have ended"
                raise self._barrier_divergence_error(text)

    def _run_warp_to_barrier(self, warp: Sequence[Iterator[Any]]) -> int:
        """Run the threads of a warp to the next barrier and return how many threads reach it; a
        thread that does not reach it has ended.
        """
        while True:
            events = [next(run, self) for run in warp]
            calls = sorted((call for call in events if isinstance(call, list)), key=itemgetter(0))
            if not calls:
                return sum(event is None for event in events)
            meaning = calls[0][1]
            if [call[1] for call in calls] != [meaning] * THREADS_PER_WARP:
                raise self._barrier_divergence_error(
                    f"{len(calls)} threads of a warp execute an instruction of the whole warp"
                )
            operands = (np.stack(values) for values in zip(*(call[2:] for call in calls), strict=True))
            for call, result in zip(calls, meaning(*operands), strict=True):
                call[0] = result

    def _barrier_divergence_error(self, text: str) -> AotcError:
        return AotcError("tir-run", f"kernel {self.kernel.name}: {text}", span=self.kernel.span)


def compile_kernel(kernel: Kernel) -> CompiledKernel:
    """Translate a kernel to Python; AotcError (code "tir-run") for one that is C source."""
    if kernel.source is not None:
        raise AotcError(
            "tir-run", f"kernel {kernel.name} is C source, which the interpreter cannot run", span=kernel.span
        )
    writer = _PythonWriter()
    writer.write_python_kernel(kernel)
    return CompiledKernel(kernel, writer.python_source, _execute_python_source(writer, kernel.name))


def _execute_python_source(writer: _PythonWriter, name: str) -> Callable[..., Any]:
    """Execute the Python source of a writer and return the function that it defines."""
    meanings = {f"intrinsic_{name}": row.meaning for name, row in INSTRUCTIONS.items()}
    functions = {name: _compile_elementary_function(*key) for name, key in writer.functions.items()}
    namespace = dict(
        NAMESPACE,
        np=np,
        begin=_start_async_copy,
        land=_complete_async_copies,
        const=writer.constants,
        **meanings,
        **functions,
    )
    exec(compile(writer.python_source, f"<tensor program {name}>", "exec"), namespace)
    return namespace["run"]  # type: ignore[no-any-return]


def _start_async_copy(copies: list[list[Any]], array: Array, index: Any, value: Any, label: str) -> None:
    """Start an asynchronous copy: poison the destination until the copy completes."""
    places = np.atleast_1d(index)
    rubbish = _poisoned_array(Buffer(label, DType(str(array.dtype)), places.size))
    NAMESPACE["put"](array, places, rubbish, label)
    copies[-1].append((array, places, value, label))


def _complete_async_copies(copies: list[list[Any]], pending_groups: int) -> None:
    """Close the current group of asynchronous copies, and complete all but the latest
    `pending_groups` groups.
    """
    copies.append([])
    while len(copies) > pending_groups + 1:
        for copy in copies.pop(0):
            NAMESPACE["put"](*copy)


@cache
def _compile_elementary_function(name: str, dtype: DType, uses_fma: bool) -> Callable[..., Any]:
    """Return an elementary function (a tensor program) as a Python function of numpy scalars or
    arrays.

    Results of floats narrower than float32 are rounded once, at the end.
    """
    function = elementary_function_definition(name, dtype, uses_fma)
    assert function is not None
    writer = _PythonWriter(lazy=False)
    writer.write_python_elementary_function(function)
    compute, carrier, convert = _execute_python_source(writer, name), function.result.dtype, NAMESPACE["cast"]
    if not dtype.is_narrow_float:
        return compute
    return lambda *args: convert(compute(*(convert(a, carrier.numpy) for a in args)), dtype.numpy)


def _check_and_flatten_arrays(
    kernel: Kernel, kind: str, buffers: Sequence[Buffer], arrays: Sequence[Array]
) -> list[Array]:
    if len(arrays) != len(buffers):
        raise AotcError("tir-run", f"kernel {kernel.name} has {len(buffers)} {kind}s, got {len(arrays)}")
    for buffer, array in zip(buffers, arrays, strict=True):
        if array.size != buffer.size or array.dtype != buffer.dtype.numpy:
            actual = f"{array.size} x {array.dtype}"
            text = f"{kind} {buffer.name} of kernel {kernel.name} needs {buffer.size} x {buffer.dtype}, got {actual}"
            raise AotcError("tir-run", text)
    return [array.reshape(-1).view() for array in arrays]


def _checked_numbers(kernel: Kernel, values: Sequence[int | float]) -> list[Any]:
    """Return the values of a kernel's numbers: Python integers for extents, scalars of their dtypes for
    others.
    """
    if len(values) != len(kernel.numbers):
        raise AotcError("tir-run", f"kernel {kernel.name} has {len(kernel.numbers)} numbers, got {len(values)}")
    for number, value in zip(kernel.numbers, values, strict=True):
        if not number.least <= value <= number.most:
            text = (
                f"number {number.var.name} of kernel {kernel.name} is in [{number.least}, {number.most}], got {value}"
            )
            raise AotcError("tir-run", text)
    pairs = zip(kernel.numbers, values, strict=True)
    return [int(value) if n.var.dtype == INDEX else n.var.dtype.numpy.type(value) for n, value in pairs]


def _poisoned_array(buffer: Buffer) -> Array:
    if buffer.dtype.is_bool:
        return np.ones(buffer.size, np.bool_)
    if buffer.dtype.is_float:
        return np.full(buffer.size, np.nan, np.float32).astype(buffer.dtype.numpy)
    return np.full(buffer.size, 0x5A, np.int64).astype(buffer.dtype.numpy)


def _numpy_dtype_text(expr: Expr) -> str:
    return f"dtypes[{str(expr.dtype)!r}]"


@dataclass(slots=True)
class _PythonWriter:
    """Writer of Python source for a kernel.

    `vector` is the variable of the loop that is written as numpy operations, `mask` the condition
    of its loads.
    """

    lines: list[str] = field(default_factory=list)
    names: dict[object, str] = field(default_factory=dict)
    constants: list[Any] = field(default_factory=list)
    name_counts: dict[tuple[str, str], int] = field(default_factory=dict)
    vector: Var | None = None
    arrays: set[Var] = field(default_factory=set)
    mask: str = ""
    functions: dict[str, tuple[str, DType, bool]] = field(default_factory=dict)
    lazy: bool = True
    fresh: Mapping[str, Sequence[Buffer]] = field(default_factory=dict)
    thread: str = ""

    @property
    def python_source(self) -> str:
        return "\n".join(self.lines) + "\n"

    def write_python_elementary_function(self, function: ElementaryFunction) -> None:
        """Write the straight-line program of an elementary function."""
        self.lines.append(f"def run({', '.join(map(self.python_name, function.params))}):")
        self.write_python_stmt(Block(function.body), 1)
        self.append_python_line(1, f"return {self.python_expr_text(function.result)}")

    def python_call_text(self, call: Call) -> str:
        """Return the Python expression of a call: an elementary function or an instruction."""
        dtype, args = call.args[0].dtype, ", ".join(map(self.python_expr_text, call.args))
        if call.name in EXACT_FUNCTIONS or elementary_function_definition(call.name, dtype) is None:
            return f"intrinsic_{call.name}({args})"
        name = f"function_{call.name}_{dtype}_{int(call.fused)}"
        self.functions[name] = call.name, dtype, call.fused
        return f"{name}({args})"

    def write_python_kernel(self, kernel: Kernel) -> None:
        arguments: tuple[Var | Buffer, ...] = (
            *kernel.params,
            *kernel.stack_and_shared_buffers,
            *(number.var for number in kernel.numbers),
            THREAD_NUMBER,
            THREAD_COUNT,
        )
        self.lines.append(f"def run({', '.join(map(self.python_name, arguments))}, order, take_turns):")
        self.fresh = {"block": kernel.shared, "thread": kernel.stack}
        self.write_python_stmt(kernel.body, 1)
        self.append_python_line(1, "yield")

    def python_name(self, item: Var | Buffer) -> str:
        if item not in self.names:
            stem = "".join(c if c.isascii() and c.isalnum() else "_" for c in item.name)
            self.names[item] = f"v{len(self.names)}_{stem}"
        return self.names[item]

    def append_python_line(self, depth: int, text: str) -> None:
        self.lines.append("    " * depth + text)

    # statements

    def write_python_stmt(self, stmt: Stmt, depth: int) -> None:
        match stmt:
            case For():
                self.write_python_loop(stmt, depth)
            case While():
                self.write_nested_python_stmt(f"while {self.python_expr_text(stmt.cond)}", stmt.body, depth)
            case If():
                self.write_nested_python_stmt(f"if {self.python_expr_text(stmt.cond)}", stmt.then, depth)
                if stmt.orelse is not None:
                    self.write_nested_python_stmt("else", stmt.orelse, depth)
            case Store():
                self.write_python_store(stmt, depth)
            case Execute():
                for line in instruction_python_lines(stmt, self, self.thread):
                    self.append_python_line(depth, line)
            case Declare() | Assign():
                value = self.python_expr_text(stmt.value)
                self.append_python_line(depth, f"{self.python_name(stmt.var)} = {value}")
            case Block():
                for inner in stmt.stmts:
                    self.write_python_stmt(inner, depth)
            case _:
                assert_never(stmt)

    def write_nested_python_stmt(self, head: str, stmt: Stmt, depth: int) -> None:
        self.append_python_line(depth, f"{head}:")
        self.write_python_stmt(stmt, depth + 1)
        self.append_python_line(depth + 1, "pass")

    def write_python_loop(self, loop: For, depth: int) -> None:
        span = f"{self.python_expr_text(loop.begin)}, {self.python_expr_text(loop.end)}, {loop.step}"
        if loop.kind in GPU_LOOP_KINDS:
            self.write_gpu_loop_as_python(loop, depth)
        elif self.vector is None and _can_run_as_numpy_operations(loop):
            self.append_python_line(depth, f"{self.python_name(loop.var)} = np.arange({span})")
            self.append_python_line(depth, f"if {self.python_name(loop.var)}.size:")
            self.vector = loop.var
            self.arrays = {loop.var}
            for stmt in straight_line_stmts(loop) or ():
                self.write_stmt_as_numpy(stmt, depth + 1)
            self.append_python_line(depth + 1, "pass")
            self.vector = None
            self.arrays = set()
        else:
            self.write_nested_python_stmt(f"for {self.python_name(loop.var)} in range({span})", loop.body, depth)

    def write_gpu_loop_as_python(self, loop: For, depth: int) -> None:
        """Write a loop over blocks or threads, whose private memory starts uninitialized in each
        iteration.
        """
        var, span = self.python_name(loop.var), f"order(range({self.python_expr_text(loop.end)}))"
        meets = loop.kind == "thread" and any(s.effects.scope != "thread" for s in executions_in(loop.body))
        self.thread = var if meets else ""
        if meets:
            self.append_python_line(depth, "common = [None]")
        self.append_python_line(depth, f"def thread({var}):" if meets else f"for {var} in {span}:")
        self.append_python_line(depth + 1, "copies = [[]]")
        for buffer in self.fresh[loop.kind]:
            self.append_python_line(depth + 1, f"{self.python_name(buffer)} = const[{len(self.constants)}].copy()")
            self.constants.append(_poisoned_array(buffer))
        self.write_python_stmt(loop.body, depth + 1)
        self.append_python_line(depth + 1, "yield" if meets else "pass")
        if meets:
            self.append_python_line(depth, f"take_turns(map(thread, {span}))")

    def write_stmt_as_numpy(self, stmt: Stmt, depth: int) -> None:
        if isinstance(stmt, Declare):
            self.arrays.add(stmt.var)
        if not (isinstance(stmt, Assign) and stmt.var not in self.arrays):
            self.write_python_stmt(stmt, depth)
            return
        step = stmt.value
        if not isinstance(step, Binary) or self.vector is None:
            raise AssertionError("not an accumulation")
        name = self.python_name(stmt.var)
        added = step.b if step.a is stmt.var else step.a
        value = f"np.broadcast_to({self.python_expr_text(added)}, {self.python_name(self.vector)}.size)"
        self.append_python_line(
            depth, f"{name} = accumulate({_NUMPY_UFUNC_OF_OP[step.op]}, {name}, {value}, {_numpy_dtype_text(added)})"
        )

    def write_python_store(self, stmt: Store, depth: int) -> None:
        index, value = self.python_index_text(stmt.index, stmt.value.lanes), self.python_expr_text(stmt.value)
        if self.vector is not None and not self.varies_in_vector_loop(stmt.index):  # the last iteration's value stays
            index = f"np.full({self.python_name(self.vector)}.size, {index})"
        function = "store(" if self.vector is None and stmt.value.lanes == 1 else "put("
        self.append_python_line(
            depth, f"{function}{self.python_name(stmt.buffer)}, {index}, {value}, {stmt.buffer.name!r})"
        )

    def python_index_text(self, index: Expr, lanes: int, stride: int = 1) -> str:
        return (
            self.python_expr_text(index)
            if lanes == 1
            else f"{self.python_expr_text(index)} + np.arange({lanes}) * {stride}"
        )

    def varies_in_vector_loop(self, expr: Expr) -> bool:
        """Return True if the value of an expression differs between iterations of the vectorized
        loop.
        """
        return any(item in self.arrays for item in vars_and_buffers_in(expr))

    # expressions

    def python_expr_text(self, expr: Expr) -> str:
        match expr:
            case Var():
                return self.python_name(expr)
            case Const():
                return self.python_constant_text(expr)
            case Binary():
                return self.python_binary_text(expr)
            case Unary():
                return (
                    f"op_not({self.python_expr_text(expr.a)})"
                    if expr.op == "not"
                    else f"(-{self.python_expr_text(expr.a)})"
                )
            case Bitcast():
                return f"np.asarray({self.python_expr_text(expr.a)}).view({_numpy_dtype_text(expr)})[()]"
            case Cast():
                return f"cast({self.python_expr_text(expr.a)}, {_numpy_dtype_text(expr)})"
            case Select():
                return self.python_select_text(expr)
            case Load():
                return self.python_load_text(expr)
            case Broadcast() | Pack():
                values = ", ".join(map(self.python_expr_text, operands(expr)))
                return f"np.full({expr.lanes}, [{values}], {_numpy_dtype_text(expr)})"
            case Call():
                return self.python_call_text(expr)
            case Element():
                raise AotcError(
                    "tir-run",
                    f"element of {expr.tensor.name} in a kernel: tensor expressions must be scheduled before they run",
                )
            case _:
                assert_never(expr)

    def python_constant_text(self, expr: Const) -> str:
        if expr.dtype == INDEX and expr.lanes == 1:
            return f"({expr.value})" if expr.value < 0 else str(expr.value)
        if expr.dtype == BOOL and expr.lanes == 1:
            return str(bool(expr.value))
        key = (f"{expr.value!r}x{expr.lanes}", str(expr.dtype))
        if key not in self.name_counts:
            self.name_counts[key] = len(self.constants)
            item = expr.value if expr.dtype.is_float else wrap_to_int64(int(expr.value))
            array = np.full(expr.lanes, item, np.float64 if expr.dtype.is_float else np.int64).astype(expr.dtype.numpy)
            self.constants.append(array if expr.lanes > 1 else array[0])
        return f"const[{self.name_counts[key]}]"

    def python_binary_text(self, expr: Binary) -> str:
        a, b, op = self.python_expr_text(expr.a), self.python_expr_text(expr.b), expr.op
        exact = op in COMPARE or op in ("add", "sub", "mul")
        if op in ("floordiv", "floormod"):
            exact = expr.dtype == INDEX and isinstance(expr.b, Const) and bool(expr.b.value)
        if not exact:
            return f"op_{op}({a}, {b})"
        text = f"({a} {_PYTHON_SYMBOL_OF_OP[op]} {b})"
        data = expr.dtype == INDEX and expr.lanes == 1 and any(isinstance(n, (Load, Cast)) for n in walk_once(expr))
        return f"wrap64{text}" if data else text

    def python_select_text(self, expr: Select) -> str:
        cond = self.python_expr_text(expr.cond)
        if expr.cond.lanes > 1 or not self.lazy:
            return f"np.where({cond}, {self.python_expr_text(expr.a)}, {self.python_expr_text(expr.b)})"
        masked = self.mask and bool(loads_in(expr.cond))  # loads give arrays there
        if self.vector is None or not (masked or self.varies_in_vector_loop(expr.cond)):
            return f"({self.python_expr_text(expr.a)} if {cond} else {self.python_expr_text(expr.b)})"
        outer = self.mask
        name = f"m{len(self.names)}"
        self.names[name] = name
        self.mask = name if not outer else f"({outer} & {name})"
        a = self.python_expr_text(expr.a)
        self.mask = f"~{name}" if not outer else f"({outer} & ~{name})"
        b = self.python_expr_text(expr.b)
        self.mask = outer
        return f"np.where(({name} := np.asarray({cond})), {a}, {b})"

    def python_load_text(self, expr: Load) -> str:
        buffer = self.python_name(expr.buffer)
        index = self.python_index_text(expr.index, expr.lanes, expr.stride)
        several = self.vector is not None and (self.mask or self.varies_in_vector_loop(expr.index))
        function, mask = ("take", f"{self.mask or None}, ") if several or expr.lanes > 1 else ("load", "")
        return f"{function}({buffer}, {index}, {mask}{expr.buffer.name!r})"


def _can_run_as_numpy_operations(loop: For) -> bool:
    """Return True if numpy operations over all iterations give the results of running them in
    order.
    """
    if 0 < (constant_trip_count(loop) or 0) < _MIN_VECTORIZED_ITERATIONS:
        return False
    stmts = straight_line_stmts(loop) if loop.kind != "serial" else None
    if stmts is None or any(n.lanes > 1 for s in stmts for n in all_exprs_in_stmt(s)):
        return False
    if loop.kind == "independent":
        # iterations that reuse one private buffer run one after another
        return not any(b.private for b in written_buffers(loop) & read_buffers(loop))
    if any(isinstance(s, Store) for s in stmts):
        return False
    return all(_can_accumulate_in_numpy(s, stmts) for s in assigns_to_outer_registers(loop.body))


def _can_accumulate_in_numpy(stmt: Assign, stmts: Sequence[Stmt]) -> bool:
    """Return True if numpy can compute the running results of an accumulation in the dtype of the
    register.
    """
    dtype = stmt.var.dtype
    if dtype.is_narrow_float or (dtype.bits < 8 and not dtype.is_bool):
        return False
    alone = sum(isinstance(s, Assign) and s.var is stmt.var for s in stmts) == 1
    op = stmt.value.op if isinstance(stmt.value, Binary) else ""
    return alone and op in _NUMPY_UFUNC_OF_OP and dtype.is_bool == (op in ("and", "or"))
