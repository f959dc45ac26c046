# SPDX-License-Identifier: Apache-2.0
"""Micro-kernels: the instructions and functions that compute a small tile of a contraction, as data.

A target lists the micro-kernels that it has (`Target.micro_kernels`); the contraction generator
(`aotc.tir.schedule.contraction`) makes candidates for each one that fits the operand types, and
compares them in cycles. Multiply-adds (`MULTIPLY_ADD`) exist on every target.

    fast = replace(DOT4, rate=2, registers=1, split=0, latency=5)     # one instruction instead of several
    replace(target, micro_kernels=(fast,))
"""

from dataclasses import replace
from typing import Final

from aotc.ir import frozen


@frozen
class BlockShape:
    """Shape of the tile of a contraction that a GPU thread block computes.

    rows, columns       threads of a group along rows and columns of the output; a warp has 8 rows and 4 columns
    high, wide          accumulators of each thread along rows and columns
    reduction_groups    groups of threads that split the steps of a piece
    depth               reduction steps, or groups of steps, of a piece of the operands in shared memory
    splits              blocks that compute one tile
    """

    rows: int
    columns: int
    high: int
    wide: int
    reduction_groups: int = 1
    depth: int = 16
    splits: int = 1


@frozen(kw_only=True)
class MicroKernel:
    """A micro-kernel, with its tile, the layouts of its operands, and its cost.

    name              identifies the micro-kernel in names of candidates and in tuning records
    level             "registers": instructions on vectors, in tiles whose accumulators are registers;
                      "memory": a function that reads both operands from memory and stores the sums
                      there (a memory micro-kernel); "threads": instructions of each thread of a GPU block,
                      with operands in shared memory; "warp": instructions of a warp (tensor cores), with
                      operands in shared memory
    operands          accepted types of data and weights; empty for all
    sums              type of the sums; "" for any
    requires          processor features that it needs, which the target must have (`Target.features`)

    group             adjacent reduction steps that an instruction adds to one accumulator (k)
    groups            groups of one output position that one load of data provides
    positions, outputs, depth    the tile (m, n, k): output positions, outputs and reduction steps of one
                      instruction, or of one iteration of a function's inner loop
    min_positions, max_positions, max_outputs    the sizes of one call of a function
    min_run_bytes     fewest contiguous bytes of the reduction of a call
    min_reduction_bytes    fewest bytes of the whole reduction

    data              layout of the data: "broadcast" (one element or group, repeated in a vector),
                      "im2col" (the values of a position are contiguous), "strided" (positions and
                      kernel rows at constant distances); "tile" (copied to shared memory)
    weights           layout of the weights: "blocks" (groups of `block` outputs are contiguous), "rows"
                      (all weights of an output are contiguous), "any" (packed for no micro-kernel)
    block             outputs of a block
    max_blocks        blocks that weights are packed in at a time are 1, 2, 4 ... of this size, at most so
                      many, if that pads few outputs
    lanes             accepted numbers of accumulators of a vector; empty for all
    blocks            for GPUs: shapes of the tiles of thread blocks that are compared
    adjacent          for GPUs: adjacent accumulators of a thread, whose operands are adjacent in shared memory
    row_padding       for GPUs: elements between rows of operands in shared memory, by which threads that access a
                      column together access different memory banks

    multiply, broadcast, load    names of the instructions, in which {data}, {weights}, {lanes} and {lane}
                      stand for the types, the accumulators of a vector and the number of a group: the sum
                      of products, the conversion of a group to a word, the load of several words
    load_transposed   as `load`, for words that are not contiguous in memory; "" if there is none
    multiply_in_place, multiply_depthwise    as `multiply`, for one position whose data is in place, and
                      for data and weights of one channel each; "" if there is none
    pack, packed      name of the instruction that copies runs of `positions` output positions to the
                      im2col buffer, and the type of its elements; for GPUs, the type of the elements of
                      operands in shared memory, by default that of the sums
    pack_lanes        elements that it copies in a cycle
    finish            names of instructions, each of which may finish and store all sums of a call: the first
                      one whose meaning for an element (`ELEMENT_MEANINGS`) is the epilogue; else a loop does

    rate              instructions issued per cycle
    vector_rate, vector_registers    as `rate` (preparation included) and `registers`, if each vector of data is
                      used once: for four taps of depthwise convolutions
    registers         registers that an operand occupies, where several instructions make the sums
    split             cycles to prepare an operand for these instructions
    latency           cycles from the start of an instruction to its result
    tile_cycles       cycles of one tile of a function, or of a tile of a warp on one multiprocessor
    call_cycles       cycles of a call of a function, without its tiles
    call_positions    the overhead of a call, in output positions, by which rows of positions are divided into calls
    im2col_slowdown   factor of the time of the calls, the copy included, if they read an im2col copy of all data
    min_row_positions    fewest positions of a row that is computed by itself: shorter rows that are not whole
                      tiles are fused with the next outer axis
    run_cycles        cycles to begin the copy of a run (contiguous data of a position) by im2col
    """

    name: str
    level: str = "registers"
    operands: tuple[tuple[str, str], ...] = ()
    sums: str = ""
    requires: tuple[str, ...] = ()
    group: int = 1
    groups: int = 1
    positions: int = 1
    outputs: int = 1
    depth: int = 1
    min_positions: int = 1
    max_positions: int = 1
    max_outputs: int = 1
    min_run_bytes: int = 1
    min_reduction_bytes: int = 1
    data: str = "broadcast"
    weights: str = "blocks"
    block: int = 16
    max_blocks: int = 1
    lanes: tuple[int, ...] = ()
    blocks: tuple[BlockShape, ...] = ()
    adjacent: int = 4
    row_padding: int = 4
    multiply: str = ""
    broadcast: str = ""
    load: str = ""
    load_transposed: str = ""
    multiply_in_place: str = ""
    multiply_depthwise: str = ""
    pack: str = ""
    packed: str = ""
    pack_lanes: int = 1
    finish: tuple[str, ...] = ()
    rate: float = 1
    vector_rate: float = 1
    vector_registers: int = 1
    registers: int = 1
    split: float = 0
    latency: int = 4
    tile_cycles: float = 0
    call_cycles: float = 0
    call_positions: int = 0
    im2col_slowdown: float = 1
    min_row_positions: int = 1
    run_cycles: float = 0

    @property
    def outputs_per_weight_block(self) -> int:
        """Outputs whose weights are contiguous: those of a block, or one whose weights are a row."""
        return self.block if self.weights == "blocks" else 1

    def accepts_types(self, data: str, weights: str, sums: str) -> bool:
        """Return True if the micro-kernel multiplies data by weights of these types, with sums of
        type `sums`.
        """
        return (not self.operands or (str(data), str(weights)) in self.operands) and self.sums in ("", str(sums))

    def multiply_name(self, data: str, weights: str, lanes: int = 1, lane: int = 0) -> str:
        """Return the name of the instruction that adds products to `lanes` accumulators; `lane` is
        the number of the group of data where one load provides several.
        """
        return self.multiply.format(data=data, weights=weights, lanes=lanes, lane=lane)

    def broadcast_name(self, data: str) -> str:
        """Return the name of the instruction that makes one word of a group of data."""
        return self.broadcast.format(data=data)

    def load_name(self, data: str, lanes: int, is_transposed: bool = False) -> str:
        """Return the name of the instruction that loads `lanes` groups of data as words; of words that
        are not contiguous in memory if `is_transposed`.
        """
        return (self.load_transposed if is_transposed else self.load).format(data=data, lanes=lanes)


