# SPDX-License-Identifier: Apache-2.0
"""Test calls of every TFLite operator: inputs, options, and types of the outputs.

for case in CASES:
    case.name, case.inputs, case.options
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Data:
    """An input that comes at run time: standard normal numbers, or integers between two ends."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    ends: tuple[float, float] = (-6, 7)

    def array(self, rng: np.random.Generator) -> Any:
        if self.dtype == "bool":
            return rng.integers(0, 2, self.shape).astype(bool)
        if self.dtype.startswith("float"):
            if self.ends == (-6, 7):
                return (rng.standard_normal(self.shape) * 2).astype(self.dtype)
            return rng.uniform(*self.ends, self.shape).astype(self.dtype)
        return rng.integers(*self.ends, self.shape).astype(self.dtype)


@dataclass(frozen=True)
class Case:
    """One operator; `inputs` that are arrays are constants, `kind` is the table of its options."""

    name: str
    inputs: tuple[Any, ...]
    kind: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    outputs: tuple[str, ...] = ("float32",)


def f(*shape: int) -> Data:
    return Data(shape)


def positive(*shape: int) -> Data:
    return Data(shape, ends=(0.1, 5.0))


def i(*shape: int) -> Data:
    return Data(shape, "int32")


def b(*shape: int) -> Data:
    return Data(shape, "bool")


def k(*values: Any) -> Any:
    return np.array(values, np.int32)


def one(value: Any) -> Any:
    return np.array(value, np.int32)


def weight(*shape: int) -> Any:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def case(name: str, *inputs: Any, kind: str = "", out: str = "float32", **options: Any) -> Case:
    return Case(name, inputs, kind, options, tuple(out.split()))


def weighed(value: Any) -> Any:
    return np.array(value, np.float32)


#: Corners of twelve boxes, many of which overlap.
BOXES = Data((12, 4), ends=(0, 1))
SCORES = Data((12,), ends=(-1, 1))

_UNARY = """ABS CEIL COS ELU EXP FLOOR GELU HARD_SWISH LOGISTIC
NEG RELU RELU6 RELU_0_TO_1 RELU_N1_TO_1 ROUND SIGN SIN SQUARE TANH ZEROS_LIKE"""
_BINARY = "ADD SUB MUL DIV"
_COMPARED = "EQUAL NOT_EQUAL GREATER GREATER_EQUAL LESS LESS_EQUAL"
_CONV = {"padding": 0, "strideH": 1, "strideW": 1, "dilationHFactor": 1, "dilationWFactor": 1}
_POOL = {"filterHeight": 2, "filterWidth": 3, "strideH": 2, "strideW": 1}
#: Fused activations, by the schema's numbers.
_ACTIVATIONS = (0, 1, 2, 3)

