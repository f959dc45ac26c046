# SPDX-License-Identifier: Apache-2.0
"""Target descriptions: the properties of a machine that passes and schedules depend on, as data.

target = get_target("x86-64-v4")
target.lanes("float32")                # 16
replace(target, l2=2 << 20, threads=Threads(barrier_ns=250))
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, Final

from aotc.ir import AotcError, DType, did_you_mean_hint, frozen, normalized_architecture_name
from aotc.tir import micro_kernels
from aotc.tir.micro_kernels import MicroKernel as MicroKernel
from aotc.tir.target_costs import Budget as Budget
from aotc.tir.target_costs import CodeSize as CodeSize
from aotc.tir.target_costs import GpuCosts as GpuCosts
from aotc.tir.target_costs import Strips as Strips
from aotc.tir.target_costs import Threads as Threads
from aotc.tir.target_costs import Tiles as Tiles
from aotc.tir.target_costs import Winograd as Winograd
from aotc.tir.target_validation import require_consistent_target


@frozen(kw_only=True)
class Gpu:
    """The properties of a GPU: a device that runs kernels as grids of thread blocks.

    threads          threads of a block when there are enough blocks for all multiprocessors
    warp             threads of a warp, the smallest block
    processors       number of multiprocessors: the least number of blocks that run at a time
    resident         largest number of threads resident on one multiprocessor
    registers        largest number of 32-bit registers of a thread
    shared_bytes     shared memory of a block
    argument_bytes   largest size of the arguments of a launch
    scratch_bytes    largest total size of the threads' private scratch memory; larger kernels run with fewer threads
    architectures    compute capabilities that code is generated for, 80 for 8.0
    oldest           the oldest compute capability that has all instructions that kernels use
    costs            figures by which schedules are compared
    """

    threads: int = 256
    warp: int = 32
    processors: int = 108
    resident: int = 2048
    registers: int = 255
    shared_bytes: int = 48 << 10
    argument_bytes: int = 4096
    scratch_bytes: int = 64 << 20
    architectures: tuple[int, ...] = (80, 90, 100, 120)
    oldest: int = 75
    costs: GpuCosts = GpuCosts()

    @property
    def threads_to_saturate(self) -> int:
        """Number of threads that usually saturates the GPU: more would only wait (a quarter of full
        occupancy).
        """
        return self.processors * self.resident // 4


#: What lies in one piece, and what it is made of: results on their way from kernel to kernel, together with what a
#: kernel keeps during a call; the parameters.
DATA_KINDS_OF_ROLE: Final = {"arena": ("arena", "scratch"), "parameters": ("parameters",)}


@frozen(kw_only=True)
class Space:
    """A memory region of a machine, such as flash or SRAM.

    bytes    its size; 0 means unlimited
    align    alignment in bytes of everything placed there
    holds    the kinds of data that may be placed there: "arena", "scratch", "parameters"
    """

    name: str
    bytes: int = 0
    align: int = 64
    holds: tuple[str, ...] = ("arena", "scratch", "parameters")


@frozen(kw_only=True)
class Target:
    """A machine to generate code for.

    machine          the architecture, as `uname -m` names it on Linux; "" for any
    vector_bytes     width of a vector register, a power of two from 8 to 256; 0 for scalar C99 without extensions
    registers        number of vector registers (of scalar ones for scalar targets)
    fma_bytes        bytes of operands whose multiply-adds a core issues per cycle, by at most two instructions
    fma              True if the processor has a fused multiply-add instruction
    activations      type of activations that the int8 dot-product instruction accepts, "uint8" or "int8"; the
                     other one is converted; "" if both are equally fast
    ordered          True if sums are accumulated in a fixed order, equal on all machines (see
                     `target_with_fixed_summation_order`)
    l1, l2           data cache sizes, bytes per core
    line             bytes of a cache line
    l1_stride        addresses that differ by a multiple of this many bytes map to one set of the L1 cache ...
    l1_ways          ... and the number of lines in a set (associativity)
    memory_rate      bytes read from memory per cycle
    copy_rate        bytes copied per cycle
    transpose_rate   bytes transposed per cycle
    store_cost       cost of storing and reloading an element, in operations: cheaper expressions are recomputed
    call_cost        cost of a call of a function, or of an integer division, in operations, by which vectors whose
                     elements are computed one by one are compared with scalars
    min_shuffled_bytes    bytes of the smallest element that one instruction permutes in a vector: matrices of smaller
                     elements are not transposed in registers
    tiles            costs of register tiles of contractions
    micro_kernels    its micro-kernels for contractions, on CPUs in addition to multiply-adds on vectors; among
                     those of one level that fit, the first is used, and weights are packed for the first of all
    winograd         costs of Winograd convolutions
    strips           figures by which attention and recurrent layers are divided
    threads          costs of multithreading; None if kernels run on one thread only
    gpu              the GPU that kernels are launched on; None for CPUs
    budget           limits of code and memory
    code_size        figures by which sizes of code and stacks are estimated
    spaces           its memory regions: data is placed in the first region that may hold it and has room
    small            True if small code and parameters take precedence over speed (see `target_optimized_for_size`)
    bare             True without an operating system: the library is static, calls are direct, and the C library
                     needs to provide memcpy and memset only
    dialect          the programming language of its kernels, a name of `aotc_codegen.c.c_dialects`
    cflags           compiler flags of gcc and clang for kernels, beyond the defaults
    base_cflags      compiler flags for all other code, which runs on every processor of the architecture and reports
                     missing features
    features         processor features that the kernels require and the compiler may use under `cflags`, names of
                     `aotc.tir.processor_features.PROCESSOR_FEATURES`
    level            the suffix of its kernels in a library that holds several versions of them
    versions         for a library with kernels for several instruction sets, the targets of these kernels, the
                     best first; the remaining fields then describe the machine for which graphs, weights and
                     kernels outside of that library are made

    Raises AotcError with a diagnostic for each problem (`aotc.tir.target_validation`): code "target" for figures that
    no machine has, for fields that contradict each other, and for spaces that leave something without a place; code
    "cflags" as `reject_result_changing_c_flags`.
    """

    name: str
    machine: str = ""
    vector_bytes: int = 0
    registers: int = 16
    fma_bytes: int = 8
    fma: bool = False
    activations: str = ""
    ordered: bool = False
    l1: int = 32 << 10
    l2: int = 256 << 10
    line: int = 64
    l1_stride: int = 4096
    l1_ways: int = 8
    memory_rate: float = 5.4
    copy_rate: float = 8
    transpose_rate: float = 4
    store_cost: int = 16
    call_cost: int = 10
    min_shuffled_bytes: int = 4
    tiles: Tiles = Tiles()
    micro_kernels: tuple[MicroKernel, ...] = ()
    winograd: Winograd = Winograd()
    strips: Strips = Strips()
    threads: Threads | None = None
    gpu: Gpu | None = None
    budget: Budget = Budget()
    code_size: CodeSize = CodeSize()
    spaces: tuple[Space, ...] = (Space(name="memory"),)
    small: bool = False
    bare: bool = False
    dialect: str = "c99"
    cflags: tuple[str, ...] = ()
    base_cflags: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    level: str = ""
    versions: tuple[Target, ...] = ()

    def __post_init__(self) -> None:
        require_consistent_target(self, DATA_KINDS_OF_ROLE)

    def memory_spaces_for_role(self, role: str) -> list[Space]:
        """Return the memory regions that may hold data of a role (one of `DATA_KINDS_OF_ROLE`)."""
        return [space for space in self.spaces if set(DATA_KINDS_OF_ROLE[role]).issubset(space.holds)]

    def choose_memory_spaces(
        self, needed_bytes: Mapping[str, int], used_bytes: Mapping[str, int] | None = None
    ) -> dict[str, Space]:
        """Choose a memory region for each role that needs memory.

        needed_bytes    bytes needed, by role
        used_bytes      bytes already in use, by the name of a region

        Raises AotcError (code "memory") where no space that may hold it has so much room left.
        """
        space_of_role: dict[str, Space] = {}
        used = Counter(used_bytes or {})
        for role, size in needed_bytes.items():
            fitting = self.memory_spaces_for_role(role)
            space = next((s for s in fitting if not s.bytes or used[s.name] + size <= s.bytes), None)
            if space is None:
                room = " and ".join(str(s.bytes - used[s.name]) for s in fitting)
                subject = "a run needs" if role == "arena" else f"the {role} need"
                text = f"{subject} {size} bytes of memory, {self.name} has {room}"
                raise AotcError("memory", text, hint="take a smaller model or input, or another target")
            space_of_role[role] = space
            used[space.name] += size
        return space_of_role

    def micro_kernel_for_types(self, data: str, weights: str, sums: str, level: str = "") -> MicroKernel | None:
        """Return the first micro-kernel of a level (by default, of any) for operands and sums of
        these types; None if there is none.
        """
        kernels = (k for k in self.micro_kernels if level in ("", k.level) and k.accepts_types(data, weights, sums))
        return next(kernels, None)

    def lanes(self, dtype: str) -> int:
        """Return the number of elements of `dtype` in one vector register; 1 on scalar targets."""
        return max(1, self.vector_bytes // DType(dtype).itemsize)

    @property
    def has_integer_dot_instruction(self) -> bool:
        """Return True if int8 dot products are single instructions, by which kernels of a
        multi-versioned library differ.
        """
        kernel = self.micro_kernel_for_types("uint8", "int8", "int32")
        return kernel is not None and kernel.registers == 1

    @property
    def processor_features(self) -> frozenset[str]:
        """The features and the architecture, which texts of instructions can require."""
        return frozenset((self.machine, *self.features)).difference(("",))

    @property
    def can_split_reduction_in_thread_block(self) -> bool:
        """Return True if a reduction may be split across the threads of a GPU block."""
        return self.gpu is not None and not self.ordered

    @property
    def is_scalar(self) -> bool:
        return self.vector_bytes == 0

    @property
    def kind(self) -> TargetKind:
        """Relay's kind of this target: "c" for plain C, "llvm" for C with vectors, "cuda" for GPUs."""
        return TargetKind("cuda" if self.gpu is not None else "c" if self.is_scalar else "llvm")

    def __enter__(self) -> Target:
        _TARGET_STACK.set((*_TARGET_STACK.get(), self))
        return self

    def __exit__(self, *_: object) -> None:
        _TARGET_STACK.set(_TARGET_STACK.get()[:-1])

    @staticmethod
    def current(allow_none: bool = True) -> Target | None:
        """Return the target of the innermost `with target:` block.

        Without one, return None, or raise AotcError if `allow_none` is false."""
        target = (None, *_TARGET_STACK.get())[-1]
        if target is None and not allow_none:
            raise AotcError("target", "no target is in scope", hint="with target: sets one")
        return target


