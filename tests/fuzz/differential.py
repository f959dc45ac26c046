# SPDX-License-Identifier: Apache-2.0
"""Runs random graphs by every kind of execution, and finds the first wrong operator if two results differ."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from aotc.checking.output_comparison import Array
from aotc.driver.import_model import read_relay_text
from aotc.ir.diagnostics import AotcError
from aotc.ir.types import TensorType
from aotc.relay.analysis import free_vars
from aotc.relay.expr import Call, Expr, Function, Tuple, TupleGetItem, Var
from aotc.relay.module import IRModule
from aotc.relay.op.opdef import OpDef
from aotc.relay.visitor import Mutator, post_order
from tests.fuzz.case import Files, Found, Stage
from tests.fuzz.execute import Setting, compiled, interpreted, run_compiled, run_sanitized
from tests.fuzz.graphs import files_of
from tests.fuzz.rounding_bounds import Expected, outputs_of

Run = Callable[[IRModule], "list[Array] | None"]


def load_case(folder: Path) -> tuple[IRModule, dict[str, Array], Setting]:
    """The module, its inputs and the setting in the files of a case."""
    module = read_relay_text(folder / "model.relay")
    with np.load(folder / "inputs.npz") as file:
        inputs = {name: file[name] for name in file.files}
    inputs = {p.name: _of_type(inputs[p.name], p) for p in module.main.params}
    return module, inputs, setting_of(folder)


def setting_of(folder: Path) -> Setting:
    """How a case is compiled."""
    return Setting(**json.loads((folder / "setting.json").read_text(encoding="utf-8")))


def _of_type(array: Array, param: Var) -> Array:
    """With the types that numpy's files do not know."""
    ty = param.checked_type
    assert isinstance(ty, TensorType)
    return array if array.dtype == ty.dtype.numpy else array.view(ty.dtype.numpy)


def check(folder: Path, stage: Stage) -> str:
    """Every execution gives what the definition says; otherwise Found."""
    stage("read")
    module, inputs, setting = load_case(folder)
    stage("definition")
    expected = Expected.of(module, inputs)
    check_executions(folder, module, inputs, expected, setting, stage)
    return "agreed"


def check_executions(
    folder: Path, module: IRModule, inputs: Mapping[str, Array], expected: Expected, setting: Setting, stage: Stage
) -> None:
    """The tensor programs and the compiled C of a module give what is expected; otherwise Found."""
    stage("interpreter")

    def interpret(m: IRModule) -> list[Array] | None:
        return interpreted(m, inputs, setting)

    _judge("interpreter", module, inputs, expected, interpret)
    stage("compile")
    project = folder / "net"
    model = compiled(module, project, setting)
    stage("run")

    def run(m: IRModule) -> list[Array]:
        made = model if m is module else compiled(m, folder / "again", setting)
        return run_compiled(made, inputs, 1)

    alone = run(module)
    _judge(f"C for {setting.target}", module, inputs, expected, run, alone)
    if setting.threads > 1:
        shared = run_compiled(model, inputs, setting.threads)
        if [a.tobytes() for a in shared] != [a.tobytes() for a in alone]:
            raise Found("wrong", f"{setting.threads} threads", "threads change the result")
    if setting.sanitized and module.main.params:
        stage("sanitize")
        found, report = run_sanitized(model, inputs, setting.target)
        if report:
            where = next((line for line in report.splitlines() if "runtime error" in line or "ERROR:" in line), "death")
            raise Found("sanitizer", where.partition("error:")[2][:60] or where[:60], report)
        problems = expected.problems(found)
        if problems:
            raise Found("wrong", f"sanitized C for {setting.target}", problems)


def _judge(
    how: str,
    module: IRModule,
    inputs: Mapping[str, Array],
    expected: Expected,
    run: Run,
    found: list[Array] | None = None,
) -> None:
    found = run(module) if found is None else found
    problems = expected.problems(found) if found is not None else ""
    if problems:
        raise Found("wrong", f"{how}: {_suspect(module, inputs, expected, run)}", problems)


def _suspect(module: IRModule, inputs: Mapping[str, Array], expected: Expected, run: Run) -> str:
    """The first operator whose result is wrong when every result is an output; else those before the wrong output."""
    calls = [n for n in post_order(module.main.body) if isinstance(n, Call) and isinstance(n.checked_type, TensorType)]
    calls = [c for c in calls if c.checked_type.is_static]  # type: ignore[union-attr]
    every = IRModule({"main": Function(module.main.params, Tuple(calls))})
    try:
        found = run(every)
        wrong = Expected.of(every, inputs).wrong(found) if found is not None else []
    except Exception:  # a search for a name must not hide the fault
        wrong = []
    if wrong:
        return _name(calls[wrong[0]])
    return "fusion of " + " ".join(sorted({_name(c) for c in calls})[:4])


def _name(node: Call) -> str:
    return node.op.name if isinstance(node.op, OpDef) else "function"


# --- simpler graphs


class _Cut(Mutator):
    """A node as a variable."""

    def __init__(self, node: Expr, var: Var) -> None:
        super().__init__()
        self.node, self.var = node, var

    def rewrite_rebuilt_node(self, old: Expr, new: Expr) -> Expr:
        return self.var if old is self.node else super().rewrite_rebuilt_node(old, new)


def smaller(files: Files, folder: Path) -> Iterator[Files]:
    """One output, an earlier node as the output, a node as an input; an easier setting."""
    from tests.fuzz.case import write

    write(files, folder)
    try:
        module, inputs, setting = load_case(folder)
    except AotcError:
        return
    for made, more in _graphs(module, inputs):
        yield files_of(made, more, setting)
    for easier in (
        replace(setting, sanitized=False),
        replace(setting, threads=1),
        replace(setting, target="c"),
        replace(setting, opt_level=max(0, setting.opt_level - 1)),
    ):
        if easier != setting:
            yield files_of(module, inputs, easier)


def _graphs(module: IRModule, inputs: dict[str, Array]) -> Iterator[tuple[IRModule, dict[str, Array]]]:
    body = module.main.body
    fields = list(body.fields) if isinstance(body, Tuple) else [body]
    if len(fields) > 1:
        half = len(fields) // 2
        for part in (fields[:half], fields[half:], *([f] for f in fields)):
            yield _module(part, inputs)
        return
    nodes = [
        n for n in post_order(body) if isinstance(n, (Call, TupleGetItem)) and isinstance(n.checked_type, TensorType)
    ]
    for node in nodes[:-1]:
        yield _module([node], inputs)
    values = outputs_of(IRModule({"main": Function(module.main.params, Tuple(nodes))}), inputs)
    for node, value in reversed([*zip(nodes[:-1], values[:-1], strict=True)]):
        if node is fields[0]:
            continue
        var = Var(f"c{len(inputs)}", node.checked_type)
        cut = _Cut(node, var).visit(fields[0])
        yield _module([cut], {**inputs, var.name: value})


def _module(fields: list[Expr], inputs: dict[str, Array]) -> tuple[IRModule, dict[str, Array]]:
    body = Tuple(fields)
    params = free_vars(body)
    return IRModule({"main": Function(params, body)}), {p.name: inputs[p.name] for p in params}
