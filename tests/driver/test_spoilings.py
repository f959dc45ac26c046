# SPDX-License-Identifier: Apache-2.0
"""`verify --project` finds every spoiled weight and source whose effect exceeds the tolerance, without checksums."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

import aotc
from tests import networks
from tests.conftest import ROOT, require_tool
from tests.share import share
from tests.spoilings import spoil

NETWORKS: dict[str, Callable[[], onnx.ModelProto]] = {
    "digits": lambda: onnx.load(ROOT / "examples" / "digits" / "digits.onnx"),
    "mobile": networks.mobile_network,
    "attention": networks.attention_network,
    "recurrent": networks.recurrent_network,
    "dilated": lambda: networks.dilated_network(size=16, blocks=2, channels=8),
}
TARGETS = "c", "host"


def build(project: Path) -> bool:
    command = [require_tool("make"), "-s", "-C", str(project), "build/libnet.so", "CFLAGS=-O1"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def spoiled(folder: Path, name: str, seeds: range) -> tuple[list[Path], list[str]]:
    """Projects of a network that compile, the first one as it was; and what was changed in each."""
    onnx.save(NETWORKS[name](), folder / "net.onnx")
    for target in TARGETS:
        aotc.compile(folder / "net.onnx", output=folder / target, name="net", target=target, build=False)
        assert build(folder / target)
    projects, changes = [folder / TARGETS[0]], [""]
    for seed in seeds:
        project = folder / f"{seed}"
        shutil.copytree(folder / TARGETS[seed % 2], project)
        change = spoil(project, seed)
        if build(project):
            projects.append(project)
            changes.append(change)
    return projects, changes


def effects(folder: Path, name: str, seeds: range) -> int:
    """How many spoilings have an effect; fails where one is not found, or the project as it was is alarmed of."""
    projects, changes = spoiled(folder, name, seeds)
    command = [sys.executable, "-m", "tests.spoilings", str(folder / "net.onnx"), *map(str, projects)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rows) == len(projects), done.stderr
    assert rows[0]["error"] < 1 and not rows[0]["found"]
    wrong = [(row, change) for row, change in zip(rows, changes, strict=True) if row["error"] > 1]
    assert not [(row, change) for row, change in wrong if not row["found"]]
    return len(wrong)


@pytest.mark.parametrize("name", share(NETWORKS, 1))
def test_some_spoilings_are_found(tmp_path: Path, name: str) -> None:
    assert effects(tmp_path, name, range(7)) >= 5
