# SPDX-License-Identifier: Apache-2.0
"""Inline functions that kernels call where C has no operator with the right meaning.

A helper is named by what it does and on what: "max_f32", "floordiv_idx", "load_float16".  The printer asks for
those it needs; `helper_text` gives them, with those that they need in turn, once each, in order.

    helper_text({"tanh_f32"})                     # aotc_bits_f32, ..., aotc_exp_f32, aotc_tanh_f32
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from string import Template
from typing import Final

from aotc.ir.dtype import DType
from aotc_codegen import mathlib
from aotc_codegen.narrow import narrow_text, odd_text

BITCASTS: Final = ("bits_f32", "from_bits_f32")


@dataclass(frozen=True, slots=True)
class Helper:
    """The text of an inline function and the helpers it calls."""

    text: str
    requires: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Integer:
    """How an integer type is written: itself, unsigned, and the unsigned type that arithmetic happens in."""

    type: str
    unsigned: str
    wide: str
    bits: int

    @property
    def signed(self) -> bool:
        return self.type != self.unsigned


INTEGERS: Final = {
    **{f"i{b}": _Integer(f"int{b}_t", f"uint{b}_t", f"uint{max(b, 32)}_t", b) for b in (8, 16, 32, 64)},
    **{f"u{b}": _Integer(f"uint{b}_t", f"uint{b}_t", f"uint{max(b, 32)}_t", b) for b in (8, 16, 32, 64)},
    "idx": _Integer("ptrdiff_t", "size_t", "size_t", 64),
}
FLOATS: Final = {"f32": "float", "f64": "double"}

_FUNCTION: Final = Template("static inline $result aotc_$name($arguments)\n{\n$body}\n")

_FLOAT_BODIES: Final = {
    # a comparison with NaN is false, so that a NaN in `a` comes through; one in `b` is asked for
    "min": "    return (b < a) | (b != b) ? b : a;\n",
    "max": "    return (b > a) | (b != b) ? b : a;\n",
}
_SIGNED_BODIES: Final = {
    "floordiv": """\
    if (b == 0) {
        return 0;
    }
    if (b == -1) {
        return ($type)(0u - ($wide)a);
    }
    return ($type)(a / b - ((a % b != 0) & ((a < 0) != (b < 0))));
""",
    "floormod": """\
    if (b == 0 || b == -1) {
        return 0;
    }
    return ($type)(a % b + ((a % b != 0) & ((a < 0) != (b < 0)) ? b : 0));
""",
    "truncdiv": """\
    return b == 0 ? ($type)0 : b == -1 ? ($type)(0u - ($wide)a) : ($type)(a / b);
""",
    "truncmod": """\
    return b == 0 || b == -1 ? ($type)0 : ($type)(a % b);
""",
    "shr": """\
    return ($type)(a >> (($unsigned)b >= ${bits}u ? ${last} : b));
""",
    "abs": """\
    return a < 0 ? ($type)(0u - ($wide)a) : a;
""",
    "pow": """\
    $wide result = 1u;
    $wide base = ($wide)a;
    if (b < 0) {
        return ($type)(a == 1 ? 1 : a == -1 ? 1 - 2 * (b & 1) : 0);
    }
    while (b != 0) {
        if (b & 1) {
            result *= base;
        }
        base *= base;
        b = ($type)(b / 2);
    }
    return ($type)result;
""",
}
_UNSIGNED_BODIES: Final = {
    "floordiv": "    return b == 0u ? ($type)0 : ($type)(a / b);\n",
    "floormod": "    return b == 0u ? ($type)0 : ($type)(a % b);\n",
    "truncdiv": "    return b == 0u ? ($type)0 : ($type)(a / b);\n",
    "truncmod": "    return b == 0u ? ($type)0 : ($type)(a % b);\n",
    "shr": "    return b >= ${bits}u ? ($type)0 : ($type)(($wide)a >> b);\n",
    "abs": "    return a;\n",
    "pow": """\
    $wide result = 1u;
    $wide base = a;
    while (b != 0u) {
        if (b & 1u) {
            result *= base;
        }
        base *= base;
        b = ($type)(b / 2u);
    }
    return ($type)result;
""",
}
_INTEGER_BODIES: Final = {
    "min": "    return b < a ? b : a;\n",
    "max": "    return b > a ? b : a;\n",
    "shl": "    return ($unsigned)b >= ${bits}u ? ($type)0 : ($type)(($wide)a << b);\n",
    "popcount": """\
    $wide rest = ($unsigned)a;
    int count = 0;
    for (; rest != 0u; rest &= rest - 1u) {
        ++count;
    }
    return ($type)count;
""",
    "clz": """\
    $wide rest = ($unsigned)a;
    int count = $bits;
    for (; rest != 0u; rest >>= 1) {
        --count;
    }
    return ($type)count;
