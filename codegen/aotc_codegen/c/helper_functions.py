# SPDX-License-Identifier: Apache-2.0
"""Small C functions that kernels call where the semantics of C operators differ from those of the
tensor IR.

Each function is a template with placeholders: $name, $inline (the specifiers before the function),
the types $T (of elements in memory), $V (of scalar values), $U (unsigned, in which integers wrap),
$I (of indices), $vector and $M (the mask that a vector comparison yields), and the names of the
helper functions that it calls. `Helpers` instantiates the templates that the printer asks for:

    helpers = Helpers(GNU_C)
    helpers.use("max", DType("float32"))     # "aotc_max_f32"
    helpers.use("max", DType("float32"), 8)  # "aotc_max_f32x8"
    helpers.definitions                      # {"aotc_max_f32": "static inline float aotc_max_f32(float a, ...", ...}
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from string import Template
from typing import Final, TypeAlias

from aotc.ir import DType, frozen
from aotc_codegen.c import vector_width_conversions
from aotc_codegen.c.c_dialects import Dialect
from aotc_codegen.c.c_types import carrier, suffix


@frozen
class Definition:
    """Template of a C helper function, and the keys of the helpers it calls, which get its dtype
    and lane count.
    """

    text: str
    uses: tuple[str, ...] = ()


def function(body: str, params: str, result: str, uses: str = "") -> Definition:
    """Return the template of a function with a body, parameters and result type; `uses` are keys of
    called helpers.
    """
    return Definition(f"$inline {result} $name({params}) {{\n  {body.strip()}\n}}\n", tuple(uses.split()))


#: Templates of a helper function by the kind of dtype, "float" or "unsigned"; "" stands for all
#: other dtypes.
Row: TypeAlias = Mapping[str, Definition]


def _row(body: str, params: str = "$V a, $V b", result: str = "$V", uses: str = "", **kinds: str) -> Row:
    return {kind: function(text, params, result, uses) for kind, text in {**kinds, "": body}.items()}


def _index(body: str) -> Row:
    return _row(body, "$I a, $I b", "$I")


def _unary(body: str, result: str = "$V", uses: str = "") -> Row:
    return _row(body, "$V a", result, uses)


def _reinterpretation(kind: str, whole: str, number: str) -> Row:
    """Return the template of aotc_bits and aotc_from_bits, which copy a float's bits into an
    integer and back.
    """

    def copied(made: str, name: str, given: str) -> str:
        body = f"  {made} y;\n  memcpy(&y, &x, sizeof y);\n  return y;\n"
        return f"$inline {made} aotc_{name}({given} x) {{\n{body}}}\n"

    return {"": Definition(copied(whole, f"bits{kind}", number) + copied(number, f"from_bits{kind}", whole))}


def _to_integer(bits: int) -> Row:
    """Return the template of a conversion from float to a signed integer; NaN and values out of
    range give INT_MIN.
    """
    bound = f"{float(2 ** (bits - 1))!r}$f"
    return _unary(f"return a >= -{bound} && a < {bound} ? (int{bits}_t)a : INT{bits}_MIN;", f"int{bits}_t")


def _extremes(name: str, symbol: str) -> dict[str, Row]:
    """Return the scalar minimum or maximum: NaN if an operand is NaN.

    The variant with the suffix "c" takes a second operand that is not NaN, and needs a single
    comparison.
    """
    return {
        name: _row(
            f"return a {symbol} b ? a : b;", float=f"const $V m = b {symbol} a ? b : a;\n  return b != b ? b : m;"
        ),
        f"{name}c": _row(f"return b {symbol} a ? b : a;"),
    }


def _vector_extremes(name: str, symbol: str) -> dict[str, Definition]:
    either = f"const $vector m = ${name}c(a, b);\n  return $blend(($M)(b != b), b, m);"
    number = f"return $blend(($M)(b {symbol} a), b, a);"
    rows = {name: (either, f"{name}c blend"), f"{name}c": (number, "blend")}
    return {key: function(text, "$vector a, $vector b", "$vector", uses) for key, (text, uses) in rows.items()}


_DIVIDE: Final = "if (b == 0) return 0;\n  return ($T)(a / b);"
_REMAINDER: Final = "if (b == 0) return 0;\n  return ($T)(a % b);"
# division by zero gives 0; INT_MIN / -1 wraps
_GUARD: Final = "if (b == 0) return 0;\n  if (b == -1) return ($T)(0u - ($U)a);\n  "
_BELOW: Final = "a / b - ((a % b != 0) && ((a < 0) != (b < 0)))"
_POSITIVE: Final = "r != 0 && ((r < 0) != (b < 0)) ? r + b : r"
_POWER: Final = """\
for (; b > 0; b = ($T)(b / 2)) {
    if (b % 2 != 0) r *= x;
    x *= x;
  }
  return ($T)r;"""
_NEGATIVE: Final = "if (b < 0) return a == 1 || (a == -1 && b % 2 == 0) ? 1 : a == -1 ? -1 : 0;\n  "
_HALF: Final = f"{2.0**63!r}$f"

_SCALARS: Final[Mapping[str, Row]] = {
    "bits": _reinterpretation("", "uint32_t", "float"),
    "bits64": _reinterpretation("64", "uint64_t", "double"),
    **_extremes("max", ">"),
    **_extremes("min", "<"),
    "above": _row("return a > b ? a : b;"),
    "below": _row("return a < b ? a : b;"),
    "truncdiv": _row(f"{_GUARD}return ($T)(a / b);", unsigned=_DIVIDE),
    "floordiv": _row(f"{_GUARD}return ($T)({_BELOW});", unsigned=_DIVIDE),
    "truncmod": _row("if (b == 0 || b == -1) return 0;\n  return ($T)(a % b);", unsigned=_REMAINDER),
    "floormod": _row(
        f"if (b == 0 || b == -1) return 0;\n  {{\n    const $T r = ($T)(a % b);\n    return ($T)({_POSITIVE});\n  }}",
        unsigned=_REMAINDER,
    ),
    "index_div": _index(f"return {_BELOW};"),
    "index_mod": _index(f"const $I r = a % b;\n  return {_POSITIVE};"),
    "index_max": _index("return a > b ? a : b;"),
    "index_min": _index("return a < b ? a : b;"),
    "shl": _row("return b < 0 || b >= $W ? 0 : ($T)(($U)a << b);", unsigned="return b >= $W ? 0 : ($T)(($U)a << b);"),
    "shr": _row("return ($T)(a >> (b < 0 || b >= $W ? $last : b));", unsigned="return b >= $W ? 0 : ($T)(a >> b);"),
    "pow": _row(f"$U r = 1, x = ($U)a;\n  {_NEGATIVE}{_POWER}", unsigned=f"$U r = 1, x = ($U)a;\n  {_POWER}"),
    "abs": _unary("return a < 0 ? ($T)(0u - ($U)a) : a;"),
    "to_i32": _to_integer(32),
    "to_i64": _to_integer(64),
    "to_u64": _unary(
        f"return a >= {_HALF} ? (uint64_t)$to_i64(a - {_HALF}) + (UINT64_C(1) << 63) : (uint64_t)$to_i64(a);",
        "uint64_t",
        "to_i64",
    ),
    # integers of 4 and 2 bits wrap as numpy's fixed-width integers do
    "wrap": _row(
        "return (int8_t)(((a & $mask) ^ $top) - $top);", "int64_t a", "$T", unsigned="return (uint8_t)(a & $mask);"
    ),
}

#: gcc builtins of x86 instructions by "HELPER DTYPE": the CPU features for vectors of 16 and of 32
#: bytes, the builtin's name (and a second name for 64 bytes), the operands, and the further
#: operands for 64 bytes, which include a mask that selects all lanes.
_X86: Final[Mapping[str, tuple[str, ...]]] = {
    "fma float32": ("FMA FMA", "vfmaddps", "a, b, c", "-1, 4"),
    "fma float64": ("FMA FMA", "vfmaddpd", "a, b, c", "255, 4"),
    "sqrt float32": ("SSE2 AVX", "sqrtps", "a", "a, -1, 4"),
    "sqrt float64": ("SSE2 AVX", "sqrtpd", "a", "a, -1, 4"),
    # these instructions return their second operand if both are zeros or if one is NaN
    "minc float32": ("SSE2 AVX", "minps", "b, a", "a, -1, 4"),
    "maxc float32": ("SSE2 AVX", "maxps", "b, a", "a, -1, 4"),
    "below float32": ("SSE2 AVX", "minps", "a, b", "b, -1, 4"),
    "above float32": ("SSE2 AVX", "maxps", "a, b", "b, -1, 4"),
    "minc float64": ("SSE2 AVX", "minpd", "b, a", "a, 255, 4"),
    "maxc float64": ("SSE2 AVX", "maxpd", "b, a", "a, 255, 4"),
    "minc int32": ("SSE4_1 AVX2", "pminsd", "b, a", "a, 65535"),
    "maxc int32": ("SSE4_1 AVX2", "pmaxsd", "b, a", "a, 65535"),
    "minc uint32": ("SSE4_1 AVX2", "pminud", "($M)b, ($M)a", "($M)a, 65535"),
    "maxc uint32": ("SSE4_1 AVX2", "pmaxud", "($M)b, ($M)a", "($M)a, 65535"),
    # values out of range become INT_MIN
    "to_i32 float32": ("SSE2 AVX", "cvttps2dq", "v", "($M)v, -1, 4"),
    **{
        f"{what} float{bits}": ("SSE4_1 AVX", f"round{kind} rndscale{kind}_mask", f"x, {code}", "x, -1, 4")
        for what, code in {"round_even": 8, "floor": 9, "ceil": 10, "trunc": 11}.items()
        for bits, kind in ((32, "ps"), (64, "pd"))
    },
}


def _instructions(what: str, value: str, size: int) -> Iterator[tuple[str, str]]:
    """Yield the preprocessor conditions of each builtin for vectors of `size` bytes, and the call
    of the builtin.
    """
    features, names, operands, masked = _X86[f"{what} {value}"]
    name, *longest = names.split()
    if what in ("fma", "sqrt"):
        yield "clang", f"elementwise_{what}({operands})"
        if size == 16:
            kind = "v4sf" if value == "float32" else "v2df"
            yield "aarch64", f"aarch64_{what}{kind}({operands})"
    if size == 64:
        whole = longest[0] if longest else f"{name}512_mask"
        if what in ("fma", "to_i32") or longest:
            # the mask is unsigned in clang and signed in gcc
            unsigned = masked.replace("-1", "255" if value == "float64" else "65535")
            yield "AVX512F clang", f"ia32_{whole}({operands}, {unsigned})"
        yield "AVX512F", f"ia32_{whole}({operands}, {masked})"
    elif size in (16, 32):
        width = 256 if size == 32 else 128 if name.startswith("p") else ""
        yield features.split()[size // 32], f"ia32_{name}{width}({operands})"


def _instructed(what: str, plain: Definition, value: DType, lanes: int) -> Definition:
    """Return a vector function that uses the processor's instruction if the C compiler offers it,
    else its plain C body.
    """
    made = "$M" if what == "to_i32" else "$vector"
    if f"{what} {value}" not in _X86:
        return plain
    text = ""
    for features, call in _instructions(what, str(value), lanes * value.itemsize):
        builtin = f"__builtin_{call}"
        needs = [f"defined(__{f}__)" for f in features.split()]
        needs.append(f"AOTC_HAS({builtin.partition('(')[0]})")
        text += f"#{'el' if text else ''}if {' && '.join(needs)}\n  return ({made}){builtin};\n"
    head, _, body = plain.text.partition("\n")
    return Definition(f"{head}\n{text}#else\n{body[:-2]}#endif\n}}\n" if text else plain.text, plain.uses)


def _each(called: str, *names: str) -> Definition:
    """Return a vector function that calls a scalar C function for each element in turn."""
    elements = ", ".join(f"{name}[i]" for name in names)
    body = f"$vector y = a;\n  for (int i = 0; i < $lanes; ++i) y[i] = {called}({elements});\n  return y;"
    return function(body, ", ".join(f"$vector {name}" for name in names), "$vector")


def _to_integers(bits: int) -> Definition:
    """Return the template of a vector conversion from float to signed integers; NaN and values out
    of range give INT_MIN.
    """
    bound, made = f"{float(2 ** (bits - 1))!r}$f", f"$M{bits}"
    lines = (
        f"const $M fits = ($M)(v >= -{bound}) & ($M)(v < {bound});",
        f"const {made} inside = __builtin_convertvector(fits, {made});",
        f"const {made} whole = __builtin_convertvector(($vector)(($M)v & fits), {made});",
        f"return (whole & inside) | (INT{bits}_MIN & ~inside);",
    )
    return function("\n  ".join(lines), "$vector v", made)


_VECTORS: Final[Mapping[str, Definition]] = {
    "splat": function("const $vector v = {$copies};\n  return v;", "$T x", "$vector"),
    # gcc compiles "+" to a single masked move, but "|" to two operations (unused if the compiler
    # has instructions for the callers)
    "blend": Definition(
        "__attribute__((__unused__)) $inline $vector $name($M m, $vector a, $vector b) {\n"
        "  return ($vector)((($M)a & m) + (($M)b & ~m));\n}\n"
    ),
    **_vector_extremes("max", ">"),
    **_vector_extremes("min", "<"),
    "above": function("return $blend(($M)(a > b), a, b);", "$vector a, $vector b", "$vector", "blend"),
    "below": function("return $blend(($M)(a < b), a, b);", "$vector a, $vector b", "$vector", "blend"),
    "abs": function("return ($vector)(($M)a & INT${W}_MAX);", "$vector a", "$vector"),
    "copysign": function(
        "return ($vector)((($M)a & INT${W}_MAX) | (($M)b & INT${W}_MIN));", "$vector a, $vector b", "$vector"
    ),
    "sqrt": _each("sqrt$f", "a"),
    "fma": _each("fma$f", "a", "b", "c"),
    "to_i32": _to_integers(32),
    "to_i64": _to_integers(64),
    "to_u64": function(
        f"const $M high = ($M)(v >= {_HALF});\n"
        f"  const $M64 low = $to_i64(v - ($vector)(($M)$splat({_HALF}) & high));\n"
        "  return ($MU)(low ^ (__builtin_convertvector(high, $M64) & INT64_MIN));",
        "$vector v",
        "$MU",
        "to_i64 splat",
    ),
}


def _transpose(lanes: int) -> str:
    """Return a function that transposes a square block of lanes x lanes elements (Eklundh's
    algorithm, 1972).

    In each round, off-diagonal subblocks of half the previous size are exchanged by vector
    shuffles.
    """
    rows = [f"r{k}" for k in range(lanes)]
    body = [f"const $vector r{k} = *(const ${{vector}}u *)(from + {k} * from_step);" for k in range(lanes)]
    half = lanes // 2
    while half:
        fresh = list(rows)
        for k in (k for k in range(lanes) if not k & half):
            low = [lanes + j - half if j & half else j for j in range(lanes)]
            high = [lanes + j if j & half else j + half for j in range(lanes)]
            for place, mask in ((k, low), (k + half, high)):
                fresh[place] = f"r{place}_{half}"
                parts = ", ".join(map(str, mask))
                made = f"__builtin_shufflevector({rows[k]}, {rows[k + half]}, {parts})"
                body.append(f"const $vector {fresh[place]} = {made};")
        rows, half = fresh, half // 2
    body += [f"*(${{vector}}u *)(to + {k} * to_step) = {row};" for k, row in enumerate(rows)]
    head = "$name($T *to, $I to_step, const $T *from, $I from_step)"
    return (
        "#if defined(__clang__) || (defined(__GNUC__) && __GNUC__ >= 12)\n"
        f"__attribute__((__noinline__, __unused__)) static void {head} {{\n  " + "\n  ".join(body) + "\n}\n"
        "#else\n"
        f"__attribute__((__unused__)) static void {head} {{\n"
        f"  for (int i = 0; i < {lanes}; ++i) {{\n    for (int j = 0; j < {lanes}; ++j) {{\n"
        "      to[i * to_step + j] = from[j * from_step + i];\n    }\n  }\n}\n"
        "#endif\n"
    )


#: Names of IR instructions on square blocks of memory, and the helper functions that implement
#: them.
BLOCKS: Final = {"turn": "transpose"}


def _definition(what: str, dtype: DType, lanes: int) -> Definition:
    """Return the template of a helper function for a dtype and a number of lanes."""
    if what == "transpose":
        return Definition(_transpose(lanes))
    if what in ("narrow", "widen"):
        head = f"$inline {'$B' if what == 'narrow' else '$M32'} $name($vector v) {{\n"
        return Definition(f"{head}{vector_width_conversions.conversion(what, lanes)}}}\n")
    if what.startswith("quarter"):
        head = "$inline $vector $name($vector a, $vector b, $vector c, $vector d) {\n"
        return Definition(f"{head}{vector_width_conversions.quarter(int(what[-1]), lanes)}}}\n")
    if lanes > 1:
        return _instructed(what, _VECTORS[what], carrier(dtype), lanes)
    row = _SCALARS[what]
    kind = "float" if dtype.is_float else "" if dtype.is_signed else "unsigned"
    return row.get(kind) or row[""]


@dataclass(slots=True, eq=False)
class Helpers:
    """Helper functions that the printed kernels call; each definition comes after the definitions
    that it calls.
    """

    dialect: Dialect
    definitions: dict[str, str] = field(default_factory=dict)

    def use(self, what: str, dtype: DType, lanes: int = 1) -> str:
        """Return the C name of the helper `what` for a dtype and lane count, and add its definition
        to `definitions`.

        The helper `blend` selects lanes by a mask; `splat` copies a scalar to all lanes.
        """
        kind = "" if what in ("bits", "bits64") else f"_{suffix(dtype)}{f'x{lanes}' if lanes > 1 else ''}"
        name = f"aotc_{what}{kind}"
        if name not in self.definitions:
            row = _definition(what, dtype, lanes)
            # the called helpers' definitions come first
            names = {use: self.use(use, dtype, lanes) for use in row.uses}
            vector = self._vector_words(dtype, lanes) if lanes > 1 else {}
            self.definitions[name] = Template(row.text).substitute(self._words(dtype) | vector, name=name, **names)
        return name

    def instructed(self, what: str, text: str, dtype: DType, lanes: int) -> str:
        """Return the definition of a vector function; it uses the processor's instruction if there
        is one, else `text`.
        """
        made = _instructed(what, Definition(text), carrier(dtype), lanes)
        return Template(made.text).substitute(self._vector_words(dtype, lanes))

    def add(self, name: str, text: str) -> None:
        """Add a function that an instruction brings along; `text` is a template that contains its
        `name`.
        """
        self.definitions[name] = Template(text).substitute(self._words(DType("float32")))

    def _words(self, dtype: DType) -> dict[str, object]:
        dialect, bits = self.dialect, 8 * dtype.itemsize
        return {
            "inline": dialect.inline,
            "T": dialect.types[dtype],
            "V": dialect.value_type(dtype),
            "U": dialect.unsigned_type(dtype),
            "I": dialect.index,
            "W": bits,
            "last": bits - 1,
            "f": dialect.ending(dtype),
            "mask": (1 << dtype.bits) - 1,
            "top": 1 << (dtype.bits - 1),
        }

    def _vector_words(self, dtype: DType, lanes: int) -> dict[str, object]:
        name = self.dialect.vector_name
        value = carrier(dtype)
        return {
            "vector": name(value, lanes),
            "M": name(DType(f"int{value.bits}"), lanes),
            "M32": name(DType("int32"), lanes),
            "M64": name(DType("int64"), lanes),
            "MU": name(DType("uint64"), lanes),
            "B": name(DType("int8"), lanes),
            "H": name(DType("int16"), lanes),
            **vector_width_conversions.words(dtype),
            "lanes": lanes,
            "copies": ", ".join(["x"] * lanes),
        }
