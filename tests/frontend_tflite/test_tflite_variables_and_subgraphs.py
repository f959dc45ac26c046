# SPDX-License-Identifier: Apache-2.0
"""Resource variables, branches and loops of TFLite models: several runs as in LiteRT and TFLite Micro,
and models that contradict themselves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tflite")

import aotc
from aotc.checking.verify import verify
from aotc.ir import AotcError, flatten_nested_tuple
from aotc.ir.compilation_work_and_memory_limits import running_or_new_budget_scope
from aotc.relay.frontend.tflite import from_tflite, import_tflite
from aotc.relay.graph_api import If, evaluate, post_order
from tests.frontend_tflite.model_builder import Builder, litert_runs, tflm_interpreter


def constant(model: Builder, *values: int) -> int:
    return model.tensor((len(values),), "int32", np.array(values))


def initialized(model: Builder, contents: dict[str, Any], dtype: str = "float32", scale: Any = None) -> None:
    """CALL_ONCE of a subgraph that assigns first contents to variables."""
    with model.subgraph() as index:
        for name, array in contents.items():
            value = model.tensor(array.shape, dtype, array, scale=scale)
            model.op("ASSIGN_VARIABLE", [model.variable(name), value], [])
        model.ends([], [])
    model.op("CALL_ONCE", [], [], "CallOnceOptions", initSubgraphIndex=index)


def read(model: Builder, variable: int, shape: tuple[int, ...], dtype: str = "float32", scale: Any = None) -> int:
    made = model.tensor(shape, dtype, scale=scale)
    model.op("READ_VARIABLE", [variable], [made])
    return made


def streaming(scale: float | None = 0.05) -> bytes:
    """A window of four frames of which each run adds one, and a product with its newest frames."""
    model, rng = Builder(), np.random.default_rng(3)
    dtype = "int8" if scale else "float32"
    x = model.tensor((1, 1, 6), dtype, scale=scale, name="frame")
    initialized(model, {"window": rng.integers(-9, 9, (1, 3, 6)), "unused": np.ones(2)}, dtype, scale)
    window = model.variable("window")
    old = read(model, window, (1, 3, 6), dtype, scale)
    both, new, y = (model.tensor(s, dtype, scale=scale) for s in ((1, 4, 6), (1, 3, 6), (1, 3, 6)))
    model.op("CONCATENATION", [old, x], [both], "ConcatenationOptions", axis=1)
    model.op("SLICE", [both, constant(model, 0, 1, 0), constant(model, 1, 3, 6)], [new])
    model.op("ASSIGN_VARIABLE", [window, new], [])
    again = read(model, window, (1, 3, 6), dtype, scale)
    model.op("MUL", [again, old], [y], "MulOptions")
    return model.data([x], [y])


def frames(shape: tuple[int, ...], dtype: str, count: int = 5) -> list[list[Any]]:
    rng = np.random.default_rng(4)
    return [[rng.integers(-99, 99, shape).astype(dtype)] for _ in range(count)]


def compiled_runs(data: bytes, runs: list[list[Any]], path: Path, rounding: str = "litert") -> list[list[Any]]:
    path.write_bytes(data)
    session = aotc.compile(path, rounding=rounding, cflags=("-O0",)).session()
    names = [i.name for i in session.get_inputs()]
    state = session.new_state_or_none()
    return [session.run(None, dict(zip(names, inputs, strict=True)), state=state) for inputs in runs]


@pytest.mark.parametrize("rounding", ["litert", "tflm"])
def test_variables_are_state(rounding: str, tmp_path: Path) -> None:
    """Integers are those of both interpreters in each of several runs; a variable that no run changes is a
    constant, and its unused contents are left out."""
    data, runs = streaming(), frames((1, 1, 6), "int8")
    actual = compiled_runs(data, runs, tmp_path / "net.tflite", rounding)
    if rounding == "litert":
        expected = litert_runs(data, runs)
    else:
        interpreter, expected = tflm_interpreter(data), []
        for (x,) in runs:
            interpreter.set_input(x, 0)
            interpreter.invoke()
            expected.append([interpreter.get_output(0)])
    np.testing.assert_array_equal(actual, expected)
    _, (pair,) = import_tflite(data)
    assert (pair.past, pair.present) == ("window", "window_out")


def test_verify_runs_the_variables_of_the_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "net.tflite"
    path.write_bytes(streaming(None))
    report = verify(path, rounding="litert", cflags=("-O0",), seeds=1)
    assert report.ok and len(report.cases) >= 4

    def with_other_contents(*args: Any, **kwargs: Any) -> Any:
        module, (pair,) = import_tflite(*args, **kwargs)
        return module, (type(pair)(pair.past, pair.present, None),)

    monkeypatch.setattr("aotc.relay.frontend.tflite.import_tflite", with_other_contents)
    assert not verify(path, rounding="litert", cflags=("-O0",), seeds=1).ok


def compute(model: Builder, name: str, *inputs: int, shape: tuple[int, ...] = (4,), dtype: str = "float32") -> int:
    made = model.tensor(shape, dtype)
    model.op(name, inputs, [made], f"{name.title()}Options" if name in ("ADD", "MUL", "SUB") else "")
    return made


def branching() -> bytes:
    """A branch that assigns a variable, and one that does not."""
    model = Builder()
    x, limit = model.tensor((4,)), model.tensor((1,), name="limit")
    initialized(model, {"sum": np.array([1, 2, 3, 4.0])})
    total, y = model.variable("sum"), model.tensor((4,))
    first = model.tensor((1,))
    model.op("SLICE", [x, constant(model, 0), constant(model, 1)], [first])
    condition = compute(model, "LESS", first, limit, shape=(1,), dtype="bool")
    with model.subgraph() as add:
        a = model.tensor((4,))
        handle = model.variable("sum")
        model.op("ASSIGN_VARIABLE", [handle, compute(model, "ADD", read(model, handle, (4,)), a)], [])
        model.ends([a], [compute(model, "MUL", a, a)])
    with model.subgraph() as negate:
        a = model.tensor((4,))
        model.ends([a], [compute(model, "NEG", a)])
    model.op("IF", [condition, x], [y], "IfOptions", thenSubgraphIndex=add, elseSubgraphIndex=negate)
    return model.data([x, limit], [y, read(model, total, (4,))])


def looping(trips: int | None, in_rows: bool = False) -> bytes:
    """A loop that adds a variable to a value and doubles the variable; `in_rows` it selects a part at the
    number of the iteration, which must then be known when the model is compiled."""
    model = Builder()
    x = model.tensor((4,))
    count = model.tensor((1,), "int32") if trips is None else constant(model, trips)
    initialized(model, {"step": np.array([0.25, 0.5, 0.75, 1])})
    scale = model.tensor((), data=1.5)
    with model.subgraph() as condition:
        i, n, _, _ = ends = [model.tensor((1,), "int32") for _ in range(2)] + [model.tensor((4,)), model.tensor(())]
        model.ends(ends, [compute(model, "LESS", i, n, shape=(1,), dtype="bool")])
    with model.subgraph() as body:
        i, n, a, c = ends = [model.tensor((1,), "int32") for _ in range(2)] + [model.tensor((4,)), model.tensor(())]
        handle = model.variable("step")
        step = read(model, handle, (4,))
        if in_rows:
            part = model.tensor((1,))
            model.op("SLICE", [step, i, constant(model, 1)], [part])
            step = compute(model, "ADD", step, part)
        model.op("ASSIGN_VARIABLE", [handle, compute(model, "MUL", step, c)], [])
        later = compute(model, "ADD", i, constant(model, 1), shape=(1,), dtype="int32")
        model.ends(ends, [later, n, compute(model, "ADD", a, step), c])
    outs = [model.tensor((1,), "int32") for _ in range(2)] + [model.tensor((4,)), model.tensor(())]
    inputs = [constant(model, 0), count, x, scale]
    model.op("WHILE", inputs, outs, "WhileOptions", condSubgraphIndex=condition, bodySubgraphIndex=body)
    return model.data([x] if trips is not None else [x, count], outs[2:3])


def test_a_branch_may_assign_variables(tmp_path: Path) -> None:
    data = branching()
    assert any(isinstance(node, If) for node in post_order(from_tflite(data).main.body))
    runs = [[x.astype(np.float32), np.float32([0])] for ((x,), _) in zip(frames((4,), "int32"), range(5), strict=True)]
    assert len({bool(x[0] < 0) for x, _ in runs}) == 2
    actual = compiled_runs(data, runs, tmp_path / "net.tflite")
    for a, e in zip(actual, litert_runs(data, runs), strict=True):
        np.testing.assert_array_equal(a, e)


def test_both_branches_may_assign_one_value(tmp_path: Path) -> None:
    """An input of the branches that each of them assigns replaces the contents."""
    model = Builder()
    x, condition, y = model.tensor((4,)), model.tensor((1,), "bool"), model.tensor((4,))
    initialized(model, {"last": np.array([7, 7, 7, 7.0])})
    old = read(model, model.variable("last"), (4,))
    branches = []
    for operator in ("NEG", "ABS"):
        with model.subgraph() as index:
            a = model.tensor((4,))
            model.op("ASSIGN_VARIABLE", [model.variable("last"), a], [])
            model.ends([a], [compute(model, operator, a)])
        branches.append(index)
    model.op("IF", [condition, x], [y], "IfOptions", thenSubgraphIndex=branches[0], elseSubgraphIndex=branches[1])
    data = model.data([x, condition], [y, old, read(model, model.variable("last"), (4,))])
    runs = [[x.astype(np.float32), np.array([k % 2 == 0])] for k, (x,) in enumerate(frames((4,), "int32", 3))]
    actual = compiled_runs(data, runs, tmp_path / "net.tflite")
    for a, e in zip(actual, litert_runs(data, runs), strict=True):
        np.testing.assert_array_equal(a, e)


def test_a_loop_that_is_unrolled_is_bounded() -> None:
    with running_or_new_budget_scope({"compile.max_unroll": 8}), pytest.raises(AotcError, match='max_unroll": 9'):
        from_tflite(looping(20), has_loops=False)


@pytest.mark.parametrize(
    ("trips", "in_rows", "functions"), [(None, False, 1), (20, False, 1), (3, False, 0), (0, False, 0), (4, True, 0)]
)
def test_loops(trips: int | None, in_rows: bool, functions: int, tmp_path: Path) -> None:
    """A loop of few iterations is unrolled, and one whose body needs the number of the iteration."""
    data = looping(trips, in_rows)
    module = from_tflite(data)
    assert len(module.functions) == 1 + functions
    if functions:
        assert len(from_tflite(data, has_loops=False).functions) == (1 if trips else 2)
    runs = [[x.astype(np.float32)] for (x,) in frames((4,), "int32", 3)]
    if trips is None:
        runs = [[x, np.int32([n])] for (x,), n in zip(runs, (5, 0, 1), strict=True)]
        actual: Any = compiled_runs(data, runs, tmp_path / "net.tflite")
    else:
        actual, step = [], np.float32([0.25, 0.5, 0.75, 1])
        for (x,) in runs:
            inputs = {p.name: v for p, v in zip(module.main.params, [x, step], strict=False)}
            y, *changed = map(np.asarray, flatten_nested_tuple(evaluate(module, params=inputs)))
            step = changed[0] if changed else step
            actual.append([y])
    for a, e in zip(actual, litert_runs(data, runs), strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-6)


# --- models that contradict themselves


def _unset(model: Builder, x: int) -> int:
    return read(model, model.variable("v"), (4,))


def _other_type(model: Builder, x: int) -> int:
    initialized(model, {"v": np.zeros(3)})
    handle = model.variable("v")
    model.op("ASSIGN_VARIABLE", [handle, x], [])
    return read(model, handle, (4,))


def _late(model: Builder, x: int) -> int:
    handle = model.variable("v")
    model.op("ASSIGN_VARIABLE", [handle, x], [])
    initialized(model, {"v": np.zeros(4)})
    return read(model, handle, (4,))


def _no_resource(model: Builder, x: int) -> int:
    return read(model, constant(model, 0), (4,))


def _run(condition: int | None, body: Callable[[Builder], None], cond: Callable[[Builder], None] | None = None) -> Any:
    """A loop of the subgraph that `body` fills, or of the subgraph with the number `condition`."""

    def build(model: Builder, x: int) -> int:
        with model.subgraph() as inner:
            body(model)
        with model.subgraph() as test:
            if cond is None:
                model.ends([model.tensor((4,))], [model.tensor((1,), "bool", [True])])
            else:
                cond(model)
        y = model.tensor((4,))
        number = test if condition is None else condition
        model.op("WHILE", [x], [y], "WhileOptions", condSubgraphIndex=number, bodySubgraphIndex=inner)
        return y

    return build


def _recursive(model: Builder) -> None:
    a, b = model.tensor((4,)), model.tensor((4,))
    model.op("WHILE", [a], [b], "WhileOptions", condSubgraphIndex=2, bodySubgraphIndex=1)
    model.ends([a], [b])


def _two_outputs(model: Builder) -> None:
    a = model.tensor((4,))
    model.ends([a], [a, a])


def _negated(model: Builder) -> None:
    a = model.tensor((4,))
    model.ends([a], [compute(model, "NEG", a)])


def _condition_of_two(model: Builder) -> None:
    a = model.tensor((4,))
    model.ends([a], [compute(model, "LESS", a, a, dtype="bool")])


def _kept_tensor(model: Builder) -> None:
    a = model.tensor((4,))
    model.ends([a], [compute(model, "ADD", a, model.tensor((4,), variable=True))])


def _unknown_contents(model: Builder, x: int) -> int:
    with model.subgraph() as index:
        model.ends([], [])
        big = model.tensor((600, 600), data=np.zeros((600, 600)))
        y = compute(model, "NEG", big, shape=(600, 600))
        model.op("ASSIGN_VARIABLE", [model.variable("v"), y], [])
    model.op("CALL_ONCE", [], [], "CallOnceOptions", initSubgraphIndex=index)
    return x


CONTRADICTIONS: dict[str, tuple[str, Any]] = {
    "'v' is read before a value is assigned": ("READ_VARIABLE#1 t2", _unset),
    r"'v' holds Tensor\[\(3\), float32\], but Tensor\[\(4\), float32\] is assigned": ("ASSIGN_VARIABLE#2", _other_type),
    "'v' is initialized after its first use": ("CALL_ONCE#2", _late),
    "READ_VARIABLE needs a resource variable": ("READ_VARIABLE#0 t2", _no_resource),
    "subgraph 9 does not exist, the model has 3": ("WHILE#0 t1", _run(9, _negated)),
    "subgraph 0 runs itself": ("WHILE#0 t1", _run(0, _negated)),
    "subgraph 1 runs itself: 0 runs 1 runs 1": ("subgraph 1: WHILE#0 t1", _run(None, _recursive)),
    "the body of WHILE, has 2 outputs for 1 values": ("WHILE#0 t1", _run(None, _two_outputs)),
    "the condition of WHILE, must compute one bool": ("WHILE#0 t1", _run(None, _negated, _condition_of_two)),
    "keeps its value between runs of subgraph 1": ("subgraph 1: ADD#0 t2", _run(None, _kept_tensor)),
    "the first contents of resource variable 'v' are not constant": ("CALL_ONCE#0", _unknown_contents),
}


@pytest.mark.parametrize("text", CONTRADICTIONS)
def test_contradictions_are_refused(text: str) -> None:
    """In one diagnostic at the operator."""
    node, build = CONTRADICTIONS[text]
    model = Builder()
    x = model.tensor((4,))
    y = build(model, x)
    with pytest.raises(AotcError, match=text) as caught:
        from_tflite(model.data([x], [y]))
    (found,) = caught.value.diagnostics
    assert found.span is not None and found.span.node == node
    assert found.code in ("tflite-variable", "tflite-subgraph")


def test_a_part_that_reads_variables_is_refused() -> None:
    data = streaming()
    with pytest.raises(AotcError, match="a part of a model that reads resource variables") as caught:
        from_tflite(data, cut_after=["t3"])
    assert caught.value.code == "cut"
    assert len(from_tflite(data, cut_before=["t2"], cut_after=["t3"]).main.params) == 2


# --- signatures


def with_signatures() -> bytes:
    """Return a model of two functions: one adds its input to a variable, the other divides one input by another."""
    model = Builder()
    x, y = model.tensor((4,), name="serving_x"), model.tensor((4,), name="result")
    initialized(model, {"sum": np.array([1, 2, 3, 4.0])})
    handle = model.variable("sum")
    model.op("ADD", [x, read(model, handle, (4,))], [y], "AddOptions")
    model.op("ASSIGN_VARIABLE", [handle, y], [])
    with model.subgraph() as index:
        a, b, c = (model.tensor((4,)) for _ in range(3))
        model.op("DIV", [b, a], [c], "DivOptions")
        model.ends([b, a], [c])
    model.signature("divide", index, {"divisor": a, "dividend": b}, {"quotient": c})
    model.signature("add", 0, {"x": x}, {"y": y})
    model.signature("damaged", index, {"divisor": a, "dividend": a}, {"quotient": c})
    model.signature("absent", 9, {}, {"quotient": c})
    return model.data([x], [y])


def test_signatures(tmp_path: Path) -> None:
    """Inputs and outputs have the names and the order of the signature."""
    path = tmp_path / "net.tflite"
    path.write_bytes(with_signatures())
    module = from_tflite(path, signature="divide")
    assert [p.name for p in module.main.params] == ["divisor", "dividend"]
    assert module.attrs["output_names"] == ("quotient",)
    for key in ("divide", "add"):
        report = verify(path, signature=key, cflags=("-O0",), seeds=1)
        assert report.ok and report.reference == "ai-edge-litert"
        assert len(report.cases) >= (4 if key == "add" else 1)


def test_variables_that_another_signature_assigns_are_named(caplog: pytest.LogCaptureFixture) -> None:
    """Each signature is compiled alone: one that only reads a variable always reads its first contents."""
    model = Builder()
    x, y = model.tensor((4,)), model.tensor((4,))
    initialized(model, {"sum": np.array([1, 2, 3, 4.0]), "factor": np.ones(4)})
    model.op("ADD", [x, read(model, model.variable("sum"), (4,))], [y], "AddOptions")
    model.op("MUL", [y, read(model, model.variable("factor"), (4,))], [z := model.tensor((4,))], "MulOptions")
    with model.subgraph() as index:
        a = model.tensor((4,))
        model.op("ASSIGN_VARIABLE", [model.variable("sum"), a], [])
        model.ends([a], [a])
    model.signature("add", 0, {"x": x}, {"y": z})
    model.signature("set", index, {"a": a}, {"same": a})
    data = model.data([x], [z])
    for key, expected in (("add", ["'sum', which the signature 'set' assigns"]), ("set", [])):
        caplog.clear()
        from_tflite(data, signature=key)
        assert len(caplog.messages) == len(expected)
        assert all(text in message for text, message in zip(expected, caplog.messages, strict=True))


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("ad", "the model has no signature 'ad'"),
        ("damaged", "the tensors of signature 'damaged' are not the inputs and outputs of subgraph 2"),
        ("absent", "subgraph 9 does not exist, the model has 3"),
    ],
)
def test_damaged_signatures_are_refused(key: str, text: str) -> None:
    with pytest.raises(AotcError, match=text):
        from_tflite(with_signatures(), signature=key)


def test_signatures_of_other_models_and_cuts_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "net.tflite"
    path.write_bytes(with_signatures())
    with pytest.raises(AotcError, match="only TFLite models have signatures"):
        aotc.compile(from_tflite(path), signature="add")
    with pytest.raises(AotcError, match="a signature cannot be cut at tensors"):
        aotc.compile(path, signature="add", cut_after=["result"])
    with pytest.raises(AotcError, match="tflite-micro cannot run a signature"):
        verify(path, signature="add", rounding="tflm", cflags=("-O0",), seeds=1)
