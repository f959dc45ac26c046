# SPDX-License-Identifier: Apache-2.0
"""Cast between strings and numbers: against ONNX Runtime in compiled C, and against C's functions in the front end."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import aotc
from aotc.ir import AotcError
from aotc.ir.string_slots import slots_of_strings, strings_of_slots
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.numbers_of_text import floats_of_text, integers_of_text
from aotc.relay.frontend.onnx import from_onnx
from aotc.relay.frontend.text_of_numbers import (
    FACTOR_FRACTION_BITS,
    FLOAT_DIGITS,
    factor_tables,
    text_of_floats,
    text_of_integers,
)
from aotc.relay.graph_api import Constant, Expr
from tests.frontend.string_cases import BOOL, FLOAT, INT32, INT64, STRING, Array, Cases, strings
from tests.share import draw

DOUBLE, FLOAT16, INT8, UINT64 = TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.INT8, TensorProto.UINT64
FLOATS = np.array(
    [0, -0.0, 1, 0.1, 1e10, 123456789, 1e-5, 1e-4, np.inf, -np.inf, 1e-45, 3.4e38, -1234567.25], np.float32
)
INTEGER_TEXTS = strings(["1", "-1", " 1", "1 ", "+1", "1abc", "1.5", "0x10", "300", "-129", "\t\n 5", "007", "1\0 2"])
LARGE_TEXTS = strings(["9223372036854775807", "0009223372036854775807", "1_0", "8"])
FLOAT_TEXTS = strings([
    "1", "-.5", "1.", "1e3", "1e", "1e+", "inf", "-Infinity", "info", "nan(12)", "0x", "1e39", "1e-39", "1.5x",
    "1,5", "0e999999", "-0", "0.00000000000000000001e25", "123456789012345678", "9007199254740993", "65520", "6e-8",
    "1e-05",
])  # fmt: skip
#: Texts for which ONNX Runtime fails, too.
NO_NUMBERS = ("", "abc", "--1", "- 1", "+", "٣", "true", ".", "e5", "i", "na", "1e309", "1e-310")


def evaluated(x: Expr) -> Array:
    assert isinstance(x, Constant)
    return x.data


def texts_of(numbers: Array) -> list[str]:
    function = text_of_floats if numbers.dtype.kind == "f" else text_of_integers
    return [str(text) for text in strings_of_slots(evaluated(function(g.constant(numbers))))]


def slots(texts: list[str]) -> Expr:
    return g.constant(slots_of_strings(texts, max(len(text.encode()) for text in texts) + 1))


def test_casts_are_those_of_onnx_runtime() -> None:
    cases = Cases()
    cases.add("Cast", FLOATS.reshape(1, -1), types=(STRING,), to=STRING)
    cases.add("Cast", FLOATS.astype(np.float64) / 3, types=(STRING,), to=STRING)
    cases.add("Cast", np.array([[1, -7], [-128, 127]], np.int8), types=(STRING,), to=STRING)
    cases.add("Cast", np.array([0, 10, -(2**63), 2**63 - 1], np.int64), types=(STRING,), to=STRING)
    cases.add("Cast", np.array([0, 99, 2**64 - 1], np.uint64), types=(STRING,), to=STRING)
    cases.add("Cast", np.array([True, False]), types=(STRING,), to=STRING)
    cases.add("Cast", np.array(5, np.int32), types=(STRING,), to=STRING)
    cases.add("Cast", INTEGER_TEXTS, types=(INT64,), to=INT64)
    cases.add("Cast", LARGE_TEXTS, types=(INT64,), to=INT64)
    cases.add("Cast", INTEGER_TEXTS, types=(BOOL,), to=BOOL)
    cases.add("CastLike", FLOAT_TEXTS, types=(FLOAT,), constants=(np.zeros(1, np.float32),))
    cases.add("CastLike", np.array([7], np.int32), types=(STRING,), constants=(strings(["a"]),))
    cases.check(opset=19)


def test_casts_of_constants_are_those_of_onnx_runtime() -> None:
    cases = Cases()
    for to in (INT8, INT32, INT64, UINT64, BOOL):
        cases.add("Cast", INTEGER_TEXTS, types=(to,), to=to)
    cases.add("Cast", strings(["18446744073709551615", "-9223372036854775809"]), types=(UINT64,), to=UINT64)
    cases.add("Cast", FLOAT_TEXTS, types=(FLOAT,), to=FLOAT)
    # lists with NaN never are equal
    for to in (FLOAT16, DOUBLE):
        cases.add("Cast", FLOAT_TEXTS[10:], types=(to,), to=to)
    cases.add("Cast", FLOATS[:8].astype(np.float16), types=(STRING,), to=STRING)
    for dtype in (np.uint8, np.int16, np.uint16, np.uint32):
        cases.add("Cast", np.array([np.iinfo(dtype).min, np.iinfo(dtype).max, 7], dtype), types=(STRING,), to=STRING)
    cases.check_folded(opset=19)


# --- floats as texts


def c_text(number: float) -> str:
    names = {"nan": "NaN", "inf": "INF", "-inf": "-INF"}
    return names.get(text := f"{number:.8g}", text)


def test_texts_of_floats_have_eight_digits() -> None:
    rng = np.random.default_rng(7)
    of_all_exponents = rng.integers(0, 2**64, 3000, dtype=np.uint64).view(np.float64)
    powers = np.array([float(f"1e{k}") for k in range(-323, 309)])
    # halves of integers of nine digits are between two numbers of eight digits
    ties = np.concatenate([rng.integers(10**7, 10**8, 500) + 0.5, rng.integers(10**6, 10**7, 500) * 10.0 + 5])
    subnormal = rng.integers(0, 2**52, 500) * 2.0**-1074
    nearly = np.nextafter(powers, 0)
    special = np.array([5e-324, 1.7976931348623157e308, 99999999.5, 9999999.5, 0.000099999999, 0.0001, 1e8, -0.0])
    for numbers in (of_all_exponents, powers, ties, subnormal, nearly, special):
        assert texts_of(numbers) == [c_text(float(number)) for number in numbers]


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_texts_of_narrow_floats(dtype: str) -> None:
    bits = np.arange(0, 2**16, 31, dtype=np.uint16)
    wide = np.random.default_rng(8).integers(0, 2**32, 3000, dtype=np.uint32)
    numbers = bits.view(np.float16) if dtype == "float16" else wide.view(np.float32)
    assert texts_of(numbers) == [c_text(float(number)) for number in numbers]


def floor_sum(count: int, a: int, b: int, c: int) -> int:
    """Return the sum of (a * k + b) // c over k in 0 .. count - 1, in a number of steps like Euclid's algorithm."""
    total = 0
    while count > 0:
        total += count * (count - 1) // 2 * (a // c) + count * (b // c)
        a, b = a % c, b % c
        last = a * count + b
        count, b = divmod(last, c)
        a, c = c, a
        if not c:
            break
    return total


