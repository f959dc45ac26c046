# SPDX-License-Identifier: Apache-2.0
"""Options that contradict shapes, and numbers too large for any tensor, give one error with the node and the values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tflite")

from aotc.ir import AotcError
from aotc.relay.frontend.tflite import from_tflite
from tests.frontend_tflite.model_builder import Builder

INT32_MAX = 2**31 - 1
#: Values that no extent, stride or dilation has.
INVALID_EXTENTS = (0, -1)
#: An input that comes at run time.
Shape = tuple[int, ...]
#: Operator, inputs (shapes of data, arrays of constants), table of its options, options that fit, those that do not one
#: by one, and the number of outputs.
Case = tuple[str, Sequence[Any], str, Mapping[str, Any], Mapping[str, Sequence[Any]], int]


def ones(*shape: int) -> Any:
    return np.ones(shape, np.float32)


def ints(*values: Any) -> Any:
    return np.array(values, np.int32)


def number(value: int) -> Any:
    return np.array(value, np.int32)


_WINDOW = {"padding": 0, "strideH": 1, "strideW": 1}
_CONV = {**_WINDOW, "dilationHFactor": 1, "dilationWFactor": 1}
_SPATIAL = {"padding": 0, **{f"{n}{k}": 1 for n in ("stride",) for k in "DHW"}}
_SPATIAL |= {f"dilation{k}Factor": 1 for k in "DHW"}
_CONV_WRONG = {"strideH": INVALID_EXTENTS, "strideW": INVALID_EXTENTS, "dilationHFactor": INVALID_EXTENTS,
               "dilationWFactor": INVALID_EXTENTS, "padding": (2, 127)}  # fmt: skip
_POOL = {**_WINDOW, "filterHeight": 2, "filterWidth": 2}
_POOL_WRONG = {name: INVALID_EXTENTS for name in _POOL if name != "padding"} | {"padding": (2,)}
_OFF_AXIS = (5, -5, INT32_MAX)
CASES: list[Case] = [
    ("CONV_2D", [(1, 5, 5, 4), ones(6, 3, 3, 4), ones(6)], "Conv2DOptions", _CONV,
     _CONV_WRONG | {"fusedActivationFunction": (9, 127)}, 1),
    ("DEPTHWISE_CONV_2D", [(1, 5, 5, 4), ones(1, 3, 3, 8), ones(8)], "DepthwiseConv2DOptions",
     {**_CONV, "depthMultiplier": 2}, {**_CONV_WRONG, "depthMultiplier": (1, 3, -1, INT32_MAX)}, 1),
    ("TRANSPOSE_CONV", [ints(1, 10, 10, 3), ones(3, 3, 3, 4), (1, 5, 5, 4)], "TransposeConvOptions",
     {"padding": 0, "strideH": 2, "strideW": 2}, {"strideH": (0, -1, 3, INT32_MAX), "padding": (2,)}, 1),
    ("CONV_3D", [(1, 4, 5, 5, 2), ones(2, 3, 3, 2, 3)], "Conv3DOptions", _SPATIAL,
     {n: INVALID_EXTENTS for n in _SPATIAL if n != "padding"} | {"padding": (2,)}, 1),
    *((name, [(1, 5, 5, 4)], "Pool2DOptions", _POOL, _POOL_WRONG, 1)
      for name in ("AVERAGE_POOL_2D", "L2_POOL_2D", "MAX_POOL_2D")),
    ("FULLY_CONNECTED", [(3, 8), ones(5, 8), ones(5)], "FullyConnectedOptions", {"keepNumDims": True},
     {"weightsFormat": (1, 5)}, 1),
    ("SPLIT", [number(1), (2, 6)], "SplitOptions", {"numSplits": 2}, {"numSplits": (0, -1, 1, 3, 4, 6, INT32_MAX)}, 2),
    ("SPLIT_V", [(2, 6), ints(2, 4), number(1)], "SplitVOptions", {"numSplits": 2},
     {"numSplits": (0, -1, 1, 3, INT32_MAX)}, 2),
    ("UNPACK", [(2, 3)], "UnpackOptions", {"axis": 1, "num": 3},
     {"num": (0, -1, 2, 4, INT32_MAX), "axis": (0, 2, -3, INT32_MAX)}, 3),
    ("PACK", [(2, 3), (2, 3)], "PackOptions", {"axis": 1, "valuesCount": 2},
     {"valuesCount": (0, -1, 1, 3, INT32_MAX), "axis": (3, -4, INT32_MAX)}, 1),
    ("CONCATENATION", [(2, 3), (2, 3)], "ConcatenationOptions", {"axis": 1}, {"axis": _OFF_AXIS}, 1),
    ("RESHAPE", [(2, 6), ints(3, 4)], "ReshapeOptions", {"newShape": [3, -1]},
     {"newShape": ([4, 3], [3, 5], [12], [-1, INT32_MAX])}, 1),
    ("RESHAPE", [(2, 6)], "ReshapeOptions", {"newShape": [3, 4]},
     {"newShape": ([3, 5], [-1, -1], [-2, 6], [INT32_MAX, INT32_MAX], [0, -1])}, 1),
    ("SQUEEZE", [(1, 3, 1)], "SqueezeOptions", {"squeezeDims": [0]}, {"squeezeDims": ([1], [3], [-4], [INT32_MAX])}, 1),
    ("GATHER", [(4, 5), ints(3, 0)], "GatherOptions", {"axis": 1, "batchDims": 0},
     {"axis": _OFF_AXIS, "batchDims": (2, -3, INT32_MAX)}, 1),
    ("ONE_HOT", [ints(2, 0), number(4), np.float32(1), np.float32(0)], "OneHotOptions", {"axis": -1},
     {"axis": _OFF_AXIS}, 1),
    ("SPACE_TO_DEPTH", [(1, 4, 6, 3)], "SpaceToDepthOptions", {"blockSize": 2}, {"blockSize": (0, -1, 3,
     INT32_MAX)}, 1),
    ("DEPTH_TO_SPACE", [(1, 2, 2, 12)], "DepthToSpaceOptions", {"blockSize": 2}, {"blockSize": (0, -1, 3,
     INT32_MAX)}, 1),
    ("REVERSE_SEQUENCE", [(2, 5, 3), ints(4, 2)], "ReverseSequenceOptions", {"seqDim": 1, "batchDim": 0},
     {"seqDim": _OFF_AXIS, "batchDim": _OFF_AXIS}, 1),
    ("MIRROR_PAD", [(3, 4), ints([1, 1], [0, 0])], "MirrorPadOptions", {"mode": 0}, {"mode": (2, 7)}, 1),
    ("LOCAL_RESPONSE_NORMALIZATION", [(1, 2, 3, 8)], "LocalResponseNormalizationOptions",
     {"radius": 2, "bias": 1.0, "alpha": 0.3, "beta": 0.7}, {"radius": (-1, INT32_MAX)}, 1),
    ("SOFTMAX", [(3, 7)], "SoftmaxOptions", {"beta": 1.0}, {"beta": (float("nan"), float("inf"))}, 1),
]  # fmt: skip
#: Inputs that contradict one another or the options; operator, inputs, table of its options, options, outputs, and
#: what the message says.
Inputs = tuple[str, Sequence[Any], str, Mapping[str, Any], int, Sequence[Any]]
INPUTS: list[Inputs] = [
    ("CONV_2D", [(1, 5, 5, 4), ones(6, 3, 3, 3), ones(6)], "Conv2DOptions", _CONV, 1, (3, 4)),
    ("CONV_2D", [(1, 5, 5, 4), ones(6, 3, 3, 4), ones(5)], "Conv2DOptions", _CONV, 1, (5, 6)),
    ("DEPTHWISE_CONV_2D", [(1, 5, 5, 3), ones(1, 3, 3, 8), ones(8)], "DepthwiseConv2DOptions", _CONV, 1, (8, 3)),
    ("TRANSPOSE_CONV", [ints(1, 10, 10, 4), ones(3, 3, 3, 4), (1, 5, 5, 4)], "TransposeConvOptions",
     {"padding": 0, "strideH": 2, "strideW": 2}, 1, ("(1, 10, 10, 4)", "(3, 3, 3, 4)")),
    ("TRANSPOSE_CONV", [ints(2, 10, 10, 3), ones(3, 3, 3, 4), (1, 5, 5, 4)], "TransposeConvOptions",
     {"padding": 0, "strideH": 2, "strideW": 2}, 1, ("(2, 10, 10, 3)", "(1, 5, 5, 4)")),
    ("FULLY_CONNECTED", [(3, 7), ones(5, 8), ones(5)], "FullyConnectedOptions", {}, 1, ("(3, 7)", 8)),
    ("FULLY_CONNECTED", [(4, 6), ones(5, 8)], "FullyConnectedOptions", {"keepNumDims": True}, 1, ("(4, 6)", 8)),
    ("FULLY_CONNECTED", [(3, 8), ones(5, 8), ones(6)], "FullyConnectedOptions", {}, 1, (6, 5)),
    ("SPLIT", [number(1), (2, 6)], "SplitOptions", {"numSplits": 4}, 4, (6, 4)),
    ("SPLIT_V", [(2, 6), ints(2, 2, 2), number(1)], "SplitVOptions", {"numSplits": 2}, 2, (2, 3)),
    ("PACK", [(2, 3), (2, 4)], "PackOptions", {"axis": 1, "valuesCount": 2}, 1, (3, 4)),
    ("SPACE_TO_DEPTH", [(4, 6, 3)], "SpaceToDepthOptions", {"blockSize": 2}, 1, (3,)),
    ("DEPTH_TO_SPACE", [(2, 2, 12)], "DepthToSpaceOptions", {"blockSize": 2}, 1, (3,)),
    ("MIRROR_PAD", [(3, 4), ints([3, 1], [0, 0])], "MirrorPadOptions", {"mode": 0}, 1, ("[3, 1, 0, 0]", "(3, 4)")),
    ("MIRROR_PAD", [(3, 4), ints([4, 1], [0, 0])], "MirrorPadOptions", {"mode": 1}, 1, ("[4, 1, 0, 0]", "(3, 4)")),
    ("BATCH_MATMUL", [(2, 3, 4), (2, 4, 5)], "BatchMatMulOptions", {"adjX": True}, 1, ("(2, 4, 3)", "(2, 4, 5)")),
    *((name, [(2, 7), number(k)], "", {}, 1, (k,)) for name in ("ARG_MAX", "CUMSUM", "EXPAND_DIMS") for k in _OFF_AXIS),
    *((name, [(2, 7), ints(k)], "", {}, 1, (k,)) for name in ("MEAN", "REDUCE_MAX", "REVERSE_V2") for k in _OFF_AXIS),
    *(("SPLIT", [number(k), (2, 6)], "SplitOptions", {"numSplits": 2}, 2, (k,)) for k in _OFF_AXIS),
    *(("SPLIT_V", [(2, 6), ints(2, 4), number(k)], "SplitVOptions", {"numSplits": 2}, 2, (k,)) for k in _OFF_AXIS),
    *(("TRANSPOSE", [(2, 3), ints(*order)], "", {}, 1, (max(order, key=abs),))
      for order in ((0, 0), (0, 2), (0,), (0, 1, 2), (INT32_MAX, 0), (-3, 0))),
    *(("PAD", [(2, 3), ints(*pads)], "", {}, 1, (shown,))
      for pads, shown in (([[0, 0]], 2), ([[0, -1], [0, 0]], -1), ([[0, 0]] * 3, 2), ([[0, INT32_MAX]] * 2,
       INT32_MAX + 2))),
    *(("TILE", [(2, 3), ints(*reps)], "", {}, 1, (reps[-1],)) for reps in ((1,), (1, -1), (1, 1, 1))),
    ("TILE", [(2, 3), ints(INT32_MAX, INT32_MAX)], "", {}, 1, (2 * INT32_MAX, 3 * INT32_MAX)),
    *(("BROADCAST_TO", [(1, 3), ints(*shape)], "", {}, 1, shape) for shape in ((3,), (2, 4), (-1, 3), (INT32_MAX,
     INT32_MAX, 3))),
    *(("SLICE", [(4, 5), ints(*begin), ints(*size)], "", {}, 1, (list(begin), list(size)))
      for begin, size in (((0,), (1,)), ((5, 0), (1, 1)), ((0, 0), (5, 1)), ((0, 0), (-2, 1)), ((-1, 0), (1, 1)))),
    *(("FILL", [ints(*shape), np.float32(1)], "", {}, 1, shape) for shape in ((-1, 2), (INT32_MAX, INT32_MAX))),
    *((f"RESIZE_{name}", [(1, 4, 4, 2), ints(*sizes)], "", {}, 1, shown)
      for name in ("BILINEAR", "NEAREST_NEIGHBOR")
      for sizes, shown in (((0, 2), (0,)), ((-1, 2), (-1,)), ((2,), (2,)), ((2, 2, 2), (2,)),
                           ((INT32_MAX, INT32_MAX), (2 * INT32_MAX,)))),
    *((f"RESIZE_{name}", [(1, 4, 4, 2), ints(2, 2)], f"Resize{name.title().replace('_', '')}Options",
       {"alignCorners": True, "halfPixelCenters": True}, 1, ("align_corners", "half_pixel_centers"))
      for name in ("BILINEAR", "NEAREST_NEIGHBOR")),
    *((f"RESIZE_{name}", [(4, 4, 2), ints(2, 2)], "", {}, 1, (3,)) for name in ("BILINEAR", "NEAREST_NEIGHBOR")),
    *(("SPACE_TO_BATCH_ND", [(1, 4, 6, 3), ints(*block), ints(*([[0, 0]] * len(block)))], "", {}, 1, (list(block),))
      for block in ((2, 4), (0, 2), (-2, 2), (INT32_MAX, 2), (2, 2, 2, 2))),
    *(("BATCH_TO_SPACE_ND", [(4, 2, 3, 3), ints(*block), ints(*([[0, 0]] * len(block)))], "", {}, 1, (list(block),))
      for block in ((2, 4), (0, 2), (-2, -2), (INT32_MAX, 2))),
    *(("TOPK_V2", [(3, 7), number(k)], "", {}, 2, (k, 7)) for k in (-1, 8, INT32_MAX)),
    *(("ONE_HOT", [ints(2, 0), number(k), np.float32(1), np.float32(0)], "OneHotOptions", {"axis": -1}, 1, (k,))
      for k in (-1, INT32_MAX)),
    ("GATHER_ND", [(4, 5), ints([1, 2, 3])], "", {}, 1, (3, "(4, 5)")),
    ("SCATTER_ND", [ints([3], [1]), (2, 4), ints(6, 5)], "", {}, 1, ("(2, 5)", "(2, 4)")),
    ("SCATTER_ND", [ints([3], [1]), (2, 5), ints(INT32_MAX, INT32_MAX)], "", {}, 1, (INT32_MAX,)),
    ("RANGE", [number(0), number(INT32_MAX), number(1)], "", {}, 1, (INT32_MAX,)),
    ("RANGE", [number(0), number(4), number(0)], "", {}, 1, (0, 4)),
    ("STRIDED_SLICE", [(4, 5), ints(0, 0), ints(4, 5), ints(1, 0)], "StridedSliceOptions", {}, 1, ("[1, 0]", "(4, 5)")),
    ("STRIDED_SLICE", [(4, 5), ints(0, 0), ints(4), ints(1, 1)], "StridedSliceOptions", {}, 1, ("[4]", "(4, 5)")),
    ("STRIDED_SLICE", [(4, 5), ints(0, 7), ints(4, 5), ints(1, 1)], "StridedSliceOptions", {"shrinkAxisMask": 2}, 1,
     (7, 5)),
]  # fmt: skip


def model_of(name: str, inputs: Sequence[Any], kind: str, options: Mapping[str, Any], outputs: int) -> bytes:
    model, places, given = Builder(), [], []
    for value in inputs:
        if isinstance(value, tuple):
            given.append(model.tensor(value))
            places.append(given[-1])
        else:
            places.append(model.tensor(np.shape(value), str(np.asarray(value).dtype), value))
    dtype = "int64" if name == "ARG_MAX" else "int32" if name == "RANGE" else "float32"
    results = [model.tensor((), "int32" if name == "TOPK_V2" and k else dtype) for k in range(outputs)]
    model.op(name, places, results, kind, **options)
    return model.data(given, results)


def check_error(data: bytes, name: str, values: Sequence[Any]) -> None:
    with pytest.raises(AotcError) as caught:
        from_tflite(data)
    (found,) = caught.value.diagnostics
    assert found.code != "internal" and "does not take these" not in found.message
    assert found.span is not None and str(found.span.node).startswith(f"{name}#0")
    assert all(str(v) in found.message for v in values), found.message


WRONG = [
    pytest.param(case, option, value, id=f"{case[0]}-{option}-{value}")
    for case in CASES
    for option, values in case[4].items()
    for value in values
]


@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
def test_options_that_fit_are_taken(case: Case) -> None:
    name, inputs, kind, options, _, outputs = case
    from_tflite(model_of(name, inputs, kind, options, outputs))


@pytest.mark.parametrize(("case", "option", "value"), WRONG)
def test_an_option_that_contradicts_a_shape_is_an_error(case: Case, option: str, value: Any) -> None:
    name, inputs, kind, options, _, outputs = case
    values = value if isinstance(value, list) else [value]
    check_error(model_of(name, inputs, kind, {**options, option: value}, outputs), name, values)


@pytest.mark.parametrize("case", INPUTS, ids=lambda case: f"{case[0]}-{case[5]}")
def test_inputs_that_contradict_one_another_are_an_error(case: Inputs) -> None:
    name, inputs, kind, options, outputs, values = case
    check_error(model_of(name, inputs, kind, options, outputs), name, values)


@pytest.mark.parametrize("name", ["FULLY_CONNECTED", "state", "rank"])
def test_recurrent_layers(name: str) -> None:
    """Weights, states and data of an LSTM that have other sizes than one another."""
    model, hidden, inner = Builder(), 5, 7
    x = model.tensor((2, 6) if name == "rank" else (2, 6, inner))
    weights = [model.tensor((hidden, n), "float32", ones(hidden, n)) for n in (inner, hidden) for _ in range(4)]
    if name == "FULLY_CONNECTED":
        weights[1] = model.tensor((hidden + 1, inner), "float32", ones(hidden + 1, inner))
    bias = [model.tensor((hidden,), "float32", ones(hidden)) for _ in range(4)]
    states = [model.tensor((2, hidden + (name == "state")), variable=True) for _ in range(2)]
    y = model.tensor((2, 6, hidden))
    inputs = [x, *weights, -1, -1, -1, *bias, -1, -1, *states, -1, -1, -1, -1]
    kind = "UnidirectionalSequenceLSTMOptions"
    model.op("UNIDIRECTIONAL_SEQUENCE_LSTM", inputs, [y], kind, fusedActivationFunction=4)
    check_error(model.data([x], [y]), "UNIDIRECTIONAL_SEQUENCE_LSTM", ())


def test_shapes_that_are_computed_overrule_an_old_option() -> None:
    """A shape of -1 elements, and one that the model computes for another batch than the option's."""
    model = Builder()
    x, y, z = model.tensor((4, 6), name="x"), model.tensor((2,), "int32"), model.tensor((4, 6))
    model.op("SHAPE", [x], [y], "ShapeOptions", outType=2)
    model.op("RESHAPE", [x, y], [z], "ReshapeOptions", newShape=[1, 6])
    assert from_tflite(model.data([x], [z])).main.body.checked_type.shape == (4, 6)


def test_the_shape_of_a_scalar() -> None:
    model = Builder()
    x, y = model.tensor((1, 1)), model.tensor(())
    model.op("RESHAPE", [x], [y], "ReshapeOptions", newShape=[0])
    assert from_tflite(model.data([x], [y])).main.body.checked_type.shape == ()
