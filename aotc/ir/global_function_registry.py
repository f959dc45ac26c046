# SPDX-License-Identifier: Apache-2.0
"""TVM's registry of global Python functions by name, for programs that use it; aotc itself calls
none of them.

@register_func("my.double")
def double(x): return 2 * x

get_global_func("my.double")(3)                  # 6
get_global_func("relay.ext.dnnl", True)          # None: no such compiler is built in
"""

from collections.abc import Callable
from typing import Any, Final

from aotc.ir.diagnostics import AotcError, AotcValueError, did_you_mean_hint

_REGISTERED_FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {}


def register_func(func_name: str, f: Callable[..., Any] | None = None, override: bool = False) -> Any:
    """Register a function under a name; without a function, return a decorator that does so.

    Raises AotcValueError if the name is registered already, unless `override` is True.
    """
    if f is None:
        return lambda given: register_func(func_name, given, override)
    if func_name in _REGISTERED_FUNCTIONS and not override:
        raise AotcValueError("name", f"{func_name!r} is registered already", hint="override=True replaces it")
    _REGISTERED_FUNCTIONS[func_name] = f
    return f


def get_global_func(name: str, allow_missing: bool = False) -> Any:
    """Return the function registered under a name.

    If there is none, return None if `allow_missing` is True, else raise AotcError (code "name").
    """
    if name not in _REGISTERED_FUNCTIONS and not allow_missing:
        raise AotcError(
            "name", f"no function is registered as {name!r}", hint=did_you_mean_hint(name, _REGISTERED_FUNCTIONS)
        )
    return _REGISTERED_FUNCTIONS.get(name)
