# SPDX-License-Identifier: Apache-2.0
"""Mutations of Relay text, token by token: calls of every operator, and programs with control flow."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

import numpy as np

from aotc.ir.diagnostics import AotcError
from aotc.relay.expr import Function, Var, typed_op_call
from aotc.relay.module import IRModule
from aotc.relay.op import OPERATORS_BY_NAME
from aotc.relay.text.lexer import Source
from aotc.relay.text.printer import astext
from tests.fuzz.case import ROOT, Mutations
from tests.fuzz.mutate_bytes import FLOATS, INTEGERS, STRINGS, changed_bytes, odds, pick
from tests.ops.harness import type_of_value

Generator = np.random.Generator
DTYPES = (
    "float32", "float16", "bfloat16", "float64", "int8", "uint8", "int16", "int32", "int64", "uint64", "bool", "int4",
    "float8_e4m3fn", "float33", "int",
)  # fmt: skip
LARGEST = 30_000
"""Characters of a program that is taken as a base."""


@lru_cache(maxsize=2)
def bases(everything: bool) -> Sequence[str]:
    """Modules as text: the samples of the operators (few of each unless `everything`), and kept programs."""
    texts = [p.read_text(encoding="utf-8") for p in sorted((ROOT / "tests" / "relay" / "golden").glob("*.relay"))]
    for op in OPERATORS_BY_NAME.values():
        for k, sample in enumerate(op.samples()):
            if k >= (40 if everything else 2):
                break
            params = [Var(f"a{k}", type_of_value(value)) for k, value in enumerate(sample.args)]
            try:
                texts.append(astext(IRModule({"main": Function(params, typed_op_call(op, params, sample.attrs))})))
            except AotcError:
                continue
    return [t for t in texts if len(t) < LARGEST]


def _split(text: str) -> list[str]:
    """The text in tokens, each with the space after it; the part that holds the constants is one."""
    try:
        starts = [t.offset for t in Source(text, "base").tokenize()]
    except AotcError:
        return re.findall(r"\w+\s*|\W", text)
    return [text[: starts[0]]] * (starts[0] > 0) + [
        text[a:b] for a, b in zip(starts, [*starts[1:], len(text)], strict=True) if a < b
    ]


NUMBER = re.compile(r"^-?\d[\w.+-]*")
NAME = re.compile(r"^[A-Za-z_][\w.]*")


def _number(rng: Generator, old: str) -> str:
    value = pick(rng, FLOATS) if odds(rng, 0.2) else pick(rng, INTEGERS)
    if odds(rng, 0.4) and old.isdigit():
        value = int(old) + pick(rng, (-1, 1, -2, 2))
    return str(value) + pick(rng, ("", "", "", "f", "f16", "i64", "u8", "e9"))


def _value(rng: Generator, tokens: list[str], _: str) -> None:
    """A number, a name or a string becomes another."""
    at = int(rng.integers(len(tokens)))
    for k in range(at, min(at + 30, len(tokens))):
        word = tokens[k].rstrip()
        space = tokens[k][len(word) :]
        if NUMBER.match(word):
            tokens[k] = _number(rng, word) + space
            return
        if word in DTYPES:
            tokens[k] = pick(rng, DTYPES) + space
            return
        if word.startswith('"'):
            tokens[k] = json.dumps(pick(rng, (*STRINGS, "NCHW", "NHWC", "OIHW", "VALID"))) + space
            return
        if word in OPERATORS_BY_NAME and odds(rng, 0.7):
            tokens[k] = pick(rng, sorted(OPERATORS_BY_NAME)) + space
            return


def _names(rng: Generator, tokens: list[str], _: str) -> None:
    """A name becomes another of the text."""
    found = [k for k, t in enumerate(tokens) if t[:1] in "%@" or NAME.match(t)]
    if len(found) > 1:
        a, b = pick(rng, found), pick(rng, found)
        tokens[a] = tokens[b]


def _delete(rng: Generator, tokens: list[str], _: str) -> None:
    at = int(rng.integers(len(tokens)))
    del tokens[at : at + int(rng.geometric(0.5))]


def _repeat(rng: Generator, tokens: list[str], _: str) -> None:
    at, length = int(rng.integers(len(tokens))), int(rng.geometric(0.3))
    tokens[at:at] = tokens[at : at + length]


def _swap(rng: Generator, tokens: list[str], _: str) -> None:
    a, b = (int(k) for k in rng.integers(len(tokens), size=2))
    tokens[a], tokens[b] = tokens[b], tokens[a]


def _splice(rng: Generator, tokens: list[str], other: str) -> None:
    """Tokens of another text."""
    more = _split(other)
    at, start = int(rng.integers(len(tokens) + 1)), int(rng.integers(len(more)))
    tokens[at : at + int(rng.integers(3))] = more[start : start + int(rng.geometric(0.15))]


def _insert(rng: Generator, tokens: list[str], _: str) -> None:
    words = (
        "(", ")", "[", "]", "{", "}", ",", "=", "%0", "%x", "@main", "let %v = ", "if ", "else", "fn ", "Tensor",
        "None",
        "True", ".0", "meta[relay.Constant][0]", "-", "->", "*", "?", "axis=", "/*", "//", '"', ";", "Any", "\x00",
        "ü",
    )  # fmt: skip
    tokens.insert(int(rng.integers(len(tokens) + 1)), pick(rng, words) + " ")


def _nest(rng: Generator, tokens: list[str], _: str) -> None:
    """Thousands of brackets, or of whatever opens something."""
    opening, closing = pick(
        rng,
        (
            ("(", ")"),
            ("[", "]"),
            ("{", "}"),
            ("let %v = 1; ", ""),
            ("if (True) {", "}"),
            ("fn () {", "}"),
            ("-", ""),
            ("nn.relu(", ")"),
            ("(%0, ", ")"),
        ),
    )
    at, depth = int(rng.integers(len(tokens))), pick(rng, (3, 100, 3000))
    tokens[at] = opening * depth + tokens[at] + closing * depth


MUTATIONS: Sequence[Callable[[Generator, list[str], str], None]] = (
    *(_value,) * 24, *(_names,) * 3, _delete, _repeat, _swap, *(_splice,) * 2, _insert, _nest,
)  # fmt: skip


def mutated(texts: Sequence[str], seed: int, without: frozenset[int]) -> bytes:
    """A mutated module as text; now and then its bytes as well."""
    mutations = Mutations(seed, without)
    rng = mutations.base()
    text, other, as_bytes = pick(rng, texts), pick(rng, texts), odds(rng, 0.08)
    if as_bytes:
        data = text.encode()
        for step in mutations.each():
            data = changed_bytes(step, data)
        return data
    tokens = _split(text)
    for step in mutations.each():
        if tokens:
            pick(step, MUTATIONS)(step, tokens, other)
    return "".join(tokens).encode()


def smaller(data: bytes) -> Iterator[bytes]:
    """Without some tokens, the most first."""
    tokens = _split(data.decode("utf-8", "replace"))
    size = max(1, len(tokens) // 2)
    while size:
        for at in range(0, len(tokens), size):
            yield "".join(tokens[:at] + tokens[at + size :]).encode()
        size //= 2
