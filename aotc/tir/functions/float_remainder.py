# SPDX-License-Identifier: Apache-2.0
"""Exact remainder of a float division (C's fmod), for vectors; C libraries have it for scalars
only.
"""

from __future__ import annotations

from aotc.tir.expr import Expr, as_expr, call, cast, select
from aotc.tir.functions.double_double import SHIFTER, UNIT_BITS, bits, number, product
from aotc.tir.functions.float64_functions import LARGEST, NAN, clamped


def _parts(a: Expr) -> tuple[Expr, Expr]:
    """Return (m, e) such that a > 0 equals m * 2^(e - 1075), where m is an integer from 2^52 to
    2^53.
    """
    tiny = a < 2.2250738585072014e-308
    u = bits(select(tiny, a * 2.0**54, a))
    e = number((u >> 52) | UNIT_BITS) - 2.0**52
    return number((u & (2**52 - 1)) | UNIT_BITS), e - select(tiny, as_expr(54.0, a), 0.0)


def _modulo(a: Expr, b: Expr, n: Expr) -> Expr:
    """Return a * b modulo n in the range -n/2 to n/2, exact, for integers n below 2^53 and |a|, |b|
    of at most n/2.
    """
    p, e = product(a, b)
    q = (p / n + SHIFTER) - SHIFTER
    most, rest = product(q, n)
    return _centered((p - most) + (e - rest), n)


def _centered(r: Expr, n: Expr) -> Expr:
    half = n * 0.5
    return select(r > half, r - n, select(r < -half, r + n, r))


def fmod(x: Expr, y: Expr) -> Expr:
    return cast(_fmod(cast(x, "float64"), cast(y, "float64")), str(x.dtype))


def _fmod(x: Expr, y: Expr) -> Expr:
    # m 2^d modulo the integer n of y: 2^d is computed by repeated squaring, from its upper bits on
    ax, ay = call("abs", x), call("abs", y)
    (m, ex), (n, ey) = _parts(ax), _parts(ay)
    distance = bits(clamped(ex - ey, 0.0, 2100.0) + 2.0**52) & 4095
    power = number(((distance >> 6) + 1023) << 52)
    for _ in range(6):
        power = _modulo(power, power, n)
    few = distance & 63
    half = few >> 1
    for count in (half, few - half):
        power = _modulo(power, number((count + 1023) << 52), n)
    r = _modulo(power, _centered(_centered(m, n), n), n)
    r = select(r < 0.0, r + n, r)
    k = bits(ey + (2.0**52 + 2048)) & 8191
    first = k >> 1
    scaled = (r * number((first - 538) << 52)) * number((k - first - 539) << 52)
    value = call("copysign", select(ax < ay, ax, scaled), x)
    return select((ax <= LARGEST) & (ay > 0.0), value, NAN)
