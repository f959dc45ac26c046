# SPDX-License-Identifier: Apache-2.0
"""Operators for onnx's reference evaluator that it lacks or implements only in part.

ReferenceEvaluator(model, new_ops=list(OPERATORS))
"""

from typing import Any, Final

import numpy as np
from onnx.reference.op_run import OpRun
from onnx.reference.ops import _op_list

from aotc.checking.onnx_evaluator_conv_pool import WINDOW_OPERATORS
from aotc.ir import Array
from aotc.relay.op.packed_integer_dense import can_round_in_blocks_of

#: Value of `accuracy_level` of MatMulNBits that lets it round its data to int8, and the largest magnitude.
_INT8_ACCURACY_LEVEL: Final = 4
_LARGEST_INT8: Final = 127


class GlobalMaxPool(OpRun):  # type: ignore[misc]
    """Maximum over all spatial axes, of any number; onnx's evaluator supports two spatial axes
    only.
    """

    op_domain = ""

    def _run(self, x: Any) -> tuple[Any]:
        return (x.max(axis=tuple(range(2, x.ndim)), keepdims=True),)


class BatchNormalization(OpRun):  # type: ignore[misc]
    """Batch normalization by the stored mean and variance; for opsets before 14, onnx's evaluator
    uses those of the batch.

    Raise NotImplementedError in training mode.
    """

    op_domain = ""

    def _run(self, x: Array, *parameters: Array, **attributes: Any) -> tuple[Array]:
        if attributes.get("training_mode") or len(self.onnx_node.output) > 1:
            raise NotImplementedError("BatchNormalization in training")
        scale, bias, mean, variance = (p.reshape(-1, *[1] * (x.ndim - 2)) for p in parameters)
        epsilon = x.dtype.type(getattr(self, "epsilon", 1e-5))
        return (np.asarray((x - mean) / np.sqrt(variance + epsilon) * scale + bias, x.dtype),)


class DequantizeLinear(OpRun):  # type: ignore[misc]
    """Dequantization with a scale per tensor, per axis or per block; onnx's evaluator has the
    operator from opset 19 on.

    The result is float32 for scales in float32, and float64 for all others.
    """

    op_domain = ""

    def _run(self, x: Any, scale: Any, zero: Any = None, **_: Any) -> tuple[Any]:
        axis, block = getattr(self, "axis", 1), getattr(self, "block_size", 0)

        def expand_scales_or_zeros_to_float64(values: Any) -> Any:
            wide = np.asarray(values).astype(np.float64)
            if wide.size == 1:
                return wide.reshape(())
            if block:
                return np.repeat(wide, block, axis).take(np.arange(x.shape[axis]), axis)
            return wide.reshape([-1 if k == axis % x.ndim else 1 for k in range(x.ndim)])

        real = x.astype(np.float64) - (0 if zero is None else expand_scales_or_zeros_to_float64(zero))
        dtype = np.float32 if np.asarray(scale).dtype == np.float32 else np.float64
        return (np.asarray(real * expand_scales_or_zeros_to_float64(scale), dtype),)


def _round_to_int8_in_blocks(x: Array, block: int) -> Array:
    """Round data (..., K) to the integers up to 127 times a scale for each block of the last axis."""
    padded = np.pad(x, [*[(0, 0)] * (x.ndim - 1), (0, -x.shape[-1] % block)])
    cut = padded.reshape(*x.shape[:-1], -1, block)
    scale = np.abs(cut).max(-1, keepdims=True, initial=0) / x.dtype.type(_LARGEST_INT8)
    whole = np.rint(cut / np.where(scale > 0, scale, 1))
    return np.asarray((whole * scale).reshape(padded.shape)[..., : x.shape[-1]])


