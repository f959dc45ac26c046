# SPDX-License-Identifier: Apache-2.0
"""Count how often n-grams of a vocabulary occur in rows of words, with words skipped between theirs.

The words of the n-grams are numbered; rows hold the numbers of their words. N-grams are found one word at a time:
`beginnings` has the positions in `vocabulary.nodes` of the beginnings that occur, and the next word leads on.

    vocabulary = Vocabulary.of_ngrams([(0,), (1,), (0, 1)], words=2)
    occurrences = ngram_occurrences(rows, vocabulary, shortest=1, longest=2, max_skips=0)
    add_at_positions(occurrences, weights, targets, 3)         # (..., rows, 3)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from aotc.ir import Array
from aotc.relay.expr import Expr
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.slice_pad_depth_to_space import gather_slices


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The n-grams of a vocabulary as a tree.

    words   the number of distinct words; a row has this number at the place of any other word
    edges   for each length from 1 on, the sorted keys (beginning * (words + 1) + word) of the beginnings of that
            length, int64; their positions are the numbers of these beginnings, the empty one has number 0
    ends    for each length, the position in the vocabulary of the n-gram that each beginning is; -1 for none
    """

    words: int
    edges: list[Array]
    ends: list[Array]

    @classmethod
    def of_ngrams(cls, ngrams: Sequence[tuple[int, ...]], words: int) -> Vocabulary:
        """Return the tree of distinct n-grams, each the numbers of its words."""
        edges, ends = list[Array](), list[Array]()
        longest = max(map(len, ngrams), default=0)
        numbers: dict[tuple[int, ...], int] = {(): 0}
        places = {ngram: k for k, ngram in enumerate(ngrams)}
        for length in range(1, longest + 1):
            keys = {
                numbers[ngram[: length - 1]] * (words + 1) + ngram[length - 1]: ngram[:length]
                for ngram in ngrams
                if len(ngram) >= length
            }
            ordered = sorted(keys)
            edges.append(np.array(ordered, np.int64))
            numbers = {keys[key]: k for k, key in enumerate(ordered)}
            ends.append(np.array([places.get(keys[key], -1) for key in ordered], np.int32))
        return cls(words, edges, ends)

    def extended(self, beginnings: Expr | None, length: int, words: Expr) -> Expr:
        """Return the number of each beginning of `length` - 1 words, followed by a word, among those of `length`
        words; their number where there is none. `beginnings` is None for the empty ones.
        """
        edges = self.edges[length - 1]
        keys = g.cast(words, "int64")
        if beginnings is not None:
            keys = g.add(g.mul(g.cast(beginnings, "int64"), self.words + 1), keys)
        place = g.call_op("searchsorted", g.constant(edges), keys, right=False, dtype="int32")
        place = g.minimum(place, len(edges) - 1)
        return g.where(g.equal(gather_slices(g.constant(edges), place, 0), keys), place, len(edges))

    def ngrams_at(self, beginnings: Expr, length: int) -> Expr:
        """Return the position in the vocabulary of the n-gram that each beginning is; -1 for none."""
        return gather_slices(g.constant(np.append(self.ends[length - 1], np.int32(-1))), beginnings, 0)


def ngram_occurrences(rows: Expr, vocabulary: Vocabulary, shortest: int, longest: int, max_skips: int) -> list[Expr]:
    """Return tensors (..., places) of the positions in the vocabulary of the n-grams at all places of rows (...,
    words), -1 for none; together they are all occurrences.

    shortest, longest  lengths of n-grams, in words
    max_skips          0 to this number of words are skipped between those of an n-gram, equally many each time
    """
    axis, count = g.rank(rows) - 1, g.dim(rows, g.rank(rows) - 1)
    found: list[Expr] = []
    for distance in range(1, max_skips + 2):
        # words alone have nothing to skip
        first = shortest if distance == 1 else max(shortest, 2)
        beginnings: Expr | None = None
        for length in range(1, min(longest, len(vocabulary.edges)) + 1):
            begin = (length - 1) * distance
            if begin >= count or not len(vocabulary.edges[length - 1]):
                break
            words = g.strided_slice(rows, [begin], [count], [axis])
            if beginnings is not None:
                beginnings = g.strided_slice(beginnings, [0], [count - begin], [axis])
            beginnings = vocabulary.extended(beginnings, length, words)
            if length >= first and (vocabulary.ends[length - 1] >= 0).any():
                found.append(vocabulary.ngrams_at(beginnings, length))
    return found


def add_at_positions(positions: Sequence[Expr], weights: Array, targets: Array, size: int) -> Expr:
    """Return for each row the sums (..., size) of the weights of what occurs in it.

    positions  tensors (..., places) of positions in `weights` and `targets`; -1 for nothing
    targets    the element of the result that each weight is added to
    """
    axis = g.rank(positions[0]) - 1
    joined = g.concat(list(positions), axis)
    # what does not occur is added to one more element, which is then cut off
    where = gather_slices(g.constant(np.append(np.int64(size), targets.astype(np.int64))), g.add(joined, 1), 0)
    what = gather_slices(g.constant(np.append(np.float32(0), weights.astype(np.float32))), g.add(joined, 1), 0)
    shape = (*g.shape(joined)[:-1], size + 1)
    zeros = g.full(0.0, shape, "float32")
    sums = g.call_op("scatter_elements", zeros, where, what, axis=axis, reduction="add")
    return g.strided_slice(sums, [0], [size], [axis])
