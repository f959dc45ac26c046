# SPDX-License-Identifier: Apache-2.0
"""int8 GEMM micro-kernels for Cortex-M with the DSP extension (SMLAD: two 16-bit products per
instruction).

    col[8 * g:] = pairs2(x0[0:n], x1[0:n])           # bytes of two positions, widened and interleaved
    tile[0:8] = pairs2x4(col[0:8 * g], w[0:16 * g])  # sums of four outputs by two positions
    tile[0:4] = bytes1x4(x[0:n], w[0:16 * g])        # sums of four outputs of one position

Weights are in groups of four reduction steps of four outputs, "4o4i". SXTB16 widens bytes 0 and 2
of a word, or bytes 1 and 3, to a pair of int16. So the four data bytes of a group become two pairs,
steps (0, 2) and steps (1, 3), and `col` holds the pairs of both positions alternately:

    pairs of a group: position 0 (0, 2), position 1 (0, 2), position 0 (1, 3), position 1 (1, 3)

A tile is computed by a function in assembly: its eight sums, four operands and two pointers occupy
all registers, and a C compiler that sees the loop around them would keep some of them in memory.
"""

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from aotc.tir.instruction_definition import Instruction, define_memory_micro_kernel
from aotc.tir.int8_dot_products import BYTES_PER_DOT
from aotc.tir.micro_kernels import ARM_DSP
from aotc.tir.processor_features import CVariant

#: Outputs of a block of weights and of a tile, positions of a tile.
OUTPUTS_PER_BLOCK: Final = ARM_DSP.outputs
POSITIONS_PER_TILE: Final = ARM_DSP.positions


