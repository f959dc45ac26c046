# SPDX-License-Identifier: Apache-2.0
"""Calibration data for external compilers: inputs and outputs of their functions for an example
input.

data = get_calibration_data(mod, {"x": array})
data["region_0"]["inputs"], data["region_0"]["outputs"]
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from aotc.ir import NDArray, flatten_nested_tuple
from aotc.relay.expr import Call, Function, GlobalVar, Tuple
from aotc.relay.graph_api import IRModule, bind_arguments, evaluate, infer_module, post_order


class ByFunction(dict[str, Any]):
    """Dictionary of values by function name, which also accepts a GlobalVar as a key."""

    def __missing__(self, key: object) -> Any:
        if not isinstance(key, GlobalVar):
            raise KeyError(key)
        return self[key.name]


def get_calibration_data(mod: IRModule, data: Mapping[str, Any]) -> ByFunction:
    """Return {"inputs": tensors, "outputs": tensors} for each function with the attribute Compiler
    that @main calls.

    data    the inputs of @main by name

    For a function that is called several times, the tensors are those of its last call. Raise
    AotcError for missing and wrong inputs.
    """
    main = mod.main
    calls = {
        n.op.name: n
        for n in post_order(main)
        if isinstance(n, Call) and isinstance(n.op, GlobalVar) and "Compiler" in mod[n.op].attrs
    }
    probe_tuple = Tuple([Tuple([Tuple(call.args), call]) for call in calls.values()])
    watched = infer_module(mod.with_function("main", Function(main.params, probe_tuple, attrs=main.attrs)))
    values = bind_arguments(watched.main.params, (), {name: np.asarray(value) for name, value in data.items()})
    data_by_function = ByFunction()
    for name, (inputs, outputs) in zip(calls, evaluate(watched, *values), strict=True):
        sides = {"inputs": inputs, "outputs": outputs}
        data_by_function[name] = {
            side: list(map(NDArray, flatten_nested_tuple(value))) for side, value in sides.items()
        }
    return data_by_function
