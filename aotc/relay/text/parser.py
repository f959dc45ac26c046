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

from aotc.ir import (
    FuncType,
    GlobalTypeVar,
    Op,
    Span,
    Task,
    TupleType,
    did_you_mean_hint,
    get_op,
    make_node,
    run_recursive_task,
)
from aotc.relay import expr as graph_api
from aotc.relay.adt import Clause, Pattern, PatternConstructor, PatternTuple, PatternVar, PatternWildcard, TypeData
from aotc.relay.expr import Call, Constant, Constructor, Expr, Function, GlobalVar, If, Let, Match, RefCreate, RefRead
from aotc.relay.graph_api import IRModule, RefWrite, Tuple, TupleGetItem, Var, tuple_fields_hint
from aotc.relay.text.lexer import Source, Token
from aotc.relay.text.literal_printer import METADATA_CONSTANT_KEY, TEXT_FORMAT_VERSION, constants_from_metadata_json
from aotc.relay.text.parser_symbol_table import SymbolTable
from aotc.relay.text.token_cursor_and_type_grammar import (
    SYNTAX_HINTS,
    Cursor,
    parse_attribute_value,
    parse_attribute_value_or_dimension,
    parse_scalar_array,
    parse_type,
    parse_type_parameters_into_scope,
)
from aotc.relay.text.typed_attributes_of_parsed_call import accepts_symbolic_dimension, make_typed_attrs

#: Precedence (higher binds tighter; all associate to the left) and operator of each infix sign.
_OPERATORS_BY_PRECEDENCE: Final = {
    12: {"*": "multiply", "/": "divide"},
    10: {"+": "add", "-": "subtract"},
    8: {"<": "less", "<=": "less_equal", ">": "greater", ">=": "greater_equal"},
    7: {"==": "equal", "!=": "not_equal"},
}
_INFIX_PRECEDENCE_AND_OPERATOR: Final = {
    symbol: (level, name) for level, names in _OPERATORS_BY_PRECEDENCE.items() for symbol, name in names.items()
}

_RESERVED_WORDS: Final = frozenset({"def", "else", "extern", "free_var", "let", "type"})

