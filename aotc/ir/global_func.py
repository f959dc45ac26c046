# SPDX-License-Identifier: Apache-2.0
"""Functions of Python by name, as programs for TVM keep and ask for them; nothing in aotc calls them.

@register_func("my.double")
def double(x): return 2 * x

get_global_func("my.double")(3)                  # 6
get_global_func("relay.ext.dnnl", True)          # None: no such compiler is built in
"""

from collections.abc import Callable
from typing import Any, Final

from aotc.ir.diagnostics import AotcError, AotcValueError, nearest

_FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {}


def register_func(func_name: str, f: Callable[..., Any] | None = None, override: bool = False) -> Any:
    """Keep a function under a name; a decorator without one.  AotcValueError for a name that is taken."""
    if f is None:
        return lambda given: register_func(func_name, given, override)
    if func_name in _FUNCTIONS and not override:
        raise AotcValueError("name", f"{func_name!r} is registered already", hint="override=True replaces it")
    _FUNCTIONS[func_name] = f
    return f


def get_global_func(name: str, allow_missing: bool = False) -> Any:
    """The function of a name; where there is none, None if that may be, else AotcError (code "name")."""
    if name not in _FUNCTIONS and not allow_missing:
        raise AotcError("name", f"no function is registered as {name!r}", hint=nearest(name, _FUNCTIONS))
    return _FUNCTIONS.get(name)
