# SPDX-License-Identifier: Apache-2.0
"""Converts a torch module by both front ends, evaluates or compiles it, and compares it with torch's results."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from aotc import relay
from aotc.relay.interpreter import evaluate
from aotc.relay.module import IRModule

Array = np.ndarray[Any, Any]
NAMES = tuple("xyzwabcdefgh")


class Wrapped(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def as_module(net: Any) -> torch.nn.Module:
    return net.eval() if isinstance(net, torch.nn.Module) else Wrapped(net).eval()


def leaves(value: Any) -> list[Array]:
    """The tensors of a result as arrays."""
    if isinstance(value, torch.Tensor):
        return [value.detach().numpy()]
    return [leaf for item in value for leaf in leaves(item)]


def traced(net: torch.nn.Module, inputs: Sequence[torch.Tensor]) -> tuple[IRModule, dict[str, Any]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        script = torch.jit.trace(net, tuple(x.clone() for x in inputs), check_trace=False)
    infos = [(n, (tuple(x.shape), str(x.dtype).removeprefix("torch."))) for n, x in zip(NAMES, inputs, strict=False)]
    module, params = relay.frontend.from_pytorch(script, infos)
    return module, {name: value.numpy() for name, value in params.items()}


def exported(net: torch.nn.Module, inputs: Sequence[torch.Tensor]) -> IRModule:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return relay.frontend.from_exported_program(torch.export.export(net, tuple(x.clone() for x in inputs)))[0]


def values(module: IRModule, inputs: Sequence[torch.Tensor], params: dict[str, Any]) -> list[Array]:
    with np.errstate(all="ignore"):
        result = evaluate(module, *(x.numpy() for x in inputs), params=params)
    return list(result) if isinstance(result, tuple) else [result]


def compare(found: Sequence[Array], wanted: Sequence[Array], tolerance: float = 1e-5) -> None:
    """Same number, shapes and dtypes; errors relative to the deviation of the output."""
    assert [(f.shape, f.dtype) for f in found] == [(w.shape, w.dtype) for w in wanted]
    for f, w in zip(found, wanted, strict=True):
        if w.dtype.kind != "f":
            np.testing.assert_array_equal(f, w)
            continue
        finite = w[np.isfinite(w)]
        scale = max(float(finite.std()), 1e-2 * float(np.abs(finite).max(initial=0)), 1e-6) if finite.size else 1.0
        np.testing.assert_allclose(f, w, rtol=tolerance, atol=tolerance * scale)


def check(net: Any, *inputs: torch.Tensor, tolerance: float = 1e-5) -> None:
    """Both front ends give what torch gives."""
    module = as_module(net)
    with torch.no_grad():
        wanted = leaves(module(*(x.clone() for x in inputs)))
    relayed, params = traced(module, inputs)
    compare(values(relayed, inputs, params), wanted, tolerance)
    check_exported(net, *inputs, tolerance=tolerance)


def check_exported(net: Any, *inputs: torch.Tensor, tolerance: float = 1e-5) -> None:
    """The front end of exported programs gives what torch gives."""
    module = as_module(net)
    with torch.no_grad():
        wanted = leaves(module(*(x.clone() for x in inputs)))
    compare(values(exported(module, inputs), inputs, {}), wanted, tolerance)
