# SPDX-License-Identifier: Apache-2.0
"""int8 GEMM micro-kernels for Intel AMX tiles, as functions that read and write memory.

    tile[0:n] = brgemm_uint8_int8(x[...], w[...], sizes and distances)

The result is an array of sums with axes (position, block, output), for blocks of 16 outputs. A tile
register has 16 rows of 64 bytes. In a register of data, a row holds the bytes that one reduction
step reads at one position; in a register of weights, a row holds four bytes for each output of a
block. Four registers accumulate sums at a time: those of two registers of positions by two blocks.
(Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18: LDTILECFG,
TILELOADD, TDPBUSD.)
"""

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import product
from typing import Any, Final

import numpy as np

from aotc.tir.instruction_definition import Instruction, define_memory_micro_kernel, fill_template
from aotc.tir.int4_unpacking import byte_widening_variants, int4_variant_of_kernel_name, unpack_int4
from aotc.tir.int8_dot_products import BYTES_PER_DOT, INT8_DTYPES
from aotc.tir.micro_kernels import X86_AMX
from aotc.tir.processor_features import CVariant, c_text_for_features

#: Bytes of a row of a tile register, and outputs of a block (int32 values in a row).
AMX_TILE_ROW_BYTES: Final = 64
OUTPUTS_PER_BLOCK: Final = X86_AMX.block
#: Integer arguments of a kernel after data and weights. The reduction is a loop over n2, around a
#: loop over n1, around a loop over contiguous steps.
SIZE_ARGUMENT_NAMES: Final = (
    "rows",  # number of positions
    "pitch",  # bytes between the data of consecutive positions
    "blocks",  # number of blocks of 16 outputs
    "apart",  # bytes between the weights of consecutive blocks
    "width",  # bytes of data that a step reads at a position: a multiple of 4, up to 64
    "steps",  # number of steps
    *("n1", "x1", "w1"),  # iterations of the loop, and bytes of data and of weights per iteration
    *("n2", "x2", "w2"),  # iterations of the loop, and bytes of data and of weights per iteration
)


def _tile_matmul_numpy_reference(data_dtype: str, x: Any, w: Any, *size_arguments: Any) -> Any:
    of = {name: int(value) for name, value in zip(SIZE_ARGUMENT_NAMES, size_arguments, strict=True)}
    positions = np.arange(of["rows"])[:, None] * of["pitch"]
    blocks = np.arange(of["blocks"])[:, None] * of["apart"]
    total = np.zeros((of["rows"], of["blocks"] * OUTPUTS_PER_BLOCK), np.int32)
    for a, b, s in product(range(of["n2"]), range(of["n1"]), range(of["steps"])):
        at = a * of["x2"] + b * of["x1"] + s * of["width"]
        to = a * of["w2"] + b * of["w1"] + s * of["width"] * OUTPUTS_PER_BLOCK
        left = x[at + positions + np.arange(of["width"])].astype(np.int32)
        right = w[to + blocks + np.arange(of["width"] * OUTPUTS_PER_BLOCK)].astype(np.int32)
        right = (
            right.reshape(of["blocks"], -1, OUTPUTS_PER_BLOCK, BYTES_PER_DOT)
            .transpose(1, 3, 0, 2)
            .reshape(of["width"], -1)
        )
        total += left @ right
    return total.reshape(-1)


