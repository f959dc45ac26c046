# SPDX-License-Identifier: Apache-2.0
"""Results on disk: never over what is not ours, never half-written."""

from __future__ import annotations

from pathlib import Path

import pytest

from aotc.driver.place import is_ours, staged
from aotc.ir.diagnostics import AotcError


def emit(work: Path, text: str) -> None:
    (work / "metadata.json").write_text('{"generator": "aotc"}')
    (work / "file").write_text(text)


def test_a_new_directory_appears_as_a_whole(tmp_path: Path) -> None:
    output = tmp_path / "deep" / "net"
    with staged(output) as work:
        emit(work, "1")
        assert not output.exists()
    assert is_ours(output)
    assert [p.name for p in output.parent.iterdir()] == ["net"]


def test_a_failure_leaves_the_former_result(tmp_path: Path) -> None:
    output = tmp_path / "net"
    with staged(output) as work:
        emit(work, "1")
    with pytest.raises(RuntimeError), staged(output) as work:
        emit(work, "2")
        raise RuntimeError
    assert (output / "file").read_text() == "1"
    assert [p.name for p in tmp_path.iterdir()] == ["net"]


def test_our_own_directory_is_replaced(tmp_path: Path) -> None:
    output = tmp_path / "net"
    for text in ("1", "2"):
        with staged(output) as work:
            emit(work, text)
    assert (output / "file").read_text() == "2"
    assert [p.name for p in tmp_path.iterdir()] == ["net"]


@pytest.mark.parametrize("content", ["notes.txt", "metadata.json"])
def test_foreign_directories_are_left_alone(tmp_path: Path, content: str) -> None:
    (tmp_path / content).write_text("{}")
    with pytest.raises(AotcError, match="was not made by aotc"), staged(tmp_path):
        pass
    assert (tmp_path / content).read_text() == "{}"


def test_a_file_is_not_a_destination(tmp_path: Path) -> None:
    (tmp_path / "net").write_text("mine")
    with pytest.raises(AotcError, match="not a directory"), staged(tmp_path / "net"):
        pass
    with pytest.raises(AotcError, match="cannot write"), staged(tmp_path / "net" / "below"):
        pass
    assert (tmp_path / "net").read_text() == "mine"
