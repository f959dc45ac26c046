# SPDX-License-Identifier: Apache-2.0
"""Processes that are killed or interrupted at any time: the files that they leave, and the next compile."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from aotc.driver.output_folder import stage_output_files
from aotc.driver.temporary_folders import unlocked_scratch_folders
from aotc.ir.atomic_write import open_for_atomic_write, open_output_file
from aotc.ir.diagnostics import AotcError
from aotc.ir.file_checksum_manifest import MANIFEST_FILE_NAME, PENDING_MANIFEST_FILE_NAME, file_checksum
from aotc.ir.interrupts import create_folders_remove_if_empty, postpone_signals, remove_temporary_path_after_block
from aotc.runtime.library import is_aotc_project
from tests.cli.invoke import DIGITS, relu
from tests.driver.folders import emit, files_of, write
from tests.share import share


@pytest.fixture(autouse=True)
def default_signal_handlers() -> Iterator[None]:
    """Give signals their default handlers, which child processes inherit: `nohup` and shells that start a background
    job ignore some of them.
    """
    defaults = {
        signal.SIGINT: signal.default_int_handler,
        signal.SIGHUP: signal.SIG_DFL,
        signal.SIGTERM: signal.SIG_DFL,
    }
    before = {number: signal.signal(number, handler) for number, handler in defaults.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


CHANGING = {"os.rename", "os.mkdir", "os.rmdir", "os.remove", "os.chmod", "os.truncate", "os.link", "fcntl.flock"}
"""The audit events of operations that change what is on disk, or who may; those of files that are opened to be written
come to them.
"""
OLD = {"metadata.json": "1", "src/net.c": "1", "src/a.c": "1", "only/x.h": "1", "lib/net.so": "1"}
NEW = {"metadata.json": "2", "src/net.c": "2", "src/b.c": "2", "fresh/deep/y.h": "2"}
MINE = {"notes.txt": "mine", "src/mine.c": "mine", "build/stale.o": "mine"}

State = dict[str, str]


def state(folder: Path) -> State:
    """The files of a folder, without temporary ones."""
    found = files_of(folder) if folder.is_dir() else {}
    return {name: text for name, text in found.items() if ".aotc-" not in name}


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
    write(output, MINE)


def after(folder: Path, prepare: Callable[[Path], None], *actions: Callable[[Path], object]) -> State:
    """What undisturbed work leaves."""
    prepare(folder)
    for action in actions:
        action(folder)
    return state(folder)


def is_complete(output: Path) -> bool:
    """Whether there is a manifest; then the files that it names are those of one run."""
    if not (output / MANIFEST_FILE_NAME).exists():
        return False
    stated = json.loads((output / MANIFEST_FILE_NAME).read_text())["files"]
    assert {name: file_checksum(output / name) for name in stated} == stated
    return True


@pytest.mark.parametrize("prepare", share([absent, empty, former], 1, always=[former]))
def test_a_kill_at_any_moment_is_mended_by_the_next_compile(tmp_path: Path, prepare: Callable[[Path], None]) -> None:
    """Files of the user stay, a project with a manifest is whole, and the next compile recognizes what is ours."""
    complete = after(tmp_path / "complete", prepare, lambda o: emit(NEW, o))
    rng = random.Random(0)
    incomplete = 0
    for at in range(1000):
        output = tmp_path / str(at) / "deep" / "net"
        prepare(output)
        if not killed(lambda output=output: emit(NEW, output), at):
            break
        incomplete += not is_complete(output)
        while rng.random() < 0.5:  # the next one is killed, too
            killed(lambda output=output: emit(rng.choice((OLD, NEW)), output), rng.randrange(25))
            is_complete(output)
        if prepare is former:
            assert MINE.items() <= state(output).items()
        emit(NEW, output)
        assert state(output) == complete and is_complete(output), at
        shutil.rmtree(tmp_path / str(at))
    assert at > 15 and incomplete > 4


def test_a_kill_of_a_real_compile(tmp_path: Path) -> None:
    """By its own C compiler.  The scratch folder is nobody's: it is named, and removed by the user alone."""
    output = tmp_path / "home" / "net"
    deadly = tmp_path / "cc"
    deadly.write_text("#!/bin/sh\n[ $1 = --version ] && exit 0\nkill -9 $PPID\n")
    deadly.chmod(0o755)
    command = [sys.executable, "-m", "aotc", "compile", DIGITS, "-o", output]
    assert subprocess.run([*command, "--cc", deadly]).returncode == -signal.SIGKILL
    (left,) = unlocked_scratch_folders(output)
    done = subprocess.run([*command, "--no-build"], capture_output=True, text=True)
    assert done.returncode == 0 and left.name in "".join(done.stderr.split())
    assert left.exists() and is_aotc_project(output) and not (output / "lib").exists()


