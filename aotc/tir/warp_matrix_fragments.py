# SPDX-License-Identifier: Apache-2.0
"""Tensor-core instructions: matrix fragments in the registers of a warp, and their multiplication.

    # of 16 x 16 by 16 x 8 elements: what `mma` makes of c[32, 4], a[32, 4], b[32, 2]
    tensor_core_multiply_add_reference(c, a, b)

A 32-bit register holds one word of a matrix: one float32, two adjacent 16-bit elements, or four
adjacent bytes. The words of a row of the left matrix, and of a column of the right matrix, are
numbered from 0 to 7. Thread 4 * g + q of a warp (0 <= g < 8, 0 <= q < 4) holds

    of the left matrix    words q and q + 4 of rows g and g + 8
    of the right matrix   words q and q + 4 of column g
    of the sum            columns 2 * q and 2 * q + 1 of rows g and g + 8

The matrices have 16 x 16 by 16 x 8 elements of 16 bits, 16 x 8 by 8 x 8 float32 elements, which
are multiplied as TF32, or 16 x 32 by 32 x 8 bytes. (PTX ISA, "Warp-level matrix instructions":
mma.m16n8k16, mma.m16n8k8, ldmatrix.)
"""

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np

from aotc.ir import DType
from aotc.tir.int8_dot_products import INT8_DTYPES

Array: TypeAlias = "np.ndarray[Any, Any]"


def tensor_core_multiply_add_reference(data_dtype: DType, weight_dtype: DType, c: Array, a: Array, b: Array) -> Array:
    """Compute c + a @ b in numpy, each step rounded to float32; float16, bfloat16 and TF32 products
    are exact.

    Products of bytes are summed in int32.
    """
    pairs = ((a, data_dtype), (b, weight_dtype))
    left, right = (np.ascontiguousarray(e).view(kind.numpy).astype(c.dtype) for e, kind in pairs)
    steps = left.shape[1] * 2
    left = left.reshape(8, 4, 2, 2, -1).transpose(3, 0, 2, 1, 4).reshape(16, steps)
    right = right.reshape(8, 4, 2, -1).transpose(2, 1, 3, 0).reshape(steps, 8)
    total = c.reshape(8, 4, 2, 2).transpose(2, 0, 1, 3).reshape(16, 8)
    for k in range(steps):
        total = total + left[:, k, None] * right[k]
    fragments: Array = total.reshape(2, 8, 4, 2).transpose(1, 2, 0, 3).reshape(32, 4)
    return fragments


def ldmatrix_transposed_reference(rows: Array) -> Array:
    """Load four transposed 8 x 8 blocks (ldmatrix.trans): a thread supplies a row, gets two
    elements of a column.
    """
    blocks = np.ascontiguousarray(rows).view(np.uint16).reshape(4, 8, 8).swapaxes(1, 2)
    return np.ascontiguousarray(blocks.reshape(4, 32, 2).swapaxes(0, 1)).view(np.uint32)[..., 0]


def ldmatrix_untransposed_reference(rows: Array) -> Array:
    """Load four 8 x 8 blocks (ldmatrix): each thread supplies a row and gets two elements of a row."""
    blocks = np.ascontiguousarray(rows).view(np.uint16).reshape(4, 32, 2)
    return np.ascontiguousarray(blocks.swapaxes(0, 1)).view(np.uint32)[..., 0]


def ldmatrix_names_semantics_and_cuda_code(dtype: str) -> Iterator[tuple[str, Callable[[Array], Array], str]]:
    """Yield the instructions that load 8 x 8 blocks of 16-bit elements: name, numpy semantics,
    function text.
    """
    for name, meaning, words in (
        ("ldmatrix", ldmatrix_transposed_reference, ("columns", ".trans", _LDMATRIX_COLUMN_CUDA)),
        ("ldmatrix_rows", ldmatrix_untransposed_reference, ("rows", "", _LDMATRIX_ROW_CUDA)),
    ):
        function = _LDMATRIX_CUDA.replace("NAME", f"{name}_{dtype}")
        for word, text in zip(("WHAT", "TURNED", "PICKED"), words, strict=True):
            function = function.replace(word, text)
        yield f"{name}_{dtype}", meaning, function


def float32_to_tf32_bits_reference(values: Array) -> Array:
    """Round float32 to TF32 (10 bits of fraction), ties away from zero, and return the bits."""
    bits: Array = np.asarray(values).view(np.uint32)
    rounded_bits: Array = (bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)
    return np.where(np.isnan(values), np.uint32(0x7FFFE000), rounded_bits)[()]


