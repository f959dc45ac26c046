# SPDX-License-Identifier: Apache-2.0
"""Create the parameters of a network with an initializer: return the typed module and arrays of
random values with a fixed seed.

mod, params = create_workload(net)               # seeds numpy's global generator with 0
data = np.random.uniform(-1, 1, (1, 3, 224, 224))   # continues the random stream
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

_INITIAL_VALUE_BY_SUFFIX = {"bias": 0.0, "gamma": 1.0, "beta": 0.0, "mean": 0.0, "var": 1.0}


_INPUT_NAME_PATTERN = re.compile(r"data\d*")


class Initializer:
    """Fills parameter arrays depending on the suffix of the parameter's name: weights by the method
    `fill_weight`, all others with 0 or 1.
    """

    def __call__(self, name: str, array: Array) -> None:
        """Fill `array` in place. Raises AotcError (code "init") for a name with an unknown suffix."""
        if name.endswith("weight"):
            self.fill_weight(name, array)
            return
        for suffix, value in _INITIAL_VALUE_BY_SUFFIX.items():
            if name.endswith(suffix):
                array[:] = value
                return
        raise AotcError(
            "init",
            f"no rule initializes {name!r}",
            hint=f"known endings: weight, {', '.join(_INITIAL_VALUE_BY_SUFFIX)}",
        )

    def fill_weight(self, name: str, array: Array) -> None:
        """Fill a weight array in place; subclasses implement this."""
        raise NotImplementedError


class Xavier(Initializer):
    """Initializer that draws weights uniformly from [-s, s] with s = sqrt(magnitude / mean of
    fan-in and fan-out) (Glorot and Bengio, 2010).

    The values come from numpy's global generator.
    """

    def __init__(self, magnitude: float = 3.0) -> None:
        self.magnitude = magnitude

    def fill_weight(self, name: str, array: Array) -> None:
        if array.ndim < 2:
            raise AotcError("init", f"{name!r} has shape {array.shape}: a weight must have at least two axes")
        area = math.prod(array.shape[2:])
        fan = (array.shape[0] + array.shape[1]) * area / 2
        scale = math.sqrt(self.magnitude / fan)
        array[:] = np.random.uniform(-scale, scale, size=array.shape)


def create_workload(net: Function, initializer: Initializer | None = None, seed: int = 0) -> Workload:
    """Return the typed module of a network, and an array for each parameter except the inputs
    `data`, `data1` and so on.

    Seeds numpy's global generator with `seed` and draws from it in the order of the parameters.
    """
    module = infer_module(IRModule.from_expr(net))
    fill = initializer or Xavier()
    np.random.seed(seed)
    params: dict[str, Array] = {}
    for var in module.main.params:
        if not _INPUT_NAME_PATTERN.fullmatch(var.name):
            ty = tensor_type_of(var)
            params[var.name] = np.zeros(ty.static_shape, ty.dtype.numpy)
            fill(var.name, params[var.name])
    return module, params


def make_get_workload(get_net: Callable[P, Function]) -> Callable[P, Workload]:
    """Return a function that takes the arguments of `get_net` and returns the module of the network
    and its parameters.
    """

    @wraps(get_net)
    def get_workload(*args: P.args, **kwargs: P.kwargs) -> Workload:
        return create_workload(get_net(*args, **kwargs))

    get_workload.__name__ = get_workload.__qualname__ = "get_workload"
    return get_workload
