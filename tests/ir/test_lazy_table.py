# SPDX-License-Identifier: Apache-2.0
"""A table that is loaded at the first lookup, also when several threads look entries up."""

from __future__ import annotations

import threading

import aotc
from aotc.ir.lazy_table import LazyTable


def test_entries_are_loaded_at_the_first_lookup() -> None:
    loads: list[str] = []
    table = LazyTable[int]()
    assert table.entries() == {}
    table.install(lambda: loads.append("load") or {"one": 1})  # type: ignore[func-returns-value]
    assert not loads
    assert table.entries() == table.entries() == {"one": 1}
    assert loads == ["load"]


def test_a_thread_that_loads_late_replaces_nothing() -> None:
    began, installed = threading.Event(), threading.Event()

    def load_late() -> dict[str, int]:
        began.set()
        assert installed.wait(20)
        return {"one": 1}

    table = LazyTable[int]()
    table.install(load_late)
    seen: list[object] = []
    thread = threading.Thread(target=lambda: seen.append(dict(table.entries())))
    thread.start()
    assert began.wait(20)
    table.install({"one": 1, "two": 2})
    installed.set()
    thread.join()
    assert seen == [{"one": 1, "two": 2}]
    assert table.entries() == {"one": 1, "two": 2}


def test_a_package_has_no_attribute_whose_name_is_no_identifier() -> None:
    """The import system raises another error than AttributeError for a name with a dot."""
    assert not hasattr(aotc, "no_such_package.module")
