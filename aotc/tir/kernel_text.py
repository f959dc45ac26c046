# SPDX-License-Identifier: Apache-2.0
"""The text form of kernels: print a kernel as text that `aotc.tir.kernel_parser` reads back.

    kernel "relu" {
      input x: float32[32]
      output y: float32[32]
      number n: int64 in [1, 32]
      for i in 0..n independent { y[i] = max(x[i], 0.0) }
    }

Integer literals are int64 and float literals float32 unless they say otherwise (`1:int8`,
`0.5:float64x4`). `x[i:8]` loads eight lanes, `x[i:8:2]` every second element, `!a` is logical or
bitwise not, `int32(a)` a conversion, `bitcast_int32(a)` a reinterpretation of bits, `c ? a : b` a
selection, `pack(a, b)` a vector of two scalars. `y[0] = name(x[0:8])` and `let r: int32 = name(a)` are
statements, too, where the table has an instruction of this name that accesses memory or waits for threads
(`aotc.tir.stmt.Execute`); one without a result is `name a`. A comment begins with `#` and ends with the line.
"""

import json
import re
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from aotc.ir import DTYPES, DType, assert_never
from aotc.tir import INSTRUCTIONS, Binary, Bitcast, Broadcast, Call, operands
from aotc.tir.expr import BOOL, INDEX, Buffer, Cast, Const, Element, Expr, Load, Pack, Select, Unary, Var
from aotc.tir.stmt import (
    LOOP_KINDS,
    TEAM_VARS,
    Assign,
    Block,
    Declare,
    Destination,
    Execute,
    For,
    If,
    Kernel,
    Stmt,
    Store,
    While,
)

_SYMBOLS: Final = {
    "or": "|", "xor": "^", "and": "&", "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
    "shl": "<<", "shr": ">>", "add": "+", "sub": "-", "mul": "*", "div": "/", "floordiv": "//", "floormod": "%",
}  # fmt: skip
_OPS_BY_PRECEDENCE: Final = (("or",), ("xor",), ("and",), ("eq", "ne", "lt", "le", "gt", "ge"), ("shl", "shr"),
                  ("add", "sub"), ("mul", "div", "floordiv", "floormod"))  # fmt: skip
PRECEDENCE_OF_OP: Final = {op: k + 1 for k, ops in enumerate(_OPS_BY_PRECEDENCE) for op in ops}
OP_OF_SYMBOL: Final = {symbol: op for op, symbol in _SYMBOLS.items()}
UNARY_PRECEDENCE: Final = len(_OPS_BY_PRECEDENCE) + 1
#: What stands in front of a type, or of a function.
BITCAST_PREFIX: Final = "bitcast_"
FUSED_PREFIX: Final = "fused_"
FUNCTION_STYLE_OPS: Final = ("min", "max", "truncdiv", "truncmod")
_RESERVED_WORDS: Final = (
    "kernel input output workspace stack shared number align private inplace overlaps macs team for in step while if "
    "else let true false inf nan neg broadcast"
)
#: What loops say of their iterations, where these are not launched.
_LOOP_KIND_PATTERN: Final = re.compile(r" (?:independent|reduction|serial) \{$", re.MULTILINE)
_KEYWORDS: Final = frozenset(re.findall(r"\w+", _RESERVED_WORDS)).union(
    LOOP_KINDS, FUNCTION_STYLE_OPS, INSTRUCTIONS, DTYPES
)
BUFFER_ROLES: Final = ("input", "output", "workspace", "stack", "shared")


