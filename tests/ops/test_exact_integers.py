# SPDX-License-Identifier: Apache-2.0
"""Quantized operators against their definition in exact arithmetic: dequantize, compute, quantize, rounded once.

result = clip(round_even(f(scale * (x - zero), ...) / output_scale) + output_zero)

All 256 values, or all 65,536 pairs, with scales from 2^-20 to 8 and zero points at the ends and in between, int8 and
uint8.  The exact quotients are numbers of 64 binary digits (longdouble) or more, which hold each product of 8-bit
integers with float32 scales.  Exact operators give the definition's integers; the others may give the neighbor where
the exact quotient lies within a stated distance of a tie, and nowhere else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from aotc.relay.expr import Constant, Var
from aotc.relay.op import OPERATORS_BY_NAME
from aotc.relay.op.opdef import Array
from aotc.relay.op.qnn import builders as qnn
from tests.ops.exact_quantization import DTYPES, F32, ROUNDING, SEEDS, Draw, Pair, Wide, check, real
from tests.ops.harness import expanded, type_of_value
from tests.ops.onnxruntime_oracle import evaluate


def constants(*pairs: Pair) -> list[Array]:
    return [v for scale, zero in pairs for v in (np.asarray(scale, F32), np.asarray(zero, np.int32))]


def computed(name: str, data: list[Array], numbers: list[Array], **attributes: Any) -> Array:
    """An operator's numpy meaning, which its definition by other operators equals."""
    variables = [Var(f"x{k}", type_of_value(v)) for k, v in enumerate(data)]
    node = getattr(qnn, name)(*variables, *map(Constant, numbers), **attributes)
    want = np.asarray(OPERATORS_BY_NAME[f"qnn.{name}"].reference(node.attrs, *data, *numbers))
    found = evaluate(expanded(node), dict(zip(variables, data, strict=True)))
    np.testing.assert_array_equal(found, want)
    return want


# --- functions of one tensor

ERF = np.vectorize(math.erf, otypes=[float])
UNARY: dict[str, Callable[[Array], Array]] = {
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "exp": np.exp,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "log": np.log,
    "erf": ERF,
    "abs": np.abs,
    "hardswish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
    "leaky_relu": lambda x: np.where(x > 0, x, x * Wide(F32(0.1))),
}


@pytest.mark.parametrize("name", UNARY)
def test_functions_of_one_tensor_are_exact(name: str) -> None:
    more = {"alpha": 0.1} if name == "leaky_relu" else {}
    for seed in SEEDS:
        d = Draw(seed)
        pair = d.pair()
        onto = d.onto(F32(1 / 256) if name in ("tanh", "sigmoid", "erf") else pair[0])
        with np.errstate(all="ignore"):
            quotient = UNARY[name](real(d.every, pair)) / Wide(onto[0])
            found = computed(name, [d.every], constants(pair, onto), **more)
        check(found, quotient, onto)


def test_concatenation_is_exact() -> None:
    for seed in SEEDS:
        d = Draw(seed)
        pairs = [d.pair(), d.pair()]
        onto = d.onto(pairs[0][0])
        xs = [d.every, d.every[::-1].copy()]
        variables = [Var(f"x{k}", type_of_value(v)) for k, v in enumerate(xs)]
        scales, zeros = ([Constant(v) for v in constants(*pairs)[k::2]] for k in (0, 1))
        node = qnn.concatenate(variables, scales, zeros, *map(Constant, constants(onto)), axis=0)
        found = evaluate(expanded(node), dict(zip(variables, xs, strict=True)))
        quotient = np.concatenate([real(x, p) for x, p in zip(xs, pairs, strict=True)]) / Wide(onto[0])
        check(found, quotient, onto)


# --- functions of two tensors


@pytest.mark.parametrize("name", ["add", "subtract"])
def test_sums_and_differences_are_one_step_at_most_next_to_ties(name: str) -> None:
    for seed in SEEDS:
        d = Draw(seed)
        a, b = d.pair(), d.pair()
        if seed % 4:
            b = d.near(a[0]), b[1]
        onto = d.onto(max(a[0], b[0]))
        x, y = np.meshgrid(d.every, d.every)
        left, right = real(x, a) / Wide(onto[0]), real(y, b) / Wide(onto[0])
        quotient = left + right if name == "add" else left - right
        ratio = max(float(a[0]), float(b[0])) / float(onto[0])
        # float64 beyond the limit
        distance = (np.abs(left) + np.abs(right)) * (2.0**-50 if ratio > 1024 else 1.5 * 2.0**-23)
        check(computed(name, [x, y], constants(a, b, onto)), quotient, onto, np.minimum(distance, 0.05))


def test_sums_of_equal_scales_are_exact() -> None:
    for seed in SEEDS:
        d = Draw(seed)
        scale = d.scale()
        a, b, onto = ((scale, d.zero()) for _ in range(3))
        x, y = np.meshgrid(d.every, d.every)
        check(computed("add", [x, y], constants(a, b, onto)), (real(x, a) + real(y, b)) / Wide(scale), onto)


def test_products_are_one_step_at_most_next_to_ties() -> None:
    for seed in SEEDS:
        d = Draw(seed)
        a, b = d.pair(), d.pair()
        onto = d.onto(F32(a[0] * b[0] * 16))
        x, y = np.meshgrid(d.every, d.every)
        quotient = real(x, a) * real(y, b) / Wide(onto[0])
        check(computed("mul", [x, y], constants(a, b, onto)), quotient, onto, np.abs(quotient) * ROUNDING)


