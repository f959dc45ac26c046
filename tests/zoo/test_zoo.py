# SPDX-License-Identifier: Apache-2.0
"""The check of an architecture tells apart what agrees, differs, is refused, and cannot be built or exported."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.zoo import check as checking
from tests.zoo import libraries
from tests.zoo.__main__ import Result, page, table

torch = pytest.importorskip("torch")


class Module(torch.nn.Module):  # type: ignore[name-defined,misc]
    """A module that computes a function of its input."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> tuple[Any, ...]:
        return (self.function(x),)


def outcome(function: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """Return the outcome for an architecture `test` of timm that computes a function of a vector."""
    built = libraries.Sample(Module(function).eval(), (torch.tensor([1.0, -2.0, 3.0]),))
    monkeypatch.setattr(libraries, "_BUILDERS", {"timm": lambda _: built})
    return checking.check("timm", "test", "torch.export")


def test_outcomes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert outcome(lambda x: x * 2, monkeypatch) == ("agrees", "")
    kind, detail = outcome(lambda x: torch.rand(3) * x, monkeypatch)
    assert kind == "refused" and "node " in detail
    assert outcome(lambda x: x * 2 if x[0] > 0 else x, monkeypatch)[0] == "not exported"
    monkeypatch.setattr(checking, "_exported", lambda *_: (Module(torch.sin), {"x": np.ones(3)}, []))
    assert outcome(lambda x: x, monkeypatch)[0] in ("failed", "refused")


def test_a_library_that_raises_has_not_built_the_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(name: str) -> libraries.Sample:
        raise TypeError(f"{name} takes no such argument\nsecond line")

    monkeypatch.setattr(libraries, "_BUILDERS", {"timm": build})
    assert checking.check("timm", "test", "onnx") == ("not built", "TypeError: test takes no such argument")


def test_differences_are_found() -> None:
    want = [np.array([1.0, np.nan, np.inf])]
    assert not checking._difference([np.array([1.0005, np.nan, np.inf])], want)
    for wrong in ([1.1, np.nan, np.inf], [1.0, 2.0, np.inf], [1.0, np.nan, -np.inf], [1.0, np.nan]):
        assert checking._difference([np.array(wrong)], want)
    assert checking._difference([np.array([1, 2])], [np.array([1, 3])])
    assert checking._difference([], want)


def test_the_page_counts_by_library_and_names_what_is_refused() -> None:
    results = [
        Result("timm", "a", "onnx", "agrees", ""),
        Result("timm", "b", "onnx", "refused", "node x: this | that"),
        Result("timm", "c", "onnx", "not built", "too large"),
        Result("timm", "d", "onnx", "not exported", "error in <class 'x'>"),
    ]
    assert "| timm | onnx | 4 | 3 | 2 | 1 | 1 | 0 |" in table(results)
    text = page(results)
    assert "1 of 2 exported models agree (50.0 %)." in text
    assert "| timm | d | onnx | not exported | error in &lt;class 'x'&gt; |" in text
    assert "| timm | b | onnx | refused | node x: this / that |" in text and "- timm: a\n" in text