def to_text(kernel: Kernel) -> str:
    """Return the text form of a kernel.  Names become unique identifiers; the span becomes a
    comment.
    """
    printer = _KernelPrinter()
    head = [] if kernel.span is None else [f"# {' '.join(str(kernel.span).split())}"]
    head.append(f"kernel {json.dumps(kernel.name)} {{")
    roles = (kernel.inputs, kernel.outputs, kernel.workspace, kernel.stack, kernel.shared)
    for role, buffers in zip(BUFFER_ROLES, roles, strict=True):
        for b in buffers:
            private = " private" if b.private else ""
            printer.append_line(1, f"{role} {printer.unique_name(b)}: {b.dtype}[{b.size}] align {b.align}{private}")
    for number in kernel.numbers:
        name, (least, most) = (
            printer.unique_name(number.var),
            map(partial(_number_text, number.var.dtype), number.interval),
        )
        printer.append_line(1, f"number {name}: {_type_text(number.var)} in [{least}, {most}]")
    for word, pairs in (("inplace", kernel.inplace), ("overlaps", kernel.overlaps)):
        for output, source in pairs:
            printer.append_line(
                1,
                f"{word} {printer.unique_name(kernel.outputs[output])} = {printer.unique_name(kernel.inputs[source])}",
            )
    if kernel.macs:
        printer.append_line(1, f"macs {kernel.macs}")
    if kernel.team:
        printer.names.update({var: printer.unique_name(var) for var in TEAM_VARS})
        printer.append_line(1, " ".join(("team", *map(printer.unique_name, kernel.private))))
    printer.print_stmt(kernel.body, 1)
    return "\n".join([*head, *printer.lines, "}"]) + "\n"


def strip_loop_kinds(text: str) -> str:
    """Remove the kinds of loops ("independent", "reduction", ...) from the text of a kernel."""
    return _LOOP_KIND_PATTERN.sub(" {", text)