def count_of_residues(low: int, high: int, a: int, b: int, c: int, limit: int) -> int:
    """Return for how many k in low .. high - 1 the residue of a * k + b modulo c is from 1 to `limit`."""
    b = (b + a * low) % c + 2 * c
    return floor_sum(high - low, a, b - 1, c) - floor_sum(high - low, a, b - 1 - limit, c)


def test_count_of_residues() -> None:
    expected = sum(1 <= (7 * k + 3) % 31 <= 5 for k in range(4, 90))
    assert count_of_residues(4, 90, 7, 3, 31, 5) == expected > 0


def test_no_float_is_nearly_between_two_texts() -> None:
    """A product with a rounded factor is too large by less than 2**-100. It decides as the exact one does, since no
    number is within 2**-89 of the middle between two numbers of 8 digits, except in the middle.
    """
    thresholds, rows = factor_tables("float64")
    bits = FACTOR_FRACTION_BITS - 64
    for index in draw(range(len(rows)), 250):
        field, threshold = index // 2 - 51, int(thresholds[index // 2])
        low, high = (threshold, 1 << 53) if index % 2 else (1 << 52, threshold)
        decimal = FLOAT_DIGITS - 1 - int(rows[index, 0].astype(np.int64))
        numerator = 10 ** max(decimal, 0) << max(field - 1075, 0)
        denominator = 10 ** max(-decimal, 0) << max(1075 - field, 0)
        limit = (2 * denominator >> bits) + 1
        # m * numerator / denominator - 1/2 is next to an integer
        for offset in (0, limit + 1):
            b = offset - denominator
            assert count_of_residues(low, high, 2 * numerator, b, 2 * denominator, limit) == 0, (index, offset)