#: Fields that an instruction determines: the micro-kernels that have it have equal values.
FIELDS_OF_INSTRUCTION: Final = ("group", "groups", "positions", "outputs")
#: Further fields that the instruction determines if the micro-kernel is a function that reads blocks of
#: weights from memory, or an instruction of tensor cores.
FIELDS_OF_BLOCK_FUNCTION: Final = ("depth", "block")
#: Fields that name one instruction; `finish` names several.
FIELDS_THAT_NAME_INSTRUCTIONS: Final = (
    *("multiply", "broadcast", "load", "load_transposed"),
    *("multiply_in_place", "multiply_depthwise", "pack"),
)
#: Values of `MicroKernel.level`, of CPUs and of GPUs.
CPU_LEVELS: Final = ("registers", "memory")
GPU_LEVELS: Final = ("threads", "warp")
#: Layouts of data and weights of the functions that read both operands from memory.
MEMORY_LAYOUTS: Final = (("im2col", "blocks"), ("im2col", "rows"), ("strided", "blocks"))
_BYTES: Final = tuple((data, weights) for data in ("uint8", "int8") for weights in ("uint8", "int8"))
#: One product for each accumulator. Its cost is that of the target's vector unit (`Target.fma_bytes`,
#: `Target.tiles`).
MULTIPLY_ADD: Final = MicroKernel(name="multiply_add")
#: Sums of four products of bytes in each int32 accumulator, by several instructions.
DOT4: Final = MicroKernel(
    name="dot4",
    operands=_BYTES,
    sums="int32",
    group=4,
    lanes=(4, 8, 16),
    multiply="dot4_{data}_{weights}_x{lanes}",
    broadcast="word_{data}",
    load="words_{data}_x{lanes}",
    rate=0.75,
    vector_rate=0.5,
    vector_registers=2,
    registers=2,
    split=0.7,
    latency=6,
)
#: Sums of four products of bytes in one instruction (VNNI), a row for each instruction set.
_DOT4_INSTRUCTION: Final = replace(DOT4, rate=2, vector_rate=1, vector_registers=1, registers=1, split=0, latency=5)
DOT4_AVX_VNNI: Final = replace(_DOT4_INSTRUCTION, requires=("avx_vnni",))
DOT4_AVX512_VNNI: Final = replace(_DOT4_INSTRUCTION, requires=("avx512_vnni",))
#: As measured with AVX2; the instructions exist without it, too.
DOT4_AVX2: Final = replace(DOT4, vector_rate=0.35)
DOT4_AVX512BW: Final = replace(DOT4, requires=("avx512bw",), rate=0.5, vector_rate=1, vector_registers=1, split=1)
DOT4_NEON: Final = replace(DOT4, rate=0.5, vector_rate=1, vector_registers=1, registers=4, split=3)
DOT4_SDOT: Final = replace(_DOT4_INSTRUCTION, requires=("dotprod",))
#: Four groups of one vector of data, one after another (Arm SDOT by element).
SDOT_BY_LANE: Final = replace(
    DOT4_SDOT,
    name="sdot_by_lane",
    operands=(("int8", "int8"), ("uint8", "uint8")),
    groups=4,
    lanes=(4,),
    multiply="dot4_{data}_{weights}_lane{lane}",
)
#: Two positions by two outputs, eight bytes of each (Arm SMMLA).
SMMLA: Final = replace(
    DOT4_SDOT,
    name="smmla",
    operands=(("int8", "int8"), ("uint8", "uint8"), ("uint8", "int8")),
    requires=("i8mm",),
    groups=2,
    lanes=(4,),
    positions=2,
    outputs=2,
    multiply="mmla_{data}_{weights}",
)
#: Sums of two products of bfloat16 in each float32 accumulator, in one instruction (AVX512-BF16), as
#: many in a cycle as multiply-adds.
DOT2_BFLOAT16: Final = MicroKernel(
    name="dot2_bfloat16",
    operands=(("bfloat16", "bfloat16"),),
    sums="float32",
    requires=("avx512_bf16",),
    group=2,
    max_blocks=4,
    lanes=(4, 8, 16),
    multiply="dot2_bfloat16_x{lanes}",
    broadcast="word_{data}",
    latency=6,
)
#: Sums of two products of bfloat16 by BFDOT of Arm, which rounds them in another way.
DOT2_BFLOAT16_BFDOT: Final = replace(
    DOT2_BFLOAT16,
    name="dot2_bfloat16_bfdot",
    requires=("bf16",),
    lanes=(4,),
    multiply="dot2_bfloat16_bfdot_x{lanes}",
    rate=2,
    latency=5,
)
#: One product for each accumulator of a GPU thread.
THREAD_MULTIPLY_ADD: Final = MicroKernel(
    name="multiply_add",
    level="threads",
    data="tile",
    weights="any",
    blocks=(
        *(BlockShape(16, 16, 8, 8, depth=8), BlockShape(16, 16, 4, 8), BlockShape(16, 16, 8, 4)),
        *(BlockShape(16, 16, 4, 4), BlockShape(8, 8, 8, 4, 4, 32), BlockShape(8, 8, 4, 8, 4, 32)),
        *(BlockShape(8, 8, 4, 4, 4, 64), BlockShape(4, 8, 4, 4, 8, 96), BlockShape(4, 4, 4, 4, 16, 128)),
    ),
)
#: Four products of bytes in each accumulator of a GPU thread.
DP4A: Final = replace(
    THREAD_MULTIPLY_ADD,
    name="dp4a",
    operands=_BYTES,
    sums="int32",
    group=4,
    weights="blocks",
    multiply="dp4a_{data}_{weights}",
    packed="int32",
)
#: 16 x 8 sums of 16 products of 16-bit floats, by tensor cores. A warp computes 32 rows and 32 columns.
MMA_FLOAT16: Final = MicroKernel(
    name="mma_float16",
    level="warp",
    operands=(("float16", "float16"),),
    sums="float32",
    positions=16,
    outputs=8,
    depth=16,
    data="tile",
    weights="any",
    blocks=(
        *(BlockShape(32, 8, 4, 8, depth=32), BlockShape(16, 16, 4, 8, depth=32)),
        *(BlockShape(16, 8, 4, 8, depth=32), BlockShape(8, 4, 4, 8, 4, 64)),
    ),
    adjacent=2,
    row_padding=8,
    multiply="mma_float16",
    load="ldmatrix_rows_{data}",
    load_transposed="ldmatrix_{data}",
    packed="float16",
    tile_cycles=2,
)
MMA_BFLOAT16: Final = replace(
    MMA_FLOAT16, name="mma_bfloat16", operands=(("bfloat16", "bfloat16"),), multiply="mma_bfloat16", packed="bfloat16"
)
#: Eight products of float32, rounded to TF32 (10 bits of fraction) when they are loaded.
MMA_TF32: Final = replace(
    MMA_FLOAT16,
    name="mma_tf32",
    operands=(("float32", "float32"),),
    depth=8,
    multiply="mma_float32",
    broadcast="tf32",
    load="",
    load_transposed="",
    packed="float32",
    tile_cycles=1,
)
#: 32 products of bytes, which are words of four bytes in shared memory; fewer words than 16-bit floats fit.
MMA_INT8: Final = replace(
    MMA_TF32,
    name="mma_int8",
    operands=_BYTES,
    sums="int32",
    group=4,
    depth=32,
    weights="blocks",
    blocks=(
        *(BlockShape(32, 8, 4, 8), BlockShape(16, 16, 4, 8)),
        *(BlockShape(16, 8, 4, 8, depth=32), BlockShape(8, 4, 4, 8, 4, 64)),
    ),
    multiply="mma_{data}_{weights}",
    broadcast="",
    packed="int32",
)
#: Memory micro-kernel of `aotc.tir.arm_dsp_kernels`: two positions by four outputs, four bytes of
#: each; 16 multiplications of pairs, 8 loads and 8 instructions that widen bytes, one instruction a
#: cycle.
ARM_DSP: Final = MicroKernel(
    name="arm_dsp",
    level="memory",
    operands=(("int8", "int8"),),
    sums="int32",
    requires=("dsp",),
    group=4,
    positions=2,
    outputs=4,
    depth=4,
    max_positions=2,
    max_outputs=4,
    block=4,
    data="im2col",
    multiply="pairs2x4",
    multiply_in_place="bytes1x4",
    pack="pairs2",
    packed="int16",
    tile_cycles=32,
    call_cycles=40,
    min_row_positions=4,
    run_cycles=40,
)
#: Memory micro-kernel of `aotc.tir.arm_mve_kernels`: rows of bytes of one position by those of up to
#: 64 outputs; for each 16 bytes of four outputs, 5 loads and 4 sums of products, two cycles each, which
#: overlap in part.
ARM_MVE: Final = MicroKernel(
    name="arm_mve",
    level="memory",
    operands=(("int8", "int8"),),
    sums="int32",
    requires=("mve",),
    outputs=4,
    depth=16,
    max_outputs=64,
    data="im2col",
    weights="rows",
    multiply="byte_rows",
    multiply_in_place="byte_rows",
    multiply_depthwise="byte_taps",
    pack="bytes",
    packed="int8",
    pack_lanes=16,
    finish=("requantize_once", "requantize_twice"),
    tile_cycles=12,
    call_cycles=40,
    run_cycles=25,
)
#: Memory micro-kernel of `aotc.tir.amx_kernels`: 16 positions by 16 outputs by up to 64 bytes in 16
#: cycles, of up to 64 positions (so that the sums stay in the L1 cache) by four blocks of outputs.
X86_AMX: Final = MicroKernel(
    name="x86_amx",
    level="memory",
    operands=_BYTES,
    sums="int32",
    requires=("amx_int8",),
    group=4,
    positions=16,
    outputs=16,
    depth=64,
    min_positions=16,
    max_positions=64,
    max_outputs=64,
    min_run_bytes=16,
    min_reduction_bytes=64,
    data="strided",
    block=16,
    multiply="brgemm_{data}_{weights}",
    tile_cycles=16,
    call_cycles=64,
    call_positions=8,
    im2col_slowdown=1.5,
)
#: A micro-kernel for each instruction of products whose extents do not depend on its operands.
_KERNEL_OF_INSTRUCTION: Final = {
    kernel.multiply: kernel
    for kernel in (
        *(DOT4, SDOT_BY_LANE, SMMLA, DOT2_BFLOAT16, DOT2_BFLOAT16_BFDOT, ARM_DSP, X86_AMX),
        *(DP4A, MMA_FLOAT16, MMA_BFLOAT16, MMA_TF32, MMA_INT8),
    )
}


def values_contradicting_instruction(kernel: MicroKernel) -> dict[str, int]:
    """Return the fields of a micro-kernel that differ from the extents of its instruction, with the
    values that this instruction has.
    """
    known = _KERNEL_OF_INSTRUCTION.get(kernel.multiply)
    if known is None:
        return {}
    names = (*FIELDS_OF_INSTRUCTION, *(FIELDS_OF_BLOCK_FUNCTION if known.level in ("memory", "warp") else ()))
    return {name: getattr(known, name) for name in names if getattr(kernel, name) != getattr(known, name)}
