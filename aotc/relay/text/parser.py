# SPDX-License-Identifier: Apache-2.0
"""Recursive-descent parser of Relay text: text in, typed module or expression out.

The text is as `aotc.relay.text.printer` writes it or written by hand (infix operators, `let`, free
variables). Calls of operators are typed, and every node has its position in the text as span.

mod = parse('#[version = "0.0.5"] def @main(%x: Tensor[(2), float32]) { nn.relu(%x) + 1f }')
parse_expr("fn (%x: int32) { %x * 2 }")

`%0 = ...;` names a node so that several users share it. The name is visible until the end of the
function, unless the node depends on a variable that is out of scope. `let` binds a variable. Every
error is an AotcError with line, column and an excerpt of the text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from aotc.ir import FuncType, GlobalTypeVar, Op, Span, Task, TupleType, get_op, make_node, nearest, run
from aotc.relay import expr as graph_api
from aotc.relay.adt import Clause, Pattern, PatternConstructor, PatternTuple, PatternVar, PatternWildcard, TypeData
from aotc.relay.expr import Call, Constant, Constructor, Expr, Function, GlobalVar, If, Let, Match, RefCreate, RefRead
from aotc.relay.graph_api import IRModule, RefWrite, Tuple, TupleGetItem, Var, fields_of
from aotc.relay.text.attributes import make_attrs, takes_dimension
from aotc.relay.text.cursor import HINTS, Cursor, dim_value, scalar, type_, type_params, value
from aotc.relay.text.lexer import Source, Token
from aotc.relay.text.literals import KEY, VERSION, load
from aotc.relay.text.name_scopes import Names

#: Precedence (higher binds tighter; all associate to the left) and operator of each infix sign.
_LEVELS: Final = {
    12: {"*": "multiply", "/": "divide"},
    10: {"+": "add", "-": "subtract"},
    8: {"<": "less", "<=": "less_equal", ">": "greater", ">=": "greater_equal"},
    7: {"==": "equal", "!=": "not_equal"},
}
_INFIX: Final = {symbol: (level, name) for level, names in _LEVELS.items() for symbol, name in names.items()}

_RESERVED: Final = frozenset({"def", "else", "extern", "free_var", "let", "type"})

#: For each keyword of an operation on references, its number of arguments and the class of its
#: node.
_REFERENCES: Final[Mapping[str, tuple[int, Callable[..., Expr]]]] = MappingProxyType(
    {"ref": (1, RefCreate), "ref_read": (1, RefRead), "ref_write": (2, RefWrite)}
)


def parse(
    text: str,
    source_name: str = "from_string",
    init_module: IRModule | None = None,
    init_meta_table: Mapping[str, Sequence[Constant]] | None = None,
) -> IRModule:
    """Return the module described by Relay text; a bare expression becomes its @main function.

    init_module        functions and data types that the text may use; they are part of the result, too
    init_meta_table    constants under the key "relay.Constant", to which meta[relay.Constant][0] etc. refer
                       if the text has no metadata section

    Raise AotcError for a missing version line, a syntax error, a name that is undefined or defined
    twice, an unknown operator or attribute, an ill-typed call, and metadata that is missing or
    damaged.
    """
    parser = _Parser(Source(text, source_name))
    parser.meta = parser.meta if init_meta_table is None else [*init_meta_table.get(KEY, ())]
    given = IRModule() if init_module is None else init_module
    for data in given.type_definitions.values():
        parser.types[data.header.name] = data.header
        parser.constructors.update((c.name_hint, c) for c in data.constructors)
    _version(parser, required=True)
    made = _module(parser)
    types = {**given.type_definitions, **made.type_definitions}
    return IRModule({**given.functions, **made.functions}, {**given.attrs, **made.attrs}, types)


def parse_expr(text: str, source_name: str = "from_string") -> Expr:
    """Return the expression described by Relay text; the version line is optional.

    Raise AotcError for the errors that `parse` lists.
    """
    parser = _Parser(Source(text, source_name))
    _version(parser, required=False)
    return _lone_expr(parser)


# --- programs


def _version(cursor: Cursor, required: bool) -> None:
    """Parse the version line and check the version; raise AotcError if it is missing but
    `required`.
    """
    if cursor.token.kind != "version":
        if required:
            hint = f'you can annotate it as #[version = "{VERSION}"]'
            cursor.fail(f"expected text format semantic version, found {cursor.token}", hint=hint)
        return
    cursor.advance()
    token = cursor.expect_kind("string", "a version")
    if token.text != VERSION:
        cursor.fail(f'invalid semantic version "{token.text}"', token, hint=f"this is version {VERSION}")
    cursor.expect("]")


def _module(parser: _Parser) -> IRModule:
    attrs = _module_attrs(parser)
    if parser.token.kind != "end" and not any(parser.at(word, "name") for word in ("def", "type", "extern")):
        return IRModule(IRModule.from_expr(_lone_expr(parser)), attrs)
    for word, name in pairwise(parser.tokens):  # types may mention later ones
        if (word.kind, word.text, name.kind) == ("name", "type", "name"):
            if name.text in parser.types:
                parser.fail(f"type {name.text} is defined twice", name, code="redefined")
            parser.types[name.text] = GlobalTypeVar(name.text)
    functions: dict[str, Function] = {}
    types: dict[GlobalTypeVar, TypeData] = {}
    while parser.token.kind != "end":
        if parser.at("type", "name") or parser.at("extern", "name"):
            data = _definition(parser)
            types[data.header] = data
        elif parser.accept("def", "name"):
            token = parser.expect_kind("global", "the name of a function")
            if token.text in functions:
                parser.fail(f"function @{token.text} is defined twice", token, code="redefined")
            parser.names.forget_temps()
            functions[token.text] = parser.names.checked(run(parser.function(token)))
        else:
            parser.fail(f"expected `def`, found {parser.token}", hint=HINTS["module"])
    return IRModule(functions, attrs, types)


def _definition(parser: _Parser) -> TypeData:
    """Parse the definition of an algebraic data type; an extern type has no constructors."""
    extern = parser.accept("extern", "name")
    parser.expect("type", "name")
    header = parser.types[parser.expect_kind("name", "the name of a type").text]
    assert isinstance(header, GlobalTypeVar)
    constructors: list[Constructor] = []
    with type_params(parser) as generic:
        if not extern:
            parser.expect("{")
            for _ in parser.items("}"):
                token = parser.expect_kind("name", "a constructor")
                if token.text in parser.constructors or token.text in parser.types:
                    parser.fail(f"{token.text} is defined twice", token, code="redefined")
                inputs = [type_(parser) for _ in parser.items(")")] if parser.accept("(") else []
                constructors.append(Constructor(token.text, tuple(inputs), header, parser.span(token)))
                parser.constructors[token.text] = constructors[-1]
    return TypeData(header, generic, constructors)


def _module_attrs(cursor: Cursor) -> dict[str, Any]:
    attrs: dict[str, Any] = {}
    if cursor.accept("attributes", "name"):
        cursor.expect("{")
        while not cursor.accept("}"):
            key = cursor.expect_kind("string", "the name of an attribute").text
            cursor.expect("=")
            attrs[key] = value(cursor)
    return attrs


def _lone_expr(parser: _Parser) -> Expr:
    """Parse an expression; raise AotcError if anything follows it."""
    result = parser.names.checked(run(parser.body()))
    if parser.token.kind != "end":
        parser.fail(f"expected the end of the text, found {parser.token}", hint=HINTS["module"])
    return result


# --- expressions


class _Parser(Cursor):
    """Recursive-descent parser; generators replace the call stack where expressions nest."""

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self.names = Names(self)
        self.constructors: dict[str, Constructor] = {}
        self.meta: list[Constant] | None = None
        if len(self.tokens) > 1 and self.tokens[-2].kind == "metadata":
            start = self.tokens[-2].offset
            self.meta = [Constant(data) for data in load(self.tokens[-1].text, source.span(start))]
            del self.tokens[-2]

    def span(self, token: Token) -> Span:
        return self.source.span(token.offset)

    def body(self) -> Task[Expr]:
        """Parse the contents of a block: definitions (`%0 =`, `let`, `free_var`) followed by the
        result expression.
        """
        lets: list[tuple[Var, Expr, Span]] = []
        with self.names.block():
            while True:
                token = self.token
                if token.kind == "temp" and self.following.text == "=":
                    self.position += 2
                    self.names.define(token, (yield self._expr()))
                    self.expect(";")
                elif self.accept("let", "name"):
                    lets.append((yield self._let(token)))
                elif self.accept("free_var", "name"):
                    free = self._declare()
                    self.names.bind_free(free.name, free)
                    self.expect(";")
                else:
                    body: Expr = yield self._expr()
                    if not self.accept(";"):
                        break
                    unused = graph_api.with_type(Var("v", None, self.span(token)), body.checked_type)
                    lets.append((unused, body, self.span(token)))
        for var, bound, span in reversed(lets):
            body = Let(var, bound, body, span)
        return body

    def _declare(self) -> Var:
        """Parse the declaration of a variable with an optional type annotation."""
        token = self.expect_kind("local", "a variable")
        return Var(token.text, type_(self) if self.accept(":") else None, self.span(token))

    def _let(self, start: Token) -> Task[tuple[Var, Expr, Span]]:
        var = self._declare()
        self.expect("=")
        if self.at("fn", "name"):  # bound first, as a function may call itself
            self.names.bind(var.name, var)
            bound: Expr = yield self._expr()
        else:
            bound = yield self._expr()
            var = var if var.annotation is not None else graph_api.with_type(var, bound.checked_type)
            self.names.bind(var.name, var)
        self.expect(";")
        return var, bound, self.span(start)

    def _block(self) -> Task[Expr]:
        self.expect("{")
        body: Expr = yield self.body()
        self.expect("}")
        return body

    def function(self, start: Token) -> Task[Function]:
        """Parse the text after `fn` or `def @name`: parameters, attributes, result type and body."""
        params: list[Var] = []
        attrs: dict[str, Any] = {}
        with self.names.block(), type_params(self) as generic:
            self.expect("(")
            for _ in self.items(")"):
                token = self.token
                if token.kind == "local":
                    param = self._declare()
                    if self.names.binds(param.name):
                        self.fail(f"parameter %{param.name} is named twice", token, code="redefined")
                    params.append(self.names.bind(param.name, param))
                else:
                    self._attribute(attrs)
            ret_type = type_(self) if self.accept("->") else None
            body = yield from self._block()
        return Function(params, body, ret_type, generic, attrs, self.span(start))

    def _attribute(self, attrs: dict[str, Any], callee: Expr | None = None) -> None:
        token = self.token
        if token.kind not in ("name", "string"):
            self.fail(f"expected a variable or an attribute, found {token}", hint="write %x or name=value")
        self.advance()
        self.expect("=")
        if token.text in attrs:
            self.fail(f"attribute `{token.text}` is given twice", token, code="attribute", hint="remove one of the two")
        attrs[token.text] = (dim_value if takes_dimension(callee, token.text) else value)(self)

    def _expr(self) -> Task[Expr]:
        """Parse operands joined by infix operators: precedence climbing with an explicit stack."""
        operands = [(yield from self._postfix())]
        pending: list[tuple[int, str, Token]] = []
        while self.token.kind == "punct" and self.token.text in _INFIX:
            token = self.advance()
            level, name = _INFIX[token.text]
            self._reduce(operands, pending, level)
            pending.append((level, name, token))
            operands.append((yield from self._postfix()))
        self._reduce(operands, pending, 0)
        return operands[0]

    def _reduce(self, operands: list[Expr], pending: list[tuple[int, str, Token]], level: int) -> None:
        """Build the calls of all pending infix operators whose precedence is at least `level`."""
        while pending and pending[-1][0] >= level:
            _, name, token = pending.pop()
            right = operands.pop()
            operands[-1] = self._apply(self._op(name, token), [operands[-1], right], {}, token)

    def _postfix(self) -> Task[Expr]:
        """Parse a primary expression followed by any number of call arguments `(...)` and field
        accesses `.0`.
        """
        start = self.token
        result = yield from self._primary()
        while True:
            if self.accept("("):
                result = yield from self._call(result, start)
            elif self.token.kind == "field":
                result = self._field(result, start)
            else:
                return result

    def _field(self, whole: Expr, start: Token) -> TupleGetItem:
        token = self.advance()
        index, ty = int(token.text), whole.checked_type
        if ty is not None and not (isinstance(ty, TupleType) and index < len(ty.fields)):
            self.fail(f"a value of type {ty} has no field {index}", token, code="type", hint=fields_of(ty))
        return TupleGetItem(whole, index, self.span(start))

    def _primary(self) -> Task[Expr]:
        token = self.token
        match token.kind:
            case "temp":
                return self.names.temp(self.advance())
            case "local":
                return self.names.lookup(self.advance())
            case "global":
                return GlobalVar(self.advance().text, self.span(token))
            case "number":
                return Constant(scalar(self), self.span(token))
            case "punct" if token.text == "-":
                return self._signed()
            case "punct" if token.text == "(":
                return (yield from self._paren())
            case "name":
                return (yield from self._word())
            case _:
                self.fail(f"expected an expression, found {token}", hint=HINTS["expression"])

    def _signed(self) -> Constant:
        """Parse a numeric literal with one or more minus signs."""
        start, flip = self.token, False
        while self.following.text == "-":
            self.advance()
            flip = not flip
        if self.following.kind != "number":
            self.fail(f"expected an expression, found {start}", hint="negative(%x) changes signs of variables")
        value = scalar(self)
        return Constant(np.negative(value) if flip else value, self.span(start))

    def _word(self) -> Task[Expr]:
        """Parse an expression that begins with a word: a keyword, True, False, meta, a constructor
        or an operator.
        """
        token = self.advance()
        match token.text:
            case "fn":
                return (yield from self.function(token))
            case "if":
                return (yield from self._if(token))
            case "True" | "False":
                return Constant(np.asarray(token.text == "True"), self.span(token))
            case "meta":
                return self._metadata(token)
            case "match":
                return (yield from _match(self, token))
            case "ref" | "ref_read" | "ref_write":
                return (yield from _reference(self, token))
            case text if text in self.constructors:
                return _constructed(self, self.constructors[text], token)
            case text if text in _RESERVED:
                self.fail(f"expected an expression, found the keyword {token}", token, hint=HINTS["expression"])
            case text:
                return self._op(text, token)

    def _op(self, name: str, token: Token) -> Op:
        with self.placing(token):
            return get_op(name, self.constructors)

    def _if(self, start: Token) -> Task[Expr]:
        self.expect("(")
        cond: Expr = yield self._expr()
        self.expect(")")
        yes = yield from self._block()
        self.expect("else", "name")
        no = yield from self._block()
        return If(cond, yes, no, self.span(start))

    def _paren(self) -> Task[Expr]:
        """Parse a tuple, or an expression (with optional definitions) in parentheses."""
        start = self.expect("(")
        if self.accept(")"):
            return Tuple((), self.span(start))
        first: Expr = yield self.body()
        if self.accept(")"):
            return first
        self.expect(",")
        fields = [first]
        for _ in self.items(")"):
            fields.append((yield self._expr()))
        with self.placing(start):  # the type of a tuple may exceed the nesting limit of types
            return Tuple(fields, self.span(start))

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
            hint = f"it has {len(self.meta)} items, {KEY}[0] being the first"
            self.fail(f"the metadata section has no {key.text}[{index.text}]", start, code="metadata", hint=hint)
        return self.meta[int(index.text)]

    def _call(self, callee: Expr, start: Token) -> Task[Expr]:
        """Parse call arguments and attributes up to `)` and return the call of `callee`."""
        args: list[Expr] = []
        attrs: dict[str, Any] = {}
        for _ in self.items(")"):
            if self.token.kind == "name" and self.following.text == "=":
                self._attribute(attrs, callee)
            elif attrs:
                self.fail("an argument cannot follow an attribute", hint="write all arguments first")
            else:
                args.append((yield self._expr()))
        return self._apply(callee, args, attrs, start)

    def _apply(self, callee: Expr, args: list[Expr], attrs: Mapping[str, Any], start: Token) -> Call:
        """Return a call of `callee`, with its type if the types of its parts are known; raise
        AotcError for an invalid call.
        """
        if isinstance(callee, Op):
            with self.placing(start):
                return graph_api.call(callee, args, make_attrs(callee, attrs), self.span(start))
        if isinstance(callee, (Tuple, Constant, RefCreate, RefWrite)):
            self.fail(f"a {type(callee).__name__.lower()} cannot be called", start, hint=HINTS["callee"])
        key = attrs.get("attrs_type_key", "" if attrs else None)
        if key == "":
            self.fail("only operators take attributes", start, hint="pass it as an argument")
        ty = callee.checked_type
        result = ty.ret_type if isinstance(ty, FuncType) and not ty.type_params else None
        given = {name: v for name, v in attrs.items() if name != "attrs_type_key"}
        made = None if key is None else make_node(str(key), **given)
        return Call(callee, args, made, span=self.span(start), checked_type=result)


def _reference(parser: _Parser, token: Token) -> Task[Expr]:
    parser.expect("(")
    args: list[Expr] = []
    for _ in parser.items(")"):
        args.append((yield parser._expr()))
    count, make = _REFERENCES[token.text]
    if len(args) != count:
        parser.fail(f"{token.text} takes {count} arguments, got {len(args)}", token, hint=HINTS["reference"])
    return make(*args, span=parser.span(token))


def _match(parser: _Parser, start: Token) -> Task[Expr]:
    complete = not parser.accept("?")
    parser.expect("(")
    data: Expr = yield parser._expr()
    parser.expect(")")
    parser.expect("{")
    clauses: list[Clause] = []
    for _ in parser.items("}"):
        with parser.names.block():
            pattern = _pattern(parser)
            parser.expect("=>")
            value: Expr = yield (parser._block() if parser.at("{") else parser.body())
        clauses.append(Clause(pattern, value))
    return Match(data, tuple(clauses), complete, parser.span(start))


def _pattern(parser: _Parser) -> Pattern:
    with parser.nested():
        if parser.accept("("):
            return PatternTuple([_pattern(parser) for _ in parser.items(")")])
        if parser.token.kind == "local":
            var = parser._declare()
            return PatternVar(parser.names.bind(var.name, var))
        token = parser.expect_kind("name", "a pattern")
        if token.text == "_":
            return PatternWildcard()
        if token.text not in parser.constructors:
            hint = nearest(token.text, parser.constructors) or "variables of patterns are written %name"
            parser.fail(f"no constructor is called {token.text}", token, hint=hint)
        fields = [_pattern(parser) for _ in parser.items(")")] if parser.accept("(") else []
        return PatternConstructor(parser.constructors[token.text], fields)


def _constructed(parser: _Parser, constructor: Constructor, token: Token) -> Expr:
    """Return a constructor, or a call of it if it has no fields and the text has no parentheses."""
    alone = not constructor.inputs and not parser.at("(")
    return parser._apply(constructor, [], {}, token) if alone else constructor
