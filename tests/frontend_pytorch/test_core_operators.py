# SPDX-License-Identifier: Apache-2.0
"""docs/pytorch-operators.md states what the front end does with each core operator of PyTorch.

python -m pytest tests/frontend_pytorch/test_core_operators.py --update-golden     # write the page anew
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only

from aotc.ir import AotcError, TensorType
from aotc.relay.expr import Constant, Function, Tuple, Var
from aotc.relay.frontend.pytorch.operator_conversion import convert_operator_call, unsupported_operator_error
from aotc.relay.frontend.pytorch.ops_complex import ComplexTensor
from aotc.relay.frontend.pytorch.value_conversion_and_promotion import UncomputedValue, is_tensor
from aotc.relay.interpreter import evaluate
from aotc.relay.module import IRModule
from tests.frontend_pytorch.cases import all_cases, positive, real
from tests.frontend_pytorch.core_operators import UNCHECKED, core_operators, page
from tests.frontend_pytorch.frontend_comparison import as_module
from tests.share import draw

PAGE = Path(__file__).parents[2] / "docs" / "pytorch-operators.md"
#: Operators whose shapes runs find: one call outside a program cannot be converted, programs that have them are tested
#: in test_sizes_that_runs_find.py.
WITH_FOUND_SIZES = {"nonzero.default"}
#: The supported operators by name; those that only check values have no results.
SUPPORTED = {
    c.name: c.operator
    for c in core_operators()
    if c.status == "supported" and c.reason != UNCHECKED and c.name not in WITH_FOUND_SIZES
}
#: Largest number of calls of one operator that are compared.
MOST_CALLS = 3


def test_page(update_golden: bool) -> None:
    if update_golden:
        PAGE.write_text(page(), "utf-8")
    assert PAGE.read_text("utf-8") == page()


def test_refused_operators_are_refused_by_name() -> None:
    for core in core_operators():
        if core.status == "refused":
            with pytest.raises(AotcError, match="is not supported") as raised:
                convert_operator_call(core.operator._schema, [], {})
            assert core.reason in str(raised.value)
            assert core.reason, f"{core.name} is refused without a reason"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("aten::randn_like", "draws random numbers"),
        ("aten::bernoulli_", "draws random numbers"),
        ("aten::_nested_tensor_from_mask", "works on nested tensors"),
        ("aten::bincount", "shape depends on values"),
        ("aten::unique_consecutive", "shape depends on values"),
        ("aten::convolution_backward", "computes gradients"),
    ],
)
def test_reasons_of_refused_operators(name: str, reason: str) -> None:
    (diagnostic,) = unsupported_operator_error(name).diagnostics
    assert name in diagnostic.message and reason in diagnostic.message and diagnostic.hint


class CoreCalls(TorchDispatchMode):
    """Records the calls of supported core operators, with their results."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = tree_map_only(Tensor, Tensor.clone, (args, kwargs or {}))
        result = func(*args, **(kwargs or {}))
        if str(func).removeprefix("aten.") in SUPPORTED:
            self.calls.append((func, *given, tree_map_only(Tensor, Tensor.clone, result)))
        return result


def direct_calls() -> Iterator[tuple[Any, tuple[Any, ...], dict[str, Any]]]:
    """Calls of core operators that no case makes."""
    aten, x, y, image = torch.ops.aten, real(2, 6, 5), real(2, 6, 5), real(1, 2, 3, 4, 5)
    whole = torch.arange(-4, 4)
    channels = positive(6), real(6), real(6), positive(6)
    yield aten._native_batch_norm_legit.no_stats, (x, *channels[:2], True, 0.1, 1e-5), {}
    yield aten._native_batch_norm_legit_no_training.default, (x, *channels, 0.1, 1e-5), {}
    yield aten.adaptive_avg_pool1d.default, (x, [3]), {}
    yield aten.avg_pool1d.default, (x, [2], [2]), {}
    yield aten.any.dims, (x > 1, [0, 2]), {}
    yield aten.atan2.out, (x, y), {"out": torch.zeros(2, 6, 5)}
    yield aten.copy.default, (x, real(5)), {}
    yield aten.div.Scalar_mode, (x, 0.3), {"rounding_mode": "floor"}
    yield aten.fill.Scalar, (x, 2.5), {}
    for name in ("add", "div", "eq", "fmod", "ge", "le", "sub"):
        yield getattr(aten, name).Scalar, (x.round(), 2.0), {}
    for name in ("bitwise_or", "bitwise_xor"):
        yield getattr(aten, name).Scalar, (whole, 5), {}
    yield aten.pow.Tensor_Tensor, (x.abs(), y), {}
    yield aten.reflection_pad3d.default, (image, [1, 2, 0, 1, 2, 1]), {}
    yield aten.replication_pad3d.default, (image, [1, 2, 0, 1, 2, 1]), {}
    yield aten.sym_numel.default, (x,), {}
    yield aten.sym_size.int, (x, 1), {}
    yield aten.upsample_bilinear2d.vec, (image[0], [6, 5], False, None), {}
    yield aten.upsample_nearest2d.vec, (image[0], None, [2.0, 1.5]), {}
    yield aten.var.dim, (x, [0, 1], False), {}