@frozen
class TargetKind:
    """A kind of target ("c", "llvm", "cuda"), as Relay names it."""

    name: str


_TARGET_STACK: Final[ContextVar[tuple[Target, ...]]] = ContextVar("targets", default=())

C: Final = Target(name="c")
_X86_64, _AARCH64, _RISCV64 = ("-march=x86-64",), ("-march=armv8-a",), ("-march=rv64gc", "-mabi=lp64d")
_SSE: Final = ("sse3", "ssse3", "sse4_1", "sse4_2", "popcnt", "movbe", "lzcnt")
_V3: Final = (*_SSE, "avx", "f16c", "fma", "avx2", "bmi1", "bmi2")
_V4: Final = (*_V3, "avx512f", "avx512dq", "avx512cd", "avx512bw", "avx512vl")
#: What processors with vectors have in common.
_VECTOR_TARGET: Final = Target(
    name="vectors",
    vector_bytes=16,
    fma_bytes=32,
    micro_kernels=(micro_kernels.DOT4,),
    winograd=Winograd(macs=4),
    threads=Threads(),
    budget=Budget(parameter_growth=2.5, parameter_room=1 << 20),
    dialect="gnu-c",
)
X86_64: Final = replace(
    _VECTOR_TARGET,
    name="x86-64",
    machine="x86_64",
    activations="uint8",
    cflags=_X86_64,
    base_cflags=_X86_64,
    level="v1",
)
X86_64_V3: Final = replace(
    X86_64,
    name="x86-64-v3",
    vector_bytes=32,
    fma_bytes=64,
    fma=True,
    l2=512 << 10,
    tiles=Tiles(widened_products=2, widened_load=1),
    micro_kernels=(micro_kernels.DOT4_AVX2,),
    winograd=Winograd(macs=16),
    cflags=("-march=x86-64-v3",),
    features=_V3,
    level="v3",
)
X86_64_V4: Final = replace(
    X86_64_V3,
    name="x86-64-v4",
    vector_bytes=64,
    registers=32,
    l2=1 << 20,
    tiles=_VECTOR_TARGET.tiles,
    micro_kernels=(micro_kernels.DOT4_AVX512BW,),
    cflags=("-march=x86-64-v4", "-mprefer-vector-width=512"),
    features=_V4,
    level="v4",
)
#: With AVX-VNNI, and that of AVX-512.
X86_64_V3_VNNI: Final = replace(
    X86_64_V3,
    name="x86-64-v3-vnni",
    tiles=_VECTOR_TARGET.tiles,
    micro_kernels=(micro_kernels.DOT4_AVX_VNNI,),
    cflags=(*X86_64_V3.cflags, "-mavxvnni"),
    features=(*_V3, "avx_vnni"),
    level="v3_vnni",
)
X86_64_V4_VNNI: Final = replace(
    X86_64_V4,
    name="x86-64-v4-vnni",
    micro_kernels=(micro_kernels.DOT4_AVX512_VNNI,),
    cflags=("-march=x86-64-v4", "-mavx512vnni", "-mprefer-vector-width=512"),
    features=(*_V4, "avx512_vnni"),
    level="v4_vnni",
)
#: With sums of products of bfloat16, too.
X86_64_V4_BF16: Final = replace(
    X86_64_V4_VNNI,
    name="x86-64-v4-bf16",
    micro_kernels=(micro_kernels.DOT4_AVX512_VNNI, micro_kernels.DOT2_BFLOAT16),
    cflags=("-march=x86-64-v4", "-mavx512vnni", "-mavx512bf16", "-mprefer-vector-width=512"),
    features=(*_V4, "avx512_vnni", "avx512_bf16"),
    level="v4_bf16",
)
#: With products of matrices of bytes, too. All processors that have AMX have AVX512-BF16.
X86_64_V4_AMX: Final = replace(
    X86_64_V4_BF16,
    name="x86-64-v4-amx",
    micro_kernels=(*X86_64_V4_BF16.micro_kernels, micro_kernels.X86_AMX),
    cflags=(*X86_64_V4_BF16.cflags[:-1], "-mamx-tile", "-mamx-int8", X86_64_V4_BF16.cflags[-1]),
    features=(*X86_64_V4_BF16.features, "amx_tile", "amx_int8"),
    level="v4_amx",
)
_X86: Final = (X86_64, X86_64_V3, X86_64_V3_VNNI, X86_64_V4, X86_64_V4_VNNI, X86_64_V4_BF16, X86_64_V4_AMX)
#: Without the version for bfloat16, whose other kernels equal those of the version for VNNI.
X86_64_MULTI: Final = replace(
    X86_64_V3, name="x86-64-multi", versions=tuple(t for t in reversed(_X86) if t is not X86_64_V4_BF16)
)
AARCH64: Final = replace(
    _VECTOR_TARGET,
    name="aarch64",
    machine="aarch64",
    registers=32,
    fma=True,
    activations="int8",
    l1=64 << 10,
    l2=512 << 10,
    micro_kernels=(micro_kernels.DOT4_NEON,),
    winograd=Winograd(macs=16),
    cflags=_AARCH64,
    base_cflags=_AARCH64,
)
_DOTPROD, _I8MM = ("-march=armv8.2-a+dotprod",), ("-march=armv8.2-a+dotprod+i8mm",)
AARCH64_DOTPROD: Final = replace(
    AARCH64,
    name="aarch64-dotprod",
    micro_kernels=(micro_kernels.SDOT_BY_LANE, micro_kernels.DOT4_SDOT),
    cflags=_DOTPROD,
    features=("dotprod",),
    level="dotprod",
)
AARCH64_I8MM: Final = replace(
    AARCH64,
    name="aarch64-i8mm",
    micro_kernels=(micro_kernels.SMMLA, micro_kernels.DOT4_SDOT),
    cflags=_I8MM,
    features=("dotprod", "i8mm"),
    level="i8mm",
)
AARCH64_BF16: Final = replace(
    AARCH64_I8MM,
    name="aarch64-bf16",
    micro_kernels=(*AARCH64_I8MM.micro_kernels, micro_kernels.DOT2_BFLOAT16_BFDOT),
    cflags=(f"{_I8MM[0]}+bf16",),
    features=(*AARCH64_I8MM.features, "bf16"),
    level="bf16",
)
#: Without vectors, for every processor with Linux.
RISCV64: Final = Target(
    name="riscv64", machine="riscv64", registers=32, fma=True, cflags=_RISCV64, base_cflags=_RISCV64
)
#: Version 1.0 of the vector extension. The number is the least length of a vector register in bits; kernels use that
#: many bits of longer registers. There are no dot products of bytes: weights are widened, and an instruction multiplies
#: them by one scalar of the data.
RISCV64_V128: Final = replace(
    _VECTOR_TARGET,
    name="riscv64-v128",
    machine="riscv64",
    registers=32,
    fma=True,
    tiles=Tiles(load_addresses=12),
    micro_kernels=(),
    winograd=Winograd(macs=8),
    cflags=("-march=rv64gcv_zvl128b", "-mabi=lp64d"),
    base_cflags=_RISCV64,
    features=("v",),
)
RISCV64_V256: Final = replace(
    RISCV64_V128,
    name="riscv64-v256",
    vector_bytes=32,
    cflags=("-march=rv64gcv_zvl256b", "-mabi=lp64d"),
    features=("v", "zvl256b"),
)
_RISCV: Final = (RISCV64, RISCV64_V128, RISCV64_V256)
#: WebAssembly with 128-bit vectors, in browsers and node. It has no fused multiply-add, and one memory; the parameters
#: are C arrays, as assemblers have no directive that includes a file in its data. Registers are those of x86-64.
_WASM_FLAGS: Final = ("-msimd128", "-mbulk-memory")
WASM32: Final = replace(
    _VECTOR_TARGET,
    name="wasm32",
    machine="wasm32",
    threads=None,
    budget=replace(_VECTOR_TARGET.budget, array_bytes=1 << 62),
    spaces=(Space(name="memory", align=16),),
    bare=True,
    cflags=_WASM_FLAGS,
    base_cflags=_WASM_FLAGS,
    features=("simd128",),
)
#: With the dot products of relaxed SIMD, only for operands for which all hosts have the same results.
WASM32_RELAXED: Final = replace(
    WASM32, name="wasm32-relaxed", cflags=(*_WASM_FLAGS, "-mrelaxed-simd"), features=("simd128", "relaxed_simd")
)
#: With threads: workers of JavaScript that share one memory. Its projects have the entry point of those for operating
#: systems, to which a program gives its threads.
_WASM_THREADS_FLAGS: Final = (*_WASM_FLAGS, "-matomics")
WASM32_THREADS: Final = replace(
    WASM32,
    name="wasm32-threads",
    threads=Threads(macs_per_ns=8, bytes_per_ns=16, barrier_ns=300),
    bare=False,
    cflags=_WASM_THREADS_FLAGS,
    base_cflags=_WASM_THREADS_FLAGS,
)

