# SPDX-License-Identifier: Apache-2.0
"""C dialects: the spellings of types, loops, functions and vectors that the kernel printer fills
in.

C99.kernel.format(name="k", parameters="float *y")     # "void k(float *y)"
GNU_C.vector_type_name(DType("float32"), 8)            # "aotc_float32x8"; C99 has no vectors

A dialect for another language is made from an existing one with `replace`. If a kernel needs a
feature that its dialect lacks (vectors, in C99), AotcError with the code "c-vector" is raised.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, replace
from typing import Final

from aotc.ir import DTYPES, AotcError, DType, frozen, require_known_name
from aotc.tir import Target
from aotc.tir.instruction_table import ELEMENTARY_FUNCTION_NAMES
from aotc_codegen.c.c_identifiers import RESERVED_IDENTIFIERS
from aotc_codegen.c.c_types import c_literal, c_memory_type

_C_MATH_FUNCTION_BY_TIR_NAME: Final = {
    **{name: name for name in ("sqrt", "floor", "ceil", "trunc", "fmod", "copysign", "fma")},
    "round_even": "rint",
    "round_away": "round",
    "abs": "fabs",
}
_LIBRARY_FUNCTION_NAMES: Final = frozenset(
    f"{ELEMENTARY_FUNCTION_NAMES} pow atan2 aotc y0 y1 yn j0 j1 jn gamma div index team".split()
)


@frozen(kw_only=True)
class VectorSpelling:
    """Spelling of short vectors in a dialect.

    definition   definition of a vector type `name` of `bytes` bytes, and of the type `name`u for
                 memory that is only aligned to elements (`align`)
    prelude      text at the beginning of a file whose kernels use vectors
    zero         expression for a zero vector of type `type`
    convert      expression that converts the elements of `value` to the element type of the vector
                 type `type`
    """

    definition: str
    prelude: str
    zero: str
    convert: str


@frozen(kw_only=True)
class Dialect:
    """Spelling of kernels in a language of the C family; the placeholders in braces are filled in
    by name.

    types           types of elements in memory
    index           type of index arithmetic, which is signed
    literal         function that prints a number of a dtype as an exact constant expression
    kernel          head of a kernel, from its `name`, its `parameters` and the number of `threads`
                    per GPU block
    restrict        qualifier of a pointer whose memory is accessed through no other pointer
    array           declaration of a local array without initial value, aligned to `align` bytes if
                    the language allows
    shared          declaration of an array in shared memory of a GPU block, aligned to `align`
                    bytes
    launched        index of the GPU block or thread, by the kind of the loop that is mapped to it
    inline          specifiers of helper functions
    team            last parameter of kernels that are split among threads, "" for none
    team_argument   argument that callers pass for `team`
    part, parts     index of the calling thread in its team, and number of threads in the team
    launch          statement that runs a kernel, from its `name` and `arguments`
    move            statement that copies `lanes` elements at once between addresses aligned to the
                    size of the copy; "" if vector assignments do it
    functions       library functions with exact or correctly rounded results, by their names in
                    `aotc.tir`
    single          suffix of the library functions for float32
    reserved        identifiers that kernels must not define: keywords, library functions
    vectors         spelling of vectors; None if the language has none
    features        features and architecture of the processor that runs the kernels
                    (`Target.processor_features`): they decide which texts of instructions and of
                    helper functions are printed; without them, portable texts
    """

    name: str
    types: Mapping[DType, str] = field(default_factory=lambda: {d: c_memory_type(d) for d in DTYPES})
    index: str = "ptrdiff_t"
    literal: Callable[[int | float | bool, DType], str] = c_literal
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
    launch: str = "{name}({arguments});"
    move: str = ""
    functions: Mapping[str, str] = field(default_factory=lambda: _C_MATH_FUNCTION_BY_TIR_NAME)
    single: str = "f"
    reserved: frozenset[str] = (
        RESERVED_IDENTIFIERS | _LIBRARY_FUNCTION_NAMES | frozenset(_C_MATH_FUNCTION_BY_TIR_NAME.values())
    )
    vectors: VectorSpelling | None = None
    features: frozenset[str] = frozenset()

    def c_value_type(self, dtype: DType) -> str:
        """Return the C type of a value in an expression: float for narrow floats, which are
        computed as float32; int for bool.
        """
        if dtype.is_bool:
            return "int"
        return self.types[DType("float32") if dtype.is_narrow_float else dtype]

    def math_function_suffix(self, dtype: DType) -> str:
        """Return the suffix of C math functions for values of a dtype, for example "f" for float32."""
        return "" if dtype == "float64" else self.single

    def wrapping_unsigned_type(self, dtype: DType) -> str:
        """Return the unsigned type in which integers of `dtype` are computed, so that they wrap
        around.
        """
        return self.types[DType(f"uint{max(32, dtype.bits)}")]

    def require_vector_spelling(self, printed_thing: str) -> VectorSpelling:
        """Return the spelling of vectors; raise AotcError (code "c-vector"), which names
        `printed_thing`, if the language has none.
        """
        if self.vectors is None:
            raise AotcError("c-vector", f"{printed_thing} cannot be printed: {self.name} has no vectors")
        return self.vectors

    def vector_type_name(self, dtype: DType, lanes: int) -> str:
        """Return the name of the C vector type with `lanes` elements of a dtype, for example
        aotc_float32x8.
        """
        self.require_vector_spelling(f"a vector of {lanes} x {dtype}")
        return f"aotc_{dtype}x{lanes}"

    def vector_typedefs(self, dtype: DType, lanes: int) -> str:
        """Return the C typedefs of the vector type with `lanes` elements of a dtype."""
        name = self.vector_type_name(dtype, lanes)
        size = dtype.itemsize
        template = self.require_vector_spelling(name).definition
        return template.format(type=self.types[dtype], name=name, bytes=size * lanes, align=size)

    def vector_file_prelude(self, vectors: Iterable[tuple[DType, int]]) -> str:
        """Return the text at the beginning of a file whose kernels use `vectors`: pairs of element
        type and lane count.

        The text is empty if there are no vectors.
        """
        typedefs = "".join(self.vector_typedefs(dtype, lanes) for dtype, lanes in sorted(vectors))
        return self.require_vector_spelling("a file").prelude + typedefs if typedefs else ""


C99: Final = Dialect(name="c99")
#: C for microcontrollers. Stack arrays are aligned to their elements, so that functions need not
#: realign the stack; floats are rounded to integral values by additions instead of library
#: functions.
BARE_C: Final = replace(
    C99,
    name="bare-c",
    array="{type} {name}[{size}]",
    functions={name: _C_MATH_FUNCTION_BY_TIR_NAME[name] for name in ("sqrt", "fma", "fmod", "copysign", "abs")},
)
#: C for Arm microcontrollers: kernels may contain inline assembly in the syntax of gcc and clang.
ARM_C: Final = replace(BARE_C, name="arm-c")
#: C with the vector extensions of gcc and clang.
GNU_C: Final = replace(
    C99,
    name="gnu-c",
    vectors=VectorSpelling(
        definition="typedef {type} {name} __attribute__((__vector_size__({bytes}), __may_alias__));\n"
        "typedef {type} {name}u __attribute__((__vector_size__({bytes}), __may_alias__, __aligned__({align})));\n",
        prelude="""/* Tiles fill the registers: GCC would keep values of earlier iterations,
 * and values that a loop does not change, in registers and tiles in memory. */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("no-predictive-commoning", "ira-loop-pressure")
