# SPDX-License-Identifier: Apache-2.0
"""Small C functions that kernels need where C's own operators differ from the program's meaning.

`Helpers` collects the names that printing asks for; `text` gives their definitions, dependencies first.

    helpers = Helpers()
    helpers.use("max", DType("float32"))   # "aotc_max_f32"
    helpers.text()                         # "static inline float aotc_max_f32(float a, float b) ..."
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from aotc.ir.dtype import DType
from aotc_codegen.c.ctypes import memory_type, unsigned_type, value_type, vector_name
from aotc_codegen.c.mathlib import FUNCTIONS
from aotc_codegen.c.narrow import lanes_text, narrow_text, odd_text, round_text


def suffix(dtype: DType) -> str:
    """f32, i64, u8, b, f16, bf16, f8_e4m3fn..."""
    if dtype.is_bool:
        return "b"
    if dtype == "bfloat16":
        return "bf16"
    kind = "f" if dtype.is_float else "i" if dtype.is_signed else "u"
    return kind + dtype.removeprefix("float").removeprefix("uint").removeprefix("int")


def _function(result: str, name: str, params: str, body: str) -> str:
    return f"static inline {result} {name}({params}) {{\n  {body}\n}}\n"


def _binary(name: str, dtype: DType, body: str) -> str:
    t = value_type(dtype)
    return _function(t, name, f"{t} a, {t} b", body)


def _propagating(symbol: str, d: DType) -> str:
    """NaN if either is; two selections in a row are a form that compilers vectorise."""
    return f"const {value_type(d)} m = a {symbol} b ? a : b;\n  return a != a ? a : m;"


def _max(name: str, d: DType, _: Helpers) -> str:
    return _binary(name, d, _propagating(">", d) if d.is_float else "return a > b ? a : b;")


def _min(name: str, d: DType, _: Helpers) -> str:
    return _binary(name, d, _propagating("<", d) if d.is_float else "return a < b ? a : b;")


def _max_const(name: str, d: DType, _: Helpers) -> str:
    """The larger of a value and a number that is not NaN: one comparison."""
    return _binary(name, d, "return b > a ? b : a;")


def _min_const(name: str, d: DType, _: Helpers) -> str:
    return _binary(name, d, "return b < a ? b : a;")


def _guard(d: DType) -> str:
    """Division by zero gives 0; the least integer divided by -1 wraps."""
    if not d.is_signed:
        return "if (b == 0) return 0;"
    return f"if (b == 0) return 0;\n  if (b == -1) return ({memory_type(d)})(0u - ({unsigned_type(d)})a);"


def _truncdiv(name: str, d: DType, _: Helpers) -> str:
    t = memory_type(d)
    return _binary(name, d, f"{_guard(d)}\n  return ({t})(a / b);")


def _floordiv(name: str, d: DType, _: Helpers) -> str:
    t = memory_type(d)
    if not d.is_signed:
        return _truncdiv(name, d, _)
    return _binary(name, d, f"{_guard(d)}\n  return ({t})(a / b - ((a % b != 0) && ((a < 0) != (b < 0))));")


def _truncmod(name: str, d: DType, _: Helpers) -> str:
    t = memory_type(d)
    least = " || b == -1" if d.is_signed else ""
    return _binary(name, d, f"if (b == 0{least}) return 0;\n  return ({t})(a % b);")


def _floormod(name: str, d: DType, _: Helpers) -> str:
    t = memory_type(d)
    if not d.is_signed:
        return _truncmod(name, d, _)
    body = f"if (b == 0 || b == -1) return 0;\n  {{\n    const {t} r = ({t})(a % b);\n"
    return _binary(name, d, body + f"    return ({t})(r != 0 && ((r < 0) != (b < 0)) ? r + b : r);\n  }}")


def _index_div(name: str, _: DType, __: Helpers) -> str:
    body = "return a / b - ((a % b != 0) && ((a < 0) != (b < 0)));"
    return _function("ptrdiff_t", name, "ptrdiff_t a, ptrdiff_t b", body)


def _index_mod(name: str, _: DType, __: Helpers) -> str:
    body = "const ptrdiff_t r = a % b;\n  return r != 0 && ((r < 0) != (b < 0)) ? r + b : r;"
    return _function("ptrdiff_t", name, "ptrdiff_t a, ptrdiff_t b", body)


def _index_max(name: str, _: DType, __: Helpers) -> str:
    return _function("ptrdiff_t", name, "ptrdiff_t a, ptrdiff_t b", "return a > b ? a : b;")


def _index_min(name: str, _: DType, __: Helpers) -> str:
    return _function("ptrdiff_t", name, "ptrdiff_t a, ptrdiff_t b", "return a < b ? a : b;")


def _shl(name: str, d: DType, _: Helpers) -> str:
    t, u = memory_type(d), unsigned_type(d)
    test = f"b < 0 || b >= {8 * d.itemsize}" if d.is_signed else f"b >= {8 * d.itemsize}"
    return _binary(name, d, f"return {test} ? 0 : ({t})(({u})a << b);")


def _shr(name: str, d: DType, _: Helpers) -> str:
    t, width = memory_type(d), 8 * d.itemsize
    if not d.is_signed:
        return _binary(name, d, f"return b >= {width} ? 0 : ({t})(a >> b);")
    return _binary(name, d, f"return ({t})(a >> (b < 0 || b >= {width} ? {width - 1} : b));")


def _pow_int(name: str, d: DType, _: Helpers) -> str:
    t, u = memory_type(d), unsigned_type(d)
    negative = "if (b < 0) return a == 1 || (a == -1 && b % 2 == 0) ? 1 : a == -1 ? -1 : 0;\n  "
    head = negative if d.is_signed else ""
    body = f"{u} r = 1, x = ({u})a;\n  {head}for (; b > 0; b = ({t})(b / 2)) {{\n"
    return _binary(name, d, body + f"    if (b % 2 != 0) r *= x;\n    x *= x;\n  }}\n  return ({t})r;")


def _unary(name: str, dtype: DType, body: str, result: str = "") -> str:
    t = value_type(dtype)
    return _function(result or t, name, f"{t} a", body)


def _abs_int(name: str, d: DType, _: Helpers) -> str:
    return _unary(name, d, f"return a < 0 ? ({memory_type(d)})(0u - ({unsigned_type(d)})a) : a;")


def _popcount(name: str, d: DType, _: Helpers) -> str:
    t, bits = memory_type(d), f"uint{8 * d.itemsize}_t"
    body = f"{bits} x = ({bits})a;\n  int n = 0;\n  for (; x != 0; x = ({bits})(x & (x - 1u))) ++n;"
    return _unary(name, d, f"{body}\n  return ({t})n;")


def _clz(name: str, d: DType, _: Helpers) -> str:
    t, bits = memory_type(d), f"uint{8 * d.itemsize}_t"
    body = f"{bits} x = ({bits})a;\n  int n = {8 * d.itemsize};\n  for (; x != 0; x = ({bits})(x >> 1)) --n;"
    return _unary(name, d, f"{body}\n  return ({t})n;")


def _isinf(name: str, d: DType, _: Helpers) -> str:
    return _unary(name, d, "return a == a && a - a != a - a;", "int")


def _to_integer(bits: int) -> Callable[[str, DType, Helpers], str]:
    """Float to a signed integer; what does not fit, NaN included, gives the least integer."""

    def make(name: str, d: DType, _: Helpers) -> str:
        f = "" if d == "float64" else "f"
        bound = f"{float(2 ** (bits - 1))!r}{f}"
        t = f"int{bits}_t"
        return _unary(name, d, f"return a >= -{bound} && a < {bound} ? ({t})a : INT{bits}_MIN;", t)

    return make


def _to_u64(name: str, d: DType, helpers: Helpers) -> str:
    f = "" if d == "float64" else "f"
    half = f"{float(2**63)!r}{f}"
    small = helpers.use("to_i64", d)
    body = f"return a >= {half} ? (uint64_t){small}(a - {half}) + (UINT64_C(1) << 63) : (uint64_t){small}(a);"
    return _unary(name, d, body, "uint64_t")


def _wrap_small(name: str, d: DType, _: Helpers) -> str:
    """Integers of 4 and 2 bits wrap as numpy's do."""
    mask, top = (1 << d.bits) - 1, 1 << (d.bits - 1)
    signed = f"return (int8_t)(((a & {mask}) ^ {top}) - {top});"
    return _function(memory_type(d), name, "int64_t a", signed if d.is_signed else f"return (uint8_t)(a & {mask});")


