# SPDX-License-Identifier: Apache-2.0
"""Control flow of exported PyTorch programs, compiled to C."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

import aotc
from aotc.ir import AotcError
from aotc.relay.frontend.pytorch.exported_program import from_exported


class Choice(nn.Module):
    """A choice between two layers by a number, with a choice in one of them by values."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
        def yes(x: Tensor) -> tuple[Tensor, Tensor]:
            y = self.first(x)
            return torch.cond(y.sum() > 0, lambda y: torch.relu(y), lambda y: y - 1, (y,)), x.sum(1)

        def no(x: Tensor) -> tuple[Tensor, Tensor]:
            return torch.nn.functional.layer_norm(self.second(x), (8,)), x.amax(1)

        y, z = torch.cond(n > 2, yes, no, (x,))
        return 2 * y, z


@pytest.mark.filterwarnings("ignore")
def test_cond_runs_one_of_two_graphs() -> None:
    torch.manual_seed(1)
    net = Choice().eval()
    with torch.no_grad():
        program = torch.export.export(net, (torch.ones(4, 8), torch.tensor(3)))
        session = aotc.compile(program, target="c", cflags=["-O0"]).session()
        names = [i.name for i in session.get_inputs()]
        for n, scale in ((1, 1.0), (3, 5.0), (3, -5.0)):
            feeds = torch.randn(4, 8) * 0.1 + scale, torch.tensor(n)
            found = session.run(None, dict(zip(names, (a.numpy() for a in feeds), strict=True)))
            for a, b in zip(found, net(*feeds), strict=True):
                np.testing.assert_allclose(a, b.numpy(), rtol=1e-5, atol=1e-5)


class ConstantInBranch(nn.Module):
    def forward(self, x: Tensor, n: Tensor) -> Tensor:
        result: Any = torch.cond(n > 2, lambda x: x + torch.tensor([1.0, 2.0]), lambda x: x - 1, (x,))
        return result


class ChangeInBranch(nn.Module):
    def forward(self, x: Tensor, n: Tensor) -> Tensor:
        def with_new_element(x: Tensor) -> Tensor:
            y = x.clone()
            y[0] = 3
            return y

        result: Any = torch.cond(n > 2, with_new_element, lambda x: x - 1, (x,))
        return result


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("module", [ConstantInBranch, ChangeInBranch])
def test_a_branch_that_pytorch_cannot_decompose_is_named(module: type[nn.Module]) -> None:
    program = torch.export.export(module(), (torch.ones(2), torch.tensor(3)))
    with pytest.raises(AotcError, match=r"a branch of torch.cond must not create tensors from constants"):
        aotc.compile(program, target="c", build=False)


class Pinned(nn.Module):
    def forward(self, x: Tensor, flag: bool) -> Tensor:
        result: Any = torch.cond(flag, lambda x: torch.exp(x), lambda x: torch.abs(x), (x,))
        return result


@pytest.mark.filterwarnings("ignore")
def test_a_known_condition_leaves_one_graph() -> None:
    program = torch.export.export(Pinned(), (torch.ones(3), False))
    metadata = aotc.compile(program, target="c", build=False).metadata
    assert [step["kernel"] for step in metadata["steps"]] == ["model_abs"]


class Loops(nn.Module):
    """A loop that ends by a value, one in it, and scans: of many rows, of few, and of a scan."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.scale = nn.Linear(4, 4), nn.Parameter(torch.rand(4))

    def forward(self, n: Tensor, x: Tensor, h: Tensor) -> tuple[Tensor, ...]:
        def more(i: Tensor, a: Tensor) -> Tensor:
            return (i < n) & (a.abs().amax() < 9)

        def step(i: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
            _, b = while_loop(
                lambda j, b: j < i, lambda j, b: (j + 1, torch.sin(b) + self.scale), (torch.zeros_like(i), a)
            )
            return i + 1, a * 1.5 + b

        def row(a: Tensor, xi: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            b = torch.tanh(self.cell(a) + xi)
            c, rows = scan(lambda s, e: (s + e, s * e), b[0, 0], b.reshape(-1))
            return b, (rows, c + b.sum())

        count, last = while_loop(more, step, (torch.zeros_like(n), h))
        state, (rows, sums) = scan(row, h, x)
        few, _ = scan(lambda s, e: (s - e, s * e), h, x[:3], reverse=True)
        return count, last, state, rows, sums, few


@pytest.mark.filterwarnings("ignore")
def test_loops_and_scans() -> None:
    torch.manual_seed(1)
    net = Loops().eval()
    x, h = torch.randn(20, 3, 4), torch.randn(3, 4) / 4
    with torch.no_grad():
        program = torch.export.export(net, (torch.tensor(3), x, h))
        module, _ = from_exported(program)
        assert sum(name.startswith("loop_") for name in module) == 4
        session = aotc.compile(program, target="c", cflags=["-O0"]).session()
        names = [i.name for i in session.get_inputs()]
        for n in (0, 2, 30):
            feeds = torch.tensor(n), x, h
            found = session.run(None, dict(zip(names, (a.numpy() for a in feeds), strict=True)))
            for a, b in zip(found, net(*feeds), strict=True):
                np.testing.assert_allclose(a, b.numpy(), rtol=1e-4, atol=1e-4)


class LoopsOfSizes(nn.Module):
    """A choice, a loop and a scan over rows whose number is known at run time only."""

    def forward(self, n: Tensor, x: Tensor, h: Tensor) -> tuple[Tensor, ...]:
        chosen: Any = torch.cond(n > 2, lambda x: torch.tanh(x), lambda x: torch.softmax(x, 1), (x,))
        _, last = while_loop(lambda i, a: i < n, lambda i, a: (i + 1, torch.sin(a) + 0.5), (torch.zeros_like(n), x))
        state, rows = scan(lambda a, xi: (torch.tanh(a + xi), a * xi), h, x)
        return chosen, last, state, rows


@pytest.mark.filterwarnings("ignore")
def test_loops_and_scans_of_any_number_of_rows() -> None:
    net, x, h = LoopsOfSizes().eval(), torch.randn(20, 4), torch.randn(4)
    shapes = (None, {0: torch.export.Dim("rows", min=2, max=64)}, None)
    with torch.no_grad():
        program = torch.export.export(net, (torch.tensor(3), x, h), dynamic_shapes=shapes)
        session = aotc.compile(program, target="c", cflags=["-O0"]).session()
        names = [i.name for i in session.get_inputs()]
        for n, rows in ((0, 2), (3, 64), (9, 17)):
            feeds = torch.tensor(n), torch.randn(rows, 4), h
            found = session.run(None, dict(zip(names, (a.numpy() for a in feeds), strict=True)))
            for a, b in zip(found, net(*feeds), strict=True):
                np.testing.assert_allclose(a, b.numpy(), rtol=1e-4, atol=1e-4)
