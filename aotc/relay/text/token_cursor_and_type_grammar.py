# SPDX-License-Identifier: Apache-2.0
"""Token cursor of the Relay parser, with the grammars of numbers, attribute values and types.

parse_type(Cursor(Source("Tensor[(1, n<=8), float32]", "example")))
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NoReturn

import numpy as np

from aotc.ir import AotcError, Dim, DType, IncompleteType, SymDim, dim_in_attribute
from aotc.ir.types import (
    MAX_TYPE_DEPTH,
    FuncType,
    GlobalTypeVar,
    RefType,
    TensorType,
    TupleType,
    Type,
    TypeCall,
    TypeVar,
)
from aotc.relay.text.lexer import Source, Token
from aotc.relay.text.literal_printer import quote_string

#: Largest number of characters of a numeric literal.  Every double can be written with fewer;
#: Python's own limit for integers (4300 digits) is not reached.
MAX_NUMBER_CHARACTERS: Final = 1000

_NUMBER_REGEX: Final = re.compile(r"(inf|nan|[\d.]+(?:[eE][+-]?\d+)?)(?:([fiu])(\d*))?")
_DTYPE_NAME_BY_SUFFIX: Final = {"f": "float", "i": "int", "u": "uint"}
_CONSTANT_WORDS: Final = {"True": True, "False": False, "None": None, "nullptr": None}


#: Hints of syntax errors, keyed by the expected token, the expected kind of token, the construct,
#: or the error code.
SYNTAX_HINTS: Final = {
    "{": "bodies, branches and definitions stand in braces",
    ";": "`let` and `%0 = ...` end with `;`, then comes what they are for",
    ",": "commas separate items; close the list after the last one",
    "else": "write both branches: if (%c) { ... } else { ... }",
    "=": "`=` stands before the value; variables begin with %",
    "=>": "a clause is written `pattern => value`",
    "name": "names have letters, digits, `_` and `.`, and no sigil",
    "local": "variables are written %name",
    "global": "functions are written @name",
    "number": "write a number, such as 3",
    "string": 'write it in double quotes: "..."',
    "redefined": "give one of the two another name",
    "digits": "numbers are written 1, 2i64, 1.5f, 2e-3f16",
    "size": "sizes are 0, 1, 2 and so on; one that is not known is `?` or a name",
    "expression": "write %variable, @function, a number, a call, a tuple, `if`, `fn` or `match`",
    "module": "a module is made of `def @f() { ... }` and `type T { ... }`; an expression stands alone",
    "reference": "write ref(value), ref_read(reference) or ref_write(reference, value)",
    "callee": "call an operator, @function or %variable",
}


class Cursor:
    """Cursor over the tokens of a source text. Every error is an AotcError with the position in the
    text.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.tokens = source.tokenize()
        self.position = 0
        self.types: dict[str, TypeVar | GlobalTypeVar] = {}  # type variables and data types in scope
        self._depth = 0

    @property
    def current_token(self) -> Token:
        """The current token, which is read next."""
        return self.tokens[self.position]

    @property
    def token_after_current(self) -> Token:
        """The token after the current token."""
        return self.tokens[min(self.position + 1, len(self.tokens) - 1)]

    def raise_syntax_error(
        self, message: str, token: Token | None = None, code: str = "syntax", hint: str = ""
    ) -> NoReturn:
        """Raise AotcError at the position of `token`, or of the current token if `token` is None."""
        self.source.raise_error_at(
            code, message, (token or self.current_token).offset, hint or SYNTAX_HINTS.get(code, "")
        )

    @contextmanager
    def relocate_errors_to_token(self, token: Token) -> Iterator[None]:
        """Context in which an AotcError is raised again with the position of `token` in the text."""
        try:
            yield
        except AotcError as error:
            first = error.diagnostics[0]
            self.source.raise_error_at(first.code, first.message, token.offset, first.hint)

    def take_token(self) -> Token:
        """Return the current token and move to the next token."""
        token = self.current_token
        if token.kind != "end":
            self.position += 1
        return token

    def is_at_token(self, text: str, kind: str = "punct") -> bool:
        """Return True if the current token has this text and kind."""
        return self.current_token.kind == kind and self.current_token.text == text

    def skip_token_if(self, text: str, kind: str = "punct") -> bool:
        """Skip the current token if it has this text and kind; return True if it did."""
        is_match = self.is_at_token(text, kind)
        if is_match:
            self.position += 1
        return is_match

    def take_expected_token(self, text: str, kind: str = "punct") -> Token:
        """Read a token with this text and kind and return it; raise AotcError if the current token
        is another token.
        """
        if not self.is_at_token(text, kind):
            hint = SYNTAX_HINTS.get(text) or f"write `{text}` after {self.tokens[self.position - 1]}"
            self.raise_syntax_error(f"expected `{text}`, found {self.current_token}", hint=hint)
        return self.take_token()

    def take_token_of_kind(self, kind: str, description: str) -> Token:
        """Read a token of this kind and return it; raise AotcError if the current token is of
        another kind.

        description    description of the expected token for the error message
        """
        if self.current_token.kind != kind:
            self.raise_syntax_error(f"expected {description}, found {self.current_token}", hint=SYNTAX_HINTS[kind])
        return self.take_token()

    def yield_before_comma_separated_items(self, closing_token: str) -> Iterator[None]:
        """Yield before each item of a comma-separated list, and read the commas and the closing
        token `closing_token`.

        A comma after the last item is allowed.
        """
        while not self.skip_token_if(closing_token):
            yield
            if not self.is_at_token(closing_token):
                self.take_expected_token(",")

    @contextmanager
    def limit_nesting_depth(self) -> Iterator[None]:
        """Context that counts one level of nesting; raise AotcError if the limit MAX_TYPE_DEPTH is
        exceeded.
        """
        self._depth += 1
        if self._depth > MAX_TYPE_DEPTH:
            self.raise_syntax_error(f"nested more than {MAX_TYPE_DEPTH} deep", hint="name parts of it: %0 = ...;")
        yield
        self._depth -= 1