_BITS: Final = """static inline uint32_t aotc_bits(float x) {
  uint32_t u;
  memcpy(&u, &x, sizeof u);
  return u;
}
static inline float aotc_from_bits(uint32_t u) {
  float x;
  memcpy(&x, &u, sizeof x);
  return x;
}
"""


def _narrow(what: str) -> Callable[[str, DType, Helpers], str]:
    def make(name: str, d: DType, helpers: Helpers) -> str:
        helpers.use_bits()
        return narrow_text(what, name, d)

    return make


def _odd(name: str, _: DType, helpers: Helpers) -> str:
    helpers.use_bits()
    return odd_text(name)


def _elementary(function: str) -> Callable[[str, DType, Helpers], str]:
    text, calls = FUNCTIONS[function]

    def make(_: str, d: DType, helpers: Helpers) -> str:
        helpers.use_bits()
        for other in calls:
            helpers.use(other, d)
        return text

    return make


def _pow(name: str, d: DType, helpers: Helpers) -> str:
    return (_elementary("pow") if d.is_float else _pow_int)(name, d, helpers)


def _round_narrow(name: str, d: DType, helpers: Helpers) -> str:
    if d == "float16":
        helpers.use_bits()
        return round_text(name)
    load, store = helpers.use("load", d), helpers.use("store", d)
    return _function("float", name, "float x", f"return {load}({store}(x));")


