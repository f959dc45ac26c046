# SPDX-License-Identifier: Apache-2.0
"""Token cursor of the Relay parser, with the grammars of numbers, attribute values and types.

type_(Cursor(Source("Tensor[(1, n<=8), float32]", "example")))
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NoReturn

import numpy as np

from aotc.ir import AotcError, Dim, DType, IncompleteType, SymDim
from aotc.ir.types import MOST_NESTED, FuncType, GlobalTypeVar, RefType, TensorType, TupleType, Type, TypeCall, TypeVar
from aotc.relay.text.lexer import Source, Token
from aotc.relay.text.literals import quoted

#: Largest number of characters of a numeric literal.  Every double can be written with fewer;
#: Python's own limit for integers (4300 digits) is not reached.
MOST_DIGITS: Final = 1000

_NUMBER: Final = re.compile(r"(inf|nan|[\d.]+(?:[eE][+-]?\d+)?)(?:([fiu])(\d*))?")
_KINDS: Final = {"f": "float", "i": "int", "u": "uint"}
_WORDS: Final = {"True": True, "False": False, "None": None, "nullptr": None}


#: Hints of syntax errors, keyed by the expected token, the expected kind of token, the construct,
#: or the error code.
HINTS: Final = {
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
        self.tokens = source.tokens()
        self.position = 0
        self.types: dict[str, TypeVar | GlobalTypeVar] = {}  # type variables and data types in scope
        self._depth = 0

    @property
    def token(self) -> Token:
        """The current token, which is read next."""
        return self.tokens[self.position]

    @property
    def following(self) -> Token:
        """The token after the current token."""
        return self.tokens[min(self.position + 1, len(self.tokens) - 1)]

    def fail(self, message: str, token: Token | None = None, code: str = "syntax", hint: str = "") -> NoReturn:
        """Raise AotcError at the position of `token`, or of the current token if `token` is None."""
        self.source.fail(code, message, (token or self.token).offset, hint or HINTS.get(code, ""))

    @contextmanager
    def placing(self, token: Token) -> Iterator[None]:
        """Context in which an AotcError is raised again with the position of `token` in the text."""
        try:
            yield
        except AotcError as error:
            first = error.diagnostics[0]
            self.source.fail(first.code, first.message, token.offset, first.hint)

    def advance(self) -> Token:
        """Return the current token and move to the next token."""
        token = self.token
        if token.kind != "end":
            self.position += 1
        return token

    def at(self, text: str, kind: str = "punct") -> bool:
        """Return True if the current token has this text and kind."""
        return self.token.kind == kind and self.token.text == text

    def accept(self, text: str, kind: str = "punct") -> bool:
        """Skip the current token if it has this text and kind; return True if it did."""
        found = self.at(text, kind)
        if found:
            self.position += 1
        return found

    def expect(self, text: str, kind: str = "punct") -> Token:
        """Read a token with this text and kind and return it; raise AotcError if the current token
        is another token.
        """
        if not self.at(text, kind):
            hint = HINTS.get(text) or f"write `{text}` after {self.tokens[self.position - 1]}"
            self.fail(f"expected `{text}`, found {self.token}", hint=hint)
        return self.advance()

    def expect_kind(self, kind: str, what: str) -> Token:
        """Read a token of this kind and return it; raise AotcError if the current token is of
        another kind.

        what  description of the expected token for the error message
        """
        if self.token.kind != kind:
            self.fail(f"expected {what}, found {self.token}", hint=HINTS[kind])
        return self.advance()

    def items(self, close: str) -> Iterator[None]:
        """Yield before each item of a comma-separated list, and read the commas and the closing
        token `close`.

        A comma after the last item is allowed.
        """
        while not self.accept(close):
            yield
            if not self.at(close):
                self.expect(",")

    @contextmanager
    def nested(self) -> Iterator[None]:
        """Context that counts one level of nesting; raise AotcError if the limit MOST_NESTED is
        exceeded.
        """
        self._depth += 1
        if self._depth > MOST_NESTED:
            self.fail(f"nested more than {MOST_NESTED} deep", hint="name parts of it: %0 = ...;")
        yield
        self._depth -= 1


# --- numbers


def number(cursor: Cursor) -> tuple[int | float, str]:
    """Parse a number with an optional minus sign; return its value and the data type named or
    implied by its suffix.
    """
    negative = cursor.accept("-")
    token = cursor.expect_kind("number", "a number")
    match = _NUMBER.fullmatch(token.text)
    if len(token.text) > MOST_DIGITS:
        cursor.fail(f"a number of {len(token.text)} characters", token, hint=f"write at most {MOST_DIGITS}")
    if match is None:
        cursor.fail(f"malformed number {token}", token, hint=HINTS["digits"])
    digits, kind, bits = match.groups()
    real = kind == "f" or not digits.isdigit()
    value = float(digits) if real else int(digits)
    if real and value == float("inf") and "inf" not in digits:
        cursor.fail(f"{digits} does not fit any data type", token, hint="write inff for infinity")
    value = -value if negative else value
    if kind is None:
        wide = isinstance(value, int) and not -(1 << 31) <= value < 1 << 31
        name = "float32" if real else "int64" if wide else "int32"
    else:
        name = f"{_KINDS[kind]}{bits or '32'}"
    if real and not name.startswith("float"):
        cursor.fail(f"malformed number {token}", token, hint=HINTS["digits"])
    return value, name


def scalar(cursor: Cursor) -> np.ndarray[tuple[()], np.dtype[np.generic]]:
    """Parse a number and return it as a 0-d array; raise AotcError if its data type cannot
    represent it.
    """
    token = cursor.token
    value, name = number(cursor)
    with cursor.placing(token):
        dtype = DType(name)
    if isinstance(value, int) and not dtype.is_float and not dtype.min <= value <= dtype.max:
        cursor.fail(f"{value} does not fit {dtype}", token, hint=f"it holds {dtype.min} to {dtype.max}; see i64, u8")
    with np.errstate(over="ignore"):
        array = np.asarray(value, dtype.numpy)
    if dtype.is_float and np.isinf(array) and abs(value) != float("inf"):
        cursor.fail(f"{value} does not fit {dtype}", token, hint=f"it holds up to {dtype.max}; see f64")
    return array


# --- attribute values


def value(cursor: Cursor) -> object:
    """Parse an attribute value: a number, string, True, False, None, [list] (returned as a tuple)
    or {map}.
    """
    token = cursor.token
    with cursor.nested():
        if token.kind == "string":
            return cursor.advance().text
        if cursor.at("-") or token.kind == "number":
            return number(cursor)[0]
        if cursor.accept("["):
            return tuple(value(cursor) for _ in cursor.items("]"))
        if cursor.accept("{"):
            return {_key(cursor): value(cursor) for _ in cursor.items("}")}
        if token.kind == "name" and token.text in _WORDS:
            return _WORDS[cursor.advance().text]
    cursor.fail(f"expected an attribute value, found {token}", hint='write a number, "text", True, None, [a, b] or {}')


def dim_value(cursor: Cursor) -> object:
    """Parse an attribute value or a symbolic dimension (`n`, `n<=8`, `?`)."""
    word = cursor.token.kind == "name" and cursor.token.text not in _WORDS
    return _dim(cursor) if word or cursor.at("?") or cursor.following.text == "<=" else value(cursor)


def _key(cursor: Cursor) -> str:
    key = cursor.expect_kind("string", "a string").text
    cursor.expect(":")
    return key


# --- types


def type_(cursor: Cursor) -> Type:
    """Parse a type: Tensor[(1, n), float32], float32, (A, B), fn (A) -> B, or _ for a type to be
    inferred.
    """
    with cursor.nested():
        if cursor.accept("("):
            return TupleType(_types(cursor))
        if cursor.accept("_", "name"):
            return IncompleteType()
        if cursor.accept("fn", "name"):
            with type_params(cursor) as params:
                cursor.expect("(")
                args = _types(cursor)
                cursor.expect("->")
                return FuncType(args, type_(cursor), params)
        if cursor.at("ref", "name") and cursor.following.text == "(":
            cursor.position += 2
            value = type_(cursor)
            cursor.expect(")")
            return RefType(value)
        if cursor.at("Tensor", "name") and cursor.following.text == "[":
            return _tensor(cursor)
        named = cursor.types.get(cursor.token.text) if cursor.token.kind == "name" else None
        return TensorType((), _dtype(cursor)) if named is None else _named(cursor, named)


def _named(cursor: Cursor, named: TypeVar | GlobalTypeVar) -> Type:
    """Parse a type variable, or a data type with its type arguments in brackets."""
    cursor.advance()
    if isinstance(named, TypeVar):
        return named
    return TypeCall(named, _types(cursor, "]") if cursor.accept("[") else ())


@contextmanager
def type_params(cursor: Cursor) -> Iterator[list[TypeVar]]:
    """Parse optional type variables in brackets; they are in scope inside the context."""
    outer = cursor.types
    names = [cursor.expect_kind("name", "a type variable") for _ in cursor.items("]")] if cursor.accept("[") else []
    params = [TypeVar(token.text) for token in names]
    for k, token in enumerate(names):
        if token.text in (n.text for n in names[:k]):
            cursor.fail(f"type variable {token.text} is named twice", token, code="redefined")
    cursor.types = {**outer, **{v.name: v for v in params}}
    yield params
    cursor.types = outer


def _types(cursor: Cursor, close: str = ")") -> list[Type]:
    return [type_(cursor) for _ in cursor.items(close)]


def _tensor(cursor: Cursor) -> TensorType:
    start = cursor.expect("Tensor", "name")
    cursor.expect("[")
    cursor.expect("(")
    dims = [_dim(cursor) for _ in cursor.items(")")]
    cursor.expect(",")
    dtype = _dtype(cursor)
    cursor.expect("]")
    with cursor.placing(start):
        return TensorType(dims, dtype)


def _dtype(cursor: Cursor) -> str:
    token = cursor.expect_kind("name", "a type")
    with cursor.placing(token):
        return DType(token.text)


def _dim(cursor: Cursor) -> Dim:
    if cursor.token.kind == "number":
        return _size(cursor)
    if cursor.accept("?"):
        name = ""
    elif cursor.token.kind in ("name", "string"):
        name = cursor.advance().text
    else:
        cursor.fail(f"expected a dimension, found {cursor.token}", hint=HINTS["size"])
    return SymDim(name, _size(cursor) if cursor.accept("<=") else None)


def _size(cursor: Cursor) -> int:
    token = cursor.expect_kind("number", "a size")
    if not token.text.isdigit():
        cursor.fail(f"expected a size, found {quoted(token.text)}", token, hint=HINTS["size"])
    return int(token.text)
