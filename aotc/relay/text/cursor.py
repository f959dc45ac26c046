# SPDX-License-Identifier: Apache-2.0
"""A position in a list of tokens, and the small grammars: numbers, types, attribute values.

Cursor(Source("Tensor[(1, n<=8), float32]", "example")).type_()
"""

from __future__ import annotations

import re
from typing import Final, NoReturn

import numpy as np

from aotc.ir.diagnostics import AotcError
from aotc.ir.dims import Dim, SymDim
from aotc.ir.dtype import DType
from aotc.ir.types import MOST_NESTED, FuncType, TensorType, TupleType, Type
from aotc.relay.text.lexer import Source, Token
from aotc.relay.text.literals import quoted

_NUMBER: Final = re.compile(r"(inf|nan|[\d.]+(?:[eE][+-]?\d+)?)(?:([fiu])(\d*))?")
MOST_DIGITS: Final = 1000
"""Most characters of a number: any double has its value in fewer, and Python reads no whole number of many more."""
_KINDS: Final = {"f": "float", "i": "int", "u": "uint"}


class Cursor:
    """Reads tokens one after the other.  Every error is an AotcError that points at the text."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.tokens = source.tokens()
        self.position = 0
        self._depth = 0

    @property
    def token(self) -> Token:
        """The token to be read next."""
        return self.tokens[self.position]

    @property
    def following(self) -> Token:
        """The token after the next one."""
        return self.tokens[min(self.position + 1, len(self.tokens) - 1)]

    def fail(self, message: str, token: Token | None = None, code: str = "syntax", hint: str = "") -> NoReturn:
        """Raise AotcError at `token` (the next one if None)."""
        self.source.fail(code, message, (token or self.token).offset, hint)

    def refuse(self, error: AotcError, token: Token) -> NoReturn:
        """Raise what a lower floor objected to, with the place in the text."""
        first = error.diagnostics[0]
        self.source.fail(first.code, first.message, token.offset, first.hint)

    def advance(self) -> Token:
        """Read the next token."""
        token = self.token
        if token.kind != "end":
            self.position += 1
        return token

    def at(self, text: str, kind: str = "punct") -> bool:
        """Whether the next token is this one."""
        return self.token.kind == kind and self.token.text == text

    def accept(self, text: str, kind: str = "punct") -> bool:
        """Read the next token if it is this one."""
        found = self.at(text, kind)
        if found:
            self.position += 1
        return found

    def expect(self, text: str, kind: str = "punct") -> Token:
        """Read this token; AotcError if another one comes."""
        if not self.at(text, kind):
            self.fail(f"expected `{text}`, found {self.token}")
        return self.advance()

    def expect_kind(self, kind: str, what: str) -> Token:
        """Read a token of this kind; AotcError if another one comes."""
        if self.token.kind != kind:
            self.fail(f"expected {what}, found {self.token}")
        return self.advance()

    def number(self) -> tuple[int | float, str]:
        """A number, perhaps negative, and the data type that its suffix names or implies."""
        negative = self.accept("-")
        token = self.expect_kind("number", "a number")
        match = _NUMBER.fullmatch(token.text)
        if len(token.text) > MOST_DIGITS:
            self.fail(f"a number of {len(token.text)} characters", token)
        if match is None:
            self.fail(f"malformed number {token}", token)
        digits, kind, bits = match.groups()
        real = kind == "f" or not digits.isdigit()
        value = float(digits) if real else int(digits)
        if real and value == float("inf") and "inf" not in digits:
            self.fail(f"{digits} does not fit any data type", token)
        value = -value if negative else value
        if kind is None:
            wide = isinstance(value, int) and not -(1 << 31) <= value < 1 << 31
            name = "float32" if real else "int64" if wide else "int32"
        else:
            name = f"{_KINDS[kind]}{bits or '32'}"
        if real and not name.startswith("float"):
            self.fail(f"malformed number {token}", token)
        return value, name

    def scalar(self) -> np.ndarray[tuple[()], np.dtype[np.generic]]:
        """A number as a 0-d array; AotcError if its data type cannot hold it."""
        token = self.token
        value, name = self.number()
        try:
            dtype = DType(name)
        except AotcError as error:
            self.refuse(error, token)
        if isinstance(value, int) and not dtype.is_float and not dtype.min <= value <= dtype.max:
            self.fail(f"{value} does not fit {dtype}", token)
        with np.errstate(over="ignore"):
            array = np.asarray(value, dtype.numpy)
        if dtype.is_float and np.isinf(array) and abs(value) != float("inf"):
            self.fail(f"{value} does not fit {dtype}", token)
        return array

    def value(self) -> object:
        """An attribute value: number, string, True, False, None, [list] (a tuple) or {map}."""
        token = self.token
        self._enter()
        result: object
        if token.kind == "string":
            result = self.advance().text
        elif self.at("-") or token.kind == "number":
            result = self.number()[0]
        elif self.accept("["):
            result = self._list()
        elif self.accept("{"):
            result = self._map()
        elif token.kind == "name" and token.text in _WORDS:
            result = _WORDS[self.advance().text]
        else:
            self.fail(f"expected an attribute value, found {token}")
        self._depth -= 1
        return result

    def _enter(self) -> None:
        self._depth += 1
        if self._depth > MOST_NESTED:
            self.fail(f"nested more than {MOST_NESTED} deep")

    def _list(self) -> tuple[object, ...]:
        items = []
        while not self.accept("]"):
            items.append(self.value())
            if not self.at("]"):
                self.expect(",")
        return tuple(items)

    def _map(self) -> dict[str, object]:
        items = {}
        while not self.accept("}"):
            key = self.expect_kind("string", "a string").text
            self.expect(":")
            items[key] = self.value()
            if not self.at("}"):
                self.expect(",")
        return items

    def type_(self) -> Type:
        """A type: Tensor[(1, n), float32], float32, (A, B), fn (A) -> B."""
        self._enter()
        result: Type
        if self.accept("("):
            result = TupleType(self._types())
        elif self.accept("fn", "name"):
            self.expect("(")
            args = self._types()
            self.expect("->")
            result = FuncType(args, self.type_())
        elif self.at("Tensor", "name") and self.following.text == "[":
            result = self._tensor()
        else:
            result = TensorType((), self._dtype())
        self._depth -= 1
        return result

    def _types(self) -> list[Type]:
        items = []
        while not self.accept(")"):
            items.append(self.type_())
            if not self.at(")"):
                self.expect(",")
        return items

    def _tensor(self) -> TensorType:
        start = self.token
        self.expect("Tensor", "name")
        self.expect("[")
        self.expect("(")
        dims: list[Dim] = []
        while not self.accept(")"):
            dims.append(self._dim())
            if not self.at(")"):
                self.expect(",")
        self.expect(",")
        dtype = self._dtype()
        self.expect("]")
        try:
            return TensorType(dims, dtype)
        except AotcError as error:
            self.refuse(error, start)

    def _dtype(self) -> str:
        token = self.expect_kind("name", "a type")
        try:
            return DType(token.text)
        except AotcError as error:
            self.refuse(error, token)

    def _dim(self) -> Dim:
        if self.token.kind == "number":
            return self._size()
        if self.accept("?"):
            name = ""
        elif self.token.kind in ("name", "string"):
            name = self.advance().text
        else:
            self.fail(f"expected a dimension, found {self.token}")
        return SymDim(name, self._size() if self.accept("<=") else None)

    def _size(self) -> int:
        token = self.expect_kind("number", "a size")
        if not token.text.isdigit():
            self.fail(f"expected a size, found {quoted(token.text)}", token)
        return int(token.text)


_WORDS: Final = {"True": True, "False": False, "None": None, "nullptr": None}
