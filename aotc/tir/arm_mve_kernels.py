# SPDX-License-Identifier: Apache-2.0
"""int8 micro-kernels for Arm Helium (MVE), whose dot products accumulate a vector into a scalar
register.

    col[0:n] = bytes(x[0:n])                                     # a copy
    tile[0:n] = byte_rows(x[0:k], w[0:n * k])                    # sums of n outputs, each with a row of weights
    tile[0:n] = byte_taps(col[0:t * n], w[0:...], t, apart)      # sums of n channels, each with weights of its own
    y[0:n] = requantize_twice(tile[0:n], bias[0:n], multiplier[0:n], shift[0:n], zero, low, high)

Rows have any length: in loops with tail predication, Helium masks the lanes beyond the end (Arm,
"Armv8-M Architecture Reference Manual"). VMLADAVA adds 16 products to an even-numbered scalar
register; loads that widen and stores that narrow need their address in a low register (r0 to r7).
"""

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from aotc.tir.instruction_definition import Instruction, define_memory_micro_kernel
from aotc.tir.processor_features import CVariant


def _copy_bytes_numpy_reference(data: Any) -> Any:
    return data


def _matvec_numpy_reference(data: Any, weights: Any) -> Any:
    return (weights.astype(np.int64).reshape(-1, data.size) @ data).astype(np.int32)


def _depthwise_numpy_reference(data: Any, weights: Any, tap_count: Any, tap_stride: Any) -> Any:
    rows = data.astype(np.int64).reshape(int(tap_count), -1)
    places = np.arange(int(tap_count))[:, None] * int(tap_stride) + np.arange(rows.shape[1])
    return (rows * weights.astype(np.int64)[places]).sum(0).astype(np.int32)


def _make_requantize_numpy_reference(rounds_twice: bool) -> Any:
    def requantize_with_numpy(
        sums: Any, bias: Any, multiplier: Any, shift: Any, zero_point: Any, low: Any, high: Any
    ) -> Any:
        whole = (sums + bias).astype(np.int64) * multiplier
        v = (whole + (1 << 30)) >> 31 if rounds_twice else whole >> 32
        v = ((v - (v < 0) * rounds_twice >> shift) + 1 >> 1) + zero_point
        return np.clip(v, low, high).astype(np.int8)

    return requantize_with_numpy


def _helium_or_portable_variants(function: str, assembly_body: str, portable_body: str) -> tuple[CVariant, CVariant]:
    """Return both variants of a function, whose text has BODY where they differ."""
    helium_text = function.replace("BODY", assembly_body)
    return CVariant(helium_text, requires=("mve",)), CVariant(function.replace("BODY", portable_body))


def _quote_assembly_lines(*lines: str) -> str:
    return "".join(f'      "{line}\\n"\n' for line in lines)


_COPY_ASSEMBLY: Final = "dlstp.8 lr, %2", "1: vldrb.8 q0, [%1], #16", "vstrb.8 q0, [%0], #16", "letp lr, 1b"
_COPY_VARIANTS: Final = _helium_or_portable_variants(
    """\
/* A copy of bytes. */
$inline void aotc_bytes(int8_t *to, const int8_t *from, ptrdiff_t bytes) {
BODY}
""",
    """\
  __asm__ volatile(
TEXT      : "+r"(to), "+r"(from)
      : "r"(bytes)
      : "q0", "lr", "cc", "memory");
""".replace("TEXT", _quote_assembly_lines(*_COPY_ASSEMBLY)),
    "  memcpy(to, from, (size_t)bytes);\n",
)


def _matvec_4_rows_assembly() -> Iterator[str]:
    """Yield the assembly of four dot products of r12 bytes: data at r1, rows of weights from r2."""
    yield from ("push {r4-r11, lr}", "ldr r12, [sp, #36]", "subs r3, #4", "blt 3f")
    # four outputs at a time
    yield from ("1: mov r11, r1", "add r5, r2, r12", "add r7, r5, r12", "add r9, r7, r12")
    yield from (f"mov {total}, #0" for total in ("r4", "r6", "r8", "r10"))
    yield from ("dlstp.8 lr, r12", "2: vldrb.8 q0, [r11], #16")
    for total, weights in (("r4", "r2"), ("r6", "r5"), ("r8", "r7"), ("r10", "r9")):
        yield from (f"vldrb.8 q1, [{weights}], #16", f"vmladava.s8 {total}, q0, q1")
    yield from ("letp lr, 2b", "strd r4, r6, [r0], #8", "strd r8, r10, [r0], #8")
    # pointers are moved by whole vectors
    yield from ("sub r11, r11, r1", "sub r11, r12, r11")
    yield from ("add r2, r9, r11", "subs r3, #4", "bge 1b")
    yield from ("3: adds r3, #4", "beq 6f", "4: mov r11, r1")
    yield from ("mov r5, r2", "mov r4, #0", "dlstp.8 lr, r12")
    yield from ("5: vldrb.8 q0, [r11], #16", "vldrb.8 q1, [r5], #16")
    yield from ("vmladava.s8 r4, q0, q1", "letp lr, 5b")
    yield from ("str r4, [r0], #4", "add r2, r2, r12")
    yield from ("subs r3, #1", "bne 4b", "6: pop {r4-r11, pc}")