@cache
def core_calls() -> dict[str, list[tuple[Any, Any, Any, Any]]]:
    """The calls of each supported core operator in the programs of all cases, and `direct_calls`."""
    recorder = CoreCalls()
    for net, inputs in all_cases().values():
        with recorder, torch.no_grad():
            as_module(net)(*(x.clone() for x in inputs))
    direct = [(operator, args, kwargs, operator(*args, **kwargs)) for operator, args, kwargs in direct_calls()]
    calls: dict[str, list[tuple[Any, Any, Any, Any]]] = {}
    for call in (*recorder.calls, *direct):
        calls.setdefault(str(call[0]).removeprefix("aten."), []).append(call)
    return calls


def test_supported_operators_agree_with_torch() -> None:
    calls = core_calls()
    assert not SUPPORTED.keys() - calls.keys(), "operators that no case calls"
    for name in SUPPORTED:
        agreeing = [agrees(*call) for call in draw(calls[name], MOST_CALLS, name)]
        assert any(agreeing) or any(agrees(*call) for call in calls[name]), name


def converted(func: Any, args: Any, kwargs: Any, make_tensor: Any) -> tuple[list[Any], list[Var], list[Any]]:
    """The results of a call, whose tensors `make_tensor` represents, with the variables and their values."""
    variables: list[Var] = []
    values: list[Any] = []

    def represent(tensor: Tensor) -> Any:
        if tensor.is_complex():
            return ComplexTensor(represent(tensor.real), represent(tensor.imag))
        array = np.array(tensor.detach().contiguous().numpy())
        if make_tensor is Constant:
            return Constant(array)
        variables.append(Var(f"v{len(variables)}", TensorType(array.shape, str(array.dtype))))
        values.append(array)
        return variables[-1]

    args, kwargs = tree_map_only(Tensor, represent, (args, kwargs))
    result = convert_operator_call(func._schema, args, kwargs)
    return list(result) if isinstance(result, (list, tuple)) else [result], variables, values


def agrees(func: Any, args: Any, kwargs: Any, wanted: Any) -> bool:
    """Convert a call and compare its results with those of PyTorch; False if the arguments are refused."""
    refusals = []
    for make_tensor in (Var, Constant):
        try:
            results, variables, values = converted(func, args, kwargs, make_tensor)
        except AotcError as error:
            refusals.append(error)
            continue
        expected = tree_flatten(wanted)[0]
        pairs = [(r, w) for r, w in zip(results, expected, strict=False) if not isinstance(r, UncomputedValue)]
        assert pairs, f"{func}: nothing is computed"
        compare_results(func, pairs, variables, values)
        return True
    return False


def compare_results(func: Any, pairs: list[tuple[Any, Any]], variables: list[Var], values: list[Any]) -> None:
    parts: list[tuple[Any, Any]] = []
    for result, wanted in pairs:
        if isinstance(result, ComplexTensor):
            parts += [(result.real, wanted.real), (result.imag, wanted.imag)]
        else:
            parts.append((result, wanted))
    numbers = [(r, w) for r, w in parts if not is_tensor(r)]
    assert all(r == w for r, w in numbers), f"{func}: {numbers}"
    tensors = [(r, w.resolve_conj().resolve_neg().numpy()) for r, w in parts if is_tensor(r)]
    if not tensors:
        return
    with np.errstate(all="ignore"):
        found = evaluate(IRModule({"main": Function(variables, Tuple([r for r, _ in tensors]))}), *values)
    for array, (_, wanted) in zip(found, tensors, strict=True):
        assert (array.shape, array.dtype) == (wanted.shape, wanted.dtype), func
        scale = float(np.abs(wanted[np.isfinite(wanted)]).max(initial=1)) if wanted.dtype.kind == "f" else 0
        np.testing.assert_allclose(array, wanted, rtol=2e-5, atol=2e-6 * scale, err_msg=str(func))
