# SPDX-License-Identifier: Apache-2.0
"""Products of many rows and weights of few bits, whose floats a panel in the first-level cache holds."""

from dataclasses import replace

import numpy as np
import pytest

from aotc.relay.op.packed_dense import (
    DenseBitsAttrs,
    contrib_dense_bits,
    pack_quantized_weights,
    random_low_bit_weights,
)
from aotc.tir import te
from aotc.tir.interpreter import run_kernel
from aotc.tir.kernel_verifier import verify
from aotc.tir.schedule import schedule
from aotc.tir.target import get_target
from aotc.tir.threads.parallel_kernels import parallelize_kernel
from tests.tir.thread_teams import EAGER

ROWS = 17


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize(
    ("target", "l1", "panels"), [("x86-64-v3", 2048, (256,)), ("x86-64-v4", 32 << 10, (72 * 32, 80 * 32))]
)
def test_depth_in_parts_and_columns_of_a_partial_vector(
    target: str, l1: int, panels: tuple[int, ...], bits: int
) -> None:
    """Words whose last fields are not used, blocks that begin within a part, and a last part that is shorter."""
    depth, units, block = 70, 44, 16
    integers, scale, zero = random_low_bit_weights(units, depth, bits, block)
    packed = pack_quantized_weights(integers, scale, zero, 32)
    assert packed is not None and packed.bits == bits
    rng = np.random.default_rng(bits)
    arrays = [rng.standard_normal((ROWS, depth)).astype(np.float32), *packed.weight_scale_and_zero_arrays]
    inputs = [te.placeholder(a.shape, str(a.dtype), f"x{k}") for k, a in enumerate(arrays)]
    assert contrib_dense_bits.compute is not None
    result = contrib_dense_bits.compute(DenseBitsAttrs(units=units, bits=bits, block_size=block), *inputs)
    small = replace(get_target(target), name="small", l1=l1)
    kernel = schedule("dense", inputs, [result], small)
    verify(kernel)
    scratch = (*kernel.workspace, *kernel.stack_and_shared_buffers)
    assert max(b.size for b in scratch) in panels and all(b.private for b in scratch)
    whole = lambda values: np.repeat(values, block, 1)[:, :depth]  # noqa: E731
    expected = arrays[0].astype(np.float64) @ ((integers - whole(zero)) * whole(scale)).T
    for each in (kernel, parallelize_kernel(kernel, frozenset(), EAGER)):
        found = run_kernel(each, arrays)[0].reshape(ROWS, units)
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6 * np.abs(expected).max() * depth)
