# SPDX-License-Identifier: Apache-2.0
"""Small C functions that kernels call where the semantics of C operators differ from those of the
tensor IR.

Each function is a template with placeholders: $name, $inline (the specifiers before the function),
the types $T (of elements in memory), $V (of scalar values), $U (unsigned, in which integers wrap),
$I (of indices), $vector and $M (the mask that a vector comparison yields), and the names of the
helper functions that it calls. `HelperFunctions` instantiates the templates that the printer asks
for:

    helpers = HelperFunctions(GNU_C)
    helpers.define_helper_and_return_name("max", DType("float32"))  # "aotc_max_f32"
    helpers.define_helper_and_return_name("max", DType("float32"), 8)  # "aotc_max_f32x8"
    helpers.definitions                      # {"aotc_max_f32": "static inline float aotc_max_f32(float a, ...", ...}
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from string import Template
from typing import Final, TypeAlias

from aotc.ir import DType, frozen
from aotc.tir import CVariant, c_text_for_features
from aotc_codegen.c import vector_width_conversions
from aotc_codegen.c.c_dialects import Dialect
from aotc_codegen.c.c_types import computation_dtype, function_name_suffix_of_dtype


@frozen
class HelperTemplate:
    """Template of a C helper function, and the keys of the helpers it calls, which get its dtype
    and lane count.
    """

    text: str
    uses: tuple[str, ...] = ()


def make_helper_template(body: str, params: str, result: str, uses: str = "") -> HelperTemplate:
    """Return the template of a function with a body, parameters and result type; `uses` are keys of
    called helpers.
    """
    return HelperTemplate(f"$inline {result} $name({params}) {{\n  {body.strip()}\n}}\n", tuple(uses.split()))


#: Templates of a helper function by the kind of dtype, "float" or "unsigned"; "" stands for all
#: other dtypes.
HelperTemplateByDtypeKind: TypeAlias = Mapping[str, HelperTemplate]


def _binary_helper_by_dtype_kind(
    body: str, params: str = "$V a, $V b", result: str = "$V", uses: str = "", **kinds: str
) -> HelperTemplateByDtypeKind:
    return {kind: make_helper_template(text, params, result, uses) for kind, text in {**kinds, "": body}.items()}


def _binary_index_helper_template(body: str) -> HelperTemplateByDtypeKind:
    return _binary_helper_by_dtype_kind(body, "$I a, $I b", "$I")


def _unary_helper_by_dtype_kind(body: str, result: str = "$V", uses: str = "") -> HelperTemplateByDtypeKind:
    return _binary_helper_by_dtype_kind(body, "$V a", result, uses)


def _bit_copy_helper(result_type: str, operand_type: str) -> HelperTemplateByDtypeKind:
    """Return the template of a function that copies the bits of a float into an integer, or back."""
    body = f"  {result_type} y;\n  memcpy(&y, &x, sizeof y);\n  return y;\n"
    return {"": HelperTemplate(f"$inline {result_type} $name({operand_type} x) {{\n{body}}}\n")}


def _float_to_integer_helper(bits: int) -> HelperTemplateByDtypeKind:
    """Return the template of a conversion from float to a signed integer; NaN and values out of
    range give INT_MIN.
    """
    bound = f"{float(2 ** (bits - 1))!r}$f"
    return _unary_helper_by_dtype_kind(
        f"return a >= -{bound} && a < {bound} ? (int{bits}_t)a : INT{bits}_MIN;", f"int{bits}_t"
    )


def _scalar_min_or_max_helpers(name: str, symbol: str) -> dict[str, HelperTemplateByDtypeKind]:
    """Return the scalar minimum or maximum: NaN if an operand is NaN.

    The variant with the suffix "c" takes a second operand that is not NaN, and needs a single
    comparison.
    """
    return {
        name: _binary_helper_by_dtype_kind(
            f"return a {symbol} b ? a : b;", float=f"const $V m = b {symbol} a ? b : a;\n  return b != b ? b : m;"
        ),
        f"{name}c": _binary_helper_by_dtype_kind(f"return b {symbol} a ? b : a;"),
    }


def _vector_min_or_max_helpers(name: str, symbol: str) -> dict[str, HelperTemplate]:
    either = f"const $vector m = ${name}c(a, b);\n  return $blend(($M)(b != b), b, m);"
    number = f"return $blend(($M)(b {symbol} a), b, a);"
    rows = {name: (either, f"{name}c blend"), f"{name}c": (number, "blend")}
    return {
        key: make_helper_template(text, "$vector a, $vector b", "$vector", uses) for key, (text, uses) in rows.items()
    }


_UNSIGNED_DIVISION_BODY: Final = "if (b == 0) return 0;\n  return ($T)(a / b);"
_UNSIGNED_REMAINDER_BODY: Final = "if (b == 0) return 0;\n  return ($T)(a % b);"
# division by zero gives 0; INT_MIN / -1 wraps
_SIGNED_DIVISION_GUARD: Final = "if (b == 0) return 0;\n  if (b == -1) return ($T)(0u - ($U)a);\n  "
_FLOOR_DIVISION_EXPR: Final = "a / b - ((a % b != 0) && ((a < 0) != (b < 0)))"
_FLOOR_REMAINDER_EXPR: Final = "r != 0 && ((r < 0) != (b < 0)) ? r + b : r"
_POWER_LOOP: Final = """\
for (; b > 0; b = ($T)(b / 2)) {
    if (b % 2 != 0) r *= x;
    x *= x;
  }
  return ($T)r;"""
_NEGATIVE_EXPONENT_CASE: Final = "if (b < 0) return a == 1 || (a == -1 && b % 2 == 0) ? 1 : a == -1 ? -1 : 0;\n  "
_TWO_TO_63_LITERAL: Final = f"{2.0**63!r}$f"

_SCALAR_HELPERS: Final[Mapping[str, HelperTemplateByDtypeKind]] = {
    "bits": _bit_copy_helper("uint32_t", "float"),
    "bits64": _bit_copy_helper("uint64_t", "double"),
    "from_bits": _bit_copy_helper("float", "uint32_t"),
    "from_bits64": _bit_copy_helper("double", "uint64_t"),
    **_scalar_min_or_max_helpers("max", ">"),
    **_scalar_min_or_max_helpers("min", "<"),
    "above": _binary_helper_by_dtype_kind("return a > b ? a : b;"),
    "below": _binary_helper_by_dtype_kind("return a < b ? a : b;"),
    "truncdiv": _binary_helper_by_dtype_kind(
        f"{_SIGNED_DIVISION_GUARD}return ($T)(a / b);", unsigned=_UNSIGNED_DIVISION_BODY
    ),
    "floordiv": _binary_helper_by_dtype_kind(
        f"{_SIGNED_DIVISION_GUARD}return ($T)({_FLOOR_DIVISION_EXPR});", unsigned=_UNSIGNED_DIVISION_BODY
    ),
    "truncmod": _binary_helper_by_dtype_kind(
        "if (b == 0 || b == -1) return 0;\n  return ($T)(a % b);", unsigned=_UNSIGNED_REMAINDER_BODY
    ),
    "floormod": _binary_helper_by_dtype_kind(
        "if (b == 0 || b == -1) return 0;\n  "
        f"{{\n    const $T r = ($T)(a % b);\n    return ($T)({_FLOOR_REMAINDER_EXPR});\n  }}",
        unsigned=_UNSIGNED_REMAINDER_BODY,
    ),
    "index_div": _binary_index_helper_template(f"return {_FLOOR_DIVISION_EXPR};"),
    "index_mod": _binary_index_helper_template(f"const $I r = a % b;\n  return {_FLOOR_REMAINDER_EXPR};"),
    "index_max": _binary_index_helper_template("return a > b ? a : b;"),
    "index_min": _binary_index_helper_template("return a < b ? a : b;"),
    "shl": _binary_helper_by_dtype_kind(
        "return b < 0 || b >= $W ? 0 : ($T)(($U)a << b);", unsigned="return b >= $W ? 0 : ($T)(($U)a << b);"
    ),
    "shr": _binary_helper_by_dtype_kind(
        "return ($T)(a >> (b < 0 || b >= $W ? $last : b));", unsigned="return b >= $W ? 0 : ($T)(a >> b);"
    ),
    "pow": _binary_helper_by_dtype_kind(
        f"$U r = 1, x = ($U)a;\n  {_NEGATIVE_EXPONENT_CASE}{_POWER_LOOP}",
        unsigned=f"$U r = 1, x = ($U)a;\n  {_POWER_LOOP}",
    ),
    "abs": _unary_helper_by_dtype_kind("return a < 0 ? ($T)(0u - ($U)a) : a;"),
    "to_i32": _float_to_integer_helper(32),
    "to_i64": _float_to_integer_helper(64),
    "to_u64": _unary_helper_by_dtype_kind(
        f"return a >= {_TWO_TO_63_LITERAL} ? (uint64_t)$to_i64(a - "
        f"{_TWO_TO_63_LITERAL}) + (UINT64_C(1) << 63) : (uint64_t)$to_i64(a);",
        "uint64_t",
        "to_i64",
    ),
    # integers of 4 and 2 bits wrap as numpy's fixed-width integers do
    "wrap": _binary_helper_by_dtype_kind(
        "return (int8_t)(((a & $mask) ^ $top) - $top);", "int64_t a", "$T", unsigned="return (uint8_t)(a & $mask);"
    ),
}

#: Helpers without a suffix for the dtype in their names.
_HELPERS_OF_ONE_DTYPE: Final = ("bits", "bits64", "from_bits", "from_bits64")

#: gcc builtins of x86 instructions by "HELPER DTYPE": the required features for vectors of 16 and
#: of 32 bytes, the builtin's name (and a second name for 64 bytes), the operands, and the further
#: operands for 64 bytes, which include a mask that selects all lanes.
_X86_BUILTINS: Final[Mapping[str, tuple[str, ...]]] = {
    "fma float32": ("fma fma", "vfmaddps", "a, b, c", "-1, 4"),
    "fma float64": ("fma fma", "vfmaddpd", "a, b, c", "255, 4"),
    "sqrt float32": ("x86_64 avx", "sqrtps", "a", "a, -1, 4"),
    "sqrt float64": ("x86_64 avx", "sqrtpd", "a", "a, -1, 4"),
    # these instructions return their second operand if both are zeros or if one is NaN
    "minc float32": ("x86_64 avx", "minps", "b, a", "a, -1, 4"),
    "maxc float32": ("x86_64 avx", "maxps", "b, a", "a, -1, 4"),
    "below float32": ("x86_64 avx", "minps", "a, b", "b, -1, 4"),
    "above float32": ("x86_64 avx", "maxps", "a, b", "b, -1, 4"),
    "minc float64": ("x86_64 avx", "minpd", "b, a", "a, 255, 4"),
    "maxc float64": ("x86_64 avx", "maxpd", "b, a", "a, 255, 4"),
    "minc int32": ("sse4_1 avx2", "pminsd", "b, a", "a, 65535"),
    "maxc int32": ("sse4_1 avx2", "pmaxsd", "b, a", "a, 65535"),
    "minc uint32": ("sse4_1 avx2", "pminud", "($M)b, ($M)a", "($M)a, 65535"),
    "maxc uint32": ("sse4_1 avx2", "pmaxud", "($M)b, ($M)a", "($M)a, 65535"),
    # values out of range become INT_MIN
    "to_i32 float32": ("x86_64 avx", "cvttps2dq", "v", "($M)v, -1, 4"),
    **{
        f"{what} float{bits}": ("sse4_1 avx", f"round{kind} rndscale{kind}_mask", f"x, {code}", "x, -1, 4")
        for what, code in {"round_even": 8, "floor": 9, "ceil": 10, "trunc": 11}.items()
        for bits, kind in ((32, "ps"), (64, "pd"))
    },
}


def _builtin_call_variants(helper: str, dtype_name: str, vector_bytes: int) -> Iterator[CVariant]:
    """Yield the calls of builtins for vectors of `vector_bytes` bytes, without the prefix of their
    names.
    """
    features, names, operands, masked = _X86_BUILTINS[f"{helper} {dtype_name}"]
    name, *longest = names.split()
    if helper in ("fma", "sqrt"):
        yield CVariant(f"elementwise_{helper}({operands})", compiler="defined(__clang__)")
        if vector_bytes == 16:
            kind = "v4sf" if dtype_name == "float32" else "v2df"
            yield CVariant(f"aarch64_{helper}{kind}({operands})", ("aarch64",))
    if vector_bytes == 64:
        whole = longest[0] if longest else f"{name}512_mask"
        if helper in ("fma", "to_i32") or longest:
            # the mask is unsigned in clang and signed in gcc
            unsigned = masked.replace("-1", "255" if dtype_name == "float64" else "65535")
            yield CVariant(f"ia32_{whole}({operands}, {unsigned})", ("avx512f",), "defined(__clang__)")
        yield CVariant(f"ia32_{whole}({operands}, {masked})", ("avx512f",))
    elif vector_bytes in (16, 32):
        width = 256 if vector_bytes == 32 else 128 if name.startswith("p") else ""
        yield CVariant(f"ia32_{name}{width}({operands})", (features.split()[vector_bytes // 32],))


def _use_compiler_builtin_if_available(
    helper: str, fallback: HelperTemplate, dtype: DType, lanes: int, features: Collection[str]
) -> HelperTemplate:
    """Return a vector function that uses the instruction of a processor with some features if the C
    compiler offers it, else its plain C body.
    """
    result_type = "$M" if helper == "to_i32" else "$vector"
    if f"{helper} {dtype}" not in _X86_BUILTINS:
        return fallback
    head, _, body = fallback.text.partition("\n")
    variants = []
    for variant in _builtin_call_variants(helper, str(dtype), lanes * dtype.itemsize):
        builtin = f"__builtin_{variant.text}"
        has_builtin = f"AOTC_HAS({builtin.partition('(')[0]})"
        condition = f"{variant.compiler} && {has_builtin}" if variant.compiler else has_builtin
        variants.append(CVariant(f"  return ({result_type}){builtin};\n", variant.requires, condition))
    text = c_text_for_features((*variants, CVariant(body[:-2])), features)
    return HelperTemplate(f"{head}\n{text}}}\n", fallback.uses)


#: Selection of lanes, the preferred text first. On RISC-V, clang passes vectors of up to 16 bytes as integers, and
#: clang 19 would compute bitwise operations on these integers; it has the operator ?: for vectors of another kind, with
#: a warning that it converts the mask, which it does not. gcc compiles "+" to a single masked move, but "|" to two
#: operations.
_LANE_SELECTION_VARIANTS: Final = (
    CVariant(
        """\
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wconversion"
  typedef $int mask __attribute__((__ext_vector_type__($lanes)));
  typedef $T number __attribute__((__ext_vector_type__($lanes)));
  return ($vector)((mask)m ? (number)a : (number)b);
