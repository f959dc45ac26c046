# SPDX-License-Identifier: Apache-2.0
"""Instructions that store consecutive elements replace loops whose elements have their meaning, and no others."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from aotc.ir.dtype import DType
from aotc.tir import fill_buffer_loop
from aotc.tir.expr import Buffer, Expr, Load, Var, as_expr, call, cast, const, maximum, minimum
from aotc.tir.interpreter import run_kernel
from aotc.tir.kernel_verifier import verify
from aotc.tir.schedule.contraction.instruction_selection import RepeatedValues, select_elementwise_instruction
from aotc.tir.stmt import Block, Declare, Kernel, Stmt, Store, forall

NAMES = ("requantize_once", "requantize_twice")
COUNT = 9
SUMS, BIAS, FACTORS, SHIFTS = (
    Buffer(name, DType("int32"), 2 * COUNT + 4) for name in ("sums", "bias", "factors", "shifts")
)
Y = Buffer("y", DType("int8"), COUNT + 4)
K = Var("k")


def at(buffer: Buffer, step: int = 1) -> Expr:
    return Load(buffer, K * step + 3)


SUM, FACTOR, SHIFT = (at(buffer) for buffer in (SUMS, FACTORS, SHIFTS))


def scaled(sums: Expr = SUM, factor: Expr = FACTOR, shift: Expr = SHIFT, scale: str = "twice") -> Expr:
    return call(f"scale_{scale}", sums, factor, shift)


def select(value: Expr, repeated: RepeatedValues, names: Sequence[str] = NAMES) -> Stmt | None:
    register = Var("total", "int32")
    stmt = Block((Declare(register, at(SUMS)), Store(Y, K + 2, value)))
    return select_elementwise_instruction(stmt, K, COUNT, names, repeated)


def results_of(body: Stmt, repeated: RepeatedValues) -> np.ndarray[tuple[int], np.dtype[np.int8]]:
    rng = np.random.default_rng(0)
    draws = ((-(1 << 20), 1 << 20), (-(1 << 20), 1 << 20), (1 << 29, (1 << 31) - 1), (8, 20))
    inputs = [rng.integers(*ends, SUMS.size).astype(np.int32) for ends in draws]
    fills = [fill_buffer_loop(buffer, value) for value, buffer in repeated.buffers.items()]
    kernel = Kernel(
        name="finish",
        inputs=(SUMS, BIAS, FACTORS, SHIFTS),
        outputs=(Y,),
        body=Block((*fills, body)),
        stack=tuple(repeated.buffers.values()),
    )
    verify(kernel)
    return run_kernel(kernel, inputs, output_init=[np.zeros(Y.size, np.int8)])[0]  # type: ignore[no-any-return]


@pytest.mark.parametrize("seed", range(12))
def test_requantization_in_every_form_becomes_its_instruction(seed: int) -> None:
    """With and without bias, zero point and clamps in any order, and with numbers that are equal for all elements."""
    draw = random.Random(seed)
    name = draw.choice(("once", "twice"))
    biases = (None, at(BIAS), Load(BIAS, as_expr(1)), const(77, "int32"))
    bias = biases[seed] if seed < len(biases) else draw.choice(biases)
    total = at(SUMS) if bias is None else draw.choice((at(SUMS) + bias, bias + at(SUMS)))
    factor, shift = draw.choice((at(FACTORS), const(1 << 30, "int32"))), draw.choice((at(SHIFTS), const(12, "int32")))
    value = scaled(total, factor, shift, name)
    value = draw.choice((value, value + const(-5, "int32"), const(40, "int32") + value))
    value = call("saturate_int8", value)
    for _ in range(draw.randrange(4)):
        value = draw.choice((minimum, maximum))(value, draw.randrange(-128, 128))
    repeated = RepeatedValues(COUNT)
    found = select(value, repeated)
    assert found is not None and f"requantize_{name}" in str(found)
    loop = forall(K, COUNT, Store(Y, K + 2, value))
    np.testing.assert_array_equal(results_of(found, repeated), results_of(loop, RepeatedValues(COUNT)))


OTHERS = {
    "no saturation": cast(scaled(), "int8"),
    "other saturation": cast(call("saturate_uint8", scaled()), "int8"),
    "a product": call("saturate_int8", scaled() * const(3, "int32")),
    "a clamp by loads": minimum(call("saturate_int8", scaled()), cast(at(BIAS), "int8")),
    "a zero point for each element": call("saturate_int8", scaled() + at(BIAS)),
    "elements apart": call("saturate_int8", scaled(at(SUMS, 2))),
    "elements that are counted": call("saturate_int8", scaled(at(SUMS) + cast(K, "int32"))),
    "a clamp before the zero point": call("saturate_int8", minimum(scaled(), 9) + const(3, "int32")),
}


@pytest.mark.parametrize("case", OTHERS)
def test_other_values_stay_a_loop(case: str) -> None:
    repeated = RepeatedValues(COUNT)
    assert select(OTHERS[case], repeated) is None
    assert not repeated.buffers


def test_only_the_given_instructions_are_selected() -> None:
    value = call("saturate_int8", scaled())
    assert select(value, RepeatedValues(COUNT), NAMES[:1]) is None
    assert select(value, RepeatedValues(COUNT), NAMES) is not None


def test_stores_that_are_not_consecutive_stay_a_loop() -> None:
    stmt = Store(Y, K * 2, call("saturate_int8", scaled()))
    assert select_elementwise_instruction(stmt, K, 3, NAMES, RepeatedValues(COUNT)) is None
