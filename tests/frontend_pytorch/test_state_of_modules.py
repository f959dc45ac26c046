# SPDX-License-Identifier: Apache-2.0
"""Modules that change their tensors in a run, compiled with these tensors as state, against PyTorch."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import aotc
from aotc.checking.verify import verify
from aotc.driver.import_model import functional_exported_program
from aotc.driver.pipeline import CompiledModel
from aotc.relay.frontend.pytorch import changed_buffers_of_program, from_exported, load_exported
from tests.frontend_pytorch.frontend_comparison import compare, leaves

HEADS, KEY_HEADS, SIZE, CAPACITY = 4, 2, 8, 12
WIDTH = HEADS * SIZE


class Changes(nn.Module):
    """A counter, a ring, a window, running statistics and others, each in a buffer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.tensor(0))
        self.register_buffer("ring", torch.zeros(4, 3))
        self.register_buffer("window", torch.zeros(1, 3, 5))
        self.register_buffer("seen", torch.zeros(3, dtype=torch.bool))
        self.register_buffer("first", torch.ones(3), persistent=False)
        self.register_buffer("second", torch.zeros(3))
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("counts", torch.zeros(6, dtype=torch.int32))
        self.register_buffer("rolled", torch.arange(6.0).reshape(2, 3))
        self.register_buffer("small", torch.zeros(3, dtype=torch.float16))
        self.register_buffer("columns", torch.zeros(4, 3))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        row = x.mean(0)
        self.ring[(self.calls % 4).view(1)] = row[None]
        self.calls.add_(1)
        self.window.copy_(torch.cat((self.window[..., 1:], row.view(1, 3, 1)), -1))
        self.seen |= row > 0.3
        first = self.first.clone()
        self.first.copy_(self.second + row)
        self.second.copy_(first)
        self.mean.lerp_(row, 0.1)
        places = (x[:, 0].abs() * 3).long().clamp(0, 5)
        self.counts.scatter_add_(0, places, torch.ones(8, dtype=torch.int32))
        self.rolled.copy_(torch.roll(self.rolled, 1, 0))
        self.rolled[0] += row
        self.rolled[1].mul_(0.5)
        self.small.add_(row.half())
        self.columns.narrow(0, 1, 2).copy_(x[:2])
        lengths = self.window.sum(-1), self.seen, self.first - self.second, self.mean * 1, self.counts * 2
        return x + self.ring.sum(0) + self.calls, *lengths, self.rolled.sum(1), self.small.float(), self.columns * 1