_MATVEC_VARIANTS: Final = _helium_or_portable_variants(
    "/* Sums of outputs, each with a row of weights. */\nBODY",
    """\
__attribute__((__naked__, __noinline__, __unused__)) static void
aotc_byte_rows(int32_t *sums __attribute__((__unused__)), const int8_t *x __attribute__((__unused__)),
               const int8_t *w __attribute__((__unused__)), ptrdiff_t outputs __attribute__((__unused__)),
               ptrdiff_t bytes __attribute__((__unused__))) {
  __asm__ volatile(
TEXT  );
}
""".replace("TEXT", _quote_assembly_lines(*_matvec_4_rows_assembly())),
    """\
__attribute__((__noinline__, __unused__)) static void
aotc_byte_rows(int32_t *sums, const int8_t *x, const int8_t *w, ptrdiff_t outputs, ptrdiff_t bytes) {
  for (; outputs > 0; --outputs, ++sums, w += bytes) {
    *sums = 0;
    for (ptrdiff_t k = 0; k < bytes; ++k)
      *sums += x[k] * w[k];
  }
}
""",
)


def _depthwise_16_channels_assembly() -> Iterator[str]:
    """Yield the assembly of the depthwise sums of 16 channels."""
    yield from (f"vmov.i32 q{k}, #0" for k in range(4))
    yield from ("dls lr, %3", "1:")
    for first, place in ((0, ""), (2, ", #8")):
        yield from (f"vldrb.s16 q4, [%1{place}]", f"vldrb.s16 q5, [%2{place}]")
        for k, half in enumerate("bt"):
            yield from (f"vmull{half}.s16 q6, q4, q5", f"vadd.i32 q{first + k}, q{first + k}, q6")
    yield from ("add %1, %1, %4", "add %2, %2, %5", "le lr, 1b")
    for pair in ("{q0, q1}", "{q2, q3}"):
        yield from (f"vst20.32 {pair}, [%0]", f"vst21.32 {pair}, [%0]!")


def _depthwise_4_channels_assembly() -> Iterator[str]:
    """Yield the assembly of the depthwise sums of up to four channels."""
    yield from ("vctp.32 %6", "vmov.i32 q0, #0", "dls lr, %3")
    yield from ("1: vpstt", "vldrbt.s32 q1, [%1]")
    yield from ("vldrbt.s32 q2, [%2]", "vmul.i32 q1, q1, q2", "vadd.i32 q0, q0, q1")
    yield from ("add %1, %1, %4", "add %2, %2, %5", "le lr, 1b", "vpst", "vstrwt.32 q0, [%0]")


_DEPTHWISE_VARIANTS: Final = _helium_or_portable_variants(
    """\
/* Sums of channels by weights of their own; those of a tap are some bytes apart from those of the next one. */
__attribute__((__noinline__, __unused__)) static void
aotc_byte_taps(int32_t *sums, const int8_t *x, const int8_t *w, ptrdiff_t taps, ptrdiff_t apart, ptrdiff_t channels) {
BODY}
""",
    """\
  ptrdiff_t left = channels;
  while (left > 0) {
    const int8_t *data = x;
    const int8_t *weights = w;
    const ptrdiff_t size = left >= 16 ? 16 : 4;
    int32_t *to = sums;
    if (size == 16)
      __asm__ volatile(
SIXTEEN          : "+r"(to), "+l"(data), "+l"(weights)
          : "r"(taps), "r"(channels), "r"(apart)
          : "q0", "q1", "q2", "q3", "q4", "q5", "q6", "lr", "cc", "memory");
    else
      __asm__ volatile(
FOUR          : "+r"(to), "+l"(data), "+l"(weights)
          : "r"(taps), "r"(channels), "r"(apart), "r"(left)
          : "q0", "q1", "q2", "lr", "cc", "memory");
    left -= size;
    sums += size;
    x += size;
    w += size;
  }
""".replace("SIXTEEN", _quote_assembly_lines(*_depthwise_16_channels_assembly())).replace(
        "FOUR", _quote_assembly_lines(*_depthwise_4_channels_assembly())
    ),
    """\
  for (ptrdiff_t c = 0; c < channels; ++c) {
    sums[c] = 0;
    for (ptrdiff_t t = 0; t < taps; ++t)
      sums[c] += x[t * channels + c] * w[t * apart + c];
  }
""",
)


