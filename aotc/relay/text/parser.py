# SPDX-License-Identifier: Apache-2.0
"""Graph programs from Relay text.

In: text as `aotc.relay.text.printer` writes it, or as people do (infix operators, `let`, free variables).
Out: a module or an expression, calls of operators typed, every node with its place in the text as span.

mod = parse('#[version = "0.0.5"] def @main(%x: Tensor[(2), float32]) { nn.relu(%x) + 1f }')
parse_expr("fn (%x: int32) { %x * 2 }")

A `%0 = ...;` names a node and keeps its sharing; it is visible to the end of the function, unless it depends on a
variable that is not.  A `let` binds a variable.  Every error is an AotcError with line, column and an excerpt.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar

import numpy as np

from aotc.ir.diagnostics import AotcError, nearest
from aotc.ir.op import Op, get_op
from aotc.ir.span import Span
from aotc.ir.types import FuncType, TupleType, Type
from aotc.relay.analysis import escaping_vars, free_vars
from aotc.relay.expr import (
    Call,
    Callee,
    Constant,
    Expr,
    Function,
    GlobalVar,
    If,
    Let,
    Tuple,
    TupleGetItem,
    Var,
    call,
    with_type,
)
from aotc.relay.module import IRModule
from aotc.relay.text.attributes import make_attrs
from aotc.relay.text.cursor import Cursor
from aotc.relay.text.lexer import Source, Token
from aotc.relay.text.metadata import KEY, load
from aotc.relay.trampoline import Task, run

VERSION: Final = "0.0.5"
ExprT = TypeVar("ExprT", bound=Expr)

_INFIX: Final = {
    "*": (12, "multiply"),
    "/": (12, "divide"),
    "+": (10, "add"),
    "-": (10, "subtract"),
    "<": (8, "less"),
    "<=": (8, "less_equal"),
    ">": (8, "greater"),
    ">=": (8, "greater_equal"),
    "==": (7, "equal"),
    "!=": (7, "not_equal"),
}
"""Precedence (higher binds tighter; all associate to the left) and operator of each infix sign."""

_RESERVED: Final = frozenset(
    {"def", "else", "extern", "free_var", "let", "match", "ref", "ref_read", "ref_write", "type"}
)


def parse(text: str, source_name: str = "from_string") -> IRModule:
    """The module that `text` describes; a bare expression becomes its @main.

    Raises AotcError for a missing version line, a syntax error, a name that is not defined or defined twice,
    an unknown operator or attribute, an ill-typed call, and metadata that is missing or damaged.
    """
    parser = _Parser(Source(text, source_name))
    parser.version(required=True)
    return parser.module()


def parse_expr(text: str, source_name: str = "from_string") -> Expr:
    """The expression that `text` describes; the version line may be missing.  Errors as in `parse`."""
    parser = _Parser(Source(text, source_name))
    parser.version(required=False)
    return parser.lone_expr()


class _Parser(Cursor):
    """Recursive descent, with generators in place of the call stack where expressions nest."""

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self.free: dict[str, Var] = {}
        self.scopes: list[set[str]] = [set()]  # the names that each block around this place binds
        self.bound: dict[
            str, list[tuple[int, Var]]
        ] = {}  # the variables of a name, each with its scope; innermost last
        self.temps: dict[str, Expr] = {}
        self.open: set[str] = set()  # the temps that the blocks around this place define
        self.crossing: list[Token] = []  # uses of temps of blocks that have ended
        self.meta: list[Constant] | None = None
        if len(self.tokens) > 1 and self.tokens[-2].kind == "metadata":
            start = self.tokens[-2].offset
            self.meta = [Constant(data) for data in load(self.tokens[-1].text, source.span(start))]
            del self.tokens[-2]

    def span(self, token: Token) -> Span:
        return self.source.span(token.offset)

    # Programs

    def version(self, required: bool) -> None:
        """Read the version line."""
        if self.token.kind != "version":
            if required:
                hint = f'you can annotate it as #[version = "{VERSION}"]'
                self.fail(f"expected text format semantic version, found {self.token}", hint=hint)
            return
        self.advance()
        token = self.expect_kind("string", "a version")
        if token.text != VERSION:
            self.fail(f'invalid semantic version "{token.text}"', token, hint=f"this is version {VERSION}")
        self.expect("]")

    def module(self) -> IRModule:
        attrs = self._module_attrs()
        if not self.at("def", "name") and self.token.kind != "end":
            return IRModule(IRModule.from_expr(self.lone_expr()), attrs)
        functions: dict[str, Function] = {}
        while self.accept("def", "name"):
            token = self.expect_kind("global", "the name of a function")
            if token.text in functions:
                self.fail(f"function @{token.text} is defined twice", token, code="redefined")
            self.temps = {}
            functions[token.text] = self._in_scope(run(self._function(token)))
        if self.token.kind != "end":
            self.fail(f"expected `def`, found {self.token}")
        return IRModule(functions, attrs)

    def _module_attrs(self) -> dict[str, Any]:
        attrs: dict[str, Any] = {}
        if self.accept("attributes", "name"):
            self.expect("{")
            while not self.accept("}"):
                key = self.expect_kind("string", "the name of an attribute").text
                self.expect("=")
                attrs[key] = self.value()
        return attrs

    def lone_expr(self) -> Expr:
        """An expression and nothing after it."""
        result = self._in_scope(run(self._body()))
        if self.token.kind != "end":
            self.fail(f"expected the end of the text, found {self.token}")
        return result

    # Scopes

    def _in_scope(self, root: ExprT) -> ExprT:
        """`root`, whose uses of temps from blocks that had ended must not depend on variables of those blocks."""
        if not self.crossing:
            return root
        lost = escaping_vars(root).union(free_vars(root)).difference(self.free.values())
        for token in self.crossing:
            for var in (v for v in free_vars(self.temps[token.text]) if v in lost):
                self.fail(f"%{token.text} depends on %{var.name}, which is not defined here", token, code="undefined")
        self.crossing = []
        return root

    def _define(self, token: Token, value: Expr) -> None:
        if token.text in self.open:
            self.fail(f"local variable %{token.text} is defined twice", token, code="redefined")
        self.open.add(token.text)
        self.temps[token.text] = value

    def _temp(self, token: Token) -> Expr:
        if token.text not in self.temps:
            self.fail(f"local variable %{token.text} has not yet been defined", token, code="undefined")
        if token.text not in self.open:
            self.crossing.append(token)
        return self.temps[token.text]

    def _lookup(self, token: Token) -> Var:
        found = self.bound.get(token.text)
        if found:
            return found[-1][1]
        names = [name for name, variables in self.bound.items() if variables]
        self.fail(f"variable %{token.text} is not defined", token, code="undefined", hint=nearest(token.text, names))

    def _declare(self) -> tuple[Token, Type | None]:
        """A variable at its definition, with its annotation."""
        token = self.expect_kind("local", "a variable")
        return token, self.type_() if self.accept(":") else None

    def _bind(self, name: str, var: Var) -> Var:
        """Make a variable what its name means until the innermost block ends; a later one replaces it there."""
        found, depth = self.bound.setdefault(name, []), len(self.scopes)
        if found and found[-1][0] == depth:
            found.pop()
        found.append((depth, var))
        self.scopes[-1].add(name)
        return var

    def _leave(self) -> None:
        """End the innermost block."""
        for name in self.scopes.pop():
            self.bound[name].pop()

    def _variable(self, token: Token, annotation: Type | None) -> Var:
        return Var(token.text, annotation, self.span(token))

    def _free(self) -> None:
        """A variable that is bound nowhere, for the rest of the text."""
        token, annotation = self._declare()
        var = self.free[token.text] = self._variable(token, annotation)
        found = self.bound.setdefault(token.text, [])
        found[:] = [(0, var), *(entry for entry in found if entry[0])]

    def _body(self) -> Task[Expr]:
        """Definitions and the expression that they lead to: what stands between braces."""
        self.scopes.append(set())
        own: list[str] = []
        lets: list[tuple[Var, Expr, Span]] = []
        while True:
            token = self.token
            if token.kind == "temp" and self.following.text == "=":
                self.position += 2
                self._define(token, (yield self._expr()))
                own.append(token.text)
                self.expect(";")
            elif self.accept("let", "name"):
                lets.append((yield self._let(token)))
            elif self.accept("free_var", "name"):
                self._free()
                self.expect(";")
            else:
                body: Expr = yield self._expr()
                if not self.accept(";"):
                    break
                lets.append((with_type(Var("v", None, self.span(token)), body.checked_type), body, self.span(token)))
        self._leave()
        self.open.difference_update(own)
        for var, value, span in reversed(lets):
            body = Let(var, value, body, span)
        return body

    def _let(self, start: Token) -> Task[tuple[Var, Expr, Span]]:
        token, annotation = self._declare()
        self.expect("=")
        if self.at("fn", "name"):  # a function may call itself
            var = self._bind(token.text, self._variable(token, annotation))
            value: Expr = yield self._expr()
        else:
            value = yield self._expr()
            var = self._variable(token, annotation)
            if annotation is None:
                var = with_type(var, value.checked_type)
            self._bind(token.text, var)
        self.expect(";")
        return var, value, self.span(start)

    def _block(self) -> Task[Expr]:
        self.expect("{")
        body: Expr = yield self._body()
        self.expect("}")
        return body

    def _function(self, start: Token) -> Task[Function]:
        """What follows `fn` or `def @name`: parameters, attributes, result type and body."""
        self.expect("(")
        self.scopes.append(set())
        params: list[Var] = []
        attrs: dict[str, Any] = {}
        while not self.accept(")"):
            if self.token.kind == "local":
                token, annotation = self._declare()
                if token.text in self.scopes[-1]:
                    self.fail(f"parameter %{token.text} is named twice", token, code="redefined")
                params.append(self._bind(token.text, self._variable(token, annotation)))
            else:
                self._attribute(attrs)
            if not self.at(")"):
                self.expect(",")
        ret_type = self.type_() if self.accept("->") else None
        body: Expr = yield self._block()
        self._leave()
        return Function(params, body, ret_type, attrs, self.span(start))

    def _attribute(self, attrs: dict[str, Any]) -> None:
        token = self.token
        if token.kind not in ("name", "string"):
            self.fail(f"expected a variable or an attribute, found {token}")
        self.advance()
        self.expect("=")
        if token.text in attrs:
            self.fail(f"attribute `{token.text}` is given twice", token, code="attribute")
        attrs[token.text] = self.value()

    # Expressions

    def _expr(self) -> Task[Expr]:
        """Operands joined by infix operators, by precedence climbing with an explicit stack."""
        operands: list[Expr] = [(yield self._postfix())]
        pending: list[tuple[int, str, Token]] = []
        while self.token.kind == "punct" and self.token.text in _INFIX:
            token = self.advance()
            level, name = _INFIX[token.text]
            self._reduce(operands, pending, level)
            pending.append((level, name, token))
            operands.append((yield self._postfix()))
        self._reduce(operands, pending, 0)
        return operands[0]

    def _reduce(self, operands: list[Expr], pending: list[tuple[int, str, Token]], level: int) -> None:
        """Apply the pending operators that bind at least as tightly as `level`."""
        while pending and pending[-1][0] >= level:
            _, name, token = pending.pop()
            right = operands.pop()
            operands[-1] = self._apply(self._op(name, token), [operands[-1], right], {}, token)

    def _postfix(self) -> Task[Expr]:
        """A primary expression, called and projected as often as the text says."""
        start = self.token
        result: Expr = yield self._primary()
        while True:
            if self.at("("):
                result = yield self._call(result, start)
            elif self.token.kind == "field":
                result = self._field(result, start)
            else:
                return result

    def _field(self, value: Expr, start: Token) -> TupleGetItem:
        token = self.advance()
        index, ty = int(token.text), value.checked_type
        if ty is not None and not (isinstance(ty, TupleType) and index < len(ty.fields)):
            self.fail(f"a value of type {ty} has no field {index}", token, code="type")
        return TupleGetItem(value, index, self.span(start))

    def _primary(self) -> Task[Expr]:
        token = self.token
        match token.kind:
            case "temp":
                return self._temp(self.advance())
            case "local":
                return self._lookup(self.advance())
            case "global":
                self.advance()
                return GlobalVar(token.text, self.span(token))
            case "number":
                return Constant(self.scalar(), self.span(token))
            case "punct" if token.text == "-" and self.following.kind == "number":
                return Constant(self.scalar(), self.span(token))
            case "punct" if token.text == "(":
                paren: Expr = yield self._paren()
                return paren
            case "name":
                word: Expr = yield self._word()
                return word
            case _:
                self.fail(f"expected an expression, found {token}")

    def _word(self) -> Task[Expr]:
        """An expression that begins with a word: a keyword, True, False, meta, or an operator."""
        token = self.advance()
        match token.text:
            case "fn":
                function: Function = yield self._function(token)
                return function
            case "if":
                choice: Expr = yield self._if(token)
                return choice
            case "True" | "False":
                return Constant(np.asarray(token.text == "True"), self.span(token))
            case "meta":
                return self._metadata(token)
            case text if text in _RESERVED:
                self.fail(f"expected an expression, found the keyword {token}", token)
            case text:
                return self._op(text, token)

    def _op(self, name: str, token: Token) -> Op:
        try:
            return get_op(name)
        except AotcError as error:
            self.refuse(error, token)

    def _if(self, start: Token) -> Task[Expr]:
        self.expect("(")
        cond: Expr = yield self._expr()
        self.expect(")")
        yes: Expr = yield self._block()
        self.expect("else", "name")
        no: Expr = yield self._block()
        return If(cond, yes, no, self.span(start))

    def _paren(self) -> Task[Expr]:
        """A tuple, or an expression (with definitions) in parentheses."""
        start = self.expect("(")
        if self.accept(")"):
            return Tuple((), self.span(start))
        first: Expr = yield self._body()
        if self.accept(")"):
            return first
        fields = [first]
        while not self.accept(")"):
            self.expect(",")
            if not self.at(")"):
                fields.append((yield self._expr()))
        try:
            return Tuple(fields, self.span(start))
        except AotcError as error:  # nested deeper than types may be
            self.refuse(error, start)

    def _metadata(self, start: Token) -> Constant:
        self.expect("[")
        key = self.expect_kind("name", "a metadata key")
        self.expect("]")
        self.expect("[")
        index = self.expect_kind("number", "an index")
        self.expect("]")
        if self.meta is None:
            hint = "print the program with astext(show_meta_data=True)"
            self.fail("the text has no metadata section", start, code="metadata", hint=hint)
        if key.text != KEY or not index.text.isdigit() or int(index.text) >= len(self.meta):
            self.fail(f"the metadata section has no {key.text}[{index.text}]", start, code="metadata")
        return self.meta[int(index.text)]

    def _call(self, callee: Expr, start: Token) -> Task[Expr]:
        self.expect("(")
        args: list[Expr] = []
        attrs: dict[str, Any] = {}
        while not self.accept(")"):
            if self.token.kind == "name" and self.following.text == "=":
                self._attribute(attrs)
            elif attrs:
                self.fail("an argument cannot follow an attribute")
            else:
                args.append((yield self._expr()))
            if not self.at(")"):
                self.expect(",")
        return self._apply(callee, args, attrs, start)

    def _apply(self, callee: Expr, args: list[Expr], attrs: Mapping[str, Any], start: Token) -> Call:
        """A call, typed as far as its parts are."""
        if isinstance(callee, Op):
            try:
                return call(callee, args, make_attrs(callee, attrs), self.span(start))
            except AotcError as error:
                self.refuse(error, start)
        if isinstance(callee, (Tuple, Constant)):
            self.fail(f"a {type(callee).__name__.lower()} cannot be called", start)
        if attrs:
            self.fail("only operators take attributes", start)
        return _plain_call(callee, args, self.span(start))


def _plain_call(callee: Callee, args: list[Expr], span: Span) -> Call:
    ty = callee.checked_type
    return Call(callee, args, span=span, checked_type=ty.ret_type if isinstance(ty, FuncType) else None)
