# SPDX-License-Identifier: Apache-2.0
"""The interpreter of kernels: run a kernel on numpy arrays with every memory access checked.

A kernel becomes Python source; innermost loops whose iterations are independent (or only accumulate)
become numpy operations, with the results that the loop would give, in the loop's order of rounding.

    run_kernel(kernel, [x, w])                 # [y], flat
    run = compile_kernel(kernel)               # for repeated runs: run([x, w])

The threads of a team, or of a GPU block, run one after the other, each from one barrier to the next; blocks run one
after the other.  The 32 threads of a warp synchronize at each warp-level instruction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from operator import itemgetter
from typing import Any, Final, TypeAlias

import numpy as np

from aotc.ir import AotcError, DType, assert_never, frozen
from aotc.tir import OPS, Binary, Bitcast, Broadcast, Element, Intrinsic, Pack, counters, mentioned, operands, walk
from aotc.tir.expr import BOOL, COMPARE, INDEX, Buffer, Call, Cast, Const, Expr, Load, Select, Unary, Var, loads_in
from aotc.tir.functions.function_definition import Function
from aotc.tir.functions.function_table import ROUNDING, definition
from aotc.tir.instruction_table import INSTRUCTIONS, WARP
from aotc.tir.loops.loop_dependence import extent_of, outer_assigns, read, straight_line, written
from aotc.tir.numpy_semantics import NAMESPACE, wrapped
from aotc.tir.stmt import (
    LAUNCHED,
    PART,
    PARTS,
    Assign,
    Block,
    Declare,
    For,
    If,
    Kernel,
    Stmt,
    Store,
    Sync,
    Wait,
    While,
    is_barrier,
    nodes,
    walk_stmts,
    warp_call,
)

Array: TypeAlias = "np.ndarray[Any, Any]"

_INFIX: Final = {op: symbol for symbol, op in OPS.items()}
_ACCUMULATE: Final = {
    "add": "np.add", "mul": "np.multiply", "min": "np.minimum", "max": "np.maximum",
    "and": "np.logical_and", "or": "np.logical_or",
}  # fmt: skip
#: Loops of fewer iterations are not worth a numpy call.
_FEW: Final = 4


def run_kernel(kernel: Kernel, inputs: Sequence[Array], **how: Any) -> list[Array]:
    """Run a kernel on input arrays and return its outputs as flat arrays, in order.

    inputs        one array for each input buffer, of its dtype and size, any shape
    output_init   initial contents of the outputs; by default NaN, or a bit pattern that is unlikely to be a result
    participants  number of threads of the team
    backwards     True to run threads and blocks in reverse order; a kernel whose results depend on this order lacks
                  a barrier

    Raises AotcError (code "tir-run") for wrong arguments, for any access outside a buffer, and for threads that
    do not come to the barriers equally often.
    """
    return compile_kernel(kernel)(inputs, **how)


@frozen
class CompiledKernel:
    """A kernel translated to a Python generator, which yields at barriers; `source` is its Python text."""

    kernel: Kernel
    source: str
    function: Callable[..., Iterator[None]]

    def __call__(
        self,
        inputs: Sequence[Array],
        *,
        output_init: Sequence[Array] | None = None,
        participants: int = 1,
        backwards: bool = False,
    ) -> list[Array]:
        """Run the kernel on `inputs` and return its outputs; the arguments are those of `run_kernel`."""
        kernel = self.kernel
        arguments = _checked(kernel, "input", kernel.inputs, inputs)
        if output_init is None:
            outputs = [_poison(b) for b in kernel.outputs]
        else:
            outputs = [a.copy() for a in _checked(kernel, "output", kernel.outputs, output_init)]
        common = {b: _poison(b) for b in kernel.workspace if b not in kernel.private}
        counts = counters(kernel)
        common |= {b: np.zeros(b.size, b.dtype.numpy) for b in counts}
        for array in arguments:
            array.flags.writeable = False
        order: Callable[[Any], Iterable[Any]] = reversed if backwards else iter
        runs: list[Iterator[None]] = []
        for part in range(participants if kernel.team else 1):
            scratch = [common[b] if b in common else _poison(b) for b in (*kernel.workspace, *kernel.local)]
            runs.append(self.function(*arguments, *outputs, *scratch, part, participants, order, self._take_turns))
        with np.errstate(all="ignore"):
            self._take_turns(order(runs))
        if any(common[b].any() for b in counts):
            raise self._apart("blocks arrive that are not counted to the last")
        return outputs

    def on(self, memory: Sequence[Array]) -> None:
        """Run the kernel in place on one array per parameter; arrays may overlap as `Kernel.overlaps` allows."""
        scratch = [_poison(b) for b in self.kernel.local]
        with np.errstate(all="ignore"):
            self._take_turns([self.function(*memory, *scratch, 0, 1, iter, self._take_turns)])

    def _take_turns(self, threads: Iterable[Iterator[None]]) -> None:
        """Run all threads one after the other from barrier to barrier, until they end."""
        runs = tuple(threads)
        warps = [runs[k : k + WARP] for k in range(0, len(runs), WARP)]
        met = len(runs)
        while met:
            met = sum(map(self._up_to_barrier, warps))
            if met not in (0, len(runs)):
                raise self._apart(f"{met} of {len(runs)} threads wait for the others, who are done")

    def _up_to_barrier(self, warp: Sequence[Iterator[Any]]) -> int:
        """Run the threads of a warp to the next barrier and return how many reach it; the others have ended."""
        while True:
            found = [next(run, self) for run in warp]
            calls = sorted((call for call in found if isinstance(call, list)), key=itemgetter(0))
            if not calls:
                return sum(one is None for one in found)
            meaning = calls[0][1]
            if [call[1] for call in calls] != [meaning] * WARP:
                raise self._apart(f"{len(calls)} threads of a warp come to an instruction of all")
            operands = (np.stack(values) for values in zip(*(call[2:] for call in calls), strict=True))
            for call, result in zip(calls, meaning(*operands), strict=True):
                call[0] = result

    def _apart(self, text: str) -> AotcError:
        return AotcError("tir-run", f"kernel {self.kernel.name}: {text}", span=self.kernel.span)


def compile_kernel(kernel: Kernel) -> CompiledKernel:
    """Translate a kernel to Python; AotcError (code "tir-run") for one that is C source."""
    if kernel.source is not None:
        raise AotcError(
            "tir-run", f"kernel {kernel.name} is C source, which the interpreter cannot run", span=kernel.span
        )
    writer = _Writer()
    writer.kernel(kernel)
    return CompiledKernel(kernel, writer.source, _loaded(writer, kernel.name))


def _loaded(writer: _Writer, name: str) -> Callable[..., Any]:
    """Execute the Python source of a writer and return the function that it defines."""
    meanings = {f"intrinsic_{name}": row.meaning for name, row in INSTRUCTIONS.items()}
    functions = {name: _function(*key) for name, key in writer.functions.items()}
    namespace = dict(NAMESPACE, np=np, begin=_begin, land=_land, const=writer.constants, **meanings, **functions)
    exec(compile(writer.source, f"<tensor program {name}>", "exec"), namespace)
    return namespace["run"]  # type: ignore[no-any-return]


def _begin(copies: list[list[Any]], array: Array, index: Any, value: Any, label: str) -> None:
    """Start an asynchronous copy: poison the destination until the copy completes."""
    places = np.atleast_1d(index)
    rubbish = _poison(Buffer(label, DType(str(array.dtype)), places.size))
    NAMESPACE["put"](array, places, rubbish, label)
    copies[-1].append((array, places, value, label))


def _land(copies: list[list[Any]], groups: int) -> None:
    """Close the current group of asynchronous copies, and complete all but the latest `groups` groups."""
    copies.append([])
    while len(copies) > groups + 1:
        for copy in copies.pop(0):
            NAMESPACE["put"](*copy)


@cache
def _function(name: str, dtype: DType, fused: bool) -> Callable[..., Any]:
    """Return an elementary function (a tensor program) as a Python function of numpy scalars or arrays.

    Results of floats narrower than float32 are rounded once, at the end."""
    function = definition(name, dtype, fused)
    assert function is not None
    writer = _Writer(lazy=False)
    writer.formula(function)
    compute, carrier, convert = _loaded(writer, name), function.result.dtype, NAMESPACE["cast"]
    if not dtype.is_narrow_float:
        return compute
    return lambda *args: convert(compute(*(convert(a, carrier.numpy) for a in args)), dtype.numpy)


def _checked(kernel: Kernel, kind: str, buffers: Sequence[Buffer], arrays: Sequence[Array]) -> list[Array]:
    if len(arrays) != len(buffers):
        raise AotcError("tir-run", f"kernel {kernel.name} has {len(buffers)} {kind}s, got {len(arrays)}")
    for buffer, array in zip(buffers, arrays, strict=True):
        if array.size != buffer.size or array.dtype != buffer.dtype.numpy:
            text = f"{kind} {buffer.name} is {buffer.size} x {buffer.dtype}, got {array.size} x {array.dtype}"
            raise AotcError("tir-run", f"kernel {kernel.name}: {text}")
    return [array.reshape(-1).view() for array in arrays]


def _poison(buffer: Buffer) -> Array:
    if buffer.dtype.is_bool:
        return np.ones(buffer.size, np.bool_)
    if buffer.dtype.is_float:
        return np.full(buffer.size, np.nan, np.float32).astype(buffer.dtype.numpy)
    return np.full(buffer.size, 0x5A, np.int64).astype(buffer.dtype.numpy)


def _dtype(expr: Expr) -> str:
    return f"dtypes[{str(expr.dtype)!r}]"


@dataclass(slots=True)
class _Writer:
    """Writer of Python source for a kernel.

    `vector` is the variable of the loop that is written as numpy operations, `mask` the condition of its loads."""

    lines: list[str] = field(default_factory=list)
    names: dict[object, str] = field(default_factory=dict)
    constants: list[Any] = field(default_factory=list)
    known: dict[tuple[str, str], int] = field(default_factory=dict)
    vector: Var | None = None
    arrays: set[Var] = field(default_factory=set)
    mask: str = ""
    functions: dict[str, tuple[str, DType, bool]] = field(default_factory=dict)
    lazy: bool = True
    fresh: Mapping[str, Sequence[Buffer]] = field(default_factory=dict)
    thread: str = ""

    @property
    def source(self) -> str:
        return "\n".join(self.lines) + "\n"

    def formula(self, function: Function) -> None:
        """Write the straight-line program of an elementary function."""
        self.lines.append(f"def run({', '.join(map(self.name, function.params))}):")
        self.stmt(Block(function.body), 1)
        self.line(1, f"return {self.expr(function.result)}")

    def call(self, call: Call) -> str:
        """Return the Python expression of a call: an elementary function or an instruction.

        Warp-level instructions synchronize the threads of the warp first."""
        dtype, args = call.args[0].dtype, ", ".join(map(self.expr, call.args))
        if INSTRUCTIONS[call.name].warp:
            return f"(met := [{self.thread}, intrinsic_{call.name}, {args}], (yield met), met[0])[2]"
        if call.name in ROUNDING or definition(call.name, dtype) is None:
            return f"intrinsic_{call.name}({args})"
        name = f"function_{call.name}_{dtype}_{int(call.fused)}"
        self.functions[name] = call.name, dtype, call.fused
        return f"{name}({args})"

    def kernel(self, kernel: Kernel) -> None:
        arguments: tuple[Var | Buffer, ...] = (*kernel.params, *kernel.local, PART, PARTS)
        self.lines.append(f"def run({', '.join(map(self.name, arguments))}, order, take_turns):")
        self.fresh = {"block": kernel.shared, "thread": kernel.stack}
        self.stmt(kernel.body, 1)
        self.line(1, "yield")

    def name(self, item: Var | Buffer) -> str:
        if item not in self.names:
            stem = "".join(c if c.isascii() and c.isalnum() else "_" for c in item.name)
            self.names[item] = f"v{len(self.names)}_{stem}"
        return self.names[item]

    def line(self, depth: int, text: str) -> None:
        self.lines.append("    " * depth + text)

    # statements

    def stmt(self, stmt: Stmt, depth: int) -> None:
        match stmt:
            case For():
                self.loop(stmt, depth)
            case While():
                self.nested(f"while {self.expr(stmt.cond)}", stmt.body, depth)
            case If():
                self.nested(f"if {self.expr(stmt.cond)}", stmt.then, depth)
                if stmt.orelse is not None:
                    self.nested("else", stmt.orelse, depth)
            case Store():
                self.store(stmt, depth)
            case Intrinsic():
                self.intrinsic(stmt, depth)
            case Declare() | Assign():
                self.lines += _declared(self, stmt, "    " * depth)
            case Block():
                for inner in stmt.stmts:
                    self.stmt(inner, depth)
            case Sync():
                self.line(depth, "yield")
            case Wait():
                self.line(depth, f"land(copies, {stmt.groups})")
            case _:
                assert_never(stmt)

    def nested(self, head: str, stmt: Stmt, depth: int) -> None:
        self.line(depth, f"{head}:")
        self.stmt(stmt, depth + 1)
        self.line(depth + 1, "pass")

    def loop(self, loop: For, depth: int) -> None:
        span = f"{self.expr(loop.begin)}, {self.expr(loop.end)}, {loop.step}"
        if loop.kind in LAUNCHED:
            self.launched(loop, depth)
        elif self.vector is None and _vectorizable(loop):
            self.line(depth, f"{self.name(loop.var)} = np.arange({span})")
            self.line(depth, f"if {self.name(loop.var)}.size:")
            self.vector = loop.var
            self.arrays = {loop.var}
            for stmt in straight_line(loop) or ():
                self.vector_stmt(stmt, depth + 1)
            self.line(depth + 1, "pass")
            self.vector = None
            self.arrays = set()
        else:
            self.nested(f"for {self.name(loop.var)} in range({span})", loop.body, depth)

    def launched(self, loop: For, depth: int) -> None:
        """Write a loop over blocks or threads, whose private memory starts uninitialized in each iteration."""
        var, span = self.name(loop.var), f"order(range({self.expr(loop.end)}))"
        meets = loop.kind == "thread" and any(is_barrier(s) or warp_call(s) for s in walk_stmts(loop.body))
        self.thread = var if meets else ""
        self.line(depth, f"def thread({var}):" if meets else f"for {var} in {span}:")
        self.line(depth + 1, "copies = [[]]")
        for buffer in self.fresh[loop.kind]:
            self.line(depth + 1, f"{self.name(buffer)} = const[{len(self.constants)}].copy()")
            self.constants.append(_poison(buffer))
        self.stmt(loop.body, depth + 1)
        self.line(depth + 1, "yield" if meets else "pass")
        if meets:
            self.line(depth, f"take_turns(map(thread, {span}))")

    def vector_stmt(self, stmt: Stmt, depth: int) -> None:
        if isinstance(stmt, Declare):
            self.arrays.add(stmt.var)
        if not (isinstance(stmt, Assign) and stmt.var not in self.arrays):
            self.stmt(stmt, depth)
            return
        step = stmt.value
        if not isinstance(step, Binary) or self.vector is None:
            raise AssertionError("not an accumulation")
        name = self.name(stmt.var)
        added = step.b if step.a is stmt.var else step.a
        value = f"np.broadcast_to({self.expr(added)}, {self.name(self.vector)}.size)"
        self.line(depth, f"{name} = accumulate({_ACCUMULATE[step.op]}, {name}, {value}, {_dtype(added)})")

    def store(self, stmt: Store, depth: int) -> None:
        index, value = self.places(stmt.index, stmt.value.lanes), self.expr(stmt.value)
        if self.vector is not None and not self.varies(stmt.index):  # the last iteration's value stays
            index = f"np.full({self.name(self.vector)}.size, {index})"
        function = "store(" if self.vector is None and stmt.value.lanes == 1 else "put("
        function = "begin(copies, " if stmt.asynchronous else function
        self.line(depth, f"{function}{self.name(stmt.buffer)}, {index}, {value}, {stmt.buffer.name!r})")

    def places(self, index: Expr, lanes: int, stride: int = 1) -> str:
        return self.expr(index) if lanes == 1 else f"{self.expr(index)} + np.arange({lanes}) * {stride}"

    def intrinsic(self, stmt: Intrinsic, depth: int) -> None:
        source, target, numbers = stmt.source.buffer, stmt.buffer, f"np.arange({stmt.size})"
        block = f"{numbers}[:, None] * {{}} + {numbers} + {{}}"
        at = block.format(stmt.source_stride, self.expr(stmt.source.index))
        to = block.format(stmt.stride, self.expr(stmt.index))
        made = f"intrinsic_{stmt.name}(take({self.name(source)}, {at}, None, {source.name!r}))"
        self.line(depth, f"put({self.name(target)}, {to}, {made}, {target.name!r})")

    def varies(self, expr: Expr) -> bool:
        """Return True if the value of an expression differs between iterations of the vectorized loop."""
        return any(item in self.arrays for item in mentioned(expr))

    # expressions

    def expr(self, expr: Expr) -> str:
        match expr:
            case Var():
                return self.name(expr)
            case Const():
                return self.constant(expr)
            case Binary():
                return self.binary(expr)
            case Unary():
                return f"op_not({self.expr(expr.a)})" if expr.op == "not" else f"(-{self.expr(expr.a)})"
            case Bitcast():
                return f"np.asarray({self.expr(expr.a)}).view({_dtype(expr)})[()]"
            case Cast():
                return f"cast({self.expr(expr.a)}, {_dtype(expr)})"
            case Select():
                return self.select(expr)
            case Load():
                return self.load(expr)
            case Broadcast() | Pack():
                values = ", ".join(map(self.expr, operands(expr)))
                return f"np.full({expr.lanes}, [{values}], {_dtype(expr)})"
            case Call():
                return self.call(expr)
            case Element():
                raise AotcError(
                    "tir-run",
                    f"element of {expr.tensor.name} in a kernel: tensor expressions must be scheduled before they run",
                )
            case _:
                assert_never(expr)

    def constant(self, expr: Const) -> str:
        if expr.dtype == INDEX and expr.lanes == 1:
            return f"({expr.value})" if expr.value < 0 else str(expr.value)
        if expr.dtype == BOOL and expr.lanes == 1:
            return str(bool(expr.value))
        key = (f"{expr.value!r}x{expr.lanes}", str(expr.dtype))
        if key not in self.known:
            self.known[key] = len(self.constants)
            item = expr.value if expr.dtype.is_float else wrapped(int(expr.value))
            array = np.full(expr.lanes, item, np.float64 if expr.dtype.is_float else np.int64).astype(expr.dtype.numpy)
            self.constants.append(array if expr.lanes > 1 else array[0])
        return f"const[{self.known[key]}]"

    def binary(self, expr: Binary) -> str:
        a, b, op = self.expr(expr.a), self.expr(expr.b), expr.op
        exact = op in COMPARE or op in ("add", "sub", "mul")
        if op in ("floordiv", "floormod"):
            exact = expr.dtype == INDEX and isinstance(expr.b, Const) and bool(expr.b.value)
        if not exact:
            return f"op_{op}({a}, {b})"
        text = f"({a} {_INFIX[op]} {b})"
        data = expr.dtype == INDEX and expr.lanes == 1 and any(isinstance(n, (Load, Cast)) for n in walk(expr))
        return f"wrap64{text}" if data else text

    def select(self, expr: Select) -> str:
        cond = self.expr(expr.cond)
        if expr.cond.lanes > 1 or not self.lazy:
            return f"np.where({cond}, {self.expr(expr.a)}, {self.expr(expr.b)})"
        masked = self.mask and any(loads_in(expr.cond))  # loads give arrays there
        if self.vector is None or not (masked or self.varies(expr.cond)):
            return f"({self.expr(expr.a)} if {cond} else {self.expr(expr.b)})"
        outer = self.mask
        name = f"m{len(self.names)}"
        self.names[name] = name
        self.mask = name if not outer else f"({outer} & {name})"
        a = self.expr(expr.a)
        self.mask = f"~{name}" if not outer else f"({outer} & ~{name})"
        b = self.expr(expr.b)
        self.mask = outer
        return f"np.where(({name} := np.asarray({cond})), {a}, {b})"

    def load(self, expr: Load) -> str:
        buffer = self.name(expr.buffer)
        index = self.places(expr.index, expr.lanes, expr.stride)
        several = self.vector is not None and (self.mask or self.varies(expr.index))
        function, mask = ("take", f"{self.mask or None}, ") if several or expr.lanes > 1 else ("load", "")
        return f"{function}({buffer}, {index}, {mask}{expr.buffer.name!r})"


def _declared(writer: _Writer, stmt: Declare | Assign, pad: str) -> list[str]:
    """Return the lines for a register, including the block counter of a last-block reduction."""
    name, value = writer.name(stmt.var), stmt.value
    match value:
        case Call(name="arrive", args=(Load() as load, blocks)):
            count = f"{writer.name(load.buffer)}[{writer.expr(load.index)}]"
            known = f"{name} = bool({count} == {writer.expr(blocks)})"
            added = f"{count} += {writer.thread} == 0"
            again = f"{count} *= not {name}"
            return [pad + text for text in ("yield", added, "yield", known, "yield", again)]
    return [f"{pad}{name} = {writer.expr(value)}"]


def _vectorizable(loop: For) -> bool:
    """Return True if numpy operations over all iterations give the results of running them in order."""
    if 0 < extent_of(loop) < _FEW:
        return False
    stmts = straight_line(loop) if loop.kind != "serial" else None
    if stmts is None or any(n.lanes > 1 for s in stmts for n in nodes(s)):
        return False
    if loop.kind == "independent":
        return not any(b.private for b in written(loop) & read(loop))  # one iteration fills it after the other
    if any(isinstance(s, Store) for s in stmts):
        return False
    return all(_is_running(s, stmts) for s in outer_assigns(loop.body))


def _is_running(stmt: Assign, stmts: Sequence[Stmt]) -> bool:
    """Return True if numpy can compute the running results of an accumulation in the dtype of the register."""
    dtype = stmt.var.dtype
    if dtype.is_narrow_float or (dtype.bits < 8 and not dtype.is_bool):
        return False
    alone = sum(isinstance(s, Assign) and s.var is stmt.var for s in stmts) == 1
    op = stmt.value.op if isinstance(stmt.value, Binary) else ""
    return alone and op in _ACCUMULATE and dtype.is_bool == (op in ("and", "or"))
