# SPDX-License-Identifier: Apache-2.0
"""Options of `aotc compile` that inspect passes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aotc.tir import TENSOR_PASS_NAMES
from aotc.tir.kernel_parser import parse_kernel
from tests.cli.invoke import DIGITS, Outcome, call


def compiled(*arguments: str | Path) -> Outcome:
    return call("compile", DIGITS, *arguments)


def test_report(tmp_path: Path) -> None:
    done = compiled("-o", tmp_path / "net", "--no-build", "--report", tmp_path / "report.html")
    assert done.code == 0
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    for word in ("FuseOps", "PlanMemory", "writing the C project", "digits.onnx", "arena of", "<h2>Memory</h2>"):
        assert word in page


def test_report_of_a_failure(tmp_path: Path) -> None:
    done = compiled("-o", tmp_path / "net", "--cc", "false", "--report", tmp_path / "report.html")
    assert done.code == 2
    assert "FuseOps" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert not (tmp_path / "net").exists()


def test_report_of_a_failure_that_has_no_place(tmp_path: Path) -> None:
    """Both errors are reported, and no partial project is left behind."""
    done = compiled("-o", tmp_path / "net", "--cc", "false", "--report", tmp_path / "net" / "report.html")
    assert done.code == 2 and "false failed" in done.err and "cannot write" in done.err
    assert not (tmp_path / "net").exists()
    done = call("compile", tmp_path / "missing.onnx", "-o", tmp_path / "net", "--report", tmp_path / "report.html")
    assert done.code == 2 and not (tmp_path / "report.html").exists()
    assert compiled("-o", tmp_path / "net", "--no-build", "--report", tmp_path / "net" / "report.html").code == 0
    assert (tmp_path / "net" / "report.html").exists()
    again = compiled("-o", tmp_path / "net", "--no-build", "--report", tmp_path / "net" / "report.html")
    assert again.code == 0 and (tmp_path / "net" / "report.html").exists()


def test_report_of_a_stopped_compilation(tmp_path: Path) -> None:
    done = compiled("--stop-after", "SimplifyInference", "--report", tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert done.code == 0 and ">stopped<" in page and ">failed<" not in page


def test_stopping_needs_no_compiler_and_writes_nothing(tmp_path: Path) -> None:
    done = compiled("--stop-after", "FuseOps", "--cc", "no-such-compiler", "-o", tmp_path / "net")
    assert done.code == 0 and "Primitive" in done.out
    done = compiled("--stop-after", "LambdaLift", "-o", tmp_path / "net")
    assert done.code == 2 and done.out == "" and "did not run" in done.err
    assert not (tmp_path / "net").exists()


def test_print_after(tmp_path: Path) -> None:
    done = compiled("-o", tmp_path / "net", "--no-build", "--print-after", "FuseOps", "--print-after", "LambdaLift")
    assert done.code == 0
    assert done.err.count("// after FuseOps") == 1 and "nn.conv2d" in done.err
    assert "these passes did not run: LambdaLift" in done.err


def test_stop_after(tmp_path: Path) -> None:
    done = compiled("--stop-after", "SimplifyInference")
    assert done.code == 0 and done.out.startswith("#[version") and "nn.conv2d" in done.out
    data = json.loads(compiled("--stop-after", "SimplifyInference", "--json").out)
    assert data["text"].strip() == done.out.strip()
    assert compiled("--stop-after", "SimplifyInference", "-q").out == done.out
    timed = compiled("--stop-after", "SimplifyInference", "--timing")
    assert timed.out == done.out and "SimplifyInference:" in timed.err
    done = compiled("-o", tmp_path / "net", "--stop-after", "LambdaLift", "--no-build")
    assert done.code == 2 and "did not run" in done.err


def test_tensor_passes_are_watched_too(tmp_path: Path) -> None:
    options = ("--target", "x86-64-v3", "--no-build", "--timing", "--check-passes", "--dump-ir", tmp_path / "ir")
    done = compiled("-o", tmp_path / "net", "--print-after", "DivideAmongThreads", *options)
    assert done.code == 0 and "PlanMemory: " in done.out
    assert '// after DivideAmongThreads\nprogram "digits" {' in done.err
    names = [path.name for path in sorted((tmp_path / "ir").glob("[0-9]*"))]
    # for GPUs, and where memory is short
    absent = {"LaunchOnDevice", "KeepInputsAndOutputs", "FuseLoops", "OrderSteps"}
    wanted = [name for name in TENSOR_PASS_NAMES if name not in absent]
    assert [name[4:-4] for name in names[-len(wanted) :]] == wanted
    (tmp_path / "ir" / "999_notes.txt").write_text("mine")
    assert compiled("-o", tmp_path / "net", *options).code == 0
    assert sorted(path.name for path in (tmp_path / "ir").glob("[0-9]*")) == [*names, "999_notes.txt"]


def test_stop_after_a_tensor_pass() -> None:
    done = compiled("--stop-after", "TakeViews")
    assert done.code == 0 and done.out.startswith('program "digits" {') and 'temp "t0"' in done.out
    assert parse_kernel(done.out.split("\n\n")[1]).name == "conv2d"


def test_what_was_printed_can_be_compiled(tmp_path: Path) -> None:
    done = compiled("--stop-after", "SimplifyInference", "--show-meta-data", "--dump-ir", tmp_path / "ir")
    (tmp_path / "half.relay").write_text(done.out, encoding="utf-8")
    dumped = sorted((tmp_path / "ir").glob("*SimplifyInference.relay"))
    for path in (tmp_path / "half.relay", *dumped):
        verified = call("verify", path, "--seeds", "1", "--cflags", "-O1")
        assert verified.code == 0, verified
    assert len(dumped) == 1
    plain = call("compile", tmp_path / "half.relay", "--print-after", "FuseOps", "-o", tmp_path / "net", "--no-build")
    assert plain.code == 0 and "#[metadata]" not in plain.err and "#[metadata]" in done.out


def test_times_of_a_quiet_compilation(tmp_path: Path) -> None:
    done = compiled("-o", tmp_path / "net", "--no-build", "-q", "--timing")
    assert (
        done.code == 0
        and done.out.split()[0] == "wall-clock"
        and "\npreparing " in done.out
        and "\noptimize: " in done.out
    )
    assert "library " not in done.out
    assert json.loads(compiled("-o", tmp_path / "net", "--no-build", "-q", "--timing", "--json").out)["timing"]


def test_disable_pass(tmp_path: Path) -> None:
    one = compiled("-o", tmp_path / "one", "--no-build", "--json")
    other = compiled("-o", tmp_path / "other", "--no-build", "--json", "--disable-pass", "AlterOpLayout")
    passes = [json.loads(o.out)["metadata"]["passes"] for o in (one, other)]
    assert "AlterOpLayout" in passes[0] and "AlterOpLayout" not in passes[1]


def test_check_passes(tmp_path: Path) -> None:
    done = compiled("-o", tmp_path / "net", "--no-build", "--check-passes")
    assert done.code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--print-after", "FuseOp"), "did you mean 'FuseOps'"),
        (("--stop-after", "Nothing"), "no pass called 'Nothing'"),
        (("--disable-pass", "Fuse"), "FuseOps"),
        (("--disable-pass", "FuseOps"), "makes the kernels"),
        (("--disable-pass", "PlanMemory"), "makes the memory plan"),
        (("--disable-pass", "VectorizeLoop"), "VectorizeLoops"),
        (("--config", "relay.AlterOpLayout.growth=2"), "relay.AlterOpLayout.max_growth"),
        (("--config", "relay.AlterOpLayout.max_growth=much"), "to have type float"),
        (("--config", "relay.AlterOpLayout.max_growth=true"), "to have type float but get bool"),
        (("--config", "max_growth"), "KEY=VALUE"),
        (("--report", "missing/folder/report.html"), "there is no directory missing/folder"),
        (("--report", str(DIGITS)), "it is the model"),
        (("--report", "."), "it is a directory"),
    ],
)
def test_refusals(tmp_path: Path, arguments: tuple[str, str], message: str) -> None:
    done = compiled("-o", tmp_path / "net", "--no-build", *arguments)
    assert done.code == 2
    assert message in done.err


@pytest.mark.parametrize("command", ["inspect", "verify", "bench", "tune"])
def test_limits_of_every_command_that_reads_models(command: str) -> None:
    done = call(command, DIGITS, "--config", "compile.max_nodes=2")
    assert done.code == 2 and "--config compile.max_nodes=3" in done.err
    unknown = call(command, DIGITS, "--config", "compile.nodes=2")
    assert unknown.code == 2 and "compile.max_nodes" in unknown.err