_TILE_HELPERS_C: Final = """\
#if !defined(AOTC_AMX_TILES)
#define AOTC_AMX_TILES
#define AOTC_AMX_TILE_ZERO(to) __asm__ volatile("tilezero %tmm" #to)
#define AOTC_AMX_TILE_LOAD(to, from, pitch) \\
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #to : : "r"(from), "r"(pitch) : "memory")
#define AOTC_AMX_TILE_STORE(to, pitch, from) \\
  __asm__ volatile("tilestored %%tmm" #from ", (%0,%1,1)" : : "r"(to), "r"(pitch) : "memory")
/* Registers 0 to 3 are sums, 4 and 5 have so many rows of data, 6 and 7 weights. */
$inline void aotc_configure_amx_tiles(ptrdiff_t rows, ptrdiff_t width) {
  uint8_t shape[64] = {1};
  for (int k = 0; k < 8; ++k) {
    shape[16 + 2 * k] = (uint8_t)(k / 2 == 2 ? width : 64);
    shape[48 + k] = (uint8_t)(k < 6 ? rows : width / 4);
  }
  __asm__ volatile("ldtilecfg %0" : : "m"(shape));
}
#endif
"""
_TILE_MATMUL_C: Final = """\
/* Sums of one or two registers of positions, the second `below` the first, and of one or two blocks. */
__attribute__((__always_inline__, __unused__)) static inline void
aotc_NAME_tile(int32_t *sums, const DATA_t *x, const STORED_t *w, ptrdiff_t below, int two, int wide, ptrdiff_t pitch,
  ptrdiff_t line, ptrdiff_t apart, ptrdiff_t width, ptrdiff_t steps, ptrdiff_t n1, ptrdiff_t x1, ptrdiff_t w1,
  ptrdiff_t n2, ptrdiff_t x2, ptrdiff_t w2GIVEN) {
  const ptrdiff_t weights = 64;
  AOTC_AMX_TILE_ZERO(0);
  AOTC_AMX_TILE_ZERO(1);
  AOTC_AMX_TILE_ZERO(2);
  AOTC_AMX_TILE_ZERO(3);
  for (ptrdiff_t b = 0; b < n2; ++b)
    for (ptrdiff_t a = 0; a < n1; ++a) {
      const DATA_t *from = x + b * x2 + a * x1;
      const STORED_t *by = w + (b * w2 + a * w1)HALF;
      for (ptrdiff_t s = 0; s < steps; ++s, from += width, by += 16 * widthHALF) {
        AOTC_AMX_TILE_LOAD(6, FIRST, weights);
        AOTC_AMX_TILE_LOAD(4, from, pitch);
        __asm__ volatile("DOT %tmm6, %tmm4, %tmm0");
        if (wide) {
          AOTC_AMX_TILE_LOAD(7, SECOND, weights);
          __asm__ volatile("DOT %tmm7, %tmm4, %tmm1");
        }
        if (two) {
          AOTC_AMX_TILE_LOAD(5, from + below * pitch, pitch);
          __asm__ volatile("DOT %tmm6, %tmm5, %tmm2");
          if (wide)
            __asm__ volatile("DOT %tmm7, %tmm5, %tmm3");
        }
      }
    }
  AOTC_AMX_TILE_STORE(sums, line, 0);
  if (wide)
    AOTC_AMX_TILE_STORE(sums + 16, line, 1);
  if (two)
    AOTC_AMX_TILE_STORE(sums + below * line / 4, line, 2);
  if (two && wide)
    AOTC_AMX_TILE_STORE(sums + below * line / 4 + 16, line, 3);
}
"""
_KERNEL_HEAD_C: Final = """\
/* Sums of products of DATA by WEIGHTS: 16 outputs of each block at each position. */
__attribute__((__noinline__, __unused__)) static void
aotc_NAME(int32_t *sums, const DATA_t *x, const STORED_t *w, ptrdiff_t rows, ptrdiff_t pitch, ptrdiff_t blocks,
  ptrdiff_t apart, ptrdiff_t width, ptrdiff_t steps, ptrdiff_t n1, ptrdiff_t x1, ptrdiff_t w1, ptrdiff_t n2,
  ptrdiff_t x2, ptrdiff_t w2GIVEN) {
"""
_KERNEL_BY_TILES_C: Final = """\
  const ptrdiff_t high = rows < 16 ? rows : 16, line = 64 * blocks;
  aotc_configure_amx_tiles(high, width);
  for (ptrdiff_t row = 0; row < rows; row += 2 * high) {
    /* what is left is no whole register: some sums are computed twice */
    const ptrdiff_t left = rows - row, first = left < high ? rows - high : row;
    const ptrdiff_t below = left >= 2 * high ? high : left - high;
    for (ptrdiff_t k = 0; k < blocks; k += 2) {
      int32_t *to = sums + (first * blocks + k) * 16;
      const DATA_t *from = x + first * pitch;
      const STORED_t *by = w + k * apartHALF;
      if (below > 0 && k + 1 < blocks)
        aotc_NAME_tile(to, from, by, below, 1, 1, pitch, line, apart, width, steps, n1, x1, w1, n2, x2, w2TAKEN);
      else if (below > 0)
        aotc_NAME_tile(to, from, by, below, 1, 0, pitch, line, apart, width, steps, n1, x1, w1, n2, x2, w2TAKEN);
      else if (k + 1 < blocks)
        aotc_NAME_tile(to, from, by, 0, 0, 1, pitch, line, apart, width, steps, n1, x1, w1, n2, x2, w2TAKEN);
      else
        aotc_NAME_tile(to, from, by, 0, 0, 0, pitch, line, apart, width, steps, n1, x1, w1, n2, x2, w2TAKEN);
    }
  }
  __asm__ volatile("tilerelease");
}
"""
_PORTABLE_KERNEL_C: Final = """\
  memset(sums, 0, (size_t)(rows * blocks * 16) * sizeof *sums);
  for (ptrdiff_t b = 0; b < n2; ++b)
    for (ptrdiff_t a = 0; a < n1; ++a)
      for (ptrdiff_t row = 0; row < rows; ++row)
        for (ptrdiff_t o = 0; o < 16 * blocks; ++o) {
          const DATA_t *from = x + row * pitch + b * x2 + a * x1;
          const ptrdiff_t by = o / 16 * apart + o % 16 * 4 + b * w2 + a * w1;
          uint32_t sum = (uint32_t)sums[row * blocks * 16 + o];
          for (ptrdiff_t k = 0; k < steps * width; ++k) {
            const ptrdiff_t at = by + k / 4 * 64 + k % 4;
            sum += (uint32_t)(from[k] * (READ));
          }
          sums[row * blocks * 16 + o] = (int32_t)sum;
        }
}
"""
_INT4_UNPACK_C: Final = """\
/* Weights of 4 bits for a register. */
__attribute__((__unused__)) $inline const WEIGHTS_t *
aotc_NAME_whole(WEIGHTS_t *to, const uint8_t *from, ptrdiff_t count, WEIGHTS_t least) {
  typedef uint8_t half __attribute__((__vector_size__(32), __aligned__(1), __may_alias__));
  typedef uint16_t pairs __attribute__((__vector_size__(64), __unused__));
  typedef WEIGHTS_t whole __attribute__((__vector_size__(64), __aligned__(1), __may_alias__));
  for (ptrdiff_t k = 0; k < count; k += 64) {
    const half v = *(const half *)(from + k / 2);
WIDE    *(whole *)(to + k) = (whole)((wide << 4 | wide) & 0x0f0f) + least;
  }
  return to;
}
"""
#: What differs where weights are bytes, and where they are 4 bits each.
_INT8_WEIGHT_WORDS: Final = {
    "GIVEN": "",
    "TAKEN": "",
    "HALF": "",
    "FIRST": "by",
    "SECOND": "by + apart",
    "READ": "w[at]",
}
_INT4_WEIGHT_WORDS: Final = {
    "STORED": "uint8",
    "GIVEN": ", WEIGHTS_t least",
    "TAKEN": ", least",
    "HALF": " / 2",
    "FIRST": "aotc_NAME_whole(first, by, 16 * width, least)",
    "SECOND": "aotc_NAME_whole(second, by + apart / 2, 16 * width, least)",
    "READ": "(w[at / 2] >> at % 2 * 4 & 15) + least",
    "weights = 64;": "weights = 64;\n  WEIGHTS_t first[1024], second[1024];",
}
#: Features that the kernels require; those of int4 weights unpack them in registers of AVX-512.
_INT8_WEIGHT_FEATURES: Final = ("amx_tile", "amx_int8")
_INT4_WEIGHT_FEATURES: Final = (*_INT8_WEIGHT_FEATURES, "avx512bw")


