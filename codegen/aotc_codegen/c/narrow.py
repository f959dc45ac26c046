# SPDX-License-Identifier: Apache-2.0
"""Floats that C has no type for: conversions between their bits and float32, and rounding to them.

"load" gives the exact value of some bits, "store" the bits of the nearest value
(ties to even).  Overflow, NaN and signed zeros are ml_dtypes'.  The code has no
branches, so that compilers vectorise it.

    ROWS["load"]["float16"]                      # $inline float $name($T bits) ...
    words(DType("float16"))["first_normal"]      # "0x400", which these texts say of a format

Vectors of them are vectors of float32: `lanes_text` has what loads and stores these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from string import Template
from typing import Final

from aotc.ir import frozen
from aotc.ir.dtype import DType
from aotc_codegen.c.definitions import Definition, function


@frozen
class Format:
    """Sign, exponent and mantissa; codes are of the magnitude.

    largest    the greatest finite code
    overflow   the code for what is greater
    nan        the code for NaN
    unsigned_zero  code 0x80 is NaN: there is neither a negative zero nor a sign of
                   NaN
    """

    mantissa: int
    bias: int
    largest: int
    overflow: int
    nan: int
    unsigned_zero: bool = False


FORMATS: Final = {
    "float16": Format(10, 15, 0x7BFF, 0x7C00, 0x7E00),
    "float8_e5m2": Format(2, 15, 0x7B, 0x7C, 0x7E),
    "float8_e4m3fn": Format(3, 7, 0x7E, 0x7F, 0x7F),
    "float8_e4m3fnuz": Format(3, 8, 0x7F, 0x80, 0x80, True),
    "float8_e5m2fnuz": Format(2, 16, 0x7F, 0x80, 0x80, True),
    "float4_e2m1fn": Format(1, 1, 0x7, 0x7, 0x0),  # has no NaN: it becomes zero
}

#: The bodies of the functions by dtype; "" for all others.
_LOADS: Final = {
    "bfloat16": "return aotc_from_bits((uint32_t)bits << 16);",
    "float8_e8m0fnu": "return bits == 255 ? NAN : aotc_from_bits(bits == 0 ? 0x00400000u : (uint32_t)bits << 23);",
    "": """
  const uint32_t magnitude = bits & ${digits}u;
  const float small = (float)(int32_t)magnitude * $unit;
  const float normal = aotc_from_bits((magnitude << $shift) + ${added}u);
  const float finite = magnitude < ${first_normal}u ? small : normal;
$special  return $result;
""",
}
# float8_e8m0fnu is a power of two without sign or zero: exponents of float32, ties away from zero, 255 is NaN.  Like
# ml_dtypes, it rounds what is between the two least values up.  Others round small values by adding a number whose last
# place is the format's smallest step.
_STORES: Final = {
    "bfloat16": """
  const uint32_t u = aotc_bits(value);
  const uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  return (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? (u >> 16 | 0x40u) : rounded);
""",
    "float8_e8m0fnu": """
  const uint32_t u = aotc_bits(value);
  const uint32_t code = u < 0x00800000u ? (u > 0x00400000u ? 1u : 0u) : (u + 0x00400000u) >> 23;
  return (uint8_t)(u == 0u || u >= 0x7f800000u ? 255u : code);
""",
    "": """
  const uint32_t u = aotc_bits(value);
  const uint32_t a = u & 0x7fffffffu;
  const uint32_t sign = (u >> 31) << $sign_bit;
  const uint32_t small = aotc_bits(aotc_from_bits(a) + $magic) - aotc_bits($magic);
  const uint32_t normal = ((a + ${half}u + ((a >> $shift) & 1u)) >> $shift) - ${rebias}u;
  uint32_t code = a < ${least}u ? small : normal;
  code = code > ${largest}u ? ${overflow}u : code;
  code = a > 0x7f800000u ? ${nan}u : code;
  return ($T)($signed);
