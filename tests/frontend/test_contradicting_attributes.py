# SPDX-License-Identifier: Apache-2.0
"""Attributes that contradict a shape give one error with both numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, helper

from aotc.ir import AotcError
from aotc.relay.frontend.onnx import from_onnx
from tests.frontend.evaluation import model_of

Shape = Sequence[int]
F, U8, I8, I32 = np.float32, np.uint8, np.int8, np.int32
ONE = np.ones((), F)
ZERO = np.zeros((), U8)
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def ones(*shape: int, dtype: Any = F) -> Any:
    return np.ones(shape, dtype)


def recurrent(kind: str, directions: int, hidden: int) -> list[Any]:
    """Weights and bias of a layer of 4 inputs."""
    rows = GATES[kind] * hidden
    return [ones(directions, rows, 4), ones(directions, rows, hidden), ones(directions, 2 * rows)]


def nbits(rows: int, blocks: int, size: int) -> list[Any]:
    return [ones(rows, blocks, size // 2, dtype=U8), ones(rows * blocks)]


def quantized_layer(hidden: int) -> list[Any]:
    w, r = ones(1, 4, 4 * hidden, dtype=U8), ones(1, hidden, 4 * hidden, dtype=U8)
    numbers = [ones(1), np.zeros(1, U8), ones(1), np.zeros(1, U8)]
    return [w, r, ones(1, 8 * hidden), None, None, None, None, *numbers]


#: Operators that opset 21 does not have.
NEWEST = ("Attention", "RotaryEmbedding")
#: Operator, shape of the data, further inputs, attributes that fit, and those that contradict them one by one.
Case = tuple[str, Shape, Sequence[Any], Mapping[str, Any], Mapping[str, Sequence[Any]]]
CASES: list[Case] = [
    *(
        (kind, (2, 3, 4), recurrent(kind, 1, 2), {"hidden_size": 2, "direction": "reverse"},
         {"hidden_size": (3, 2**31, 0, -1), "direction": ("bidirectional",)})
        for kind in GATES
    ),
    ("LSTM", (2, 3, 4), recurrent("LSTM", 2, 2), {"hidden_size": 2, "direction": "bidirectional"},
     {"hidden_size": (1,), "direction": ("forward", "reverse")}),
    ("com.microsoft::DynamicQuantizeLSTM", (2, 3, 4), quantized_layer(2), {"hidden_size": 2, "direction": "forward"},
     {"hidden_size": (3, 2**31), "direction": ("bidirectional",)}),
    ("Conv", (1, 4, 5, 5), [ones(6, 2, 3, 3)], {"kernel_shape": [3, 3], "group": 2},
     {"kernel_shape": ([3, 2], [3], [2**31, 3]), "group": (1, 3, 0, 2**31)}),
    ("ConvTranspose", (1, 4, 5, 5), [ones(4, 2, 3, 3)], {"kernel_shape": [3, 3], "group": 2},
     {"kernel_shape": ([3, 2], [3]), "group": (3, 0, 2**31)}),
    ("GroupNormalization", (1, 6, 5), [ones(6), ones(6)], {"num_groups": 3}, {"num_groups": (4, 0, 2**31)}),
    ("DepthToSpace", (1, 8, 2, 2), [], {"blocksize": 2}, {"blocksize": (3, 0, 2**31)}),
    ("SpaceToDepth", (1, 1, 6, 4), [], {"blocksize": 2}, {"blocksize": (4, 0, 2**31)}),
    ("com.microsoft::MatMulNBits", (3, 48), nbits(5, 3, 16), {"K": 48, "N": 5, "block_size": 16, "bits": 4},
     {"K": (47, 33, 49, 2**31), "N": (4, 6, 2**31), "block_size": (32, 8, 2**31), "bits": (2, 8)}),
    ("Attention", (1, 5, 12), [ones(1, 7, 6), ones(1, 7, 9)], {"q_num_heads": 6, "kv_num_heads": 3},
     {"q_num_heads": (4, 5, 0, 2**31), "kv_num_heads": (2, 4, 0, 2**31)}),
    ("Attention", (1, 6, 5, 4), [ones(1, 3, 7, 4), ones(1, 3, 7, 2)], {"q_num_heads": 6, "kv_num_heads": 3},
     {"q_num_heads": (3, 2**31), "kv_num_heads": (6, 1)}),
    ("RotaryEmbedding", (1, 5, 12), [ones(1, 5, 2), ones(1, 5, 2)], {"num_heads": 3}, {"num_heads": (5, 0, 2**31)}),
    ("RotaryEmbedding", (1, 3, 5, 4), [ones(1, 5, 2), ones(1, 5, 2)], {"num_heads": 3}, {"num_heads": (4, 2**31)}),
    ("Split", (6, 4), [], {"num_outputs": 1}, {"num_outputs": (2, 0, 2**31)}),
    ("DequantizeLinear", (4, 48), [], {"axis": 1, "block_size": 16}, {"block_size": (15, 8, 32, 2**31), "axis": (0,)}),
    ("com.microsoft::GatherBlockQuantized", (4, 48), [], {"gather_axis": 0, "quantize_axis": 1, "block_size": 16},
     {"block_size": (32, 2**31)}),
]  # fmt: skip


def model(case: Case, attributes: Mapping[str, Any]) -> ModelProto:
    operator, shape, given, *_ = case
    domain, _, name = operator.rpartition("::")
    constants = {f"c{k}": value for k, value in enumerate(given) if value is not None}
    names = ["x", *(f"c{k}" if value is not None else "" for k, value in enumerate(given))]
    inputs: dict[str, Shape] = {"x": shape}
    if "block_size" in attributes and name != "MatMulNBits":
        inputs = {}
        constants = {"data": ones(*shape, dtype=I8), "scale": ones(4, 3)}
        names = ["data", "scale"]
        if name == "GatherBlockQuantized":
            constants = {"data": ones(4, 24, dtype=U8), "at": np.zeros(2, np.int64), "scale": ones(4, 3)}
            names = ["data", "at", "scale"]
    node = helper.make_node(name, names, ["y"], domain=domain, **attributes)
    made = model_of([node], inputs, ["y"], constants=constants, opset=24 if name in NEWEST else 21)
    if domain:
        made.opset_import.append(helper.make_opsetid(domain, 1))
    return made


WRONG = [
    pytest.param(case, name, value, id=f"{case[0].rpartition('::')[2]}-{name}-{value}")
    for case in CASES
    for name, values in case[4].items()
    for value in values
]


@pytest.mark.parametrize("case", CASES, ids=[case[0].rpartition("::")[2] for case in CASES])
def test_attributes_that_fit_are_taken(case: Case) -> None:
    from_onnx(model(case, case[3]))


@pytest.mark.parametrize(("case", "name", "value"), WRONG)
def test_an_attribute_that_contradicts_a_shape_is_an_error(case: Case, name: str, value: Any) -> None:
    with pytest.raises(AotcError) as caught:
        from_onnx(model(case, {**case[3], name: value}))
    (found,) = caught.value.diagnostics
    assert found.code != "internal" and "does not take these" not in found.message
    numbers = value if isinstance(value, list) else [value]
    assert all(str(n) in found.message for n in numbers), found.message
