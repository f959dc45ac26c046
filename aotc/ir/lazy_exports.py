# SPDX-License-Identifier: Apache-2.0
"""Import public names of a package lazily, on first access (PEP 562).

The stub file `__init__.pyi` tells type checkers, and this module at run time, where each name is
defined:

from aotc.relay.expr import Call as Call
from aotc.relay import analysis as analysis            # a module of the package itself

The package then contains

__getattr__, __dir__ = lazy_names(__name__)
"""

import importlib
import pkgutil
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any, Final

from aotc.ir.diagnostics import nearest

_IMPORT: Final = re.compile(r"^from (\S+) import (\w+) as \w+\r?$", re.MULTILINE)


def lazy_names(
    module: str, more: Callable[[], Mapping[str, Any]] = dict
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the `__getattr__` and `__dir__` of a module of public names that has a stub file.

    module       name of the module
    more         returns further names with values, which take precedence; called before any other lookup
    """
    stub = pkgutil.get_data(module, PurePath(str(sys.modules[module].__file__)).stem + ".pyi") or b""
    homes = {name: home for home, name in _IMPORT.findall(stub.decode("utf-8"))}

    def fetch(name: str) -> Any:
        # special names, which the import system and tools query
        if name.startswith("__") and name != "__all__":
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        found = more()
        if name == "__all__":
            return sorted({*homes, *found})
        if name in found:
            return found[name]
        if homes.get(name) == module:
            return importlib.import_module(f"{module}.{name}")
        if name in homes:
            return getattr(importlib.import_module(homes[name]), name)
        hint = nearest(name, [*homes, *found])
        raise AttributeError(f"module {module!r} has no attribute {name!r}" + (f"; {hint}" if hint else ""))

    def names() -> list[str]:
        return sorted({*vars(sys.modules[module]), *homes, *more()})

    return fetch, names
