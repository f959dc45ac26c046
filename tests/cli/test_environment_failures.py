# SPDX-License-Identifier: Apache-2.0
"""Failures outside of the command: folders without permission, full disks, failing streams."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.invoke import DIGITS, call, refused, relu
from tests.conftest import ROOT, require_tool

QUICK = "--cflags=-O1"
AOTC = [sys.executable, "-m", "aotc"]


def run(command: str, *arguments: str | Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[bytes]:
    """`aotc` in a process of its own, started by a line of sh in which "$@" is that process."""
    whole = ["sh", "-c", command, "sh", *AOTC, *map(str, arguments)]
    done = subprocess.run(whole, capture_output=True, env=os.environ | (env or {}), timeout=300)
    assert b"Traceback" not in done.stderr + done.stdout, done.stderr.decode()
    assert b"Exception ignored" not in done.stderr, done.stderr.decode()
    return done


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ('"$@" ops > /dev/full', 2),
        ('"$@" ops >&-', 2),
        ('"$@" ops 2>&-', 0),
        ('"$@" inspect absent.onnx 2> /dev/full', 2),
        ('{ "$@" ops; echo $? >&2; } | true', 1),
    ],
)
def test_streams_that_fail(line: str, code: int) -> None:
    done = run(line)
    assert (int(done.stderr.split()[-1]) if "true" in line else done.returncode) == code
    if line.endswith("> /dev/full") and "2>" not in line:
        assert b"cannot write the output: No space left on device" in done.stderr


def test_characters_that_the_locale_lacks(tmp_path: Path) -> None:
    model = relu(tmp_path / "\u65e5\u672c.onnx", name="\u65e5")
    env = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    report = tmp_path / "\u65e5.html"
    options = ["--no-build", "--print-after", "FuseOps", "--report", report, "--dump-ir", tmp_path / "\u672c"]
    assert run('"$@"', "compile", model, "-o", tmp_path / "\u65e5", *options, env=env).returncode == 0
    assert report.is_file()
    shown = run('"$@"', "inspect", model, env=env)
    assert shown.returncode == 0 and rb"\u65e5" in shown.stdout


# calls of the command in one process, where folders may not be searched, also not by root
CALLS = """
import json, sys
from tests.cli.invoke import call
for arguments in json.loads(sys.argv[1]):
    outcome = call(*arguments)
    print(json.dumps([outcome.code, outcome.out, outcome.err]))
