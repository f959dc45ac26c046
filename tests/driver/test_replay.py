# SPDX-License-Identifier: Apache-2.0
"""A failing pass or kernel leaves a file that reproduces the failure; other files are refused."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import aotc
from aotc.cli.main import main
from aotc.driver.failure_replay import rerun_failed_pass_or_kernel, write_report_on_internal_error
from aotc.driver.toolchain import resolve_target
from aotc.ir.diagnostics import AotcError
from aotc.ir.instrument import pass_instrument
from aotc.ir.op import PrecisionTreatment
from aotc.ir.transform import PassContext, module_pass
from aotc.relay.backend import function_to_kernel
from aotc.relay.module import IRModule
from aotc.relay.op.conv import conv2d
from aotc.relay.op.elementwise_unary import relu
from aotc.relay.structural_equality import structural_equal
from aotc.relay.text.parser import parse
from aotc.relay.transform.convert_layout import ConvertLayout
from aotc.relay.transform.fuse_ops import FuseOps
from aotc.relay.transform.pack_constant_weights import AlterOpLayout
from aotc.relay.transform.select_layout import SelectLayout
from aotc.relay.transform.to_mixed_precision import ToMixedPrecision
from aotc.tir.passes import PlanMemory
from aotc.tir.target import TARGETS, Target, get_target
from tests.cli.invoke import DIGITS, call, refused


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of failure reports; a shell needs quotes for its path."""
    reports = tmp_path / "my reports"
    reports.mkdir()
    monkeypatch.setenv("AOTC_REPLAY_DIR", str(reports))
    yield reports


def broken(*_: object, **__: object) -> Any:
    raise ValueError("a fault of the compiler")


def failing(folder: Path, **options: Any) -> tuple[AotcError, Path]:
    """The error of a compilation that fails, and the file that it leaves."""
    with pytest.raises(AotcError) as caught:
        aotc.compile(DIGITS, build=False, cache=False, **options)
    (file,) = folder.glob("aotc-*.json")
    assert f"`aotc replay {shlex.quote(str(file))}`" in caught.value.diagnostics[0].hint
    assert isinstance(caught.value.__cause__, ValueError)
    return caught.value, file


@pytest.mark.parametrize("kind", [AlterOpLayout, FuseOps])
def test_a_pass_that_fails(kind: Any, folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, "transform", broken)
        error, file = failing(folder, target="x86-64-v3", config={"relay.FuseOps.max_depth": 7})
        assert f"pass {kind.name} failed: ValueError: a fault of the compiler" in str(error)
        with pytest.raises(ValueError, match="a fault of the compiler"):
            rerun_failed_pass_or_kernel(file)
        outcome = CliRunner().invoke(main, ["replay", str(file), "--json"])
        assert outcome.exit_code == 1 and json.loads(outcome.stdout)["fails"]
        assert "Traceback" in outcome.stderr and "a fault of the compiler" in outcome.stderr
    data = json.loads(file.read_text())
    assert data["context"]["config"] == {"relay.FuseOps.max_depth": 7, "compile.cache": False}
    again = call("replay", file)
    assert again.code == 0
    step = AlterOpLayout(resolve_target("x86-64-v3")) if kind is AlterOpLayout else FuseOps()
    with PassContext(3, config=data["context"]["config"]):
        assert structural_equal(parse(again.out), step(parse(data["program"])))


def test_a_kernel_that_fails(folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(function_to_kernel, "schedule", broken)
        error, file = failing(folder, target="host")
        assert "kernel conv2d failed" in str(error)
        with pytest.raises(ValueError, match="a fault of the compiler"):
            rerun_failed_pass_or_kernel(file)
    assert 'kernel "conv2d"' in rerun_failed_pass_or_kernel(file)


def test_options_of_passes_come_back(folder: Path) -> None:
    layouts = {"nn.conv2d": ["NHWC", "default"]}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ConvertLayout, "transform", broken)
        broken_pass = ConvertLayout(layouts)
        program = IRModule({"main": relu_of_convolution()})

        @pass_instrument
        class Convert:
            def run_before_pass(self, module: Any, info: Any) -> None:
                if info.name == "SimplifyInference":
                    broken_pass(program)

        # a pass that an instrument runs is a pass, too
        _, file = failing(folder, instruments=[Convert()])
    assert 'data_layout="NHWC"' in rerun_failed_pass_or_kernel(file)


def relu_of_convolution() -> Any:
    from aotc.ir.types import TensorType
    from aotc.relay.expr import Function, Var

    x, w = Var("x", TensorType((1, 3, 8, 8))), Var("w", TensorType((4, 3, 3, 3)))
    return Function([x, w], relu(conv2d(x, w, channels=4, kernel_size=(3, 3))))


def test_faults_of_others_are_theirs(folder: Path) -> None:
    """Instruments and passes of users raise what they raise; the latter cannot be made again from a file."""

    @pass_instrument
    class Raises:
        def run_before_pass(self, module: Any, info: Any) -> None:
            raise ValueError("an instrument's own")

    with pytest.raises(ValueError, match="an instrument's own"):
        aotc.compile(DIGITS, build=False, instruments=[Raises()])

    @module_pass(opt_level=0, name="Mine")
    def mine(module: IRModule, ctx: PassContext) -> IRModule:
        raise ValueError("a pass's own")

    @pass_instrument
    class Runs:
        def run_before_pass(self, module: Any, info: Any) -> None:
            if info.name == "FuseOps":
                mine(module)

    with pytest.raises(AotcError, match="pass Mine failed") as caught:
        aotc.compile(DIGITS, build=False, instruments=[Runs()])
    assert "no file shows this again: Mine is not a pass of aotc" in caught.value.diagnostics[0].hint
    assert not list(folder.iterdir())


