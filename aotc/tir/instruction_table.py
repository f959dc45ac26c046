# SPDX-License-Identifier: Apache-2.0
"""The table of instructions and functions of `Call` and `Intrinsic`: types, numpy semantics, text per language.

INSTRUCTIONS["fma"].meaning(a, b, c)            # numpy: a * b + c, rounded once
INSTRUCTIONS["isnan"].text("gnu-c", lanes=1)    # "{0:11} != {0:11}"

A processor's own instruction is one more row: its operands' types, its meaning in
numpy for the interpreter, and for each language that has it a call or a whole
function.  What has no text is spelled by the language's library.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import numpy as np

from aotc.ir import DType
from aotc.tir import (
    amx_kernels,
    arm_dsp_kernels,
    arm_mve_kernels,
    float_to_int8,
    grouped_dot_products,
    int4_unpacking,
    int8_dot_products,
    numpy_semantics,
    warp_matrix_fragments,
)
from aotc.tir.instruction_definition import Instruction, Text, on_device

#: The dialects of C, and those in which a scalar kernel has no inline assembly.
_C: Final = ("arm-c", "bare-c", "c99", "gnu-c")
_PLAIN: Final = _C[1:]


def _program(*_: Any) -> Any:
    raise NotImplementedError("this function is a tensor program")


def _rows(takes: str, names: str, **facts: Any) -> list[Instruction]:
    kinds = tuple(takes.split())
    meanings = {name: numpy_semantics.FUNCTIONS.get(name, _program) for name in names.split()}
    return [Instruction(name=n, takes=kinds, meaning=meaning, **facts) for n, meaning in meanings.items()]


def _saturated(dtype: str, word: str) -> Instruction:
    """Return the instruction that converts a number to the nearest int8 or uint8 value, saturated."""
    ends = (int(DType(dtype).min), int(DType(dtype).max))
    call, head = f"aotc_clamp_i32_{dtype}({{0}})", f"$inline {dtype}_t aotc_clamp_i32_{dtype}(int32_t x) {{\n"
    plain = f"  return ({dtype}_t)(x < {ends[0]} ? {ends[0]} : x > {ends[1]} ? {ends[1]} : x);\n"
    assembly = f"""\
#if defined(__ARM_FEATURE_SAT) && defined(__GNUC__)
  __asm__("{word} %0, #8, %0" : "+r"(x));
  return ({dtype}_t)x;