def _requantize_variants(rounds_twice: bool) -> tuple[CVariant, CVariant]:
    """Return the C function of requantization, in assembly for MVE and portable: it rounds as the
    operator `scale_twice` if `rounds_twice` is True, else as `scale_once`.
    """
    high = ("vqrdmulh.s32 q0, q0, q1", "vshr.s32 q1, q0, #31", "vadd.i32 q0, q0, q1") if rounds_twice else ()
    text = (
        *("vdup.32 q2, %[low]", "vdup.32 q3, %[high]"),
        *("dlstp.32 lr, %[count]", "1: vldrw.32 q0, [%[sums]], #16"),
        *("vldrw.32 q1, [%[bias]], #16", "vadd.i32 q0, q0, q1", "vldrw.32 q1, [%[multiplier]], #16"),
        *(high or ("vmulh.s32 q0, q0, q1",)),
        # a shift to the right by one more is one to the left by its complement, which rounds halves up
        *("vldrw.32 q1, [%[shift]], #16", "vmvn q1, q1", "vrshl.s32 q0, q0, q1", "vadd.i32 q0, q0, %[zero]"),
        *("vmax.s32 q0, q0, q2", "vmin.s32 q0, q0, q3", "vstrb.32 q0, [%[to]], #4", "letp lr, 1b"),
    )
    plain = (
        "int32_t v = (int32_t)((x * multiplier[k] + (1 << 30)) >> 31);\n    v += v >> 31;"
        if rounds_twice
        else "int32_t v = (int32_t)(x * multiplier[k] >> 32);"
    )
    return _helium_or_portable_variants(
        """\
/* Sums with their biases, scaled, as bytes. */
__attribute__((__noinline__, __unused__)) static void
aotc_NAME(int8_t *to, const int32_t *sums, const int32_t *bias, const int32_t *multiplier,
                     const int32_t *shift, int32_t zero, int32_t low, int32_t high, ptrdiff_t count) {
BODY}
""",
        """\
  __asm__ volatile(
TEXT      : [to] "+l"(to), [sums] "+r"(sums), [bias] "+r"(bias), [multiplier] "+r"(multiplier), [shift] "+r"(shift)
      : [zero] "r"(zero), [low] "r"(low), [high] "r"(high), [count] "r"(count)
      : "q0", "q1", "q2", "q3", "lr", "cc", "memory");
""".replace("TEXT", _quote_assembly_lines(*text)),
        """\
  for (ptrdiff_t k = 0; k < count; ++k) {
    const int64_t x = (int32_t)((uint32_t)sums[k] + (uint32_t)bias[k]);
    PLAIN
    v = (((v >> shift[k]) + 1) >> 1) + zero;
    to[k] = (int8_t)(v < low ? low : v > high ? high : v);
  }
""".replace("PLAIN", plain),
    )


def _depthwise_extents(x: int, _: int, tap_count: int, tap_stride: int) -> tuple[int, ...]:
    """Return the elements of the sums, data and weights of depthwise sums; none for no taps, and for a
    distance below 0 between the weights of taps.
    """
    if tap_count < 1 or tap_stride < 0:
        return 0, 0, 0
    channels = x // tap_count
    return channels, tap_count * channels, (tap_count - 1) * tap_stride + channels


def instruction_definitions() -> Iterator[Instruction]:
    """Yield the Helium micro-kernels as definitions of instructions: operand types, meaning in numpy
    and C code.
    """
    run, number = "int8[]", "int32"
    scaled = ("int32[]",) * 4 + (number,) * 3
    rest = "{1}, {2}, {3}, {4}, {5}, {6}, {7}, {m}"
    taps = "{1}, {2}, {3}, {4}, {m} / {3}"

    def matvec_extents(x: int, weights: int) -> tuple[int, ...]:
        outputs = weights // max(x, 1)
        return outputs, x, outputs * x

    def requantize_extents(sums: int, *_: int) -> tuple[int, ...]:
        return (sums,) * 5

    table = (
        ("bytes", (run,), "int8[]", lambda x: (x, x), _copy_bytes_numpy_reference, "{1}, {n}", _COPY_VARIANTS),
        (
            "byte_rows",
            (run, run),
            "int32[]",
            matvec_extents,
            _matvec_numpy_reference,
            "{1}, {2}, {n} / {m}, {m}",
            _MATVEC_VARIANTS,
        ),
        (
            "byte_taps",
            (run, run, number, number),
            "int32[]",
            _depthwise_extents,
            _depthwise_numpy_reference,
            taps,
            _DEPTHWISE_VARIANTS,
        ),
        (
            "requantize_once",
            scaled,
            "int8[]",
            requantize_extents,
            _make_requantize_numpy_reference(False),
            rest,
            _requantize_variants(False),
        ),
        (
            "requantize_twice",
            scaled,
            "int8[]",
            requantize_extents,
            _make_requantize_numpy_reference(True),
            rest,
            _requantize_variants(True),
        ),
    )
    return (define_memory_micro_kernel(*row) for row in table)
