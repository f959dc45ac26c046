# SPDX-License-Identifier: Apache-2.0
"""Patch-based inference: results of all divisions, and memory of compiled code; see `patch_inference.test`, too."""

from __future__ import annotations

import numpy as np
import pytest

from aotc import relay
from aotc.driver.compile import CompileOptions
from aotc.ir import PassContext
from aotc.relay.expr import Call, Expr, Function, Var
from aotc.relay.interpreter import evaluate
from aotc.relay.module import IRModule
from aotc.relay.transform import InferType, PatchFirstLayers
from aotc.relay.visitor import post_order
from tests.plan.test_memory_footprint import DIGITS

RNG = np.random.default_rng(0)


def weights(*shape: int) -> Expr:
    return relay.const(RNG.integers(-3, 4, shape).astype(np.float32))


def chain(x: Expr, layout: str, *, strides: int = 2, dilation: int = 1) -> Expr:
    """Convolutions, a pool and what is elementwise, whose rows shrink, with all kinds of padding."""
    kernel = {"NHWC": "HWIO", "NCHW": "OIHW"}[layout]

    def conv(data: Expr, inner: int, outer: int, **attrs: object) -> Expr:
        w = weights(3, 3, inner, outer) if kernel == "HWIO" else weights(outer, inner, 3, 3)
        return relay.nn.conv2d(data, w, data_layout=layout, kernel_layout=kernel, **attrs)

    y = relay.nn.relu(conv(x, 3, 8, strides=strides, padding=[0, 1, 2, 1]))
    shift = weights(8) if layout == "NHWC" else weights(8, 1, 1)
    y = conv(relay.maximum(y + shift, relay.const(-1.0)), 8, 4, padding=[dilation, 1], dilation=[dilation, 1])
    y = relay.nn.max_pool2d(y, pool_size=[3, 2], strides=[2, 2], padding=[1, 0], layout=layout)
    return relay.nn.relu(y)


def module_of(result: Expr, *params: Var) -> IRModule:
    return InferType()(IRModule.from_expr(Function(list(params), result)))


def slices(module: IRModule) -> int:
    return sum(isinstance(n, Call) and str(n.op) == "strided_slice" for n in post_order(module.main))


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize("count", [2, 3, 5])
@pytest.mark.parametrize(("height", "dilation"), [(31, 1), (40, 2)])
def test_parts_give_the_values_of_the_whole(layout: str, count: int, height: int, dilation: int) -> None:
    shape = (2, height, 12, 3) if layout == "NHWC" else (2, 3, height, 12)
    x = relay.var("x", shape=shape)
    module = module_of(chain(x, layout, dilation=dilation), x)
    made = PatchFirstLayers(count)(module)
    assert slices(made) == count
    data = RNG.integers(-4, 5, shape).astype(np.float32)
    one, two = (np.asarray(evaluate(m.main, data)) for m in (module, made))
    np.testing.assert_array_equal(one, two)


def test_parts_take_less_memory_and_give_equal_bits() -> None:
    """By the option, in a compiled network; rows that are too few are left as they are."""
    x = relay.var("x", shape=(1, 48, 48, 3))
    module = module_of(chain(x, "NHWC"), x)
    data = RNG.integers(-4, 5, (1, 48, 48, 3)).astype(np.float32)
    peaks, results = [], []
    for count in (0, 2, 4):
        options = CompileOptions(target="c", config={"compile.patches": count, "compile.reorder": True})
        work = options.start_compilation(module)
        peaks.append(work.scheduled_programs[0].plan.peak)
        results.append(work.emit_project_and_build_library().session().run(None, {"x": data})[0].tobytes())
    assert peaks[0] > 1.4 * peaks[1] > 1.4 * peaks[2] and len(set(results)) == 1
    few = CompileOptions(target="c", build=False, config={"compile.patches": 100}).start_compilation(DIGITS)
    assert few.scheduled_programs[0].plan.peak > 0


def test_the_pass_is_there_on_request() -> None:
    from aotc.relay.transform.pipeline import pipeline
    from aotc.tir import C

    for count in (0, 3):
        with PassContext(3, config={"compile.patches": count}):
            names = [item.info.name for item in pipeline(3, C)]
        assert ("PatchFirstLayers" in names) == (count > 1)
