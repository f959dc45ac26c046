# SPDX-License-Identifier: Apache-2.0
"""Libraries in projects: found, opened, and refused."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from aotc.ir.diagnostics import AotcError
from aotc.runtime.library import find_library
from aotc.runtime.session import Session, load

Build = Callable[..., Path]


def refusal(path: Path) -> str:
    with pytest.raises(AotcError) as caught:
        load(path)
    assert caught.value.code == "load"
    return str(caught.value)


def test_project_names_its_library(tiny_library: Path, tmp_path: Path) -> None:
    for name in ("lib/libother.so", "special/libtiny.so"):
        (tmp_path / name).parent.mkdir()
        shutil.copy(tiny_library, tmp_path / name)
    (tmp_path / "metadata.json").write_text(json.dumps({"library": "special/libtiny.so"}))
    assert find_library(tmp_path) == tmp_path / "special" / "libtiny.so"
    assert load(str(tmp_path)).name == "tiny"


@pytest.mark.parametrize("metadata", [None, {}, {"library": None}, {"library": "lib/gone.so"}])
@pytest.mark.parametrize("folder", ["lib", "build"])
def test_project_built_by_make(tiny_library: Path, tmp_path: Path, folder: str, metadata: object) -> None:
    (tmp_path / folder).mkdir()
    shutil.copy(tiny_library, tmp_path / folder / "libtiny.so")
    (tmp_path / folder / "libtiny.a").touch()
    if metadata is not None:
        (tmp_path / "metadata.json").write_text(json.dumps(metadata))
    assert load(tmp_path).path == tmp_path / folder / "libtiny.so"


@pytest.mark.parametrize(("head", "system"), [(b"MZ\x90\0", "Windows"), (b"\xcf\xfa\xed\xfe", "macOS")])
def test_libraries_for_other_systems_are_named(head: bytes, system: str, tmp_path: Path) -> None:
    (tmp_path / "lib.so").write_bytes(head + bytes(400))
    assert f"is a library for {system}, this system is Linux" in refusal(tmp_path / "lib.so")


@pytest.mark.parametrize("suffix", [".dll", ".dylib"])
def test_libraries_of_other_systems_are_found(suffix: str, tiny_library: Path, tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    shutil.copy(tiny_library, tmp_path / "lib" / f"libtiny{suffix}")
    assert load(tmp_path).path == tmp_path / "lib" / f"libtiny{suffix}"


def test_project_without_a_library(tmp_path: Path) -> None:
    assert "no compiled library" in refusal(tmp_path)


def test_project_with_two_libraries(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    for name in ("liba.so", "libb.so"):
        (tmp_path / "lib" / name).touch()
    assert "liba.so, libb.so" in refusal(tmp_path)


def test_project_with_broken_metadata(tmp_path: Path) -> None:
    (tmp_path / "metadata.json").write_bytes(b"\xff{")
    assert "it is not UTF-8" in refusal(tmp_path)


def test_missing_file(tmp_path: Path) -> None:
    assert "no such file" in refusal(tmp_path / "libnone.so")


@pytest.mark.parametrize("content", [b"", b"not a library", b"\x7fELF" + bytes(200)])
def test_file_that_is_no_library(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "lib.so").write_bytes(content)
    assert "cannot load" in refusal(tmp_path / "lib.so")


@pytest.mark.parametrize(("number", "name"), [(40, "arm"), (243, "riscv64")])
def test_library_of_another_architecture(tiny_library: Path, tmp_path: Path, number: int, name: str) -> None:
    data = bytearray(tiny_library.read_bytes())
    data[18:20] = number.to_bytes(2, "little")
    (tmp_path / "lib.so").write_bytes(data)
    said = refusal(tmp_path / "lib.so")
    assert f"was compiled for {name}, this machine is" in said and 'target="host"' in said


def test_library_of_something_else(tmp_path: Path) -> None:
    source = tmp_path / "other.c"
    source.write_text("int other(void) { return 1; }\n")
    subprocess.run(["gcc", "-shared", "-fPIC", source, "-o", tmp_path / "other.so"], check=True)
    assert "not a compiled model: it has no symbol aotc_model_entry" in refusal(tmp_path / "other.so")


def test_library_without_a_model(build: Build) -> None:
    assert "returns a null pointer" in refusal(build("tiny", "-DTINY_NULL"))


def test_library_for_another_interface(build: Build) -> None:
    text = refusal(build("tiny", "-DTINY_ABI=77"))
    assert "version 77" in text and "compile the model again" in text


def test_descriptors_that_contradict_themselves(build: Build) -> None:
    assert "declares 5 bytes, but its shape needs 4" in refusal(build("echo", "-DECHO_BYTES=1"))
    assert "unknown element type code 99" in refusal(build("echo", "-DECHO_TYPE=99"))


def sum_of(session: Session) -> float:
    inputs = {"x": np.zeros((2, 3), np.float32), "scale:0": np.float32(1)}
    return float(session.run(["sum"], inputs)[0][0])


def test_a_replaced_file_is_loaded_anew(build: Build, tmp_path: Path) -> None:
    """The old session goes on with the old code, the new one has the new."""
    path = tmp_path / "net" / "lib" / "libtiny.so"
    sessions = []
    for k in (1, 2, 3):
        build("tiny", f"-DTINY_ADD={k}", to=tmp_path / f"new{k}.so")
        path.parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / f"new{k}.so").replace(path)
        sessions.append(load(path))
    assert [sum_of(s) for s in sessions] == [6.0, 12.0, 18.0]
    assert sum_of(load(path)) == 18.0


def test_libraries_do_not_share_symbols(build: Build) -> None:
    first, second = load(build("tiny", "-DTINY_ADD=1")), load(build("tiny", "-DTINY_ADD=4"))
    assert (sum_of(first), sum_of(second)) == (6.0, 24.0)


def test_relative_path_and_odd_names(tiny_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name = "zwölf netze.so"
    shutil.copy(tiny_library, tmp_path / name)
    (tmp_path / "link.so").symlink_to(name)
    for path in (name, "link.so"):
        assert sum_of(load(path)) == 6.0
