# SPDX-License-Identifier: Apache-2.0
"""Runs tests of ONNX's official backend suite, each in a separate process.

In: names of tests.  Out: for each, None or the reason why it failed.  A test compiles its model to C, runs
the library on the test's inputs as run-time inputs, and compares as ONNX's own runner does.

    results = run_cases(all_cases(["node"]), jobs=2)
    failing(results)
"""

from __future__ import annotations

import multiprocessing
import os
import re
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import numpy_helper, parser
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner

from aotc.ir.diagnostics import AotcError

KINDS = ("node", "simple", "real", "pytorch-operator", "pytorch-converted")
TIMEOUT_S = 300.0
"""Per test; a compiled model that hangs counts as failed."""
FAST = {"cflags": ("-O1",), "target": "c"}
"""What the suite compiles with: many small models, each run once."""
FIRST = '<ir_version: 8, opset_import: ["" : 17]> first (float[2] x) => (float[2] y) { y = Neg(x) }'
LIST = Path(__file__).with_name("failing.txt")


@dataclass(frozen=True, slots=True)
class Case:
    """One test: "kind/name" and what ONNX's loader knows about it."""

    name: str
    test: Any

    @property
    def kind(self) -> str:
        return self.name.partition("/")[0]


def all_cases(kinds: Sequence[str] = KINDS, pattern: str = "") -> list[Case]:
    """The tests of some kinds whose name contains `pattern`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # making the expected values divides by zero on purpose
        return [
            Case(f"{kind}/{test.name}", test)
            for kind in kinds
            for test in sorted(load_model_tests(kind=kind), key=lambda t: str(t.name))
            if pattern in f"{kind}/{test.name}"
        ]


def _array(value: Any) -> Any:
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def _read(path: Path, kind: Any) -> Any:
    data = path.read_bytes()
    if kind.HasField("sequence_type"):
        sequence = onnx.SequenceProto()
        sequence.ParseFromString(data)
        return numpy_helper.to_list(sequence)
    if kind.HasField("optional_type"):
        optional = onnx.OptionalProto()
        optional.ParseFromString(data)
        return numpy_helper.to_optional(optional)
    return numpy_helper.to_array(onnx.load_tensor_from_string(data))


def data_of(test: Any) -> tuple[Any, list[tuple[list[Any], list[Any]]]]:
    """The model of a test, and its (inputs, expected outputs)."""
    if test.model is not None:
        return test.model, [([_array(x) for x in i], [_array(x) for x in o]) for i, o in test.data_sets]
    if test.url and test.url.startswith("onnx/backend/test/data/light/"):
        return _light(Path(onnx.__file__).parent.parent / test.url)
    folder = Path(test.model_dir)
    model = onnx.load(folder / "model.onnx")
    sets = []
    for data in sorted(folder.glob("test_data_set*")):
        inputs = _numbered(data, "input", [v.type for v in model.graph.input])
        sets.append((inputs, _numbered(data, "output", [v.type for v in model.graph.output])))
    return model, sets


def _numbered(folder: Path, what: str, types: Sequence[Any]) -> list[Any]:
    count = len(list(folder.glob(f"{what}_*.pb")))
    return [_read(folder / f"{what}_{k}.pb", types[k]) for k in range(count)]


def _light(path: Path) -> tuple[Any, list[tuple[list[Any], list[Any]]]]:
    """A large model without its weights: the runner's inputs, the outputs that lie beside it."""
    model = onnx.load(path)
    fixed = {t.name for t in model.graph.initializer}
    inputs = [Runner.generate_dummy_data(v) for v in model.graph.input if v.name not in fixed]
    outputs = [
        numpy_helper.to_array(onnx.load_tensor(str(path.with_suffix("")) + f"_output_{k}.pb"))
        for k in range(len(model.graph.output))
    ]
    return model, [(inputs, outputs)]


Prepare: TypeAlias = Callable[[Any], Callable[[list[Any]], Sequence[Any]]]
"""A model as a function of its inputs."""


def compiled(model: Any, options: Mapping[str, Any] = FAST) -> Callable[[list[Any]], Sequence[Any]]:
    """A function that runs `model` as compiled C and fails if no call into C happened."""
    from aotc import onnx_backend

    prepared = onnx_backend.AotcRep(model, options)

    def run(inputs: list[Any]) -> Sequence[Any]:
        before = prepared.calls
        outputs = prepared.run(inputs)
        assert prepared.calls > before, "no call into compiled code"
        return list(outputs)

    return run