#else
{plain}#endif
"""
    bodies = {_PLAIN: plain, ("arm-c",): assembly}
    texts = (Text(call=call, dialects=d, lanes="one", function=f"{head}{body}}}\n") for d, body in bodies.items())
    return Instruction(name=f"saturate_{dtype}", takes=("word",), gives=dtype, meaning=_program, texts=tuple(texts))


def _scaled(name: str, first: str) -> Instruction:
    """Return the fixed-point multiplication: the product of two integers, shifted right with rounding."""
    head = f"$inline int32_t aotc_scaled_i32_{name}(int32_t x, int32_t multiplier, int32_t shift) {{"
    function = f"{head}\n{first}\n  return ((v >> shift) + 1) >> 1;\n}}\n"
    call = f"aotc_scaled_i32_{name}({{0}}, {{1}}, {{2}})"
    text = Text(call=call, dialects=_C, lanes="one", function=function)
    return Instruction(name=f"scale_{name}", takes=("word",) * 3, meaning=_program, texts=(text,))


def _shuffle(name: str, call: str, lane: Callable[[Any, Any], Any]) -> Instruction:
    """Return a warp shuffle: each thread reads the value of another thread, or its own if there is none."""

    def meaning(values: Any, by: Any) -> Any:
        own = np.arange(WARP)
        other = lane(own, by)
        return values[np.where(other < WARP, other, own)]

    text = Text(call=f"{call}(0xffffffffu, {{0}}, {{1}})", dialects=("cuda",))
    return Instruction(name=name, takes=("number", "int32"), meaning=meaning, texts=(text,), warp=True)


_COPY: Final = """\
#if !defined(AOTC_EMULATED)
/* Begins to copy some bytes to shared memory; zeros where there are none inside. */
template <int bytes> $inline void aotc_copy(void *to, const void *from, bool inside) {
#if __CUDA_ARCH__ >= 800
  const unsigned at = (unsigned)__cvta_generic_to_shared(to);
  if constexpr (bytes == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"(at), "l"(from), "r"(inside ? 16 : 0) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
                 :: "r"(at), "l"(from), "n"(bytes), "r"(inside ? bytes : 0) : "memory");
#else
  for (int k = 0; k < bytes / 4; ++k)
    ((int *)to)[k] = inside ? ((const int *)from)[k] : 0;
#endif
}
#endif
"""
_WAIT: Final = """\
#if !defined(AOTC_EMULATED)
/* Ends a group of copies, and waits for all but the latest ones. */
template <int groups> $inline void aotc_wait() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;\\n  cp.async.wait_group %0;" :: "n"(groups) : "memory");
#endif
}
#endif
"""
_ARRIVE: Final = """\
#if !defined(AOTC_EMULATED)
/* Whether this block is the last of some: it sees what all of them have written. */
$inline bool aotc_arrive(int32_t &count, int32_t blocks) {
  __threadfence();
  __syncthreads();
  bool last = false;
  if (threadIdx.x == 0)
    last = atomicInc((unsigned *)&count, (unsigned)blocks - 1) == (unsigned)blocks - 1;
  last = __syncthreads_or(last) != 0;
  __threadfence();
  return last;
}
#endif
"""


def _chosen(cond: Any, a: Any, b: Any) -> Any:
    return np.where(cond, a, b).astype(a.dtype)[()]


def _quarter(k: int, *vectors: Any) -> Any:
    """Return a quarter of the elements of four interleaved vectors."""
    size = len(vectors[0])
    return np.stack(vectors, axis=1).reshape(-1)[k * size : (k + 1) * size]


def _said(name: str, call: str, function: str) -> Instruction:
    """Return a GPU instruction that is a statement without a value."""
    text = Text(call=call, dialects=("cuda",), function=function)
    return Instruction(name=name, takes=(), meaning=_program, texts=(text,))


def _matrices(dtype: DType, kind: str) -> Iterator[Instruction]:
    """Yield the tensor-core instructions that load matrices to registers and multiply them."""
    words = {"DTYPE": dtype, "KIND": kind}
    words |= {"STEPS": str(256 // dtype.bits), "BITS": f"uint{dtype.bits}_t"}
    if dtype.bits == 32:
        yield on_device(
            "tf32", (dtype,), "uint32", warp_matrix_fragments.rounded, warp_matrix_fragments.ROUND, least=80
        )
    else:
        for name, meaning, text in warp_matrix_fragments.loads(str(dtype)):
            yield on_device(name, (f"{dtype}x8",), "uint32x4", meaning, text, least=75, warp=True)
    takes = ("float32x4", "uint32x4", "uint32x2")
    meaning, text = partial(warp_matrix_fragments.product, dtype, dtype), warp_matrix_fragments.MULTIPLY
    yield on_device(f"mma_{dtype}", takes, "float32x4", meaning, text, least=80, warp=True, **words)


def _of_bytes() -> Iterator[Instruction]:
    """Yield the int8 dot products and the conversions to int8."""
    for table in (
        int8_dot_products,
        grouped_dot_products,
        float_to_int8,
        int4_unpacking,
        arm_dsp_kernels,
        arm_mve_kernels,
        amx_kernels,
    ):
        yield from table.rows()
    takes = ("int32x4", "int32x4", "int32x2")
    for name, meaning, text in warp_matrix_fragments.sums_of_bytes():
        yield on_device(name, takes, "int32x4", meaning, text, least=80, warp=True)
    for k in range(int8_dot_products.GROUP):
        yield Instruction(
            name=f"quarter{k}", takes=("integer",) * int8_dot_products.GROUP, meaning=partial(_quarter, k)
        )


#: Threads of a device that go in step, those of a block from a multiple of this number on.
WARP: Final = 32
#: Functions of one float that libraries have.
ELEMENTARY: Final = """
exp exp2 expm1 log log2 log10 log1p sqrt cbrt sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf
tgamma lgamma floor ceil trunc round_even round_away
"""
_TABLE: Final = (
    *_rows("float", ELEMENTARY),
    *_rows("float", "rsqrt"),
    *_rows("float float", "atan2 fmod copysign"),
    *_rows("float float float", "fma"),
    # a product that is rounded by itself, whatever is added to it
    *_rows("float float", "product", texts=(Text(call="{0:13} * {1:14}", level=13),)),
    *_rows("integer", "popcount clz"),
    # a product by a multiplier, / 2^(33 + shift) with halves up; / 2^31 and / 2^(1 + shift) with halves up, then away
    # from zero: no shift is negative, none above 29 and 30
    _saturated("int8", "ssat"),
    _saturated("uint8", "usat"),
    _scaled("once", "  const int32_t v = (int32_t)((int64_t)x * multiplier >> 32);"),
    _scaled("twice", "  int32_t v = (int32_t)(((int64_t)x * multiplier + (1 << 30)) >> 31);\n  v += v >> 31;"),
    *_rows("number", "abs"),
    *_rows("number number", "pow"),
    # the greater or lesser of two numbers, the second one where neither is: as x86 has it
    Instruction(name="above", takes=("float", "float"), meaning=lambda a, b: _chosen(a > b, a, b)),
    Instruction(name="below", takes=("float", "float"), meaning=lambda a, b: _chosen(a < b, a, b)),
    # a number rounded to an even integer, plus another one, as far as that is in range; NaN is the least of the range
    *_rows("single single", "quantize_int8", gives="int8"),
    *_rows("single single", "quantize_uint8", gives="uint8"),
    *_rows("number", "isnan", gives="bool", texts=(Text(call="{0:11} != {0:11}", level=9, lanes="one"),)),
    _said("copy_async", "aotc_copy<{2}>({0}, {1}, {3})", _COPY),
    _said("wait", "aotc_wait<{0}>()", _WAIT),
    on_device("arrive", ("int32", "int32"), "bool", _program, _ARRIVE),
    _shuffle("shuffle_xor", "__shfl_xor_sync", np.bitwise_xor),
    _shuffle("shuffle_down", "__shfl_down_sync", np.add),
    *_matrices(DType("float16"), "f16"),
    *_matrices(DType("bfloat16"), "bf16"),
    *_matrices(DType("float32"), "tf32"),
    *_of_bytes(),
    Instruction(name="turn", takes=("number",), meaning=np.transpose, block=True),
)
#: By name.  `abs` and `pow` take integers, too, where `pow` is repeated multiplication modulo the width.
INSTRUCTIONS: Final[dict[str, Instruction]] = {row.name: row for row in _TABLE}
