# SPDX-License-Identifier: Apache-2.0
"""The emitted text of small networks equals the stored text, so that changes of code generation show as a diff.

python -m pytest tests/golden --update-golden     # write what is emitted now

Beside each tensor program (.tir) stands its C text (.c).  Weights are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from aotc_codegen.cuda.cuda_project import emit_cuda_project, print_cuda_kernels_and_source

from aotc.tir.kernel_text import to_text
from tests.e2e.projects import tree
from tests.golden.cases import KERNELS, PROJECTS, Case

HERE = Path(__file__).parent
LEFT_OUT = (
    "params.c",
    ".bin",
    ".cubin",
    ".ptx",
    "aotc.h",
    "aotc_pool.h",
    "aotc_team.h",
    "aotc_rt.c",
    "aotc_pool.c",
    "aotc-manifest.json",
)
"""Ends of the names of files that hold numbers, are copies of the runtime, or have checksums of others."""


def texts_of(case: Case, folder: Path) -> dict[str, str]:
    """The tensor programs of a network's kernels, and the C files with them."""
    kernels = dict.fromkeys(step.kernel for program in case.compilation().scheduled_programs for step in program.steps)
    project = project_of(case, folder)
    sources = [text for path, text in sorted(project.items()) if path.startswith("src/net_kernels")]
    return {f"{case.name}.tir": "\n".join(map(to_text, kernels)), f"{case.name}.c": "\n".join(sources)}


def project_of(case: Case, folder: Path) -> dict[str, str]:
    """The text files of a network's project, by path; of one for GPUs without code for devices."""
    work = case.compilation()
    if work.target.gpu is None:
        work.emit_project(folder / "net")
    else:
        (folder / "net").mkdir()
        (program,) = work.scheduled_programs
        printed, text = print_cuda_kernels_and_source(program, work.target)
        images = {"sm_80": b"", "compute_80": b""}
        emit_cuda_project(program, printed, text, images, folder / "net", target=work.target, least_driver=12000)
    files = tree(folder / "net")
    return {
        path: data.decode() for path, data in files.items() if not path.endswith(LEFT_OUT) and "aotc_cuda" not in path
    }


def compare(found: Mapping[str, str], folder: Path, update: bool) -> None:
    """The files of a folder are the texts; with `update` they become that."""
    if update:
        for name, text in found.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
        return
    missing = [name for name in found if not (folder / name).is_file()]
    assert not missing, f"run with --update-golden: {folder} lacks {missing}"
    for name, text in found.items():
        assert text == (folder / name).read_text(encoding="utf-8"), f"{folder / name}: --update-golden, if it is meant"


@pytest.mark.always
@pytest.mark.parametrize("name", KERNELS)
def test_kernels(name: str, tmp_path: Path, update_golden: bool) -> None:
    compare(texts_of(KERNELS[name], tmp_path), HERE / "kernels", update_golden)


@pytest.mark.parametrize("name", PROJECTS)
def test_projects(name: str, tmp_path: Path, update_golden: bool) -> None:
    found = project_of(PROJECTS[name], tmp_path)
    folder = HERE / "projects" / name
    stale = set(tree(folder)) - set(found) if folder.is_dir() else set()
    for path in stale if update_golden else ():
        (folder / path).unlink()
    assert update_golden or not stale
    compare(found, folder, update_golden)


def test_there_is_a_case_for_each_file(update_golden: bool) -> None:
    wanted = {f"{name}.{end}" for name in KERNELS for end in ("c", "tir")}
    stale = {p for p in (HERE / "kernels").iterdir() if p.name not in wanted}
    for path in stale if update_golden else ():
        path.unlink()
    assert update_golden or not stale
    assert {p.name for p in (HERE / "projects").iterdir()} == set(PROJECTS)
