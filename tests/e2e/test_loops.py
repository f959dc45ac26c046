# SPDX-License-Identifier: Apache-2.0
"""Functions that are recursive in their results, compiled to loops, against the interpreter of graphs."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aotc
from aotc import relay
from aotc.ir.diagnostics import AotcError
from aotc.measuring.profile import profile_library
from aotc.relay.module import IRModule
from tests.e2e.control_flow import compiled, interpreter_of

#: Modules, and the values of the inputs that decide.
MODULES: dict[str, tuple[str, list[Mapping[str, Any]]]] = {
    "repeated_layer": (
        """
def @steps(%n: int32, %x: Tensor[(2, 3), float32], %w: Tensor[(3, 3), float32]) -> Tensor[(2, 3), float32] {
  if (%n < 1) { %x } else { @steps(%n - 1, tanh(nn.dense(%x, %w, units=3)), %w) }
}
def @main(%k: int32, %x: Tensor[(2, 3), float32], %w: Tensor[(3, 3), float32]) {
  (exp(@steps(%k, negative(%x), %w)), %x)
}""",
        [{"k": k} for k in (0, 1, 2, 7)],
    ),
    "values_that_change_places": (
        """
def @turn(%n: int32, %a: Tensor[(4), float32], %b: Tensor[(4), float32], %c: Tensor[(2, 2), float32])
    -> (Tensor[(4), float32], Tensor[(2, 2), float32]) {
  if (%n < 1) { (%a + %b, %c) } else { @turn(%n - 1, %b, reshape(%c, newshape=[4]), reshape(%a, newshape=[2, 2])) }
}
def @main(%k: int32, %x: Tensor[(4), float32], %y: Tensor[(4), float32]) {
  @turn(%k, %x, %y, reshape(exp(%x), newshape=[2, 2]))
}""",
        [{"k": k} for k in range(5)],
    ),
    "several_ends_and_choices": (
        """
def @search(%n: int32, %x: Tensor[(6), float32]) -> Tensor[(6), float32] {
  let %total = sum(abs(%x));
  if (%total > 20f) { negative(%x) } else {
    if (%n < 1) { %x } else {
      let %next = if (%total < 3f) { %x * 2f } else { %x + 1f };
      if (%total < 1f) { @search(%n - 2, %next) } else { @search(%n - 1, %next + 0.5f) }
    }
  }
}
def @main(%k: int32, %x: Tensor[(6), float32]) { @search(%k, %x) + @search(1, %x) }""",
        [{"k": k} for k in (0, 2, 5, 30)],
    ),
    "loop_in_loop": (
        """
def @inner(%n: int32, %x: Tensor[(5), float32], %y: Tensor[(5), float32]) -> Tensor[(5), float32] {
  if (%n < 1) { %x } else { @inner(%n - 1, sin(%x) + %y, %y) }
}
def @outer(%n: int32, %m: int32, %x: Tensor[(5), float32], %s: Tensor[(5), float32]) -> Tensor[(5), float32] {
  if (%n < 1) { %s } else { @outer(%n - 1, %m, %x, %s * 0.5f + @inner(%m + %n, %s, %x)) }
}
def @main(%k: int32, %m: int32, %x: Tensor[(5), float32]) { cos(@outer(%k, %m, %x, exp(%x))) + %x }""",
        [{"k": k, "m": m} for k, m in itertools.product((0, 1, 3), (0, 2))],
    ),
}  # fmt: skip


def module_of(text: str) -> IRModule:
    return relay.fromtext(f'#[version = "0.0.5"]\n{text}')


def arguments(module: IRModule, decisions: Mapping[str, Any]) -> dict[str, Any]:
    rng = np.random.default_rng(5)
    return {
        p.name: np.array(decisions[p.name], np.int32)
        if p.name in decisions
        else rng.uniform(-1, 1, p.checked_type.static_shape).astype(np.float32)
        for p in module["main"].params
    }


def flat(value: Any) -> list[Any]:
    return [np.asarray(v) for v in value] if isinstance(value, (tuple, list)) else [np.asarray(value)]


@pytest.mark.parametrize("name", MODULES)
def test_modules(name: str, tmp_path: Path) -> None:
    text, cases = MODULES[name]
    module = module_of(text)
    meaning = relay.create_executor("debug", module).evaluate()
    interpreter, session = interpreter_of(module), compiled(module, tmp_path).session()
    for decisions in cases:
        feeds = arguments(module, decisions)
        expected = flat(meaning(*feeds.values()))
        for found in (session.run(None, feeds), list(interpreter(feeds).values())):
            for a, b in zip(found, expected, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5, err_msg=str(decisions))


TEAM = """
def @steps(%n: int32, %x: Tensor[(128, 128), float32], %w: Tensor[(128, 128), float32])
    -> Tensor[(128, 128), float32] {
  if (%n < 1) { %x } else { @steps(%n - 1, tanh(nn.dense(%x, %w, units=128)), %w) }
}
def @main(%k: int32, %x: Tensor[(128, 128), float32], %w: Tensor[(128, 128), float32]) { @steps(%k, %x, %w) }"""


def test_teams_of_threads(tmp_path: Path) -> None:
    module = module_of(TEAM)
    project = compiled(module, tmp_path, target="x86-64-v3", threads=True, cflags=[])
    session, meaning = aotc.load(project.built, threads=2), relay.create_executor("debug", module).evaluate()
    assert "const int is_true_0" in (tmp_path / "src" / "net.c").read_text()
    for k in (0, 1, 4):
        feeds = arguments(module, {"k": k})
        np.testing.assert_allclose(session.run(None, feeds)[0], meaning(*feeds.values()).numpy(), rtol=1e-3, atol=1e-3)


def test_a_profile_adds_the_times_of_iterations(tmp_path: Path) -> None:
    module = module_of(MODULES["repeated_layer"][0])
    project = compiled(module, tmp_path)
    costs = []
    for k in (0, 5000):
        np.savez(tmp_path / "feeds.npz", **arguments(module, {"k": k}))
        rows = profile_library(project.built, inputs=tmp_path / "feeds.npz", repeat=2)["steps"]
        costs.append({row["kernel"]: (row["calls"], row["milliseconds"]) for row in rows})
    calls, milliseconds = costs[1]["net_dense"]
    assert "net_dense" not in costs[0] and calls == 5000 and milliseconds > 1e-2


def test_recursion_that_is_no_loop_is_refused() -> None:
    text = """
def @sum_to(%n: int32) -> int32 { if (%n < 1) { 0 } else { %n + @sum_to(%n - 1) } }
def @main(%k: int32) { @sum_to(%k) }"""
    with pytest.raises(AotcError, match="@sum_to, a function that calls itself or is a value, cannot be compiled"):
        aotc.compile(module_of(text), build=False)