_MAKERS: Final[dict[str, Callable[[str, DType, Helpers], str]]] = {
    "max": _max,
    "min": _min,
    "maxc": _max_const,
    "minc": _min_const,
    "truncdiv": _truncdiv,
    "truncmod": _truncmod,
    "floordiv": _floordiv,
    "floormod": _floormod,
    "index_div": _index_div,
    "index_mod": _index_mod,
    "index_max": _index_max,
    "index_min": _index_min,
    "shl": _shl,
    "shr": _shr,
    "abs": _abs_int,
    "popcount": _popcount,
    "clz": _clz,
    "isinf": _isinf,
    "to_i32": _to_integer(32),
    "to_i64": _to_integer(64),
    "to_u64": _to_u64,
    "wrap": _wrap_small,
    "load": _narrow("load"),
    "store": _narrow("store"),
    "round": _round_narrow,
    "odd": _odd,
    **{function: _elementary(function) for function in FUNCTIONS},
    "pow": _pow,
}


def _transpose(name: str, element: str, vector: str, lanes: int) -> str:
    """Blocks change places across the diagonal, half as large in each round (Eklundh, 1972)."""
    rows = [f"r{k}" for k in range(lanes)]
    body = [f"const {vector} r{k} = *(const {vector}u *)(from + {k} * from_step);" for k in range(lanes)]
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
                body.append(f"const {vector} {fresh[place]} = {made};")
        rows, half = fresh, half // 2
    body += [f"*({vector}u *)(to + {k} * to_step) = {row};" for k, row in enumerate(rows)]
    head = f"{name}({element} *to, ptrdiff_t to_step, const {element} *from, ptrdiff_t from_step)"
    return (
        "#if defined(__clang__) || (defined(__GNUC__) && __GNUC__ >= 12)\n"
        f"__attribute__((__noinline__, __unused__)) static void {head} {{\n  " + "\n  ".join(body) + "\n}\n"
        "#else\n"
        f"__attribute__((__unused__)) static void {head} {{\n"
        f"  for (int i = 0; i < {lanes}; ++i) {{\n    for (int j = 0; j < {lanes}; ++j) {{\n"
        "      to[i * to_step + j] = from[j * from_step + i];\n    }\n  }\n}\n"
        "#endif\n"
    )


