# SPDX-License-Identifier: Apache-2.0
"""Table of named entries that is loaded at the first lookup.

table = LazyTable()
table.install(lambda: import_module("aotc.relay.op").OPERATORS_BY_NAME)
table.entries()["nn.relu"]            # imports the module
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Generic, TypeVar

T = TypeVar("T")


class LazyTable(Generic[T]):
    """Entries by name; empty until `install` is called."""

    def __init__(self) -> None:
        self._entries: Mapping[str, T] = MappingProxyType({})
        self._load: Callable[[], Mapping[str, T]] | None = None

    def install(self, entries: Mapping[str, T] | Callable[[], Mapping[str, T]]) -> None:
        """Replace the entries.

        entries    entries by name, or a function that returns them, called at the first lookup
        """
        if callable(entries):
            self._load = entries
        else:
            # in this order: other threads may look entries up meanwhile
            self._entries = MappingProxyType(dict(entries))
            self._load = None

    def entries(self) -> Mapping[str, T]:
        """Return all entries by name, loading them if that has not been done."""
        load = self._load
        if load is not None:
            loaded = load()
            # another thread may have installed entries meanwhile
            if self._load is load:
                self.install(loaded)
        return self._entries
