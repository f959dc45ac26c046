# SPDX-License-Identifier: Apache-2.0
"""The ranks that ONNX operators need of their inputs, where a converter reads the axes of a
shape one by one.

check_ranks("STFT", schema, inputs)     # AotcError: input 0 (signal) of STFT has shape (2, 2, 2, 2); ...
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from aotc.ir import AotcError, TensorType
from aotc.relay.expr import Expr, type_of

_ANY: Final = (0, None)
_POOLED: Final = ((2, None),)
_INDEXED: Final = ((1, None), (1, None))
_RECURRENT: Final = ((3, 3), (3, 3), (3, 3), (2, 2), (1, 1), (3, 3), (3, 3), (2, 2))

RANKS: Final[Mapping[str, Sequence[tuple[int, int | None]]]] = {
    "Col2Im": ((3, 3), (1, 1), (1, 1)),
    "DepthToSpace": ((3, None),),
    "EyeLike": ((2, 2),),
    "GRU": _RECURRENT,
    "Gather": ((1, None),),
    "GatherElements": _INDEXED,
    "GatherND": _INDEXED,
    "GlobalAveragePool": _POOLED,
    "GlobalLpPool": _POOLED,
    "GlobalMaxPool": _POOLED,
    "GridSample": ((4, 5), (4, 5)),
    "GroupNormalization": ((2, None), (1, 1), (1, 1)),
    "LSTM": _RECURRENT,
    "RNN": _RECURRENT,
    "STFT": ((2, 3), _ANY, (1, 1)),
    "Scatter": _INDEXED,
    "ScatterElements": _INDEXED,
    "ScatterND": _INDEXED,
    "Slice": ((1, None),),
    "SpaceToDepth": ((3, None),),
    "Split": ((1, None),),
    "SplitToSequence": ((1, None),),
    "TopK": ((1, None),),
    "TensorScatter": ((2, None), (2, None), (1, 1)),
}
"""The least and the greatest rank (None: any) per input, in the order of the operator's inputs."""


def check_ranks(op_type: str, schema: Any, inputs: Sequence[Expr | None]) -> None:
    """AotcError (code "onnx-rank") where a tensor has a rank that its operator does not take."""
    for index, (value, (least, most)) in enumerate(zip(inputs, RANKS.get(op_type, ()), strict=False)):
        ty = None if value is None else type_of(value)
        if isinstance(ty, TensorType) and not least <= ty.rank <= (ty.rank if most is None else most):
            wanted = f"at least {least}" if most is None else " or ".join(map(str, range(least, most + 1)))
            what = f"input {index} ({schema.inputs[index].name}) of {op_type}"
            raise AotcError("onnx-rank", f"{what} has shape ({', '.join(map(str, ty.shape))}); rank {wanted} is needed")
