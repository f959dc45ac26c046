# SPDX-License-Identifier: Apache-2.0
"""The table of instructions and functions of `Call` and `Execute`: types, numpy semantics, effects,
text per language.

INSTRUCTIONS["fma"].meaning(a, b, c)                         # numpy: a * b + c, rounded once
INSTRUCTIONS["isnan"].text_for_dialect("gnu-c", lanes=1)    # .call is "{0:11} != {0:11}"

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
    arm_sdot_smmla,
    bfloat16_dot_products,
    float_to_int8,
    int4_unpacking,
    int8_dot_products,
    numpy_semantics,
    warp_matrix_fragments,
)
from aotc.tir.instruction_definition import (
    Execution,
    Extent,
    Instruction,
    InstructionText,
    check_instruction_rows,
    define_gpu_instruction,
    define_texts_by_features,
    define_warp_matrix_instruction,
)
from aotc.tir.processor_features import CVariant

#: The dialects of C.
_C_DIALECTS: Final = ("arm-c", "bare-c", "c99", "gnu-c")


def _raise_defined_as_tensor_program(*_: Any) -> Any:
    raise NotImplementedError("this function is a tensor program")


def _define_instructions(operand_kinds: str, names: str, **facts: Any) -> list[Instruction]:
    kinds = tuple(operand_kinds.split())
    meanings = {name: numpy_semantics.FUNCTIONS.get(name, _raise_defined_as_tensor_program) for name in names.split()}
    return [Instruction(name=n, takes=kinds, meaning=meaning, **facts) for n, meaning in meanings.items()]


def _define_saturation(dtype: str, assembly_mnemonic: str) -> Instruction:
    """Return the instruction that converts a number to the nearest int8 or uint8 value, saturated.

    It is printed from its definition as a tensor program except for Arm's SSAT and USAT.
    """
    ends = (int(DType(dtype).min), int(DType(dtype).max))
    call, head = f"aotc_clamp_i32_{dtype}({{0}})", f"$inline {dtype}_t aotc_clamp_i32_{dtype}(int32_t x) {{\n"
    plain = f"  return ({dtype}_t)(x < {ends[0]} ? {ends[0]} : x > {ends[1]} ? {ends[1]} : x);\n"
    assembly = f"""\
  __asm__("{assembly_mnemonic} %0, #8, %0" : "+r"(x));
  return ({dtype}_t)x;
