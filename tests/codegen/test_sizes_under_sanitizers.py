# SPDX-License-Identifier: Apache-2.0
"""Runs with random sizes in C under sanitizers: a wrong size gives the right status, writes nothing, and leaves the
workspace usable.
"""

from __future__ import annotations

import random
import subprocess
from collections.abc import Callable, Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import aotc
from aotc.ir.diagnostics import AotcError
from aotc.ir.dimension_ranges import DimRange
from aotc.runtime.session import Session
from tests.e2e import test_models_with_size_ranges as ranged
from tests.e2e import test_size_tiers as tiers
from tests.frontend import test_operands_that_are_sizes as operands
from tests.frontend import test_resize_by_operands as resizes
from tests.frontend import test_signals_by_operands as signals
from tests.share import SEED

Array = np.ndarray[Any, Any]
FLAGS = "-std=c11 -O0 -g -Wall -Wextra -Wconversion -Werror -fsanitize=address,undefined -fno-sanitize-recover=all"
DIMS_STATUS, SHAPE_STATUS = 22, 23
CASES = 1000
VALUE_CASES = 200

MODELS: dict[str, tuple[Callable[[], onnx.ModelProto], dict[str, Any]]] = {
    **{name: (make, dict(dims)) for name, (make, dims, _) in ranged.MODELS.items()},
    "two_inputs": (ranged.two_inputs, {"n": "0..8~4", "m": "2..8:2~4"}),
    "tiers": (ranged.perceptron, {"batch": [1, "4..8:4", 20]}),
    "convolved_bytes": (tiers.integers, {"batch": (0, 5)}),
    "resized_by_a_factor": (tiers.resized, {"batch": (1, 2), "h": (1, 9)}),
}
#: Modules of models whose operands are sizes.
OPERANDS = {"operands": operands, "resizes": resizes, "signals": signals}


class Program:
    """A compiled model, and the C program that runs it on cases from a file."""

    def __init__(self, proto: onnx.ModelProto, dims: Mapping[str, Any], folder: Path) -> None:
        made = aotc.compile(proto, dims=dims, target="c", output=folder / "net", name="net", cflags=["-O0"])
        self.session, self._folder = made.session(), folder
        assert self.session._sizes is not None
        self.sizes = self.session._sizes
        sources = [*(folder / "net/src").glob("*.[cS]"), *(folder / "net/runtime").glob("*.c")]
        sources = [Path(__file__).with_name("generic_cases.c"), *(s for s in sources if s.name != "params_to_c.c")]
        command = ["gcc", *FLAGS.split(), "-Iinclude", "-Isrc", *sources, "-lm", "-o", folder / "app"]
        subprocess.run([str(c) for c in command], check=True, cwd=folder / "net")
        self._rows: list[bytes] = []
        self._results: list[list[Array] | None] = []

    def add(self, sizes: Mapping[str, int] | None, arrays: Mapping[str, Array], results: list[Array] | None) -> None:
        """Add a case: its sizes, if they are known; inputs; results of a run, None if it must end with a status."""
        kind, lengths = int(sizes is not None), [64] * len(self.session.get_outputs())
        if results is not None:
            lengths = [result.nbytes for result in results]
        elif (shapes := self._shapes_of_outputs(sizes)) is not None:
            # the run has written some outputs when it finds a value that is not allowed
            kind, lengths = 2, [prod(shape) * 8 for shape in shapes]
        known = [0] * len(self.sizes.ranges) if sizes is None else [sizes[name] for name in self.sizes.ranges]
        row = [np.array([kind, *known], np.int64).tobytes()]
        for info in self.session.get_inputs():
            row += [np.array(arrays[info.name].nbytes, np.int64).tobytes(), arrays[info.name].tobytes()]
        self._rows.append(b"".join([*row, np.array(lengths, np.int64).tobytes()]))
        self._results.append(results)

    def _shapes_of_outputs(self, sizes: Mapping[str, int] | None) -> list[tuple[int, ...]] | None:
        """Return the shapes of outputs for sizes; None for sizes with which the model does not run."""
        try:
            return None if sizes is None else self.sizes.output_shapes(sizes)
        except AotcError:
            return None

    def run(self) -> list[int]:
        """Run all cases; return their statuses. Results must be those of the session, bit by bit."""
        (self._folder / "cases").write_bytes(b"".join(self._rows))
        command = ["./app", "cases", "results"]
        done = subprocess.run(command, cwd=self._folder, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr[:4000]) == (0, "")
        lines = done.stdout.splitlines()
        statuses = [int(line.split(" ")[0]) for line in lines]
        assert [status == 0 for status in statuses] == [results is not None for results in self._results]
        assert all(line.split(" ", 1)[1] for line, status in zip(lines, statuses, strict=True) if status)
        written = (self._folder / "results").read_bytes()
        expected = b"".join(r.tobytes() for results in self._results for r in results or ())
        assert written == expected
        return statuses


