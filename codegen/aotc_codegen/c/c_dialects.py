# SPDX-License-Identifier: Apache-2.0
"""How a language of C's family spells what kernels are made of: the printer walks a kernel, a `Dialect` has the words.

C99.kernel.format(name="k", parameters="float *y")     # "void k(float *y)"
GNU_C.vector_name(DType("float32"), 8)                 # "aotc_float32x8"; C99 has no vectors

A dialect for another language is a value made with `replace`, from one of these;
what it cannot say (vectors, in C99) is an error with the code "c-vector" where a
kernel asks for it.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, replace
from typing import Final

from aotc.ir import DTYPES, AotcError, DType, frozen
from aotc.tir.instruction_table import ELEMENTARY
from aotc_codegen.c.c_identifiers import KEYWORDS
from aotc_codegen.c.c_types import literal, memory_type

_MATH: Final = {name: name for name in ("sqrt", "floor", "ceil", "trunc", "fmod", "copysign", "fma")} | {
    "round_even": "rint", "round_away": "round", "abs": "fabs",
}  # fmt: skip
_LIBRARY: Final = frozenset(f"{ELEMENTARY} pow atan2 aotc y0 y1 yn j0 j1 jn gamma div index team".split())


@frozen(kw_only=True)
class Vectors:
    """How short vectors are spelled.

    definition   of a vector type `name` of `bytes` bytes, and of `name`u for memory
                 aligned to elements (`align`) only
    prelude      what a file begins with whose kernels use vectors
    zero         a vector of zeros of a `type`
    convert      a vector `value` with its elements converted to those of a `type`
    """

    definition: str
    prelude: str
    zero: str
    convert: str


@frozen(kw_only=True)
class Dialect:
    """The words of one language; texts in braces are filled in by name.

    types          of elements in memory
    value_types    of values in registers, where they are others
    index          the type of index arithmetic, which is signed
    literal        a number of a dtype as a constant expression, exact
    kernel         the head of a kernel, from its `name` and `parameters`, and how many
                   `threads` a block of a device has
    restrict       in front of the name of a pointer to memory that is reached through
                   no other one
    array          the declaration of a local array, without its initial value, from a
                   multiple of `align` bytes on where the language asks for that
    shared         that of an array which the threads of a block share, from a multiple of
                   `align` bytes on
    launched       the number of a block or thread by the kind of its loop, where a
                   device counts
    inline         in front of helper functions
    team           the last parameter of kernels for teams, "" for none;
                   `team_argument` is what callers give for it
    part, parts    which thread of a team this is, and how many there are
    barrier        the statement where the threads of a team wait for each other
    launch         the statement that runs a kernel, from its `name` and `arguments`
    move           the statement that copies some elements (`lanes`) at once, from a multiple
                   of their bytes to another one; "" where vectors do
    functions      those of the library whose results are exact or rounded once, by the names of `aotc.tir`
    single         behind the names of those for float32
    reserved       what kernels call nothing of their own: keywords, functions of
                   libraries
    vectors        None where the language has none
    """

    name: str
    types: Mapping[DType, str] = field(default_factory=lambda: {d: memory_type(d) for d in DTYPES})
    index: str = "ptrdiff_t"
    literal: Callable[[int | float | bool, DType], str] = literal
    kernel: str = "void {name}({parameters})"
    restrict: str = "AOTC_RESTRICT "
    array: str = "{type} {name}[{size}] AOTC_ALIGNED(64)"
    shared: str = ""
    launched: Mapping[str, str] = field(default_factory=dict)
    inline: str = "static inline"
    team: str = "const aotc_team *team"
    team_argument: str = "team"
    part: str = "(ptrdiff_t)team->part"
    parts: str = "team->parts"
    barrier: str = "AOTC_TEAM_SYNC(team);"
    launch: str = "{name}({arguments});"
    move: str = ""
    functions: Mapping[str, str] = field(default_factory=lambda: _MATH)
    single: str = "f"
    reserved: frozenset[str] = KEYWORDS | _LIBRARY | frozenset(_MATH.values())
    vectors: Vectors | None = None

    def value_type(self, dtype: DType) -> str:
        """The type of a value in an expression; narrow floats are computed as float32, bools are ints."""
        if dtype.is_bool:
            return "int"
        return self.types[DType("float32") if dtype.is_narrow_float else dtype]

    def ending(self, dtype: DType) -> str:
        """What stands behind the name of a function of the library for values of a type."""
        return "" if dtype == "float64" else self.single

    def unsigned_type(self, dtype: DType) -> str:
        """The type in which integers of `dtype` wrap around."""
        return self.types[DType(f"uint{max(32, dtype.bits)}")]

    def spelled_vectors(self, what: str) -> Vectors:
        """How vectors are spelled; AotcError (code "c-vector") where the language has none, for `what`."""
        if self.vectors is None:
            raise AotcError("c-vector", f"{what} cannot be printed: {self.name} has no vectors")
        return self.vectors

    def vector_name(self, dtype: DType, lanes: int) -> str:
        """The name of the type of `lanes` elements."""
        self.spelled_vectors(f"a vector of {lanes} x {dtype}")
        return f"aotc_{dtype}x{lanes}"

    def vector_definition(self, dtype: DType, lanes: int) -> str:
        """The definition of a vector type."""
        name = self.vector_name(dtype, lanes)
        size = dtype.itemsize
        made = self.spelled_vectors(name).definition
        return made.format(type=self.types[dtype], name=name, bytes=size * lanes, align=size)

    def vector_prelude(self, vectors: Iterable[tuple[DType, int]]) -> str:
        """What a file begins with whose kernels use these vectors, (element type, lanes) each; empty without any."""
        made = "".join(self.vector_definition(dtype, lanes) for dtype, lanes in sorted(vectors))
        return self.spelled_vectors("a file").prelude + made if made else ""


C99: Final = Dialect(name="c99")
#: For microcontrollers: arrays on the stack are aligned to their elements, so that no function aligns its stack; floats
#: are rounded to integral values by additions, which needs no library.
BARE_C: Final = replace(
    C99,
    name="bare-c",
    array="{type} {name}[{size}]",
    functions={name: _MATH[name] for name in ("sqrt", "fma", "fmod", "copysign", "abs")},
)
#: For Arm microcontrollers: kernels may have inline assembly, as gcc and clang take it.
ARM_C: Final = replace(BARE_C, name="arm-c")
#: C with the vectors of gcc and clang.
GNU_C: Final = replace(
    C99,
    name="gnu-c",
    vectors=Vectors(
        definition="typedef {type} {name} __attribute__((__vector_size__({bytes}), __may_alias__));\n"
        "typedef {type} {name}u __attribute__((__vector_size__({bytes}), __may_alias__, __aligned__({align})));\n",
        prelude="""/* Tiles fill the registers: GCC would keep values from one iteration
 * to the next in memory. */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("no-predictive-commoning")
#endif

""",
        zero="({type}){{0}}",
        convert="__builtin_convertvector({value}, {type})",
    ),
)
#: What NVRTC takes, and C++ with an emulator in front.
CUDA: Final = replace(
    C99,
    name="cuda",
    index="int",
    kernel='extern "C" __global__ void __launch_bounds__({threads}) {name}({parameters})',
    restrict="__restrict__ ",
    array="__align__({align}) {type} {name}[{size}]",
    shared="__shared__ __align__({align}) {type} {name}[{size}]",
    launched={"block": "(int)blockIdx.x", "thread": "(int)threadIdx.x"},
    # of two that are defined together, a text may use one alone: NVRTC warns of others
    inline="[[maybe_unused]] static __device__ __forceinline__",
    barrier="__syncthreads();",
    move="aotc_move<{lanes}>({to}, {source})",
)
#: The dialects by the names that targets give.
DIALECTS: Final = {dialect.name: dialect for dialect in (C99, BARE_C, ARM_C, GNU_C, CUDA)}
