# SPDX-License-Identifier: Apache-2.0
"""Random models of one attention layer (`tests.fuzz.attention_layers`), against ONNX Runtime.

files = make(seed)     # a model, the inputs of several runs, and how it is executed

Some models have fixed shapes; others have sizes that vary from run to run, or caches that fill.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from onnx import ModelProto, helper, numpy_helper

import aotc
from aotc.ir.diagnostics import AotcError
from aotc.relay.frontend.onnx import from_onnx
from aotc.relay.interpreter import evaluate
from tests.fuzz.attention_layers import Array, Generator, Layer, draw_layer
from tests.fuzz.case import Files, Found, Stage
from tests.fuzz.control_flow import RUNS, files_of, load_case
from tests.fuzz.control_flow_runs import results_by_onnxruntime
from tests.fuzz.execute import targets
from tests.fuzz.mutate_bytes import odds, pick

#: Smallest and largest values of the sizes of inputs.
BOUNDS: Final[Mapping[str, tuple[int, int]]] = {
    "batch": (1, 3), "steps": (1, 5), "past": (0, 6), "keys": (1, 5), "room": (0, 4),
}  # fmt: skip
#: Names of the inputs of GroupQueryAttention with the last positions of sequences, and the most positions of one.
LENGTHS, TOTAL = "i5", "i6"


def make(seed: int) -> Files:
    """A model, the inputs of its runs, and how it is executed."""
    rng = np.random.default_rng(seed)
    layer = draw_layer(rng)
    sizes = _draw_sizes(rng)
    extents = {e for operand in layer.operands if operand is not None for e in operand.extents if isinstance(e, str)}
    has_buffer = any("room" in e for e in extents)
    varying = [name for name in BOUNDS if any(name in e for e in extents) and not has_buffer and odds(rng, 0.6)]
    varying = varying if odds(rng, 0.5) else []
    grows = bool(layer.has_past) and not has_buffer
    varying += ["past"] if varying and grows and "past" not in varying else []
    moves = has_buffer and "past+steps" not in extents
    runs = [layer.feeds(rng, _sizes_of_run(rng, sizes, varying, moves)) for _ in range(RUNS)]
    held = {} if varying or moves else {k: v for k, v in runs[0].items() if k != "i0" and odds(rng, 0.3)}
    if grows and not varying:  # otherwise a cache of known length is a buffer for all tokens
        held[TOTAL] = runs[0][TOTAL]
    symbols = {e: e.replace("+", "_and_") for e in sorted(extents) if set(e.split("+")) & set(varying)}
    dims = {symbol: _bounds_of_sum(extent, sizes, varying) for extent, symbol in symbols.items()}
    setting = {
        "target": pick(rng, targets()) if odds(rng, 0.4) else "c",
        "threads": pick(rng, (1, 1, 2)),
        "is_compiled": bool(dims) or odds(rng, 0.4),
        "dims": dims,
        "has_past": layer.has_past,
    }
    given = [{k: v for k, v in run.items() if k not in held} for run in runs]
    return files_of(_model(layer, runs[0], held, symbols), given, setting)


def _draw_sizes(rng: Generator) -> dict[str, int]:
    made = {name: int(rng.integers(low, high + 1)) for name, (low, high) in BOUNDS.items()}
    return made | {name: 1 for name in ("batch", "steps") if odds(rng, 0.4)}


def _sizes_of_run(rng: Generator, sizes: Mapping[str, int], varying: Sequence[str], moves: bool) -> dict[str, int]:
    """The sizes of a run: other values of those that vary; other parts of a buffer that are filled, if that moves."""
    drawn = _draw_sizes(rng)
    made = {**sizes, **{name: drawn[name] for name in varying}}
    if moves:
        length = sizes["past"] + sizes["room"]
        made["past"] = int(rng.integers(length + 1))
        made["room"] = length - made["past"]
    return made


def _bounds_of_sum(extent: str, sizes: Mapping[str, int], varying: Sequence[str]) -> list[int]:
    parts = [BOUNDS[name] if name in varying else (sizes[name],) * 2 for name in extent.split("+")]
    return [sum(low for low, _ in parts), sum(high for _, high in parts)]


def _model(
    layer: Layer, feeds: Mapping[str, Array], held: Mapping[str, Array], symbols: Mapping[str, str]
) -> ModelProto:
    """The layer as a model of one node, some of whose inputs are initializers."""
    names = ["" if operand is None else f"i{k}" for k, operand in enumerate(layer.operands)]
    while not names[-1]:
        names.pop()
    inputs = []
    for name in names:
        if name and name not in held:
            operand = layer.operands[int(name[1:])]
            assert operand is not None
            shape = [
                symbols.get(e, n) if isinstance(e, str) else n
                for e, n in zip(operand.extents, feeds[name].shape, strict=True)
            ]
            inputs.append(
                helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(feeds[name].dtype), shape)
            )
    results = [f"y{k}" for k in range(layer.outputs)]
    node = helper.make_node(layer.op, names, results, domain=layer.domain, **layer.attributes)
    outputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype("f")), None) for name in results
    ]
    constants = [numpy_helper.from_array(array, name) for name, array in held.items()]
    graph = helper.make_graph([node], "g", inputs, outputs, constants)
    opsets = [helper.make_opsetid("", 17 if layer.domain else layer.version)]
    opsets += [helper.make_opsetid(layer.domain, layer.version)] if layer.domain else []
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def check(folder: Path, stage: Stage) -> str:
    """The converted graph, or compiled C, gives what ONNX Runtime does."""
    names = ("model.onnx", "inputs.npz", "setting.json")
    model, runs, setting = load_case({name: (folder / name).read_bytes() for name in names})
    stage("other: ONNX Runtime")
    expected = results_by_onnxruntime(model, runs, {})
    stage("compile")
    run = _executor(model, setting, folder)
    stage("run")
    how = f"C for {setting['target']}" if setting["is_compiled"] else "graph"
    for number, feeds in enumerate(runs):
        try:
            found = run(feeds)
        except AotcError as error:
            if expected is None:
                raise
            raise Found("refused run", how, f"run {number}: {error}") from error
        if expected is not None:
            _compare(how, number, *(_compared_parts(r, model, feeds, setting) for r in (found, expected[number])))
    return "agreed" if expected is not None else "no reference"


def _executor(
    model: ModelProto, setting: Mapping[str, Any], folder: Path
) -> Callable[[Mapping[str, Array]], list[Array]]:
    """A function from the inputs of a run to the outputs: of compiled C, or of the interpreter of graphs."""
    if not setting["is_compiled"]:
        module = from_onnx(model)
        return lambda feeds: _evaluated(module, feeds)
    dims = {name: tuple(bounds) for name, bounds in setting["dims"].items()}
    threads: dict[str, Any] = {"threads": True} if setting["threads"] > 1 and setting["target"] != "c" else {}
    project = aotc.compile(
        folder / "model.onnx", output=folder / "net", target=setting["target"], dims=dims, cflags=["-O0"],
        cache=False, tuning=False, **threads,
    )  # fmt: skip
    session = aotc.load(project.path, threads=setting["threads"] if threads else 1)
    outputs = [o.name for o in model.graph.output]
    return lambda feeds: list(session.run(outputs, feeds))


def _evaluated(module: Any, feeds: Mapping[str, Array]) -> list[Array]:
    with np.errstate(all="ignore"):
        result: Any = evaluate(module, *(feeds[p.name] for p in module.main.params))
    return list(result) if isinstance(result, tuple) else [result]


def _compared_parts(
    results: Sequence[Array], model: ModelProto, feeds: Mapping[str, Array], setting: Mapping[str, Any]
) -> list[Array]:
    """The results, without what lies behind the lengths of sequences; ONNX Runtime masks by the least number, the
    standard by -inf.
    """
    results = [np.maximum(r, np.finfo(np.float32).min) for r in results]
    if setting["has_past"] is None:
        return results
    held = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    parts = []
    for number, last in enumerate(feeds[LENGTHS] if LENGTHS in feeds else held[LENGTHS]):
        tokens = slice(None) if setting["has_past"] else slice(int(last) + 1)
        y, keys, values, *weights = (r[number] for r in results)
        parts += [y[tokens], keys[:, : int(last) + 1], values[:, : int(last) + 1], *(w[:, tokens] for w in weights)]
    return parts


def _compare(how: str, run: int, found: Sequence[Array], expected: Sequence[Array]) -> None:
    for number, (a, b) in enumerate(zip(found, expected, strict=True)):
        if a.dtype != b.dtype or a.shape != b.shape or not np.allclose(a, b, 1e-3, 1e-4, equal_nan=True):
            raise Found("wrong", how, f"part {number} of run {run}:\n{a.dtype} {a.shape}\n{a}\nexpected {b.shape}\n{b}")


def smaller(files: Files) -> Iterator[Files]:
    """An easier setting, or fewer attributes."""
    model, runs, setting = load_case(files)
    settings: list[dict[str, Any]] = [{"threads": 1}, {"target": "c"}]
    for easier in settings + [{"is_compiled": False}] * (not setting["dims"]):
        if {**setting, **easier} != setting:
            yield files_of(model, runs, {**setting, **easier})
    for k in range(len(model.graph.node[0].attribute)):
        made = ModelProto()
        made.CopyFrom(model)
        del made.graph.node[0].attribute[k]
        yield files_of(made, runs, setting)
