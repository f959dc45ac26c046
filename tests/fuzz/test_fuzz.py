# SPDX-License-Identifier: Apache-2.0
"""The fuzzers with a fixed seed, former findings, and the detection, reduction and storage of a planted fault."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from aotc.ir.diagnostics import AotcError
from tests.fuzz.__main__ import replay
from tests.fuzz.case import Files, Stage
from tests.fuzz.case_kinds import KINDS, kinds_of
from tests.fuzz.search import fuzz, seeds
from tests.fuzz.workers import Limits, Task, Workers
from tests.share import share

SEED = 3
CASES = {
    "onnx": 100,
    "pytorch": 30,
    "relay": 60,
    "tflite": 250,
    "archive": 40,
    "graphs": 4,
    "kernels": 2,
    "onnx-graphs": 5,
    "control-flow": 4,
    "attention": 3,
}
FOUND = sorted(p.parent for p in Path(__file__).with_name("found").glob("*/kind"))


MUTATIONS = 20_000
"""Number of mutated TFLite files in all tests; each run has those of one seed."""


@pytest.mark.parametrize(
    ("kind", "seed"),
    [
        *((kind, SEED) for kind in KINDS if kind != "tflite"),
        *share([("tflite", seed) for seed in range(MUTATIONS // CASES["tflite"])], 1),
    ],
)
def test_fixed_seeds(kind: str, seed: int) -> None:
    if kind == "tflite":
        pytest.importorskip("ai_edge_litert")
    tally = fuzz(kinds_of([kind], everything=False), seed=seed, cases=CASES)
    assert tally.outcomes[kind].total() == CASES[kind]
    assert not tally.faults, tally.table() + "".join(f"\n{f.task}\n{f.verdict.detail}" for f in tally.faults.values())


@pytest.mark.always
@pytest.mark.parametrize("folder", FOUND, ids=lambda p: p.name)
def test_what_was_found_before(folder: Path) -> None:
    assert replay(folder) == 0


class Planted:
    """Cases of digits: the first digit other than 0 decides the outcome of a case."""

    name = "planted"

    def make(self, seed: int, without: frozenset[int] = frozenset()) -> Files:
        return {"model.txt": b"".join(b"0" if k in without else b"%d" % seed for k in range(3))}

    def check(self, folder: Path, stage: Stage) -> str:
        stage("reading")
        text = (folder / "model.txt").read_text()
        match next((c for c in text if c != "0"), "0"):
            case "1":
                raise ValueError(text)
            case "2":
                raise AotcError("code", "'NoneType' object has no attribute 'x'")
            case "3":
                raise AotcError("code", "a refusal", hint="as it should be")
            case "4":
                while True:
                    pass
            case "5":
                import ctypes

                ctypes.string_at(0)
            case "6":
                bytearray(1 << 40)
            case "7":
                import tempfile

                tempfile.mkstemp()
        return "accepted"

    def smaller(self, files: Files) -> Iterator[Files]:
        text = files["model.txt"]
        yield from ({"model.txt": text[:k] + text[k + 1 :]} for k in range(len(text)))

    def command(self, folder: Path) -> str:
        return f"show {folder}"


WANTED = {
    0: "accepted", 1: "error: ValueError in elsewhere", 2: "internals: code", 3: "refused", 4: "timeout: reading",
    5: "signal: SIGSEGV while reading", 6: "memory: elsewhere", 7: "leftover: planted",
}  # fmt: skip


@pytest.mark.parametrize("seed", WANTED)
def test_verdicts(seed: int) -> None:
    with Workers({"planted": Planted()}, 1, Limits(2.0, 1 << 30)) as workers:
        for _ in range(2):  # a worker that died is replaced
            workers.submit(Task("planted", seed))
            verdict = workers.result()[1]
            assert (verdict.signature or verdict.outcome).startswith(WANTED[seed]), verdict


def test_a_fault_is_found_made_small_kept_and_shown_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start = next(s for s in range(100) if seeds(s)(0) % 10 == 1)
    monkeypatch.setattr("tests.fuzz.search.seeds", lambda _: lambda n: [1, 3, 1, 0][n])
    monkeypatch.setitem(KINDS, "planted", lambda _: Planted())  # type: ignore[arg-type]
    tally = fuzz({"planted": Planted()}, seed=start, cases={"planted": 4}, out=tmp_path)
    assert tally.outcomes["planted"] == {"error": 2, "refused": 1, "accepted": 1}
    (fault,) = tally.faults.values()
    assert fault.times == 2 and fault.folder is not None
    assert (fault.folder / "model.txt").read_bytes() == b"1"
    text = (fault.folder / "FAULT.txt").read_text()
    assert f"show {fault.folder}" in text and f"python -m tests.fuzz replay {fault.folder}" in text
    assert replay(fault.folder) == 1
    (fault.folder / "model.txt").write_text("0")
    assert replay(fault.folder) == 0


@pytest.mark.parametrize("kind", ["onnx", "relay", "archive", "graphs", "kernels"])
def test_cases_depend_on_the_seed_alone(kind: str) -> None:
    made = kinds_of([kind], everything=False)[kind]
    first = [made.make(seed) for seed in range(3)]
    assert [made.make(seed) for seed in range(3)] == first
    assert first[0] != first[1]