# --- numbers


def parse_number_and_dtype(cursor: Cursor) -> tuple[int | float, str]:
    """Parse a number with an optional minus sign; return its value and the data type named or
    implied by its suffix.
    """
    negative = cursor.skip_token_if("-")
    token = cursor.take_token_of_kind("number", "a number")
    match = _NUMBER_REGEX.fullmatch(token.text)
    if len(token.text) > MAX_NUMBER_CHARACTERS:
        cursor.raise_syntax_error(
            f"a number of {len(token.text)} characters", token, hint=f"write at most {MAX_NUMBER_CHARACTERS}"
        )
    if match is None:
        cursor.raise_syntax_error(f"malformed number {token}", token, hint=SYNTAX_HINTS["digits"])
    digits, kind, bits = match.groups()
    real = kind == "f" or not digits.isdigit()
    value = float(digits) if real else int(digits)
    if real and value == float("inf") and "inf" not in digits:
        cursor.raise_syntax_error(f"{digits} does not fit any data type", token, hint="write inff for infinity")
    value = -value if negative else value
    if kind is None:
        wide = isinstance(value, int) and not -(1 << 31) <= value < 1 << 31
        name = "float32" if real else "int64" if wide else "int32"
    else:
        name = f"{_DTYPE_NAME_BY_SUFFIX[kind]}{bits or '32'}"
    if real and not name.startswith("float"):
        cursor.raise_syntax_error(f"malformed number {token}", token, hint=SYNTAX_HINTS["digits"])
    return value, name


def parse_scalar_array(cursor: Cursor) -> np.ndarray[tuple[()], np.dtype[np.generic]]:
    """Parse a number and return it as a 0-d array; raise AotcError if its data type cannot
    represent it.
    """
    token = cursor.current_token
    value, name = parse_number_and_dtype(cursor)
    with cursor.relocate_errors_to_token(token):
        dtype = DType(name)
    if isinstance(value, int) and not dtype.is_float and not dtype.min <= value <= dtype.max:
        cursor.raise_syntax_error(
            f"{value} does not fit {dtype}", token, hint=f"it holds {dtype.min} to {dtype.max}; see i64, u8"
        )
    with np.errstate(over="ignore"):
        array = np.asarray(value, dtype.numpy)
    if dtype.is_float and np.isinf(array) and abs(value) != float("inf"):
        cursor.raise_syntax_error(f"{value} does not fit {dtype}", token, hint=f"it holds up to {dtype.max}; see f64")
    return array


# --- attribute values


def parse_attribute_value(cursor: Cursor) -> object:
    """Parse an attribute value: a number, string, True, False, None, [list] (returned as a tuple)
    or {map}.
    """
    token = cursor.current_token
    with cursor.limit_nesting_depth():
        if token.kind == "string":
            return cursor.take_token().text
        if cursor.is_at_token("-") or token.kind == "number":
            return parse_number_and_dtype(cursor)[0]
        if cursor.skip_token_if("["):
            return tuple(parse_attribute_value(cursor) for _ in cursor.yield_before_comma_separated_items("]"))
        if cursor.skip_token_if("{"):
            return {
                _parse_map_key(cursor): parse_attribute_value(cursor)
                for _ in cursor.yield_before_comma_separated_items("}")
            }
        if token.kind == "name" and token.text in _CONSTANT_WORDS:
            return _CONSTANT_WORDS[cursor.take_token().text]
    cursor.raise_syntax_error(
        f"expected an attribute value, found {token}", hint='write a number, "text", True, None, [a, b] or {}'
    )


