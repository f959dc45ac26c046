# SPDX-License-Identifier: Apache-2.0
"""Results that are kept from one run of the compiler to the next, under a hash of all that they are made from.

    with remembering(store, salt):                                    # the salt stands for the code that makes them
        kernel = remembered("kernel", (name, outputs, target), lambda: make(name, outputs, target), KERNELS)
        text = remembered("text", kernel, lambda: printed(kernel), Form(str))  # known by what it was made from

Sources and results are data.  Sources are pickled for their hash, and no pickle is ever
read; results are kept in a `Form`, so that what is read is data, whoever wrote it.
What is no data, because it holds code or is nested too deeply, is made anew each time;
so is everything outside of `remembering`.
"""

import hashlib
import pickle
from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

from aotc.ir.context_variables import setting
from aotc.ir.safe_json import Form

T = TypeVar("T")
#: What pickling raises for what is no data.
_UNFIT: Final = (pickle.PicklingError, TypeError, AttributeError, RecursionError)


class Store(Protocol):
    """Bytes by key; what it does not know, or has lost, is None."""

    def get(self, key: str) -> bytes | None: ...

    def put(self, key: str, data: bytes) -> None: ...


@dataclass(slots=True)
class _Memory:
    """names: the keys of results that came out of here, by identity (the results are kept alive with them)."""

    store: Store
    salt: str
    names: dict[int, tuple[object, str]] = field(default_factory=dict)

    def key(self, kind: str, source: object) -> str | None:
        """The hash of a result's kind, its source and the salt; None where the source cannot be pickled."""
        # results have their keys in place of their data, whose pickles tell made ones from those that were read
        parts = source if isinstance(source, tuple) else (source,)
        known = [self.names.get(id(part)) for part in parts]
        try:
            named = [part if name is None else name[1] for part, name in zip(parts, known, strict=True)]
            data = pickle.dumps(named, protocol=5)
        except _UNFIT:
            return None
        found = hashlib.sha256(f"{self.salt} {kind} {[name is not None for name in known]}\n".encode())
        found.update(data)
        return found.hexdigest()


_MEMORY: Final[ContextVar[_Memory | None]] = ContextVar("aotc_memory", default=None)


def remembering(store: Store | None, salt: str) -> AbstractContextManager[object]:
    """Keep results in `store` (None: nowhere); `salt` tells apart what the sources do not, such as versions of code."""
    return setting(_MEMORY, _Memory(store, salt) if store is not None else None)


def remembered(kind: str, source: object, make: Callable[[], T], form: Form[T]) -> T:
    """`make()`, or what it gave for an equal source before.

    source    all that the result depends on; it, or items of it where it is a tuple, may be results of `remembered`
    form      of the result; one that is not of it is made anew each time
    """
    memory = _MEMORY.get()
    key = memory.key(kind, source) if memory is not None else None
    if memory is None or key is None:
        return make()
    result = _kept(memory.store, key, form)
    if result is None:
        result = make()
        try:
            memory.store.put(key, form.dump(result))
        except TypeError:
            return result
    memory.names.setdefault(id(result), (result, key))
    return result


def _kept(store: Store, key: str, form: Form[T]) -> T | None:
    """The result in the store; None where there is none, or something else."""
    data = store.get(key)
    try:
        return None if data is None else form.load(data)
    except ValueError:
        return None


def alike(new: T, old: object) -> T:
    """`new`, of which nothing is different from `old` that a result depends on."""
    memory = _MEMORY.get()
    if memory is not None and id(old) in memory.names:
        memory.names[id(new)] = (new, memory.names[id(old)][1])
    return new