@dataclass(slots=True)
class _KernelPrinter:
    lines: list[str] = field(default_factory=list)
    names: dict[Var | Buffer, str] = field(default_factory=dict)
    used_names: set[str] = field(default_factory=set)

    def unique_name(self, item: Var | Buffer) -> str:
        if item not in self.names:
            stem = re.sub(r"[^A-Za-z0-9_]", "_", item.name)
            stem = stem if stem and not stem[0].isdigit() else f"_{stem}"
            name, count = stem, 1
            while name in self.used_names or name in _KEYWORDS:
                count += 1
                name = f"{stem}_{count}"
            self.used_names.add(name)
            self.names[item] = name
        return self.names[item]

    def append_line(self, depth: int, text: str) -> None:
        self.lines.append("  " * depth + text)

    def print_stmt(self, stmt: Stmt, depth: int) -> None:
        match stmt:
            case For():
                step = f" step {stmt.step}" if stmt.step != 1 else ""
                kind = f" {stmt.kind}" if stmt.kind != "serial" else ""
                ends = f"{self.expr_text(stmt.begin)}..{self.expr_text(stmt.end)}"
                self.print_braced_stmt(f"for {self.unique_name(stmt.var)} in {ends}{step}{kind}", stmt.body, depth)
            case While():
                self.print_braced_stmt(f"while {self.expr_text(stmt.cond)}", stmt.body, depth)
            case If():
                self.print_braced_stmt(f"if {self.expr_text(stmt.cond)}", stmt.then, depth)
                if stmt.orelse is not None:
                    self.lines.pop()
                    self.print_braced_stmt("} else", stmt.orelse, depth)
            case Store():
                self.append_line(depth, f"{self.element_text(stmt)} = {self.expr_text(stmt.value)}")
            case Execute():
                self.append_line(depth, self.instruction_text(stmt))
            case Declare():
                # the value is printed first: it cannot mention the register
                value = self.expr_text(stmt.value)
                self.append_line(depth, f"{self.declaration_text(stmt.var)} = {value}")
            case Assign():
                self.append_line(depth, f"{self.unique_name(stmt.var)} = {self.expr_text(stmt.value)}")
            case Block():
                for inner in stmt.stmts:
                    self.print_stmt(inner, depth)
            case _:
                assert_never(stmt)

    def element_text(self, place: Store | Destination) -> str:
        """Return the element of a buffer from which on a statement writes."""
        return f"{self.unique_name(place.buffer)}[{self.expr_text(place.index)}]"

    def declaration_text(self, register: Var) -> str:
        return f"let {self.unique_name(register)}: {_type_text(register)}"

    def instruction_text(self, stmt: Execute) -> str:
        """Return the text of an instruction: `y[0] = name(a, b)`, `let r: int32 = name(a)`, or
        `name a` for one without a result.
        """
        operand_texts = ", ".join(map(self.expr_text, stmt.operands))
        match stmt.result:
            case None:
                return f"{stmt.instruction} {operand_texts}".rstrip()
            case Var() as register:
                result = self.declaration_text(register)
            case destination:
                result = self.element_text(destination)
        return f"{result} = {stmt.instruction}({operand_texts})"

    def print_braced_stmt(self, head: str, stmt: Stmt, depth: int) -> None:
        self.append_line(depth, f"{head} {{")
        self.print_stmt(stmt, depth + 1)
        self.append_line(depth, "}")

    def expr_text(self, expr: Expr, min_precedence: int = 0) -> str:
        """Return the text of an expression, in parentheses if its precedence is below
        `min_precedence`.
        """
        text, precedence = self.expr_text_and_precedence(expr)
        return text if precedence >= min_precedence else f"({text})"

    def expr_text_and_precedence(self, expr: Expr) -> tuple[str, int]:
        """Return the text of an expression and the precedence of its outermost operator."""
        match expr:
            case Binary(op=op) if op in _SYMBOLS:
                level = PRECEDENCE_OF_OP[op]
                return f"{self.expr_text(expr.a, level)} {_SYMBOLS[op]} {self.expr_text(expr.b, level + 1)}", level
            case Unary(op="not"):
                return f"!{self.expr_text(expr.a, UNARY_PRECEDENCE)}", UNARY_PRECEDENCE
            case Select():
                return f"{self.expr_text(expr.cond, 1)} ? {self.expr_text(expr.a, 1)} : {self.expr_text(expr.b)}", 0
            case Var() | Const():
                text = self.unique_name(expr) if isinstance(expr, Var) else _literal_text(expr)
            case Load():
                lanes = f":{expr.lanes}" if expr.lanes > 1 else ""
                lanes += f":{expr.stride}" if expr.stride != 1 else ""
                text = f"{self.unique_name(expr.buffer)}[{self.expr_text(expr.index)}{lanes}]"
            case Broadcast():
                text = f"broadcast({self.expr_text(expr.a)}, {expr.lanes})"
            case Pack():
                text = f"pack({', '.join(map(self.expr_text, expr.parts))})"
            case Bitcast():
                text = f"{BITCAST_PREFIX}{expr.dtype}({self.expr_text(expr.a)})"
            case Element():
                text = f"{expr.tensor.name}<{', '.join(map(self.expr_text, expr.indices))}>"
            case Call(fused=True):
                text = f"{FUSED_PREFIX}{expr.name}({', '.join(map(self.expr_text, expr.args))})"
            case Cast(dtype=name) | Call(name=name) | Binary(op=name) | Unary(op=name):
                text = f"{name}({', '.join(map(self.expr_text, operands(expr)))})"
            case _:
                assert_never(expr)
        return text, UNARY_PRECEDENCE + 1


def _number_text(dtype: DType, value: int | float) -> str:
    return _literal_text(Const(value, dtype))


def _type_text(value: Var | Const) -> str:
    return f"{value.dtype}x{value.lanes}" if value.lanes > 1 else str(value.dtype)


def _literal_text(expr: Const) -> str:
    text = str(expr.value).lower() if isinstance(expr.value, bool) else repr(expr.value)
    kinds = {INDEX: int, "float32": float, BOOL: bool}
    plain = expr.lanes == 1 and isinstance(expr.value, kinds.get(expr.dtype, ()))
    return text if plain else f"{text}:{_type_text(expr)}"
