# SPDX-License-Identifier: Apache-2.0
"""Relay's entry points to the front ends: a model in, a module and its parameters out.

mod, params = from_onnx("net.onnx", shape={"input": (1, 3, 224, 224)})
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aotc.driver.wiring import install
from aotc.relay.frontend.onnx.convert import from_onnx as convert_onnx
from aotc.relay.module import IRModule

if TYPE_CHECKING:
    from onnx import ModelProto


def from_onnx(
    model: str | Path | ModelProto,
    shape: Mapping[str, Sequence[int]] | None = None,
    *,
    dims: Mapping[str, int] | None = None,
) -> tuple[IRModule, dict[str, Any]]:
    """The module of an ONNX model, and no parameters: initialisers are constants in the module.

    Arguments and errors as in `aotc.relay.frontend.onnx.convert.from_onnx`.
    """
    install()
    return convert_onnx(model, shape=shape, dims=dims), {}