"""


def calls(*commands: list[str | Path], **env: str) -> list[list[object]]:
    """(exit code, output, errors) of `aotc` with each list of arguments."""
    prefix = [require_tool("setpriv"), "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    texts = [[str(a) for a in command] for command in commands]
    whole = [*prefix, sys.executable, "-c", CALLS, json.dumps(texts)]
    done = subprocess.run(whole, capture_output=True, env=os.environ | env, cwd=ROOT, timeout=300)
    assert done.returncode == 0, done.stderr.decode()
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[Path]:
    """A folder that may not be searched."""
    folder = tmp_path / "locked"
    (folder / "home").mkdir(parents=True)
    shutil.copy(DIGITS, folder / "m.onnx")
    folder.chmod(0)
    yield folder
    folder.chmod(0o700)


def test_a_home_that_may_not_be_searched(tmp_path: Path, locked: Path) -> None:
    """As with the HOME of another user: nothing is kept, which is said."""
    env = {"HOME": str(locked / "home"), "AOTC_CACHE_DIR": "", "XDG_CACHE_HOME": "", "AOTC_TUNING_STORE": ""}
    model = relu(tmp_path / "m.onnx")
    wanted: list[list[str | Path]] = [
        ["compile", model, "-o", tmp_path / "net", QUICK],
        ["run", tmp_path / "net"],
        ["inspect", model],
        ["cache", "--clear"],
    ]
    done = calls(*wanted, **env)
    assert [outcome[0] for outcome in done] == [0, 0, 0, 0], done
    assert "ermission denied" in str(done[0])


def test_files_in_a_folder_that_may_not_be_searched(tmp_path: Path, locked: Path) -> None:
    model = relu(tmp_path / "m.onnx")
    assert call("compile", model, "-o", tmp_path / "net", QUICK).code == 0
    wanted: list[list[str | Path]] = [
        ["compile", model, "-o", locked / "net"],
        ["compile", model, "-o", locked],
        ["compile", locked / "m.onnx", "-o", tmp_path / "other"],
        ["compile", model, "-o", tmp_path / "other", "--report", locked / "r.html"],
        ["compile", model, "-o", tmp_path / "other", "--dump-ir", locked / "d"],
        ["inspect", locked / "m.onnx"],
        ["inspect", locked / "home"],
        ["run", locked / "home"],
        ["run", tmp_path / "net", "--inputs", locked / "x.npz"],
        ["run", tmp_path / "net", "--output", locked / "x.npz"],
        ["verify", locked / "m.relay"],
    ]
    for arguments, (code, out, err) in zip(wanted, calls(*wanted), strict=True):
        assert code == 2 and not out and ("ermission denied" in str(err) or "not readable" in str(err)), arguments
    assert not (tmp_path / "other").exists()


def test_there_may_be_no_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "AOTC_CACHE_DIR", "XDG_CACHE_HOME", "AOTC_TUNING_STORE"):
        monkeypatch.delenv(name, raising=False)

    def nobody() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", nobody)
    assert call("compile", relu(tmp_path / "m.onnx"), "-o", tmp_path / "net", QUICK).code == 0
    assert "AOTC_CACHE_DIR" in refused("cache")


LONG = "n" * 300


def test_names_that_are_too_long(tmp_path: Path) -> None:
    model = relu(tmp_path / "m.onnx")
    assert call("compile", model, "-o", tmp_path / "net", QUICK).code == 0
    for arguments in (
        ["compile", model, "-o", tmp_path / LONG],
        ["compile", model, "-o", tmp_path / LONG / "net"],
        ["compile", model, "-o", tmp_path.joinpath(*["n" * 200] * 30)],
        ["compile", tmp_path / f"{LONG}.onnx", "-o", tmp_path / "other"],
        ["compile", model, "-o", tmp_path / "other", "--report", tmp_path / LONG],
        ["compile", model, "-o", tmp_path / "other", "--dump-ir", tmp_path / LONG],
        ["inspect", tmp_path / LONG],
        ["run", tmp_path / LONG],
        ["run", tmp_path / "net", "--inputs", tmp_path / LONG],
        ["run", tmp_path / "net", "--output", tmp_path / LONG],
        *(["verify", tmp_path / f"{LONG}.{suffix}"] for suffix in ("onnx", "pt2", "relay")),
    ):
        assert "File name too long" in refused(*arguments), arguments
    assert not (tmp_path / "other").exists()
    assert {p.name for p in tmp_path.iterdir()} <= {"m.onnx", "net", "n" * 200}
    longest = tmp_path / ("n" * 255)
    assert call("compile", model, "-o", longest, "--no-build").code == 0
    assert call("run", tmp_path / "net", "--output", tmp_path / ("o" * 251 + ".npz")).code == 0


@pytest.mark.timeout(60)
@pytest.mark.parametrize("suffix", ["onnx", "pt2", "relay"])
def test_models_that_are_no_files(tmp_path: Path, suffix: str) -> None:
    """A pipe is not waited for."""
    pipe, folder = tmp_path / f"pipe.{suffix}", tmp_path / f"folder.{suffix}"
    os.mkfifo(pipe)
    folder.mkdir()
    device = tmp_path / f"device.{suffix}"
    device.symlink_to("/dev/zero")
    for path, kind in ((pipe, "it is a pipe"), (folder, "it is a directory"), (device, "it is a device")):
        assert kind in refused("compile", path, "-o", tmp_path / "net")
        assert kind in refused("verify", path)
    assert not (tmp_path / "net").exists()


@pytest.mark.timeout(60)
def test_other_files_that_are_none(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    model = relu(tmp_path / "m.onnx")
    assert call("compile", model, "-o", tmp_path / "net", QUICK).code == 0
    assert "it is a pipe" in refused("run", tmp_path / "pipe")
    assert "it is a pipe" in refused("run", tmp_path / "net", "--inputs", tmp_path / "pipe")
    os.mkfifo(tmp_path / "metadata.json")
    assert "metadata.json: a special file" in refused("compile", model, "-o", tmp_path)
    done = run(f'cat {model} | "$@"', "inspect", "/dev/stdin")
    assert done.returncode == 2 and b"cannot read /dev/stdin: it is a pipe" in done.stderr
    assert run(f'"$@" < {model}', "inspect", "/dev/stdin").returncode == 0


def everything(folder: Path) -> list[str]:
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*"))


@pytest.mark.parametrize("blocks", [0, 24])
def test_a_disk_that_is_full(tmp_path: Path, blocks: int) -> None:
    """Files cannot grow beyond some blocks of 512 bytes: nothing that is not whole stays."""
    env = {"AOTC_CACHE_DIR": str(tmp_path / "cache"), "PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": str(tmp_path)}
    model = relu(tmp_path / "m.onnx")
    report = ["--report", tmp_path / "report.html"]
    done = run(f'ulimit -f {blocks}; "$@"', "compile", model, "-o", tmp_path / "net", QUICK, *report, env=env)
    left = everything(tmp_path)
    assert not [name for name in left if name.endswith(".tmp") or ".aotc-" in name]
    assert done.returncode == 2 and b"error: " in done.stderr and "net" not in left
    if "report.html" in left:
        assert (tmp_path / "report.html").read_text().rstrip().endswith("</html>")


def test_a_full_disk_leaves_what_was_there(tmp_path: Path) -> None:
    model = relu(tmp_path / "m.onnx", 64, 64)
    assert call("compile", model, "-o", tmp_path / "net", QUICK).code == 0
    assert call("run", tmp_path / "net", "--output", tmp_path / "old.npz").code == 0
    before = (tmp_path / "old.npz").read_bytes()
    for name in ("old.npz", "new.npz"):
        done = run('ulimit -f 4; "$@"', "run", tmp_path / "net", "--output", tmp_path / name)
        assert done.returncode == 2 and b"cannot write" in done.stderr
    assert (tmp_path / "old.npz").read_bytes() == before
    assert {p.name for p in tmp_path.iterdir()} == {"m.onnx", "net", "old.npz"}
    assert "No space left" in refused("run", tmp_path / "net", "--output", "/dev/full")


def test_a_report_does_not_take_the_place_of_the_project(tmp_path: Path) -> None:
    model = relu(tmp_path / "m.onnx")
    for output in (tmp_path / "net", tmp_path / "x" / ".." / "net"):
        text = refused("compile", model, "-o", output, "--cc", "false", "--report", tmp_path / "net")
        assert "it is the directory of the project" in text
    assert everything(tmp_path) == ["m.onnx"]


def test_a_compiler_beside_the_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mycc").write_text('#!/bin/sh\nexec gcc "$@"\n')
    Path("mycc").chmod(0o755)
    assert call("compile", relu(tmp_path / "m.onnx"), "-o", "net", QUICK, "--cc", "./mycc").code == 0


def test_a_compiler_that_hangs(tmp_path: Path) -> None:
    (tmp_path / "cc").write_text("#!/bin/sh\n[ $1 = --version ] || sleep 300\n")
    (tmp_path / "cc").chmod(0o755)
    model = relu(tmp_path / "m.onnx")
    for command in (["compile", model, "-o", tmp_path / "net"], ["verify", model]):
        text = refused(*command, "--cc", tmp_path / "cc", "--cc-timeout", "0.2")
        assert "was not done after 0.2 seconds" in text and "--cc-timeout" in text
    assert not (tmp_path / "net").exists()
    assert "greater than zero" in refused("compile", model, "-o", tmp_path / "net", "--cc-timeout", "0")
