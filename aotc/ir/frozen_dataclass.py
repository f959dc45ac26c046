# SPDX-License-Identifier: Apache-2.0
"""Decorator for immutable records: frozen dataclasses with slots.

@frozen
class Point:
    x: int
    y: int = 0

@frozen(eq=False)          # compared by identity; other options of `dataclass` are given in the same way
class Node: ...
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

T = TypeVar("T")

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform as dataclass_transform
else:  # typing.dataclass_transform is Python 3.11

    def dataclass_transform(**_: Any) -> Callable[[T], T]:
        return lambda cls: cls


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: Any = None, **options: Any) -> Any:
    """Class decorator: create a frozen dataclass with slots; `options` go to
    `dataclasses.dataclass`.

    The method `__init__` sets fields through the descriptors of their slots. It takes half the time
    of the generated one, which calls `object.__setattr__`: a compilation creates millions of nodes.
    """
    if cls is None:
        return partial(frozen, **options)
    if not options.get("init", True):
        return dataclass(cls, frozen=True, slots=True, **options)
    new_class: Any = dataclass(cls, frozen=True, slots=True, **{**options, "init": False})
    new_class.__init__ = _init_that_sets_slots(new_class)
    return new_class


def _init_that_sets_slots(cls: Any) -> Callable[..., None]:
    """Return the method `__init__` of a dataclass with slots, with the signature that
    `dataclasses` defines for its fields.
    """
    init_fields = [f for f in fields(cls) if f.init]
    ordered = [f for f in init_fields if not f.kw_only] + [f for f in init_fields if f.kw_only]
    first_keyword = next((f.name for f in ordered if f.kw_only), None)
    scope: dict[str, Any] = {"MISSING": MISSING}
    parameters, lines = ["self"], []
    for f in ordered:
        parameters += (["*"] if f.name == first_keyword else []) + [
            f.name + _default_source_text_adding_to_scope(f, scope)
        ]
    for f in fields(cls):
        scope[f"set_{f.name}"] = getattr(cls, f.name).__set__
        made = f"make_{f.name}() if {f.name} is MISSING else " if f"make_{f.name}" in scope else ""
        if f.init:
            lines.append(f"set_{f.name}(self, {made}{f.name})")
        elif f.default_factory is not MISSING:
            scope[f"make_{f.name}"] = f.default_factory
            lines.append(f"set_{f.name}(self, make_{f.name}())")
        elif f.default is not MISSING:
            scope[f"default_{f.name}"] = f.default
            lines.append(f"set_{f.name}(self, default_{f.name})")
    lines += ["self.__post_init__()"] if hasattr(cls, "__post_init__") else []
    # setters as variables of an enclosing function: these are found faster than global variables
    header = f"def create({', '.join(scope)}):\n def __init__({', '.join(parameters)}):\n  "
    namespace: dict[str, Any] = {}
    exec(header + "\n  ".join(lines or ["pass"]) + "\n return __init__", {}, namespace)
    init: Any = namespace["create"](**scope)
    init.__qualname__, init.__module__ = f"{cls.__qualname__}.__init__", cls.__module__
    init.__annotations__ = {**{f.name: f.type for f in ordered}, "return": None}
    return init  # type: ignore[no-any-return]


def _default_source_text_adding_to_scope(f: Field[Any], scope: dict[str, Any]) -> str:
    """Return the text of a parameter's default, and add the values that it names to `scope`."""
    if f.default_factory is not MISSING:
        scope[f"make_{f.name}"] = f.default_factory
        return "=MISSING"
    if f.default is not MISSING:
        scope[f"default_{f.name}"] = f.default
        return f"=default_{f.name}"
    return ""


def set_frozen_fields(record: object, **fields: Any) -> None:
    """Set fields of a frozen record during its initialization."""
    for name, value in fields.items():
        object.__setattr__(record, name, value)