def hostile_sizes(ranges: Mapping[str, DimRange], rng: random.Random) -> Iterator[dict[str, int]]:
    """Yield random sizes at, in and out of ranges and steps."""
    for _ in range(CASES):
        sizes = {}
        for name, r in ranges.items():
            near = [r.least, r.most, r.least - 1, r.most + 1, r.least + 1, 0, 1, -1]
            far = [-(1 << 63), (1 << 63) - 1, 1 << 62, 1 << 32, -(1 << 31)]
            inside = rng.randrange(r.least, r.most + 1, r.step)
            sizes[name] = rng.choice([rng.choice(near), inside, inside, inside, inside + 1, rng.choice(far)])
        yield sizes


def status_of_sizes(session: Session, sizes: Mapping[str, int]) -> int:
    """Return the status that a run with these sizes must have; that of a condition without its number."""
    for number, (name, r) in enumerate(session.dims.items()):
        if sizes[name] not in r:
            return DIMS_STATUS + 256 * number
    return SHAPE_STATUS if "n" in sizes and sizes["n"] != sizes["m"] else 0


@pytest.mark.parametrize("name", MODELS)
def test_random_sizes(name: str, tmp_path: Path) -> None:
    make, dims = MODELS[name]
    program = Program(make(), dims, tmp_path)
    session, known = program.session, dict[tuple[int, ...], tuple[dict[str, Array], list[Array]]]()
    expected = []
    for seed, sizes in enumerate(hostile_sizes(session.dims, random.Random(f"{SEED} {name}"))):
        expected.append(status_of_sizes(session, sizes))
        key = tuple(sizes.values())
        if expected[-1] != 0:
            program.add(sizes, {i.name: np.zeros(0, np.uint8) for i in session.get_inputs()}, None)
            continue
        if key not in known:
            arrays = ranged.inputs_of(session, sizes, seed)
            known[key] = arrays, session.run(None, arrays)
        program.add(sizes, *known[key])
    statuses = program.run()
    assert [s & 255 if s & 255 == SHAPE_STATUS else s for s in statuses] == expected
    assert 0 in expected and len(set(expected)) > 1


def random_values(module: Any, rng: random.Random) -> dict[str, Array]:
    """Return values of operands: each from one of the lists of valid values, and in most cases one that is hostile."""
    values = {name: np.array(rng.choice(module.VALUES)[name], object) for name in module.VALUES[0]}
    if "indices" in values:
        values["indices"] = np.array(module.VALUES[0]["indices"], object)
    if rng.random() < 0.7:
        name = rng.choice(sorted(name for name, value in values.items() if value.size))
        floats = [0.0, -1.0, 1e30, float("nan"), float("inf"), 0.3]
        integers = [-1, 0, 1, 2, 3, 8, 9, 1 << 32, 1 << 62, -(1 << 63), (1 << 63) - 1]
        is_float = any(isinstance(v, float) for rows in module.VALUES for v in np.ravel(np.array(rows[name], object)))
        flat = values[name].reshape(-1)
        flat[rng.randrange(flat.size)] = rng.choice(floats if is_float else integers)
    return values


@pytest.mark.parametrize("name", OPERANDS)
def test_random_operands(name: str, tmp_path: Path) -> None:
    module, rng = OPERANDS[name], random.Random(f"{SEED} {name}")
    program = Program(module.model(), module.DIMS, tmp_path)
    chosen = [*module.VALUES, *({**module.VALUES[0], **changed} for changed, _ in module.REFUSED)]
    chosen += [random_values(module, rng) for _ in range(VALUE_CASES)]
    accepted = 0
    for values in chosen:
        arrays = module.feeds(values)
        sizes, problems = program.sizes.values_from_inputs(arrays, program.session._library.inputs)
        try:
            results = program.session.run(None, arrays)
            accepted += 1
        except AotcError:
            results = None
        program.add(None if problems else sizes, arrays, results)
    program.run()
    assert len(module.VALUES) <= accepted < len(chosen)
