# SPDX-License-Identifier: Apache-2.0
"""The page for users of Relay: its snippets run, and its names exist."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import aotc
from aotc import relay

PAGE = (Path(__file__).parents[2] / "docs" / "relay-compatibility.md").read_text(encoding="utf-8")


def test_snippets_run(capsys: pytest.CaptureFixture[str]) -> None:
    code = "\n".join(re.findall(r"```python\n(.*?)```", PAGE, re.S))
    exec(compile(code, "relay-compatibility.md", "exec"), {})
    assert capsys.readouterr().out.startswith("(1, 10)\nExecution time summary:\n")


def named() -> Iterator[tuple[str, str]]:
    """(module, name) of the table of names."""
    for modules, names in re.findall(r"^\| (`aotc.*?) \| (.*) \|$", PAGE, re.M):
        for module in re.findall(r"`([\w.]+)`", modules):
            yield from ((module, name) for name in re.findall(r"`([\w.]+)`", names))


@pytest.mark.parametrize(("module", "name"), list(named()))
def test_names_exist(module: str, name: str) -> None:
    value: object = importlib.import_module(module)
    for part in name.split("."):
        value = getattr(value, part)


def test_there_are_names() -> None:
    assert len(list(named())) > 80


def given(module: ModuleType) -> set[str]:
    """Names that a facade re-exports (`from home import name as name`), each of which needs a row in the page.

    Operators, passes and modules have common rows. Of `aotc.ir`, only names that Relay has too have rows.
    """
    path = Path(str(module.__file__))
    stub = path.with_suffix(".pyi")
    tree = ast.parse((stub if stub.exists() else path).read_text(encoding="utf-8"))
    imports = [n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)]
    others = ("aotc.relay.op.", "aotc.relay.transform.", *(["aotc.ir."] if module is aotc.ir else []))
    own = [n for n in imports if not str(n.module).startswith(others)]
    names = {alias.name for n in own for alias in n.names if alias.asname == alias.name}
    return {name for name in names if not isinstance(getattr(module, name), ModuleType)}


OWN = {m: names for m in sorted({m for m, _ in named()}) if (names := given(importlib.import_module(m)))}


@pytest.mark.parametrize("facade", OWN)
def test_no_name_is_left_out(facade: str) -> None:
    assert OWN[facade] <= {name.split(".")[0] for where, name in named() if where == facade}


def test_facades_export_names() -> None:
    assert sum(map(len, OWN.values())) > 60


ABSENT = re.findall(r"`([\w.]+)`", PAGE[PAGE.index("Not there:") : PAGE.index("## Deliberate differences")])


@pytest.mark.parametrize("name", ABSENT)
def test_absent_names_are_absent(name: str) -> None:
    *path, last = name.split(".")
    value: object = aotc
    for part in path:
        value = getattr(value, part)
    assert not hasattr(value, last)


def test_function_pass() -> None:
    @relay.transform.function_pass(opt_level=1, name="Swap")
    def swap(function: relay.Function, module: aotc.IRModule, ctx: aotc.transform.PassContext) -> relay.Function:
        return relay.Function(function.params, relay.exp(function.params[0]))

    x = relay.var("x", shape=(2,))
    result = aotc.transform.Sequential([swap])(aotc.IRModule.from_expr(relay.nn.relu(x)))
    assert relay.analysis.list_op_freqs(result["main"]) == {"exp": 1}
