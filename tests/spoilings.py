# SPDX-License-Identifier: Apache-2.0
"""Projects that are spoiled by seed: one weight, or one constant, operator or loop bound of the generated C.

Run as a program it says of spoiled projects whether their outputs are wrong, and whether `verify` finds it:

    python -m tests.spoilings net.onnx DIR DIR ...      # a line of JSON for each, in a process of its own
"""

from __future__ import annotations

import json
import os
import random
import re
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime  # type: ignore[import-untyped]

from aotc.checking.compare import exact_error
from aotc.checking.float64_reference import InDouble
from aotc.checking.input_generation import Arrays
from aotc.checking.verify import verify
from aotc.runtime.library import read_metadata
from aotc.runtime.session import load

NUMBER = r"-?\d+\.\d+(?:e[-+]?\d+)?f?|-?\d+"
#: Texts of generated C, and what they become.
CHANGES: dict[str, Callable[[random.Random, re.Match[str]], str]] = {
    r"(?<=[\w)\]]) \+ (?=[\w(])": lambda _, m: " - ",
    r"(?<=[\w)\]]) - (?=[\w(])": lambda _, m: " + ",
    r"(?<=[\w)\]]) \* (?=[\w(])": lambda _, m: " + ",
    r"(?<= < )\d+(?=;)": lambda _, m: str(int(m[0]) - 1),
    r"(?<=\w) < (?=[\w-])(?!\d+;)": lambda _, m: " <= ",
    r"(?<=\w) > (?=[\w-])": lambda _, m: " < ",
    r"(?<![\w.])\d+\.\d+(?:e[-+]?\d+)?f\b": lambda r, m: f"{float(m[0][:-1]) * r.choice((1.01, 2, -1)) + 0.001!r}f",
    r"\w*fma\w*\((?=[\w(])": lambda _, m: m[0] + "-",
    r"\w*max\w*\((?=[\w(])": lambda _, m: m[0] + "-",
    r"\[(?=\w+ \*)": lambda _, m: "[1 + ",
}


def spoil(project: Path, seed: int) -> str:
    """Changes one place of a project's weights or sources; says which."""
    rng = random.Random(seed)
    name = next(project.glob("include/[!a]*.h")).stem
    weights = [p for p in (project / "src" / f"{name}_params.c", project / "src" / f"{name}_params.bin") if p.exists()]
    if weights and rng.random() < 0.5:
        file = rng.choice(weights)
        return _spoil_bytes(file, rng) if file.suffix == ".bin" else _spoil_numbers(file, rng)
    sources = sorted([*project.glob("src/*_kernels_*.c"), project / "src" / f"{name}.c"])
    while True:
        file = rng.choice(sources)
        text = file.read_text(encoding="utf-8")
        pattern, change = rng.choice(list(CHANGES.items()))
        body = max(text.find("STEP(0) "), text.find("\n}\n#endif"))
        if found := [m for m in re.finditer(pattern, text) if m.start() > body]:
            place = rng.choice(found)
            new = change(rng, place)
            file.write_text(text[: place.start()] + new + text[place.end() :], encoding="utf-8")
            line = text[: place.start()].count("\n")
            return f"{file.name}:{line + 1}: {place[0]!r} becomes {new!r} in {text.splitlines()[line].strip()!r}"


def _spoil_numbers(file: Path, rng: random.Random) -> str:
    """Scales, negates or clears one number, or flips one of its bits."""
    text = file.read_text(encoding="utf-8")
    rows = list(re.finditer(r"^  .*$", text, re.MULTILINE))
    row = rng.choice(rows)
    place = rng.choice(list(re.finditer(NUMBER, row[0])))
    old = place[0]
    if "." in old:
        new = f"{_changed(float(old.rstrip('f')), rng)!r}f"
    else:
        new = str(int(old) ^ 1 << rng.randrange(2, 7)) if abs(int(old)) < 128 else str(-int(old))
    start = row.start() + place.start()
    file.write_text(text[:start] + new + text[start + len(old) :], encoding="utf-8")
    return f"{file.name}: {old} becomes {new}"


def _changed(value: float, rng: random.Random) -> float:
    kind = rng.randrange(4)
    if kind == 3:
        bits = struct.unpack("<I", struct.pack("<f", value))[0] ^ 1 << rng.randrange(16, 32)
        flipped = float(struct.unpack("<f", struct.pack("<I", bits))[0])
        return flipped if np.isfinite(flipped) else -value
    return value * (1.5, -1.0, 0.0)[kind]


def _spoil_bytes(file: Path, rng: random.Random) -> str:
    data = bytearray(file.read_bytes())
    at = rng.randrange(len(data) // 4) * 4
    (old,) = struct.unpack_from("<f", data, at)
    new = _changed(old, rng) if np.isfinite(old) else 0.5
    struct.pack_into("<f", data, at, new)
    file.write_bytes(data)
    return f"{file.name}: float {at // 4}, {old:g}, becomes {new:g}"


# --- the judgment


def many_inputs(model: onnx.ModelProto, count: int = 60) -> Iterator[Arrays]:
    """Inputs of many sizes, drawn in another way than `verify` draws them."""
    for seed in range(count):
        rng = np.random.default_rng([seed, 17])
        scale = (1.0, 0.1, 3.0, 0.01, 10.0)[seed % 5]
        arrays = {}
        for value in model.graph.input:
            shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
            x = rng.uniform(-1.7, 1.7, shape) if seed % 2 else rng.standard_normal(shape)
            arrays[value.name] = (scale * x).astype(np.float32)
        yield arrays


class Judge:
    """Says whether outputs are wrong: by results in double precision, on inputs of its own, without `verify`.

    The tolerance for one set of inputs is that of the project, or four times the error of ONNX Runtime on them.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        work, rival = InDouble(model), onnxruntime.InferenceSession(model.SerializeToString())
        self._inputs = list(many_inputs(model))
        self._exact = [work.run({n: a.astype(np.float64) for n, a in x.items()}) for x in self._inputs]
        names = list(self._exact[0])
        found = [dict(zip(names, rival.run(names, x), strict=True)) for x in self._inputs]
        self._noise = [max(exact_error(f[n], e[n]) for n in names) for f, e in zip(found, self._exact, strict=True)]

    def error_of(self, project: Path) -> float:
        """The largest error of a project over all inputs, in tolerances."""
        session = load(max(project.glob("*/lib*.so"), key=lambda p: p.stat().st_mtime_ns))
        bound = read_metadata(project)["error_bound"]
        worst = 0.0
        for x, exact, noise in zip(self._inputs, self._exact, self._noise, strict=True):
            for info, found in zip(session.get_outputs(), session.run(None, x), strict=True):
                wrong = found.dtype != np.float32 or not np.isfinite(found).all()
                error = np.inf if wrong else exact_error(found, exact[info.name])
                worst = max(worst, error / max(bound, 4 * noise))
        return worst


def judged(model: onnx.ModelProto, judge: Judge, project: Path) -> dict[str, object]:
    """How wrong a project is, in tolerances, and whether `verify` finds it."""
    error = judge.error_of(project)
    return {"error": error, "found": not verify(model, project=project).ok}


def main(path: str, *projects: str) -> None:
    model = onnx.load(path)
    judge = Judge(model)
    for project in projects:
        sys.stdout.flush()
        if not (child := os.fork()):
            try:
                print(json.dumps(judged(model, judge, Path(project))), flush=True)
                os._exit(0)
            finally:
                os._exit(1)
        if os.waitpid(child, 0)[1]:
            print(json.dumps({"error": float("inf"), "found": True, "crashed": True}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