def _kernel_variants(unpacking: str, features: tuple[str, ...], words: Mapping[str, str]) -> tuple[CVariant, CVariant]:
    """Return a kernel with tiles and a portable kernel.

    unpacking   definition of the function that unpacks weights, "" for weights of 8 bits
    features    features that the kernel with tiles requires
    words       words of the texts and their replacements
    """
    tiles = _TILE_HELPERS_C + _TILE_MATMUL_C + _KERNEL_HEAD_C + _KERNEL_BY_TILES_C
    portable = _KERNEL_HEAD_C + _PORTABLE_KERNEL_C
    return (
        CVariant(unpacking + fill_template(tiles, **words), requires=features),
        CVariant(fill_template(portable, **words)),
    )


def _int4_kernel_variants() -> tuple[CVariant, CVariant]:
    """Return the variants of the kernel whose weights have 4 bits."""
    widening = byte_widening_variants(OUTPUTS_PER_BLOCK * BYTES_PER_DOT)
    unpacking = fill_template(_INT4_UNPACK_C, WIDE=c_text_for_features(widening, _INT4_WEIGHT_FEATURES))
    return _kernel_variants(unpacking, _INT4_WEIGHT_FEATURES, _INT4_WEIGHT_WORDS)


def amx_kernel_name(data_dtype: str, weight_dtype: str) -> str:
    """Return the name of the micro-kernel for these int8 or uint8 operand types."""
    return f"brgemm_{data_dtype}_{weight_dtype}"


