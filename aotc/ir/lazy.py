# SPDX-License-Identifier: Apache-2.0
"""Public names of a package, each fetched from its home when it is first asked for (PEP 562).

__getattr__, __dir__ = lazy_names(__name__, {"aotc.relay.expr": "Call Constant Var"}, submodules="expr analysis")

What stands under TYPE_CHECKING beside it says the same to type checkers.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from aotc.ir.diagnostics import nearest

Lookup: TypeAlias = "Callable[[], Mapping[str, Any]]"


def lazy_names(
    module: str,
    homes: Mapping[str, str],
    *,
    submodules: str = "",
    more: Lookup | None = None,
    prepare: Callable[[], object] | None = None,
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a module of public names.

    module       its name
    homes        names by the module that defines them, separated by blanks
    submodules   modules below this one, or of the same package, to import when asked for
    more         gives further names with their values, once something else was asked for
    prepare      called before anything is fetched
    """
    home = {name: where for where, names in homes.items() for name in names.split()}
    children = submodules.split()

    def fetch(name: str) -> Any:
        if name == "__all__":
            return public()
        if name.startswith("__"):  # what the import system and tools look for
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        if prepare is not None:
            prepare()
        if name in home:
            return getattr(importlib.import_module(home[name]), name)
        if name in children:
            return importlib.import_module(f"{module}.{name}")
        found = more() if more is not None else {}
        if name in found:
            return found[name]
        hint = nearest(name, [*home, *children, *found])
        raise AttributeError(f"module {module!r} has no attribute {name!r}" + (f"; {hint}" if hint else ""))

    def public() -> list[str]:
        if prepare is not None:
            prepare()
        return sorted({*home, *children, *(more() if more is not None else {})})

    def names() -> list[str]:
        found = more() if more is not None else {}
        return sorted({*vars(sys.modules[module]), *home, *children, *found})

    return fetch, names
