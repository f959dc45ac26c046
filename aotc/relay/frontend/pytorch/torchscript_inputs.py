# SPDX-License-Identifier: Apache-2.0
"""Check the descriptions of inputs that the caller of from_pytorch gives against a TorchScript
graph.

parse_input_infos([("x", ((1, 3), "int64"))], inputs, "float32")  # [("x", Tensor[(1, 3), int64])]
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from aotc.ir import AotcError, AotcTypeError, AotcValueError, TensorType, require
from aotc.relay.frontend.error_collection import Problems
from aotc.relay.frontend.pytorch.value_conversion_and_promotion import dtype_name_of_torch_dtype


def parse_input_infos(input_infos: Any, inputs: Sequence[Any], default_dtype: str) -> list[tuple[str, TensorType]]:
    """Return the names and types of the inputs of a TorchScript graph. Raises AotcValueError
    listing all problems of the descriptions `input_infos`, each (name, shape) or (name, (shape,
    dtype)).
    """
    if not isinstance(input_infos, (list, tuple)):
        raise AotcTypeError("torch-inputs", "input_infos is a list of (name, shape) or (name, (shape, dtype))")
    if len(input_infos) != len(inputs):
        names = ", ".join(v.debugName() for v in inputs)
        text = f"the module has {len(inputs)} inputs ({names}), {len(input_infos)} are described"
        raise AotcValueError("torch-inputs", text)
    named_types: list[tuple[str, TensorType]] = []
    problems = Problems("torch-inputs")
    for info, value in zip(input_infos, inputs, strict=True):
        with problems.collect_errors_at(None):
            name, ty = _parse_input_info(info, default_dtype)
            require("torch-inputs", name not in dict(named_types), f"two inputs are called {name!r}")
            _check_type_matches_traced_input(name, ty, value.type())
            named_types.append((name, ty))
    problems.raise_collected_problems()
    return named_types


def _parse_input_info(info: Any, default_dtype: str) -> tuple[str, TensorType]:
    is_pair = isinstance(info, (list, tuple)) and len(info) == 2 and isinstance(info[0], str)
    if not is_pair or not isinstance(info[1], (list, tuple)):
        raise AotcError("torch-inputs", f"{info!r} is neither (name, shape) nor (name, (shape, dtype))")
    name, given = info
    dtype: Any = default_dtype
    if len(given) == 2 and isinstance(given[0], (list, tuple)):
        given, dtype = given
    aliases = {"float": "float32", "double": "float64", "half": "float16", "int": "int32", "long": "int64"}
    if not all(isinstance(d, (int, np.integer)) and d >= 0 for d in given):
        raise AotcError("torch-inputs", f"input {name!r}: {given!r} is not a static shape")
    return name, TensorType(
        tuple(int(d) for d in given), dtype_name_of_torch_dtype(aliases.get(str(dtype), dtype)) or "float32"
    )


def _check_type_matches_traced_input(name: str, ty: TensorType, traced: Any) -> None:
    """Raise AotcError (code "torch-inputs") if the graph was traced with another rank or data type,
    or if the input is not a tensor.
    """
    require("torch-inputs", traced.kind() == "TensorType", f"input {name!r} is a {traced}; only tensors can be inputs")
    dtype, rank = traced.dtype(), traced.dim()
    if dtype is not None and dtype_name_of_torch_dtype(dtype) != ty.dtype:
        hint = f"give (name, (shape, {dtype_name_of_torch_dtype(dtype)!r})) in input_infos"
        raise AotcError(
            "torch-inputs",
            f"input {name!r} was traced as {dtype_name_of_torch_dtype(dtype)}, not {ty.dtype}",
            hint=hint,
        )
    if rank is not None and rank != ty.rank:
        raise AotcError("torch-inputs", f"input {name!r} was traced with {rank} dimensions, not {ty.rank}")