class Held:
    """Tensors that are no attributes of a module."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.keys, self.values = torch.zeros(shape), torch.zeros(shape)


class OtherTensors(nn.Module):
    """A parameter and two tensors that a module changes, one of which is a buffer, too."""

    def __init__(self) -> None:
        super().__init__()
        self.held = Held((3,))
        self.register_buffer("x", self.held.keys)  # the name of the input, too
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        self.held.keys.add_(x)
        with torch.no_grad():
            self.held.values[:2].sub_(x[:2])
            self.scale.mul_(0.5)
        return self.x * 3 + self.held.keys + self.held.values * self.scale


class Decoder(nn.Module):
    """A layer of a decoder with caches of a fixed length, as `StaticCache` of the package transformers has them."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(32, WIDTH)
        self.query, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))
        self.key, self.value = (nn.Linear(WIDTH, KEY_HEADS * SIZE, bias=False) for _ in range(2))
        self.cache = Held((1, KEY_HEADS, CAPACITY, SIZE))
        self.register_buffer("key_cache", self.cache.keys, persistent=False)
        self.register_buffer("value_cache", self.cache.values, persistent=False)
        self.register_buffer("length", torch.tensor(0), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        steps, x = ids.shape[1], self.embedding(ids)
        positions = torch.arange(steps) + self.length
        self.length.add_(steps)
        q, k, v = (m(x).view(1, steps, -1, SIZE).transpose(1, 2) for m in (self.query, self.key, self.value))
        self.cache.keys.index_copy_(2, positions, torch.cos(positions[:, None]) * k)
        self.cache.values.index_copy_(2, positions, v)
        mask = torch.arange(CAPACITY) <= positions[:, None]
        keys, values = (
            c[:, :, None].expand(1, KEY_HEADS, HEADS // KEY_HEADS, CAPACITY, SIZE).reshape(1, HEADS, CAPACITY, SIZE)
            for c in (self.cache.keys, self.cache.values)
        )
        y = functional.scaled_dot_product_attention(q, keys, values, attn_mask=mask)
        return self.out(y.transpose(1, 2).reshape(1, steps, WIDTH)) @ self.embedding.weight.T


class StateSpace(nn.Module):
    """A step of Mamba: a window of inputs that is shifted, and a selective state of each channel."""

    def __init__(self, width: int = 16, states: int = 4, rank: int = 2, taps: int = 4) -> None:
        super().__init__()
        channels = 2 * width
        self.sizes = [rank, states, states]
        self.norm, self.into = nn.RMSNorm(width), nn.Linear(width, 2 * channels, bias=False)
        self.conv = nn.Conv1d(channels, channels, taps, groups=channels)
        self.select, self.rates = nn.Linear(channels, sum(self.sizes), bias=False), nn.Linear(rank, channels)
        self.logs = nn.Parameter(torch.log(torch.arange(1.0, states + 1).repeat(channels, 1)))
        self.skip, self.out = nn.Parameter(torch.ones(channels)), nn.Linear(channels, width, bias=False)
        self.register_buffer("window", torch.zeros(1, channels, taps))
        self.register_buffer("state", torch.zeros(1, channels, states))

    def forward(self, x: Tensor) -> Tensor:
        new, gate = self.into(self.norm(x)).chunk(2, -1)
        self.window.copy_(torch.roll(self.window, -1, -1))
        self.window[:, :, -1] = new
        y = functional.silu((self.window * self.conv.weight[:, 0]).sum(-1) + self.conv.bias)
        rates, inputs, outputs = self.select(y).split(self.sizes, -1)
        rates = functional.softplus(self.rates(rates))[..., None]
        self.state.copy_(self.state * torch.exp(-rates * torch.exp(self.logs)) + rates * inputs[:, None] * y[..., None])
        y = (self.state * outputs[:, None]).sum(-1) + self.skip * y
        return x + self.out(y * functional.silu(gate))


class WeightedKeyValue(nn.Module):
    """A step of RWKV-4: time mixing, with numerator, denominator and exponent of its mean as rows of one buffer."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(width), nn.Parameter(torch.rand(3, width))
        self.decay, self.first = nn.Parameter(torch.rand(width)), nn.Parameter(torch.rand(width))
        self.key, self.value, self.gate, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.register_buffer("state", torch.zeros(4, width))
        self.state[3] = -1e38

    def forward(self, x: Tensor) -> Tensor:
        now = self.norm(x)[0]
        k, v, r = (
            layer(now * m + self.state[0] * (1 - m))
            for layer, m in zip((self.key, self.value, self.gate), self.mix, strict=True)
        )
        _, above, below, most = self.state.clone()
        peak = torch.maximum(most, self.first + k)
        old, new = torch.exp(most - peak), torch.exp(self.first + k - peak)
        y = (old * above + new * v) / (old * below + new)
        faded = most - torch.exp(self.decay)
        peak = torch.maximum(faded, k)
        old, new = torch.exp(faded - peak), torch.exp(k - peak)
        for row, value in enumerate((now, old * above + new * v, old * below + new, peak)):
            self.state[row] = value
        return x + self.out(torch.sigmoid(r) * y)


def compile_and_compare(net: nn.Module, inputs: Iterable[Tensor], **options: Any) -> CompiledModel:
    """Compile a module and run it with a state, once for each input; the results must be those of PyTorch."""
    inputs, reference = list(inputs), copy.deepcopy(net)
    model = aotc.compile(torch.export.export(net, (inputs[0],)), target="c", cflags=["-O0"], **options)
    session = model.session()
    (name,), state = (i.name for i in session.get_inputs()), session.new_state()
    for x in inputs:
        with torch.no_grad():
            compare(session.run(None, {name: x.numpy()}, state=state), leaves([reference(x)]))
    return model


def copies_of_states(model: CompiledModel) -> dict[str, int]:
    return {tensor["name"]: tensor["copies"] for tensor in model.metadata["state"]["tensors"]}


def test_changed_buffers_of_all_kinds() -> None:
    torch.manual_seed(0)
    model = compile_and_compare(Changes(), [torch.randn(8, 3) for _ in range(6)], opt_level=1)
    # two buffers that a run exchanges cannot both be written in place
    assert [name for name, copies in copies_of_states(model).items() if copies > 1] == ["first"]


def test_changed_parameters_and_tensors_that_are_no_buffers(tmp_path: Path) -> None:
    model = compile_and_compare(OtherTensors(), [torch.randn(3) for _ in range(3)], opt_level=1)
    assert set(copies_of_states(model)) == {"x_1", "lifted_tensor_1", "scale"}
    program = functional_exported_program(torch.export.export(OtherTensors(), (torch.ones(3),)))
    torch.export.save(program, tmp_path / "net.pt2")
    assert set(changed_buffers_of_program(load_exported(tmp_path / "net.pt2"))) == set(copies_of_states(model))
    assert verify(program, target="c", seeds=1, check_compiler=False).ok


class Scaled(nn.Module):
    """A parameter with the name of the input."""

    def __init__(self) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.full((3,), 2.0))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.x


def test_parameters_with_the_name_of_an_input_are_kept_apart() -> None:
    program = torch.export.export(Scaled(), (torch.ones(3),))
    module, params = from_exported(program, keep_params_as_input=True)
    assert [p.name_hint for p in module.main.params] == ["x", "x_1"]
    np.testing.assert_array_equal(params["x_1"], np.full(3, 2, np.float32))


def test_a_decoder_with_caches_of_a_fixed_length() -> None:
    torch.manual_seed(0)
    model = compile_and_compare(Decoder().eval(), [torch.randint(32, (1, 1)) for _ in range(CAPACITY)])
    assert copies_of_states(model) == {"key_cache": 1, "value_cache": 1, "length": 1}
    # no kernel writes the elements of a cache once for each head that reads them
    assert max(step["bytes_written"] for step in model.metadata["steps"]) < HEADS * CAPACITY * SIZE * 4


def test_recurrences_of_mamba_and_rwkv() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(StateSpace(), WeightedKeyValue()).eval()
    compile_and_compare(net, [torch.randn(1, 16) for _ in range(12)], opt_level=2)


class ConvertingCopies(nn.Module):
    """Copies of all elements to tensors of other data types, which are read afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("small", torch.zeros(3, dtype=torch.float16))
        self.register_buffer("count", torch.zeros(3, dtype=torch.int32))
        self.register_buffer("part", torch.zeros(3, dtype=torch.float16))

    def forward(self, x: Tensor, given: Tensor) -> tuple[Tensor, ...]:
        self.small.copy_(x)
        given.copy_(self.small.float() * 9)
        with torch.no_grad():
            self.count.copy_(given * 0.7)
        self.part[:] = x * 3
        return self.small.float(), self.count * 1, self.part.float()


def test_copies_convert_to_the_data_type_of_the_tensor_that_is_changed(tmp_path: Path) -> None:
    module, given = ConvertingCopies(), torch.zeros(3, dtype=torch.int8)
    program = torch.export.export(module, (torch.zeros(3), given))
    session = aotc.compile(program, output=tmp_path / "net", target="c", cflags=["-O0"]).session()
    state = session.new_state()
    for seed in range(2):
        x = torch.randn(3, generator=torch.Generator().manual_seed(seed))
        expected = [*module(x, given), given]
        for got, want in zip(
            session.run(None, {"x": x.numpy(), "given": given.numpy()}, state=state), expected, strict=True
        ):
            np.testing.assert_array_equal(got, want.numpy(), strict=True)
