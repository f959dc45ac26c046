# SPDX-License-Identifier: Apache-2.0
"""Scripted modules, dynamic dimensions, random chains of operators, and a batch of operators in compiled C."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor, nn
from torch.nn import functional as F

import aotc
from aotc import relay
from aotc.ir.dimensions import SymDim
from aotc.relay.frontend.pytorch import CONVERTERS, converter_of
from aotc.relay.interpreter import evaluate
from tests.frontend_pytorch.cases import all_cases
from tests.frontend_pytorch.frontend_comparison import as_module, check, compare, exported, leaves, values


class Static(nn.Module):
    """Control flow that the shapes and settings decide."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])
        self.deep = True

    def forward(self, x: Tensor, scale: float = 2.0) -> Tensor:
        parts: list[Tensor] = []
        for layer in self.layers:
            x = F.relu(layer(x))
            parts.append(x)
        if self.deep and x.dim() == 2:
            x = torch.cat(parts, dim=1)
        else:
            raise ValueError("two dimensions")
        steps = 0
        while steps < 3:
            x = x * scale if steps % 2 == 0 else x - x.mean(dim=-1, keepdim=True)
            steps += 1
        return x[:, : x.size(1) // 2]


class Uniform(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Static()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + torch.arange(6)


class Listed(nn.Module):
    """Operators whose overloads call their arguments differently."""

    def forward(self, x: Tensor) -> Tensor:
        head, tail = x.swapaxes(0, 1).split([1, 3])
        return head * torch.tensor(3) + tail.sum()


def test_overloads_name_their_arguments_differently() -> None:
    data = torch.randn(3, 4)
    module, params = relay.frontend.from_pytorch(torch.jit.script(Listed()), [("x", (3, 4))])
    compare(values(module, [data], params), leaves(Listed()(data)))


@pytest.mark.parametrize(
    ("variant", "plain"),
    [
        *[("arcsin_", "asin"), ("arctan2", "atan2"), ("special_expit", "sigmoid"), ("special_erfc", "erfc")],
        *[("_to_copy", "to"), ("_softmax", "softmax"), ("sym_size", "size"), ("_unsafe_index_put", "index_put")],
    ],
)
def test_names_of_variants_lead_to_the_plain_operator(variant: str, plain: str) -> None:
    assert converter_of(variant, "") is CONVERTERS[plain]
    assert converter_of(f"{variant}_somewhat", "") is None


def test_an_overload_may_be_all_that_an_operator_has() -> None:
    assert converter_of("_native_batch_norm_legit", "no_stats") is not None
    assert converter_of("_native_batch_norm_legit", "") is None


def test_decomposed_normalizations() -> None:
    """What a decomposition leaves of them says the sizes of the data once more."""
    net = nn.Sequential(nn.GroupNorm(2, 4), nn.BatchNorm2d(4), nn.LayerNorm(5)).eval()
    data = torch.randn(1, 4, 5, 5)
    program = torch.export.export(net, (data,)).run_decompositions()
    module, _ = relay.frontend.from_exported_program(program)
    compare(values(module, [data], {}), leaves(net(data)))


def test_scripted_module_with_static_control_flow() -> None:
    net = Uniform().eval()
    data = torch.randn(3, 4)
    module, params = relay.frontend.from_pytorch(torch.jit.script(net), [("x", (3, 4))])
    found = evaluate(module, data.numpy(), params={k: v.numpy() for k, v in params.items()})
    compare([found], leaves(net(data)))


def test_an_exception_that_is_reached_is_an_error() -> None:
    with pytest.raises(aotc.AotcError, match="reaches a raise statement"):
        relay.frontend.from_pytorch(torch.jit.script(Uniform().eval()), [("x", (1, 3, 4))])


class Sequence(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.norm = nn.Linear(6, 8), nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(self.norm(F.gelu(self.fc(x))), -1).flatten(1)


def test_dynamic_dimensions_are_named_and_pinned() -> None:
    net, data = Sequence().eval(), torch.randn(2, 5, 6)
    program = torch.export.export(net, (data,), dynamic_shapes=({0: torch.export.Dim("batch", max=64)},))
    module, _ = relay.frontend.from_exported_program(program)
    (batch, *rest) = module.main.params[0].checked_type.shape
    assert isinstance(batch, SymDim) and batch.upper == 64 and rest == [5, 6]
    for rows in (1, 3):
        x = torch.randn(rows, 5, 6)
        compare([evaluate(module, x.numpy())], leaves(net(x)))
    x = torch.randn(4, 5, 6)
    session = aotc.compile(program, dims={batch.name: 4}).session()
    compare(session.run(None, {"x": x.numpy()}), leaves(net(x)))
    for pins, message in (({"rows": 4}, "no dynamic dimension 'rows'"), ({batch.name: 65}, "is outside")):
        with pytest.raises(aotc.AotcError, match=message):
            aotc.compile(program, dims=pins)
    session = aotc.compile(program, cflags=["-O1"]).session()
    for rows in (2, 5):
        x = torch.randn(rows, 5, 6)
        compare(session.run(None, {"x": x.numpy()}), leaves(net(x)))


def test_ranges_of_dimensions() -> None:
    """Both ends of what the program allows are bounds, and callers may narrow them."""
    net, data = Sequence().eval(), torch.randn(4, 5, 6)
    program = torch.export.export(net, (data,), dynamic_shapes=({0: torch.export.Dim("batch", min=3, max=64)},))
    batch = relay.frontend.from_exported_program(program)[0].main.params[0].checked_type.shape[0]
    assert (batch.lower, batch.upper) == (3, 64)
    module, _ = relay.frontend.from_exported_program(program, dims={batch.name: "4..8:4"})
    compare([evaluate(module, data.numpy())], leaves(net(data)))
    for rows in (3, 6, 12):
        with pytest.raises(aotc.AotcError, match="must be Tensor"):
            evaluate(module, torch.randn(rows, 5, 6).numpy())
    for pins, message in (((1, 8), "is outside 3 to 64"), ((4, 65), "is outside"), ("8..4", "does not go from")):
        with pytest.raises(aotc.AotcError, match=message):
            relay.frontend.from_exported_program(program, dims={batch.name: pins})


class Pairs(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y.reshape(-1, 2, 5).sum(1)


def test_dimensions_derived_from_others() -> None:
    rows = torch.export.Dim("rows", max=64)
    shapes = ({0: rows}, {0: 2 * rows})
    program = torch.export.export(Pairs(), (torch.randn(3, 5), torch.randn(6, 5)), dynamic_shapes=shapes)
    module, _ = relay.frontend.from_exported_program(program)
    first, second = (p.checked_type.shape[0] for p in module.main.params)
    assert isinstance(first, SymDim) and second.name == f"2*{first.name}"
    x, y = torch.randn(4, 5), torch.randn(8, 5)
    session = aotc.compile(program, dims={first.name: 4}).session()
    compare(session.run(None, {"x": x.numpy(), "y": y.numpy()}), leaves(Pairs()(x, y)))


class Heads(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], 5, 2, -1).transpose(1, 2).reshape(x.shape[0], -1)


class Filled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.arange(x.shape[0])[:, None, None]


def test_views_of_a_dynamic_batch() -> None:
    """-1 beside the batch is a number; where a number is needed for the batch, the hint says how to pin it."""
    heads, shapes = Heads(), ({0: torch.export.Dim("batch", max=64)},)
    program = torch.export.export(heads, (torch.randn(2, 5, 6),), dynamic_shapes=shapes)
    run = relay.create_executor("vm", relay.frontend.from_exported_program(program)[0]).evaluate()
    for rows in (1, 3):
        x = torch.randn(rows, 5, 6)
        compare([run(x.numpy()).numpy()], leaves(heads(x)))
    program = torch.export.export(Filled(), (torch.randn(2, 5, 6),), dynamic_shapes=shapes)
    with pytest.raises(aotc.AotcError, match=r"(?s)the dynamic dimension s\d+ is needed.*dims=\{\"s\d+\": "):
        relay.frontend.from_exported_program(program)


def test_parameters_as_inputs_have_the_names_of_the_state() -> None:
    net, data = Sequence().eval(), torch.randn(2, 5, 6)
    program = torch.export.export(net, (data,))
    module, params = relay.frontend.from_exported_program(program, keep_params_as_input=True)
    assert list(params) == ["fc.weight", "fc.bias", "norm.weight", "norm.bias"]
    assert [v.name for v in module.main.params] == ["x", *params]
    found = evaluate(module, data.numpy(), params={k: v.numpy() for k, v in params.items()})
    compare([found], leaves(net(data)))
    wrapped, none = relay.frontend.from_exported_program(program, unwrap_unit_return_tuple=False)
    assert not none
    compare(evaluate(wrapped, data.numpy()), leaves(net(data)))


def test_a_tensor_read_twice_is_one_parameter() -> None:
    layer = nn.Linear(4, 4, bias=False).eval()
    net = nn.Sequential(layer, nn.ReLU(), layer)
    module, params = relay.frontend.from_pytorch(torch.jit.trace(net, torch.ones(1, 4)), [("x", (1, 4))])
    assert list(params) == ["aten::linear_0.weight"]
    assert len(module["main"].params) == 2


def test_operators_in_place_need_no_copies() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 1), nn.ReLU(inplace=True), nn.Hardswish(inplace=True)).eval()
    script = torch.jit.trace(net, torch.ones(1, 1, 2, 2))
    module, _ = relay.frontend.from_pytorch(script, [("x", (1, 1, 2, 2))])
    assert "scatter" not in str(module["main"])


def test_perhaps_a_view() -> None:
    def copied(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 2
        z = y.t().contiguous()
        z.add_(1)
        return z, y

    script = torch.jit.trace(as_module(copied), torch.ones(2, 3), check_trace=False)
    with pytest.raises(aotc.AotcError, match="may share memory"):
        relay.frontend.from_pytorch(script, [("x", (2, 3))])


def test_custom_converters_go_first() -> None:
    seen: list[Any] = []

    def double(inputs: list[Any], types: list[str]) -> Any:
        seen.append(types)
        return relay.add(inputs[0], inputs[0])

    script = torch.jit.trace(as_module(torch.relu), torch.ones(3))
    module, _ = relay.frontend.from_pytorch(script, [("x", (3,))], custom_convert_map={"aten::relu": double})
    np.testing.assert_array_equal(evaluate(module, -np.ones(3, "float32")), [-2, -2, -2])
    assert len(seen) == 1


STEPS: dict[str, Any] = {
    "relu": torch.relu,
    "scale": lambda x: x * 2.5 + 1,
    "halve": lambda x: x / 2,
    "rows": lambda x: x[1:] if x.size(0) > 1 else x + 1,
    "columns": lambda x: x[:, ::2],
    "turn": lambda x: x.t(),
    "join": lambda x: torch.cat([x, x.flip(0)], 1),
    "softmax": lambda x: x.softmax(-1),
    "center": lambda x: x - x.mean(0, keepdim=True),
    "running": lambda x: x.cumsum(0),
    "in_place": lambda x: x.clone().add_(1).clamp_(-2, 2),
    "part": lambda x: x.clone().index_fill_(0, torch.tensor([0]), 0.5),
    "write": lambda x: _written(x),
    "gram": lambda x: x @ x.t(),
    "reshape": lambda x: x.reshape(-1, x.size(0)),
    "where": lambda x: torch.where(x > 0.1, x, x.abs() - 1),
    "tri": lambda x: x.tril(),
    "bools": lambda x: (x > 0) * 3 - x,
}


def _written(x: Tensor) -> Tensor:
    y = x * 1.0
    y[..., 0] = 2
    y[:1] *= 3
    return y


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=6), st.integers(1, 4), st.integers(2, 5))
def test_chains_of_operators(steps: list[str], rows: int, columns: int) -> None:
    def chain(x: Tensor) -> Tensor:
        for step in steps:
            x = STEPS[step](x)
        return x

    check(chain, torch.linspace(-1.3, 1.7, rows * columns).reshape(rows, columns))


IN_C = (
    "activation-softmax", "binary-div_modes", "indexing-index_pairs", "indexing-scatter", "reductions-orders",
    "shapes-pad_modes", "convolutions-conv2d", "resizing-bicubic_scale", "normalizations-group_norm", "products-einsum",
    "recurrent-gru_state", "in_place-views", "complex_numbers-spectrogram", "order_statistics-running_extrema",
)  # fmt: skip


def test_operators_in_compiled_c() -> None:
    cases = all_cases()
    for name in IN_C:
        net, inputs = cases[name]
        module = as_module(net)
        with torch.no_grad():
            wanted = leaves(module(*(x.clone() for x in inputs)))
        converted = exported(module, inputs)
        names = [v.name for v in converted.main.params]
        session = aotc.compile(converted).session()
        found = session.run(None, {n: x.numpy() for n, x in zip(names, inputs, strict=True)})
        compare(found, wanted)
        compare(values(converted, inputs, {}), wanted)