"""
    variants = CVariant(assembly, ("sat",), compiler="defined(__GNUC__)"), CVariant(plain)
    template = InstructionText(call=call, dialects=("arm-c",), lanes="one", function=f"{head}VARIANT}}\n")
    texts = define_texts_by_features(template, variants)[:1]
    return Instruction(
        name=f"saturate_{dtype}", takes=("word",), gives=dtype, meaning=_raise_defined_as_tensor_program, texts=texts
    )


def _define_fixed_point_multiply(name: str, product_statement: str) -> Instruction:
    """Return the fixed-point multiplication: the product of two integers, shifted right with
    rounding.
    """
    head = f"$inline int32_t aotc_scaled_i32_{name}(int32_t x, int32_t multiplier, int32_t shift) {{"
    function = f"{head}\n{product_statement}\n  return ((v >> shift) + 1) >> 1;\n}}\n"
    call = f"aotc_scaled_i32_{name}({{0}}, {{1}}, {{2}})"
    text = InstructionText(call=call, dialects=_C_DIALECTS, lanes="one", function=function)
    return Instruction(
        name=f"scale_{name}", takes=("word",) * 3, meaning=_raise_defined_as_tensor_program, texts=(text,)
    )


def _define_warp_shuffle(name: str, cuda_intrinsic: str, source_lane: Callable[[Any, Any], Any]) -> Instruction:
    """Return a warp shuffle: each thread reads the value of another thread, or its own if there is
    none.
    """

    def simulate_warp_shuffle(values: Any, shift: Any) -> Any:
        lanes = np.arange(THREADS_PER_WARP)
        other = source_lane(lanes, shift)
        return values[np.where(other < THREADS_PER_WARP, other, lanes)]

    text = InstructionText(call=f"{cuda_intrinsic}(0xffffffffu, {{0}}, {{1}})", dialects=("cuda",))
    effects = Execution(result="number", scope="warp")
    return Instruction(
        name=name, takes=("number", "int32"), meaning=simulate_warp_shuffle, texts=(text,), execution=effects
    )


_ASYNC_COPY_CUDA: Final = """\
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
_ASYNC_WAIT_CUDA: Final = """\
#if !defined(AOTC_EMULATED)
/* Ends a group of copies, and waits for all but the latest ones. */
template <int groups> $inline void aotc_wait() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;\\n  cp.async.wait_group %0;" :: "n"(groups) : "memory");
#endif
}
#endif
"""
_BLOCK_ARRIVE_CUDA: Final = """\
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


def _select_numpy_reference(cond: Any, a: Any, b: Any) -> Any:
    return np.where(cond, a, b).astype(a.dtype)[()]


def _quarter_of_interleaved_vectors(quarter: int, *vectors: Any) -> Any:
    """Return a quarter of the elements of four interleaved vectors."""
    size = len(vectors[0])
    return np.stack(vectors, axis=1).reshape(-1)[quarter * size : (quarter + 1) * size]


def _transpose_square(square: Any, *_: Any) -> Any:
    return np.transpose(square)


def _transposed_square_extents(_: int, side: int, source_pitch: int, result_pitch: int) -> tuple[Extent, Extent]:
    """Return the extents of a transposed square and of the square that it is read from."""
    return Extent(side, side, result_pitch), Extent(side, side, source_pitch)


def _sum_square_rows(square: Any, *_: Any) -> Any:
    """Return the sums of the rows of a square, whose halves are added until one element is left."""
    while square.shape[1] > 1:
        half = square.shape[1] // 2
        square = square[:, :half] + square[:, half:]
    return square[:, 0]


def _summed_square_extents(_: int, side: int, source_pitch: int) -> tuple[Extent, Extent]:
    """Return the extents of the sums of the rows of a square, and of the square."""
    return Extent(side), Extent(side, side, source_pitch)


def _copy_unchanged(elements: Any) -> Any:
    return elements


def _do_nothing(*_: Any) -> None:
    """The meaning of an instruction without a result."""


def _count_arrived_block(count: Any, blocks: Any) -> tuple[bool, Any]:
    """Return True for the last of some thread blocks, and the new value of their counter."""
    return bool(count + 1 == blocks), (count + 1) % blocks


def _define_statements() -> Iterator[Instruction]:
    """Yield the instructions that move memory, wait for copies, or synchronize threads."""
    yield Instruction(
        name="transpose_square",
        takes=("number[]", "int64", "int64", "int64"),
        meaning=_transpose_square,
        execution=Execution(result="number[]", extents=_transposed_square_extents),
    )
    yield Instruction(
        name="sum_square_rows",
        takes=("number[]", "int64", "int64"),
        meaning=_sum_square_rows,
        execution=Execution(result="number[]", extents=_summed_square_extents),
    )
    copy_text = InstructionText(
        call="aotc_copy<{bytes}>({0}, {1}, {inside})", dialects=("cuda",), function=_ASYNC_COPY_CUDA
    )
    yield Instruction(
        name="copy_async",
        takes=("number[]",),
        meaning=_copy_unchanged,
        texts=(copy_text,),
        execution=Execution(result="number[]", extents=lambda size: (size, size), asynchronous=True, is_aligned=True),
    )
    yield Instruction(
        name="wait",
        takes=("int64",),
        meaning=_do_nothing,
        texts=(InstructionText(call="aotc_wait<{0}>()", dialects=("cuda",), function=_ASYNC_WAIT_CUDA),),
        execution=Execution(awaits_copies=True),
    )
    yield Instruction(
        name="arrive",
        takes=("int32", "int32"),
        meaning=_count_arrived_block,
        texts=(InstructionText(call="aotc_arrive({0}, {1})", dialects=("cuda",), function=_BLOCK_ARRIVE_CUDA),),
        execution=Execution(result="bool", scope="block", barrier=True, counts_blocks=True),
    )
    yield Instruction(
        name="sync",
        takes=(),
        meaning=_do_nothing,
        texts=(
            InstructionText(call="__syncthreads()", dialects=("cuda",)),
            InstructionText(call="AOTC_TEAM_SYNC(team)"),
        ),
        execution=Execution(scope="block", barrier=True),
    )


def _define_tensor_core_instructions(dtype: DType, kind: str) -> Iterator[Instruction]:
    """Yield the tensor-core instructions that load matrices to registers and multiply them."""
    words = {"DTYPE": dtype, "KIND": kind}
    words |= {"STEPS": str(256 // dtype.bits), "BITS": f"uint{dtype.bits}_t"}
    if dtype.bits == 32:
        yield define_gpu_instruction(
            "tf32",
            (dtype,),
            "uint32",
            warp_matrix_fragments.float32_to_tf32_bits_reference,
            warp_matrix_fragments.ROUND_TO_TF32_CUDA,
            least=80,
        )
    else:
        for name, meaning, text in warp_matrix_fragments.ldmatrix_names_semantics_and_cuda_code(str(dtype)):
            yield define_warp_matrix_instruction(name, (f"{dtype}[8]",), "uint32[4]", meaning, text, least=75)
    arg_types = ("float32[4]", "uint32[4]", "uint32[2]")
    meaning, text = (
        partial(warp_matrix_fragments.tensor_core_multiply_add_reference, dtype, dtype),
        warp_matrix_fragments.FLOAT_MMA_CUDA,
    )
    yield define_warp_matrix_instruction(f"mma_{dtype}", arg_types, "float32[4]", meaning, text, least=80, **words)


def _define_int8_instructions() -> Iterator[Instruction]:
    """Yield the int8 dot products and the conversions to int8."""
    for table in (
        int8_dot_products,
        arm_sdot_smmla,
        float_to_int8,
        int4_unpacking,
        arm_dsp_kernels,
        arm_mve_kernels,
        amx_kernels,
    ):
        yield from table.instruction_definitions()
    arg_types = ("int32[4]", "int32[4]", "int32[2]")
    for name, meaning, text in warp_matrix_fragments.int8_mma_instructions():
        yield define_warp_matrix_instruction(name, arg_types, "int32[4]", meaning, text, least=80)
    for k in range(int8_dot_products.BYTES_PER_DOT):
        yield Instruction(
            name=f"quarter{k}",
            takes=("integer",) * int8_dot_products.BYTES_PER_DOT,
            meaning=partial(_quarter_of_interleaved_vectors, k),
        )


#: Threads of a device that go in step, those of a block from a multiple of this number on.
THREADS_PER_WARP: Final = 32
#: Functions of one float that libraries have.
ELEMENTARY_FUNCTION_NAMES: Final = """
exp exp2 expm1 log log2 log10 log1p sqrt cbrt sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf
tgamma lgamma floor ceil trunc round_even round_away
"""
_ALL_INSTRUCTIONS: Final = (
    *_define_instructions("float", ELEMENTARY_FUNCTION_NAMES),
    *_define_instructions("float", "rsqrt"),
    *_define_instructions("float float", "atan2 fmod copysign"),
    *_define_instructions("float float float", "fma"),
    # a product that is rounded by itself, whatever is added to it
    *_define_instructions("float float", "product", texts=(InstructionText(call="{0:13} * {1:14}", level=13),)),
    *_define_instructions("integer", "popcount clz"),
    # a product by a multiplier, / 2^(33 + shift) with halves up; / 2^31 and / 2^(1 + shift) with halves up, then away
    # from zero: no shift is negative, none above 29 and 30
    _define_saturation("int8", "ssat"),
    _define_saturation("uint8", "usat"),
    _define_fixed_point_multiply("once", "  const int32_t v = (int32_t)((int64_t)x * multiplier >> 32);"),
    _define_fixed_point_multiply(
        "twice", "  int32_t v = (int32_t)(((int64_t)x * multiplier + (1 << 30)) >> 31);\n  v += v >> 31;"
    ),
    *_define_instructions("number", "abs"),
    *_define_instructions("number number", "pow"),
    # the greater or lesser of two numbers, the second one where neither is: as x86 has it
    Instruction(name="above", takes=("float", "float"), meaning=lambda a, b: _select_numpy_reference(a > b, a, b)),
    Instruction(name="below", takes=("float", "float"), meaning=lambda a, b: _select_numpy_reference(a < b, a, b)),
    # a number rounded to an even integer, plus another one, as far as that is in range; NaN is the least of the range
    *_define_instructions("single single", "quantize_int8", gives="int8"),
    *_define_instructions("single single", "quantize_uint8", gives="uint8"),
    *_define_instructions(
        "number", "isnan", gives="bool", texts=(InstructionText(call="{0:11} != {0:11}", level=9, lanes="one"),)
    ),
    _define_warp_shuffle("shuffle_xor", "__shfl_xor_sync", np.bitwise_xor),
    _define_warp_shuffle("shuffle_down", "__shfl_down_sync", np.add),
    *_define_tensor_core_instructions(DType("float16"), "f16"),
    *_define_tensor_core_instructions(DType("bfloat16"), "bf16"),
    *_define_tensor_core_instructions(DType("float32"), "tf32"),
    *_define_int8_instructions(),
    *bfloat16_dot_products.instruction_definitions(),
    *_define_statements(),
)
check_instruction_rows(_ALL_INSTRUCTIONS)
#: By name.  `abs` and `pow` take integers, too, where `pow` is repeated multiplication modulo the width.
INSTRUCTIONS: Final[dict[str, Instruction]] = {row.name: row for row in _ALL_INSTRUCTIONS}
