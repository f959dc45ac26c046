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

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields
from functools import partial
from operator import attrgetter
from reprlib import recursive_repr
from threading import RLock
from types import MemberDescriptorType, MethodType
from typing import TYPE_CHECKING, Any, Final, TypeVar

T = TypeVar("T")
Method = Callable[..., Any]

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform as dataclass_transform
else:  # typing.dataclass_transform is Python 3.11

    def dataclass_transform(**_: Any) -> Callable[[T], T]:
        return lambda cls: cls


#: Attribute in which `dataclasses` keeps the options that a class was created with.
_OPTIONS_ATTRIBUTE: Final = "__dataclass_params__"
#: Held while frozen bases are reported as mutable: threads may import modules at once.
_BASE_OPTIONS_LOCK: Final = RLock()
#: Docstring of a class without one while `dataclass` processes it, which would format a signature.
_PLACEHOLDER_DOCSTRING: Final = " "


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: Any = None, **options: Any) -> Any:
    """Class decorator: create a frozen dataclass; `options` go to `dataclasses.dataclass`, and
    `slots` is True by default.

    Differences from `dataclass(frozen=True)`, all of which save time:
    - The method `__init__` sets fields through the descriptors of their slots. It takes half the
      time of the generated one, which calls `object.__setattr__`: a compilation creates millions of
      nodes.
    - The methods `__init__`, `__eq__` and `__hash__` are generated when they are first used, and others are
      closures: compiling six methods for each class took a quarter of the time of importing aotc.
    - A class without docstring has none, instead of its signature.
    """
    if cls is None:
        return partial(frozen, **options)
    own_methods = set(vars(cls))
    if "__eq__" in own_methods and cls.__hash__ is None:  # Python sets it where a class has only __eq__
        own_methods.discard("__hash__")
    init, eq, has_repr = (options.pop(name, True) for name in ("init", "eq", "repr"))
    new_class = _create_dataclass_without_methods(cls, **options)
    new_class.__setattr__, new_class.__delattr__ = _methods_that_refuse_changes(new_class)
    if init:
        new_class.__init__ = _MethodGeneratedOnFirstUse(new_class, "__init__", _generate_init)
    if has_repr and "__repr__" not in own_methods:
        new_class.__repr__ = _repr_method(new_class)
    if eq and "__eq__" not in own_methods:
        new_class.__eq__ = _MethodGeneratedOnFirstUse(new_class, "__eq__", _generate_eq)
    if eq and "__hash__" not in own_methods:
        new_class.__hash__ = _MethodGeneratedOnFirstUse(new_class, "__hash__", _generate_hash)
    if options.get("slots", True):
        if "__getstate__" not in own_methods:
            new_class.__getstate__ = _getstate_method(new_class)
        if "__setstate__" not in own_methods:
            new_class.__setstate__ = _setstate
    return new_class


def _create_dataclass_without_methods(cls: Any, *, slots: bool = True, **options: Any) -> Any:
    """Return the dataclass made of `cls`, without any generated method, that reports that it is
    frozen.
    """
    has_docstring = bool(cls.__dict__.get("__doc__"))
    if not has_docstring:
        cls.__doc__ = _PLACEHOLDER_DOCSTRING
    with _report_frozen_bases_as_mutable(cls):
        new_class: Any = dataclass(cls, init=False, repr=False, eq=False, slots=slots, **options)
    if not has_docstring:
        new_class.__doc__ = None
    getattr(new_class, _OPTIONS_ATTRIBUTE).frozen = True
    return new_class


@contextmanager
def _report_frozen_bases_as_mutable(cls: Any) -> Iterator[None]:
    """Context manager: let `dataclass` derive a class without its frozen methods, which `frozen`
    adds, from frozen classes.
    """
    options_of_bases = [getattr(base, _OPTIONS_ATTRIBUTE, None) for base in cls.__mro__[1:]]
    with _BASE_OPTIONS_LOCK:
        frozen_options = [options for options in options_of_bases if options is not None and options.frozen]
        for options in frozen_options:
            options.frozen = False
        try:
            yield
        finally:
            for options in frozen_options:
                options.frozen = True


def _methods_that_refuse_changes(cls: Any) -> tuple[Method, Method]:
    """Return the methods `__setattr__` and `__delattr__` of a frozen class."""
    names = frozenset(f.name for f in fields(cls))

    def __setattr__(self: Any, name: str, value: object) -> None:
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def __delattr__(self: Any, name: str) -> None:
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    return __setattr__, __delattr__