def test_texts_of_integers() -> None:
    for dtype in (np.int8, np.uint8, np.int32, np.uint32, np.int64, np.uint64):
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        powers = [10**k for k in range(20) if 10**k <= high]
        numbers = np.array([low, high, 0, *powers, *(p - 1 for p in powers)], dtype)
        assert texts_of(numbers) == [str(int(number)) for number in numbers]


# --- texts as floats


def test_floats_of_texts_are_the_nearest_ones() -> None:
    rng = np.random.default_rng(9)
    numbers = rng.integers(0, 2**64, 800, dtype=np.uint64).view(np.float64)
    normal = numbers[np.isfinite(numbers) & (np.abs(numbers) > 3e-308)]
    texts = [repr(float(number)) for number in normal]
    texts += [f"{number:.18e}" for number in normal]
    texts += [f"{rng.integers(0, 2**63)}e{rng.integers(-325, 289)}" for _ in range(800)]
    # in the middle between two floats, and next to it
    texts += [f"{2**53 + k}.{j * 125:03d}" for k in range(-20, 20) for j in range(8)]
    texts += [str((2**53 + k) * 2**e + 2**e // 2) for k in range(-2, 40) for e in range(10)]
    found = floats_of_text(slots(texts))
    assert evaluated(found.is_valid).all()
    expected = np.array([float(text) for text in texts])
    assert np.array_equal(evaluated(found.values).view(np.uint64), expected.view(np.uint64))


def test_long_texts_are_exact_or_refused() -> None:
    rng = np.random.default_rng(10)
    texts = [f"{rng.integers(1, 9)}.{''.join(map(str, rng.integers(0, 10, 40)))}e{k}" for k in range(-290, 290)]
    between = ["18446744073709544448", "9007199254740993.00000000000000000000", "9007199254740993." + "0" * 25 + "1"]
    found = floats_of_text(slots([*texts, *between]))
    valid = evaluated(found.is_valid)
    expected = np.array([float(text) for text in [*texts, *between]])
    assert np.array_equal(evaluated(found.values)[valid], expected[valid])
    assert valid[:-3].mean() > 0.9 and valid[-3:].tolist() == [False, True, False]


def test_limits_of_integers() -> None:
    texts = ["9223372036854775807", "9223372036854775808", "-9223372036854775808", "-9223372036854775809"]
    texts += ["18446744073709551615", "18446744073709551616", "28446744073709551615", "1" * 21, "-18446744073709551615"]
    signed, unsigned = (integers_of_text(slots(texts), dtype) for dtype in ("int64", "uint64"))
    assert evaluated(signed.is_valid).tolist() == [True, False, True] + [False] * 6
    assert evaluated(unsigned.is_valid).tolist() == [True] * 5 + [False] * 3 + [True]
    assert evaluated(unsigned.values).tolist()[3:5] == [2**63 - 1, 2**64 - 1] and evaluated(unsigned.values)[-1] == 1


# --- texts that are no numbers


@pytest.fixture(scope="module")
def session() -> Any:
    cases = Cases()
    cases.add("Cast", strings(["1"] * 3), types=(FLOAT,), to=FLOAT)
    cases.add("Cast", strings(["1"] * 2), types=(INT64,), to=INT64)
    return aotc.compile(cases.model(), dims={"x0_0": 32, "x1_0": 32}, cflags=("-O0",)).session()


def test_a_text_that_is_no_number_ends_a_run(session: Any) -> None:
    fine = {"x0_0": strings(["1", "2", "-inf"]), "x1_0": strings(["5", "6"])}
    floats, integers = session.run(None, fine)
    assert floats.tolist() == [1, 2, -np.inf] and integers.tolist() == [5, 6]
    for text in NO_NUMBERS:
        with pytest.raises(AotcError, match=r"node0: found\d+ == 3"):
            session.run(None, fine | {"x0_0": strings(["1", text, "2"])})
    with pytest.raises(AotcError, match=r"node1: found\d+ == 2"):
        session.run(None, fine | {"x1_0": strings(["7", "9223372036854775808"])})
    assert session.run(None, fine)[1].tolist() == [5, 6]


def test_onnx_runtime_fails_for_these_texts() -> None:
    cases = Cases()
    cases.add("Cast", strings(["1"]), types=(FLOAT,), to=FLOAT)
    runner = onnxruntime.InferenceSession(cases.model().SerializeToString(), providers=["CPUExecutionProvider"])
    for text in NO_NUMBERS:
        with pytest.raises(Exception, match="Cast node"):
            runner.run(None, {"x0_0": strings([text])})


def constant_model(text: str, to: int) -> Any:
    cases = Cases()
    cases.add("Cast", types=(to,), constants=(strings([text]),), to=to)
    return cases.model()


def test_what_is_refused() -> None:
    with pytest.raises(AotcError, match="a string that is no number is cast to float32"):
        from_onnx(constant_model("0x1p3", FLOAT))
    with pytest.raises(AotcError, match="a string that is no number is cast to int8"):
        from_onnx(constant_model("", INT8))
    with pytest.raises(AotcError, match="Cast of strings to float8_e4m3fn is not supported"):
        from_onnx(constant_model("1", TensorProto.FLOAT8E4M3FN))
    cases = Cases()
    cases.add("Cast", np.zeros(1, np.float32), types=(TensorProto.FLOAT8E4M3FN,), to=TensorProto.FLOAT8E4M3FN)
    proto = cases.model()
    proto.graph.node.append(helper.make_node("Cast", ["y0_0"], ["z"], to=STRING))
    proto.graph.output.append(helper.make_tensor_value_info("z", STRING, [1]))
    with pytest.raises(AotcError, match="Cast of float8_e4m3fn to strings is not supported"):
        from_onnx(proto)


# --- numbers of texts that are known at run time only


def test_any_number_of_texts_is_cast_by_one_library() -> None:
    text = """<ir_version: 9, opset_import: ["": 21]> g (string[n, 2] x, string[n] k, bool c)
        => (float[n, 2] y, int64[n] z, string[n] again, float[n] chosen) {
        y = Cast <to = 1> (x)
        z = Cast <to = 7> (k)
        again = Cast <to = 8> (z)
        chosen = If (c) <then_branch = t () => (float[n] a) { a = Cast <to = 1> (k) },
                         else_branch = e () => (float[n] b) { b = Cast <to = 1> (z) }>
    }"""
    flags = ("-O0", "-Wall", "-Wextra", "-Wconversion", "-pedantic", "-Werror")
    dims = {"n": (1, 6), "x": 12, "k": 9}
    session = aotc.compile(onnx.parser.parse_model(text), dims=dims, target="c", cflags=flags).session()
    for count in (6, 1, 3):
        texts = [f"{k}.25e{k}" for k in range(2 * count)]
        numbers = [str(3 * k - 4) for k in range(count)]
        feeds = {"x": strings(texts).reshape(count, 2), "k": strings(numbers), "c": np.array(count > 1)}
        y, z, again, chosen = session.run(None, feeds)
        np.testing.assert_array_equal(y.reshape(-1), np.array(texts, np.float32))
        assert again.tolist() == numbers and z.tolist() == chosen.tolist() == [3 * k - 4 for k in range(count)]
        wrong = strings(["1"] * (2 * count - 1) + ["one"]).reshape(count, 2)
        with pytest.raises(AotcError, match=r"a string that is no number|found"):
            session.run(None, feeds | {"x": wrong})
