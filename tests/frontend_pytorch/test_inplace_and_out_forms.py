# SPDX-License-Identifier: Apache-2.0
"""In-place and `out=` forms of all converted operators, and the effect of in-place changes on aliased memory."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import aotc
from aotc import relay
from aotc.relay.frontend.pytorch.inplace_and_out_forms import functional_operator_name, inplace_out_or_functional_form
from tests.frontend_pytorch.cases import EXPORTED_ONLY, all_cases
from tests.frontend_pytorch.frontend_comparison import NAMES, Wrapped, as_module, compare, leaves, values


@dataclass
class Call:
    """A call of an operator, whose arguments are inputs of a program (by number) or constants."""

    name: str
    overload: str
    arguments: list[Any]
    inputs: tuple[Tensor, ...]


@dataclass(frozen=True)
class Input:
    number: int


def calls() -> Iterator[Call]:
    """The calls in the programs of all cases that take inputs and constants alone, one of each overload."""
    seen = set()
    for case, (net, inputs) in all_cases().items():
        if case.startswith(EXPORTED_ONLY):
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            graph = torch.jit.trace(as_module(net), tuple(x.clone() for x in inputs), check_trace=False).inlined_graph
        known: dict[str, Any] = {}
        for number, value in enumerate(list(graph.inputs())[1:]):
            known[value.debugName()] = Input(number)
        for node in graph.nodes():
            given = [known.get(v.debugName(), Ellipsis) for v in node.inputs()]
            if node.kind() == "prim::Constant":
                known[node.output().debugName()] = node.output().toIValue()
            elif ... in given:
                continue
            elif node.kind() == "prim::ListConstruct":
                known[node.output().debugName()] = given
            elif node.kind().startswith("aten::"):
                schema = torch._C.parse_schema(node.schema())
                key = schema.name, schema.overload_name
                if key not in seen:
                    seen.add(key)
                    yield Call(schema.name.removeprefix("aten::"), schema.overload_name, given, inputs)


def forms(call: Call) -> Iterator[Any]:
    """The operators of torch that compute what a call computes and write it to an argument."""
    schema = getattr(getattr(torch.ops.aten, call.name), call.overload or "default")._schema
    for name in (call.name, f"{call.name}_"):
        packet = getattr(torch.ops.aten, name, None)
        for overload in packet.overloads() if packet is not None else ():
            operator = getattr(packet, overload)
            form = inplace_out_or_functional_form(operator._schema)
            found = form.functional
            if form.written and (found.name, found.overload_name) == (schema.name, schema.overload_name):
                yield operator


def resolved(argument: Any, inputs: tuple[Tensor, ...]) -> Any:
    if isinstance(argument, list):
        return [resolved(a, inputs) for a in argument]
    return inputs[argument.number] if isinstance(argument, Input) else argument


def program(operator: Any, call: Call) -> nn.Module:
    """A function of tensors that calls a writing operator: its results, and the tensors that it wrote to."""
    form = inplace_out_or_functional_form(operator._schema)
    plain = getattr(getattr(torch.ops.aten, call.name), call.overload or "default")
    formals = plain._schema.arguments

    def run(*inputs: Tensor) -> Any:
        given = [resolved(a, inputs) for a in call.arguments]
        named = {a.name: v for a, v in zip(formals, given, strict=True) if a.kwarg_only}
        given = given[: len(given) - len(named)]
        if not form.outs:
            given[0] = given[0].clone()
            return operator(*given, **named), given[0]
        results = plain(*given, **named)
        outs = [torch.zeros_like(t) for t in (results if isinstance(results, (tuple, list)) else [results])]
        names = [operator._schema.arguments[k].name for k in form.outs]
        return operator(*given, **named, **dict(zip(names, outs, strict=True))), outs

    return Wrapped(run).eval()


def outcome(operator: Any, call: Call) -> str:
    """Whether a form gives what TorchScript does, or why it does not convert; torch has no kernels of some types."""
    net = program(operator, call)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            script = torch.jit.trace(net, tuple(x.clone() for x in call.inputs), check_trace=False)
            wanted = leaves(script(*(x.clone() for x in call.inputs)))
        except (RuntimeError, NotImplementedError) as error:
            return f"torch: {error}"
    infos = [(n, (tuple(x.shape), str(x.dtype).removeprefix("torch."))) for n, x in zip(NAMES, call.inputs)]  # noqa: B905
    try:
        module, params = relay.frontend.from_pytorch(script, infos)
    except aotc.AotcError as error:
        return f"refused: {error}"
    compare(values(module, call.inputs, {k: v.numpy() for k, v in params.items()}), wanted)
    return "equal"


def test_every_form_that_torch_has() -> None:
    """All of them convert, but for those that write to what is not computed (the indices of adaptive pools)."""
    found = {str(form): outcome(form, call) for call in calls() for form in forms(call)}
    refused = {name: why for name, why in found.items() if why.startswith("refused")}
    assert all("indices" in why for why in refused.values()) and len(refused) <= 4, refused
    assert sum(why == "equal" for why in found.values()) >= 240
    unable = {name: why for name, why in found.items() if why.startswith("torch")}
    assert len(unable) < 10, unable


@pytest.mark.parametrize(
    ("name", "plain"),
    [*[("add_", "add"), ("__iand__", "__and__"), ("__and__", "__and__"), ("index", "index"), ("__not__", "__not__")]],
)
def test_names_of_functional_operators(name: str, plain: str) -> None:
    assert functional_operator_name(name) == plain


# --- memory that is shared


def _transposed(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.clone()
    part = y[1:3]
    part.t_()
    part.mul_(2)
    return y, part


def _squeezed(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    y = x.clone()
    z = y.relu_()
    row = y[0]
    z.unsqueeze_(0)
    row += 1
    return y, z, row


def _counted(x: Tensor) -> Tensor:
    y = x.clone()
    z = y
    for _ in range(3):
        z = z.add_(1)
    return y


def _swapped(x: Tensor) -> tuple[Tensor, Tensor]:
    a, b = x.clone(), x * 2
    first = a
    for _ in range(3):
        a, b = b, a
        a.mul_(2)
    return first, b


def _listed(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.clone()
    parts = [y[0], y[1]]
    y.add_(1)
    return torch.cat(parts), y


def _appended(x: Tensor) -> Tensor:
    parts: list[Tensor] = []
    y = x.clone()
    for k in range(3):
        y.add_(k)
        parts.append(y)
    return torch.cat(parts)


def _of_lists(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.clone()
    parts = [x, y]
    parts[1].mul_(3)
    pair = (y, parts)
    pair[0].add_(1)
    return y, pair[1][1]


def _given_out(x: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.zeros(4, 3)
    torch.add(x, 1, out=y)
    rows = y[1:]
    torch.mul(x[1:], 2, out=rows)
    return y, rows


def _sized_by_out(x: Tensor) -> Tensor:
    y = torch.empty(0)
    torch.add(x, 1, out=y)
    return y


SHARED = [_transposed, _squeezed, _counted, _swapped, _listed, _appended, _of_lists, _given_out, _sized_by_out]


@pytest.mark.parametrize("function", SHARED, ids=lambda f: f.__name__)
def test_writes_reach_all_that_shares_the_memory(function: Any) -> None:
    """In-place writes of scripted functions, which keep the names and loops of the source, change all aliases."""
    x, script = torch.randn(4, 3), torch.jit.script(function)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        script = torch.jit.trace(Wrapped(script), x.clone(), check_trace=False)
    module, params = relay.frontend.from_pytorch(script, [("x", (4, 3))])
    compare(values(module, [x], {k: v.numpy() for k, v in params.items()}), leaves(script(x.clone())))


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.count.add_(1)
        return x + self.count


def refusal(net: nn.Module) -> str:
    with pytest.raises(aotc.AotcError) as caught:
        relay.frontend.from_pytorch(torch.jit.script(net), [("x", (4, 3))])
    return str(caught.value)


def test_state_is_refused() -> None:
    assert "changes its parameter or buffer 'count'" in refusal(Counter())


class Sliced(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.clone()
        rest = [x, y][1:]
        y.add_(1)
        return y, rest[0]


class SizedView(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = torch.zeros(4, 3)
        row = y[0]
        torch.add(x, 1, out=y)
        torch.add(x, 1, out=row)
        return y


def test_what_cannot_be_followed_is_refused() -> None:
    assert "of which one was changed in place" in refusal(Sliced())
    assert "writes a result of shape (4, 3) to a tensor of shape (3,)" in refusal(SizedView())
