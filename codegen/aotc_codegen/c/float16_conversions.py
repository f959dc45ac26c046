# SPDX-License-Identifier: Apache-2.0
"""Define float16/float32 conversions by processor instructions if available, else by emulation in
portable code.

    # a function with vcvtph2ps if `features` has "f16c", else <program>
    float16_conversion_definition("load", 8, program, features, name="f", ...)

The functions represent float16 values by their bits: uint16, or a vector of uint16.
"""

from collections.abc import Collection
from string import Template
from typing import Final

from aotc.tir import CVariant, c_text_for_features

_SCALAR_CONVERSION_TEMPLATES: Final = {
    "load": """\
$inline float $name(uint16_t bits) {
  __extension__ _Float16 value;
  memcpy(&value, &bits, sizeof value);
  return (float)value;
}
""",
    "store": """\
$inline uint16_t $name(float x) {
  __extension__ const _Float16 value = (_Float16)x;
  uint16_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}
""",
    "round": "$inline float $name(float x) {\n  return (float)(__extension__(_Float16)x);\n}\n",
}
_HAS_FLOAT16_TYPE_CONDITION: Final = "defined(__FLT16_MAX__) && !defined(__cplusplus)"

# gcc offers vector conversions only as these builtins; clang compiles ordinary vector conversions
# to the instructions.
_VECTOR_CONVERSION_TEMPLATES: Final = {
    "load": """\
$inline $single $name($bits from) {
#if defined(__clang__)
  typedef __fp16 half __attribute__((__vector_size__(2 * $lanes)));
  return __builtin_convertvector((half)from, $single);
#else
  typedef short bits __attribute__((__vector_size__($width)));
  const $single none = {0};
  $read
  (void)none;
  return $load;
#endif
}
""",
    "store": """\
$inline $bits $name($single x) {
#if defined(__clang__)
  typedef __fp16 half __attribute__((__vector_size__(2 * $lanes)));
  return ($bits)__builtin_convertvector(x, half);
#else
  typedef short bits __attribute__((__vector_size__($width)));
  const bits none = {0}, h = $store;
  $bits to;
  (void)none;
  memcpy(&to, &h, sizeof to);
  return to;
#endif
}
""",
    "round": "$inline $single $name($single x) {\n  return $to_single($to_bits(x));\n}\n",
}
# Half a register is filled from a 64-bit integer: storing two halves and loading the whole would
# stall store forwarding.
_READ_HALF_REGISTER_CODE: Final = (
    "const bits h = (bits)(__attribute__((__vector_size__(16))) long long){(long long)from, 0};"
)
_X86_CONVERSION_BY_LANES: Final = {
    4: ("f16c", "__builtin_ia32_vcvtph2ps(h)", "__builtin_ia32_vcvtps2ph(x, 0)"),
    8: ("f16c", "__builtin_ia32_vcvtph2ps256(h)", "__builtin_ia32_vcvtps2ph256(x, 0)"),
    16: (
        "avx512f",
        "__builtin_ia32_vcvtph2ps512_mask(h, none, -1, 4)",
        "__builtin_ia32_vcvtps2ph512_mask(x, 0, none, 65535)",
    ),
}


def float16_conversion_definition(
    conversion: str, lanes: int, portable_definition: str, features: Collection[str], **words: str
) -> str:
    """Return the C definition of the float16 conversion `conversion`: "load", "store" or "round".

    It uses conversion instructions of the processor if it and the C compiler have them, else it is
    the portable definition `portable_definition`.

    features   features and architecture of the processor (`Target.processor_features`)
    words      values of the template: the function's $name and specifiers ($inline), the vector
               types $single (float32) and $bits (uint16), and the names of the conversions
               $to_single and $to_bits with equally many lanes
    """
    variants = []
    if lanes == 1:
        definition = Template(_SCALAR_CONVERSION_TEMPLATES[conversion]).substitute(words)
        variants = [CVariant(definition, (f,), _HAS_FLOAT16_TYPE_CONDITION) for f in ("f16c", "aarch64")]
    elif lanes in _X86_CONVERSION_BY_LANES:
        feature, load, store = _X86_CONVERSION_BY_LANES[lanes]
        read = _READ_HALF_REGISTER_CODE if lanes == 4 else "const bits h = (bits)from;"
        facts = {"lanes": lanes, "width": max(16, 2 * lanes), "read": read, "load": load, "store": store}
        definition = Template(_VECTOR_CONVERSION_TEMPLATES[conversion]).substitute(words, **facts)
        variants = [CVariant(definition, (feature,)), CVariant(definition, ("aarch64",), "defined(__clang__)")]
    return c_text_for_features((*variants, CVariant(portable_definition)), features)