ROUND_TO_TF32_CUDA: Final = """\
/* The bits of TF32: a fraction of 10 bits. */
$inline uint32_t aotc_tf32(float x) {
  uint32_t bits;
#if defined(AOTC_EMULATED)
  memcpy(&bits, &x, sizeof bits);
  bits = x != x ? 0x7fffe000u : (bits + 0x1000u) & 0xffffe000u;
#else
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
#endif
  return bits;
}
"""
_LDMATRIX_COLUMN_CUDA: Final = """\
  for (int k = 0; k < 8; ++k)
    memcpy((uint16_t *)to + k, all->value[k / 2 * 8 + lane % 4 * 2 + k % 2] + lane / 4 * 2, 2);
"""
_LDMATRIX_ROW_CUDA: Final = """\
  for (int k = 0; k < 4; ++k)
    memcpy(to + k, all->value[k * 8 + lane / 4] + lane % 4 * 4, 4);
"""
_LDMATRIX_CUDA: Final = """\
/* Four blocks of 8 x 8 numbers of 16 bits, of whose rows each thread knows one: their WHAT. */
$inline void aotc_NAME(uint32_t *to, const uint16_t *row) {
#if defined(AOTC_EMULATED)
  struct Row { uint16_t of[8]; } mine;
  aotc_emulator::require_aligned((uintptr_t)row, sizeof mine);
  memcpy(&mine, row, sizeof mine);
  const aotc_emulator::Lanes *all = aotc_emulator::exchange(~0u, mine);
  const int lane = (int)threadIdx.x % 32;
PICKED#else
  asm volatile("ldmatrix.sync.aligned.m8n8.x4TURNED.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"((unsigned)__cvta_generic_to_shared(row)) : "memory");
#endif
}
"""
FLOAT_MMA_CUDA: Final = """\
/* A product of 16 x STEPS by STEPS x 8 numbers is added to 16 x 8 sums. */
$inline void aotc_mma_DTYPE(float *to, const float *c, const uint32_t *a, const uint32_t *b) {
#if defined(AOTC_EMULATED)
  struct Operands { uint32_t of[6]; } mine = {{a[0], a[1], a[2], a[3], b[0], b[1]}};
  const aotc_emulator::Lanes *all = aotc_emulator::exchange(~0u, mine);
  const int row = (int)threadIdx.x % 32 / 4, column = (int)threadIdx.x % 4 * 2;
  for (int e = 0; e < 4; ++e) {
    float sum = c[e];
    for (int k = 0; k < STEPS; ++k) {
      const int half = STEPS / 2, q = k % half / (half / 4), part = k % (half / 4) * 2;
      BITS left, right;
      memcpy(&left, all->value[row * 4 + q] + (e / 2 + k / half * 2) * 4 + part, sizeof left);
      memcpy(&right, all->value[(column + e % 2) * 4 + q] + (4 + k / half) * 4 + part, sizeof right);
      sum += aotc_emulator::of_DTYPE(left) * aotc_emulator::of_DTYPE(right);
    }
    to[e] = sum;
  }
#else
  asm volatile("mma.sync.aligned.m16n8kSTEPS.row.col.f32.KIND.KIND.f32"
               " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
               : "=f"(to[0]), "=f"(to[1]), "=f"(to[2]), "=f"(to[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]),
                 "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
#endif
}
"""
INT8_MMA_CUDA: Final = """\
/* A product of 16 x 32 by 32 x 8 bytes is added to 16 x 8 sums. */
$inline void aotc_mma_DATA_WEIGHTS(int32_t *to, const int32_t *c, const int32_t *a, const int32_t *b) {
#if defined(AOTC_EMULATED)
  struct Operands { int32_t of[6]; } mine = {{a[0], a[1], a[2], a[3], b[0], b[1]}};
  const aotc_emulator::Lanes *all = aotc_emulator::exchange(~0u, mine);
  const int row = (int)threadIdx.x % 32 / 4, column = (int)threadIdx.x % 4 * 2;
  for (int e = 0; e < 4; ++e) {
    uint32_t sum = (uint32_t)c[e];
    for (int k = 0; k < 32; ++k) {
      const int q = k % 16 / 4, part = k % 4;
      DATA_t left;
      WEIGHTS_t right;
      memcpy(&left, all->value[row * 4 + q] + (e / 2 + k / 16 * 2) * 4 + part, 1);
      memcpy(&right, all->value[(column + e % 2) * 4 + q] + (4 + k / 16) * 4 + part, 1);
      sum += (uint32_t)((int)left * (int)right);
    }
    to[e] = (int32_t)sum;
  }
#else
  asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.KIND_A.KIND_B.s32"
               " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]),
                 "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]));
#endif
}
"""


def int8_mma_instructions() -> Iterator[tuple[str, Callable[..., Array], str]]:
    """Yield the instructions that multiply int8 matrices: name, numpy semantics, function text."""
    for data, weights in itertools.product(INT8_DTYPES, INT8_DTYPES):
        function, name = INT8_MMA_CUDA, f"mma_{data}_{weights}"
        words = {"DATA": data, "WEIGHTS": weights, "KIND_A": data[0].replace("i", "s") + "8"}
        for word, text in (words | {"KIND_B": weights[0].replace("i", "s") + "8"}).items():
            function = function.replace(word, text)
        yield name, partial(tensor_core_multiply_add_reference, DType(data), DType(weights)), function