#: GPUs of NVIDIA.  A thread has its scratch in memory, as much of it as all threads that are resident could need.
#: Loops stay whole, with their conditions, since each of their iterations may be another thread.  What is to stay in a
#: cache is what the threads of a block share.
CUDA: Final = Target(
    name="cuda",
    registers=64,
    l2=64 << 10,
    fma=True,
    micro_kernels=(
        micro_kernels.DP4A,
        *(micro_kernels.MMA_INT8, micro_kernels.MMA_FLOAT16, micro_kernels.MMA_BFLOAT16),
        micro_kernels.THREAD_MULTIPLY_ADD,
    ),
    gpu=Gpu(),
    budget=Budget(stack_bytes=1024, row_bytes=0, pieces=0, piece_nodes=0, transposed=1),
    spaces=(Space(name="device", align=256),),
    dialect="cuda",
)

_RAM: Final = Space(name="ram", align=8, holds=("arena", "scratch"))
_FLASH: Final = Space(name="flash", align=8, holds=("parameters",))
#: Microcontrollers.  What is larger than a few numbers lies in the arena, whose size callers see; parameters are one
#: piece, which can lie anywhere.
BARE_METAL_TARGET: Final = replace(
    C,
    name="bare",
    bare=True,
    budget=Budget(stack_bytes=256, array_bytes=0, row_bytes=256),
    spaces=(_RAM, _FLASH),
    dialect="bare-c",
)


