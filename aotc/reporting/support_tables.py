# SPDX-License-Identifier: Apache-2.0
"""List the supported operators, targets and configuration keys, from the tables that the compiler
uses.

supported_operator_table()["onnx"]["ai.onnx"]  # ["Abs", "Acos", ...]
target_table()["host"]                 # "x86-64-v4"
config_key_table()["keys"][0]["key"]   # "compile.accuracy"
"""

from importlib.util import find_spec
from typing import Any

from aotc.driver.import_model import import_tflite_front_end
from aotc.driver.toolchain import require_cpu_can_run, resolve_target
from aotc.ir import AotcError
from aotc.ir.pass_context import registered_config_keys
from aotc.relay.frontend.onnx import supported_ops
from aotc.relay.op import OPERATORS_BY_NAME
from aotc.tir import PROCESSOR_FEATURES, TARGETS, Target


def supported_operator_table() -> dict[str, Any]:
    """List the graph operators with their fusion kinds, the ONNX operators with a converter by
    domain, and the builtin and custom TFLite operators (none if the package tflite is not installed).

    ONNX operators defined as functions of others need no converter and are not listed.
    """
    operators = [
        {
            "name": op.name,
            "attributes": list(op.attrs.__dataclass_fields__),
            "fusion": op.pattern.name.lower(),
            "compiled": "directly" if op.compute else "where its shape is constant" if op.static else "through others",
        }
        for op in sorted(OPERATORS_BY_NAME.values(), key=lambda op: op.name)
    ]
    onnx = {d or "ai.onnx": list(ops) for d, ops in supported_ops().items()}
    known = find_spec("tflite") is not None
    front_end = import_tflite_front_end() if known else None
    tflite = sorted([*front_end.CONVERTERS, *front_end.CUSTOM_CONVERTERS]) if front_end else []
    return {"operators": operators, "onnx": onnx, "tflite": tflite}


def target_table() -> dict[str, Any]:
    """List the targets: machine, environment, vector width, instruction sets, and whether this
    machine runs their code.
    """
    rows = [
        {
            "name": target.name,
            "machine": target.machine or "any",
            "environment": "gpu" if target.gpu is not None else "bare" if target.bare else "hosted",
            "vector_bits": 8 * max(map(_vector_bytes, target.versions or (target,))),
            "features": sorted({f for version in target.versions or (target,) for f in version.features}),
            "runs_here": _can_this_cpu_run_target(target),
        }
        for target in TARGETS.values()
    ]
    return {"host": resolve_target("host").name, "targets": rows}


def _vector_bytes(target: Target) -> int:
    """Return the bytes of vectors in loops or, where these have none, in micro-kernels."""
    return max(target.vector_bytes, *(PROCESSOR_FEATURES[feature].vector_bytes for feature in target.features), 0)


def _can_this_cpu_run_target(target: Target) -> bool:
    """Return True if this machine's CPU can run code for a target; False for GPU and bare-metal
    targets.
    """
    if target.gpu is not None or target.bare:
        return False
    try:
        require_cpu_can_run(target)
    except AotcError:
        return False
    return True


def config_key_table() -> dict[str, Any]:
    """List the configuration keys of compilations with type, default and meaning."""
    rows = [
        {"key": key, "type": "any" if row.kind is object else row.kind.__name__, "default": row.default}
        | {"meaning": row.meaning}
        for key, row in registered_config_keys().items()
    ]
    return {"keys": rows}
