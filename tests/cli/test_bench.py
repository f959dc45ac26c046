# SPDX-License-Identifier: Apache-2.0
"""`aotc bench` measures installed engines, names missing ones, and detects wrong outputs."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from aotc.driver.subprocesses import FinishedProcess
from aotc.ir.diagnostics import AotcError
from aotc.measuring import competitors
from aotc.measuring.bench import time_contestants_in_turns
from aotc.measuring.competitors import RIVAL_LOADERS, Contestant, LoadedImplementation
from tests.cli.invoke import DIGITS, call, refused, relu, save, value

QUICK = ("--cflags=-O1", "--repeat", "2")


def test_every_rival_that_is_installed_agrees(tmp_path: Path) -> None:
    outcome = call("bench", DIGITS, *QUICK, "--threads", "1,2", "-o", tmp_path / "figures.json")
    assert outcome.code == 0
    data = json.loads((tmp_path / "figures.json").read_text())
    assert [turn["threads"] for turn in data["rounds"]] == [1, 2]
    for turn in data["rounds"]:
        names = [row["name"] for row in turn["contestants"]]
        missing = [r["name"] for r in turn["skipped"]]
        assert names[0] == "aotc" and sorted([*names[1:], *missing]) == sorted(RIVAL_LOADERS)
        for row in turn["contestants"]:
            assert row["agrees"], row
            times = row["milliseconds"]
            assert 0 < times["min"] <= times["median"] <= max(times["all"]) and times["load"] > 0 and times["first"] > 0
            assert sys.platform != "linux" or 0 <= row["memory"] < 1 << 32
            assert row["name"] in outcome.out and row["version"].split()[0] in outcome.out
    assert data["machine"]["processors"] and data["versions"]["compiler"]


def test_missing_rivals_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda n, *p: None if n in RIVAL_LOADERS else find(n, *p))
    outcome = call("bench", DIGITS, *QUICK)
    assert outcome.code == 0
    for name in RIVAL_LOADERS:
        assert f"left out: {name}: not installed (pip install {name})" in outcome.out


def test_model_that_cannot_be_converted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls = []

    def fail(*command: Any, **_: Any) -> FinishedProcess:
        calls.append(command)
        return FinishedProcess(139, b"############# pass_ncnn\n", b"no such operator\n\n")

    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda n, *p: True if n == "pnnx" else find(n, *p))
    monkeypatch.setattr(competitors, "run_program", fail)
    entrant = competitors.BenchmarkModel(DIGITS, {}, tmp_path)
    for _ in range(2):
        with pytest.raises(AotcError, match=r"cannot convert the model \(exit code 139\): no such operator"):
            _ = entrant.folder_with_pnnx_conversion
    assert len(calls) == 1


def _stand_in(monkeypatch: pytest.MonkeyPatch, run: Callable[[], object], outputs: Callable[[], list[Any]]) -> None:
    """Instead of torch, which reads the models themselves."""
    monkeypatch.setattr(competitors, "_RIVALS_THROUGH_PNNX", ())
    monkeypatch.setattr(competitors, "RIVAL_LOADERS", {**RIVAL_LOADERS, "torch": _rival(run, outputs)})


def _rival(run: Callable[[], object], outputs: Callable[[], list[Any]]) -> Callable[..., LoadedImplementation]:
    return lambda package, entrant, threads: ("0", run, outputs)


def test_failing_rival_is_named_with_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ValueError("no kernel for Conv\nand more")

    _stand_in(monkeypatch, fail, list)
    outcome = call("bench", DIGITS, *QUICK, "--against", "torch")
    assert outcome.code == 0 and "left out: torch: ValueError: no kernel for Conv" in outcome.out


@pytest.mark.parametrize("outputs", [[], [np.zeros((1, 10), np.float32)], [np.zeros(3, np.float32)]])
def test_wrong_outputs_do_not_win(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, outputs: list[Any]) -> None:
    _stand_in(monkeypatch, lambda: None, lambda: outputs)
    outcome = call("bench", DIGITS, *QUICK, "--against", "torch", "-o", tmp_path / "o.json")
    (turn,) = json.loads((tmp_path / "o.json").read_text())["rounds"]
    assert outcome.code == 0 and "differs: torch: " in outcome.out
    assert not turn["contestants"][1]["agrees"] and turn["fastest_rival"] is None


def test_outputs_without_a_number_are_inconclusive(tmp_path: Path) -> None:
    """NaN on both sides agrees with NaN, and shows nothing, as in `aotc verify`."""
    nodes = [helper.make_node("Sub", ["x", "x"], ["z"]), helper.make_node("Div", ["z", "z"], ["y"])]
    model = save(tmp_path / "m.onnx", nodes, [value("x", (2, 3))], [value("y", (2, 3))])
    outcome = call("bench", model, *QUICK, "--against", "", "-o", tmp_path / "o.json")
    found = json.loads((tmp_path / "o.json").read_text())
    assert outcome.code == 3 and found["verdict"] == "inconclusive" and found["rounds"][0]["contestants"][0]["agrees"]
    assert "INCONCLUSIVE" in outcome.out and found["inconclusive"][0] in " ".join(outcome.out.split())
    assert found["inconclusive"] == ["output 'y' is NaN throughout"]


def test_dynamic_model_of_two_inputs(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    nodes = [helper.make_node("Add", ["a", "b"], ["s"]), helper.make_node("Cast", ["s"], ["t"], to=TensorProto.INT64)]
    inputs = [value("a", ("n", 3)), value("b", ("n", 3))]
    outputs = [value("t", ("n", 3), TensorProto.INT64), value("s", ("n", 3))]
    model = save(tmp_path / "m.onnx", nodes, inputs, outputs)
    outcome = call("bench", model, *QUICK, "--dim", "n=4", "-o", tmp_path / "o.json")
    rows = json.loads((tmp_path / "o.json").read_text())["rounds"][0]["contestants"]
    assert outcome.code == 0 and [r["agrees"] for r in rows[:2]] == [True, True]


def test_program_of_torch(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    net = torch.nn.Sequential(torch.nn.Linear(8, 5), torch.nn.ReLU())
    torch.export.save(torch.export.export(net, (torch.zeros(2, 8),)), tmp_path / "net.pt2")
    outcome = call("bench", tmp_path / "net.pt2", *QUICK, "--against", "torch,onnxruntime")
    assert outcome.code == 0 and "differs" not in outcome.out
    if importlib.util.find_spec("onnxruntime"):
        assert "left out: onnxruntime: it reads ONNX models only" in outcome.out


def test_turns_alternate_and_keep_the_limits() -> None:
    order: list[str] = []

    def contestant(name: str) -> Contestant:
        return Contestant(name, 1, "", lambda: order.append(name), list)

    times = time_contestants_in_turns([contestant("a"), contestant("b")], repeat=2, seconds=60)
    changes = [name for k, name in enumerate(order) if k == 0 or order[k - 1] != name]
    assert changes == ["a", "b", "a", "b"]
    assert [len(t) + 2 for t in times] == [order.count("a"), order.count("b")]  # each turn has an untimed run
    assert len(time_contestants_in_turns([Contestant("c", 1, "", lambda: None, list)], repeat=10**6, seconds=0)[0]) > 0


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--against", "onnxruntimes"), "onnxruntime"),
        (("--threads", "0"), "from 1 to"),
        (("--threads", "1,x"), "from 1 to"),
        (("--threads", "100000"), "from 1 to"),
        (("-o", "/no/such/folder/o.json"), "cannot write"),
    ],
)
def test_refusals(tmp_path: Path, arguments: tuple[str, ...], complaint: str) -> None:
    assert complaint in refused("bench", relu(tmp_path / "m.onnx"), "--repeat", "1", "--against", "", *arguments)
