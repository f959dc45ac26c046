# SPDX-License-Identifier: Apache-2.0
"""The parser of kernels in text form (see `aotc.tir.text`).

parse_kernel('kernel "k" { output y: float32[4] for i in 0..4 independent { y[i] = 1.0 } }')
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from aotc.ir import DTYPES, AotcError, DType, Span, frozen
from aotc.tir import BITCAST, FUSED, INSTRUCTIONS, LEVEL, NAMED, OPS, ROLES, UNARY_LEVEL, Binary, Broadcast, Intrinsic
from aotc.tir.expr import BOOL, INDEX, Bitcast, Buffer, Call, Cast, Const, Expr, Load, Pack, Select, Unary, Var
from aotc.tir.stmt import KINDS, TEAM, Assign, Block, Declare, For, If, Kernel, Stmt, Store, Sync, Wait, While

_TOKEN: Final = re.compile(
    r"""(?P<space>\s+|\#[^\n]*)|(?P<string>"(?:[^"\\]|\\.)*")
    |(?P<float>-?\d+\.\d+(?:[eE][+-]?\d+)?|-?\d+[eE][+-]?\d+)|(?P<int>-?\d+)
    |(?P<name>[A-Za-z_][A-Za-z0-9_]*)
    |(?P<op>\.\.|//|<<|>>|<=|>=|==|!=|[-+*/%&|^<>!?:=,()\[\]{}])|(?P<unknown>.)""",
    re.VERBOSE,
)


T = TypeVar("T")


@frozen
class _Token:
    kind: str
    text: str
    line: int


def parse_kernel(text: str, source: str = "<tir>") -> Kernel:
    """Parse the text form of a kernel.

    Raises AotcError (code "tir-parse") with the line of the first thing that cannot be read.
    """
    return _Parser(source, _tokens(text, source)).kernel()


def _tokens(text: str, source: str) -> list[_Token]:
    tokens: list[_Token] = []
    line = 1
    for match in _TOKEN.finditer(text):
        item, kind = match.group(), match.lastgroup or ""
        if kind == "unknown":
            raise AotcError("tir-parse", f"unexpected {item!r}", span=Span(source, line=line))
        if kind in ("int", "float") and item[0] == "-" and tokens and _ends_operand(tokens[-1]):
            tokens.append(_Token("op", "-", line))  # a minus after an operand subtracts
            item = item[1:]
        if kind != "space":
            tokens.append(_Token(kind, item, line))
        line += item.count("\n")
    return [*tokens, _Token("end", "", line)]


def _ends_operand(token: _Token) -> bool:
    return (token.kind in ("int", "float", "name") and token.text != "in") or token.text in (")", "]")


def _type_of(name: str) -> tuple[DType, int] | None:
    """Return the dtype and the number of lanes of a type name such as "float32x8"; None for other names."""
    stem, _, lanes = name.rpartition("x")
    if stem in DTYPES and lanes.isdigit():
        return DType(stem), int(lanes)
    return (DType(name), 1) if name in DTYPES else None


@dataclass(slots=True)
class _Reader:
    """A stream of tokens with a current position."""

    source: str
    tokens: list[_Token]
    position: int = 0

    @property
    def token(self) -> _Token:
        return self.tokens[self.position]

    @property
    def following(self) -> _Token:
        """Return the token after the next one (the end token follows itself)."""
        return self.tokens[min(self.position + 1, len(self.tokens) - 1)]

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

    def after(self, mark: str, read: Callable[[], T]) -> T:
        """Expect a punctuation mark, then return the result of `read`."""
        self.next(mark)
        return read()

    def integer(self) -> int:
        return int(self.next("int"))

    def type(self) -> tuple[DType, int]:
        token = self.token
        found = _type_of(self.next("name"))
        if found is None:
            raise self.fail(f"no type {token.text}", token)
        return found


@dataclass(slots=True)
class _Parser(_Reader):
    """Recursive-descent parser of kernels; `vars` and `buffers` map the names that are visible."""

    vars: dict[str, Var] = field(default_factory=dict)
    buffers: dict[str, Buffer] = field(default_factory=dict)

    def kernel(self) -> Kernel:
        self.next("kernel")
        name = json.loads(self.next("string"))
        self.next("{")
        roles: dict[str, list[Buffer]] = {role: [] for role in ROLES}
        while self.token.text in ROLES:
            role = self.next()
            roles[role].append(self.buffer(role))
        inputs, outputs = (tuple(roles.pop(role)) for role in ROLES[:2])
        facts: dict[str, Any] = {role: tuple(buffers) for role, buffers in roles.items()}
        facts |= {"inplace": (), "overlaps": (), "private": ()}
        for word in ("inplace", "overlaps"):
            while self.accept(word):
                output = self.known_buffer()
                source = self.after("=", self.known_buffer)
                facts[word] += ((outputs.index(output), inputs.index(source)),)
        facts["macs"] = self.integer() if self.accept("macs") else 0
        facts["team"] = self.accept("team")
        if facts["team"]:
            self.vars.update({var.name: var for var in TEAM})
            while self.token.text in self.buffers and self.following.text != "[":
                facts["private"] += (self.known_buffer(),)
        kernel = Kernel(name=name, inputs=inputs, outputs=outputs, body=self.block(), **facts)
        self.next("end")
        return kernel

    def buffer(self, role: str) -> Buffer:
        name = self.next("name")
        dtype, _ = self.after(":", self.type)
        size = self.after("[", self.integer)
        self.next("]")
        align = self.integer() if self.accept("align") else 4
        scope = role if role in ROLES[2:] else "param"
        self.buffers[name] = Buffer(name, dtype, size, scope, align, private=self.accept("private"))
        return self.buffers[name]

    def known_buffer(self) -> Buffer:
        name = self.next("name")
        if name not in self.buffers:
            raise self.fail(f"no buffer {name}")
        return self.buffers[name]

    def declared(self, name: str, dtype: DType, lanes: int) -> Var:
        """Declare a loop variable or register; a name may be reused after its scope has ended."""
        known = self.vars.get(name)
        if known is None or (known.dtype, known.lanes) != (dtype, lanes):
            self.vars[name] = Var(name, dtype, lanes)
        return self.vars[name]

    def variable(self) -> Var:
        name = self.next("name")
        if name not in self.vars:
            raise self.fail(f"no register {name}")
        return self.vars[name]

    # --- statements

    def block(self) -> Stmt:
        """Parse statements up to and including the closing brace."""
        stmts: list[Stmt] = []
        while not self.accept("}"):
            stmts.append(self.stmt())
        return stmts[0] if len(stmts) == 1 else Block(stmts)

    def nested(self) -> Stmt:
        return self.after("{", self.block)

    def stmt(self) -> Stmt:
        if self.accept("sync"):
            return Sync()
        if self.accept("wait"):
            return Wait(self.integer())
        if self.accept("for"):
            return self.loop()
        if self.accept("while"):
            return While(self.expr(), self.nested())
        if self.accept("if"):
            return If(self.expr(), self.nested(), self.nested() if self.accept("else") else None)
        if self.accept("let"):
            return self.declare()
        if self.token.text in INSTRUCTIONS and INSTRUCTIONS[self.token.text].block:
            return self.intrinsic(self.next())
        if self.token.text not in self.buffers:
            return Assign(self.variable(), self.after("=", self.expr))
        buffer, index, *_ = self.place()
        self.next("=")
        asynchronous = self.accept("async")
        return Store(buffer, index, self.expr(), asynchronous)

    def loop(self) -> Stmt:
        var = self.declared(self.next("name"), INDEX, 1)
        begin = self.after("in", self.expr)
        end = self.after("..", self.expr)
        step = self.integer() if self.accept("step") else 1
        kind = self.next() if self.token.text in KINDS else "serial"
        return For(var, end, self.nested(), begin=begin, step=step, kind=kind)

    def declare(self) -> Stmt:
        name = self.next("name")
        dtype, lanes = self.after(":", self.type)
        value = self.after("=", self.expr)
        return Declare(self.declared(name, dtype, lanes), value)

    def intrinsic(self, name: str) -> Stmt:
        buffer, index, *_ = self.place()
        stride = self.after("step", self.integer)
        self.next("=")
        token = self.token
        source = self.expr()
        if not isinstance(source, Load):
            raise self.fail("expected rows of a buffer", token)
        return Intrinsic(name, buffer, index, stride, source, self.after("step", self.integer))

    def place(self) -> tuple[Buffer, Expr, int, int]:
        """Parse `buffer[index:lanes:stride]`; return the buffer, the index, the lanes and the stride."""
        buffer = self.known_buffer()
        index = self.after("[", self.expr)
        lanes = self.integer() if self.accept(":") else 1
        stride = (-1 if self.accept("-") else 1) * self.integer() if self.accept(":") else 1
        self.next("]")
        return buffer, index, lanes, stride

    # --- expressions

    def expr(self) -> Expr:
        cond = self.infix(1)
        if not self.accept("?"):
            return cond
        return Select(cond, self.infix(1), self.after(":", self.expr))

    def infix(self, level: int) -> Expr:
        if level >= UNARY_LEVEL:
            return self.unary()
        left = self.infix(level + 1)
        while self.token.kind == "op" and LEVEL.get(OPS.get(self.token.text, ""), 0) == level:
            op = OPS[self.next()]
            left = Binary(op, left, self.infix(level + 1))
        return left

    def unary(self) -> Expr:
        if self.accept("!"):
            return Unary("not", self.unary())
        if self.accept("("):
            inner = self.expr()
            self.next(")")
            return inner
        token = self.token
        negative = token.text == "-" and self.following.text == "inf"
        if negative or token.kind in ("int", "float") or token.text in ("true", "false", "inf", "nan"):
            return self.literal()
        if token.text in self.buffers:
            return Load(*self.place())
        return self.function() if self.following.text == "(" else self.variable()

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
        behind = self.tokens[self.position + 2 : self.position + 3]
        if self.token.text != ":" or _type_of(self.following.text) is None or any(t.text == "(" for t in behind):
            # what follows may be a conversion, `int32(x)`, behind a selection
            return Const(value, dtype)
        return Const(value, *self.after(":", self.type))

    def function(self) -> Expr:
        start = self.token
        name = self.next("name")
        args = [self.after("(", self.expr)]
        while self.accept(","):
            args.append(self.expr())
        self.next(")")
        match name, args:
            case "broadcast", [a, Const(value=lanes)]:
                return Broadcast(a, int(lanes))
            case "pack", _:
                return Pack(tuple(args))
            case "neg", [a]:
                return Unary(name, a)
            case _, [a, b] if name in NAMED:
                return Binary(name, a, b)
            case _, [a] if name in DTYPES:
                return Cast(DType(name), a)
            case _, [a] if (dtype := name.removeprefix(BITCAST)) in DTYPES and DType(dtype).bits == a.dtype.bits:
                return Bitcast(DType(dtype), a)
        row = INSTRUCTIONS.get(name.removeprefix(FUSED))
        if row is not None and len(row.takes) == len(args):
            return Call(row.name, tuple(args), fused=name != row.name)
        raise self.fail(f"no function {name} of {len(args)} operands", start)
