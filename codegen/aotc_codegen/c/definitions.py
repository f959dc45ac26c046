# SPDX-License-Identifier: Apache-2.0
"""Definitions of C functions as texts with placeholders, which `Helpers` fills in for a data type.

function("return a > b ? a : b;", "$V a, $V b", "$V")      # $inline $V $name($V a, $V b) { ... }
"""

from __future__ import annotations

from aotc.ir import frozen


@frozen
class Definition:
    """A function's text, and the rows that it calls, of its dtype and lanes."""

    text: str
    uses: tuple[str, ...] = ()


def function(body: str, params: str, result: str, uses: str = "", kind: str = "$inline") -> Definition:
    """A definition from the lines of its body; `kind` says how it is declared, `uses` are names of rows."""
    return Definition(f"{kind} {result} $name({params}) {{\n  {body.strip()}\n}}\n", tuple(uses.split()))
