# SPDX-License-Identifier: Apache-2.0
"""What is supported, from the tables that do the work.

support_table()["onnx"]["ai.onnx"]     # ("Abs", "Acos", ...)
"""

from importlib.util import find_spec
from typing import Any

from aotc.driver.importing import tflite_front_end
from aotc.relay.frontend.onnx import supported_ops
from aotc.relay.op import REGISTRY


def support_table() -> dict[str, Any]:
    """The operators of the graph with their kind of fusion, the ONNX operators with a converter by domain, and
    the builtin ones of TFLite, none where its schema is not installed.

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
    onnx = {d or "ai.onnx": list(ops) for d, ops in supported_ops().items()}
    known = find_spec("tflite") is not None
    tflite = sorted(tflite_front_end().CONVERTERS) if known else []
    return {"operators": operators, "onnx": onnx, "tflite": tflite}