def _int4_tile_matmul_numpy_reference(data_dtype: str, weight_dtype: str, x: Any, w: Any, *numbers: Any) -> Any:
    return _tile_matmul_numpy_reference(
        data_dtype, x, unpack_int4(weight_dtype, w, numbers[-1].astype(weight_dtype)), *numbers[:-1]
    )


def _tile_matmul_extents(weights_per_byte: int, _data: int, _weights: int, *size_arguments: int) -> tuple[int, ...]:
    """Return the elements of the sums, data and weights of a call, from its integer arguments; none for
    distances below 0, counts below 1, and steps that are not 4 to 64 bytes, a multiple of 4.
    """
    of = dict(zip(SIZE_ARGUMENT_NAMES, size_arguments, strict=False))
    counts = (of[name] for name in ("rows", "blocks", "steps", "n1", "n2"))
    is_whole_step = of["width"] in range(BYTES_PER_DOT, AMX_TILE_ROW_BYTES + 1, BYTES_PER_DOT)
    if min(of.values()) < 0 or min(counts) < 1 or not is_whole_step:
        return 0, 0, 0
    run = of["width"] * of["steps"]
    data = (of["rows"] - 1) * of["pitch"] + run
    weights = (of["blocks"] - 1) * of["apart"] + run * OUTPUTS_PER_BLOCK
    for count, x, w in (("n1", "x1", "w1"), ("n2", "x2", "w2")):
        data += (of[count] - 1) * of[x]
        weights += (of[count] - 1) * of[w]
    return of["rows"] * of["blocks"] * OUTPUTS_PER_BLOCK, data, weights // weights_per_byte


def instruction_definitions() -> Iterator[Instruction]:
    """Yield the micro-kernels for all combinations of int8 and uint8 operands."""
    for data, weights in product(INT8_DTYPES, INT8_DTYPES):
        dot = f"tdpb{data[0].replace('i', 's')}{weights[0].replace('i', 's')}d"
        name, words = amx_kernel_name(data, weights), {"DATA": data, "WEIGHTS": weights, "DOT": dot}
        numbers = ("int32",) * len(SIZE_ARGUMENT_NAMES)
        for kernel_name, arg_types, weights_per_byte, meaning, variants in (
            (
                name,
                (weights, *numbers),
                1,
                partial(_tile_matmul_numpy_reference, data),
                _kernel_variants("", _INT8_WEIGHT_FEATURES, {"STORED": weights, **_INT8_WEIGHT_WORDS}),
            ),
            (
                int4_variant_of_kernel_name(name),
                ("uint8", *numbers, "int32"),
                2,
                partial(_int4_tile_matmul_numpy_reference, data, weights),
                _int4_kernel_variants(),
            ),
        ):
            kinds = (f"{data}[]", f"{arg_types[0]}[]", *arg_types[1:])
            operands = ", ".join(f"{{{k}}}" for k in range(1, len(kinds) + 1))
            yield define_memory_micro_kernel(
                kernel_name,
                kinds,
                "int32[]",
                partial(_tile_matmul_extents, weights_per_byte),
                meaning,
                operands,
                variants,
                **words,
            )
