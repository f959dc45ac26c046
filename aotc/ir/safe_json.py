# SPDX-License-Identifier: Apache-2.0
"""Serialize values of a fixed set of classes to JSON and back; reading creates no objects of other
classes, so its input need not be trusted.

form = JsonFormat(Kernel, [Kernel, Block, Store, Const, DType], shared=[PART])
form.load_json(form.dump_json(kernel))               # equal; what was one object in many places still is

The JSON is a list in which each value comes after its parts.  A number, string, true, false or null
stands for itself; [k, i, j] is an object of class number k made from values number i and j.  The
last entry is a 1-tuple of the whole value.
"""

import gc
import inspect
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from operator import attrgetter
from typing import Any, Final, Generic, TypeVar

T = TypeVar("T")
_JSON_ATOM_TYPES: Final = frozenset({type(None), bool, int, float, str})


class JsonFormat(Generic[T]):
    """Serialization format for values of one class and the classes of their parts.

    result    class of the whole value
    classes   dataclasses, enumerations and subclasses of str that may occur as parts; Python's containers
              and JSON's own types are always allowed
    shared    objects that are written by reference, and are identical after reading
    """

    def __init__(self, result: type[T], classes: Sequence[type] = (), shared: Sequence[object] = ()) -> None:
        self._result = result
        self._shared = tuple(shared)
        self._numbers: dict[type, int] = {cls: k for k, cls in enumerate((tuple, frozenset, list, dict, *classes))}
        self._makers = [_builder_from_fields_or_items(cls) for cls in self._numbers]
        self._fields_getter_by_class = {cls: _getter_of_fields_or_items(cls) for cls in self._numbers}

    def dump_json(self, value: T) -> bytes:
        """Serialize a value to JSON; raise TypeError if a part is of a class that the format does
        not include.
        """
        entries: list[Any] = []
        places = {id(item): k for k, item in enumerate(self._shared)}
        atom_places: dict[object, int] = {}
        work: list[Any] = [(value,)]
        while work:
            item = work[-1]
            if id(item) in places:
                work.pop()
                continue
            kind = type(item)
            if kind not in self._fields_getter_by_class:
                raise TypeError(f"{kind.__name__} is not among the classes that are kept")
            entry, unplaced = [self._numbers[kind]], len(work)
            for part in self._fields_getter_by_class[kind](item):
                if type(part) in _JSON_ATOM_TYPES:
                    key = _exact_atom_key(part)
                    place = atom_places.get(key)
                    if place is None:
                        place = atom_places[key] = len(self._shared) + len(entries)
                        entries.append(part)
                else:
                    place = places.get(id(part))
                    if place is None:
                        work.append(part)
                        continue
                entry.append(place)
            if len(work) == unplaced:  # else the item is visited again after its parts
                places[id(item)] = len(self._shared) + len(entries)
                entries.append(entry)
                work.pop()
        return json.dumps(entries, separators=(",", ":")).encode()

    def load_json(self, data: bytes) -> T:
        """Deserialize a value from JSON; raise ValueError for data that `dump_json` cannot have
        written.
        """
        collecting = gc.isenabled()
        # no garbage collection while many live objects are created: it only costs time
        gc.disable()
        try:
            value = self._build_value_from_entries(json.loads(data))
        except Exception as error:  # constructors may raise anything for invalid parts
            raise ValueError("this is no value that was kept") from error
        finally:
            if collecting:
                gc.enable()
        if not isinstance(value, self._result):
            raise ValueError(f"this is no {self._result.__name__}")
        return value

    def _build_value_from_entries(self, entries: list[Any]) -> object:
        values: list[Any] = list(self._shared)
        makers = self._makers
        append, get = values.append, values.__getitem__
        for entry in entries:
            append(makers[entry[0]](map(get, entry[1:])) if type(entry) is list else entry)
        (whole,) = values[-1]
        return whole


def _exact_atom_key(atom: object) -> object:
    """Return a key that identifies a number, string or None: unlike ==, it distinguishes 0.0 from
    -0.0 and 1 from True.
    """
    if type(atom) is float:
        if math.isnan(atom) and math.copysign(1.0, atom) < 0:
            raise TypeError("JSON does not tell the sign of what is no number")
        return float, repr(atom)
    return type(atom), atom


def _getter_of_fields_or_items(cls: type) -> Callable[[Any], Sequence[Any]]:
    if is_dataclass(cls):
        names = [field.name for field in fields(cls)]
        return attrgetter(*names) if len(names) > 1 else lambda item: [getattr(item, name) for name in names]
    if cls is dict:
        return lambda item: [part for pair in item.items() for part in pair]
    if issubclass(cls, Enum):
        return lambda item: [item.value]
    return (lambda item: [str(item)]) if issubclass(cls, str) else tuple


def _builder_from_fields_or_items(cls: type) -> Callable[[Iterable[Any]], Any]:
    """Return a function that creates an object of a class from an iterable of its fields or items."""
    if cls is dict:
        return lambda parts: dict(zip(each := iter(parts), each, strict=True))
    if not is_dataclass(cls):
        return (lambda parts: cls(*parts)) if issubclass(cls, (str, Enum)) else cls
    names = [field.name for field in fields(cls)]
    init_params = inspect.signature(cls).parameters.values()
    if [p.name for p in init_params if p.kind is p.POSITIONAL_OR_KEYWORD] == names:
        return lambda parts: cls(*parts)

    def build_instance_without_init(field_values: Iterable[Any]) -> Any:
        instance = object.__new__(cls)
        for name, part in zip(names, field_values, strict=True):
            object.__setattr__(instance, name, part)
        return instance

    return build_instance_without_init