def test_an_exchange_that_the_system_ends_is_finished_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "net"
    former(output)
    replace, moves = Path.replace, iter(range(1000))

    def failing(path: Path, target: Path) -> Path:
        if next(moves) > 2:
            raise OSError(5, "Input/output error")
        return replace(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", failing)
        with pytest.raises(AotcError, match="Input/output error"):
            emit(NEW, output)
    assert (output / PENDING_MANIFEST_FILE_NAME).exists() and not is_complete(output)
    emit(NEW, output)
    assert is_complete(output) and state(output) == NEW | MINE | {
        MANIFEST_FILE_NAME: (output / MANIFEST_FILE_NAME).read_text()
    }


@pytest.mark.parametrize("prepare", [absent, empty, former])
def test_two_compiles_into_one_folder(tmp_path: Path, prepare: Callable[[Path], None]) -> None:
    """Both succeed; what is there then is one of the two."""
    ways = [after(tmp_path / f"{k}", prepare, lambda o, f=files: emit(f, o)) for k, files in enumerate((OLD, NEW))]
    for k in range(20):
        output = tmp_path / f"both{k}" / "net"
        prepare(output)
        both = threading.Barrier(2)

        def one(files: State, output: Path = output, both: threading.Barrier = both) -> None:
            with stage_output_files(output) as work:
                write(work, files)
                both.wait(20)

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(one, (OLD, NEW)))
        assert files_of(output) in ways
        assert [p.name for p in output.parent.iterdir()] == ["net"]


def test_real_compiles_into_one_new_folder(tmp_path: Path) -> None:
    output = tmp_path / "net"
    command = [sys.executable, "-m", "aotc", "compile", DIGITS, "-o", output, "--no-build"]
    running = [subprocess.Popen(command) for _ in range(2)]
    assert [process.wait(100) for process in running] == [0, 0]
    assert is_aotc_project(output) and is_complete(output) and [p.name for p in tmp_path.iterdir()] == ["net"]


def test_files_are_written_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "out.npz"

    def save(text: str) -> None:
        with open_for_atomic_write(path) as file:
            file.write(text.encode())

    for text in ("1", "22"):
        save(text)
        path.chmod(0o640)
    for at in range(20):
        if not killed(lambda: save("333"), at):
            break
        assert path.read_text() == "22"
    assert at > 1 and path.read_text() == "333"
    left = set(tmp_path.iterdir()) - {path}
    with pytest.raises(RuntimeError), open_for_atomic_write(path) as file:
        file.write(b"4")
        raise RuntimeError
    assert path.read_text() == "333" and path.stat().st_mode & 0o777 == 0o640
    assert {*tmp_path.iterdir()} == {path, *left}
    (tmp_path / "link").symlink_to(path)
    with open_for_atomic_write(tmp_path / "link") as file:
        file.write(b"5")
    assert (tmp_path / "link").is_symlink() and path.read_text() == "5"
    with open_for_atomic_write(Path("/dev/null")) as file:
        file.write(b"6")


def test_an_input_is_not_replaced_by_an_output(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_text("mine")
    (tmp_path / "link").symlink_to(path)
    os.link(path, tmp_path / "other")
    for name in ("net.onnx", "link", "other"):
        with (
            pytest.raises(AotcError, match="it is the input"),
            open_output_file(tmp_path / name, "output", [None, path]),
        ):
            pass
    assert path.read_text() == "mine"


# --- signals in this process


def test_signals_wait_for_what_must_not_be_interrupted() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), postpone_signals():
        with postpone_signals():
            os.kill(os.getpid(), signal.SIGINT)
            done.append(1)
        done.append(2)
    assert done == [1, 2]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with postpone_signals():
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_an_interrupted_exchange_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in a program that calls aotc.compile."""
    former(tmp_path / "net")
    replace = Path.replace

    def interrupting(path: Path, target: Path) -> Path:
        os.kill(os.getpid(), signal.SIGINT)
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", interrupting)
    with pytest.raises(KeyboardInterrupt):
        emit(NEW, tmp_path / "net")
    monkeypatch.undo()
    assert is_complete(tmp_path / "net") and not unlocked_scratch_folders(tmp_path / "net")
    assert state(tmp_path / "net").items() >= NEW.items()


def test_what_an_interrupt_leaves_goes_with_the_process(tmp_path: Path) -> None:
    code = f"""
from pathlib import Path
from aotc.ir import interrupts
def interrupted(path):
    raise KeyboardInterrupt
interrupts._remove_file_or_folder_if_possible, remove = interrupted, interrupts._remove_file_or_folder_if_possible
try:
    with interrupts.remove_temporary_path_after_block(Path({str(tmp_path / "scratch")!r})) as path:
        path.mkdir()
except KeyboardInterrupt:
    interrupts._remove_file_or_folder_if_possible = remove
assert path.exists()
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    assert not list(tmp_path.iterdir())


def test_folders_for_results_go_while_they_are_empty(tmp_path: Path) -> None:
    with create_folders_remove_if_empty(tmp_path / "a" / "b"):
        assert (tmp_path / "a" / "b").is_dir()
    with (
        create_folders_remove_if_empty(tmp_path / "c"),
        remove_temporary_path_after_block(tmp_path / "c" / "scratch") as path,
    ):
        path.mkdir()
        (tmp_path / "c" / "kept").write_text("mine")
    assert files_of(tmp_path) == {"c/kept": "mine"} and [p.name for p in tmp_path.iterdir()] == ["c"]


