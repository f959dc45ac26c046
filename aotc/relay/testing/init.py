# SPDX-License-Identifier: Apache-2.0
"""Parameters for a network: an initializer in, a typed module and seeded arrays out.

mod, params = create_workload(net)               # seeds numpy's global generator with 0
data = np.random.uniform(-1, 1, (1, 3, 224, 224))   # goes on in the same stream
"""

import math
import re
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeAlias

import numpy as np

from aotc.ir import AotcError
from aotc.relay.graph_api import Function, IRModule, infer_module, tensor_type_of

Array: TypeAlias = "np.ndarray[Any, Any]"
P = ParamSpec("P")
Workload: TypeAlias = "tuple[IRModule, dict[str, Array]]"

_CONSTANT = {"bias": 0.0, "gamma": 1.0, "beta": 0.0, "mean": 0.0, "var": 1.0}


_INPUT = re.compile(r"data\d*")


class Initializer:
    """Fills parameters by the end of their name: weights by `weight`, everything else with 0 or 1."""

    def __call__(self, name: str, array: Array) -> None:
        """Fill `array` in place; AotcError (code "init") for a name of no known kind."""
        if name.endswith("weight"):
            self.weight(name, array)
            return
        for suffix, value in _CONSTANT.items():
            if name.endswith(suffix):
                array[:] = value
                return
        raise AotcError("init", f"no rule initializes {name!r}", hint=f"known endings: weight, {', '.join(_CONSTANT)}")

    def weight(self, name: str, array: Array) -> None:
        """Fill a weight in place."""
        raise NotImplementedError


class Xavier(Initializer):
    """Uniform in [-s, s] with s = sqrt(magnitude / mean of fan-in and fan-out) (Glorot and Bengio, 2010).

    The values come from numpy's global generator.
    """

    def __init__(self, magnitude: float = 3.0) -> None:
        self.magnitude = magnitude

    def weight(self, name: str, array: Array) -> None:
        if array.ndim < 2:
            raise AotcError("init", f"{name!r} has shape {array.shape}: a weight has at least two axes")
        area = math.prod(array.shape[2:])
        fan = (array.shape[0] + array.shape[1]) * area / 2
        scale = math.sqrt(self.magnitude / fan)
        array[:] = np.random.uniform(-scale, scale, size=array.shape)


def create_workload(net: Function, initializer: Initializer | None = None, seed: int = 0) -> Workload:
    """The module of a network, typed, and a value for each parameter except `data`, `data1` and so on.

    Seeds numpy's global generator and draws from it in the order of the parameters.
    """
    module = infer_module(IRModule.from_expr(net))
    fill = initializer or Xavier()
    np.random.seed(seed)
    params: dict[str, Array] = {}
    for var in module.main.params:
        if not _INPUT.fullmatch(var.name):
            ty = tensor_type_of(var)
            params[var.name] = np.zeros(ty.static_shape, ty.dtype.numpy)
            fill(var.name, params[var.name])
    return module, params


def workloads_of(get_net: Callable[P, Function]) -> Callable[P, Workload]:
    """The function that gives a network's module and its parameters, with the arguments of `get_net`."""

    @wraps(get_net)
    def get_workload(*args: P.args, **kwargs: P.kwargs) -> Workload:
        return create_workload(get_net(*args, **kwargs))

    get_workload.__name__ = get_workload.__qualname__ = "get_workload"
    return get_workload
