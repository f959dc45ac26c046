# SPDX-License-Identifier: Apache-2.0
"""Import public names of a package lazily, on first access (PEP 562).

The stub file `__init__.pyi` tells type checkers, and this module at run time, where each name is
defined:

from aotc.relay.expr import Call as Call
from aotc.relay import analysis as analysis            # a module of the package itself

The package then contains

__getattr__, __dir__ = lazy_getattr_and_dir_from_stub_file(__name__)
"""

import importlib
import pkgutil
import re
import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import PurePath
from types import ModuleType
from typing import Any, Final

from aotc.ir.diagnostics import did_you_mean_hint
from aotc.ir.garbage_collection import collect_garbage_rarely

_STUB_IMPORT_PATTERN: Final = re.compile(r"^from (\S+) import (?:\(\s*)?(\w+) as \w+", re.MULTILINE)


def _import_module(module_name: str) -> ModuleType:
    """Import a module while garbage is rarely collected: searching the many new objects for cycles
    takes a tenth of the time of importing the compiler.
    """
    if module_name in sys.modules:
        return importlib.import_module(module_name)
    with collect_garbage_rarely():
        return importlib.import_module(module_name)


def _has_submodule(package_name: str, name: str) -> bool:
    """Return True if a package has a module of this name, which may be any text."""
    is_package = hasattr(sys.modules[package_name], "__path__")
    return is_package and name.isidentifier() and find_spec(f"{package_name}.{name}") is not None


def lazy_getattr_and_dir_from_stub_file(
    module_name: str, extra_names: Callable[[], Mapping[str, Any]] = dict
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the `__getattr__` and `__dir__` of a module of public names that has a stub file.

    module_name    name of the module
    extra_names    returns further names with values, which take precedence; called before any other lookup
    """
    stub = pkgutil.get_data(module_name, PurePath(str(sys.modules[module_name].__file__)).stem + ".pyi") or b""
    homes = {name: home for home, name in _STUB_IMPORT_PATTERN.findall(stub.decode("utf-8"))}

    def import_exported_name(name: str) -> Any:
        # special names, which the import system and tools query
        if name.startswith("__") and name != "__all__":
            raise AttributeError(f"module {module_name!r} has no attribute {name!r}")
        extra_exports = extra_names()
        if name == "__all__":
            return sorted({*homes, *extra_exports})
        if name in extra_exports:
            return extra_exports[name]
        if homes.get(name) == module_name:
            return _import_module(f"{module_name}.{name}")
        if name in homes:
            return getattr(_import_module(homes[name]), name)
        if _has_submodule(module_name, name):  # the import statement asks for the attribute first
            raise AttributeError(f"module {module_name!r} has not imported its module {name!r}")
        hint = did_you_mean_hint(name, [*homes, *extra_exports])
        raise AttributeError(f"module {module_name!r} has no attribute {name!r}" + (f"; {hint}" if hint else ""))

    def list_exported_names() -> list[str]:
        return sorted({*vars(sys.modules[module_name]), *homes, *extra_names()})

    return import_exported_name, list_exported_names
