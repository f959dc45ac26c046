# SPDX-License-Identifier: Apache-2.0
"""`verify --project` runs the library of an existing project, and refuses projects of other models."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

import aotc
from aotc.checking.verify import verify
from aotc.ir.diagnostics import AotcError
from tests.cli.invoke import call
from tests.conftest import require_tool
from tests.e2e.test_models_with_size_ranges import perceptron
from tests.networks import mobile_network, recurrent_network

FAST: dict[str, Any] = {"cflags": ("-O1",), "target": "c"}


def make(project: Path) -> None:
    require_tool("make")
    subprocess.run(["make", "-s", "-C", str(project), "build/libnet.so", "CFLAGS=-O1"], check=True)


def change(file: Path, old: str, new: str) -> None:
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new, 1), encoding="utf-8")


def change_first_weight(project: Path) -> None:
    params = project / "src" / "net_params.c"
    first = params.read_text(encoding="utf-8").split("{\n", 1)[1].split("f", 1)[0]
    change(params, first, f"  {float(first) + 0.5!r}")


def test_the_library_of_a_project_runs_as_it_stands(tmp_path: Path) -> None:
    """The one made last, by `aotc compile` or `make`; changed sources count once they are compiled."""
    model, project = mobile_network(), tmp_path / "net"
    aotc.compile(model, output=project, name="net", **FAST)
    assert verify(model, project=project, seeds=1).ok
    assert verify(model, project=project / "lib" / "libnet.so", seeds=1).ok
    change_first_weight(project)
    assert verify(model, project=project, seeds=1).ok
    make(project)
    os.utime(project / "lib" / "libnet.so", (0, 0))
    report = verify(model, project=project, seeds=1)
    assert not report.ok and not report.blame
    assert verify(model, project=project / "lib" / "libnet.so", seeds=1).ok


def test_hints_quote_paths_for_the_shell(tmp_path: Path) -> None:
    model, project = mobile_network(), tmp_path / "my net"
    aotc.compile(model, output=project, name="net", build=False, **FAST)
    with pytest.raises(AotcError) as caught:
        verify(model, project=project)
    assert f"`make -C '{project}'`" in caught.value.diagnostics[0].hint


def test_a_project_that_only_make_built(tmp_path: Path) -> None:
    model, project = mobile_network(), tmp_path / "net"
    aotc.compile(model, output=project, name="net", build=False, **FAST)
    with pytest.raises(AotcError, match=r"net holds no library: .*\n.*make -C"):
        verify(model, project=project)
    make(project)
    assert verify(model, project=project, seeds=1).ok


def test_the_bound_is_one_that_projects_have(tmp_path: Path) -> None:
    """Metadata cannot widen it."""
    model, project = mobile_network(), tmp_path / "net"
    aotc.compile(model, output=project, name="net", **FAST)
    change(project / "metadata.json", '"error_bound": 1e-05', '"error_bound": 1e+05')
    change_first_weight(project)
    make(project)
    os.utime(project / "lib" / "libnet.so", (0, 0))
    assert not verify(model, project=project, seeds=1).ok


def test_integers_at_the_edges(tmp_path: Path) -> None:
    path = Path(__file__).parents[2] / "examples" / "digits" / "digits_int8.onnx"
    aotc.compile(path, output=tmp_path / "net", io_dtype="int8", **FAST)
    assert verify(path, project=tmp_path / "net", seeds=1).ok


def test_a_library_outside_of_its_project_is_refused(tmp_path: Path) -> None:
    """Its file does not state the number of operations and the precision, by which results are judged."""
    model = mobile_network()
    aotc.compile(model, output=tmp_path / "net", name="net", **FAST)
    (tmp_path / "elsewhere").mkdir()
    library = (tmp_path / "net" / "lib" / "libnet.so").rename(tmp_path / "elsewhere" / "libnet.so")
    text = refused(model, library)
    assert "is not in the folder of its project, whose metadata.json states what it was compiled for" in text


@pytest.mark.always
@pytest.mark.parametrize("batch", ["2..6:2", "1..6", "1,4..6"])
def test_projects_with_ranges_are_compared(batch: str, tmp_path: Path) -> None:
    """Shapes are formulas, and ranges must be those of the project."""
    model = perceptron()
    aotc.compile(model, dims={"batch": batch}, output=tmp_path / "net", **FAST)
    assert verify(model, dims={"batch": batch}, project=tmp_path / "net", seeds=1, target="c").ok
    with pytest.raises(AotcError, match=r"is not a project of this model: .*in the model") as caught:
        verify(model, dims={"batch": "1..7"}, project=tmp_path / "net", target="c")
    assert [d.code for d in caught.value.diagnostics] == ["project"]


def refused(model: Any, project: Path) -> str:
    with pytest.raises(AotcError) as error:
        verify(model, project=project)
    return str(error.value)


def test_projects_of_other_models_and_machines_are_refused(tmp_path: Path) -> None:
    project = tmp_path / "net"
    aotc.compile(recurrent_network(), output=project, name="net", **FAST)
    text = refused(mobile_network(), project)
    assert "is not a project of this model: input 'x' is float32[9, 1, 8], in the model float32[1, 3," in text
    assert "output 'y' is float32[9, 1, 1, 12], in the model float32[1, 10]" in text
    firmware = tmp_path / "firmware"
    aotc.compile(mobile_network(), output=firmware, name="net", target="cortex-m4", build=False)
    assert "is a project of firmware for cortex-m4" in refused(mobile_network(), firmware)
    (tmp_path / "empty").mkdir()
    assert "it has no metadata.json" in refused(mobile_network(), tmp_path / "empty")
    # a new file: this process has the old one in its memory, and would end with a signal if it were cut
    (project / "lib" / "libnet.so").unlink()
    (project / "lib" / "libnet.so").write_bytes(b"\x7fELF")
    assert "load" in refused(mobile_network(), project)


def test_the_command(tmp_path: Path) -> None:
    digits = Path(__file__).parents[2] / "examples" / "digits" / "digits.onnx"
    assert call("compile", digits, "-o", tmp_path / "net", "--cflags", "-O1").code == 0
    done = call("verify", digits, "--project", tmp_path / "net", "--seeds", "1")
    assert done.code == 0 and "all outputs agree" in done.out
    done = call("verify", digits, "--project", tmp_path / "none")
    assert done.code == 2 and "none" in done.err
