# SPDX-License-Identifier: Apache-2.0
"""What is supported, from the tables that do the work.

support_table()["onnx"]["ai.onnx"]     # ("Abs", "Acos", ...)
"""

from __future__ import annotations

from typing import Any

from aotc.relay.frontend.onnx import supported_ops
from aotc.relay.op import REGISTRY


def support_table() -> dict[str, Any]:
    """The operators of the graph with their kind of fusion, and the ONNX operators with a converter by domain.

    ONNX operators defined as functions of others need no converter and are not listed.
    """
    operators = [
        {
            "name": op.name,
            "attributes": list(op.attrs.__dataclass_fields__),
            "fusion": op.pattern.name.lower(),
            "compiled": "directly" if op.compute else "where its shape is constant" if op.static else "through others",
        }
        for op in sorted(REGISTRY.values(), key=lambda op: op.name)
    ]
    return {"operators": operators, "onnx": {d or "ai.onnx": list(ops) for d, ops in supported_ops().items()}}