def _bare_metal_target(name: str, machine: str, *flags: str, **facts: Any) -> Target:
    return replace(BARE_METAL_TARGET, name=name, machine=machine, cflags=flags, base_cflags=flags, **facts)


def _cortex_target(core: str, *flags: str, **facts: Any) -> Target:
    return _bare_metal_target(f"cortex-{core}", "arm", f"-mcpu=cortex-{core}", "-mthumb", *flags, **facts)


#: Instructions of scalar int8 tiles, counted under QEMU, are 3 to 7 times the cycles that the figures of
#: larger cores yield (`python -m benchmarks.instruction_counts --boards`).
_IN_ORDER_TILES: Final = Tiles(slowdown=4)
_HARD_FLOAT_FLAG: Final = "-mfloat-abi=hard"
#: Features of Armv7E-M and Armv8-M with the DSP extension.
_DSP_FEATURES: Final = ("dsp", "sat", "thumb2")
#: Products of two pairs of 16 bits by one instruction.
_DSP: Final[dict[str, Any]] = {
    "micro_kernels": (micro_kernels.ARM_DSP,),
    "tiles": _IN_ORDER_TILES,
    "activations": "int8",
    "dialect": "arm-c",
    "features": _DSP_FEATURES,
}
#: Sums of 16 products of bytes by one instruction.
_HELIUM: Final[dict[str, Any]] = {
    "micro_kernels": (micro_kernels.ARM_MVE,),
    "tiles": _IN_ORDER_TILES,
    "activations": "int8",
    "dialect": "arm-c",
    "features": (*_DSP_FEATURES, "mve"),
}
CORTEX_M0PLUS: Final = _cortex_target("m0plus", "-mfloat-abi=soft", registers=8, fma_bytes=4)
CORTEX_M4: Final = _cortex_target("m4", "-mfpu=fpv4-sp-d16", _HARD_FLOAT_FLAG, fma=True, **_DSP)
CORTEX_M7: Final = _cortex_target(
    "m7", "-mfpu=fpv5-sp-d16", _HARD_FLOAT_FLAG, fma=True, l1=16 << 10, line=32, l1_ways=4, **_DSP
)
CORTEX_M33: Final = _cortex_target("m33", "-mfpu=fpv5-sp-d16", _HARD_FLOAT_FLAG, fma=True, **_DSP)
#: Helium loads 16 bytes at once.
CORTEX_M55: Final = replace(
    _cortex_target("m55", _HARD_FLOAT_FLAG, fma=True, l1=32 << 10, line=32, l1_ways=4, **_HELIUM),
    spaces=(replace(_RAM, align=16), replace(_FLASH, align=16)),
)
RISCV32: Final = _bare_metal_target("riscv32", "riscv32", "-march=rv32imac", "-mabi=ilp32", registers=32, fma_bytes=4)