def _repr_method(cls: Any) -> Method:
    """Return the method `__repr__`, which prints the class and its fields as a call."""
    names = [f.name for f in fields(cls) if f.repr]

    def __repr__(self: Any) -> str:
        arguments = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{type(self).__qualname__}({arguments})"

    return recursive_repr()(__repr__)


def _getstate_method(cls: Any) -> Method:
    """Return the method `__getstate__`, which gives the values of all fields to `pickle` and
    `copy`.
    """
    names = [f.name for f in fields(cls)]
    if len(names) < 2:  # attrgetter would return no tuple
        return lambda self: tuple([getattr(self, name) for name in names])
    read_fields: Any = attrgetter(*names)
    return lambda self: read_fields(self)


def _setstate(self: Any, state: tuple[object, ...]) -> None:
    """Set all fields to the values that `__getstate__` returned."""
    for f, value in zip(fields(self), state, strict=True):
        object.__setattr__(self, f.name, value)


class _MethodGeneratedOnFirstUse:
    """Descriptor that replaces itself by a generated method when the method is first looked up; most
    classes are imported without being used.
    """

    def __init__(self, cls: Any, name: str, generate: Callable[[Any], Method]) -> None:
        self._class, self._name, self._generate = cls, name, generate

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        method = self._generate(self._class)
        # a decorator may have replaced the method
        if vars(self._class).get(self._name) is self:
            setattr(self._class, self._name, method)
        return method if instance is None else MethodType(method, instance)


def _fields_as_tuple_text(record: str, compared_fields: list[Field[Any]]) -> str:
    return "(" + "".join(f"{record}.{f.name}, " for f in compared_fields) + ")"


def _generate_eq(cls: Any) -> Method:
    """Return the method `__eq__`, which compares the fields of records of one class."""
    compared = [f for f in fields(cls) if f.compare]
    own, others = (_fields_as_tuple_text(record, compared) for record in ("self", "other"))
    lines = ["if other.__class__ is not self.__class__:", " return NotImplemented", f"return {own} == {others}"]
    return _compile_method(cls, "__eq__(self, other)", lines, {})


def _generate_hash(cls: Any) -> Method:
    """Return the method `__hash__`, which combines the hashes of the fields."""
    hashed = [f for f in fields(cls) if (f.compare if f.hash is None else f.hash)]
    return _compile_method(cls, "__hash__(self)", [f"return hash({_fields_as_tuple_text('self', hashed)})"], {})


def _compile_method(cls: Any, head: str, lines: list[str], scope: dict[str, Any]) -> Method:
    """Compile a method with the given head and lines; the names in `scope` are variables of an
    enclosing function, which are found faster than global variables.
    """
    name = head.partition("(")[0]
    text = f"def create({', '.join(scope)}):\n def {head}:\n  " + "\n  ".join(lines) + f"\n return {name}"
    namespace: dict[str, Any] = {}
    exec(text, {}, namespace)
    method: Method = namespace["create"](**scope)
    method.__qualname__, method.__module__ = f"{cls.__qualname__}.{name}", cls.__module__
    return method


def _generate_init(cls: Any) -> Method:
    """Return the method `__init__` of a dataclass with the signature that `dataclasses` defines for
    its fields.
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
        set_field = _field_setter_call_adding_to_scope(cls, f, scope)
        made = f"make_{f.name}() if {f.name} is MISSING else " if f"make_{f.name}" in scope else ""
        if f.init:
            lines.append(f"{set_field}{made}{f.name})")
        elif f.default_factory is not MISSING:
            scope[f"make_{f.name}"] = f.default_factory
            lines.append(f"{set_field}make_{f.name}())")
        elif f.default is not MISSING:
            scope[f"default_{f.name}"] = f.default
            lines.append(f"{set_field}default_{f.name})")
    lines += ["self.__post_init__()"] if hasattr(cls, "__post_init__") else []
    init = _compile_method(cls, f"__init__({', '.join(parameters)})", lines or ["pass"], scope)
    init.__annotations__ = {**{f.name: f.type for f in ordered}, "return": None}
    return init


def _field_setter_call_adding_to_scope(cls: Any, f: Field[Any], scope: dict[str, Any]) -> str:
    """Return the text of a call that sets a field, up to its value, and add the function that it
    calls to `scope`: the setter of the field's slot, or that of attributes if there is none.
    """
    slot = getattr(cls, f.name, None)
    if isinstance(slot, MemberDescriptorType):
        scope[f"set_{f.name}"] = slot.__set__
        return f"set_{f.name}(self, "
    scope["set_attribute"] = object.__setattr__
    return f"set_attribute(self, {f.name!r}, "


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
