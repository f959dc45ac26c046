# SPDX-License-Identifier: Apache-2.0
"""Modules of PyTorch given to aotc.compile with example inputs, and to torch.compile."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomllib
import torch
from torch import Tensor, nn

import aotc
from aotc.checking.reference_torch import make_torch_reference
from aotc.driver.compile import CompileOptions
from aotc.driver.import_model import functional_exported_program
from aotc.driver.state_proposals import propose_state_pairs
from aotc.driver.torch_compile_backend import torch_compile_backend
from aotc.reporting.model_inspection import inspect_model
from tests.frontend_pytorch.frontend_comparison import compare, leaves

OPTIONS = {"opt_level": 1, "cflags": ["-O0"]}


class Scaled(nn.Module):
    """A module with a keyword argument, a buffer that it changes, and an input that it changes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.register_buffer("count", torch.ones(2))

    def forward(self, x: Tensor, *, total: Tensor) -> Tensor:
        self.count += 1
        total[0] += x.sum()
        return self.layer(x) * self.count


class Window(nn.Module):
    """A module with a buffer whose name suggests state."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("past", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        self.past.add_(x)
        return self.past * 2


def test_inspect_proposes_no_state_that_a_model_has_already() -> None:
    program = torch.export.export(Window().eval(), (torch.ones(3),))
    work = CompileOptions().start_compilation(program)
    assert propose_state_pairs(work.module) == [(pair.past, pair.present) for pair in work.state] != []
    assert inspect_model(program)["proposed_state"] == []


def test_changed_buffers_are_state_and_changed_inputs_are_outputs() -> None:
    torch.manual_seed(0)
    module, x, total = Scaled().eval(), torch.randn(4, 3), torch.zeros(2)
    session = aotc.compile(module, {"x": x, "total": total}, **OPTIONS).session()
    state = session.new_state()
    with torch.no_grad():
        for _ in range(3):
            feed = {"x": x.numpy(), "total": total.numpy().copy()}
            found = session.run(None, feed, state=state)
            wanted = module(x, total=total)
            compare(found, leaves([wanted, total]))
    assert [o.name for o in session.get_outputs()][1:] == ["total_out"]


def test_reference_of_programs_that_change_buffers_and_inputs() -> None:
    module, x, total = Scaled().eval(), torch.randn(4, 3), torch.zeros(2)
    program = functional_exported_program(torch.export.export(module, (x,), {"total": total}))
    names = ["mul", "count_out", "total_out"]
    reference = make_torch_reference(program, names)
    for count in (1.0, 5.0):
        feed = {"x": x.numpy(), "total": total.numpy().copy(), "count": np.full(2, count, "float32")}
        found = reference.run(feed)
        with torch.no_grad():
            wanted = [module.layer(x) * (count + 1), torch.full((2,), count + 1), torch.stack([x.sum(), total[1]])]
        compare([found[n] for n in names], leaves(wanted))
    assert (program.state_dict["count"] == 1).all()


def test_example_inputs_that_do_not_fit() -> None:
    with pytest.raises(aotc.AotcError, match="give example inputs, too"):
        aotc.compile(nn.Linear(3, 2))
    with pytest.raises(aotc.AotcError, match=r"example inputs are for a torch\.nn\.Module"):
        aotc.compile("net.onnx", (torch.ones(3),))
    with pytest.raises(aotc.AotcError, match=r"cannot export Linear: .+") as raised:
        aotc.compile(nn.Linear(3, 2), torch.ones(2))
    assert raised.value.diagnostics[0].code == "torch-export"


class Unsupported(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.linalg.svdvals(x) + torch.linalg.det(x)


def test_all_missing_operators_are_named() -> None:
    with pytest.raises(aotc.AotcError) as raised:
        aotc.compile(Unsupported(), torch.eye(3))
    assert [d.code for d in raised.value.diagnostics] == ["torch-op"] * 2


def backend_of_project() -> Any:
    """The backend that pyproject.toml registers under the name "aotc"."""
    settings = tomllib.loads((Path(aotc.__file__).parents[1] / "pyproject.toml").read_text("utf-8"))
    group = "torch_dynamo_backends"
    return EntryPoint("aotc", settings["project"]["entry-points"][group]["aotc"], group).load()


class Memory(nn.Module):
    """A module whose results are views of one another and of its input, with a buffer that it changes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: Tensor, scale: int) -> tuple[Tensor, ...]:
        self.calls += 1
        y = self.layer(x) * scale + self.calls
        first, second = y.chunk(2, 1)
        return first, second, y.t(), x[0], y[:1, :1].expand(3, 4), x.sum(1)


def test_torch_compile() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    backend = backend_of_project()
    assert backend is torch_compile_backend is aotc.torch_compile_backend
    module = Memory().eval()
    with torch.no_grad():
        for freeze in (False, True):
            run = torch.compile(module, backend=backend, options={**OPTIONS, "freeze": freeze})
            for rows in (2, 2, 5):
                x = torch.randn(rows + 1, 4)[1:]  # does not begin where its memory does
                start = module.calls.clone()
                wanted = module(x, 3)
                module.calls.copy_(start)
                found = run(x, 3)
                assert module.calls == start + 1
                compare(leaves(found), leaves(wanted))
                assert [f.stride() for f in found] == [w.stride() for w in wanted]
                found[1].zero_()
                found[3].fill_(7.0)
                assert (found[2][2:] == 0).all() and (x[0] == 7).all()
            module.layer.weight.mul_(2)  # the next call must read the new weights
            module.calls.zero_()
            wanted = module(x, 3)
            module.calls.zero_()
            compare(leaves(run(x, 3)), leaves(wanted))


def test_torch_compile_with_changing_numbers() -> None:
    torch._dynamo.reset()
    run = torch.compile(
        lambda x, factor: (x[: int(factor)] * factor).sum(0), backend=torch_compile_backend, options=OPTIONS
    )
    x = torch.arange(8.0).reshape(4, 2)
    with torch.no_grad():
        for factor in (1.5, 2.5, 3.25):
            compare(leaves(run(x, factor)), leaves((x[: int(factor)] * factor).sum(0)))


def test_torch_compile_refuses_what_it_cannot_do() -> None:
    torch._dynamo.reset()
    x = torch.ones(2, 3)
    with pytest.raises(aotc.AotcError, match="compute no gradients"):
        torch.compile(nn.Linear(3, 2), backend=torch_compile_backend)(x)
    with pytest.raises(Exception, match="no mode 'max-autotune'"), torch.no_grad():
        torch.compile(nn.Linear(3, 2), backend=torch_compile_backend, mode="max-autotune")(x)

    def shared(a: Tensor, b: Tensor) -> Tensor:
        a.add_(1)
        return a * b

    with pytest.raises(aotc.AotcError, match="shares its memory"), torch.no_grad():
        memory = torch.ones(6)
        torch.compile(shared, backend=torch_compile_backend)(memory[:3], memory[3:])
    np.testing.assert_array_equal(memory.numpy(), np.ones(6))
