# SPDX-License-Identifier: Apache-2.0
"""Programs that cannot be converted give one clear diagnostic for each problem, all of them at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.ao.quantization.fx._decomposed  # the operators of the namespace quantized_decomposed
from torch import Tensor, nn
from torch.nn import functional as F

import aotc
from aotc import AotcError, relay
from aotc.checking.verify import verify
from aotc.relay.frontend.pytorch.operator_conversion import convert_operator_call
from tests.frontend_pytorch.frontend_comparison import as_module


def trace(function: Any, *inputs: Tensor) -> Any:
    return torch.jit.trace(as_module(function), inputs or (torch.ones(2, 3),), check_trace=False)


def export(function: Any, *inputs: Tensor) -> Any:
    return torch.export.export(as_module(function), inputs or (torch.ones(2, 3),))


def problems(convert: Any) -> list[Any]:
    with pytest.raises(AotcError) as caught:
        convert()
    return list(caught.value.diagnostics)


def unknown(x: Tensor) -> Tensor:
    return torch.special.bessel_j0(x) + torch.bincount(x[0].int()).sum() + torch.special.bessel_j0(x * 2)


def test_all_unsupported_operators_are_reported_with_their_places() -> None:
    found = problems(lambda: relay.frontend.from_pytorch(trace(unknown), [("x", (2, 3))]))
    names = ["aten::special_bessel_j0", "aten::bincount", "aten::special_bessel_j0"]
    assert [d.message.partition(": ")[0] for d in found] == [f"operator {n} is not supported" for n in names]
    assert "shape depends on values" in found[1].message
    assert [str(d.span) for d in found] == [
        "aten::special_bessel_j0_0",
        "aten::bincount_0",
        "aten::special_bessel_j0_1",
    ]
    assert all("test_bad_programs.py" in d.notes[0] and d.hint for d in found)


class Bessel(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.special.bessel_j0(x) + x


def test_unsupported_operators_of_exported_programs() -> None:
    found = problems(lambda: relay.frontend.from_exported_program(export(Bessel())))
    assert [d.code for d in found] == ["torch-op"]
    assert "node special_bessel_j0" in str(found[0].span)
    assert "test_bad_programs.py" in found[0].notes[0]


class Singular(nn.Module):
    """torch composes svdvals of an operator that has no converter."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.linalg.svdvals(torch.relu_(x + 1))