CASES = [
    *(case(name, f(2, 3, 5)) for name in _UNARY.split()),
    *(case(name, positive(2, 7)) for name in ("LOG", "SQRT", "RSQRT")),
    *(
        case(n, f(2, 3), f(2, 3), kind=f"{n.title()}Options", fusedActivationFunction=a)
        for n in _BINARY.split()
        for a in _ACTIVATIONS
    ),
    *(case(n, f(2, 3, 4), f(3, 1), kind=f"{n.title()}Options") for n in _BINARY.split()),
    *(case(n, i(2, 3), i(2, 3), kind=f"{n.title()}Options", out="int32") for n in ("ADD", "SUB", "MUL")),
    *(case(n, f(2, 3), f(2, 3), out="bool") for n in _COMPARED.split()),
    *(case(n, i(2, 3), i(1, 3), out="bool") for n in _COMPARED.split()),
    *(case(n, f(2, 3, 4), f(3, 1)) for n in ("MAXIMUM", "MINIMUM", "SQUARED_DIFFERENCE", "FLOOR_MOD")),
    case("ATAN2", f(2, 3), f(2, 3)),
    case("FLOOR_DIV", f(2, 3), positive(2, 3)),
    case("FLOOR_DIV", i(4, 3), Data((4, 3), "int32", (1, 5)), out="int32"),
    case("FLOOR_MOD", i(4, 3), Data((4, 3), "int32", (1, 5)), out="int32"),
    case("DIV", i(4, 3), Data((4, 3), "int32", (1, 5)), kind="DivOptions", out="int32"),
    case("POW", positive(2, 3), f(2, 3)),
    case("GELU", f(2, 9), kind="GeluOptions", approximate=True),
    case("LEAKY_RELU", f(2, 9), kind="LeakyReluOptions", alpha=0.3),
    case("PRELU", f(2, 3, 4, 5), weight(1, 1, 5)),
    case("LOGICAL_NOT", b(7), out="bool"),
    *(case(n, b(2, 5), b(2, 5), out="bool") for n in ("LOGICAL_AND", "LOGICAL_OR")),
    case("BITWISE_XOR", i(9), i(9), out="int32"),
    case("RIGHT_SHIFT", i(9), Data((9,), "int32", (0, 5)), out="int32"),
    case("ADD_N", f(2, 3), f(2, 3), f(2, 3)),
    case("SELECT", b(2, 3), f(2, 3), f(2, 3)),
    case("SELECT", b(4), f(4, 3), f(4, 3)),
    case("SELECT_V2", b(2, 1), f(1, 3), f(2, 3)),
    *(
        case("CAST", f(9), out=t, kind="CastOptions", inDataType=0, outDataType=c)
        for t, c in (("int32", 2), ("int64", 4))
    ),
    case("CAST", i(9), kind="CastOptions", inDataType=2, outDataType=0),
    *(
        case(n, f(2, 3, 4), k(-1, 0), kind="ReducerOptions", keepDims=d)
        for n in ("SUM", "MEAN", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD")
        for d in (False, True)
    ),
    *(
        case(n, b(2, 3, 4), k(1), kind="ReducerOptions", keepDims=False, out="bool")
        for n in ("REDUCE_ANY", "REDUCE_ALL")
    ),
    *(
        case(n, f(2, 7), one(-1), kind=f"Arg{n[4:].title()}Options", outputType=2, out="int32")
        for n in ("ARG_MAX", "ARG_MIN")
    ),
    *(
        case("CUMSUM", f(2, 5), one(1), kind="CumsumOptions", exclusive=e, reverse=r)
        for e in (False, True)
        for r in (False, True)
    ),
    case("L2_NORMALIZATION", f(3, 5), kind="L2NormOptions"),
    case("DEQUANTIZE", weight(2, 3).astype(np.float16)),
    case("RESHAPE", f(2, 6), k(3, -1), kind="ReshapeOptions", newShape=[3, -1]),
    case("SQUEEZE", f(1, 3, 1, 2), kind="SqueezeOptions", squeezeDims=[-2]),
    case("SQUEEZE", f(1, 3, 1, 2), kind="SqueezeOptions"),
    case("EXPAND_DIMS", f(2, 3), one(-1)),
    case("TRANSPOSE", f(2, 3, 4), k(2, 0, 1)),
    case("CONCATENATION", f(2, 3), f(2, 2), kind="ConcatenationOptions", axis=-1),
    case("PACK", f(2, 3), f(2, 3), kind="PackOptions", axis=1, valuesCount=2),
    case("UNPACK", f(2, 3), kind="UnpackOptions", axis=1, num=3, out="float32 float32 float32"),
    case("SPLIT", one(1), f(2, 6), kind="SplitOptions", numSplits=2, out="float32 float32"),
    case("SPLIT_V", f(2, 6), k(1, -1), one(1), kind="SplitVOptions", numSplits=2, out="float32 float32"),
    case("SLICE", f(4, 5), k(1, 2), k(2, -1)),
    case("STRIDED_SLICE", f(4, 5, 6), k(1, -1, 0), k(3, 0, 6), k(1, -2, 2), kind="StridedSliceOptions"),
    case(
        "STRIDED_SLICE",
        f(4, 5, 6),
        k(-1, 0, 2),
        k(0, 0, 0),
        k(1, -1, 1),
        kind="StridedSliceOptions",
        beginMask=2,
        endMask=6,
        shrinkAxisMask=1,
    ),
    case("PAD", f(2, 3), np.array([[1, 0], [0, 2]], np.int32)),
    case("PADV2", f(2, 3), np.array([[1, 0], [0, 2]], np.int32), np.float32(3.5)),
    *(
        case("MIRROR_PAD", f(3, 4), np.array([[1, 2], [0, 2]], np.int32), kind="MirrorPadOptions", mode=m)
        for m in (0, 1)
    ),
    case("TILE", f(2, 3), k(2, 1)),
    case("BROADCAST_TO", f(3, 1), k(2, 3, 4)),
    case("BROADCAST_ARGS", k(2, 1), k(5), out="int32"),
    case("SPACE_TO_DEPTH", f(1, 4, 6, 3), kind="SpaceToDepthOptions", blockSize=2),
    case("DEPTH_TO_SPACE", f(1, 2, 3, 12), kind="DepthToSpaceOptions", blockSize=2),
    case("SPACE_TO_BATCH_ND", f(2, 4, 5, 3), k(2, 3), np.array([[0, 2], [1, 0]], np.int32)),
    case("BATCH_TO_SPACE_ND", f(6, 2, 3, 2), k(2, 3), np.array([[1, 0], [0, 2]], np.int32)),
    case("GATHER", f(4, 5), k(3, 0, 2), kind="GatherOptions", axis=1),
    case("GATHER", f(2, 5, 3), np.array([[3, 0], [4, 4]], np.int32), kind="GatherOptions", axis=1, batchDims=1),
    case("GATHER_ND", f(4, 5, 2), np.array([[3, 0], [1, 4]], np.int32)),
    case("SCATTER_ND", np.array([[3], [1]], np.int32), f(2, 5), k(6, 5)),
    case("EMBEDDING_LOOKUP", k(2, 0, 1), weight(4, 5)),
    case("REVERSE_V2", f(2, 3, 4), k(1)),
    case("REVERSE_SEQUENCE", f(2, 5, 3), k(4, 2), kind="ReverseSequenceOptions", seqDim=1, batchDim=0),
    case("TOPK_V2", f(3, 7), one(3), out="float32 int32"),
    case("ONE_HOT", k(2, 0, 1), one(4), np.float32(3), np.float32(-1), kind="OneHotOptions", axis=-1),
    case("SHAPE", f(2, 3), kind="ShapeOptions", outType=2, out="int32"),
    case("RANK", f(2, 3), out="int32"),
    case("FILL", k(2, 3), np.float32(7)),
    case("RANGE", one(1), one(9), one(3), out="int32"),
    *(
        case(
            "RESIZE_NEAREST_NEIGHBOR",
            f(1, 5, 4, 2),
            k(7, 3),
            kind="ResizeNearestNeighborOptions",
            alignCorners=a,
            halfPixelCenters=h,
        )
        for a, h in ((False, False), (True, False), (False, True))
    ),
    *(
        case(
            "RESIZE_BILINEAR", f(1, 5, 4, 2), k(7, 3), kind="ResizeBilinearOptions", alignCorners=a, halfPixelCenters=h
        )
        for a, h in ((False, False), (True, False), (False, True))
    ),
    *(
        case(
            "CONV_2D",
            f(2, 7, 6, 4),
            weight(5, 3, 2, c),
            weight(5),
            kind="Conv2DOptions",
            **_CONV | {"padding": p, "strideH": s, "fusedActivationFunction": a},
        )
        for p, s, c, a in ((0, 2, 4, 1), (1, 1, 4, 3), (0, 1, 4, 0))
    ),
    case(
        "CONV_2D",
        f(1, 9, 9, 2),
        weight(3, 3, 3, 2),
        weight(3),
        kind="Conv2DOptions",
        **_CONV | {"dilationHFactor": 2, "dilationWFactor": 2},
    ),
    case(
        "DEPTHWISE_CONV_2D",
        f(1, 7, 6, 4),
        weight(1, 3, 2, 4),
        weight(4),
        kind="DepthwiseConv2DOptions",
        **_CONV,
        depthMultiplier=1,
    ),
    case(
        "DEPTHWISE_CONV_2D",
        f(1, 7, 6, 2),
        weight(1, 3, 2, 6),
        weight(6),
        kind="DepthwiseConv2DOptions",
        **_CONV | {"strideH": 2, "strideW": 2},
        depthMultiplier=3,
    ),
    case(
        "CONV_3D",
        f(1, 5, 6, 4, 2),
        weight(2, 3, 2, 2, 3),
        weight(3),
        kind="Conv3DOptions",
        padding=0,
        strideD=1,
        strideH=2,
        strideW=1,
        dilationDFactor=1,
        dilationHFactor=1,
        dilationWFactor=1,
    ),
    *(
        case(
            "CONV_3D_TRANSPOSE",
            k(1, *out, 3),
            weight(2, 3, 2, 3, 2),
            f(1, 3, 4, 3, 2),
            *([weight(3)] if p else []),
            kind="Conv3DOptions",
            padding=p,
            strideD=1,
            strideH=2,
            strideW=2,
            dilationDFactor=1,
            dilationHFactor=1,
            dilationWFactor=1,
        )
        for p, out in ((0, (3, 8, 6)), (1, (4, 9, 6)))
    ),
    *(
        case("BUCKETIZE", x, kind="BucketizeOptions", out="int32", boundaries=[-1.5, 0.0, 0.0, 1.25, 2.0])
        for x in (f(3, 5), i(4, 3), Data((7,), "float64"), Data((7,), "int64"))
    ),
    case("BUCKETIZE", f(2, 2), kind="BucketizeOptions", out="int32", boundaries=[0.5]),
    case("DILATE", f(3, 4), k(2, 3), weighed(-7.5)),
    case("DILATE", i(2, 1, 3), k(1, 4, 2), one(9), out="int32"),
    *(
        case(
            "TRANSPOSE_CONV",
            k(1, *out, 3),
            weight(3, 3, 2, 4),
            f(1, 4, 5, 4),
            kind="TransposeConvOptions",
            padding=p,
            strideH=2,
            strideW=2,
        )
        for p, out in ((0, (8, 10)), (0, (7, 9)), (1, (9, 10)))
    ),
    case("FULLY_CONNECTED", f(3, 8), weight(5, 8), weight(5), kind="FullyConnectedOptions", fusedActivationFunction=1),
    case("FULLY_CONNECTED", f(2, 3, 8), weight(5, 8), kind="FullyConnectedOptions", keepNumDims=True),
    *(
        case("BATCH_MATMUL", f(2, 3, 4), f(2, 5, 4) if y else f(2, 4, 5), kind="BatchMatMulOptions", adjY=y)
        for y in (False, True)
    ),
    *(
        case(n, f(1, 7, 8, 3), kind="Pool2DOptions", padding=p, **_POOL)
        for n in ("MAX_POOL_2D", "AVERAGE_POOL_2D", "L2_POOL_2D")
        for p in (0, 1)
    ),
    case("SOFTMAX", f(3, 7), kind="SoftmaxOptions", beta=1.0),
    case("SOFTMAX", f(3, 7), kind="SoftmaxOptions", beta=0.5),
    case("LOG_SOFTMAX", f(3, 7)),
    case(
        "LOCAL_RESPONSE_NORMALIZATION",
        f(1, 2, 3, 8),
        kind="LocalResponseNormalizationOptions",
        radius=2,
        bias=1.0,
        alpha=0.3,
        beta=0.75,
    ),
    case("BITCAST", f(3, 4), out="int32"),
    case("DYNAMIC_UPDATE_SLICE", f(4, 6), f(2, 3), Data((2,), "int32", (-1, 5))),
    case("DYNAMIC_UPDATE_SLICE", f(4, 6), f(2, 3), k(3, 1)),
    case("FAKE_QUANT", f(5, 9), kind="FakeQuantOptions", min=-1.3, max=4.1, numBits=8, narrowRange=False),
    case("MATRIX_DIAG", f(2, 4)),
    case("MATRIX_SET_DIAG", f(2, 3, 5), f(2, 3)),
    case("MATRIX_SET_DIAG", f(4, 2), f(2)),
    *(
        case(
            "NON_MAX_SUPPRESSION_V4",
            BOXES,
            Data((12,), ends=(-1, 1)),
            one(most),
            weighed(o),
            weighed(-0.5),
            out="int32 int32",
        )
        for most, o in ((5, 0.4), (20, 0.1))
    ),
    case("NON_MAX_SUPPRESSION_V5", BOXES, SCORES, one(14), *map(weighed, (0.3, 0, 0)), out="int32 float32 int32"),
    # a score that is NaN
    case(
        "NON_MAX_SUPPRESSION_V5",
        Data((4, 4), ends=(0, 1)),
        weighed([0.5, np.nan, 0.7, 0.4]),
        one(4),
        *map(weighed, (0.3, 0, 0)),
        out="int32 float32 int32",
    ),
    case("SPARSE_TO_DENSE", k([0, 1], [2, 3]), k(4, 5), f(2), weighed(0.5), kind="SparseToDenseOptions"),
    *(case(f"UNSORTED_SEGMENT_{n}", f(5, 2), k(2, 0, 2, -1, 0), one(4)) for n in ("MAX", "MIN", "PROD", "SUM")),
]
