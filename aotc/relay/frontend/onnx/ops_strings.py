# SPDX-License-Identifier: Apache-2.0
"""ONNX converters for operators whose inputs are tensors of strings.

Strings are slots of bytes (`aotc.ir.string_slots`). Operators that only move elements are converted for the
positions of the elements, by their converters for numbers; the slots are then gathered at these positions.

    OPS["StringConcat"](x, y)                # Strings(...)
    OPS["Where"](node=node)                  # Strings(...)
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from aotc.ir import get_op, require
from aotc.ir.dimensions import product_of_dims
from aotc.ir.string_slots import longest_utf8_bytes
from aotc.relay.expr import Call, Constant, Expr
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.onnx import (
    ops_categories,
    ops_classical_ml,
    ops_math,
    ops_shape,
    ops_string_casts,
    ops_string_sequences,
)
from aotc.relay.frontend.onnx.node import Converted, Converter, OnnxNode, Strings, Table, call_converter
from aotc.relay.frontend.onnx.ops_classical_ml import require_attribute, require_known_attribute
from aotc.relay.frontend.onnx.ops_ngrams import ngrams_of_pool, weighted_ngram_counts
from aotc.relay.frontend.regular_expression_parser import (
    Characters,
    Expression,
    Repetition,
    complement_of_ranges,
    parse_regular_expression,
    ranges_of_one_character,
    union_of_ranges,
)
from aotc.relay.frontend.slice_pad_depth_to_space import gather_slices
from aotc.relay.frontend.string_slots import (
    chosen_strings,
    concatenate_texts,
    equal_strings,
    find_strings,
    slot_size,
    string_constant,
    with_slot_size,
)
from aotc.relay.frontend.text_division import matches_in, parts_between, parts_between_spaces
from aotc.relay.frontend.text_operations import changed_case, matches_expression
from aotc.relay.frontend.unicode_case import case_mapping

#: Operators whose results are elements of their inputs, at positions that do not depend on the elements.
_MOVING_OPS: Final = (
    "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Reshape", "ScatterElements", "ScatterND", "Slice",
    "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze",
)  # fmt: skip
#: Languages in which the capital of "i" has a dot.
_LANGUAGES_WITH_DOTTED_CAPITALS: Final = frozenset({"az", "crh", "ku", "tr", "tt"})
_ASCII_END: Final = 0x80
#: Operators of the graph that leave the order of elements as it is.
_RESHAPING_OPS: Final = ("reshape", "expand_dims", "squeeze", "nn.batch_flatten")
_NUMBER_OPS: Final[Table] = {**ops_math.OPS, **ops_shape.OPS}


def _positions_and_slots(node: OnnxNode) -> tuple[list[Expr | None], Expr]:
    """Return the inputs of a node with the numbers of elements in place of strings, and the slots of all
    elements, (elements, bytes).
    """
    if len(node.string_inputs) == 1:
        return _positions_of_one_input(node, *node.string_inputs)
    inputs, slots = list(node.inputs), list[Expr]()
    size = max(slot_size(node[k]) for k in node.string_inputs)
    count = 0
    for k in sorted(node.string_inputs):
        shape = g.shape(node[k])[:-1]
        numbers = np.arange(count, count + math.prod(shape), dtype=np.int32)
        g.check_materialization_cost(shape, "int32", "the positions of strings")
        inputs[k] = g.constant(numbers.reshape(shape))
        slots.append(g.reshape(with_slot_size(node[k], size), (numbers.size, size)))
        count += numbers.size
    return inputs, g.concat(slots, 0)


def _positions_of_one_input(node: OnnxNode, position: int) -> tuple[list[Expr | None], Expr]:
    """Return what `_positions_and_slots` does, for strings whose sizes may be known at run time only."""
    x, inputs = node[position], list(node.inputs)
    shape = g.dims(x)[:-1]
    total = product_of_dims(shape)
    if isinstance(total, int):
        g.check_materialization_cost((total,), "int32", "the positions of strings")
    inputs[position] = g.reshape(g.positions_up_to(total, "int32"), shape)
    return inputs, g.reshape(x, (total, slot_size(x)))


def _strings_at(slots: Expr, positions: Expr) -> Strings:
    """Return the strings at positions; a view if these are all positions in order."""
    count, size = g.dims(slots)
    is_range = _is_range(positions)
    if isinstance(positions, Constant) and isinstance(count, int):
        is_range = np.array_equal(positions.data.reshape(-1), np.arange(count))
    if is_range:
        return Strings(g.reshape(slots, (*g.dims(positions), size)))
    return Strings(gather_slices(slots, positions, 0))


def _is_range(positions: Expr) -> bool:
    """Return True for all positions in order, of a size that is known at run time only."""
    while isinstance(positions, Call) and any(positions.op is get_op(name) for name in _RESHAPING_OPS):
        positions = positions.args[0]
    return isinstance(positions, Call) and positions.op is get_op("arange")


def _outputs(result: Any) -> list[Any]:
    return list(result) if isinstance(result, Sequence) else [result]


def _moving(converter: Converter) -> Converter:
    """Return a converter that moves strings as `converter` moves numbers."""

    def convert(*, node: OnnxNode) -> Converted:
        reduction = node.attrs.get("reduction", "none")
        text = f"{node.op_type} of strings with reduction {reduction!r} is not supported ('none' is)"
        require("onnx-attribute", reduction == "none", text)
        inputs, slots = _positions_and_slots(node)
        moved = call_converter(converter, replace(node, inputs=inputs, string_inputs=frozenset()))
        return [None if positions is None else _strings_at(slots, positions) for positions in _outputs(moved)]

    return convert


def _of_shapes(converter: Converter) -> Converter:
    """Return a converter to numbers that depend on the shapes of strings alone."""

    def convert(*, node: OnnxNode) -> Converted:
        inputs, _ = _positions_and_slots(node)
        return call_converter(converter, replace(node, inputs=inputs, string_inputs=frozenset()))

    return convert


def _concat(*parts: Expr, axis: int = 1) -> Converted:
    size, place = max(map(slot_size, parts)), g.normalize_axis(axis, g.rank(parts[0]) - 1)
    joined = _NUMBER_OPS["Concat"](*(with_slot_size(part, size) for part in parts), axis=place)
    assert not isinstance(joined, (Strings, Sequence))
    return Strings(joined)


def _where(condition: Expr, x: Expr, y: Expr) -> Converted:
    size = max(slot_size(x), slot_size(y))
    condition = g.unsqueeze(condition, (g.rank(condition),))
    return Strings(g.where(condition, with_slot_size(x, size), with_slot_size(y, size)))


def _identity(x: Expr) -> Converted:
    return Strings(x)


def _equal(x: Expr, y: Expr) -> Expr:
    return equal_strings(x, y)


def _string_concat(x: Expr, y: Expr) -> Converted:
    return Strings(concatenate_texts(x, y))


def _string_normalizer(x: Expr, *, node: OnnxNode) -> Converted:
    """Convert StringNormalizer, which changes case and removes stop words from (words,) or (1, words); one empty
    string is left if all words are removed.
    """
    action = node.attrs.get("case_change_action", "NONE")
    require_known_attribute(node, "case_change_action", action, ("NONE", "LOWER", "UPPER"))
    changed = x if action == "NONE" else changed_case(x, _case_mapping(node, action.lower()))
    stop_words = [str(word) for word in node.attrs.get("stopwords") or ()]
    shape = g.shape(x)[:-1]
    fits = len(shape) == 1 or (len(shape) == 2 and shape[0] == 1)
    require("onnx-shape", fits or not stop_words, f"StringNormalizer removes stop words of one row, got shape {shape}")
    if not stop_words:
        return Strings(changed)
    compared = x
    if not node.attrs.get("is_case_sensitive"):
        # whatever case the results have
        mapping = _case_mapping(node, "lower")
        compared = changed if action == "LOWER" else changed_case(x, mapping)
        stop_words = [word.translate(mapping) for word in stop_words]
    words = sorted(set(stop_words))
    row, compared = (g.reshape(y, (shape[-1], slot_size(y))) for y in (changed, compared))
    is_kept = g.equal(find_strings(compared, words), len(words))
    kept, count = chosen_strings(row, is_kept)
    axis = len(shape) - 1
    return Strings(g.reshape(kept, (*shape, slot_size(row))), g.maximum(count, 1), axis)


def _case_mapping(node: OnnxNode, case: str) -> Mapping[int, int]:
    """Return the code points that a change of case changes in the locale of a StringNormalizer: all that have a
    case, those of ASCII in the locale C.
    """
    locale = str(node.attrs.get("locale", ""))
    language = re.split("[_.@-]", locale)[0].lower()
    text = f"is {locale!r}; the letters 'i' of this language have other capitals than in all other languages"
    require_attribute(language not in _LANGUAGES_WITH_DOTTED_CAPITALS, node, "locale", text)
    mapping = case_mapping(case)
    if locale in ("C", "POSIX"):
        return {old: new for old, new in mapping.items() if max(old, new) < _ASCII_END}
    return mapping


def _regex_full_match(x: Expr, *, pattern: str) -> Expr:
    return matches_expression(x, pattern)


def _tf_idf_vectorizer(x: Expr, *, node: OnnxNode) -> Expr:
    """Convert TfIdfVectorizer of strings. Where a run finds their number, words are counted in all of the room for
    them: what lies behind is no word.
    """
    words, ngrams = ngrams_of_pool(node, "pool_strings")
    counted = node.counted_strings.get(0)
    if counted is None or counted.count is None:
        return weighted_ngram_counts(find_strings(x, words), ngrams, len(words), node)
    found = find_strings(counted.slots, words)
    axis = g.rank(found) - 1
    require("onnx-shape", counted.axis == axis, "TfIdfVectorizer of rows whose number a run finds is not supported")
    exists = g.less(g.iota(g.dim(found, axis), "int32"), counted.count)
    return weighted_ngram_counts(g.where(exists, found, len(words)), ngrams, len(words), node)


def _flatten(*, node: OnnxNode) -> Converted:
    """Convert Flatten; what has two dimensions already is not moved, also if a run finds their sizes."""
    if g.rank(node[0]) == 3 and node.attrs.get("axis", 1) == 1:
        return node.counted_strings.get(0, Strings(node[0]))
    return _moving(_NUMBER_OPS["Flatten"])(node=node)


def _string_split(x: Expr, *, node: OnnxNode) -> Converted:
    """Convert StringSplit as ONNX Runtime defines it: without a delimiter, only spaces separate, and a text of none
    but separators has no parts; with one, an empty text has none.
    """
    limit = node.attrs.get("maxsplit")
    limit = None if limit is None or limit < 0 else int(limit)
    delimiter = node.attrs.get("delimiter") or ""
    parts = parts_between(x, delimiter, limit) if delimiter else parts_between_spaces(x, limit)
    texts = Strings(parts.texts(x), _largest(parts.counts), g.rank(x) - 1)
    return [texts, g.cast(parts.counts, "int64")]


def _largest(counts: Expr) -> Expr:
    """Return the largest number, of shape (1,); 0 if there are no numbers."""
    return g.maximum(g.call_reduction("max", g.reshape(counts, (-1,)), (0,), True), 0)


def _tokenizer(x: Expr, *, node: OnnxNode) -> Converted:
    """Convert Tokenizer of com.microsoft: the words of each string, padded to the largest number of words."""
    require_attribute(not node.attrs["mark"], node, "mark", "is set, which is not supported")
    least = int(node.attrs["mincharnum"])
    require_attribute(least > 0, node, "mincharnum", f"is {least}, not a number of characters from 1 on")
    parts = matches_in(x, *_expression_of_tokens(node))
    if least > 1:
        parts = parts.longer_than(least - 1, x)
    axis = g.rank(x) - 1
    padding = str(node.attrs["pad_value"])
    texts = parts.texts(x)
    size = max(slot_size(texts), longest_utf8_bytes([padding]))
    exists = g.less(g.iota(parts.room, "int32"), g.unsqueeze(parts.counts, (axis,)))
    pad = with_slot_size(string_constant(np.array(padding, object)), size)
    padded = g.where(g.unsqueeze(exists, (axis + 1,)), with_slot_size(texts, size), pad)
    return Strings(padded, _largest(parts.counts), axis)


def _expression_of_tokens(node: OnnxNode) -> tuple[Expression, str]:
    """Return the regular expression of the words that a Tokenizer finds, and its text. Raises AotcError (code
    "onnx-attribute") for separators of more than one character.
    """
    pattern, separators = node.attrs.get("tokenexp") or "", list(node.attrs.get("separators") or ())
    text = "or 'separators' is needed, not both"
    require_attribute(bool(pattern) != bool(separators), node, "tokenexp", text)
    if pattern == "." or separators == [""]:
        return parse_regular_expression("(?s:.)"), "."
    if pattern:
        return parse_regular_expression(pattern), pattern
    ranges: list[tuple[int, int]] = []
    for separator in separators:
        found = ranges_of_one_character(parse_regular_expression(separator))
        text = f"has {separator!r}; separators are characters, or sets of characters in brackets"
        require_attribute(found is not None, node, "separators", text)
        ranges += found or ()
    others = complement_of_ranges(union_of_ranges(ranges))
    return Repetition(Characters(others), 1, None), " ".join(separators)


OPS: Table = {
    **{name: _moving(_NUMBER_OPS[name]) for name in _MOVING_OPS},
    **ops_string_casts.STRING_OPS,
    **ops_string_sequences.STRING_OPS,
    "Concat": _concat,
    "Equal": _equal,
    "Flatten": _flatten,
    "Identity": _identity,
    "RegexFullMatch": _regex_full_match,
    "Shape": _of_shapes(_NUMBER_OPS["Shape"]),
    "Size": _of_shapes(_NUMBER_OPS["Size"]),
    "StringConcat": _string_concat,
    "StringNormalizer": _string_normalizer,
    "StringSplit": _string_split,
    "TfIdfVectorizer": _tf_idf_vectorizer,
    "Where": _where,
}
ML_OPS: Table = {**ops_categories.OPS, "ArrayFeatureExtractor": _moving(ops_classical_ml.OPS["ArrayFeatureExtractor"])}
MICROSOFT_OPS: Table = {"Tokenizer": _tokenizer}