#: For each keyword of an operation on references, its number of arguments and the class of its
#: node.
_REFERENCE_KEYWORDS: Final[Mapping[str, tuple[int, Callable[..., Expr]]]] = MappingProxyType(
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
    parser.meta = parser.meta if init_meta_table is None else [*init_meta_table.get(METADATA_CONSTANT_KEY, ())]
    given = IRModule() if init_module is None else init_module
    for data in given.type_definitions.values():
        parser.types[data.header.name] = data.header
        parser.constructors.update((c.name_hint, c) for c in data.constructors)
    _parse_version_line(parser, required=True)
    module = _parse_module(parser)
    types = {**given.type_definitions, **module.type_definitions}
    return IRModule({**given.functions, **module.functions}, {**given.attrs, **module.attrs}, types)


def parse_expr(text: str, source_name: str = "from_string") -> Expr:
    """Return the expression described by Relay text; the version line is optional.

    Raise AotcError for the errors that `parse` lists.
    """
    parser = _Parser(Source(text, source_name))
    _parse_version_line(parser, required=False)
    return _parse_expression_until_end_of_text(parser)


# --- programs


def _parse_version_line(cursor: Cursor, required: bool) -> None:
    """Parse the version line and check the version; raise AotcError if it is missing but
    `required`.
    """
    if cursor.current_token.kind != "version":
        if required:
            hint = f'you can annotate it as #[version = "{TEXT_FORMAT_VERSION}"]'
            cursor.raise_syntax_error(f"expected text format semantic version, found {cursor.current_token}", hint=hint)
        return
    cursor.take_token()
    token = cursor.take_token_of_kind("string", "a version")
    if token.text != TEXT_FORMAT_VERSION:
        cursor.raise_syntax_error(
            f'invalid semantic version "{token.text}"', token, hint=f"this is version {TEXT_FORMAT_VERSION}"
        )
    cursor.take_expected_token("]")


def _parse_module(parser: _Parser) -> IRModule:
    attrs = _parse_module_attributes(parser)
    if parser.current_token.kind != "end" and not any(
        parser.is_at_token(word, "name") for word in ("def", "type", "extern")
    ):
        return IRModule(IRModule.from_expr(_parse_expression_until_end_of_text(parser)), attrs)
    for word, name in pairwise(parser.tokens):  # types may mention later ones
        if (word.kind, word.text, name.kind) == ("name", "type", "name"):
            if name.text in parser.types:
                parser.raise_syntax_error(f"type {name.text} is defined twice", name, code="redefined")
            parser.types[name.text] = GlobalTypeVar(name.text)
    functions: dict[str, Function] = {}
    types: dict[GlobalTypeVar, TypeData] = {}
    while parser.current_token.kind != "end":
        if parser.is_at_token("type", "name") or parser.is_at_token("extern", "name"):
            data = _parse_type_definition(parser)
            types[data.header] = data
        elif parser.skip_token_if("def", "name"):
            token = parser.take_token_of_kind("global", "the name of a function")
            if token.text in functions:
                parser.raise_syntax_error(f"function @{token.text} is defined twice", token, code="redefined")
            parser.names.forget_named_nodes()
            functions[token.text] = parser.names.check_named_nodes_in_scope(
                run_recursive_task(parser.parse_function(token))
            )
        else:
            parser.raise_syntax_error(f"expected `def`, found {parser.current_token}", hint=SYNTAX_HINTS["module"])
    return IRModule(functions, attrs, types)


def _parse_type_definition(parser: _Parser) -> TypeData:
    """Parse the definition of an algebraic data type; an extern type has no constructors."""
    extern = parser.skip_token_if("extern", "name")
    parser.take_expected_token("type", "name")
    header = parser.types[parser.take_token_of_kind("name", "the name of a type").text]
    assert isinstance(header, GlobalTypeVar)
    constructors: list[Constructor] = []
    with parse_type_parameters_into_scope(parser) as generic:
        if not extern:
            parser.take_expected_token("{")
            for _ in parser.yield_before_comma_separated_items("}"):
                token = parser.take_token_of_kind("name", "a constructor")
                if token.text in parser.constructors or token.text in parser.types:
                    parser.raise_syntax_error(f"{token.text} is defined twice", token, code="redefined")
                inputs = (
                    [parse_type(parser) for _ in parser.yield_before_comma_separated_items(")")]
                    if parser.skip_token_if("(")
                    else []
                )
                constructors.append(Constructor(token.text, tuple(inputs), header, parser.span_of_token(token)))
                parser.constructors[token.text] = constructors[-1]
    return TypeData(header, generic, constructors)


def _parse_module_attributes(cursor: Cursor) -> dict[str, Any]:
    attrs: dict[str, Any] = {}
    if cursor.skip_token_if("attributes", "name"):
        cursor.take_expected_token("{")
        while not cursor.skip_token_if("}"):
            key = cursor.take_token_of_kind("string", "the name of an attribute").text
            cursor.take_expected_token("=")
            attrs[key] = parse_attribute_value(cursor)
    return attrs


def _parse_expression_until_end_of_text(parser: _Parser) -> Expr:
    """Parse an expression; raise AotcError if anything follows it."""
    result = parser.names.check_named_nodes_in_scope(run_recursive_task(parser.parse_block_contents()))
    if parser.current_token.kind != "end":
        parser.raise_syntax_error(
            f"expected the end of the text, found {parser.current_token}", hint=SYNTAX_HINTS["module"]
        )
    return result


# --- expressions


class _Parser(Cursor):
    """Recursive-descent parser; generators replace the call stack where expressions nest."""

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self.names = SymbolTable(self)
        self.constructors: dict[str, Constructor] = {}
        self.meta: list[Constant] | None = None
        if len(self.tokens) > 1 and self.tokens[-2].kind == "metadata":
            start = self.tokens[-2].offset
            self.meta = [
                Constant(data)
                for data in constants_from_metadata_json(self.tokens[-1].text, source.span_at_offset(start))
            ]
            del self.tokens[-2]

    def span_of_token(self, token: Token) -> Span:
        return self.source.span_at_offset(token.offset)

    def parse_block_contents(self) -> Task[Expr]:
        """Parse the contents of a block: definitions (`%0 =`, `let`, `free_var`) followed by the
        result expression.
        """
        lets: list[tuple[Var, Expr, Span]] = []
        with self.names.variable_scope():
            while True:
                token = self.current_token
                if token.kind == "temp" and self.token_after_current.text == "=":
                    self.position += 2
                    self.names.define_named_node(token, (yield self._parse_expression()))
                    self.take_expected_token(";")
                elif self.skip_token_if("let", "name"):
                    lets.append((yield self._parse_let_binding(token)))
                elif self.skip_token_if("free_var", "name"):
                    free = self._parse_variable_declaration()
                    self.names.bind_free_variable(free.name, free)
                    self.take_expected_token(";")
                else:
                    body: Expr = yield self._parse_expression()
                    if not self.skip_token_if(";"):
                        break
                    unused = graph_api.with_checked_type(Var("v", None, self.span_of_token(token)), body.checked_type)
                    lets.append((unused, body, self.span_of_token(token)))
        for var, bound, span in reversed(lets):
            body = Let(var, bound, body, span)
        return body

    def _parse_variable_declaration(self) -> Var:
        """Parse the declaration of a variable with an optional type annotation."""
        token = self.take_token_of_kind("local", "a variable")
        return Var(token.text, parse_type(self) if self.skip_token_if(":") else None, self.span_of_token(token))

    def _parse_let_binding(self, start: Token) -> Task[tuple[Var, Expr, Span]]:
        var = self._parse_variable_declaration()
        self.take_expected_token("=")
        if self.is_at_token("fn", "name"):  # bound first, as a function may call itself
            self.names.bind_variable(var.name, var)
            bound: Expr = yield self._parse_expression()
        else:
            bound = yield self._parse_expression()
            var = var if var.annotation is not None else graph_api.with_checked_type(var, bound.checked_type)
            self.names.bind_variable(var.name, var)
        self.take_expected_token(";")
        return var, bound, self.span_of_token(start)

    def _parse_braced_block(self) -> Task[Expr]:
        self.take_expected_token("{")
        body: Expr = yield self.parse_block_contents()
        self.take_expected_token("}")
        return body

    def parse_function(self, start: Token) -> Task[Function]:
        """Parse the text after `fn` or `def @name`: parameters, attributes, result type and body."""
        params: list[Var] = []
        attrs: dict[str, Any] = {}
        with self.names.variable_scope(), parse_type_parameters_into_scope(self) as generic:
            self.take_expected_token("(")
            for _ in self.yield_before_comma_separated_items(")"):
                token = self.current_token
                if token.kind == "local":
                    param = self._parse_variable_declaration()
                    if self.names.is_bound_in_innermost_block(param.name):
                        self.raise_syntax_error(f"parameter %{param.name} is named twice", token, code="redefined")
                    params.append(self.names.bind_variable(param.name, param))
                else:
                    self._parse_attribute_into(attrs)
            ret_type = parse_type(self) if self.skip_token_if("->") else None
            body = yield from self._parse_braced_block()
        return Function(params, body, ret_type, generic, attrs, self.span_of_token(start))

    def _parse_attribute_into(self, attrs: dict[str, Any], callee: Expr | None = None) -> None:
        token = self.current_token
        if token.kind not in ("name", "string"):
            self.raise_syntax_error(
                f"expected a variable or an attribute, found {token}", hint="write %x or name=value"
            )
        self.take_token()
        self.take_expected_token("=")
        if token.text in attrs:
            self.raise_syntax_error(
                f"attribute `{token.text}` is given twice", token, code="attribute", hint="remove one of the two"
            )
        is_dimension_allowed = accepts_symbolic_dimension(callee, token.text)
        parse_value = parse_attribute_value_or_dimension if is_dimension_allowed else parse_attribute_value
        attrs[token.text] = parse_value(self)

    def _parse_expression(self) -> Task[Expr]:
        """Parse operands joined by infix operators: precedence climbing with an explicit stack."""
        operands = [(yield from self._parse_postfix_expression())]
        pending: list[tuple[int, str, Token]] = []
        while self.current_token.kind == "punct" and self.current_token.text in _INFIX_PRECEDENCE_AND_OPERATOR:
            token = self.take_token()
            level, name = _INFIX_PRECEDENCE_AND_OPERATOR[token.text]
            self._build_pending_infix_calls(operands, pending, level)
            pending.append((level, name, token))
            operands.append((yield from self._parse_postfix_expression()))
        self._build_pending_infix_calls(operands, pending, 0)
        return operands[0]

    def _build_pending_infix_calls(
        self, operands: list[Expr], pending: list[tuple[int, str, Token]], min_precedence: int
    ) -> None:
        """Build the calls of all pending infix operators whose precedence is at least
        `min_precedence`.
        """
        while pending and pending[-1][0] >= min_precedence:
            _, name, token = pending.pop()
            right = operands.pop()
            operands[-1] = self._build_typed_call(self._get_operator(name, token), [operands[-1], right], {}, token)

    def _parse_postfix_expression(self) -> Task[Expr]:
        """Parse a primary expression followed by any number of call arguments `(...)` and field
        accesses `.0`.
        """
        start = self.current_token
        result = yield from self._parse_primary_expression()
        while True:
            if self.skip_token_if("("):
                result = yield from self._parse_call_arguments(result, start)
            elif self.current_token.kind == "field":
                result = self._parse_tuple_field_access(result, start)
            else:
                return result

    def _parse_tuple_field_access(self, whole: Expr, start: Token) -> TupleGetItem:
        token = self.take_token()
        index, ty = int(token.text), whole.checked_type
        if ty is not None and not (isinstance(ty, TupleType) and index < len(ty.fields)):
            self.raise_syntax_error(
                f"a value of type {ty} has no field {index}", token, code="type", hint=tuple_fields_hint(ty)
            )
        return TupleGetItem(whole, index, self.span_of_token(start))

    def _parse_primary_expression(self) -> Task[Expr]:
        token = self.current_token
        match token.kind:
            case "temp":
                return self.names.lookup_named_node(self.take_token())
            case "local":
                return self.names.lookup_variable(self.take_token())
            case "global":
                return GlobalVar(self.take_token().text, self.span_of_token(token))
            case "number":
                return Constant(parse_scalar_array(self), self.span_of_token(token))
            case "punct" if token.text == "-":
                return self._parse_number_after_minus_signs()
            case "punct" if token.text == "(":
                return (yield from self._parse_tuple_or_parentheses())
            case "name":
                return (yield from self._parse_expression_starting_with_word())
            case _:
                self.raise_syntax_error(f"expected an expression, found {token}", hint=SYNTAX_HINTS["expression"])

    def _parse_number_after_minus_signs(self) -> Constant:
        """Parse a numeric literal with one or more minus signs."""
        start, flip = self.current_token, False
        while self.token_after_current.text == "-":
            self.take_token()
            flip = not flip
        if self.token_after_current.kind != "number":
            self.raise_syntax_error(
                f"expected an expression, found {start}", hint="negative(%x) changes signs of variables"
            )
        value = parse_scalar_array(self)
        return Constant(np.negative(value) if flip else value, self.span_of_token(start))

    def _parse_expression_starting_with_word(self) -> Task[Expr]:
        """Parse an expression that begins with a word: a keyword, True, False, meta, a constructor
        or an operator.
        """
        token = self.take_token()
        match token.text:
            case "fn":
                return (yield from self.parse_function(token))
            case "if":
                return (yield from self._parse_if(token))
            case "True" | "False":
                return Constant(np.asarray(token.text == "True"), self.span_of_token(token))
            case "meta":
                return self._parse_metadata_constant(token)
            case "match":
                return (yield from _parse_match(self, token))
            case "ref" | "ref_read" | "ref_write":
                return (yield from _parse_mutable_reference_operation(self, token))
            case text if text in self.constructors:
                return _constructor_or_empty_call(self, self.constructors[text], token)
            case text if text in _RESERVED_WORDS:
                self.raise_syntax_error(
                    f"expected an expression, found the keyword {token}", token, hint=SYNTAX_HINTS["expression"]
                )
            case text:
                return self._get_operator(text, token)

    def _get_operator(self, name: str, token: Token) -> Op:
        with self.relocate_errors_to_token(token):
            return get_op(name, self.constructors)

    def _parse_if(self, start: Token) -> Task[Expr]:
        self.take_expected_token("(")
        cond: Expr = yield self._parse_expression()
        self.take_expected_token(")")
        yes = yield from self._parse_braced_block()
        self.take_expected_token("else", "name")
        no = yield from self._parse_braced_block()
        return If(cond, yes, no, self.span_of_token(start))

    def _parse_tuple_or_parentheses(self) -> Task[Expr]:
        """Parse a tuple, or an expression (with optional definitions) in parentheses."""
        start = self.take_expected_token("(")
        if self.skip_token_if(")"):
            return Tuple((), self.span_of_token(start))
        first: Expr = yield self.parse_block_contents()
        if self.skip_token_if(")"):
            return first
        self.take_expected_token(",")
        fields = [first]
        for _ in self.yield_before_comma_separated_items(")"):
            fields.append((yield self._parse_expression()))
        with self.relocate_errors_to_token(start):  # the type of a tuple may exceed the nesting limit of types
            return Tuple(fields, self.span_of_token(start))

    def _parse_metadata_constant(self, start: Token) -> Constant:
        self.take_expected_token("[")
        key = self.take_token_of_kind("name", "a metadata key")
        self.take_expected_token("]")
        self.take_expected_token("[")
        index = self.take_token_of_kind("number", "an index")
        self.take_expected_token("]")
        if self.meta is None:
            hint = "print the program with astext(show_meta_data=True)"
            self.raise_syntax_error("the text has no metadata section", start, code="metadata", hint=hint)
        if key.text != METADATA_CONSTANT_KEY or not index.text.isdigit() or int(index.text) >= len(self.meta):
            hint = f"it has {len(self.meta)} items, {METADATA_CONSTANT_KEY}[0] being the first"
            self.raise_syntax_error(
                f"the metadata section has no {key.text}[{index.text}]", start, code="metadata", hint=hint
            )
        return self.meta[int(index.text)]

    def _parse_call_arguments(self, callee: Expr, start: Token) -> Task[Expr]:
        """Parse call arguments and attributes up to `)` and return the call of `callee`."""
        args: list[Expr] = []
        attrs: dict[str, Any] = {}
        for _ in self.yield_before_comma_separated_items(")"):
            if self.current_token.kind == "name" and self.token_after_current.text == "=":
                self._parse_attribute_into(attrs, callee)
            elif attrs:
                self.raise_syntax_error("an argument cannot follow an attribute", hint="write all arguments first")
            else:
                args.append((yield self._parse_expression()))
        return self._build_typed_call(callee, args, attrs, start)

    def _build_typed_call(self, callee: Expr, args: list[Expr], attrs: Mapping[str, Any], start: Token) -> Call:
        """Return a call of `callee`, with its type if the types of its parts are known; raise
        AotcError for an invalid call.
        """
        if isinstance(callee, Op):
            with self.relocate_errors_to_token(start):
                return graph_api.typed_op_call(callee, args, make_typed_attrs(callee, attrs), self.span_of_token(start))
        if isinstance(callee, (Tuple, Constant, RefCreate, RefWrite)):
            self.raise_syntax_error(
                f"a {type(callee).__name__.lower()} cannot be called", start, hint=SYNTAX_HINTS["callee"]
            )
        key = attrs.get("attrs_type_key", "" if attrs else None)
        if key == "":
            self.raise_syntax_error("only operators take attributes", start, hint="pass it as an argument")
        ty = callee.checked_type
        result = ty.ret_type if isinstance(ty, FuncType) and not ty.type_params else None
        given = {name: v for name, v in attrs.items() if name != "attrs_type_key"}
        attrs_node = None if key is None else make_node(str(key), **given)
        return Call(callee, args, attrs_node, span=self.span_of_token(start), checked_type=result)


def _parse_mutable_reference_operation(parser: _Parser, token: Token) -> Task[Expr]:
    parser.take_expected_token("(")
    args: list[Expr] = []
    for _ in parser.yield_before_comma_separated_items(")"):
        args.append((yield parser._parse_expression()))
    count, make = _REFERENCE_KEYWORDS[token.text]
    if len(args) != count:
        parser.raise_syntax_error(
            f"{token.text} takes {count} arguments, got {len(args)}", token, hint=SYNTAX_HINTS["reference"]
        )
    return make(*args, span=parser.span_of_token(token))


def _parse_match(parser: _Parser, start: Token) -> Task[Expr]:
    complete = not parser.skip_token_if("?")
    parser.take_expected_token("(")
    data: Expr = yield parser._parse_expression()
    parser.take_expected_token(")")
    parser.take_expected_token("{")
    clauses: list[Clause] = []
    for _ in parser.yield_before_comma_separated_items("}"):
        with parser.names.variable_scope():
            pattern = _parse_pattern(parser)
            parser.take_expected_token("=>")
            value: Expr = yield (
                parser._parse_braced_block() if parser.is_at_token("{") else parser.parse_block_contents()
            )
        clauses.append(Clause(pattern, value))
    return Match(data, tuple(clauses), complete, parser.span_of_token(start))


def _parse_pattern(parser: _Parser) -> Pattern:
    with parser.limit_nesting_depth():
        if parser.skip_token_if("("):
            return PatternTuple([_parse_pattern(parser) for _ in parser.yield_before_comma_separated_items(")")])
        if parser.current_token.kind == "local":
            var = parser._parse_variable_declaration()
            return PatternVar(parser.names.bind_variable(var.name, var))
        token = parser.take_token_of_kind("name", "a pattern")
        if token.text == "_":
            return PatternWildcard()
        if token.text not in parser.constructors:
            hint = did_you_mean_hint(token.text, parser.constructors) or "variables of patterns are written %name"
            parser.raise_syntax_error(f"no constructor is called {token.text}", token, hint=hint)
        fields = (
            [_parse_pattern(parser) for _ in parser.yield_before_comma_separated_items(")")]
            if parser.skip_token_if("(")
            else []
        )
        return PatternConstructor(parser.constructors[token.text], fields)


def _constructor_or_empty_call(parser: _Parser, constructor: Constructor, token: Token) -> Expr:
    """Return a constructor, or a call of it if it has no fields and the text has no parentheses."""
    alone = not constructor.inputs and not parser.is_at_token("(")
    return parser._build_typed_call(constructor, [], {}, token) if alone else constructor