def interleaved_int16_count(run_bytes: int) -> int:
    """Return the number of int16 values that contiguous chunks of `run_bytes` bytes of both
    positions become.
    """
    return -(-run_bytes // BYTES_PER_DOT) * BYTES_PER_DOT * POSITIONS_PER_TILE


def _interleave_rows_numpy_reference(*runs: Any) -> Any:
    data = np.stack(runs).reshape(POSITIONS_PER_TILE, -1)
    size = -(-data.shape[1] // BYTES_PER_DOT) * BYTES_PER_DOT
    whole = np.zeros((POSITIONS_PER_TILE, size), np.int16)
    whole[:, : data.shape[1]] = data
    return whole.reshape(POSITIONS_PER_TILE, -1, 2, 2).transpose(1, 3, 0, 2).reshape(-1)


def _dot_2_positions_4_outputs_in_numpy(pairs: Any, weights: Any) -> Any:
    data = pairs.astype(np.int64).reshape(-1, 2, POSITIONS_PER_TILE, 2)
    # a byte of weights: group, output, which of a pair, which pair
    weight_groups = weights.astype(np.int64).reshape(-1, OUTPUTS_PER_BLOCK, 2, 2)
    return np.einsum("grpj,gojr->op", data, weight_groups).reshape(-1).astype(np.int32)


def _dot_1_position_4_outputs_in_numpy(data: Any, weights: Any) -> Any:
    whole = np.zeros(weights.size // OUTPUTS_PER_BLOCK, np.int64)
    whole[: data.size] = data
    weight_groups = weights.astype(np.int64).reshape(-1, OUTPUTS_PER_BLOCK, BYTES_PER_DOT)
    return np.einsum("gk,gok->o", whole.reshape(-1, BYTES_PER_DOT), weight_groups).astype(np.int32)


#: Features that the assembly below requires.
_ASSEMBLY_FEATURES: Final = ("dsp", "thumb2")
_FUNCTION_HEAD_C: Final = "/* %s */\n__attribute__((__noinline__, __unused__)) static void\n"

#: Bytes 0 and 2 of a word, 1 and 3, as numbers of 16 bits.
_SPLIT_EVEN_ODD_BYTES_C: Final = """\
#if !defined(AOTC_HALVES)
#define AOTC_HALVES
$inline uint32_t aotc_even(uint32_t word) {
  __asm__("sxtb16 %0, %0" : "+r"(word));
  return word;
}
$inline uint32_t aotc_odd(uint32_t word) {
  __asm__("sxtb16 %0, %0, ror #8" : "+r"(word));
  return word;
}
#endif
"""

_INTERLEAVE_ROWS_COMMENT: Final = (
    "The bytes 0 and 2, 1 and 3 of each word of two rows as numbers of 16 bits, row by row; zeros behind them."
)
# Complete words have a loop of their own. With the test of an incomplete word in the loop there are two tests, of
# which a compiler removes one only in C files whose calls all pass the same number of bytes.
_INTERLEAVE_ROWS_BY_ASSEMBLY_C: Final = (
    """\
$inline void aotc_interleave(int16_t *to, uint32_t x, uint32_t y) {
  uint32_t pair = aotc_even(x);
  memcpy(to, &pair, 4);
  pair = aotc_even(y);
  memcpy(to + 2, &pair, 4);
  pair = aotc_odd(x);
  memcpy(to + 4, &pair, 4);
  pair = aotc_odd(y);
  memcpy(to + 6, &pair, 4);
}
"""
    + _FUNCTION_HEAD_C % _INTERLEAVE_ROWS_COMMENT
    + """\
aotc_pairs2(int16_t *to, const int8_t *a, const int8_t *b, ptrdiff_t bytes) {
  uint32_t x = 0;
  uint32_t y = 0;
  for (; bytes >= 4; bytes -= 4, to += 8, a += 4, b += 4) {
    memcpy(&x, a, 4);
    memcpy(&y, b, 4);
    aotc_interleave(to, x, y);
  }
  if (bytes > 0) {
    x = 0;
    y = 0;
    memcpy(&x, a, (size_t)bytes);
    memcpy(&y, b, (size_t)bytes);
    aotc_interleave(to, x, y);
  }
}
"""
)
_PORTABLE_INTERLEAVE_ROWS_C: Final = (
    _FUNCTION_HEAD_C % _INTERLEAVE_ROWS_COMMENT
    + """\
aotc_pairs2(int16_t *to, const int8_t *a, const int8_t *b, ptrdiff_t bytes) {
  for (; bytes > 0; bytes -= 4) {
    for (int k = 0; k < 4; ++k) {
      to[k % 2 * 4 + k / 2] = (int16_t)(k < bytes ? a[k] : 0);
      to[k % 2 * 4 + k / 2 + 2] = (int16_t)(k < bytes ? b[k] : 0);
    }
    to += 8;
    a += 4;
    b += 4;
  }
}
"""
)


def _assembly_of_two_outputs_by_smlad(weight_address: str, rotation: str, first_sum_register: int) -> Iterator[str]:
    """Yield the assembly of the products of two outputs with both positions."""
    yield f"ldrd r12, lr, {weight_address}"
    yield from (f"sxtb16 {word}, {word}{rotation}" for word in ("r12", "lr"))
    for k, (word, data) in enumerate((w, d) for w in ("r12", "lr") for d in ("r0", "r3")):
        yield f"smlad r{first_sum_register + k}, {data}, {word}, r{first_sum_register + k}"


def _dot_2_positions_4_outputs_assembly() -> Iterator[str]:
    """Yield the assembly of a tile: r1 points to the pairs, r2 to the weights, r4 to r11 hold the
    sums.
    """
    yield "add r3, r1, r3, lsl #4"
    yield "push {r0, r3-r11, lr}"
    yield from (f"mov r{k}, #0" for k in range(4, 12))
    yield "1: ldrd r0, r3, [r1], #8"
    yield from (
        *_assembly_of_two_outputs_by_smlad("[r2]", "", 4),
        *_assembly_of_two_outputs_by_smlad("[r2, #8]", "", 8),
    )
    yield "ldrd r0, r3, [r1], #8"
    yield from (
        *_assembly_of_two_outputs_by_smlad("[r2, #8]", ", ror #8", 8),
        *_assembly_of_two_outputs_by_smlad("[r2], #16", ", ror #8", 4),
    )
    yield from ("ldr r0, [sp, #4]", "cmp r1, r0", "bne 1b")
    yield from ("pop {r0, r3}", "stmia r0, {r4-r11}", "pop {r4-r11, pc}")


_DOT_2_POSITIONS_4_OUTPUTS_BY_ASSEMBLY_C: Final = """\
/* Sums of four outputs by two positions. */
__attribute__((__naked__, __noinline__, __unused__)) static void
aotc_pairs2x4(int32_t *sums __attribute__((__unused__)), const int16_t *x __attribute__((__unused__)),
              const int8_t *w __attribute__((__unused__)), ptrdiff_t groups __attribute__((__unused__))) {
  __asm__ volatile(
TEXT);
}
""".replace("TEXT", "\n".join(f'      "{line}\\n"' for line in _dot_2_positions_4_outputs_assembly()))
_PORTABLE_DOT_2_POSITIONS_4_OUTPUTS_C: Final = """\
/* Sums of four outputs by two positions. */
__attribute__((__noinline__, __unused__)) static void
aotc_pairs2x4(int32_t *sums, const int16_t *x, const int8_t *w, ptrdiff_t groups) {
  memset(sums, 0, 8 * sizeof *sums);
  for (; groups > 0; --groups, x += 8, w += 16)
    for (int k = 0; k < 8; ++k)
      for (int j = 0; j < 4; ++j)
        sums[k] += x[j % 2 * 4 + k % 2 * 2 + j / 2] * w[k / 2 * 4 + j];
}
"""


def _dot_one_data_word_4_outputs_assembly() -> Iterator[str]:
    """Yield the assembly of the products of one 32-bit word of data."""
    yield "const uint32_t even = aotc_even(word), odd = aotc_odd(word);"
    for k, total in enumerate("abcd"):
        yield f"memcpy(&word, w + {4 * k}, 4);"
        for data in ("even", "odd"):
            yield f'__asm__("smlad %0, %1, %2, %0" : "+r"({total}) : "r"({data}), "r"(aotc_{data}(word)));'


_DOT_1_POSITION_4_OUTPUTS_C: Final = (
    _FUNCTION_HEAD_C % "Sums of four outputs of one position."
    + """\
aotc_bytes1x4(int32_t *sums, const int8_t *x, const int8_t *w, ptrdiff_t bytes) {
  int32_t a = 0;
  int32_t b = 0;
  int32_t c = 0;
  int32_t d = 0;
  for (; bytes > 0; bytes -= 4, x += 4, w += 16) {
WORD  }
  sums[0] = a;
  sums[1] = b;
  sums[2] = c;
  sums[3] = d;
}
"""
)
_DOT_WORD_BY_ASSEMBLY_C: Final = """\
    uint32_t word = 0;
    if (bytes >= 4)
      memcpy(&word, x, 4);
    else
      memcpy(&word, x, (size_t)bytes);
TEXT
""".replace("TEXT", "\n".join(f"    {line}" for line in _dot_one_data_word_4_outputs_assembly()))
_PORTABLE_DOT_WORD_C: Final = """\
    for (int k = 0; k < 4 && k < bytes; ++k) {
      a += x[k] * w[k];
      b += x[k] * w[4 + k];
      c += x[k] * w[8 + k];
      d += x[k] * w[12 + k];
    }
"""


def _assembly_or_portable_variants(assembly_text: str, portable_text: str) -> tuple[CVariant, CVariant]:
    return CVariant(assembly_text, _ASSEMBLY_FEATURES), CVariant(portable_text)


def instruction_definitions() -> Iterator[Instruction]:
    """Yield the DSP micro-kernels as definitions of instructions: operand types, meaning in numpy and
    C code.
    """
    run = "int8[]"
    table = (
        (
            "pairs2",
            (run, run),
            "int16[]",
            lambda x, _: (interleaved_int16_count(x), x, x),
            _interleave_rows_numpy_reference,
            "{1}, {2}, {n}",
            _assembly_or_portable_variants(
                _SPLIT_EVEN_ODD_BYTES_C + _INTERLEAVE_ROWS_BY_ASSEMBLY_C, _PORTABLE_INTERLEAVE_ROWS_C
            ),
        ),
        (
            "pairs2x4",
            ("int16[]", run),
            "int32[]",
            lambda pairs, _: (
                OUTPUTS_PER_BLOCK * POSITIONS_PER_TILE,
                pairs,
                pairs // POSITIONS_PER_TILE * OUTPUTS_PER_BLOCK,
            ),
            _dot_2_positions_4_outputs_in_numpy,
            "{1}, {2}, {n} / 16",
            _assembly_or_portable_variants(
                _DOT_2_POSITIONS_4_OUTPUTS_BY_ASSEMBLY_C, _PORTABLE_DOT_2_POSITIONS_4_OUTPUTS_C
            ),
        ),
        (
            "bytes1x4",
            (run, run),
            "int32[]",
            lambda x, _: (OUTPUTS_PER_BLOCK, x, -(-x // BYTES_PER_DOT) * BYTES_PER_DOT * OUTPUTS_PER_BLOCK),
            _dot_1_position_4_outputs_in_numpy,
            "{1}, {2}, {m}",
            _assembly_or_portable_variants(
                _SPLIT_EVEN_ODD_BYTES_C + _DOT_1_POSITION_4_OUTPUTS_C.replace("WORD", _DOT_WORD_BY_ASSEMBLY_C),
                _DOT_1_POSITION_4_OUTPUTS_C.replace("WORD", _PORTABLE_DOT_WORD_C),
            ),
        ),
    )
    return (define_memory_micro_kernel(*row) for row in table)