class MatMulNBits(OpRun):  # type: ignore[misc]
    """Evaluates com.microsoft.MatMulNBits in numpy: the product with a weight matrix (N, K) of
    packed integers of `bits` bits, the first one in the lowest bits of a byte. With `accuracy_level` 4, the data is
    rounded to int8 in blocks, as ONNX Runtime does.
    """

    op_domain = "com.microsoft"

    def _run(self, x: Any, packed: Any, scales: Any, *more: Any, **_: Any) -> tuple[Any]:
        zeros, groups, bias = (*more, None, None, None)[:3]
        rows, columns, bits = self.N, self.K, self.bits
        count = -(-columns // self.block_size)

        def unpack_bit_fields_to_float64_rows(packed_bytes: Any, values_per_row: int) -> Any:
            parts = packed_bytes.reshape(rows, -1)[..., None] >> np.arange(0, 8, bits) & (1 << bits) - 1
            return parts.reshape(rows, -1)[:, :values_per_row].astype(np.float64)

        if groups is None:
            groups = np.arange(columns) // self.block_size
            if getattr(self, "accuracy_level", 0) == _INT8_ACCURACY_LEVEL and can_round_in_blocks_of(self.block_size):
                x = _round_to_int8_in_blocks(x, self.block_size)
        if zeros is None:
            zeros = np.full((rows, count), 2.0 ** (bits - 1))
        elif zeros.dtype == np.uint8:
            zeros = unpack_bit_fields_to_float64_rows(zeros, count)
        scales, zeros = (v.reshape(rows, count)[:, groups] for v in (scales, zeros))
        y = x @ ((unpack_bit_fields_to_float64_rows(packed, columns) - zeros) * scales).T
        return (y if bias is None else y + bias,)


class STFT(OpRun):  # type: ignore[misc]
    """Short-time Fourier transform of signals (batch, length) or (batch, length, 1 or 2), where 2
    means real and imaginary part.

    onnx's evaluator accepts signals of three axes only.  A window must have the frame length.
    """

    op_domain = ""

    def _run(self, x: Array, step: Any, window: Any = None, length: Any = None, onesided: int = 1) -> tuple[Array]:
        count, step = len(window) if length is None else int(length), int(step)
        signal = x if x.ndim == 2 else x[..., 0] if x.shape[2] == 1 else x[..., 0] + 1j * x[..., 1]
        starts = range(0, signal.shape[1] - count + 1, step)
        frames = np.stack([signal[:, k : k + count] for k in starts], 1)
        spectrum = np.fft.fft(frames if window is None else frames * window, axis=-1)
        if onesided:
            spectrum = spectrum[..., : count // 2 + 1]
        return (np.stack([spectrum.real, spectrum.imag], -1).astype(x.dtype),)


class _RecurrentLayer(OpRun):  # type: ignore[misc]
    """Recurrent layer of onnx's evaluator that raises NotImplementedError for attributes and
    sequence lengths that onnx's evaluator silently ignores.

    ignored    names of these attributes
    """

    op_domain = ""
    ignored: tuple[str, ...] = ("activation_alpha", "activation_beta", "activations", "clip", "input_forget")

    def _run(self, *inputs: Any, **attributes: Any) -> tuple[Array, ...]:
        given = {a.name for a in self.onnx_node.attribute}.intersection(self.ignored)
        if given or (len(inputs) > 4 and inputs[4] is not None):
            raise NotImplementedError(f"{self.op_type} with {', '.join(sorted(given)) or 'sequence_lens'}")
        return tuple(super()._run(*inputs, **attributes))


class LSTM(_RecurrentLayer, _op_list.LSTM):  # type: ignore[misc]
    """Long short-term memory layer with the default activations."""


class GRU(_RecurrentLayer, _op_list.GRU):  # type: ignore[misc]
    """Gated recurrent unit layer with the default activations."""


class RNN(_RecurrentLayer, _op_list.RNN_14):  # type: ignore[misc]
    """Simple recurrent layer with one activation function."""

    ignored = ("activation_alpha", "activation_beta", "clip")


#: Operators that replace or supplement those of onnx's reference evaluator.
EVALUATOR_OPERATORS: Final = (
    GlobalMaxPool,
    BatchNormalization,
    DequantizeLinear,
    MatMulNBits,
    STFT,
    LSTM,
    GRU,
    RNN,
    *WINDOW_OPERATORS,
)
