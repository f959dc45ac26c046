# SPDX-License-Identifier: Apache-2.0
"""What functions of other compilers take and give on an example, for their quantizers.

data = get_calibration_data(mod, {"x": array})
data["region_0"]["inputs"], data["region_0"]["outputs"]
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from aotc.ir import NDArray, leaves
from aotc.relay.expr import Call, Function, GlobalVar, Tuple
from aotc.relay.graph_api import IRModule, bind_arguments, evaluate, infer_module, post_order


class ByFunction(dict[str, Any]):
    """Values by the names of functions; a GlobalVar is as good as its name."""

    def __missing__(self, key: object) -> Any:
        if not isinstance(key, GlobalVar):
            raise KeyError(key)
        return self[key.name]


def get_calibration_data(mod: IRModule, data: Mapping[str, Any]) -> ByFunction:
    """For each function with the attribute Compiler that @main calls: {"inputs": tensors, "outputs": tensors}.

    data    the inputs of @main by name

    A function that is called several times has the tensors of its last call.  Raises AotcError for missing and wrong
    inputs.
    """
    main = mod.main
    calls = {
        n.op.name: n
        for n in post_order(main)
        if isinstance(n, Call) and isinstance(n.op, GlobalVar) and "Compiler" in mod[n.op].attrs
    }
    seen = Tuple([Tuple([Tuple(call.args), call]) for call in calls.values()])
    watched = infer_module(mod.with_function("main", Function(main.params, seen, attrs=main.attrs)))
    values = bind_arguments(watched.main.params, (), {name: np.asarray(value) for name, value in data.items()})
    found = ByFunction()
    for name, (inputs, outputs) in zip(calls, evaluate(watched, *values), strict=True):
        sides = {"inputs": inputs, "outputs": outputs}
        found[name] = {side: list(map(NDArray, leaves(value))) for side, value in sides.items()}
    return found