@dataclass(slots=True, eq=False)
class Helpers:
    """The helper functions in use, in an order in which each comes after what it calls."""

    _definitions: dict[str, str] = field(default_factory=dict)

    def use(self, what: str, dtype: DType) -> str:
        """The name of the helper `what` for a dtype; its definition will be part of `text`."""
        name = f"aotc_{what}_{suffix(dtype)}"
        if name not in self._definitions:
            definition = _MAKERS[what](name, dtype, self)  # may use others, which come first
            self._definitions[name] = definition
        return name

    def use_bits(self) -> None:
        """Reinterpretation of a float as its bits and back."""
        self._definitions.setdefault("aotc_bits", _BITS)

    def use_splat(self, dtype: DType, lanes: int) -> str:
        """The name of the function that repeats a scalar over a vector."""
        vector = vector_name(dtype, lanes)
        name = f"aotc_splat_{suffix(dtype)}x{lanes}"
        if name not in self._definitions:
            values = ", ".join(["x"] * lanes)
            body = f"const {vector} v = {{{values}}};\n  return v;"
            self._definitions[name] = _function(vector, name, f"{memory_type(dtype)} x", body)
        return name

    def use_lanes(self, what: str, dtype: DType, lanes: int) -> str:
        """The name of a function of float vectors.

        `blend` chooses by a mask; `load`, `store` and `round` are of narrow floats; the others are `max` and its kin.
        """
        name = f"aotc_{what}_{suffix(dtype)}x{lanes}"
        if name not in self._definitions and dtype.is_narrow_float:
            self._definitions[name] = self._narrow_lanes(what, name, dtype, lanes)
        elif name not in self._definitions:
            vector, mask = vector_name(dtype, lanes), vector_name(DType(f"int{dtype.bits}"), lanes)
            params = f"{vector} a, {vector} b"
            if what == "blend":
                params = f"{mask} m, {params}"
                body = f"return ({vector})((({mask})a & m) | (({mask})b & ~m));"
            else:
                blend, symbol = self.use_lanes("blend", dtype, lanes), ">" if what.startswith("max") else "<"
                body = f"return {blend}(({mask})(b {symbol} a), b, a);"
                if not what.endswith("c"):  # NaN if either is
                    body = f"const {vector} m = {blend}(({mask})(a {symbol} b), a, b);"
                    body += f"\n  return {blend}(({mask})(a != a), a, m);"
            self._definitions[name] = _function(vector, name, params, body)
        return name

    def _narrow_lanes(self, what: str, name: str, dtype: DType, lanes: int) -> str:
        vector = vector_name(DType("float32"), lanes)
        if what != "round":
            return lanes_text(what, name, dtype, lanes, vector, self.use(what, dtype))
        load, store = (self.use_lanes(w, dtype, lanes) for w in ("load", "store"))
        body = f"{memory_type(dtype)} bits[{lanes}];\n  {store}(bits, v);\n  return {load}(bits);"
        return _function(vector, name, f"{vector} v", body)

    def use_transpose(self, dtype: DType, lanes: int) -> str:
        """The name of the function that turns a square of vectors."""
        name = f"aotc_transpose_{suffix(dtype)}x{lanes}"
        if name not in self._definitions:
            self._definitions[name] = _transpose(name, memory_type(dtype), vector_name(dtype, lanes), lanes)
        return name

    def include(self, others: Helpers) -> None:
        """Use what others use."""
        self._definitions = self._definitions | others._definitions

    def text(self) -> str:
        """All definitions."""
        return "\n".join(self._definitions.values())