def test_others_cannot_read_what_is_left(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds the model."""
    monkeypatch.delenv("AOTC_REPLAY_DIR")
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    monkeypatch.setattr(FuseOps, "transform", broken)
    with pytest.raises(AotcError, match="aotc replay"):
        aotc.compile(DIGITS, output=folder / "net", build=False)
    (file,) = folder.glob("aotc-replay-*/aotc-pass-FuseOps-*.json")
    assert file.parent.stat().st_mode & 0o077 == 0


def test_a_tensor_pass_that_fails(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PlanMemory, "run", broken)
    with pytest.raises(AotcError, match="pass PlanMemory failed: ValueError: a fault of the compiler") as caught:
        aotc.compile(DIGITS, build=False)
    expected = "a fault of aotc, please report it with the model; tensor passes work on kernels, and replay files hold"
    assert expected in caught.value.diagnostics[0].hint
    assert not list(folder.iterdir())


def test_a_folder_that_cannot_be_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AOTC_REPLAY_DIR", str(folder / "missing"))
    monkeypatch.setattr(FuseOps, "transform", broken)
    with pytest.raises(AotcError, match="cannot keep what shows it"):
        aotc.compile(DIGITS, build=False)


@pytest.mark.parametrize("name", TARGETS)
def test_options_of_every_target_come_back(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pass that is made again from the file has an equal target, memories and budgets included."""
    module = IRModule({"main": relu_of_convolution()})
    made: list[Target] = []
    with monkeypatch.context() as patch:
        patch.setattr(SelectLayout, "transform", broken)
        with (
            pytest.raises(AotcError, match="pass SelectLayout failed"),
            write_report_on_internal_error(),
            PassContext(3),
        ):
            SelectLayout(get_target(name))(module)
    (file,) = folder.glob("aotc-pass-SelectLayout-*.json")
    monkeypatch.setattr(SelectLayout, "transform", lambda self, function, *_: [function, made.append(self.target)][0])
    assert "nn.conv2d" in rerun_failed_pass_or_kernel(file)
    assert made == [get_target(name)]


def test_enumerations_among_options_come_back(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = ToMixedPrecision("bfloat16", conversions={"nn.conv2d": PrecisionTreatment.NEVER})
    made: list[ToMixedPrecision] = []
    with monkeypatch.context() as patch:
        patch.setattr(ToMixedPrecision, "transform", broken)
        with pytest.raises(AotcError, match="pass ToMixedPrecision failed"), write_report_on_internal_error():
            step(IRModule({"main": relu_of_convolution()}))
    (file,) = folder.glob("aotc-pass-ToMixedPrecision-*.json")
    monkeypatch.setattr(ToMixedPrecision, "transform", lambda self, function, *_: [function, made.append(self)][0])
    rerun_failed_pass_or_kernel(file)
    assert made == [step] and type(made[0].conversions["nn.conv2d"]) is PrecisionTreatment


CONTEXT: dict[str, Any] = {"opt_level": 3, "required_pass": [], "disabled_pass": [], "config": {}}
CHANGES: dict[str, Any] = {
    "another version": ({"version": "0.0.1"}, "is of aotc 0.0.1"),
    "no version": ({"version": None}, "names no version of aotc, this is "),
    "another format": ({"format": "else"}, "is not a failure report written by a failed pass or kernel"),
    "an unknown pass": ({"name": "NoSuchPass"}, "is damaged: .*NoSuchPass"),
    "an unknown option": ({"options": ["nothing", 1, [3, 0, 1], [0, 2]]}, "is damaged: .*nothing"),
    "options of another kind": ({"options": 5}, "is damaged: "),
    "a kernel without a target": ({"stage": "kernel"}, "is damaged: "),
    "a program that is none": ({"program": "def @main("}, "is damaged: "),
    "an empty program": ({"program": None}, "is damaged: "),
    "a wrong level": ({"context": CONTEXT | {"opt_level": "x"}}, "is damaged: "),
    "an unknown key": ({"context": CONTEXT | {"config": {"a": 1}}}, "is damaged: "),
    "a list of context": ({"context": []}, "is damaged: "),
    **{f"no {name}": ({name: ...}, f"is damaged: it has no {name}") for name in ("stage", "context", "program")},
}


@pytest.mark.parametrize("name", CHANGES)
def test_files_that_are_damaged(name: str, folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FuseOps, "transform", broken)
        _, file = failing(folder)
    change, words = CHANGES[name]
    changed = json.loads(file.read_text()) | change
    file.write_text(json.dumps({key: value for key, value in changed.items() if value is not ...}))
    with pytest.raises(AotcError, match=words):
        rerun_failed_pass_or_kernel(file)
    assert str(file) in refused("replay", file)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000])
def test_files_that_are_none(content: bytes, folder: Path) -> None:
    (folder / "file").write_bytes(content)
    assert "is not a failure report written by a failed pass or kernel" in refused("replay", folder / "file")
    assert "cannot read" in refused("replay", folder / "missing")
    assert "cannot read" in refused("replay", folder)