def parse_attribute_value_or_dimension(cursor: Cursor) -> object:
    """Parse an attribute value, in which symbolic dimensions (`n`, `n<=8`, `?`) may be."""
    word = cursor.current_token.kind == "name" and cursor.current_token.text not in _CONSTANT_WORDS
    if word or cursor.is_at_token("?") or cursor.token_after_current.text == "<=":
        is_bounded_below = cursor.current_token.kind == "number"
        dim = _parse_dimension(cursor)
        return dim if is_bounded_below or isinstance(dim, int) else dim_in_attribute(dim.name, dim.upper)
    with cursor.limit_nesting_depth():
        if cursor.skip_token_if("["):
            items = cursor.yield_before_comma_separated_items("]")
            return tuple(parse_attribute_value_or_dimension(cursor) for _ in items)
    return parse_attribute_value(cursor)


def _parse_map_key(cursor: Cursor) -> str:
    key = cursor.take_token_of_kind("string", "a string").text
    cursor.take_expected_token(":")
    return key


# --- types


def parse_type(cursor: Cursor) -> Type:
    """Parse a type: Tensor[(1, n), float32], float32, (A, B), fn (A) -> B, or _ for a type to be
    inferred.
    """
    with cursor.limit_nesting_depth():
        if cursor.skip_token_if("("):
            return TupleType(_parse_types_until(cursor))
        if cursor.skip_token_if("_", "name"):
            return IncompleteType()
        if cursor.skip_token_if("fn", "name"):
            with parse_type_parameters_into_scope(cursor) as params:
                cursor.take_expected_token("(")
                args = _parse_types_until(cursor)
                cursor.take_expected_token("->")
                return FuncType(args, parse_type(cursor), params)
        if cursor.is_at_token("ref", "name") and cursor.token_after_current.text == "(":
            cursor.position += 2
            value = parse_type(cursor)
            cursor.take_expected_token(")")
            return RefType(value)
        if cursor.is_at_token("Tensor", "name") and cursor.token_after_current.text == "[":
            return _parse_tensor_type(cursor)
        named = cursor.types.get(cursor.current_token.text) if cursor.current_token.kind == "name" else None
        return TensorType((), _parse_dtype(cursor)) if named is None else _parse_named_type(cursor, named)


def _parse_named_type(cursor: Cursor, named: TypeVar | GlobalTypeVar) -> Type:
    """Parse a type variable, or a data type with its type arguments in brackets."""
    cursor.take_token()
    if isinstance(named, TypeVar):
        return named
    return TypeCall(named, _parse_types_until(cursor, "]") if cursor.skip_token_if("[") else ())


@contextmanager
def parse_type_parameters_into_scope(cursor: Cursor) -> Iterator[list[TypeVar]]:
    """Parse optional type variables in brackets; they are in scope inside the context."""
    outer = cursor.types
    names = (
        [cursor.take_token_of_kind("name", "a type variable") for _ in cursor.yield_before_comma_separated_items("]")]
        if cursor.skip_token_if("[")
        else []
    )
    params = [TypeVar(token.text) for token in names]
    for k, token in enumerate(names):
        if token.text in (n.text for n in names[:k]):
            cursor.raise_syntax_error(f"type variable {token.text} is named twice", token, code="redefined")
    cursor.types = {**outer, **{v.name: v for v in params}}
    yield params
    cursor.types = outer


def _parse_types_until(cursor: Cursor, closing_token: str = ")") -> list[Type]:
    return [parse_type(cursor) for _ in cursor.yield_before_comma_separated_items(closing_token)]


def _parse_tensor_type(cursor: Cursor) -> TensorType:
    start = cursor.take_expected_token("Tensor", "name")
    cursor.take_expected_token("[")
    cursor.take_expected_token("(")
    dims = [_parse_dimension(cursor) for _ in cursor.yield_before_comma_separated_items(")")]
    cursor.take_expected_token(",")
    dtype = _parse_dtype(cursor)
    cursor.take_expected_token("]")
    with cursor.relocate_errors_to_token(start):
        return TensorType(dims, dtype)


def _parse_dtype(cursor: Cursor) -> str:
    token = cursor.take_token_of_kind("name", "a type")
    with cursor.relocate_errors_to_token(token):
        return DType(token.text)


def _parse_dimension(cursor: Cursor) -> Dim:
    lower = 0
    if cursor.current_token.kind == "number":
        lower = _parse_static_size(cursor)
        if not cursor.skip_token_if("<="):
            return lower
    if cursor.skip_token_if("?"):
        name = ""
    elif cursor.current_token.kind in ("name", "string"):
        name = cursor.take_token().text
    else:
        cursor.raise_syntax_error(f"expected a dimension, found {cursor.current_token}", hint=SYNTAX_HINTS["size"])
    return SymDim(name, _parse_static_size(cursor) if cursor.skip_token_if("<=") else None, lower)


def _parse_static_size(cursor: Cursor) -> int:
    token = cursor.take_token_of_kind("number", "a size")
    if not token.text.isdigit():
        cursor.raise_syntax_error(
            f"expected a size, found {quote_string(token.text)}", token, hint=SYNTAX_HINTS["size"]
        )
    return int(token.text)
