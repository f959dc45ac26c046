# SPDX-License-Identifier: Apache-2.0
"""Commands for newcomers: `aotc doctor`, `aotc demo`, `aotc completion`, and default directories of output."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.shell_completion import ShellComplete

from aotc.checking import demo_network
from aotc.checking.model_reference_runs import Reference
from aotc.cli.main import main
from aotc.reporting import environment_check
from aotc.tir import TARGETS
from tests.cli.invoke import DIGITS, call, refused
from tests.conftest import require_tool

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

START = "import sys; sys.argv[0] = 'aotc'; from aotc.cli import run; run()"
"""The command `aotc`, as its entry point starts it."""


def suggestions(*words: str) -> list[str]:
    """Return the words that a shell suggests in place of the last one."""
    *before, last = words
    return [item.value for item in ShellComplete(main, {}, "aotc", "_AOTC_COMPLETE").get_completions(before, last)]


# --- doctor


def test_doctor_names_compilers_targets_and_packages() -> None:
    require_tool("gcc")
    report = json.loads(call("doctor", "--json").out)
    assert {row["name"] for row in report["targets"]} == {name for name, t in TARGETS.items() if t.gpu is None}
    assert "gcc" in {row["command"] for row in report["compilers"]}
    assert all(row["version"] for row in report["compilers"])
    (here,) = (row for row in report["targets"] if row["name"] == report["processor"]["host_target"])
    assert here["runs"] == "here" and here["compiler"] == report["default_compiler"]["command"]
    assert report["extras"]["verify"]["onnxruntime"] and "test" not in report["extras"]
    text = call("doctor").out
    assert all(word in text for word in ("host target", "cache ", "cortex-m4", "onnxruntime"))


@pytest.mark.usefixtures("no_ziglang")
def test_doctor_without_programs_names_what_installs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment_check, "_installed_version", lambda name: None if name == "tflite" else "1.0")
    outcome = call("doctor", "--json", env={"PATH": "/nowhere", "CC": ""})
    rows = json.loads(outcome.out)["missing"]
    missing = {row["name"]: row for row in rows}
    assert outcome.code == 1
    assert missing["C compiler for this machine"]["install"] == "apt install gcc libc6-dev"
    assert missing["qemu-system-arm"]["install"] == "apt install qemu-system-arm"
    assert "cortex-m4" in missing["qemu-system-arm"]["use"]
    assert missing["cppcheck"]["install"] == "apt install cppcheck" and "MISRA C" in missing["cppcheck"]["use"]
    assert missing["extra tflite"]["install"].endswith("-m pip install tflite")
    assert missing["C compiler for arm"]["install"] == "apt install gcc-arm-none-eabi libnewlib-arm-none-eabi"
    assert any("clang-19" in row["install"] and "riscv64-v128" in row["use"] for row in rows)
    assert "apt install gcc libc6-dev" in call("doctor", env={"PATH": "/nowhere", "CC": ""}).out


def test_doctor_reports_a_compiler_that_cannot_build(tmp_path: Path) -> None:
    broken = tmp_path / "broken-cc"
    broken.write_text("#!/bin/sh\necho 'probe.c:1: error: no math.h' >&2\nexit 1\n", encoding="utf-8")
    broken.chmod(0o755)
    outcome = call("doctor", "--json", env={"CC": str(broken)})
    report = json.loads(outcome.out)
    assert outcome.code == 1
    assert "no math.h" in report["default_compiler"]["problem"]
    assert f"working {broken}" in {row["name"] for row in report["missing"]}


def test_doctor_reports_a_compiler_command_that_cannot_be_read() -> None:
    assert "C compiler 'gcc \"' is not a command" in call("doctor", env={"PATH": "/nowhere", "CC": 'gcc "'}).out


def test_doctor_lists_the_extras_that_the_page_on_installation_has_for_users(monkeypatch: pytest.MonkeyPatch) -> None:
    root = DIGITS.parents[2]
    page = (root / "docs/start/installation.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.*`) \| .* \| (.*)\|$", page.partition("## Extras")[2], re.MULTILINE)
    extras = {name: bool(without) for names, without in rows for name in re.findall(r"`([\w-]+)`", names)}
    declared = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert extras.keys() == declared.keys()
    requirements = [f'{text}; extra == "{extra}"' for extra, texts in declared.items() for text in texts]
    monkeypatch.setattr(environment_check, "_declared_requirements", lambda: requirements)
    listed = environment_check._extras()
    assert listed.keys() == {extra for extra, is_for_users in extras.items() if is_for_users}


# --- demo


def test_demo_compiles_recognizes_and_compares(tmp_path: Path) -> None:
    outcome = call("demo", "-o", tmp_path / "demo", "--json", "--target", "c")
    report = json.loads(outcome.out)
    assert outcome.code == 0 and report["agrees"]
    assert [row["recognized"] for row in report["digits"]] == list(range(10))
    assert Path(report["library"]).exists() and len(report["image"]) == 8


def test_demo_fails_if_results_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_reference = demo_network.make_onnx_reference

    def make_wrong_reference(model: onnx.ModelProto) -> Reference:
        scores = np.linspace(0, 1, 10, dtype=np.float32)[None]
        return replace(make_reference(model), run=lambda _: {"scores": scores}, exact=lambda _: {"scores": scores})

    monkeypatch.setattr(demo_network, "make_onnx_reference", make_wrong_reference)
    outcome = call("demo", "-o", tmp_path / "demo", "--target", "c")
    assert outcome.code == 1 and "DIFFER" in outcome.out


def test_the_demo_has_the_network_of_the_example() -> None:
    assert demo_network.DEMO_MODEL_PATH.read_bytes() == DIGITS.read_bytes()
    images = (DIGITS.parent / "digits_test.bin").read_bytes()
    rows = {images[k : k + 65] for k in range(0, len(images), 65)}
    shown = (demo_network.DEMO_MODEL_PATH.parent / "digits.bin").read_bytes()
    assert {shown[k : k + 65] for k in range(0, len(shown), 65)} <= rows and len(shown) == 650


# --- completion


def test_suggestions() -> None:
    assert suggestions("d") == ["demo", "doctor"]
    assert suggestions("compile", "--target", "cortex-m3") == ["cortex-m33"]
    assert suggestions("compile", "--accuracy", "f") == ["fast"]
    assert suggestions("package", "--for", "cm") == ["cmake", "cmsis-pack"]
    assert suggestions("compile", "--no-b") == ["--no-build"]


def test_suggesting_commands_imports_none() -> None:
    script = "import sys; from aotc.cli.main import main; from click.shell_completion import ShellComplete; "
    script += "print(ShellComplete(main, {}, 'aotc', 'X').get_completions([], 'c') != [], 'aotc.driver' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=DIGITS.parents[2])
    assert done.stdout.split() == ["True", "False"], done.stderr


@pytest.mark.parametrize("shell", ["bash", "fish", "zsh"])
def test_completion_prints_a_script(shell: str) -> None:
    script = call("completion", shell).out
    assert f"_AOTC_COMPLETE={shell}_complete" in script
    assert json.loads(call("completion", shell, "--json").out) == {"shell": shell, "script": script}
    assert "is not one of" in refused("completion", "cmd")


def test_completion_in_bash(tmp_path: Path) -> None:
    bash, command = require_tool("bash"), tmp_path / "aotc"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "{START}" "$@"\n', encoding="utf-8")
    command.chmod(0o755)
    script = call("completion", "bash").out + "\nCOMP_WORDS=(aotc pa); COMP_CWORD=1; _aotc_completion aotc\n"
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        [bash, "-c", script + 'echo "${COMPREPLY[@]}"'],
        capture_output=True,
        text=True,
        cwd=DIGITS.parents[2],
        env=environment,
    )
    assert done.stdout.split() == ["package"], done.stderr


# --- default directories


def test_default_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = ("--no-build", "--target", "c")
    assert call("compile", DIGITS, *options).code == 0 and (tmp_path / "build/digits/Makefile").exists()
    # a project of aotc is replaced
    assert call("compile", DIGITS, *options, "-O", "2").code == 0
    assert call("compile", DIGITS, *options, "--package", "meson", "--name", "net").code == 0
    assert (tmp_path / "build/net-meson/meson.build").exists()
    assert call("package", "build/digits", "--for", "cmake").code == 0
    assert (tmp_path / "build/digits-cmake/CMakeLists.txt").exists()


def test_default_directories_with_other_files_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "build" / "digits").mkdir(parents=True)
    (tmp_path / "build" / "digits" / "notes.txt").write_text("mine", encoding="utf-8")
    assert "holds files that aotc did not write" in refused("compile", DIGITS, "--no-build")
    assert [p.name for p in (tmp_path / "build" / "digits").iterdir()] == ["notes.txt"]
    assert call("compile", DIGITS, "--no-build", "-o", "build/digits").code == 0