""",
}
_ONE_ARGUMENT: Final = frozenset({"abs", "popcount", "clz"})
_WRITTEN_B: Final = frozenset({"pow"})

# least exclusive bound below and least bound above the integers of a type, and what is outside them
_TO_INTEGER: Final = {
    ("f32", "i32"): ("x >= -2147483648.0f && x < 2147483648.0f", "INT32_MIN"),
    ("f64", "i32"): ("x > -2147483649.0 && x < 2147483648.0", "INT32_MIN"),
    ("f32", "i64"): ("x >= -9223372036854775808.0f && x < 9223372036854775808.0f", "INT64_MIN"),
    ("f64", "i64"): ("x >= -9223372036854775808.0 && x < 9223372036854775808.0", "INT64_MIN"),
}
_TO_U64: Final = Template("""\
    if (x >= 0.0$f && x < 18446744073709551616.0$f) {
        return (uint64_t)x;
    }
    return x < 0.0$f && x >= -9223372036854775808.0$f ? (uint64_t)(int64_t)x : UINT64_C(0x8000000000000000);
""")

MATH: Final = {
    "bits_f32": Helper(mathlib.BITS),
    "from_bits_f32": Helper(mathlib.FROM_BITS),
    "exp_f32": Helper(mathlib.EXP, BITCASTS),
    "log_f32": Helper(mathlib.LOG, BITCASTS),
    "tanh_f32": Helper(mathlib.TANH, ("exp_f32",)),
    "erf_f32": Helper(mathlib.ERF, ("exp_f32",)),
    "odd_f32": Helper(odd_text(), BITCASTS),
    "wrap_int4": Helper("static inline int8_t aotc_wrap_int4(int x)\n{\n    return (int8_t)(((x & 15) ^ 8) - 8);\n}\n"),
    "wrap_int2": Helper("static inline int8_t aotc_wrap_int2(int x)\n{\n    return (int8_t)(((x & 3) ^ 2) - 2);\n}\n"),
    "wrap_uint4": Helper("static inline uint8_t aotc_wrap_uint4(int x)\n{\n    return (uint8_t)(x & 15);\n}\n"),
    "wrap_uint2": Helper("static inline uint8_t aotc_wrap_uint2(int x)\n{\n    return (uint8_t)(x & 3);\n}\n"),
}


def find_helper(name: str) -> Helper:
    """The helper of a name; KeyError for a name that has none."""
    if name in MATH:
        return MATH[name]
    what, _, rest = name.partition("_")
    if what in ("load", "store"):
        return Helper(narrow_text(what, DType(rest)), BITCASTS)
    if what == "round":
        return Helper(narrow_text(what, DType(rest)), (f"load_{rest}", f"store_{rest}"))
    if what == "to":
        return _conversion(name, *rest.split("_"))
    return _function(name, what, rest)


def _conversion(name: str, integer: str, source: str) -> Helper:
    """Floats to integers as x86 and numpy there do it: defined for every value."""
    if integer == "u64":
        body = _TO_U64.substitute(f="f" if source == "f32" else "")
    else:
        inside, outside = _TO_INTEGER[source, integer]
        body = f"    return {inside} ? ({INTEGERS[integer].type})x : {outside};\n"
    return _rendered(name, INTEGERS[integer].type, f"{FLOATS[source]} x", body)


def _function(name: str, what: str, suffix: str) -> Helper:
    if suffix in FLOATS:
        return _rendered(name, FLOATS[suffix], f"{FLOATS[suffix]} a, {FLOATS[suffix]} b", _FLOAT_BODIES[what])
    integer = INTEGERS[suffix]
    bodies = _INTEGER_BODIES | (_SIGNED_BODIES if integer.signed else _UNSIGNED_BODIES)
    facts = {"type": integer.type, "unsigned": integer.unsigned, "wide": integer.wide}
    body = Template(bodies[what]).substitute(facts, bits=integer.bits, last=integer.bits - 1)
    arguments = f"{integer.type} a" if what in _ONE_ARGUMENT else f"{integer.type} a, {integer.type} b"
    return _rendered(name, integer.type, arguments, body)


def _rendered(name: str, result: str, arguments: str, body: str) -> Helper:
    return Helper(_FUNCTION.substitute(result=result, name=name, arguments=arguments, body=body))


def helper_text(names: Iterable[str]) -> str:
    """The C text of the named helpers and all that they need, each after what it calls."""
    done: dict[str, str] = {}
    stack = sorted(names, reverse=True)
    while stack:
        name = stack[-1]
        helper = find_helper(name)
        missing = [r for r in helper.requires if r not in done]
        if missing:
            stack.extend(reversed(missing))
            continue
        done.setdefault(name, helper.text)
        stack.pop()
    return "\n".join(done.values())
