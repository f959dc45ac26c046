# SPDX-License-Identifier: Apache-2.0
"""No pass changes the results of the workloads, alone or in the pipelines of levels 0 to 3.

Parameters are random; scales of batch normalization are negative and zero, too.
"""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest

from aotc.driver.operator_and_pass_registration import install_operators_and_passes
from aotc.ir.transform import PassContext, get_pass, installed_passes
from aotc.relay.bind_variables_and_parameters import bind_params_by_name
from aotc.relay.interpreter import evaluate
from aotc.relay.module import IRModule
from aotc.relay.testing import dcgan, mlp, mobilenet, resnet, squeezenet
from aotc.relay.transform.convert_layout import ConvertLayout
from aotc.relay.transform.pack_constant_weights import AlterOpLayout
from aotc.relay.transform.pipeline import optimize
from aotc.tir.target import get_target
from tests.share import share_of_each

install_operators_and_passes()
WORKLOADS = {
    "mlp": (mlp.get_workload, {"batch_size": 2}, (2, 1, 28, 28)),
    "resnet": (resnet.get_workload, {"num_layers": 18, "image_shape": (3, 32, 32), "num_classes": 10}, (1, 3, 32, 32)),
    "mobilenet": (mobilenet.get_workload, {"image_shape": (3, 32, 32), "num_classes": 10}, (1, 3, 32, 32)),
    "squeezenet": (squeezenet.get_workload, {"image_shape": (3, 64, 64), "num_classes": 10}, (1, 3, 64, 64)),
    "dcgan": (dcgan.get_workload, {"batch_size": 1, "ngf": 4}, (1, 100)),
}
LOOSE = {"ToMixedPrecision": 5e-2, "FastMath": 1e-3}
"""Passes that change results on purpose, and by how much at most."""
EXACT = 2e-5
"""The same for the others: sums in another order."""


def parameter(name: str, value: Any, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Random values like those of trained networks, and such as break careless scaling."""
    array = np.asarray(value)
    if name.endswith("gamma"):
        values = rng.uniform(-1.5, 1.5, array.shape)
        values.flat[:: max(3, array.size // 3)] = 0.0
    elif name.endswith("var"):
        values = rng.uniform(0.5, 1.5, array.shape)
    elif array.ndim > 1:
        values = rng.standard_normal(array.shape) * np.sqrt(2.0 / max(1, int(np.prod(array.shape[1:]))))
    else:
        values = rng.uniform(-0.3, 0.3, array.shape)
    return values.astype(array.dtype)


@cache
def program(name: str) -> tuple[IRModule, np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """A workload with its parameters bound, an input, and the result."""
    get_workload, options, shape = WORKLOADS[name]
    module, params = get_workload(**options)
    rng = np.random.default_rng(7)
    bound = bind_params_by_name(module["main"], {n: parameter(n, v, rng) for n, v in params.items()})
    data = rng.uniform(-1, 1, shape).astype(np.float32)
    typed = get_pass("InferType")(IRModule.from_expr(bound))
    return typed, data, evaluate(typed, data)


def same(module: IRModule, name: str, tolerance: float = EXACT) -> None:
    _, data, expected = program(name)
    actual = evaluate(module, data)
    assert actual.shape == expected.shape and (actual.dtype == expected.dtype or tolerance > 1e-2)
    error = np.abs(actual.astype(np.float64) - expected).max() / np.abs(expected).max()
    assert error <= tolerance, f"differs by {error:.1e} of the largest value"


@pytest.mark.parametrize(("name", "workload"), share_of_each(sorted(installed_passes()), WORKLOADS, 2))
def test_each_pass(name: str, workload: str) -> None:
    module = program(workload)[0]
    with PassContext(opt_level=4):
        result = get_pass(name)(module)
    if result is not module:
        same(result, workload, LOOSE.get(name, EXACT))


@pytest.mark.parametrize("workload", WORKLOADS)
def test_passes_that_take_arguments(workload: str) -> None:
    module = program(workload)[0]
    with PassContext(opt_level=4):
        same(AlterOpLayout(get_target("x86-64-v4"))(module), workload, 1e-4)
        if workload != "dcgan":  # which has no convolution but transposed ones
            same(ConvertLayout({"nn.conv2d": ["NHWC", "HWIO"]})(module), workload)


@pytest.mark.parametrize(("workload", "setting"), share_of_each(WORKLOADS, product(range(4), ["c", "x86-64-v3"]), 3))
def test_pipelines(workload: str, setting: tuple[int, str]) -> None:
    level, target = setting
    with PassContext(opt_level=level):
        same(optimize(program(workload)[0], get_target(target)), workload, 1e-4)
