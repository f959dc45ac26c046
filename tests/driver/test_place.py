# SPDX-License-Identifier: Apache-2.0
"""Results on disk: never over what is not ours, never half-written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import aotc
from aotc.driver.place import is_ours, staged
from aotc.ir.diagnostics import AotcError
from tests.e2e.projects import affine


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


def test_files_of_the_user_stay(tmp_path: Path) -> None:
    """A project is replaced file by file: what it did not write, and what make did not build, is not touched."""
    output = tmp_path / "net"
    with staged(output) as work:
        (work / "src").mkdir()
        (work / "src" / "old.c").write_text("")
        (work / "only").mkdir()
        (work / "only" / "old.h").write_text("")
        (work / "metadata.json").write_text(
            '{"generator": "aotc", "sha256": {"src/old.c": "", "only/old.h": "", "../x": ""}}'
        )
    (tmp_path / "x").write_text("mine")
    for mine in ("notes.txt", "src/mine.c"):
        (output / mine).write_text("mine")
    (output / "build").mkdir()
    (output / "build" / "stale.o").write_text("")
    with staged(output) as work:
        emit(work, "2")
    found = {p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*") if p.is_file()}
    assert found == {"x", "net/notes.txt", "net/src/mine.c", "net/metadata.json", "net/file"}
    assert not (output / "only").exists() and not (output / "build").exists()


def test_parts_of_the_runtime_that_are_no_longer_needed_go(tmp_path: Path) -> None:
    found = []
    for threads in (True, False):
        aotc.compile(affine(300, 0), output=tmp_path / "net", target="x86-64-v3", build=False, threads=threads)
        found.append({p.name for p in (tmp_path / "net" / "runtime").iterdir()})
    assert found == [{"aotc_rt.c", "aotc_pool.c"}, {"aotc_rt.c"}]


def test_the_current_directory_can_be_the_destination(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for text in ("1", "2"):
        with staged(Path()) as work:
            emit(work, text)
        assert sorted(p.name for p in Path.cwd().iterdir()) == ["file", "metadata.json"]
        assert (Path.cwd() / "file").read_text() == text


def test_a_destination_that_cannot_be_replaced_keeps_what_it_had(tmp_path: Path) -> None:
    output = tmp_path / "net"
    with staged(output) as work:
        emit(work, "1")
    (output / "sub").mkdir()
    (output / "sub" / "mine").write_text("mine")
    with pytest.raises(AotcError, match="cannot write"), staged(output) as work:
        emit(work, "2")
        (work / "sub").write_text("a file where a directory of the user's is")
    assert (output / "file").read_text() == "1" and (output / "sub" / "mine").read_text() == "mine"
    assert sorted(p.name for p in output.iterdir()) == ["file", "metadata.json", "sub"]


def test_a_relative_destination(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C compilers run in the project, wherever that is seen from."""
    monkeypatch.chdir(tmp_path)
    model = aotc.compile(affine(4, 0), output="net", cflags=["-O1"], cache=False)
    assert model.session().run(None, {"x": np.zeros((1, 4), np.float32)})[0].shape == (1, 4)
