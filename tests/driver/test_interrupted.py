# SPDX-License-Identifier: Apache-2.0
"""Processes that are killed while they put a project in its place, at any operation on files, and those that follow."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from aotc.driver.place import MARKER, check_destination, is_ours, staged
from aotc.driver.scratch import PLAN, scratches, written
from aotc.ir.diagnostics import AotcError
from tests.cli.invoke import DIGITS, call

CHANGING = {"os.rename", "os.mkdir", "os.rmdir", "os.remove", "os.chmod", "os.truncate", "os.link", "fcntl.flock"}
"""The audit events of operations that change what is on disk, or who may; those of files that are opened to be written
come to them.
"""
OLD = {MARKER: "1", "src/net.c": "1", "src/a.c": "1", "only/x.h": "1", "lib/net.so": "1"}
NEW = {MARKER: "2", "src/net.c": "2", "src/b.c": "2", "fresh/deep/y.h": "2"}
MINE = {"notes.txt": "mine", "src/mine.c": "mine"}
BUILT = {"build/stale.o": "1"}

State = dict[str, str]


def emit(files: State, output: Path) -> None:
    with staged(output) as work:
        write(work, files)


def write(folder: Path, files: State) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if name == MARKER:
            text = json.dumps({"generator": "aotc", "sha256": dict.fromkeys(files, ""), "text": text})
        (folder / name).write_text(text)


def state(folder: Path) -> State:
    """What is in a folder: texts of files, "" for folders."""
    return {
        p.relative_to(folder).as_posix(): "" if p.is_dir() else p.read_text()
        for p in sorted(folder.rglob("*"))
        if not any(part.startswith(".aotc-") for part in p.relative_to(folder).parts)
    }


def killed(action: Callable[[], object], at: int) -> bool:
    """Whether a child that does `action` came to its operation number `at`, where it is killed."""
    child = os.fork()
    if child == 0:
        left = at

        def count(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal left
            if event in CHANGING or (event == "open" and int(str(arguments[2])) & (os.O_WRONLY | os.O_RDWR)):
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        code = 1
        try:
            sys.addaudithook(count)
            action()
            code = 0
        finally:
            os._exit(code)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) or status == 0
    return os.WIFSIGNALED(status)


def absent(_: Path) -> None: ...


def empty(output: Path) -> None:
    output.mkdir(parents=True)


def former(output: Path) -> None:
    emit(OLD, output)
    write(output, MINE | BUILT)


def after(folder: Path, prepare: Callable[[Path], None], *actions: Callable[[Path], object]) -> State:
    """What undisturbed work leaves."""
    prepare(folder)
    for action in actions:
        action(folder)
    return state(folder) if folder.is_dir() else {}


def not_mixed(found: State) -> bool:
    """Whether the files of the project are those of one run."""
    texts = {text for name, text in found.items() if text not in ("", "mine") and name != MARKER}
    return len(texts) <= 1


@pytest.mark.parametrize("prepare", [absent, empty, former])
def test_a_kill_at_any_moment_is_mended_by_the_next_compile(tmp_path: Path, prepare: Callable[[Path], None]) -> None:
    before = after(tmp_path / "before", prepare)
    complete = after(tmp_path / "complete", prepare, lambda o: emit(NEW, o))
    rng = random.Random(0)
    for at in range(1000):
        home = tmp_path / str(at)
        output = home / "deep" / "net"
        prepare(output)
        if not killed(lambda output=output: emit(NEW, output), at):
            break
        if output.is_dir():
            assert not_mixed(state(output)) and (is_ours(output) or prepare is not former)
        if rng.random() < 0.5:  # who mends is killed, too
            killed(lambda output=output: check_destination(output), rng.randrange(15))
            assert not output.is_dir() or not_mixed(state(output))
        if output.parent.is_dir():
            check_destination(output)
            assert (state(output) if output.is_dir() else {}) in (before, complete), at
            assert {p.name for p in output.parent.iterdir()} <= {"net"}
            assert not scratches(output)
        emit(NEW, output)
        assert state(output) == complete and not scratches(output) and not scratches(output.parent), at
        shutil.rmtree(home)
    assert at > 15


def test_a_kill_of_a_real_compile(tmp_path: Path) -> None:
    """By its own C compiler.  A compile that then fails brings order, too."""
    output = tmp_path / "home" / "net"
    deadly = tmp_path / "cc"
    deadly.write_text("#!/bin/sh\n[ $1 = --version ] && exit 0\nkill -9 $PPID\n")
    deadly.chmod(0o755)
    command = [sys.executable, "-m", "aotc", "compile", DIGITS, "-o", output]
    for options in (["--cc", "false"], ["--cflags=-O1"], ["--no-build"]):  # the last time it is in the folder
        assert subprocess.run([*command, "--cc", deadly]).returncode == -signal.SIGKILL
        assert scratches(output.parent) or scratches(output)
        assert call("compile", DIGITS, "-o", output, *options).code == (2 if "false" in options else 0)
        assert [p.name for p in output.parent.iterdir()] == ["net"] * output.is_dir()
        assert not scratches(output)
    assert is_ours(output) and not (output / "lib").exists()


def test_an_installation_that_can_not_be_undone_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of the former project are not thrown away with the scratch where they cannot go back now."""
    output = tmp_path / "net"
    former(output)
    before = state(output)
    replace, moves = Path.replace, iter(range(1000))

    def failing(path: Path, target: Path) -> Path:
        if next(moves) > 2:
            raise OSError(5, "Input/output error")
        return replace(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", failing)
        with pytest.raises(AotcError, match="Input/output error"):
            emit(NEW, output)
    assert state(output) != before and len(scratches(output)) == 1
    check_destination(output)
    assert state(output) == before and not scratches(output)


def killed_in_moves(output: Path) -> Path:
    """The plan of a process that was killed when some of its new files were in their places."""
    for at in range(1000):
        assert killed(lambda: emit(NEW, output), at)
        if any(text == "2" for text in state(output).values()):
            return next(output.glob(f".aotc-*/{PLAN}"))
    raise AssertionError


def test_a_plan_leads_nowhere_else_and_says_so_where_it_is_damaged(tmp_path: Path) -> None:
    output, mine = tmp_path / "net", tmp_path / "mine"
    former(output)
    plan = killed_in_moves(output)
    found = json.loads(plan.read_text())
    mine.write_text("mine")
    plan.write_text(json.dumps(found | {"new": [*found["new"], "../mine", str(mine)]}))
    check_destination(output)
    assert mine.read_text() == "mine"
    plan = killed_in_moves(output)
    plan.write_text("{")
    with pytest.raises(AotcError, match="damaged"):
        check_destination(output)
    assert plan.exists()


def test_what_is_being_made_or_is_not_ours_stays(tmp_path: Path) -> None:
    """Scratch folders of living processes, and what only looks like one."""
    (tmp_path / ".aotc-notes").mkdir()
    (tmp_path / ".aotc-abcdefgh").mkdir()
    (tmp_path / ".aotc-abcdefgh" / "mine").write_text("mine")
    with staged(tmp_path / "a") as work:
        emit(OLD, tmp_path / "b")
        write(work, NEW)
    assert state(tmp_path / "a")["src/b.c"] == "2"
    assert {p.name for p in tmp_path.iterdir()} == {"a", "b", ".aotc-notes", ".aotc-abcdefgh"}


@pytest.mark.parametrize("prepare", [absent, empty, former])
def test_two_compiles_into_one_folder(tmp_path: Path, prepare: Callable[[Path], None]) -> None:
    """Both succeed; what is there then is one of the two."""
    ways = [after(tmp_path / f"{k}", prepare, lambda o, f=files: emit(f, o)) for k, files in enumerate((OLD, NEW))]
    for k in range(20):
        output = tmp_path / f"both{k}" / "net"
        prepare(output)
        both = threading.Barrier(2)

        def one(files: State, output: Path = output, both: threading.Barrier = both) -> None:
            with staged(output) as work:
                write(work, files)
                both.wait(20)

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(one, (OLD, NEW)))
        assert state(output) in ways
        assert [p.name for p in output.parent.iterdir()] == ["net"] and not scratches(output)