""",
}
# What is so where C has a type for float16.
_LOAD_HALF: Final = """
  __extension__ _Float16 value;
  memcpy(&value, &bits, sizeof value);
  return (float)value;
"""
_STORE_HALF: Final = """
  __extension__ const _Float16 narrow = (_Float16)value;
  uint16_t bits;
  memcpy(&bits, &narrow, sizeof bits);
  return bits;
"""
_HAS_HALF: Final = "defined(__FLT16_MAX__) && !defined(__cplusplus) && (defined(__F16C__) || defined(__aarch64__))"

# float32 to the nearest float16 as float32: compilers vectorise it, which they do not with instructions of one number.
_ROUND_F16: Final = """\
  const uint32_t u = aotc_bits(value);
  const uint32_t a = u & 0x7fffffffu;
  const uint32_t small = aotc_bits((aotc_from_bits(a) + 0.5f) - 0.5f);
  const uint32_t normal = (a + 0xfffu + ((a >> 13) & 1u)) & 0xffffe000u;
  uint32_t rounded = a < 0x38800000u ? small : normal;
  rounded = rounded > 0x477fe000u ? 0x7f800000u : rounded;
  rounded = a > 0x7f800000u ? 0x7fc00000u : rounded;
  return aotc_from_bits(rounded | (u & 0x80000000u));
"""

# Rounding twice is exact if the first rounding leaves an odd last digit wherever it is inexact.
_ODD: Final = """\
  const float nearest = (float)value;
  const uint32_t u = aotc_bits(nearest);
  const double error = (double)nearest - value;
  if (!(error > 0.0 || error < 0.0) || (u & 1u) || (u & 0x7fffffffu) == 0x7f800000u) {
    return nearest;
  }
  return aotc_from_bits((nearest > 0.0f && error > 0.0) || (nearest < 0.0f && error < 0.0) ? u - 1u : u + 1u);
"""


def _row(bodies: Mapping[str, str], half: str, params: str, result: str) -> dict[str, Definition]:
    made = {name: function(body, params, result, "bits") for name, body in bodies.items()}
    text = f"#if {_HAS_HALF}\n{function(half, params, result).text}#else\n{made[''].text}#endif\n"
    return made | {"float16": Definition(text, ("bits",))}


#: The definitions of functions on one number by dtype; "" for all others.
ROWS: Final = {
    "load": _row(_LOADS, _LOAD_HALF, "$T bits", "float"),
    "store": _row(_STORES, _STORE_HALF, "float value", "$T"),
    "round": {
        "float16": function(_ROUND_F16, "float value", "float", "bits"),
        "": function("return $load($store(x));", "float x", "float", "load store"),
    },
    "odd": {"": function(_ODD, "double value", "float", "bits")},
}


_LANES: Final = {
    "load": Template("""\
$inline $vector $name(const $T *from) {
$hardware  $vector v;
  float x[$lanes];
  for (int i = 0; i < $lanes; ++i) x[i] = $scalar(from[i]);
  memcpy(&v, x, sizeof v);
  return v;
$end}
"""),
    "store": Template("""\
$inline void $name($T *to, $vector v) {
$hardware  float x[$lanes];
  memcpy(x, &v, sizeof v);
  for (int i = 0; i < $lanes; ++i) to[i] = $scalar(x[i]);
$end}
"""),
}

# gcc has no conversions of vectors but these functions; clang makes the instructions of ordinary conversions.
_HARDWARE_LANES: Final = Template("""\
#if defined(__clang__) && (defined(__F16C__) || defined(__aarch64__))
  typedef __fp16 half __attribute__((__vector_size__(2 * $lanes)));
$clang#elif defined($feature)
  typedef short bits __attribute__((__vector_size__($width)));
$gcc#else
""")
_CLANG_LANES: Final = {
    "load": """\
  half h;
  memcpy(&h, from, sizeof h);
  return __builtin_convertvector(h, $vector);
""",
    "store": """\
  const half h = __builtin_convertvector(v, half);
  memcpy(to, &h, sizeof h);