#endif

""",
        zero="({type}){{0}}",
        convert="__builtin_convertvector({value}, {type})",
    ),
)
#: CUDA C++ for NVRTC, and for C++ compilers when the emulator's header is included first.
CUDA: Final = replace(
    C99,
    name="cuda",
    index="int",
    kernel='extern "C" __global__ void __launch_bounds__({threads}) {name}({parameters})',
    restrict="__restrict__ ",
    array="__align__({align}) {type} {name}[{size}]",
    shared="__shared__ __align__({align}) {type} {name}[{size}]",
    launched={"block": "(int)blockIdx.x", "thread": "(int)threadIdx.x"},
    # a text may use only one of two functions that are defined together; NVRTC warns of unused
    # functions
    inline="[[maybe_unused]] static __device__ __forceinline__",
    move="aotc_move<{lanes}>({to}, {source})",
)
#: Dialects by the names that targets refer to.
DIALECTS: Final = {dialect.name: dialect for dialect in (C99, BARE_C, ARM_C, GNU_C, CUDA)}


def dialect_for_target(target: Target) -> Dialect:
    """Return the dialect of a target's kernels, with the features of its processor.

    Raise AotcError (code "target") if there is no dialect of that name, or if the target has
    vectors and the dialect has none.
    """
    require_known_name("target", f"C dialect of target {target.name}:", target.dialect, DIALECTS)
    if target.vector_bytes and DIALECTS[target.dialect].vectors is None:
        text = f"target {target.name}: vector_bytes is {target.vector_bytes}, and {target.dialect} has no vectors"
        hint = "set vector_bytes to 0, or dialect to one of "
        raise AotcError("target", text, hint=hint + ", ".join(n for n, d in DIALECTS.items() if d.vectors is not None))
    return replace(DIALECTS[target.dialect], features=target.processor_features)
