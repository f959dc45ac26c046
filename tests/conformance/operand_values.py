# SPDX-License-Identifier: Apache-2.0
"""Tests of the official ONNX suite whose results have shapes that operands decide, with two values of the operands.

In: a test.  Out: what was compared.  The shapes that the model declares for its outputs are deleted, one library
is compiled, and it runs on the inputs of the test and on others, of which ONNX Runtime, or ONNX's own evaluator, gives
the results.

    names = deciding_inputs(model)      # ["starts", "ends"]
    check_two_values(case)              # raises what went wrong
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx.backend.test.runner import Runner
from onnx.reference import ReferenceEvaluator
from onnx_suite import FAST, Case, data_of

from aotc import onnx_backend
from aotc.ir import AotcError, TensorType
from aotc.ir.size_operands import SIZE_OPERANDS_ATTRIBUTE
from aotc.relay.frontend.onnx import from_onnx
from aotc.relay.graph_api import type_of

MOST_CANDIDATES = 60
"""Values that are tried for operands until the reference takes one that changes a shape."""
Reference = Callable[[list[Any]], Sequence[Any]]


def without_output_shapes(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model without declared shapes of outputs."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    for value in changed.graph.output:
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")
    return changed


def deciding_inputs(model: onnx.ModelProto) -> list[str]:
    """The inputs whose values decide the shape of an output; none for a model that does not convert, whose other
    sizes are not known, or whose inputs and outputs are not all tensors of numbers.
    """
    values = [*model.graph.input, *model.graph.output]
    if any(v.type.tensor_type.elem_type in (0, onnx.TensorProto.STRING) for v in values):
        return []
    if any(not d.HasField("dim_value") for v in model.graph.input for d in v.type.tensor_type.shape.dim):
        return []
    try:
        module = from_onnx(model, dims={"[*]": (0, 32)})
    except AotcError:
        return []
    result = type_of(module.main.body)
    types = [result] if isinstance(result, TensorType) else list(getattr(result, "fields", ()))
    if all(isinstance(ty, TensorType) and ty.is_static for ty in types):
        return []
    operands = dict.fromkeys(str(row[0]) for row in module.attrs.get(SIZE_OPERANDS_ATTRIBUTE, ()))
    names = [v.name for v in model.graph.input]
    return [name for name in names if name in operands] or names


def reference_of(model: onnx.ModelProto) -> Iterator[Reference]:
    """ONNX Runtime and ONNX's evaluator, as far as they take the model."""
    names = [v.name for v in model.graph.input]
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        yield lambda inputs: session.run(None, dict(zip(names, inputs, strict=False)))
    except Exception:  # its own exception types
        pass
    evaluator = ReferenceEvaluator(model)
    yield lambda inputs: evaluator.run(None, dict(zip(names, inputs, strict=False)))


def _candidates(rng: np.random.Generator, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A value of the type and shape of another one."""
    if array.dtype == bool:
        return rng.random(array.shape) < 0.5
    if array.dtype.kind not in "iu":
        values = array * rng.choice([0.5, 1.5, 2.0], array.shape) if rng.random() < 0.5 else _shuffled(rng, array)
        # sizes that are floats but no integers are read in different ways by the references
        is_whole = bool(np.all(array == np.round(array)))
        return np.asarray(np.round(values) if is_whole else values).astype(array.dtype)
    match int(rng.integers(5)):
        case 0:
            return _shuffled(rng, array)
        case 1:
            return (array + rng.integers(-1, 2, array.shape)).astype(array.dtype)
        case 2:
            return (array + rng.integers(-1, 2)).astype(array.dtype)
        case 3:
            return np.where(rng.random(array.shape) < 0.5, array, 1).astype(array.dtype)
    return rng.integers(-4, 8, array.shape).astype(array.dtype)


def _shuffled(rng: np.random.Generator, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.asarray(rng.permutation(array.reshape(-1))).reshape(array.shape)


def _shapes(outputs: Sequence[Any]) -> list[tuple[int, ...]]:
    return [np.shape(x) for x in outputs]


def other_values(
    model: onnx.ModelProto, inputs: list[Any], expected: Sequence[Any], deciding: Sequence[str], seed: int
) -> Iterator[tuple[list[Any], Sequence[Any]]]:
    """Inputs that give outputs of other shapes, with these outputs."""
    names = [v.name for v in model.graph.input]
    references = [r for r in reference_of(model) if _agree(r, inputs, expected)]
    rng = np.random.default_rng(seed)
    for _ in range(MOST_CANDIDATES if references else 0):
        given = [_candidates(rng, x) if n in deciding else x for n, x in zip(names, inputs, strict=False)]
        try:
            outputs = references[0](given)
        except Exception:  # its own exception types: the operator does not take these values
            continue
        is_other = _shapes(outputs) != _shapes(expected) and sum(np.size(x) for x in outputs) < 10_000
        # the two differ in corners of operators that the tests of the suite do not reach
        if is_other and all(_agree(reference, given, outputs) for reference in references[1:]):
            yield given, outputs


def _agree(reference: Reference, inputs: list[Any], expected: Sequence[Any]) -> bool:
    try:
        Runner.assert_similar_outputs(expected, list(reference(inputs)), rtol=1e-3, atol=1e-5)
    except Exception:  # it computes something else, or refuses the model
        return False
    return True


def check_two_values(case: Case, seed: int = 0) -> str:
    """Run one library on the inputs of the test and on others; raise what went wrong. Return what was compared."""
    model, sets = data_of(case.test)
    model = without_output_shapes(model)
    deciding = deciding_inputs(model)
    if not deciding:
        return "no operand decides a shape"
    prepared = onnx_backend.AotcRep(model, FAST)
    for inputs, expected in sets:
        found = list(prepared.run(inputs))
        Runner.assert_similar_outputs(expected, found, rtol=case.test.rtol, atol=case.test.atol)
    inputs, expected = sets[0]
    refused = ""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for given, wanted in other_values(model, inputs, expected, deciding, seed):
            try:
                found = list(prepared.run(given))
            except AotcError as error:
                refused = str(error)  # beyond the range that the library is compiled for, perhaps
                continue
            Runner.assert_similar_outputs(list(wanted), found, rtol=1e-3, atol=1e-4)
            return "two values"
    return f"no other value: {refused}"