@pytest.mark.parametrize(("net", "count"), [(Bessel(), 0), (Singular(), 0), (nn.ReLU6(inplace=True), 1)])
def test_programs_are_decomposed_once_or_refused_before(
    net: nn.Module, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = torch.export.export(nn.Sequential(nn.Linear(3, 3), net).eval(), (torch.ones(2, 3),))
    calls, decompose = [], torch.export.ExportedProgram.run_decompositions

    def counted(*args: Any) -> Any:
        calls.append(args)
        return decompose(*args)

    monkeypatch.setattr(torch.export.ExportedProgram, "run_decompositions", counted)
    if count:
        relay.frontend.from_exported_program(program)
    else:
        (found,) = problems(lambda: relay.frontend.from_exported_program(program))
        assert found.code == "torch-op" and "is not supported" in found.message
    assert len(calls) == count


@pytest.mark.parametrize(
    ("infos", "message"),
    [
        ([], "1 inputs"),
        ([("x", (2, 3)), ("y", (2, 3))], "2 are described"),
        ([("x", (2, 3, 4))], "2 dimensions, not 3"),
        ([("x", ((2, 3), "int64"))], "traced as float32, not int64"),
        ([("x", ((2, 3), "float33"))], "float33"),
        ([("x", (2, -3))], "not a static shape"),
        ([("x", (2, None))], "not a static shape"),
        (["x"], "neither"),
        ([(3, (2, 3))], "neither"),
        ("x", "a list"),
    ],
)
def test_wrong_input_infos(infos: Any, message: str) -> None:
    script = trace(lambda x: x + 1)
    with pytest.raises(AotcError, match=message):
        relay.frontend.from_pytorch(script, infos)


def test_all_wrong_inputs_at_once() -> None:
    script = trace(lambda x, y, z: x + y + z, *(torch.ones(2),) * 3)
    found = problems(lambda: relay.frontend.from_pytorch(script, [("a", (2,)), ("a", (2,)), ("c", ((2,), "int32"))]))
    assert [d.message for d in found] == ["two inputs are called 'a'", "input 'c' was traced as float32, not int32"]


@pytest.mark.parametrize("convert", ["from_pytorch", "from_exported_program"])
def test_other_things_than_modules(convert: str) -> None:
    for thing in (nn.Linear(2, 2), None, "net.pt", 3):
        args = (thing, []) if convert == "from_pytorch" else (thing,)
        with pytest.raises(AotcError, match="takes a torch"):
            getattr(relay.frontend, convert)(*args)


def test_the_other_front_end_is_named() -> None:
    with pytest.raises(AotcError, match="from_exported_program"):
        relay.frontend.from_pytorch(export(lambda x: x + 1), [("x", (2, 3))])


def test_training_mode() -> None:
    for net, data in ((nn.Dropout(0.5), torch.ones(2)), (nn.BatchNorm1d(3), torch.ones(2, 3))):
        script = torch.jit.trace(net.train(), data, check_trace=False)
        found = problems(lambda s=script, d=data: relay.frontend.from_pytorch(s, [("x", tuple(d.shape))]))
        # batch normalization counts its batches in a buffer, too
        assert {d.code for d in found} - {"torch-mutation"} == {"torch-training"}
        assert all("eval()" in d.hint for d in found)
    program = torch.export.export(nn.BatchNorm1d(3).train(), (torch.ones(2, 3),))
    assert {d.code for d in problems(lambda: relay.frontend.from_exported_program(program))} == {"torch-training"}


class IllShaped(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return x.view(4, 2), torch.einsum("abc->a", x), x @ x


def test_what_the_shared_vocabulary_finds_has_codes_of_this_front_end() -> None:
    found = problems(lambda: relay.frontend.from_pytorch(torch.jit.script(IllShaped()), [("x", (2, 3))]))
    assert [d.code for d in found] == ["torch-reshape", "torch-einsum", "torch-matmul"]


class FarIndex(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:, torch.tensor([0, 3])]


class FarRow(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.index_select(0, torch.tensor([2]))


class FarWord(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.embedding(torch.tensor([1, 2]), x)


class CutToNothing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x, [-2, -2])


class UnevenShuffle(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.pixel_shuffle(x.reshape([1, 6, 1, 1]), 2)


@pytest.mark.parametrize(
    ("net", "code", "message"),
    [
        (FarIndex, "torch-index", "a constant index is outside the axis"),
        (FarRow, "torch-index", "a constant index is outside the axis"),
        (FarWord, "torch-index", "a constant index is outside the axis"),
        (CutToNothing, "torch-pad", "negative padding removes more elements than the axis has"),
        (UnevenShuffle, "torch-shape", "6 is not a multiple of 4, the blocksize 2 to the power of 2"),
    ],
)
def test_what_torch_itself_would_refuse(net: type[nn.Module], code: str, message: str) -> None:
    """A script is not run before it is converted, so that what does not fit is found here."""
    (found,) = problems(lambda: relay.frontend.from_pytorch(torch.jit.script(net()), [("x", (2, 3))]))
    assert (found.code, found.message) == (code, message)
    assert str(found.span).startswith("aten::")


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        return x + self.count


class Halves(nn.Module):
    """Two buffers that are parts of one tensor, which is also an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.whole = torch.zeros(2)
        self.register_buffer("first", self.whole[:1])
        self.register_buffer("second", self.whole[1:])

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.first.add_(1)
        return x + self.first + self.second


def test_changed_buffers_that_share_memory() -> None:
    counter = Counter()
    counter.register_buffer("other", counter.count.view(-1))
    for module, names in ((counter, "'count', which shares memory with 'other'"), (Halves(), "'first', which shares")):
        # torch itself refuses to functionalize the first one
        program = torch.export.export(module, (torch.ones(1),))
        (found,) = problems(lambda program=program: relay.frontend.from_exported_program(program))
        assert found.code == "torch-mutation" and names in found.message


def test_complex_inputs_outputs_and_operators() -> None:
    x = torch.ones(2, dtype=torch.complex64)
    program = torch.export.export(as_module(torch.view_as_real), (x,))
    assert "view_as_complex" in problems(lambda: relay.frontend.from_exported_program(program))[0].hint
    program = torch.export.export(as_module(lambda x: torch.complex(x, x)), (torch.ones(2),))
    assert "view_as_real" in problems(lambda: relay.frontend.from_exported_program(program))[0].hint
    program = torch.export.export(as_module(lambda x: torch.complex(x, x).tan().real), (torch.ones(2),))
    assert "of complex tensors is not supported" in str(problems(lambda: relay.frontend.from_exported_program(program)))
    program = torch.export.export(as_module(lambda x: x.sum(dtype=torch.complex64).real), (torch.ones(2),))
    assert "of complex tensors is not supported" in str(problems(lambda: relay.frontend.from_exported_program(program)))


def test_strides_that_are_not_known() -> None:
    def strided(x: Tensor) -> Tensor:
        return x.t().as_strided((2, 2), (1, 1))

    program = torch.export.export(as_module(strided), (torch.ones(2, 3),))
    assert "a permutation" in problems(lambda: relay.frontend.from_exported_program(program))[0].message
    for form in (torch.as_strided, torch.as_strided_copy, torch.Tensor.as_strided_):
        script = trace(lambda x, form=form: form(x.t(), (2, 2), (1, 1)))
        found = problems(lambda script=script: relay.frontend.from_pytorch(script, [("x", (2, 3))]))
        assert "in TorchScript" in found[0].message


def test_assertions_are_not_computed() -> None:
    def checked(x: Tensor) -> Tensor:
        torch._assert_async((x > 0).all())
        torch._check(x.shape[0] > 1)
        return x + 1

    module, _ = relay.frontend.from_exported_program(torch.export.export(as_module(checked), (torch.ones(2),)))
    assert "greater" not in str(module)


ENDS = (-128, 127, torch.int8)


class Scaled(nn.Module):
    """Something done with scales of which one is odd."""

    def __init__(self, function: Any, value: float) -> None:
        super().__init__()
        self.function = function
        self.register_buffer("scales", torch.tensor([[1.0, 1.0], [value, 1.0]]))
        self.register_buffer("weights", torch.ones(2, 8, dtype=torch.int8))

    def forward(self, x: Tensor) -> Tensor:
        zeros = torch.zeros(2, 2, dtype=torch.int32)
        return self.function(torch.ops.quantized_decomposed, x, self.weights, self.scales, zeros)


def _channels(ops: Any, x: Tensor, _: Tensor, s: Tensor, z: Tensor) -> Tensor:
    return ops.quantize_per_channel(x, s[:, 0].contiguous(), z[:, 0].long(), 0, *ENDS)


def _groups(ops: Any, x: Tensor, _: Tensor, s: Tensor, z: Tensor) -> Tensor:
    return ops.quantize_per_channel_group(x, s, z, *ENDS, 4)


def _groups_back(ops: Any, x: Tensor, w: Tensor, s: Tensor, z: Tensor) -> Tensor:
    return x + ops.dequantize_per_channel_group(w, s, z, *ENDS, 4, torch.float32)


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("function", [_channels, _groups, _groups_back])
def test_scales_that_are_none(function: Any, value: float) -> None:
    """Scales of groups of weights may be 0 or negative."""
    program = torch.export.export(Scaled(function, value), (torch.ones(2, 8),))
    if function is _groups_back and abs(value) <= 1:
        relay.frontend.from_exported_program(program)
        return
    (found,) = problems(lambda: relay.frontend.from_exported_program(program))
    assert found.code == "qnn.scale" and "finite" in found.message
    assert "quantize_per_channel" in str(found.span)


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_one_scale_that_is_none(scale: float) -> None:
    program = export(lambda x: torch.ops.quantized_decomposed.quantize_per_tensor(x, scale, 0, *ENDS))
    (found,) = problems(lambda: relay.frontend.from_exported_program(program))
    assert found.code == "qnn.scale" and f"{scale:g}: not positive and finite" in found.message


def test_a_zero_point_outside_of_its_type(tmp_path: Path) -> None:
    program = export(lambda x: torch.ops.quantized_decomposed.quantize_per_tensor(x, 0.1, 300, *ENDS))
    module, _ = relay.frontend.from_exported_program(program)
    (found,) = problems(lambda: aotc.compile(module, output=tmp_path / "net", name="net", build=False))
    assert found.code == "qnn.zero-point" and "holds -128 to 127: 300" in found.message


class Branch(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 1 if bool(x.sum() > 0) else x - 1


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: x[x > 0], "the shape of the result depends on values that are computed at run time"),
        (lambda x: F.one_hot(x.long()), "num_classes"),
        (lambda x: torch.rand(2, 3) + x, "aten::rand is not supported"),
        (lambda x: torch.fft.fft(x).real, "fft"),
        (lambda x: F.max_pool2d(x[None], 2, return_indices=True)[1], "indices of max_pool"),
        (lambda x: x.to(torch.complex64).real, "complex64"),
    ],
)
def test_what_cannot_be_compiled(function: Any, message: str) -> None:
    with pytest.raises(AotcError, match=message):
        relay.frontend.from_pytorch(trace(function), [("x", (2, 3))])


def test_branches_on_values() -> None:
    with pytest.raises(AotcError, match="only known at run time"):
        relay.frontend.from_pytorch(torch.jit.script(Branch()), [("x", (2, 3))])


def test_modules_on_other_devices() -> None:
    net = nn.Linear(2, 2).to("meta")
    script = torch.jit.trace(net, torch.ones(1, 2, device="meta"), check_trace=False)
    found = problems(lambda: relay.frontend.from_pytorch(script, [("x", (1, 2))]))
    assert {d.code for d in found} == {"torch-device"} and len(found) == 2


@pytest.mark.parametrize("content", [b"", b"no zip at all", b"PK\x03\x04" + bytes(40)])
def test_files_that_are_no_programs(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "net.pt2"
    path.write_bytes(content)
    with pytest.raises(AotcError, match=r"net\.pt2 cannot be read"):
        aotc.compile(path, output=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(AotcError, match=r"cannot read .*: No such file"):
        aotc.compile(tmp_path / "net.pt2")


def test_shapes_of_exported_programs_are_their_own() -> None:
    with pytest.raises(AotcError, match="states the shapes of its inputs itself"):
        aotc.compile(export(lambda x: x + 1), input_shapes={"x": (3, 3)})


def test_torch_is_optional(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    with pytest.raises(AotcError, match="torch, which is missing") as caught:
        aotc.compile(tmp_path / "net.pt2")
    assert "pip install torch" in str(caught.value)


def test_verify_names_what_is_wrong_with_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AotcError, match=r"cannot read .*: No such file"):
        verify(tmp_path / "net.pt2")
    (tmp_path / "net.pt2").write_bytes(b"no program")
    with pytest.raises(AotcError, match="cannot be read as an exported program"):
        verify(tmp_path / "net.pt2")
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    with pytest.raises(AotcError, match="torch, which is missing"):
        verify(tmp_path / "net.pt2")


def test_an_operator_names_the_arguments_that_it_does_not_take() -> None:
    schema = torch.ops.aten.pixel_shuffle.default._schema
    (found,) = problems(lambda: convert_operator_call(schema, [relay.var("x", shape=(4,)), 2], {}))
    assert found.code == "torch-node"
    assert found.message == "aten::pixel_shuffle does not take these arguments: (Tensor[(4), float32], 2)"


def test_the_fault_of_a_converter_of_the_caller_is_shown_as_it_is() -> None:
    def faulty(args: list[Any], types: list[str]) -> Any:
        raise ValueError(f"{len(args)} arguments are too many")

    custom = {"aten::relu": faulty}
    (found,) = problems(
        lambda: relay.frontend.from_pytorch(trace(torch.relu), [("x", (2, 3))], custom_convert_map=custom)
    )
    assert found.message == "the converter given for aten::relu raises ValueError: 1 arguments are too many"