_MICROCONTROLLERS: Final = (CORTEX_M0PLUS, CORTEX_M4, CORTEX_M7, CORTEX_M33, CORTEX_M55, RISCV32)


_ALL_TARGETS: Final = (
    C,
    *_X86,
    X86_64_MULTI,
    AARCH64,
    AARCH64_DOTPROD,
    AARCH64_I8MM,
    AARCH64_BF16,
    *_RISCV,
    *_MICROCONTROLLERS,
    WASM32,
    WASM32_RELAXED,
    WASM32_THREADS,
    CUDA,
)
TARGETS: Final = {t.name: t for t in _ALL_TARGETS}

#: Features that /proc/cpuinfo calls otherwise.
_FEATURE_OF_PROC_FLAG: Final = {"pni": "sse3", "abm": "lzcnt"}


def feature_names_from_cpu_flags(cpu_flags: Iterable[str]) -> frozenset[str]:
    """Convert processor flags from /proc/cpuinfo to feature names."""
    return frozenset(_FEATURE_OF_PROC_FLAG.get(flag, flag) for flag in cpu_flags)


def host_target(machine: str, cpu_flags: Iterable[str]) -> Target:
    """Return the fastest target that a processor can run.

    machine    the architecture, as platform.machine() names it
    cpu_flags  the flags of the processor, as /proc/cpuinfo lists them"""
    flags, name = feature_names_from_cpu_flags(cpu_flags), normalized_architecture_name(machine)
    best_last = (t for t in (C, *_X86, AARCH64, *_RISCV) if t.machine in ("", name) and flags.issuperset(t.features))
    return list(best_last)[-1]


def get_target(name: str) -> Target:
    """Return the target of a name; raise AotcError (code "target"), which lists the known names, if
    none has it.
    """
    if name not in TARGETS:
        known = ", ".join(["host", *TARGETS])
        raise AotcError(
            "target", f"unknown target {name!r}", hint=did_you_mean_hint(name, TARGETS) or f"known: {known}"
        )
    return TARGETS[name]
