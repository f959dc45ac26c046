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
from onnx import TensorProto

from aotc.ir import require
from aotc.relay.expr import Constant, Expr
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.onnx import ops_categories, ops_classical_ml, ops_math, ops_shape
from aotc.relay.frontend.onnx.node import Converted, Converter, OnnxNode, Strings, Table, call_converter
from aotc.relay.frontend.onnx.ops_classical_ml import require_attribute, require_known_attribute
from aotc.relay.frontend.onnx.ops_ngrams import ngrams_of_pool, weighted_ngram_counts
from aotc.relay.frontend.slice_pad_depth_to_space import gather_slices
from aotc.relay.frontend.string_slots import concatenate_texts, equal_strings, find_strings, slot_size, with_slot_size
from aotc.relay.frontend.text_operations import changed_case, matches_expression
from aotc.relay.frontend.unicode_case import case_mapping

#: Operators whose results are elements of their inputs, at positions that do not depend on the elements.
_MOVING_OPS: Final = (
    "Concat", "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Reshape", "ScatterElements",
    "ScatterND", "Slice", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze", "Where",
)  # fmt: skip
#: Languages in which the capital of "i" has a dot.
_LANGUAGES_WITH_DOTTED_CAPITALS: Final = frozenset({"az", "crh", "ku", "tr", "tt"})
_ASCII_END: Final = 0x80
_NUMBER_OPS: Final[Table] = {**ops_math.OPS, **ops_shape.OPS}


def _positions_and_slots(node: OnnxNode) -> tuple[list[Expr | None], Expr]:
    """Return the inputs of a node with the numbers of elements in place of strings, and the slots of all
    elements, (elements, bytes).
    """
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


def _strings_at(slots: Expr, positions: Expr) -> Strings:
    """Return the strings at positions; a view if these are all positions in order."""
    count, size = g.shape(slots)
    known = positions.data.reshape(-1) if isinstance(positions, Constant) else None
    if known is not None and np.array_equal(known, np.arange(count)):
        return Strings(g.reshape(slots, (*g.shape(positions), size)))
    return Strings(gather_slices(slots, positions, 0))


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


def _identity(x: Expr) -> Converted:
    return Strings(x)


def _equal(x: Expr, y: Expr) -> Expr:
    return equal_strings(x, y)


def _string_concat(x: Expr, y: Expr) -> Converted:
    return Strings(concatenate_texts(x, y))


def _cast(x: Expr, *, to: int) -> Converted:
    text = "Cast of strings to numbers is not supported"
    require("onnx-dtype", to == TensorProto.STRING, text)
    return Strings(x)


def _string_normalizer(x: Expr, *, node: OnnxNode) -> Converted:
    """Convert StringNormalizer without stop words: these make the shape of the result depend on data."""
    text = "StringNormalizer with stop words is not supported: the texts decide the shape of its result"
    require("onnx-op", not node.attrs.get("stopwords"), text)
    action = node.attrs.get("case_change_action", "NONE")
    require_known_attribute(node, "case_change_action", action, ("NONE", "LOWER", "UPPER"))
    return Strings(x if action == "NONE" else changed_case(x, _case_mapping(node, action.lower())))


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
    """Convert TfIdfVectorizer of strings."""
    words, ngrams = ngrams_of_pool(node, "pool_strings")
    return weighted_ngram_counts(find_strings(x, words), ngrams, len(words), node)


OPS: Table = {
    **{name: _moving(_NUMBER_OPS[name]) for name in _MOVING_OPS},
    "Cast": _cast,
    "Equal": _equal,
    "Identity": _identity,
    "RegexFullMatch": _regex_full_match,
    "Shape": _of_shapes(_NUMBER_OPS["Shape"]),
    "Size": _of_shapes(_NUMBER_OPS["Size"]),
    "StringConcat": _string_concat,
    "StringNormalizer": _string_normalizer,
    "TfIdfVectorizer": _tf_idf_vectorizer,
}
ML_OPS: Table = {**ops_categories.OPS, "ArrayFeatureExtractor": _moving(ops_classical_ml.OPS["ArrayFeatureExtractor"])}
