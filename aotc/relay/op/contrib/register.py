# SPDX-License-Identifier: Apache-2.0
"""Registry of the pattern tables of external compilers, by the name of the compiler.

register_pattern_table("mine", lambda: [("mine.dense_relu", pattern)])
get_pattern_table("mine")              # [("mine.dense_relu", pattern)]
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

_PATTERN_TABLES: Final[dict[str, Sequence[Any]]] = {}


def register_pattern_table(compiler: str, table: Callable[[], Sequence[Any]] | None = None) -> Any:
    """Register the entries (name, pattern) or (name, pattern, check) returned by `table()` for a
    compiler.

    Without a table, return a decorator. A later table for a name replaces an earlier one.
    """
    if table is None:
        return lambda function: register_pattern_table(compiler, function)
    _PATTERN_TABLES[compiler] = tuple(table())
    return table


def get_pattern_table(pattern: str) -> Sequence[Any] | None:
    """Return the pattern table of the external compiler called `pattern`; None if there is none."""
    return _PATTERN_TABLES.get(pattern)