#pragma clang diagnostic pop
""",
        ("v",),
        "defined(__clang__)",
    ),
    CVariant("  return ($vector)((($M)a & m) + (($M)b & ~m));\n"),
)


def _lane_selection_helper(features: Collection[str]) -> HelperTemplate:
    """Return the template of the helper that selects lanes by a mask (unused if the compiler has
    instructions for its callers).
    """
    head = "__attribute__((__unused__)) $inline $vector $name($M m, $vector a, $vector b) {\n"
    return HelperTemplate(f"{head}{c_text_for_features(_LANE_SELECTION_VARIANTS, features)}}}\n")


def _apply_scalar_function_to_lanes(scalar_function: str, *operand_names: str) -> HelperTemplate:
    """Return a vector function that calls a scalar C function for each element in turn."""
    elements = ", ".join(f"{name}[i]" for name in operand_names)
    body = f"$vector y = a;\n  for (int i = 0; i < $lanes; ++i) y[i] = {scalar_function}({elements});\n  return y;"
    return make_helper_template(body, ", ".join(f"$vector {name}" for name in operand_names), "$vector")


def _vector_float_to_integer_helper(bits: int, intermediate_type: str = "") -> HelperTemplate:
    """Return the template of a vector conversion from float to signed integers; NaN and values out
    of range give INT_MIN.

    intermediate_type   placeholder of the type to which values in range are converted first
    """
    bound, result_type = f"{float(2 ** (bits - 1))!r}$f", f"$M{bits}"
    numbers = "($vector)(($M)v & fits)"
    if intermediate_type:
        numbers = f"__builtin_convertvector({numbers}, {intermediate_type})"
    lines = (
        f"const $M fits = ($M)(v >= -{bound}) & ($M)(v < {bound});",
        f"const {result_type} inside = __builtin_convertvector(fits, {result_type});",
        f"const {result_type} whole = __builtin_convertvector({numbers}, {result_type});",
        f"return (whole & inside) | (INT{bits}_MIN & ~inside);",
    )
    return make_helper_template("\n  ".join(lines), "$vector v", result_type)


_VECTOR_HELPERS: Final[Mapping[str, HelperTemplate]] = {
    "splat": make_helper_template("const $vector v = {$copies};\n  return v;", "$T x", "$vector"),
    **_vector_min_or_max_helpers("max", ">"),
    **_vector_min_or_max_helpers("min", "<"),
    "above": make_helper_template("return $blend(($M)(a > b), a, b);", "$vector a, $vector b", "$vector", "blend"),
    "below": make_helper_template("return $blend(($M)(a < b), a, b);", "$vector a, $vector b", "$vector", "blend"),
    "abs": make_helper_template("return ($vector)(($M)a & INT${W}_MAX);", "$vector a", "$vector"),
    "copysign": make_helper_template(
        "return ($vector)((($M)a & INT${W}_MAX) | (($M)b & INT${W}_MIN));", "$vector a, $vector b", "$vector"
    ),
    "sqrt": _apply_scalar_function_to_lanes("sqrt$f", "a"),
    "fma": _apply_scalar_function_to_lanes("fma$f", "a", "b", "c"),
    "to_i32": _vector_float_to_integer_helper(32),
    "to_i64": _vector_float_to_integer_helper(64),
    "to_u64": make_helper_template(
        f"const $M high = ($M)(v >= {_TWO_TO_63_LITERAL});\n"
        f"  const $M64 low = $to_i64(v - ($vector)(($M)$splat({_TWO_TO_63_LITERAL}) & high));\n"
        "  return ($MU)(low ^ (__builtin_convertvector(high, $M64) & INT64_MIN));",
        "$vector v",
        "$MU",
        "to_i64 splat",
    ),
}


def _c_function_transposing_square_block(lanes: int) -> str:
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
                shuffle = f"__builtin_shufflevector({rows[k]}, {rows[k + half]}, {parts})"
                body.append(f"const $vector {fresh[place]} = {shuffle};")
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


def _c_function_summing_rows_of_square_block(lanes: int) -> str:
    """Return a function that sums each row of a square block of lanes x lanes elements.

    In each round, two vectors become one: a shuffle takes one half of the partial sums of each, another one the
    other half, and they are added, as Eklundh's algorithm would exchange them.
    """
    rows = [f"r{k}" for k in range(lanes)]
    body = [f"const $vector r{k} = *(const ${{vector}}u *)(from + {k} * from_step);" for k in range(lanes)]
    half = lanes // 2
    while half:
        for k in range(half):
            masks = [lanes + j - half if j & half else j for j in range(lanes)]
            low = ", ".join(map(str, masks))
            high = ", ".join(str(m + half) for m in masks)
            pair = f"{rows[k]}, {rows[k + half]}"
            name = f"r{k}_{half}"
            body.append(
                f"const $vector {name} = __builtin_shufflevector({pair}, {low}) +\n"
                f"      __builtin_shufflevector({pair}, {high});"
            )
            rows[k] = name
        half //= 2
    body.append(f"*(${{vector}}u *)to = {rows[0]};")
    head = "$inline void $name($T *to, const $T *from, $I from_step)"
    return (
        f"{head} {{\n"
        "#if defined(__clang__) || (defined(__GNUC__) && __GNUC__ >= 12)\n  " + "\n  ".join(body) + "\n#else\n"
        f"  for (int i = 0; i < {lanes}; ++i) {{\n"
        f"    $vector r = *(const ${{vector}}u *)(from + i * from_step);\n"
        f"    for (int half = {lanes // 2}; half > 0; half /= 2)\n"
        "      for (int j = 0; j < half; ++j) r[j] += r[j + half];\n"
        "    to[i] = r[0];\n  }\n#endif\n}\n"
    )


def _c_function_loading_alternate_elements(lanes: int) -> str:
    """Return a function that loads a vector from every second element in memory.

    Two loads that overlap by one element read the elements from the first to the last one of the
    vector, and nothing beyond; a shuffle selects the even elements of the first load and the odd
    elements of the second.
    """
    half = lanes // 2
    shuffle_indices = [2 * k if k < half else 2 * k + 1 for k in range(lanes)]
    elements = ", ".join(f"from[{2 * k}]" for k in range(lanes))
    return (
        "$inline $vector $name(const $T *from) {\n"
        "#if defined(__clang__) || (defined(__GNUC__) && __GNUC__ >= 12)\n"
        "  const $vector first = *(const ${vector}u *)from;\n"
        f"  const $vector second = *(const ${{vector}}u *)(from + {lanes - 1});\n"
        f"  return __builtin_shufflevector(first, second, {', '.join(map(str, shuffle_indices))});\n"
        f"#else\n  return ($vector){{{elements}}};\n#endif\n}}\n"
    )


#: For instructions that a helper function implements: the helper, and the template of its call.
HELPER_OF_INSTRUCTION: Final = {
    "transpose_square": ("transpose", "$helper({0}, {4}, {1}, {3})"),
    "sum_square_rows": ("sum_square_rows", "$helper({0}, {1}, {3})"),
}


def _helper_template(helper: str, dtype: DType, lanes: int, features: Collection[str]) -> HelperTemplate:
    """Return the template of a helper function for a dtype, a number of lanes and a processor."""
    if helper == "transpose":
        return HelperTemplate(_c_function_transposing_square_block(lanes))
    if helper == "sum_square_rows":
        return HelperTemplate(_c_function_summing_rows_of_square_block(lanes))
    if helper == "load_alternate":
        return HelperTemplate(_c_function_loading_alternate_elements(lanes))
    if helper in ("narrow", "widen"):
        head = f"$inline {'$B' if helper == 'narrow' else '$M32'} $name($vector v) {{\n"
        return HelperTemplate(
            f"{head}{vector_width_conversions.c_body_narrowing_or_widening_vector(helper, lanes, features)}}}\n"
        )
    if helper.startswith("quarter"):
        head = "$inline $vector $name($vector a, $vector b, $vector c, $vector d) {\n"
        return HelperTemplate(
            f"{head}{vector_width_conversions.c_body_of_interleaved_vector_quarter(int(helper[-1]), lanes)}}}\n"
        )
    if helper == "to_i32" and dtype == "float64" and lanes > 1 and "v" in features:
        # QEMU 7.2 ends with an error at the instruction that converts to 32 bits directly
        return _vector_float_to_integer_helper(32, "$M64")
    if helper == "blend":
        return _lane_selection_helper(features)
    if lanes > 1:
        template = _VECTOR_HELPERS[helper]
        return _use_compiler_builtin_if_available(helper, template, computation_dtype(dtype), lanes, features)
    row = _SCALAR_HELPERS[helper]
    kind = "float" if dtype.is_float else "" if dtype.is_signed else "unsigned"
    return row.get(kind) or row[""]


@dataclass(slots=True, eq=False)
class HelperFunctions:
    """Helper functions that the printed kernels call; each definition comes after the definitions
    that it calls.
    """

    dialect: Dialect
    definitions: dict[str, str] = field(default_factory=dict)

    def define_helper_and_return_name(self, helper: str, dtype: DType, lanes: int = 1) -> str:
        """Return the C name of the helper `helper` for a dtype and lane count, and add its
        definition to `definitions`.

        The helper `blend` selects lanes by a mask; `splat` copies a scalar to all lanes.
        """
        kind = (
            ""
            if helper in _HELPERS_OF_ONE_DTYPE
            else f"_{function_name_suffix_of_dtype(dtype)}{f'x{lanes}' if lanes > 1 else ''}"
        )
        name = f"aotc_{helper}{kind}"
        if name not in self.definitions:
            row = _helper_template(helper, dtype, lanes, self.dialect.features)
            # the called helpers' definitions come first
            names = {use: self.define_helper_and_return_name(use, dtype, lanes) for use in row.uses}
            vector = self._vector_placeholder_values(dtype, lanes) if lanes > 1 else {}
            self.definitions[name] = Template(row.text).substitute(
                self._scalar_placeholder_values(dtype) | vector, name=name, **names
            )
        return name

    def use_compiler_builtin_if_available(self, helper: str, fallback_definition: str, dtype: DType, lanes: int) -> str:
        """Return the definition of a vector function; it uses the processor's instruction if there
        is one, else `fallback_definition`.
        """
        helper_template = _use_compiler_builtin_if_available(
            helper, HelperTemplate(fallback_definition), computation_dtype(dtype), lanes, self.dialect.features
        )
        return Template(helper_template.text).substitute(self._vector_placeholder_values(dtype, lanes))

    def define_function_used_by_instruction(self, name: str, template_text: str) -> None:
        """Add a function that an instruction brings along; `template_text` is a template that
        contains its `name`.
        """
        self.definitions[name] = Template(template_text).substitute(self._scalar_placeholder_values(DType("float32")))

    def _scalar_placeholder_values(self, dtype: DType) -> dict[str, object]:
        dialect, bits = self.dialect, 8 * dtype.itemsize
        return {
            "inline": dialect.inline,
            "T": dialect.types[dtype],
            "V": dialect.c_value_type(dtype),
            "U": dialect.wrapping_unsigned_type(dtype),
            "I": dialect.index,
            "W": bits,
            "last": bits - 1,
            "f": dialect.math_function_suffix(dtype),
            "mask": (1 << dtype.bits) - 1,
            "top": 1 << (dtype.bits - 1),
        }

    def _vector_placeholder_values(self, dtype: DType, lanes: int) -> dict[str, object]:
        name = self.dialect.vector_type_name
        value = computation_dtype(dtype)
        return {
            "vector": name(value, lanes),
            "int": self.dialect.types[DType(f"int{value.bits}")],
            "M": name(DType(f"int{value.bits}"), lanes),
            "M32": name(DType("int32"), lanes),
            "M64": name(DType("int64"), lanes),
            "MU": name(DType("uint64"), lanes),
            "B": name(DType("int8"), lanes),
            "H": name(DType("int16"), lanes),
            **vector_width_conversions.sign_dependent_conversion_placeholders(dtype),
            "lanes": lanes,
            "copies": ", ".join(["x"] * lanes),
        }
