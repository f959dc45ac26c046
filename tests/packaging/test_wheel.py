# SPDX-License-Identifier: Apache-2.0
"""The wheel, installed in a separate environment, compiles a model outside of the checkout."""

from __future__ import annotations

import os
import shutil
import site
import sys
from pathlib import Path

import pytest

from tests.e2e.projects import DIGITS, run
from tests.packaging.conftest import clean

LOADED_FROM = """
import aotc, aotc_codegen, aotc_runtime_c
print(aotc.__file__, aotc_codegen.__file__, aotc_runtime_c.__file__)
"""
RUN = """
import sys, numpy, aotc
session = aotc.load(sys.argv[1])
image = numpy.zeros(session.get_inputs()[0].shape, numpy.float32)
print(round(float(session.run(None, {"image": image})[0].sum()), 5))
print(sorted({"onnx", "jinja2", "click", "rich"} & set(sys.modules)))
"""


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel; dependencies come from the running one, the checkout does not."""
    folder = tmp_path_factory.mktemp("environment") / "venv"
    run([sys.executable, "-m", "venv", folder], folder.parent)
    python = folder / "bin" / "python"
    target = Path(run([python, "-c", "import site; print(site.getsitepackages()[0])"], folder).strip())
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps"]
    run([*pip, wheel], folder)
    # paths named in a .pth file are searched for modules, but not for .pth files, which would lead to the checkout
    (target / "dependencies.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    return folder


def test_the_installed_wheel_compiles_and_runs(environment: Path, tmp_path: Path) -> None:
    python, command = environment / "bin" / "python", environment / "bin" / "aotc"
    places = run([python, "-c", LOADED_FROM], tmp_path, **clean()).split()
    assert len(places) == 3 and all(Path(p).is_relative_to(environment) for p in places), places
    assert "10 of all 10 images right" in run([command, "demo", "-o", "demo", "--target", "c"], tmp_path, **clean())
    shutil.copy(DIGITS, tmp_path)
    run([command, "compile", "digits.onnx", "-o", "net", "--cflags=-O1"], tmp_path, **clean())
    assert run([python, "-c", RUN, "net"], tmp_path, **clean()).split("\n")[:2] == ["1.0", "[]"]
    assert "scores" in run([command, "run", "net"], tmp_path, **clean())
    assert "nn.conv2d" in run([command, "inspect", "digits.onnx"], tmp_path, **clean())
    run(["make", "-s", "CFLAGS=-O1"], tmp_path / "net", PATH=os.environ["PATH"])
    assert "scores:" in run(["net/build/digits_example"], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["wheel", "archive of sources"])
def test_an_installation_with_all_its_dependencies(archives: tuple[Path, Path], tmp_path: Path, form: str) -> None:
    """Install an archive as users do, with its dependencies from the package index, and run the demo."""
    environment = tmp_path / "venv"
    run([sys.executable, "-m", "venv", environment], tmp_path)
    python, command = environment / "bin" / "python", environment / "bin" / "aotc"
    run([python, "-m", "pip", "install", "--quiet", archives[form == "wheel"]], tmp_path, **clean())
    assert "onnxruntime" not in run([python, "-m", "pip", "list"], tmp_path, **clean())
    assert "10 of all 10 images right" in run([command, "demo"], tmp_path, **clean())
    assert "pip install onnxruntime" in run([command, "doctor"], tmp_path, **clean())
