# SPDX-License-Identifier: Apache-2.0
"""Why builtin TFLite operators are not supported, for diagnostics and for the table in the documentation.

reason_for_missing_converter("SEGMENT_SUM")    # "the values of its inputs decide the shape of its result"
"""

from __future__ import annotations

from typing import Final

_DATA_DEPENDENT: Final = "the values of its inputs decide the shape of its result"
_STRINGS: Final = "it works on strings and tables"
_UNKNOWN_CALL: Final = "what it computes is known to the framework that wrote it only"
_NO_OPERATOR: Final = "it is no operator of models in files"

_REASONS: Final = {
    "SEGMENT_SUM": _DATA_DEPENDENT,
    **dict.fromkeys(
        (
            *("CONCAT_EMBEDDINGS", "EMBEDDING_LOOKUP_SPARSE", "HASHTABLE", "HASHTABLE_FIND", "HASHTABLE_IMPORT"),
            *("HASHTABLE_LOOKUP", "HASHTABLE_SIZE", "LSH_PROJECTION", "SKIP_GRAM"),
        ),
        _STRINGS,
    ),
    "STABLEHLO_CUSTOM_CALL": _UNKNOWN_CALL,
    **dict.fromkeys(("CUSTOM", "DELEGATE", "PLACEHOLDER_FOR_GREATER_OP_CODES"), _NO_OPERATOR),
}


def reason_for_missing_converter(name: str) -> str:
    """Return why a builtin operator is not supported; "" if only its converter is missing."""
    return _REASONS.get(name, "")
