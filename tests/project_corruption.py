# SPDX-License-Identifier: Apache-2.0
"""Corrupts projects by seed: one weight, or one place of the generated C.

Run as a program it says of spoiled projects whether their outputs are wrong, and whether `verify` finds it:

    python -m tests.project_corruption net.onnx DIR DIR ...      # a line of JSON for each, in a process of its own
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import struct
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime  # type: ignore[import-untyped]

from aotc.checking.dequantized_model import expand_quantized_operators_to_qdq, remove_quantization_rounding
from aotc.checking.float64_reference import Float64Evaluator
from aotc.checking.input_generation import Arrays
from aotc.checking.model_reference_runs import convert_inputs_to_float64, has_quantized_operators
from aotc.checking.output_comparison import (
    largest_accepted_rms_deviation,
    relative_error_against_float64,
    root_mean_square_difference,
)
from aotc.checking.verify import verify
from aotc.ir import Array
from aotc.runtime.library import read_project_metadata
from aotc.runtime.session import load

NUMBER = r"-?\d+\.\d+(?:e[-+]?\d+)?f?|-?\d+"
#: An operand of an expression: a variable, a number, an element of an array.
OPERAND = r"(?<![\w.])(?:[a-z]\w*(?:\[[^][]*\])?|\d+\.\d+f)(?![\w(\[.])"
Change = Callable[[random.Random, "re.Match[str]"], str]


def _other_constant(rng: random.Random, match: re.Match[str]) -> str:
    return f"{float(match[0][:-1]) * rng.choice((1.01, 2, -1)) + 0.001!r}f"


#: Kinds of faults: patterns of generated C, and what is put in their place.
SOURCES: Mapping[str, Mapping[str, Change]] = {
    "constant": {r"(?<![\w.])\d+\.\d+(?:e[-+]?\d+)?f\b": _other_constant},
    "loop bound": {r"(?<= < )\d+(?=;)": lambda _, m: str(int(m[0]) - 1), r"(?<= = )0(?=; \w+ < )": lambda _, m: "1"},
    "index": {r"\[(?=\w+ \*)": lambda _, m: "[1 + ", r"(?<=\w \* )\d+(?= \+ \w+\])": lambda _, m: str(int(m[0]) - 1)},
    "swapped operands": {
        rf"({OPERAND}) ([-/]) ({OPERAND})": lambda _, m: f"{m[3]} {m[2]} {m[1]}",
        rf"({OPERAND}) > ({OPERAND})": lambda _, m: f"{m[2]} > {m[1]}",
        r"(?<= = acc)\d+(?=_\d+[;)])": lambda _, m: str(1 - min(int(m[0]), 1)),
    },
    "dropped epilogue": {
        r" \+ (?:\(\w+\))?p\d+\[[^][]*\]": lambda _, m: "",
        r"\w*(?:max|min)_\w*\((?=[\w(])": lambda _, m: m[0] + "-",
    },
    "operator": {
        r"(?<=[\w)\]]) \+ (?=[\w(])": lambda _, m: " - ",
        r"(?<=[\w)\]]) - (?=[\w(])": lambda _, m: " + ",
        r"(?<=[\w)\]]) \* (?=[\w(])": lambda _, m: " + ",
        r"(?<=\w) < (?=[\w-])(?!\d+;)": lambda _, m: " <= ",
        r"\w*fma\w*\((?=[\w(])": lambda _, m: m[0] + "-",
    },
}


def spoil(project: Path, seed: int) -> str:
    """Change one place of a project: by even seeds a weight, each array in turn; by odd ones the sources, each kind in
    turn.  Return a description of the change.
    """
    rng = random.Random(seed)
    return _spoil_source(project, rng, seed // 2) if seed % 2 else _spoil_weight(project, rng, seed // 2)


def _name(project: Path) -> str:
    return next(project.glob("include/[!a]*.h")).stem


def _spoil_source(project: Path, rng: random.Random, turn: int) -> str:
    name = _name(project)
    sources = sorted([*project.glob("src/*_kernels_*.c"), project / "src" / f"{name}.c"])
    kinds = list(SOURCES)
    while True:
        kind = kinds[turn % len(kinds)]
        file = rng.choice(sources)
        text = file.read_text(encoding="utf-8")
        body = max(text.find("STEP(0) "), text.find("\n}\n#endif"))
        pattern, change = rng.choice(list(SOURCES[kind].items()))
        if found := [m for m in re.finditer(pattern, text) if m.start() > body]:
            place = rng.choice(found)
            new = change(rng, place)
            file.write_text(text[: place.start()] + new + text[place.end() :], encoding="utf-8")
            line = text[: place.start()].count("\n")
            where = f"{file.name}:{line + 1}: {place[0]!r} becomes {new!r}"
            return f"{kind}: {where} in {text.splitlines()[line].strip()!r}"
        # the generated C of some networks has no place of some kinds
        turn += rng.randrange(8) == 0


def _spoil_weight(project: Path, rng: random.Random, turn: int) -> str:
    name = _name(project)
    stored = project / "src" / f"{name}_params.bin"
    return _spoil_bytes(stored, rng) if stored.exists() else _spoil_number(stored.with_suffix(".c"), rng, turn)


def _spoil_number(file: Path, rng: random.Random, turn: int) -> str:
    """Scale, negate or clear one number of an array, or flip one of its bits."""
    text = file.read_text(encoding="utf-8")
    arrays = list(re.finditer(r"^const (\w+) (\w+)\[.*= \{$([^}]*)\}", text, re.MULTILINE))
    array = arrays[turn % len(arrays)]
    place = rng.choice(list(re.finditer(NUMBER, array[3])))
    old = place[0]
    if "." in old:
        new = f"{_changed(float(old.rstrip('f')), rng)!r}f"
    else:
        new = str(int(old) ^ 1 << rng.randrange(2, 7)) if abs(int(old)) < 128 else str(-int(old))
    start = array.start(3) + place.start()
    file.write_text(text[:start] + new + text[start + len(old) :], encoding="utf-8")
    return f"weight: {array[1]} {array[2]}: {old} becomes {new}"


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


#: By what factor the distance of a quantized network from its definition may vary between draws of inputs.
SPREAD = 1.25


def many_inputs(model: onnx.ModelProto, count: int = 60) -> Iterator[Arrays]:
    """Inputs drawn in another way than `verify` draws them: of many sizes, but for networks that quantize."""
    rows = {n.input[1]: n.input[0] for n in model.graph.node if n.op_type == "Gather"}
    sizes = {t.name: t.dims[0] for t in model.graph.initializer if t.dims}
    for seed in range(count):
        rng = np.random.default_rng([seed, 17])
        scale = 1.0 if has_quantized_operators(model) else (1.0, 0.1, 3.0, 0.01, 10.0)[seed % 5]
        arrays = {}
        for value in model.graph.input:
            shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
            if value.name in rows:
                arrays[value.name] = rng.integers(0, sizes[rows[value.name]], shape)
                continue
            x = rng.uniform(-1.7, 1.7, shape) if seed % 2 else rng.standard_normal(shape)
            arrays[value.name] = (scale * x).astype(np.float32)
        yield arrays


class Judge:
    """Says whether outputs are wrong: by results in double precision, on inputs of its own, without `verify`.

    Of networks in float32, the tolerance for one set of inputs is that of the project, or four times the error of ONNX
    Runtime on them.  Of networks that quantize, the distance from their definition is compared with that of ONNX
    Runtime and with the noise of quantization, each over all inputs; it varies from one draw of them to another.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self._inputs = list(many_inputs(model))
        self._quantized = has_quantized_operators(model)
        work = Float64Evaluator(expand_quantized_operators_to_qdq(model) if self._quantized else model)
        self._exact = [work.evaluate_model(convert_inputs_to_float64(x)) for x in self._inputs]
        rival, names = onnxruntime.InferenceSession(model.SerializeToString()), list(self._exact[0])
        found = [dict(zip(names, rival.run(names, x), strict=True)) for x in self._inputs]
        self._noise = [
            max(relative_error_against_float64(f[n], e[n]) for n in names)
            for f, e in zip(found, self._exact, strict=True)
        ]
        if self._quantized:
            plain = Float64Evaluator(remove_quantization_rounding(model))
            real = [plain.evaluate_model(convert_inputs_to_float64(x)) for x in self._inputs]
            self._tolerance = {
                n: largest_accepted_rms_deviation(*(self._joined(a, n) for a in (found, real, self._exact)))
                for n in names
            }

    @staticmethod
    def _joined(rows: Sequence[Arrays], name: str) -> Array:
        return np.concatenate([row[name].astype(np.float64).reshape(-1) for row in rows])

    def error_of(self, project: Path) -> float:
        """The largest error of a project over all inputs, in tolerances."""
        session = load(max(project.glob("*/lib*.so"), key=lambda p: p.stat().st_mtime_ns))
        names = [info.name for info in session.get_outputs()]
        rows = [dict(zip(names, session.run(None, x), strict=True)) for x in self._inputs]
        if any(a.dtype != np.float32 or not np.isfinite(a).all() for row in rows for a in row.values()):
            return float("inf")
        if self._quantized:
            apart = {n: root_mean_square_difference(self._joined(rows, n), self._joined(self._exact, n)) for n in names}
            return max(apart[n] / self._tolerance[n] for n in names) / SPREAD
        bound, worst = read_project_metadata(project)["error_bound"], 0.0
        for row, exact, noise in zip(rows, self._exact, self._noise, strict=True):
            error = max(relative_error_against_float64(row[n], exact[n]) for n in names)
            worst = max(worst, error / max(bound, 4 * noise))
        return worst


def judged(model: onnx.ModelProto, judge: Judge, project: Path) -> dict[str, object]:
    """How wrong a project is, in tolerances, and whether `verify` finds it."""
    error = judge.error_of(project)
    return {"error": error, "found": error > 1 and not verify(model, project=project).ok}


def main(path: str, *projects: str) -> None:
    model = onnx.load(path)
    judge = Judge(model)
    for project in projects:
        sys.stdout.flush()
        if not (child := os.fork()):
            try:
                # a changed loop may never end
                signal.alarm(100)
                print(json.dumps(judged(model, judge, Path(project))), flush=True)
                os._exit(0)
            finally:
                os._exit(1)
        if os.waitpid(child, 0)[1]:
            print(json.dumps({"error": 0.0, "found": False, "crashed": True}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
