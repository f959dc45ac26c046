# SPDX-License-Identifier: Apache-2.0
"""ONNX converter of TfIdfVectorizer, which counts n-grams, sequences of n words. A word is a number or a string.

The n-grams that are counted are an attribute: pool_int64s or pool_strings has their words one after another, first
those of n-grams of one word, and ngram_counts has the position at which the n-grams of each length begin.

OPS["TfIdfVectorizer"](x, node=node)      # (words,) or (rows, words) -> counts of n-grams, float32
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np

from aotc.ir import require
from aotc.relay.expr import Expr
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.constant_lookup import positions_in_sorted
from aotc.relay.frontend.ngram_counts import NgramTrie, add_at_positions, ngram_occurrences
from aotc.relay.frontend.onnx.node import OnnxNode, Table
from aotc.relay.frontend.onnx.ops_classical_ml import require_attribute, require_known_attribute

#: Largest length of n-grams, in words.
_MAX_NGRAM_WORDS: Final = 64


def ngrams_of_pool(node: OnnxNode, attribute: str) -> tuple[list[Any], list[tuple[int, ...]]]:
    """Return the distinct words of the n-grams that a node counts, in ascending order, and these n-grams, each as the
    positions of its words among the distinct ones: the numbers of the words.

    attribute  the attribute that lists the words of all n-grams, "pool_strings" or "pool_int64s"

    Raises AotcError (code "onnx-attribute") if the attributes contradict each other.
    """
    pool = list(node.attrs.get(attribute) or ())
    require_attribute(len(pool) > 0, node, attribute, "is missing: its n-grams are of the type of the input")
    begins = [*map(int, node.attrs.get("ngram_counts") or ()), len(pool)]
    is_sorted = begins[0] == 0 and all(a <= b for a, b in pairwise(begins))
    text = f"must increase from 0 to the length of {attribute}, {len(pool)}; got {begins[:-1]}"
    require_attribute(is_sorted, node, "ngram_counts", text)
    words = sorted(set(pool))
    numbers = {word: k for k, word in enumerate(words)}
    ngrams: list[tuple[int, ...]] = []
    for length, (begin, end) in enumerate(pairwise(begins), 1):
        text = f"has {end - begin} words of {length}-grams, which is no multiple of {length}"
        require_attribute((end - begin) % length == 0, node, attribute, text)
        ngrams += [tuple(numbers[w] for w in pool[k : k + length]) for k in range(begin, end, length)]
    require_attribute(len(set(ngrams)) == len(ngrams), node, attribute, "repeats an n-gram")
    return words, ngrams


def _lengths_of_ngrams(node: OnnxNode) -> tuple[int, int, int]:
    """Return the smallest and the largest length of n-grams, and the largest number of skipped words."""
    low, high, skips = (int(node.attrs[n]) for n in ("min_gram_length", "max_gram_length", "max_skip_count"))
    text = f"is {high}, and min_gram_length is {low}; lengths are 1 to {_MAX_NGRAM_WORDS}, in this order"
    require_attribute(0 < low <= high <= _MAX_NGRAM_WORDS, node, "max_gram_length", text)
    require_attribute(skips >= 0, node, "max_skip_count", f"is {skips}, not a number of words")
    return low, high, skips


def weighted_ngram_counts(rows: Expr, ngrams: Sequence[tuple[int, ...]], word_count: int, node: OnnxNode) -> Expr:
    """Return the result of TfIdfVectorizer for rows of numbers of words, (words,) or (rows, words).

    ngrams      the n-grams that are counted, as the numbers of their words
    word_count  the number of distinct words of all n-grams; rows hold it for any other word
    """
    require("onnx-shape", g.rank(rows) in (1, 2), f"TfIdfVectorizer takes 1 or 2 dimensions, got {g.rank(rows)}")
    low, high, skips = _lengths_of_ngrams(node)
    targets = np.array(node.attrs.get("ngram_indexes") or (), np.int64)
    text = f"has {targets.size} numbers for {len(ngrams)} n-grams; each needs one that is not negative"
    require_attribute(targets.size == len(ngrams) and targets.min() >= 0, node, "ngram_indexes", text)
    mode = node.attrs["mode"]
    require_known_attribute(node, "mode", mode, ("TF", "IDF", "TFIDF"))
    weights = np.array(node.attrs.get("weights") or (), np.float32)
    text = f"has {weights.size} numbers for {len(ngrams)} n-grams"
    require_attribute(weights.size in (0, len(ngrams)), node, "weights", text)
    size = int(targets.max()) + 1
    g.check_materialization_cost((size,), "float32", "the counts of n-grams")
    if not weights.size:
        weights = np.ones(len(ngrams), np.float32)
    g.check_unroll_count(high * (skips + 1), "n-grams of several lengths")
    found = ngram_occurrences(rows, NgramTrie.of_ngrams(ngrams, word_count), low, high, skips)
    if not found:
        return g.full(0.0, (*g.shape(rows)[:-1], size), "float32")
    if mode == "TFIDF":
        return add_at_positions(found, weights, targets, size)
    counts = add_at_positions(found, np.ones(len(ngrams), np.float32), targets, size)
    if mode == "TF":
        return counts
    return g.where(g.greater(counts, 0.0), g.constant(_weights_of_elements(weights, targets, size, node)), 0.0)


def _weights_of_elements(weights: Any, targets: Any, size: int, node: OnnxNode) -> Any:
    """Return the weight of each element of the result, which is that of its n-gram."""
    result = np.zeros(size, np.float32)
    result[targets] = weights
    text = "gives n-grams of one element of the result several weights, which mode IDF does not define"
    require_attribute(np.array_equal(result[targets], weights), node, "weights", text)
    return result


def _tf_idf_vectorizer(x: Expr, *, node: OnnxNode) -> Expr:
    """Convert TfIdfVectorizer of integers."""
    words, ngrams = ngrams_of_pool(node, "pool_int64s")
    rows = positions_in_sorted(g.cast(x, "int64"), np.array(words, np.int64))
    return weighted_ngram_counts(rows, ngrams, len(words), node)


OPS: Table = {"TfIdfVectorizer": _tf_idf_vectorizer}
