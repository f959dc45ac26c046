# SPDX-License-Identifier: Apache-2.0
"""Persistent memoization: cache results across runs of the compiler under a hash of everything they
depend on.

    with memoize_results_in_store(store, salt):                       # the salt stands for the code that makes them
        kernel = load_or_compute_memoized_result("kernel", key, lambda: make(name, outputs, target), KERNELS)
        # known by what it was made from
        text = load_or_compute_memoized_result("text", kernel, lambda: printed(kernel), Form(str))

Sources are pickled to compute the hash, but no pickle is ever read.  Results are stored in a
`JsonFormat`, so reading a stored result creates only data, whoever wrote it.  Results that contain
code or are nested too deeply are not stored, and nothing is stored outside of
`memoize_results_in_store`.
"""

import hashlib
import pickle
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar, cast

from aotc.ir.safe_json import JsonFormat
from aotc.ir.temporary_context_value import temporarily_set_context_variable

T = TypeVar("T")
#: Exceptions of pickle for objects that it cannot serialize.
_PICKLE_ERRORS: Final = (pickle.PicklingError, TypeError, AttributeError, RecursionError)


class Store(Protocol):
    """Interface of a key-value store of bytes; `get` returns None for an unknown or lost key."""

    def get(self, key: str) -> bytes | None: ...

    def put(self, key: str, data: bytes) -> None: ...


@dataclass(slots=True)
class MemoState:
    """State of memoization in the current context.

    store           where results are stored
    salt            part of every key
    names           keys of results by the identity of the result
    computed        number of results that were computed, not loaded
    kept_results    results that are returned for the next request of their keys, without loading
                    them (see `aotc.ir.parallel_memo`)
    """

    store: Store
    salt: str
    names: dict[int, tuple[object, str]] = field(default_factory=dict)
    computed: int = 0
    kept_results: dict[str, object] = field(default_factory=dict)
    _keeps_results: bool = False

    @contextmanager
    def keep_block_results_in_memory(self) -> Iterator[None]:
        """Context manager: keep the results of the block for later requests, instead of those of
        earlier blocks.
        """
        self.kept_results.clear()
        self._keeps_results = True
        try:
            yield
        finally:
            self._keeps_results = False

    def load_or_compute(self, key: str, compute: Callable[[], T], form: JsonFormat[T]) -> T:
        """Return the result of a key: one that was kept, the stored one, or that of `compute`."""
        if not self._keeps_results and key in self.kept_results:
            return cast(T, self.kept_results.pop(key))
        result = _load_memoized_result(self.store, key, form)
        if result is None:
            self.computed += 1
            result = compute()
            try:
                self.store.put(key, form.dump_json(result))
            except TypeError:
                return result
        self.names.setdefault(id(result), (result, key))
        if self._keeps_results:
            self.kept_results[key] = result
        return result

    def memo_key_of_result(self, kind: str, source: object) -> str | None:
        """Return the hash of a result's kind, its source and the salt; None if the source cannot be
        pickled.
        """
        # hash the keys of remembered results: pickles of computed and of loaded results may differ
        parts = source if isinstance(source, tuple) else (source,)
        known = [self.names.get(id(part)) for part in parts]
        try:
            named = [part if name is None else name[1] for part, name in zip(parts, known, strict=True)]
            data = pickle.dumps(named, protocol=5)
        except _PICKLE_ERRORS:
            return None
        hasher = hashlib.sha256(f"{self.salt} {kind} {[name is not None for name in known]}\n".encode())
        hasher.update(data)
        return hasher.hexdigest()


_CURRENT_MEMO_STATE: Final[ContextVar[MemoState | None]] = ContextVar("aotc_memory", default=None)


def current_memo_state() -> MemoState | None:
    """Return the state of memoization; None outside of `memoize_results_in_store`."""
    return _CURRENT_MEMO_STATE.get()


def memoize_results_in_store(store: Store | None, salt: str) -> AbstractContextManager[object]:
    """Context manager: store results of `load_or_compute_memoized_result` in `store` (None: do not
    store).

    `salt` is part of every key; it stands for dependencies outside the sources, such as the version
    of the code.
    """
    return temporarily_set_context_variable(_CURRENT_MEMO_STATE, MemoState(store, salt) if store is not None else None)


def load_or_compute_memoized_result(
    result_kind: str, dependencies: object, compute: Callable[[], T], form: JsonFormat[T]
) -> T:
    """Return the stored result for an equal source, else call `compute`, store its result and
    return it.

    dependencies    everything that the result depends on; may be, or be a tuple containing, results of
                    `load_or_compute_memoized_result`
    form            serialization of the result; a result that it cannot express is not stored
    """
    memory = _CURRENT_MEMO_STATE.get()
    key = memory.memo_key_of_result(result_kind, dependencies) if memory is not None else None
    if memory is None or key is None:
        return compute()
    return memory.load_or_compute(key, compute, form)


def compute_with_memo_key(result_kind: str, dependencies: object, compute: Callable[[], T]) -> T:
    """Call `compute` and return its result, which is not stored but gets a key: results that are
    derived from it can be stored under keys that are cheap to compute.

    The arguments are those of `load_or_compute_memoized_result`.
    """
    memory = _CURRENT_MEMO_STATE.get()
    key = memory.memo_key_of_result(result_kind, dependencies) if memory is not None else None
    result = compute()
    if memory is not None and key is not None:
        memory.names.setdefault(id(result), (result, key))
    return result


def _load_memoized_result(store: Store, key: str, form: JsonFormat[T]) -> T | None:
    """Read a memoized result from the store; None if there is none or it is invalid."""
    data = store.get(key)
    try:
        return None if data is None else form.load_json(data)
    except ValueError:
        return None


def give_new_value_memo_key_of_old(new: T, old: object) -> T:
    """Register `new` under the key of the remembered `old`, so that results derived from either
    share an entry.

    `new` may differ from `old` only in properties that no derived result depends on.  Returns
    `new`.
    """
    memory = _CURRENT_MEMO_STATE.get()
    if memory is not None and id(old) in memory.names:
        memory.names[id(new)] = (new, memory.names[id(old)][1])
    return new
