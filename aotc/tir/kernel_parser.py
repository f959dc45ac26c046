# SPDX-License-Identifier: Apache-2.0
"""The parser of kernels in text form (see `aotc.tir.kernel_text`).

parse_kernel('kernel "k" { output y: float32[4] for i in 0..4 independent { y[i] = 1.0 } }')
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeGuard, TypeVar

from aotc.ir import DTYPES, AotcError, DType, Span, frozen
from aotc.tir import (
    BITCAST_PREFIX,
    BUFFER_ROLES,
    FUNCTION_STYLE_OPS,
    FUSED_PREFIX,
    INSTRUCTIONS,
    OP_OF_SYMBOL,
    PRECEDENCE_OF_OP,
    UNARY_PRECEDENCE,
    Binary,
    Broadcast,
)
from aotc.tir.expr import BOOL, INDEX, Bitcast, Buffer, Call, Cast, Const, Expr, Load, Pack, Select, Unary, Var
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
    Number,
    Stmt,
    Store,
    While,
)

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
    return _KernelParser(source, _tokenize(text, source)).parse_whole_kernel()


def _tokenize(text: str, source: str) -> list[_Token]:
    tokens: list[_Token] = []
    line = 1
    for match in _TOKEN.finditer(text):
        item, kind = match.group(), match.lastgroup or ""
        if kind == "unknown":
            raise AotcError("tir-parse", f"unexpected {item!r}", span=Span(source, line=line))
        if kind in ("int", "float") and item[0] == "-" and tokens and _can_be_last_token_of_operand(tokens[-1]):
            tokens.append(_Token("op", "-", line))  # a minus after an operand subtracts
            item = item[1:]
        if kind != "space":
            tokens.append(_Token(kind, item, line))
        line += item.count("\n")
    return [*tokens, _Token("end", "", line)]


def _can_be_last_token_of_operand(token: _Token) -> bool:
    return (token.kind in ("int", "float", "name") and token.text != "in") or token.text in (")", "]")


def _parse_type_name(name: str) -> tuple[DType, int] | None:
    """Return the dtype and the number of lanes of a type name such as "float32x8"; None for other
    names.
    """
    stem, _, lanes = name.rpartition("x")
    if stem in DTYPES and lanes.isdigit():
        return DType(stem), int(lanes)
    return (DType(name), 1) if name in DTYPES else None


def _is_statement(value: Expr) -> TypeGuard[Call]:
    """Return True if a value is a call of an instruction that is a statement."""
    return isinstance(value, Call) and INSTRUCTIONS[value.name].execution is not None


@dataclass(slots=True)
class _TokenReader:
    """A stream of tokens with a current position."""

    source: str
    tokens: list[_Token]
    position: int = 0

    @property
    def current_token(self) -> _Token:
        return self.tokens[self.position]

    @property
    def token_after_current(self) -> _Token:
        """Return the token after the next one (the end token follows itself)."""
        return self.tokens[min(self.position + 1, len(self.tokens) - 1)]

    def parse_error(self, message: str, token: _Token | None = None) -> AotcError:
        return AotcError("tir-parse", message, span=Span(self.source, line=(token or self.current_token).line))

    def expect_token(self, *expected: str) -> str:
        token = self.current_token
        if expected and token.text not in expected and token.kind not in expected:
            raise self.parse_error(f"expected {' or '.join(expected)}, found {token.text or 'the end'}")
        self.position += 1
        return token.text

    def accept_token(self, text: str) -> bool:
        if self.current_token.text == text and self.current_token.kind != "string":
            self.position += 1
            return True
        return False

    def expect_then_read(self, punctuation: str, read: Callable[[], T]) -> T:
        """Expect a punctuation mark, then return the result of `read`."""
        self.expect_token(punctuation)
        return read()

    def parse_integer(self) -> int:
        return int(self.expect_token("int"))

    def parse_type(self) -> tuple[DType, int]:
        token = self.current_token
        parsed_type = _parse_type_name(self.expect_token("name"))
        if parsed_type is None:
            raise self.parse_error(f"no type {token.text}", token)
        return parsed_type


@dataclass(slots=True)
class _KernelParser(_TokenReader):
    """Recursive-descent parser of kernels; `vars` and `buffers` map the names that are visible."""

    vars: dict[str, Var] = field(default_factory=dict)
    buffers: dict[str, Buffer] = field(default_factory=dict)

    def parse_whole_kernel(self) -> Kernel:
        self.expect_token("kernel")
        name = json.loads(self.expect_token("string"))
        self.expect_token("{")
        roles: dict[str, list[Buffer]] = {role: [] for role in BUFFER_ROLES}
        while self.current_token.text in BUFFER_ROLES:
            role = self.expect_token()
            roles[role].append(self.parse_buffer_declaration(role))
        numbers: list[Number] = []
        while self.accept_token("number"):
            numbers.append(self.parse_number_declaration())
        inputs, outputs = (tuple(roles.pop(role)) for role in BUFFER_ROLES[:2])
        facts: dict[str, Any] = {role: tuple(buffers) for role, buffers in roles.items()}
        facts |= {"inplace": (), "overlaps": (), "private": (), "numbers": tuple(numbers)}
        for word in ("inplace", "overlaps"):
            while self.accept_token(word):
                output = self.parse_buffer_reference()
                source = self.expect_then_read("=", self.parse_buffer_reference)
                facts[word] += ((outputs.index(output), inputs.index(source)),)
        facts["macs"] = self.parse_integer() if self.accept_token("macs") else 0
        facts["team"] = self.accept_token("team")
        if facts["team"]:
            self.vars.update({var.name: var for var in TEAM_VARS})
            while self.current_token.text in self.buffers and self.token_after_current.text != "[":
                facts["private"] += (self.parse_buffer_reference(),)
        kernel = Kernel(name=name, inputs=inputs, outputs=outputs, body=self.parse_stmts_to_brace(), **facts)
        self.expect_token("end")
        return kernel

    def parse_buffer_declaration(self, role: str) -> Buffer:
        name = self.expect_token("name")
        dtype, _ = self.expect_then_read(":", self.parse_type)
        size = self.expect_then_read("[", self.parse_integer)
        self.expect_token("]")
        align = self.parse_integer() if self.accept_token("align") else 4
        scope = role if role in BUFFER_ROLES[2:] else "param"
        self.buffers[name] = Buffer(name, dtype, size, scope, align, private=self.accept_token("private"))
        return self.buffers[name]

    def parse_number_declaration(self) -> Number:
        """Parse `n: int64 in [1, 32]`."""
        name = self.expect_token("name")
        var = self.declare_var(name, *self.expect_then_read(":", self.parse_type))
        self.expect_token("in")
        least, most = (self.expect_then_read(word, self.parse_literal).value for word in ("[", ","))
        self.expect_token("]")
        return Number(var, least, most)

    def parse_buffer_reference(self) -> Buffer:
        name = self.expect_token("name")
        if name not in self.buffers:
            raise self.parse_error(f"no buffer {name}")
        return self.buffers[name]

    def declare_var(self, name: str, dtype: DType, lanes: int) -> Var:
        """Return the variable for a name that the parsed kernel text declares (a loop variable or
        register): the known one if dtype and lanes are equal, else a new one, since a name may be
        declared again after its scope has ended.
        """
        known = self.vars.get(name)
        if known is None or (known.dtype, known.lanes) != (dtype, lanes):
            self.vars[name] = Var(name, dtype, lanes)
        return self.vars[name]

    def parse_var_reference(self) -> Var:
        name = self.expect_token("name")
        if name not in self.vars:
            raise self.parse_error(f"no register {name}")
        return self.vars[name]

    # --- statements

    def parse_stmts_to_brace(self) -> Stmt:
        """Parse statements up to and including the closing brace."""
        stmts: list[Stmt] = []
        while not self.accept_token("}"):
            stmts.append(self.parse_stmt())
        return stmts[0] if len(stmts) == 1 else Block(stmts)

    def parse_braced_block(self) -> Stmt:
        return self.expect_then_read("{", self.parse_stmts_to_brace)

    def parse_stmt(self) -> Stmt:
        if self.accept_token("for"):
            return self.parse_loop()
        if self.accept_token("while"):
            return While(self.parse_expr(), self.parse_braced_block())
        if self.accept_token("if"):
            return If(
                self.parse_expr(),
                self.parse_braced_block(),
                self.parse_braced_block() if self.accept_token("else") else None,
            )
        if self.accept_token("let"):
            return self.parse_register_declaration()
        if self.current_token.text in INSTRUCTIONS:
            return self.parse_instruction_without_result()
        if self.current_token.text not in self.buffers:
            return Assign(self.parse_var_reference(), self.expect_then_read("=", self.parse_expr))
        buffer, index, *_ = self.parse_buffer_access()
        value = self.expect_then_read("=", self.parse_expr)
        if _is_statement(value):
            return Execute(value.name, Destination(buffer, index), value.args)
        return Store(buffer, index, value)

    def parse_loop(self) -> Stmt:
        var = self.declare_var(self.expect_token("name"), INDEX, 1)
        begin = self.expect_then_read("in", self.parse_expr)
        end = self.expect_then_read("..", self.parse_expr)
        step = self.parse_integer() if self.accept_token("step") else 1
        kind = self.expect_token() if self.current_token.text in LOOP_KINDS else "serial"
        return For(var, end, self.parse_braced_block(), begin=begin, step=step, kind=kind)

    def parse_register_declaration(self) -> Stmt:
        name = self.expect_token("name")
        dtype, lanes = self.expect_then_read(":", self.parse_type)
        value = self.expect_then_read("=", self.parse_expr)
        register = self.declare_var(name, dtype, lanes)
        return Execute(value.name, register, value.args) if _is_statement(value) else Declare(register, value)

    def parse_instruction_without_result(self) -> Stmt:
        """Parse the name and the operands of an instruction without a result, such as `wait 1`."""
        token = self.current_token
        row = INSTRUCTIONS[self.expect_token()]
        if row.execution is None or row.execution.result:
            raise self.parse_error(f"{row.name} has a result", token)
        operands = [
            self.parse_expr() if k == 0 else self.expect_then_read(",", self.parse_expr) for k in range(len(row.takes))
        ]
        return Execute(row.name, None, tuple(operands))

    def parse_buffer_access(self) -> tuple[Buffer, Expr, int, int]:
        """Parse `buffer[index:lanes:stride]`; return the buffer, the index, the lanes and the
        stride.
        """
        buffer = self.parse_buffer_reference()
        index = self.expect_then_read("[", self.parse_expr)
        lanes = self.parse_integer() if self.accept_token(":") else 1
        stride = (-1 if self.accept_token("-") else 1) * self.parse_integer() if self.accept_token(":") else 1
        self.expect_token("]")
        return buffer, index, lanes, stride

    # --- expressions

    def parse_expr(self) -> Expr:
        cond = self.parse_binary_expr(1)
        if not self.accept_token("?"):
            return cond
        return Select(cond, self.parse_binary_expr(1), self.expect_then_read(":", self.parse_expr))

    def parse_binary_expr(self, precedence: int) -> Expr:
        if precedence >= UNARY_PRECEDENCE:
            return self.parse_unary_expr()
        left = self.parse_binary_expr(precedence + 1)
        while (
            self.current_token.kind == "op"
            and PRECEDENCE_OF_OP.get(OP_OF_SYMBOL.get(self.current_token.text, ""), 0) == precedence
        ):
            op = OP_OF_SYMBOL[self.expect_token()]
            left = Binary(op, left, self.parse_binary_expr(precedence + 1))
        return left

    def parse_unary_expr(self) -> Expr:
        if self.accept_token("!"):
            return Unary("not", self.parse_unary_expr())
        if self.accept_token("("):
            inner = self.parse_expr()
            self.expect_token(")")
            return inner
        token = self.current_token
        negative = token.text == "-" and self.token_after_current.text == "inf"
        if negative or token.kind in ("int", "float") or token.text in ("true", "false", "inf", "nan"):
            return self.parse_literal()
        if token.text in self.buffers:
            return Load(*self.parse_buffer_access())
        return self.parse_function_call() if self.token_after_current.text == "(" else self.parse_var_reference()

    def parse_literal(self) -> Const:
        sign = "-" if self.accept_token("-") else ""
        text = sign + self.expect_token()
        value: int | float | bool
        if text in ("true", "false"):
            value, dtype = text == "true", BOOL
        elif re.fullmatch(r"-?\d+", text):
            value, dtype = int(text), INDEX
        else:
            value, dtype = float(text), DType("float32")
        lookahead = self.tokens[self.position + 2 : self.position + 3]
        if (
            self.current_token.text != ":"
            or _parse_type_name(self.token_after_current.text) is None
            or any(t.text == "(" for t in lookahead)
        ):
            # what follows may be a conversion, `int32(x)`, behind a selection
            return Const(value, dtype)
        return Const(value, *self.expect_then_read(":", self.parse_type))

    def parse_function_call(self) -> Expr:
        start = self.current_token
        name = self.expect_token("name")
        args = [self.expect_then_read("(", self.parse_expr)]
        while self.accept_token(","):
            args.append(self.parse_expr())
        self.expect_token(")")
        match name, args:
            case "broadcast", [a, Const(value=lanes)]:
                return Broadcast(a, int(lanes))
            case "pack", _:
                return Pack(tuple(args))
            case "neg", [a]:
                return Unary(name, a)
            case _, [a, b] if name in FUNCTION_STYLE_OPS:
                return Binary(name, a, b)
            case _, [a] if name in DTYPES:
                return Cast(DType(name), a)
            case _, [a] if (dtype := name.removeprefix(BITCAST_PREFIX)) in DTYPES and DType(dtype).bits == a.dtype.bits:
                return Bitcast(DType(dtype), a)
        row = INSTRUCTIONS.get(name.removeprefix(FUSED_PREFIX))
        if row is not None and len(row.takes) == len(args):
            return Call(row.name, tuple(args), fused=name != row.name)
        raise self.parse_error(f"no function {name} of {len(args)} operands", start)
