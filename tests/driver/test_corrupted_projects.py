# SPDX-License-Identifier: Apache-2.0
"""`verify --project` detects corrupted weights and sources with effects above the tolerance, without checksums."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import numpy_helper

import aotc
from aotc.checking.verify import verify
from tests import networks
from tests.conftest import ROOT, require_tool
from tests.project_corruption import spoil
from tests.share import share


def quantized_network() -> onnx.ModelProto:
    """The network of images with int8 weights for each channel, and uint8 activations, by ONNX Runtime's tool."""
    # it takes long to import
    from tests.quantizing.networks import Work

    with tempfile.TemporaryDirectory() as folder:
        return Work.of(networks.mobile_network(), "qdq-u8", Path(folder)).model()


NETWORKS: dict[str, Callable[[], onnx.ModelProto]] = {
    "digits": lambda: onnx.load(ROOT / "examples" / "digits" / "digits.onnx"),
    "mobile": networks.mobile_network,
    "attention": networks.attention_network,
    "recurrent": networks.recurrent_network,
    "dilated": lambda: networks.dilated_network(size=16, blocks=2, channels=8),
    "embedding": networks.embedding_network,
    "digits_int8": lambda: onnx.load(ROOT / "examples" / "digits" / "digits_int8.onnx"),
    "mobile_int8": quantized_network,
}
TARGETS = "c", "host"
#: How many spoilings of each network must be found: 104 of all.
SPOILINGS = 13


def build(project: Path) -> bool:
    command = [require_tool("make"), "-s", "-C", str(project), "build/libnet.so", "CFLAGS=-O1"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def judged(folder: Path, projects: list[Path]) -> list[dict[str, Any]]:
    """What `tests.project_corruption` says of projects of folder / "net.onnx"."""
    command = [sys.executable, "-m", "tests.project_corruption", str(folder / "net.onnx"), *map(str, projects)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rows) == len(projects), done.stderr
    return rows


def spoilings(folder: Path, seeds: Iterable[int]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Spoiled projects that compile and whose error in double precision exceeds the tolerance: the change, the row."""
    changes = {}
    for seed in seeds:
        project = folder / f"{seed}"
        shutil.copytree(folder / TARGETS[seed // 2 % 2], project)
        change = spoil(project, seed)
        if build(project):
            changes[project] = f"{TARGETS[seed // 2 % 2]}: {change}"
    for row, (project, change) in zip(judged(folder, list(changes)), changes.items(), strict=True):
        shutil.rmtree(project)
        if row["error"] > 1:
            yield change, row


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", share(NETWORKS, 0, always=("digits",)))
def test_all_spoilings_with_an_effect_are_found(tmp_path: Path, name: str) -> None:
    onnx.save(NETWORKS[name](), tmp_path / "net.onnx")
    for target in TARGETS:
        aotc.compile(tmp_path / "net.onnx", output=tmp_path / target, name="net", target=target, build=False)
        assert build(tmp_path / target)
    assert all(row["error"] < 1 for row in judged(tmp_path, [tmp_path / target for target in TARGETS]))
    assert all(verify(tmp_path / "net.onnx", project=tmp_path / target).ok for target in TARGETS)
    found: list[tuple[str, dict[str, Any]]] = []
    start = 0
    while len(found) < SPOILINGS:
        missing = SPOILINGS - len(found)
        found += spoilings(tmp_path, range(start, start + missing + 4))
        start += missing + 4
        assert start < 20 * SPOILINGS
    print(*found, sep="\n")
    assert not [(change, row) for change, row in found if not row["found"]]


def test_a_weight_that_matters_for_few_inputs_is_found(tmp_path: Path) -> None:
    """An int8 weight whose change moves 2 of 390 outputs, less than ONNX Runtime's integer softmax moves others."""
    right = NETWORKS["digits_int8"]()
    wrong = NETWORKS["digits_int8"]()
    (tensor,) = (t for t in wrong.graph.initializer if t.name == "w2_quantized")
    weights = numpy_helper.to_array(tensor).copy()
    assert weights[9, 1, 0, 1] == 71
    weights[9, 1, 0, 1] = 103
    tensor.CopyFrom(numpy_helper.from_array(weights, tensor.name))
    aotc.compile(wrong, output=tmp_path / "net", name="net", target="c", cflags=("-O1",))
    report = verify(right, project=tmp_path / "net")
    assert report.verdict == "differ"
    reasons = {o.reason for case in report.cases for o in case.outputs if not o.ok}
    assert all("deviation from the model's definition" in reason for reason in reasons)
