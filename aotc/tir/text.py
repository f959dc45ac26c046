# SPDX-License-Identifier: Apache-2.0
"""Kernels as text.  A Kernel in, readable text out, and back.

    kernel "relu" {
      input x: float32[32]
      output y: float32[32]
      for i in 0..32 vector { y[i] = max(x[i], 0.0) }
    }

Integer literals are int64 and float literals float32 unless they say otherwise (`1:int8`, `0.5:float64x4`).
`x[i:8]` loads eight lanes, `!a` is logical or bitwise not, `int32(a)` a conversion, `c ? a : b` a selection.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Final

from aotc.ir.diagnostics import AotcError, assert_never
from aotc.ir.dtype import DTYPES, DType
from aotc.ir.span import Span
from aotc.tir.expr import (
    BOOL,
    INDEX,
    INTRINSICS,
    Binary,
    Broadcast,
    Buffer,
    Call,
    Cast,
    Const,
    Element,
    Expr,
    Load,
    Select,
    Unary,
    Var,
    operands,
)
from aotc.tir.stmt import (
    KINDS,
    TEAM,
    Assign,
    Block,
    Comment,
    Declare,
    For,
    If,
    Kernel,
    Stmt,
    Store,
    Sync,
    Transpose,
    While,
)

_SYMBOLS: Final = {
    "or": "|", "xor": "^", "and": "&", "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
    "shl": "<<", "shr": ">>", "add": "+", "sub": "-", "mul": "*", "div": "/", "floordiv": "//", "floormod": "%",
}  # fmt: skip
_LEVELS: Final = (("or",), ("xor",), ("and",), ("eq", "ne", "lt", "le", "gt", "ge"), ("shl", "shr"),
                  ("add", "sub"), ("mul", "div", "floordiv", "floormod"))  # fmt: skip
_LEVEL: Final = {op: k + 1 for k, ops in enumerate(_LEVELS) for op in ops}
_OPS: Final = {symbol: op for op, symbol in _SYMBOLS.items()}
_UNARY_LEVEL: Final = len(_LEVELS) + 1
_NAMED: Final = ("min", "max", "truncdiv", "truncmod")
_WORDS: Final = (
    "kernel input output workspace stack align private inplace macs team for in step while if else let turn sync "
    "true false inf nan neg broadcast"
)
_KEYWORDS: Final = frozenset(re.findall(r"\w+", _WORDS)).union(KINDS, _NAMED, INTRINSICS, DTYPES)
_ROLES: Final = ("input", "output", "workspace", "stack")


def to_text(kernel: Kernel) -> str:
    """The kernel in its text form.  Names are made unique identifiers; the span becomes a comment."""
    printer = _Printer()
    head = [] if kernel.span is None else [f"# {_one_line(str(kernel.span))}"]
    head.append(f"kernel {json.dumps(kernel.name)} {{")
    roles = (kernel.inputs, kernel.outputs, kernel.workspace, kernel.stack)
    for role, buffers in zip(_ROLES, roles, strict=True):
        for b in buffers:
            private = " private" if b.private else ""
            printer.line(1, f"{role} {printer.name(b)}: {b.dtype}[{b.size}] align {b.align}{private}")
    for output, source in kernel.inplace:
        printer.line(1, f"inplace {printer.name(kernel.outputs[output])} = {printer.name(kernel.inputs[source])}")
    if kernel.macs:
        printer.line(1, f"macs {kernel.macs}")
    if kernel.team:
        printer.names.update({var: printer.name(var) for var in TEAM})
        printer.line(1, " ".join(("team", *map(printer.name, kernel.private))))
    printer.stmt(kernel.body, 1)
    return "\n".join([*head, *printer.lines, "}"]) + "\n"


def _one_line(text: str) -> str:
    return " ".join(text.split())


@dataclass(slots=True)
class _Printer:
    lines: list[str] = field(default_factory=list)
    names: dict[Var | Buffer, str] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)

    def name(self, item: Var | Buffer) -> str:
        if item not in self.names:
            stem = re.sub(r"[^A-Za-z0-9_]", "_", item.name)
            stem = stem if stem and not stem[0].isdigit() else f"_{stem}"
            name, count = stem, 1
            while name in self.taken or name in _KEYWORDS:
                count += 1
                name = f"{stem}_{count}"
            self.taken.add(name)
            self.names[item] = name
        return self.names[item]

    def line(self, depth: int, text: str) -> None:
        self.lines.append("  " * depth + text)

    def stmt(self, stmt: Stmt, depth: int) -> None:
        match stmt:
            case For():
                step = f" step {stmt.step}" if stmt.step != 1 else ""
                kind = f" {stmt.kind}" if stmt.kind != "serial" else ""
                ends = f"{self.expr(stmt.begin)}..{self.expr(stmt.end)}"
                self.line(depth, f"for {self.name(stmt.var)} in {ends}{step}{kind} {{")
                self.nested(stmt.body, depth)
            case While():
                self.line(depth, f"while {self.expr(stmt.cond)} {{")
                self.nested(stmt.body, depth)
            case If():
                self.line(depth, f"if {self.expr(stmt.cond)} {{")
                self.nested(stmt.then, depth)
                if stmt.orelse is not None:
                    self.lines[-1] += " else {"
                    self.nested(stmt.orelse, depth)
            case Store():
                self.line(depth, f"{self.name(stmt.buffer)}[{self.expr(stmt.index)}] = {self.expr(stmt.value)}")
            case Transpose():
                to, source = f"{self.name(stmt.buffer)}[{self.expr(stmt.index)}]", self.expr(stmt.source)
                self.line(depth, f"turn {to} step {stmt.stride} = {source} step {stmt.source_stride}")
            case Declare():
                value = self.expr(stmt.value)
                self.line(depth, f"let {self.name(stmt.var)}: {_type(stmt.var)} = {value}")
            case Assign():
                self.line(depth, f"{self.name(stmt.var)} = {self.expr(stmt.value)}")
            case Block():
                for inner in stmt.stmts:
                    self.stmt(inner, depth)
            case Comment() | Sync():
                self.line(depth, "sync" if isinstance(stmt, Sync) else f"# {_one_line(stmt.text)}".rstrip())
            case _:
                assert_never(stmt)

    def nested(self, stmt: Stmt, depth: int) -> None:
        self.stmt(stmt, depth + 1)
        self.line(depth, "}")

    def expr(self, expr: Expr, level: int = 0) -> str:
        """The text of an expression, in parentheses if it binds less tightly than `level`."""
        text, own = self.bare(expr)
        return text if own >= level else f"({text})"

    def bare(self, expr: Expr) -> tuple[str, int]:
        """The text of an expression and how tightly its outermost operator binds."""
        match expr:
            case Binary(op=op) if op in _SYMBOLS:
                level = _LEVEL[op]
                return f"{self.expr(expr.a, level)} {_SYMBOLS[op]} {self.expr(expr.b, level + 1)}", level
            case Unary(op="not"):
                return f"!{self.expr(expr.a, _UNARY_LEVEL)}", _UNARY_LEVEL
            case Select():
                return f"{self.expr(expr.cond, 1)} ? {self.expr(expr.a, 1)} : {self.expr(expr.b)}", 0
            case _:
                return self.atom(expr), _UNARY_LEVEL + 1

    def atom(self, expr: Expr) -> str:
        match expr:
            case Var():
                return self.name(expr)
            case Const():
                return _literal(expr)
            case Load():
                lanes = f":{expr.lanes}" if expr.lanes > 1 else ""
                return f"{self.name(expr.buffer)}[{self.expr(expr.index)}{lanes}]"
            case Broadcast():
                return f"broadcast({self.expr(expr.a)}, {expr.lanes})"
            case Element():
                return f"{expr.tensor.name}<{', '.join(map(self.expr, expr.indices))}>"
            case Cast():
                return self.applied(expr.dtype, expr)
            case Call():
                return self.applied(expr.name, expr)
            case Binary() | Unary():
                return self.applied(expr.op, expr)
            case Select():
                return self.expr(expr)
            case _:
                assert_never(expr)

    def applied(self, name: str, expr: Expr) -> str:
        return f"{name}({', '.join(map(self.expr, operands(expr)))})"


def _type(value: Var | Const) -> str:
    return f"{value.dtype}x{value.lanes}" if value.lanes > 1 else str(value.dtype)


def _literal(expr: Const) -> str:
    text = str(expr.value).lower() if isinstance(expr.value, bool) else repr(expr.value)
    plain = expr.lanes == 1 and (
        (expr.dtype == INDEX and isinstance(expr.value, int))
        or (expr.dtype == "float32" and isinstance(expr.value, float))
        or (expr.dtype == BOOL and isinstance(expr.value, bool))
    )
    return text if plain else f"{text}:{_type(expr)}"


_TOKEN: Final = re.compile(
    r"""(?P<comment>\#[^\n]*)|(?P<string>"(?:[^"\\]|\\.)*")
    |(?P<float>-?\d+\.\d+(?:[eE][+-]?\d+)?|-?\d+[eE][+-]?\d+)|(?P<int>-?\d+)
    |(?P<name>[A-Za-z_][A-Za-z0-9_]*)
    |(?P<op>\.\.|//|<<|>>|<=|>=|==|!=|[-+*/%&|^<>!?:=,()\[\]{}])|(?P<space>\s+)""",
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    line: int


def parse_kernel(text: str, source: str = "<tir>") -> Kernel:
    """The kernel that a text describes.

    Raises AotcError (code "tir-parse") with the line of the first thing that cannot be read.
    """
    return _Parser(source, _tokens(text, source)).kernel()


def _tokens(text: str, source: str) -> list[_Token]:
    tokens: list[_Token] = []
    position, line = 0, 1
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None or match.lastgroup is None:
            raise AotcError("tir-parse", f"unexpected {text[position]!r}", span=Span(source, line=line))
        item, kind = match.group(), match.lastgroup
        if kind in ("int", "float") and item[0] == "-" and tokens and _ends_operand(tokens[-1]):
            item, kind = "-", "op"  # a minus after an operand subtracts
        if kind != "space":
            tokens.append(_Token(kind, item, line))
        line += item.count("\n")
        position += len(item)
    return [*tokens, _Token("end", "", line)]


def _ends_operand(token: _Token) -> bool:
    return (token.kind in ("int", "float", "name") and token.text != "in") or token.text in (")", "]")


@dataclass(slots=True)
class _Parser:
    source: str
    tokens: list[_Token]
    position: int = 0
    vars: dict[str, Var] = field(default_factory=dict)
    buffers: dict[str, Buffer] = field(default_factory=dict)

    # tokens

    @property
    def token(self) -> _Token:
        return self.tokens[self.position]

    def fail(self, message: str, token: _Token | None = None) -> AotcError:
        return AotcError("tir-parse", message, span=Span(self.source, line=(token or self.token).line))

    def next(self, *expected: str) -> str:
        token = self.token
        if expected and token.text not in expected and token.kind not in expected:
            raise self.fail(f"expected {' or '.join(expected)}, found {token.text or 'the end'}")
        self.position += 1
        return token.text

    def accept(self, text: str) -> bool:
        if self.token.text == text and self.token.kind != "string":
            self.position += 1
            return True
        return False

    def integer(self) -> int:
        return int(self.next("int"))

    # kernel

    def kernel(self) -> Kernel:
        while self.token.kind == "comment":
            self.position += 1
        self.next("kernel")
        name = json.loads(self.next("string"))
        self.next("{")
        roles: dict[str, list[Buffer]] = {role: [] for role in _ROLES}
        while self.token.text in _ROLES:
            role = self.next()
            roles[role].append(self.buffer(role))
        inplace: list[tuple[int, int]] = []
        while self.accept("inplace"):
            output = self.known_buffer()
            self.next("=")
            inplace.append((roles["output"].index(output), roles["input"].index(self.known_buffer())))
        macs = self.integer() if self.accept("macs") else 0
        private: list[Buffer] = []
        if team := self.accept("team"):
            self.vars.update({var.name: var for var in TEAM})
            while self.token.text in self.buffers and self.tokens[self.position + 1].text != "[":
                private.append(self.known_buffer())
        body = self.block()
        self.next("end")
        inputs, outputs, workspace, stack = (tuple(roles[r]) for r in _ROLES)
        return Kernel(
            name=name,
            inputs=inputs,
            outputs=outputs,
            body=body,
            workspace=workspace,
            stack=stack,
            inplace=tuple(inplace),
            macs=macs,
            team=team,
            private=tuple(private),
        )

    def buffer(self, role: str) -> Buffer:
        name = self.next("name")
        self.next(":")
        dtype = self.type()[0]
        self.next("[")
        size = self.integer()
        self.next("]")
        align = self.integer() if self.accept("align") else 4
        scope = role if role in ("workspace", "stack") else "param"
        self.buffers[name] = Buffer(name, dtype, size, scope, align, private=self.accept("private"))
        return self.buffers[name]

    def known_buffer(self) -> Buffer:
        name = self.next("name")
        if name not in self.buffers:
            raise self.fail(f"no buffer {name}")
        return self.buffers[name]

    # statements

    def block(self) -> Stmt:
        """Statements up to the closing brace, which is taken too."""
        stmts: list[Stmt] = []
        while not self.accept("}"):
            stmts.append(self.stmt())
        return stmts[0] if len(stmts) == 1 else Block(stmts)

    def stmt(self) -> Stmt:
        if self.token.kind == "comment":
            return Comment(self.next()[1:].strip())
        if self.token.text == "sync":
            self.next()
            return Sync()
        match self.token.text:
            case "for":
                return self.loop()
            case "while":
                self.position += 1
                cond = self.expr()
                self.next("{")
                return While(cond, self.block())
            case "if":
                return self.branch()
            case "let":
                return self.declare()
            case "turn":
                return self.turn()
            case _:
                return self.store_or_assign()

    def loop(self) -> For:
        self.next("for")
        var = self.declared(self.next("name"), INDEX, 1)
        self.next("in")
        begin = self.expr()
        self.next("..")
        end = self.expr()
        step = self.integer() if self.accept("step") else 1
        kind = self.next() if self.token.text in KINDS else "serial"
        self.next("{")
        return For(var, end, self.block(), begin=begin, step=step, kind=kind)

    def branch(self) -> If:
        self.next("if")
        cond = self.expr()
        self.next("{")
        then = self.block()
        orelse: Stmt | None = None
        if self.accept("else"):
            self.next("{")
            orelse = self.block()
        return If(cond, then, orelse)

    def declare(self) -> Declare:
        self.next("let")
        name = self.next("name")
        self.next(":")
        dtype, lanes = self.type()
        self.next("=")
        value = self.expr()
        return Declare(self.declared(name, dtype, lanes), value)

    def declared(self, name: str, dtype: DType, lanes: int) -> Var:
        """The variable of a loop or register; one that went out of sight may be declared again."""
        known = self.vars.get(name)
        if known is None or (known.dtype, known.lanes) != (dtype, lanes):
            self.vars[name] = Var(name, dtype, lanes)
        return self.vars[name]

    def turn(self) -> Transpose:
        self.next("turn")
        buffer = self.known_buffer()
        self.next("[")
        index = self.expr()
        self.next("]")
        self.next("step")
        stride = self.integer()
        self.next("=")
        token = self.token
        source = self.expr()
        if not isinstance(source, Load):
            raise self.fail("expected rows of a buffer", token)
        self.next("step")
        return Transpose(buffer, index, stride, source, self.integer())

    def store_or_assign(self) -> Stmt:
        if self.token.text in self.buffers:
            buffer = self.known_buffer()
            self.next("[")
            index = self.expr()
            self.next("]")
            self.next("=")
            return Store(buffer, index, self.expr())
        var = self.variable()
        self.next("=")
        return Assign(var, self.expr())

    def variable(self) -> Var:
        name = self.next("name")
        if name not in self.vars:
            raise self.fail(f"no register {name}")
        return self.vars[name]

    def type(self) -> tuple[DType, int]:
        token = self.token
        name = self.next("name")
        stem, _, lanes = name.rpartition("x")
        if stem in DTYPES and lanes.isdigit():
            return DType(stem), int(lanes)
        if name not in DTYPES:
            raise self.fail(f"no type {name}", token)
        return DType(name), 1

    # expressions

    def expr(self) -> Expr:
        cond = self.infix(1)
        if not self.accept("?"):
            return cond
        a = self.infix(1)
        self.next(":")
        return Select(cond, a, self.expr())

    def infix(self, level: int) -> Expr:
        if level >= _UNARY_LEVEL:
            return self.unary()
        left = self.infix(level + 1)
        while self.token.kind == "op" and _LEVEL.get(_OPS.get(self.token.text, ""), 0) == level:
            op = _OPS[self.next()]
            left = Binary(op, left, self.infix(level + 1))
        return left

    def unary(self) -> Expr:
        if self.accept("!"):
            return Unary("not", self.unary())
        if self.accept("("):
            inner = self.expr()
            self.next(")")
            return inner
        return self.primary()

    def primary(self) -> Expr:
        token = self.token
        negative = token.text == "-" and self.tokens[self.position + 1].text == "inf"
        if negative or token.kind in ("int", "float") or token.text in ("true", "false", "inf", "nan"):
            return self.literal()
        if token.text in self.buffers:
            return self.load()
        if self.tokens[self.position + 1].text == "(":
            return self.function()
        return self.variable()

    def literal(self) -> Const:
        sign = "-" if self.accept("-") else ""
        text = sign + self.next()
        value: int | float | bool
        if text in ("true", "false"):
            value, dtype = text == "true", BOOL
        elif re.fullmatch(r"-?\d+", text):
            value, dtype = int(text), INDEX
        else:
            value, dtype = float(text), DType("float32")
        if self.token.text == ":" and self.is_type(self.position + 1):
            self.position += 1
            dtype, lanes = self.type()
            return Const(value, dtype, lanes)
        return Const(value, dtype)

    def is_type(self, position: int) -> bool:
        """Whether a type stands at a position; followed by a parenthesis it is a conversion."""
        name = self.tokens[position].text
        if self.tokens[position + 1].text == "(":
            return False
        stem, _, lanes = name.rpartition("x")
        return name in DTYPES or (stem in DTYPES and lanes.isdigit())

    def load(self) -> Load:
        buffer = self.known_buffer()
        self.next("[")
        index = self.expr()
        lanes = self.integer() if self.accept(":") else 1
        self.next("]")
        return Load(buffer, index, lanes)

    def function(self) -> Expr:
        start = self.token
        name = self.next("name")
        self.next("(")
        args = [self.expr()]
        while self.accept(","):
            if name == "broadcast":
                lanes = self.integer()
                self.next(")")
                return Broadcast(args[0], lanes)
            args.append(self.expr())
        self.next(")")
        if name in _NAMED and len(args) == 2:
            return Binary(name, args[0], args[1])
        if name == "neg" and len(args) == 1:
            return Unary("neg", args[0])
        if name in DTYPES and len(args) == 1:
            return Cast(DType(name), args[0])
        if INTRINSICS.get(name) == len(args):
            return Call(name, tuple(args))
        raise self.fail(f"no function {name} of {len(args)} operands", start)
