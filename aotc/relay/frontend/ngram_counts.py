# SPDX-License-Identifier: Apache-2.0
"""Count how often n-grams occur in rows of words.

An n-gram is a sequence of n words. The n-grams that are counted are a list of constants. Words are numbered from 0, and
rows and n-grams hold the numbers of their words. The words of an n-gram may have equal distances in the row: with one
skipped word, "a b" occurs in "a x b".

Occurrences are found one word at a time, in a trie of the prefixes of all n-grams, their first words. Where a prefix of
k words occurs, the next word of the row gives the prefix of k + 1 words that occurs there, if there is one.

    trie = NgramTrie.of_ngrams([(0,), (1,), (0, 1)], word_count=2)
    occurrences = ngram_occurrences(rows, trie, shortest=1, longest=2, max_skips=0)
    add_at_positions(occurrences, weights, targets, 3)         # (..., rows, 3)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from aotc.ir import Array
from aotc.relay.expr import Expr
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.constant_lookup import positions_in_sorted
from aotc.relay.frontend.slice_pad_depth_to_space import gather_slices


@dataclass(frozen=True, eq=False)
class NgramTrie:
    """The prefixes of all n-grams of a list, the n-grams themselves included. Prefixes of each length, in words, are
    numbered from 0.

    word_count         the number of distinct words; rows hold this number for any other word
    prefix_keys        for each length from 1 on, the key of each prefix of that length, int64, ascending: the number
                       of the prefix without its last word, times (word_count + 1), plus the number of this word
    ngram_of_prefix    for each length from 1 on, the position in the list of the n-gram that equals each prefix, int32;
                       -1 for a prefix that is only the beginning of longer n-grams
    """

    word_count: int
    prefix_keys: list[Array]
    ngram_of_prefix: list[Array]

    @classmethod
    def of_ngrams(cls, ngrams: Sequence[tuple[int, ...]], word_count: int) -> NgramTrie:
        """Return the trie of distinct n-grams, each given as the numbers of its words."""
        prefix_keys, ngram_of_prefix = list[Array](), list[Array]()
        position_of_ngram = {ngram: k for k, ngram in enumerate(ngrams)}
        number_of_prefix: dict[tuple[int, ...], int] = {(): 0}
        for length in range(1, max(map(len, ngrams), default=0) + 1):
            prefixes = {ngram[:length] for ngram in ngrams if len(ngram) >= length}
            prefix_of_key = {number_of_prefix[p[:-1]] * (word_count + 1) + p[-1]: p for p in prefixes}
            ordered = sorted(prefix_of_key)
            prefix_keys.append(np.array(ordered, np.int64))
            number_of_prefix = {prefix_of_key[key]: k for k, key in enumerate(ordered)}
            ngram_of_prefix.append(np.array([position_of_ngram.get(p, -1) for p in number_of_prefix], np.int32))
        return cls(word_count, prefix_keys, ngram_of_prefix)

    def extend_prefixes(self, prefixes: Expr | None, words: Expr, length: int) -> Expr:
        """Return the number of each prefix of `length` words that consists of a prefix which is one word shorter and
        the word behind it; where the trie has no such prefix, the count of prefixes of this length.

        prefixes    numbers of prefixes of `length` - 1 words; None if `length` is 1, which extends the empty prefix
        words       the number of the word behind each of them
        """
        keys = g.cast(words, "int64")
        if prefixes is not None:
            keys = g.add(g.mul(g.cast(prefixes, "int64"), self.word_count + 1), keys)
        return positions_in_sorted(keys, self.prefix_keys[length - 1])

    def ngrams_of_prefixes(self, prefixes: Expr, length: int) -> Expr:
        """Return the position in the list of the n-gram that equals each prefix of `length` words; -1 where a prefix
        is no n-gram, or where `extend_prefixes` found none.
        """
        return gather_slices(g.constant(np.append(self.ngram_of_prefix[length - 1], np.int32(-1))), prefixes, 0)


def ngram_occurrences(rows: Expr, trie: NgramTrie, shortest: int, longest: int, max_skips: int) -> list[Expr]:
    """Return all occurrences of n-grams in rows (..., words): tensors (..., n) with the position in the list of the
    n-gram that begins at each of the first n words, -1 for none. There is a tensor for each length of n-grams and each
    number of skipped words.

    shortest, longest  lengths of n-grams, in words
    max_skips          an occurrence skips 0 to this number of words between each two words of the n-gram, the same
                       number each time
    """
    axis, count = g.rank(rows) - 1, g.dim(rows, g.rank(rows) - 1)
    found: list[Expr] = []
    for distance in range(1, max_skips + 2):
        # an n-gram of one word has no words between which others are skipped
        first = shortest if distance == 1 else max(shortest, 2)
        prefixes: Expr | None = None
        for length in range(1, min(longest, len(trie.prefix_keys)) + 1):
            begin = (length - 1) * distance
            if begin >= count or not len(trie.prefix_keys[length - 1]):
                break
            words = g.strided_slice(rows, [begin], [count], [axis])
            if prefixes is not None:
                prefixes = g.strided_slice(prefixes, [0], [count - begin], [axis])
            prefixes = trie.extend_prefixes(prefixes, words, length)
            if length >= first and (trie.ngram_of_prefix[length - 1] >= 0).any():
                found.append(trie.ngrams_of_prefixes(prefixes, length))
    return found


def add_at_positions(positions: Sequence[Expr], weights: Array, targets: Array, size: int) -> Expr:
    """Return the sums of weights (..., size) for each row of positions.

    positions  tensors (..., n) of positions in `weights` and `targets`; -1 adds nothing
    weights    what each position adds, float32
    targets    the element of the result to which each position adds its weight
    """
    axis = g.rank(positions[0]) - 1
    joined = g.concat(list(positions), axis)
    # the position -1 adds 0 to one more element, which is then cut off
    where = gather_slices(g.constant(np.append(np.int64(size), targets.astype(np.int64))), g.add(joined, 1), 0)
    what = gather_slices(g.constant(np.append(np.float32(0), weights.astype(np.float32))), g.add(joined, 1), 0)
    shape = (*g.shape(joined)[:-1], size + 1)
    zeros = g.full(0.0, shape, "float32")
    sums = g.call_op("scatter_elements", zeros, where, what, axis=axis, reduction="add")
    return g.strided_slice(sums, [0], [size], [axis])
