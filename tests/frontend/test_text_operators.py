# SPDX-License-Identifier: Apache-2.0
"""Operators on texts in compiled C against ONNX Runtime: StringNormalizer, RegexFullMatch and TfIdfVectorizer."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from onnx import helper

from aotc.ir import AotcError
from aotc.ir.string_slots import strings_of_slots
from aotc.relay.expr import Constant
from aotc.relay.frontend import automata
from aotc.relay.frontend.automata import automaton_of_expression, full_match_table, utf8_byte_ranges
from aotc.relay.frontend.onnx import from_onnx
from aotc.relay.frontend.regular_expression_parser import parse_regular_expression
from aotc.relay.frontend.string_slots import string_constant
from aotc.relay.frontend.text_operations import changed_case
from aotc.relay.frontend.unicode_case import case_mapping
from tests.frontend.string_cases import BOOL, FLOAT, STRING, Cases, strings
from tests.share import draw

#: Texts of one to four bytes a character, of characters that grow and shrink, and of no characters.
TEXTS = strings(["", "a", "Straße", "ÀÉÎ õü", "ⱥȺ ɐ ſı", "İIiK", "ǅ ᾳΐŉ", "語𐐨𐐀😀", "a\0B", "ΣΑΣ ς", "x" * 20])
#: A locale that all systems have; ONNX Runtime's default one needs an installed language.
LOCALE = {"locale": "C.UTF-8"}


def test_change_of_case() -> None:
    cases = Cases()
    for action, locale in product(("LOWER", "UPPER", "NONE"), ("C.UTF-8", "C")):
        for texts in (TEXTS, TEXTS[None, 2:4]):
            cases.add("StringNormalizer", texts, types=(STRING,), case_change_action=action, locale=locale)
    cases.check_folded()
    cases = Cases()
    cases.add("StringNormalizer", TEXTS, types=(STRING,), case_change_action="UPPER", **LOCALE)
    cases.check()


@pytest.mark.parametrize("case", ["upper", "lower"])
def test_each_character_changes_its_case(case: str) -> None:
    mapping = case_mapping(case)
    points = [k for k in range(1, 0x2FFFF, 1) if not 0xD800 <= k < 0xE000 and (k in mapping or k % 97 == 0)]
    texts = ["".join(map(chr, points[k : k + 8])) for k in range(0, len(points), 8)]
    changed = changed_case(string_constant(texts), mapping)
    assert isinstance(changed, Constant)
    expected = ["".join(chr(mapping.get(ord(c), ord(c))) for c in text) for text in texts]
    assert strings_of_slots(changed.data).tolist() == expected


def test_one_character_becomes_one_character() -> None:
    upper, lower = (case_mapping(case) for case in ("upper", "lower"))
    for old, new in {"ä": "Ä", "ß": "ß", "ŉ": "ŉ", "ᾳ": "ᾼ", "ı": "I", "ǆ": "Ǆ", "ς": "Σ"}.items():
        assert chr(upper.get(ord(old), ord(old))) == new
    for old, new in {"İ": "i", "ẞ": "ß", "K": "k", "Ⱥ": "ⱥ"}.items():
        assert chr(lower.get(ord(old), ord(old))) == new


PATTERNS = (
    "a+|[0-9]", "(ab)*c?", "[^a]", "^a$", "a$b", r"\bfoo\b.*", r".*\bb", ".*é.*", "[à-ü]+", "(?i)straße K", "a{2,3}",
    "a{2}", "a{2,}", "(a|b)*abb", ".", "(?s).", r"\d+\.\d*", r"(www\.)?[\w-]+\.(com|de)", "[[:alpha:]_]+", r"\Qa.b\E*",
    "", "a||b", "(?m)^a$\n^b$", r"[^\x00-\x7F]+", "x{0}", "x{,2}", "[]a]+", "[^]a]", r"\x{1F600}+", "(?:a(?i)b)c",
    "語+", r"\B.\B", "(a*)*b", "[a-c-e]+", "(?P<n>x)(?<é_1>y)", r"\S+@\S+", r"[\d-]+", r"[[:^digit:]\d]{3}", r"\101\0?",
    "(?i-s:[B-D])+", r"(?i)\W", r"(?i)[^\W]+", r"(?i)\P{Lu}", r"(?i)[[:^alpha:]]", r"\PC", "a{01}", r"[\w-.]+",
    r"[\p{Zl}-x]",
)  # fmt: skip
MATCHED = strings([
    "", "a", "aa", "aaa", "aaaa", "ab", "abab", "ababc", "b", "7", "foo", "foo bar", "xfoo", "b b", "é", "xéy", "à",
    "straße k", "STRASSE K", "STRAßE K", "abb", "babb", "\n", "1.", "12.34", "www.x.com", "a-b.de", "ABC_", "ÀÉ", "a.b",
    "a.bb", "a\nb", "x{,2}", "]", "a]a", "😀", "aBc", "abc", "aBC", "語語", "\n\n", "xy", "u@v", "1-2", "a\0c", "A\0",
    "k", "\u212a", "\u0378", "\u2028", "x", "a{01}",
    "s" * 30,
])  # fmt: skip


def test_regular_expressions() -> None:
    cases = Cases()
    for pattern in PATTERNS:
        cases.add("RegexFullMatch", MATCHED, types=(BOOL,), pattern=pattern)
    cases.check_folded()
    cases = Cases()
    for pattern in draw(PATTERNS, 5):
        cases.add("RegexFullMatch", MATCHED, types=(BOOL,), pattern=pattern)
    cases.add("RegexFullMatch", MATCHED[:4].reshape(2, 2), types=(BOOL,), pattern="a*")
    cases.check()


def test_general_categories_of_characters() -> None:
    def matches(pattern: str, text: str) -> bool:
        automaton = automaton_of_expression(parse_regular_expression(pattern), pattern)
        table, matched = full_match_table(automaton)
        state = 0
        for byte in text.encode() + b"\xff":
            state = table[state, automaton.classes[byte]]
        return bool(state == matched)

    assert matches(r"\p{Lu}\pL\P{L}\p{^Lu}", "Éé1x") and not matches(r"\p{Lu}", "é")


@pytest.mark.parametrize(
    "pattern",
    [
        "(a", "a)", "*a", "a**", "a*+", "a{3,2}", "a{1001}", "a{1000000}", "[b-a]", r"[a-\d]", "[a", "[[:foo:]]",
        "(?=a)", "(?<=a)", "(?P=n)", "(?P<n", "(?z)", "(?i", r"\1", r"\C", r"\Z", r"\é", "\\", r"\pQ", r"\p{Greek}",
        r"\x{110000}",
        r"\xg0", "(" * 200, "((a{100}){100}){10}", "(?i-)a", "(?-:a)", "(?i--s)a", "(?P<>a)", "(?<>a)", "(?P<n-x>a)",
        "(?P<²>a)",
    ],
)  # fmt: skip
def test_refused_regular_expressions(pattern: str) -> None:
    node = helper.make_node("RegexFullMatch", ["x"], ["y"], pattern=pattern)
    with pytest.raises(AotcError, match=r"the regular expression .* is not supported") as caught:
        from_onnx(model_of(node, strings(["a"]), BOOL), dims={"x": 8})
    assert caught.value.diagnostics[0].code == "onnx-regex"


def test_automata_of_too_many_states(monkeypatch: pytest.MonkeyPatch) -> None:
    # the first would have 2**21 states, fewer than the limit before they are made deterministic
    monkeypatch.setattr(automata, "MAX_STATES", 500)
    with pytest.raises(AotcError, match="its automaton is too large"):
        automaton_of_expression(parse_regular_expression("(a|b)*a(a|b){20}"), "")


def model_of(node: Any, x: Any, elem_type: int) -> Any:
    kind = STRING if x.dtype == object else helper.np_dtype_to_tensor_dtype(x.dtype)
    inputs, outputs = ([helper.make_tensor_value_info(*v)] for v in (("x", kind, x.shape), ("y", elem_type, None)))
    opsets = [
        helper.make_opsetid("", 20),
        helper.make_opsetid("ai.onnx.ml", 3),
        helper.make_opsetid("com.microsoft", 1),
    ]
    return helper.make_model(helper.make_graph([node], "text", inputs, outputs), opset_imports=opsets, ir_version=9)


def test_utf8_byte_ranges_are_those_of_the_code_points() -> None:
    for low, high in ((0, 0x10FFFF), (0x41, 0x41), (0x7E, 0x81), (0x7FF, 0x801), (0xD7FE, 0xE001), (0x345, 0x12345)):
        count = 0
        for sequence in utf8_byte_ranges(low, high):
            texts = [bytes(part[k] for part in sequence).decode() for k in (0, 1)]
            assert low <= ord(texts[0]) <= ord(texts[1]) <= high
            count += int(np.prod([b - a + 1 for a, b in sequence]))
        assert count == high - low + 1 - len(range(max(low, 0xD800), min(high, 0xDFFF) + 1))


WORDS = strings(["a", "b", "a b", "c", "a", "", "c", "b", "a"])
NUMBERS = np.array([1, 1, 3, 3, 3, 7, 8, 6, 7, 5, 6, 8])
POOL: dict[str, Any] = {
    "min_gram_length": 1, "max_gram_length": 2, "max_skip_count": 0, "ngram_counts": [0, 4],
    "ngram_indexes": [3, 1, 2, 0, 4, 7], "pool_int64s": [2, 3, 5, 4, 5, 6, 7, 8],
}  # fmt: skip
TEXT_POOL: dict[str, Any] = {
    "min_gram_length": 1, "max_gram_length": 3, "max_skip_count": 0, "ngram_counts": [0, 3, 7],
    "ngram_indexes": [0, 4, 2, 1, 3, 6], "pool_strings": ["b", "", "c", "a", "b", "b", "a", "a b", "c", "a"],
}  # fmt: skip


def test_tf_idf_vectorizer() -> None:
    cases = Cases()
    weights = {"weights": [0.1, 0.3, 2.0, -1.0, 0.7, 1.5]}
    cases.add("TfIdfVectorizer", NUMBERS.reshape(3, 4).astype(np.int32), types=(FLOAT,), mode="TF", **POOL)
    changed = {"mode": "TFIDF", "max_skip_count": 2, **weights}
    cases.add("TfIdfVectorizer", WORDS.reshape(3, 3), types=(FLOAT,), **TEXT_POOL | changed)
    cases.check()


def test_modes_and_lengths_of_n_grams() -> None:
    cases = Cases()
    weights = [0.1, 0.3, 2.0, -1.0, 0.7, 1.5]
    for mode, skips, given in product(("TF", "IDF", "TFIDF"), (0, 2), (None, weights)):
        extra: dict[str, Any] = {"mode": mode, "max_skip_count": skips, **({"weights": given} if given else {})}
        for x in (NUMBERS, NUMBERS.reshape(3, 4).astype(np.int32)):
            cases.add("TfIdfVectorizer", x, types=(FLOAT,), **POOL | extra)
        for texts in (WORDS, WORDS.reshape(3, 3)):
            cases.add("TfIdfVectorizer", texts, types=(FLOAT,), **TEXT_POOL | extra)
    for low, high in ((1, 1), (2, 2), (2, 3), (3, 3)):
        lengths = {"mode": "TF", "max_skip_count": 1, "min_gram_length": low, "max_gram_length": high}
        cases.add("TfIdfVectorizer", WORDS, types=(FLOAT,), **TEXT_POOL | lengths)
    cases.add("TfIdfVectorizer", WORDS[:1], types=(FLOAT,), mode="TF", **TEXT_POOL | {"min_gram_length": 2})
    cases.add("TfIdfVectorizer", NUMBERS, types=(FLOAT,), mode="TF", **POOL | {"ngram_indexes": [1, 1, 0, 0, 1, 2]})
    cases.check_folded()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"ngram_counts": [0, 3]}, "'pool_int64s' of TfIdfVectorizer has 5 words of 2-grams"),
        ({"ngram_counts": [4, 0]}, "'ngram_counts' of TfIdfVectorizer must increase from 0"),
        ({"ngram_counts": [0, 99]}, "'ngram_counts' of TfIdfVectorizer must increase"),
        ({"ngram_indexes": [0, 1]}, "'ngram_indexes' of TfIdfVectorizer has 2 numbers for 6 n-grams"),
        ({"ngram_indexes": [0, 1, 2, 3, 4, -1]}, "each needs one that is not negative"),
        ({"weights": [1.0]}, "'weights' of TfIdfVectorizer has 1 numbers for 6 n-grams"),
        ({"mode": "IDF", "weights": [1.0, 2, 3, 4, 5, 6], "ngram_indexes": [0] * 6}, "which mode IDF does not define"),
        ({"mode": "BOTH"}, "'mode' of TfIdfVectorizer is 'BOTH'"),
        ({"min_gram_length": 3}, "lengths are 1 to"),
        ({"max_skip_count": -1}, "'max_skip_count' of TfIdfVectorizer is -1"),
        ({"pool_int64s": [2, 2, 5, 4, 5, 6, 7, 8]}, "repeats an n-gram"),
        ({"ngram_indexes": [0, 1, 2, 3, 4, 1 << 50]}, "the counts of n-grams"),
    ],
)
def test_contradicting_vocabularies(change: dict[str, Any], text: str) -> None:
    node = helper.make_node("TfIdfVectorizer", ["x"], ["y"], **{"mode": "TF", **POOL, **change})
    with pytest.raises(AotcError, match=text):
        from_onnx(model_of(node, NUMBERS, FLOAT))


def test_what_is_refused() -> None:
    turkish = helper.make_node("StringNormalizer", ["x"], ["y"], case_change_action="LOWER", locale="tr_TR.UTF-8")
    of_numbers = helper.make_node("TfIdfVectorizer", ["x"], ["y"], mode="TF", **POOL)
    for node, text in (
        (turkish, "'locale' of StringNormalizer is 'tr_TR.UTF-8'"),
        (of_numbers, "'pool_strings' of TfIdfVectorizer is missing"),
    ):
        with pytest.raises(AotcError, match=text):
            from_onnx(model_of(node, strings(["a"]), FLOAT), dims={"x": 8})