# --- signals to the command

HARNESS = """
import atexit, os, sys
at, number = int(sys.argv.pop(1)), int(sys.argv.pop(1))
seen = 0
def count(event, arguments):
    global seen
    seen += 1
    if seen == at:
        os.kill(os.getpid(), number)
    if seen == 50 and not at:
        atexit.register(lambda: os.write(2, b"events %d" % seen))
from aotc.cli import run
sys.addaudithook(count)
run()
"""
"""Runs the command, and sends it a signal at one of the audit events: imports, files, programs."""


@pytest.fixture
def interrupted(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """What starts a compile that gets a signal at an event, 0 for none."""
    model = relu(tmp_path / "m.onnx", 4, 8)
    (tmp_path / "tmp").mkdir()
    environment = os.environ | {"TMPDIR": str(tmp_path / "tmp"), "AOTC_CACHE_DIR": str(tmp_path / "cache")}
    environment["PYTHONDONTWRITEBYTECODE"] = "1"  # the second process has as many events as the first one
    command = ["compile", model, "-o", tmp_path / "home" / "net", "--cflags=-O0", "--threads"]

    def start(at: int, number: signal.Signals, **more: str) -> subprocess.Popen[str]:
        arguments = [sys.executable, "-c", HARNESS, str(at), str(int(number)), *map(str, command)]
        pipe = subprocess.PIPE
        return subprocess.Popen(arguments, env=environment | more, stderr=pipe, stdout=pipe, text=True)

    yield start
    # no program of an interrupted compile runs on
    assert running_processes_in(tmp_path) == []


def running_processes_in(folder: Path) -> list[Path]:
    """Return the folders below /proc of processes whose environment names a folder and that were not killed."""
    running = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if str(folder).encode() in (process / "environ").read_bytes() and not is_killed_or_exiting(process):
                running.append(process)
    return running


PF_EXITING = 0x4
"""Flag of Linux's tasks that have begun to exit; such a process has no pending signals, and may have memory still."""


def is_killed_or_exiting(process: Path) -> bool:
    """Return True if a process, given by its folder below /proc, has a pending SIGKILL or has begun to exit."""
    pending = re.findall(r"^(?:SigPnd|ShdPnd):\s*(\w+)$", (process / "status").read_text(), re.MULTILINE)
    _, _, fields_from_state = (process / "stat").read_text().rpartition(") ")
    flags = int(fields_from_state.split()[6])
    return any(int(mask, 16) >> (signal.SIGKILL - 1) & 1 for mask in pending) or bool(flags & PF_EXITING)


def ended(process: subprocess.Popen[str], folder: Path, number: signal.Signals) -> None:
    """The exit code is that of the signal, nothing is left behind, and the project is complete or absent."""
    out, err = process.communicate(timeout=120)
    assert process.returncode == 128 + number, (process.returncode, out, err)
    assert "Traceback" not in err and "Exception" not in err, err
    assert not list((folder / "tmp").iterdir())
    assert not [path for path in folder.rglob("*") if path.name.startswith((".aotc-", ".objects-"))]
    if (folder / "home").exists():
        assert is_complete(folder / "home" / "net")


SEEDS = [*range(3), *(pytest.param(k, marks=pytest.mark.slow) for k in range(3, 24))]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_signal_at_an_event(tmp_path: Path, interrupted: Callable[..., subprocess.Popen[str]], seed: int) -> None:
    process = interrupted(0, signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0
    events = int(err.rpartition("events ")[2])
    shutil.rmtree(tmp_path / "home")
    shutil.rmtree(tmp_path / "cache")
    number = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)[seed % 3]
    # half of them in the second half of the events, in which files are compiled and exchanged, and at the end
    at = random.Random(seed).randrange(1 if seed % 2 else events // 2, events) if seed else events
    ended(interrupted(at, number), tmp_path, number)


@pytest.mark.parametrize("seed", [0, *(pytest.param(k, marks=pytest.mark.slow) for k in range(1, 8))])
def test_a_signal_at_a_time(tmp_path: Path, interrupted: Callable[..., subprocess.Popen[str]], seed: int) -> None:
    """From outside; the C compiler never ends by itself."""
    endless = tmp_path / "cc"
    endless.write_text("#!/bin/sh\n[ $1 = --version ] && exit 0\ntouch $TMPDIR/made\nsleep 1000\n")
    endless.chmod(0o755)
    process = interrupted(0, signal.SIGINT, CC=str(endless))
    deadline = time.monotonic() + 60
    while not list((tmp_path / "tmp").glob("*/made")) and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(random.Random(seed).random() / 10)
    number = (signal.SIGINT, signal.SIGTERM)[seed % 2]
    process.send_signal(number)
    ended(process, tmp_path, number)