def test_real_compiles_into_one_new_folder(tmp_path: Path) -> None:
    output = tmp_path / "net"
    command = [sys.executable, "-m", "aotc", "compile", DIGITS, "-o", output, "--no-build"]
    running = [subprocess.Popen(command) for _ in range(2)]
    assert [process.wait(100) for process in running] == [0, 0]
    assert is_ours(output) and [p.name for p in tmp_path.iterdir()] == ["net"]


def test_files_are_written_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "out.npz"

    def save(text: str) -> None:
        with written(path) as file:
            file.write(text.encode())

    for text in ("1", "22"):
        save(text)
        path.chmod(0o640)
    for at in range(20):
        if not killed(lambda: save("333"), at):
            break
        assert path.read_text() == "22"
    assert at > 1 and path.read_text() == "333"
    with pytest.raises(RuntimeError), written(path) as file:
        file.write(b"4")
        raise RuntimeError
    assert path.read_text() == "333" and path.stat().st_mode & 0o777 == 0o640
    assert [p.name for p in tmp_path.iterdir()] == ["out.npz"]
    (tmp_path / "link").symlink_to(path)
    with written(tmp_path / "link") as file:
        file.write(b"5")
    assert (tmp_path / "link").is_symlink() and path.read_text() == "5"
    with written(Path("/dev/null")) as file:
        file.write(b"6")