""",
}
# Half a register is filled by way of a number: a store of both halves and a load of the whole would wait.
_READ_HALF: Final = """\
  typedef long long pair __attribute__((__vector_size__(16)));
  pair both = {0, 0};
  long long low;
  memcpy(&low, from, sizeof low);
  both[0] = low;
  const bits h = (bits)both;
"""
_READ: Final = {4: _READ_HALF, 8: "  bits h;\n  memcpy(&h, from, sizeof h);\n"}
_GCC_LANES: Final = {
    "load": """\
  const $vector none = {0};
$read  (void)none;
  return $convert;
""",
    "store": """\
  const bits none = {0}, h = $convert;
  (void)none;
  memcpy(to, &h, 2 * $lanes);
""",
}
_CONVERSIONS: Final = {
    4: ("__F16C__", "__builtin_ia32_vcvtph2ps(h)", "__builtin_ia32_vcvtps2ph(v, 0)"),
    8: ("__F16C__", "__builtin_ia32_vcvtph2ps256(h)", "__builtin_ia32_vcvtps2ph256(v, 0)"),
    16: (
        "__AVX512F__",
        "__builtin_ia32_vcvtph2ps512_mask(h, none, -1, 4)",
        "__builtin_ia32_vcvtps2ph512_mask(v, 0, none, 65535)",
    ),
}


def lanes_text(what: str, dtype: DType, lanes: int) -> str:
    """The definition of the function that loads ("load") or stores ("store") several neighbours as float32.

    It calls the function that does so for the bits of one, $scalar.
    """
    hardware = ""
    if dtype == "float16" and lanes in _CONVERSIONS:
        feature, load, store = _CONVERSIONS[lanes]
        words = {"read": _READ.get(lanes, _READ[8]), "convert": load if what == "load" else store}
        gcc = Template(_GCC_LANES[what]).safe_substitute(words)
        width = max(16, 2 * lanes)
        hardware = _HARDWARE_LANES.safe_substitute(clang=_CLANG_LANES[what], feature=feature, width=width, gcc=gcc)
    return _LANES[what].safe_substitute(hardware=hardware, end="#endif\n" if hardware else "")


def words(dtype: DType) -> dict[str, str]:
    """What the definitions of `load` and `store` say of a format; nothing where they are the dtype's own."""
    if dtype not in FORMATS:
        return {}
    f, sign = FORMATS[dtype], 1 << (dtype.bits - 1)
    special = ""
    if f.overflow != f.nan and f.nan:
        special = f"  const float beyond = magnitude > {f.overflow:#x}u ? NAN : INFINITY;\n"
        special += f"  const float absolute = magnitude > {f.largest:#x}u ? beyond : finite;\n"
    elif f.nan and not f.unsigned_zero:
        special = f"  const float absolute = magnitude == {f.nan:#x}u ? NAN : finite;\n"
    name = "absolute" if special else "finite"
    result, signed = f"(bits & {sign:#x}u) != 0u ? -{name} : {name}", "code | sign"
    if f.unsigned_zero:
        result = f"bits == {f.nan:#x}u ? -NAN : {result}"
        signed = f"code == 0u || code == {f.nan:#x}u ? code : {signed}"
    shift = 23 - f.mantissa
    least = 2.0 ** (1 - f.bias - f.mantissa)
    codes = {"digits": sign - 1, "added": (127 - f.bias) << 23, "first_normal": 1 << f.mantissa}
    codes |= {"half": (1 << (shift - 1)) - 1, "rebias": (127 - f.bias) << f.mantissa, "least": (128 - f.bias) << 23}
    texts = {"special": special, "result": result, "signed": signed, "sign_bit": str(dtype.bits - 1)}
    texts |= {"unit": f"{least!r}f", "magic": f"{least * 2**23!r}f", "shift": str(shift)}
    return {name: f"{code:#x}" for name, code in (asdict(f) | codes).items()} | texts