@pytest.mark.parametrize("name", ["add", "subtract", "mul"])
def test_integers_of_16_bits_saturate_and_do_not_wrap(name: str) -> None:
    for zero in (-(2**15), 0, 2**15 - 1):
        x = np.array([-(2**15), 2**15 - 1, 0, 1, -1, 77], np.int16)
        x, y = np.meshgrid(x, x)
        pair, onto = (F32(1), zero), (F32(32768) if name == "mul" else F32(2), 0)
        both = real(x, pair), real(y, pair)
        quotient = {"add": np.add, "subtract": np.subtract, "mul": np.multiply}[name](*both) / Wide(onto[0])
        check(computed(name, [x, y], constants(pair, pair, onto)), quotient, onto, np.abs(quotient) * ROUNDING)


# --- sums of many


@pytest.mark.parametrize("count", [1, 2, 10, 1000])
def test_softmax_is_one_step_at_most_next_to_ties(count: int) -> None:
    for seed in SEEDS:
        d = Draw(seed)
        pair = d.pair()
        if seed % 2:
            # nearly even probabilities, and nearly all of it on one element
            pair = (F32(d.one(2.0**-20, 0.001, 0.1, 8)), pair[1])
        onto = F32(d.one(1 / 256, 0.0140, 0.3, 0.01 / count, 1 / 255.5, d.scale())), d.zero()
        x = d.rng.choice(d.every, (256 if count < 100 else 8, count))
        e = np.exp(real(x, pair) - real(x, pair).max(-1, keepdims=True))
        quotient = e / e.sum(-1, keepdims=True) / Wide(onto[0])
        found = computed("softmax", [x], constants(pair, onto))
        # the table's entries are multiples of 2^-30
        table = (1 / float(onto[0]) + count * np.abs(quotient)) * 2.0**-31
        check(found, quotient, onto, (np.abs(quotient) * 2.5 * ROUNDING + table).astype(float))


def test_softmax_by_scales_that_come_at_run_time() -> None:
    x = Draw(1).rng.integers(-128, 128, (4, 9)).astype(np.int8)
    numbers = constants((F32(0.1), 3), (F32(0.0140), -128))
    variables = [Var(f"v{k}", type_of_value(v)) for k, v in enumerate([x, *numbers])]
    found = evaluate(expanded(qnn.softmax(*variables)), dict(zip(variables, [x, *numbers], strict=True)))
    np.testing.assert_array_equal(found, computed("softmax", [x], numbers))


def windows(x: Array, size: int) -> Array:
    return np.lib.stride_tricks.sliding_window_view(x, (size, size), axis=(2, 3))


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_average_pools_are_one_step_at_most_next_to_ties(size: int) -> None:
    for seed in SEEDS:
        d = Draw(seed)
        pair = d.pair()
        onto = d.onto(pair[0])
        x = d.rng.choice(d.every, (1, 2, 16, 16))
        quotient = windows(real(x, pair), size).sum((-1, -2)) / Wide(size * size) / Wide(onto[0])
        found = computed("avg_pool2d", [x], constants(pair, onto), pool_size=(size, size))
        check(found, quotient, onto, 0.0 if pair[0] == onto[0] else np.abs(quotient) * ROUNDING)


def test_average_pools_of_one_scale_are_exact() -> None:
    for seed in SEEDS:
        d = Draw(seed)
        scale = d.scale()
        pair, onto = (scale, d.zero()), (scale, d.zero())
        x, size = d.rng.choice(d.every, (1, 2, 16, 16)), 2 + seed % 12
        quotient = windows(real(x, pair), size).sum((-1, -2)) / Wide(scale) / Wide(size * size)
        check(computed("avg_pool2d", [x], constants(pair, onto), pool_size=(size, size)), quotient, onto)


def sums() -> Iterator[tuple[Array, Pair, Pair]]:
    """Sums of products of a scale, which a result's scale brings to bytes."""
    for seed in SEEDS:
        d = Draw(seed)
        scale = F32(d.scale() * d.scale())
        x = d.rng.integers(-(2**20), 2**20, 4096).astype(np.int32)
        spread = 2.0 ** d.rng.uniform(6, 13)
        yield x, (scale, 0), (F32(float(scale) * spread), d.zero())


def test_sums_of_products_are_requantized_to_one_step_at_most_next_to_ties() -> None:
    for k, (x, pair, onto) in enumerate(sums()):
        how = {"rounding": "FLOAT_EVEN", "out_dtype": DTYPES[k % 2]}
        found = computed("requantize", [x], constants(pair, onto), **how)
        quotient = real(x, pair) / Wide(onto[0])
        check(found, quotient, onto, np.abs(quotient) * ROUNDING)


def exact_quotient(x: int, source: np.floating[Any], result: np.floating[Any]) -> Fraction:
    return Fraction(x) * Fraction(float(source)) / Fraction(float(result))


def test_wide_numbers_tell_quotients_from_ties() -> None:
    """What the checks above compare with is what fractions give."""
    for seed in SEEDS:
        d = Draw(seed)
        pair = d.pair()
        onto = d.onto(pair[0])
        quotient = real(d.every, pair) / Wide(onto[0])
        want = [round(exact_quotient(int(x) - pair[1], pair[0], onto[0])) for x in d.every]
        assert [int(v) for v in np.rint(quotient)] == want
