# SPDX-License-Identifier: Apache-2.0
"""Operators that divide texts and remove words, in compiled C against ONNX Runtime: the number of their results is
found in a run. Pipelines of text as skl2onnx exports them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, helper, numpy_helper

import aotc
from aotc.ir import AotcError
from aotc.relay.frontend.onnx import from_onnx
from tests.codegen.test_project import run
from tests.frontend.string_cases import BOOL, FLOAT, INT64, STRING, Cases, strings
from tests.share import draw

TEXTS = strings([
    "a,b c", " a  b,,c \tx\n", "", ",,", "   ", "ababab", "aba", "a", ",a,", "é,ü", "a, b , c", "  ab ab", "aüü,語",
])  # fmt: skip
WORDS = strings([
    "ab cd  e", "x", "", "héllo wörld 語", "abab a", "  aa, b-c  ", "the,quick brown", "don't_stop 12 a1", "a\nb",
    "aXYb XX", "😀a😀😀", "a\0b", "z" * 30,
])  # fmt: skip
TOKENS = {"mark": 0, "pad_value": "#", "domain": "com.microsoft"}
LOCALE = {"locale": "C.UTF-8"}


def test_string_split() -> None:
    cases = Cases()
    for delimiter, limit in draw(list(product(("", ",", "ab", "aba", ",,", "ü"), (None, -1, 0, 1, 2, 5))), 18):
        attrs = {"delimiter": delimiter} if delimiter else {}
        attrs |= {} if limit is None else {"maxsplit": limit}
        cases.add("StringSplit", TEXTS, types=(STRING, INT64), **attrs)
    cases.add("StringSplit", TEXTS[:12].reshape(3, 2, 2), types=(STRING, INT64), delimiter=",")
    cases.check_folded()


PATTERNS = (
    "[a-zA-Z0-9_]+", r"\w+", r"\b\w\w+\b", "a|ab", "ab|a", "b*", "(ab)+", "[^ ,]+", "a.*b", r"\S+", "^a", r"\w+$",
    "aXY|XX", "a|aXYbX", r"[^\x00-\x7F]", "(?i)[A-C]+", r"\B\w", "ab*?", "(?m)^.|.$", "a.?a|b",
)  # fmt: skip


def test_tokenizer() -> None:
    cases = Cases()
    for pattern, least in draw(list(product(PATTERNS, (1, 2))), 15):
        cases.add("Tokenizer", WORDS, types=(STRING,), tokenexp=pattern, mincharnum=least, **TOKENS)
    cases.add("Tokenizer", WORDS, types=(STRING,), tokenexp=".", mincharnum=1, **TOKENS)
    cases.add("Tokenizer", WORDS, types=(STRING,), separators=[""], mincharnum=1, **TOKENS)
    for separators in ([" "], [" ", ",", "[-_]"], ["語", r"\s"]):
        cases.add("Tokenizer", WORDS[:4].reshape(2, 2), types=(STRING,), separators=separators, mincharnum=1, **TOKENS)
    cases.check_folded()


def test_stop_words() -> None:
    cases = Cases()
    words = strings(["Monday", "tuesday", "MONDAY", "Straße", "İx", "", "ix"])
    stops = (["monday"], ["Monday", "Straße"], ["", "IX", "STRASSE"], list(words), ["a" * 99])
    # stop words are compared in small letters, also where results have capitals
    always = (["", "IX", "STRASSE"], "UPPER", 0)
    every = list(product(stops, ("NONE", "LOWER", "UPPER"), (0, 1)))
    for stopwords, action, sensitive in [always, *draw(every, 3)]:
        attrs: dict[str, Any] = {"stopwords": stopwords, "case_change_action": action, "is_case_sensitive": sensitive}
        for x in (words, words[None]):
            cases.add("StringNormalizer", x, types=(STRING,), **attrs, **LOCALE)
    cases.check_folded()


def chain(nodes: Sequence[Any], inputs: dict[str, Any], outputs: dict[str, int], **tensors: Any) -> ModelProto:
    """A model with inputs of given element types and shapes."""
    graph = helper.make_graph(
        nodes,
        "text",
        [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in inputs.items()],
        [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs.items()],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in tensors.items()],
    )
    versions = (("", 20), ("ai.onnx.ml", 3), ("com.microsoft", 1))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid(*v) for v in versions], ir_version=9)


def compare(made: ModelProto, feeds: Sequence[dict[str, Any]], **dims: Any) -> None:
    """Compare one library with ONNX Runtime on several inputs."""
    compare_session(made, aotc.compile(made, dims=dims, cflags=("-O0",)).session(), feeds)


def compare_session(made: ModelProto, session: Any, feeds: Sequence[dict[str, Any]]) -> None:
    reference = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    for given in feeds:
        for info, a, b in zip(made.graph.output, reference.run(None, given), session.run(None, given), strict=True):
            assert a.dtype == b.dtype and a.shape == b.shape, (info.name, a.shape, b.shape)
            if a.dtype == np.float32:
                np.testing.assert_allclose(b, a, rtol=1e-6, atol=1e-6)
            else:
                assert a.tolist() == b.tolist()


@pytest.fixture(scope="module")
def divided() -> ModelProto:
    """A model whose outputs have as many strings as a run finds."""
    node = helper.make_node
    nodes = [
        node("StringSplit", ["x"], ["parts", "counts"], delimiter=","),
        node("StringNormalizer", ["w"], ["kept"], stopwords=["b", "é"], is_case_sensitive=1,
             case_change_action="UPPER", **LOCALE),
        node("Tokenizer", ["x"], ["words"], tokenexp=r"\w+", mincharnum=1, **TOKENS),
        node("Identity", ["words"], ["same"]),
        node("RegexFullMatch", ["w"], ["matches"], pattern="[a-c]|é"),
    ]  # fmt: skip
    outputs = {"parts": STRING, "counts": INT64, "kept": STRING, "words": STRING, "same": STRING, "matches": BOOL}
    return chain(nodes, {"x": (STRING, [3]), "w": (STRING, [4])}, outputs)


@pytest.fixture(scope="module")
def compiled(divided: ModelProto, tmp_path_factory: pytest.TempPathFactory) -> aotc.CompiledModel:
    folder = tmp_path_factory.mktemp("text") / "net"
    return aotc.compile(divided, name="net", output=folder, dims={"x": 16, "w": 4}, target="c", cflags=("-O0",))


def test_numbers_of_strings_are_found_in_a_run(divided: ModelProto, compiled: aotc.CompiledModel) -> None:
    rows = [["a,b c,d", "", ",,,"], ["", "", ""], ["一,é", "x", "a,b,c,d"], ["abcdefghijk", "a-b-c", "語語語語,"]]
    words = [["a", "b", "c", "é"], ["b", "b", "é", "b"], ["a", "c", "d", "e"], ["b", "a", "", "b"]]
    feeds = [{"x": strings(x), "w": strings(w)} for x, w in zip(rows, words, strict=True)]
    compare_session(divided, compiled.session(), feeds)


def test_no_byte_beyond_the_buffers_is_used(compiled: aotc.CompiledModel, tmp_path: Path) -> None:
    """Inputs are bytes that are no UTF-8, with and without an end: results are arbitrary, and nothing else happens."""
    folder = compiled.path
    sources = [*(folder / "src").glob("*.c"), *(folder / "runtime").glob("*.c")]
    caller = Path(__file__).parents[1] / "e2e" / "exact_buffers.c"
    flags = ["-std=c99", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-DMODEL=net_info"]
    flags += ["-include", "aotc_strings.h"]
    program = tmp_path / "program"
    run(["gcc", *flags, "-Iinclude", "-Isrc", caller, *sources, "-lm", "-pthread", "-o", program], folder)
    assert run([program], folder) == "0 outputs differ\n"


DOCUMENTS = [
    ["This is the first document.", "Is this, the 2nd one? # #", "naïve café"],
    ["", "# # first", "the the the first the first"],
    ["", "", ""],
]


def vectorizer(pattern: str) -> list[Any]:
    """The nodes that skl2onnx makes of CountVectorizer, without locale."""
    node = helper.make_node
    return [
        node("Reshape", ["x", "all"], ["flat"]),
        node("StringNormalizer", ["flat"], ["lower"], case_change_action="LOWER", is_case_sensitive=0, **LOCALE),
        node("Tokenizer", ["lower"], ["words"], tokenexp=pattern, mincharnum=1, **TOKENS),
        node("Flatten", ["words"], ["rows"]),
    ]


def test_vectorizers_of_words() -> None:
    node = helper.make_node
    counts = node(
        "TfIdfVectorizer", ["rows"], ["counts"], mode="TF", min_gram_length=1, max_gram_length=2, max_skip_count=0,
        ngram_counts=[0, 6], ngram_indexes=list(range(9)), weights=[1.0] * 9,
        pool_strings=["the", "first", "this", "naïve", "2nd", "na", "this", "the", "the", "first", "the", "the"],
    )  # fmt: skip
    labels = ["spam", "ham", "neither"]
    rng = np.random.default_rng(3)
    nodes = [
        *vectorizer("[a-zA-Z0-9_]+"),
        counts,
        node("Mul", ["counts", "idf"], ["weighted"]),
        node("Normalizer", ["weighted"], ["scaled"], norm="L2", domain="ai.onnx.ml"),
        node("LinearClassifier", ["scaled"], ["label", "scores"], domain="ai.onnx.ml", classlabels_strings=labels,
             coefficients=rng.standard_normal(27).tolist(), intercepts=[0.1, 0.0, -0.1]),
    ]  # fmt: skip
    idf = rng.uniform(1, 3, 9).astype(np.float32)
    outputs = {"label": STRING, "scores": FLOAT, "counts": FLOAT}
    made = chain(nodes, {"x": (STRING, [3, 1])}, outputs, all=np.array([-1]), idf=idf)
    compare(made, [{"x": strings(texts)[:, None]} for texts in DOCUMENTS], x=32)


def test_vectorizer_of_characters_counts_padding() -> None:
    # ONNX Runtime counts the padding up to the longest text, which is a character of the vocabulary here
    counts = helper.make_node(
        "TfIdfVectorizer", ["rows"], ["counts"], mode="TF", min_gram_length=1, max_gram_length=2, max_skip_count=0,
        ngram_counts=[0, 4], ngram_indexes=[0, 1, 2, 3, 4, 5], pool_strings=["#", "t", "h", "ï", "#", "#", "t", "h"],
    )  # fmt: skip
    made = chain([*vectorizer("."), counts], {"x": (STRING, [3, 1])}, {"counts": FLOAT}, all=np.array([-1]))
    compare(made, [{"x": strings(texts)[:, None]} for texts in DOCUMENTS], x=32)


def test_columns_of_strings_in_batches() -> None:
    node, domain = helper.make_node, "ai.onnx.ml"
    nodes = [
        node("Concat", ["city", "color"], ["columns"], axis=1),
        node("ArrayFeatureExtractor", ["columns", "first"], ["cities"], domain=domain),
        node("Gather", ["columns", "second"], ["colors"], axis=1),
        node("OneHotEncoder", ["cities"], ["hot"], cats_strings=["Lima", "Oslo", "Zürich"], zeros=1, domain=domain),
        node("Reshape", ["hot", "flat"], ["hot_rows"]),
        # OrdinalEncoder, with a category for missing values
        node("LabelEncoder", ["colors"], ["ordinal"], keys_strings=["", "blue", "red"], values_int64s=[-1, 0, 1],
             default_int64=-2, domain=domain),
        node("Cast", ["ordinal"], ["numbers"], to=FLOAT),
        node("Scaler", ["size"], ["scaled"], offset=[1.0], scale=[0.5], domain=domain),
        node("Concat", ["hot_rows", "numbers", "scaled"], ["features"], axis=1),
        node("LinearClassifier", ["features"], ["label", "scores"], domain=domain, classlabels_strings=["no", "yes"],
             coefficients=[0.5, -1.0, 0.25, 1.0, -0.75], intercepts=[0.1], post_transform="LOGISTIC"),
        node("Reshape", ["cities", "vector"], ["city_list"]),
        node("StringConcat", ["city", "color"], ["both"]),
        node("Equal", ["city", "color"], ["same"]),
        node("Where", ["same", "city", "both"], ["chosen"]),
    ]  # fmt: skip
    inputs = {"city": (STRING, ["N", 1]), "color": (STRING, ["N", 1]), "size": (FLOAT, ["N", 1])}
    outputs = {"label": STRING, "scores": FLOAT, "features": FLOAT} | dict.fromkeys(
        ("city_list", "both", "chosen"), STRING
    )
    tensors = {"first": [0], "second": [1], "flat": [-1, 3], "vector": [-1]}
    made = chain(nodes, inputs, outputs, **{name: np.array(value) for name, value in tensors.items()})
    rng = np.random.default_rng(2)

    def column(texts: list[str], count: int) -> Any:
        return strings([texts[k] for k in rng.integers(0, len(texts), count)]).reshape(count, 1)

    feeds = [
        {
            "city": column(["Lima", "Zürich", "", "Oslo", "red"], n),
            "color": column(["red", "", "blue", "g"], n),
            "size": rng.standard_normal((n, 1)).astype(np.float32),
        }
        for n in (1, 7, 64, 2)
    ]
    compare(made, feeds, city=12, color=8, N=(1, 64))


@pytest.mark.parametrize(
    ("op", "attrs", "text"),
    [
        ("Tokenizer", {"tokenexp": "a", "mark": 1}, "'mark' of Tokenizer is set"),
        ("Tokenizer", {"tokenexp": "a", "mincharnum": 0}, "'mincharnum' of Tokenizer is 0"),
        ("Tokenizer", {}, "'tokenexp' of Tokenizer or 'separators' is needed"),
        ("Tokenizer", {"tokenexp": "a", "separators": ["b"]}, "not both"),
        ("Tokenizer", {"separators": ["ab"]}, "'separators' of Tokenizer has 'ab'"),
        ("Tokenizer", {"tokenexp": "(a"}, "the regular expression"),
        (
            "StringNormalizer",
            {"stopwords": ["a"]},
            r"StringNormalizer removes stop words of one row, got shape \(2, 2\)",
        ),
    ],
)
def test_what_is_refused(op: str, attrs: dict[str, Any], text: str) -> None:
    extra = {"mincharnum": 1, **TOKENS} if op == "Tokenizer" else {}
    made = chain([helper.make_node(op, ["x"], ["y"], **extra | attrs)], {"x": (STRING, [2, 2])}, {"y": STRING})
    with pytest.raises(AotcError, match=text):
        from_onnx(made, dims={"x": 8})