def check(case: Case, prepare: Prepare = compiled) -> None:
    """Run one test; raises what went wrong."""
    model, sets = data_of(case.test)
    assert sets, "the test has no data"
    run = prepare(model)
    for inputs, expected in sets:
        outputs = run(inputs)
        pairs = [_with_comparable_scalars(a, b) for a, b in zip(expected, outputs, strict=True)]
        wanted, found = [a for a, _ in pairs], [b for _, b in pairs]
        Runner.assert_similar_outputs(wanted, found, rtol=case.test.rtol, atol=case.test.atol)


def _with_comparable_scalars(expected: Any, found: Any) -> tuple[Any, Any]:
    """An expected and a found output, scalars in sequences as vectors of one element: ONNX's runner does not compare
    scalars in sequences.
    """
    if not isinstance(expected, list) or not isinstance(found, list):
        return expected, found
    assert [np.ndim(x) for x in expected] == [np.ndim(x) for x in found], "elements of a sequence differ in rank"
    return [np.atleast_1d(x) for x in expected], [np.atleast_1d(x) for x in found]


def reason(error: BaseException) -> str:
    """One line that says why, without numbers that change from run to run."""
    if isinstance(error, AotcError):
        first = error.diagnostics[0]
        return f"{first.code}: {' '.join(first.message.split())}"[:160]
    text = " ".join(str(error).split())
    if isinstance(error, AssertionError) and "Mismatched elements" in text:
        return "mismatch: " + re.sub(r"^.*(Mismatched elements: [^()]*)\(.*$", r"\1", text).strip()[:120]
    return f"{type(error).__name__}: {text}"[:160]


def _child(case: Case, sender: Connection, prepare: Prepare) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            check(case, prepare)
        sender.send(None)
    except BaseException as error:  # whatever a test dies of is its result
        sender.send(reason(error))


@dataclass(slots=True)
class _Running:
    case: Case
    process: ForkProcess
    started: float = field(default_factory=time.monotonic)


def run_cases(
    cases: Iterable[Case],
    jobs: int = 2,
    progress: Callable[[str, str | None], None] = lambda *_: None,
    prepare: Prepare = compiled,
) -> dict[str, str | None]:
    """Run tests in processes of their own, `jobs` at a time: a crash in compiled code is that test's result.

    They are forked from one that has compiled already, else each would load the compiler anew.
    """
    prepare(parser.parse_model(FIRST))
    context = multiprocessing.get_context("fork")
    waiting, running = list(reversed(list(cases))), dict[Connection, _Running]()
    results: dict[str, str | None] = {}
    while waiting or running:
        while waiting and len(running) < jobs:
            case = waiting.pop()
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(target=_child, args=(case, sender, prepare), daemon=False)
            process.start()
            sender.close()
            running[receiver] = _Running(case, process)
        ready = [c for c in wait(list(running), timeout=1.0) if isinstance(c, Connection)]
        late = [c for c, r in running.items() if time.monotonic() - r.started > TIMEOUT_S and c not in ready]
        for connection in [*ready, *late]:
            entry = running.pop(connection)
            results[entry.case.name] = _result(connection, entry, connection in late)
            progress(entry.case.name, results[entry.case.name])
    return results


def _result(connection: Connection, entry: _Running, late: bool) -> str | None:
    if late:
        entry.process.kill()
        entry.process.join()
        return f"timeout: {TIMEOUT_S:.0f} s"
    try:
        answer: str | None = connection.recv()
    except EOFError:
        entry.process.join()
        return f"crash: exit status {entry.process.exitcode}"
    entry.process.join()
    return answer


# --- the list of tests that fail


def failing(results: Mapping[str, str | None]) -> dict[str, str]:
    """The failed tests and why, by name."""
    return {name: why for name, why in sorted(results.items()) if why is not None}


def read_list() -> dict[str, str]:
    """The committed list of failing tests."""
    if not LIST.exists():
        return {}
    lines = [line for line in LIST.read_text(encoding="utf-8").splitlines() if line[:1] not in ("", "#")]
    return {name: why for name, _, why in (line.partition(" | ") for line in lines)}


def write_list(results: Mapping[str, str | None]) -> None:
    """Replace the committed list."""
    head = "# Tests of the official ONNX suite that fail, and why; written by tests/conformance/run.py.\n"
    body = "".join(f"{name} | {why}\n" for name, why in failing(results).items())
    LIST.write_text(head + body, encoding="utf-8")


def summary(results: Mapping[str, str | None]) -> str:
    """A table: per kind, how many pass of how many."""
    rows = []
    for kind in KINDS:
        found = [why for name, why in results.items() if name.startswith(kind + "/")]
        if found:
            rows.append(f"{kind:<18} {sum(why is None for why in found):>5} of {len(found):>5}")
    rows.append(f"{'all':<18} {sum(why is None for why in results.values()):>5} of {len(results):>5}")
    return "\n".join(rows)
