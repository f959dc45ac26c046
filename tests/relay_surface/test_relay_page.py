# SPDX-License-Identifier: Apache-2.0
"""The page for users of Relay: its snippets run, and its names exist."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path

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


def test_function_pass() -> None:
    @relay.transform.function_pass(opt_level=1, name="Swap")
    def swap(function: relay.Function, module: aotc.IRModule, ctx: aotc.transform.PassContext) -> relay.Function:
        return relay.Function(function.params, relay.exp(function.params[0]))

    x = relay.var("x", shape=(2,))
    result = aotc.transform.Sequential([swap])(aotc.IRModule.from_expr(relay.nn.relu(x)))
    assert relay.analysis.list_op_freqs(result["main"]) == {"exp": 1}
