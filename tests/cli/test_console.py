# SPDX-License-Identifier: Apache-2.0
"""Progress on the error stream, and tables on outputs that are not terminals."""

from __future__ import annotations

import io
import json
import threading
from pathlib import Path

import pytest

from aotc.cli.console import Reporter
from aotc.cli.pass_inspection_options import StageTimes
from aotc.driver.compile import compile
from aotc.ir import listen_to_progress
from tests.cli.invoke import DIGITS, call, relu


def test_tables_are_not_folded_in_pipes(tmp_path: Path) -> None:
    long = "layer_" * 60
    outcome = call("inspect", relu(tmp_path / "m.onnx", 2, 3, name=long))
    assert outcome.code == 0
    assert long in outcome.out


def test_the_times_of_stages_add_up() -> None:
    times = StageTimes()
    shown: list[str] = []
    begin = times.wrap_callback_to_record_stage_times(shown.append)
    begin("importing")
    begin("building")
    rows = times.stage_time_rows()
    assert [row["stage"] for row in rows] == ["preparing", "importing", "building"] and shown == [
        "importing",
        "building",
    ]
    starts = [began for _, began in times.begins]
    assert sum(row["seconds"] for row in rows[:-1]) == pytest.approx(starts[-1].wall - starts[0].wall)
    assert sum(row["processor_seconds"] for row in rows[:-1]) == pytest.approx(
        starts[-1].processor - starts[0].processor
    )


def test_the_c_compiler_is_a_stage_with_a_time(tmp_path: Path) -> None:
    outcome = call("compile", DIGITS, "-o", tmp_path / "net", "--cflags=-O1", "--timing", "--json")
    stages = {row["stage"]: row for row in json.loads(outcome.out)["stages"]}
    assert stages["compiling the C project"]["seconds"] > 0
    assert stages["compiling the C project"]["child_processor_seconds"] > 0


def test_items_of_stages_are_reported(tmp_path: Path) -> None:
    seen: list[tuple[int, int, str]] = []
    with listen_to_progress(lambda *item: seen.append(item)):
        compile(DIGITS, output=tmp_path / "net", cflags=["-O1"], cache=False)
    kernels = [item for item in seen if item[2].startswith("VectorizeLoops, kernel ")]
    assert [k for k, _, _ in kernels] == list(range(kernels[0][1]))
    files = [item for item in seen if item[2].endswith((".c", ".S"))]
    assert files[-1][0] == files[-1][1] == len(files) - 1


def test_the_status_on_a_terminal_needs_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    reporter, stream = Reporter(quiet=False, as_json=False), io.StringIO()
    monkeypatch.setattr(reporter, "_silent", False)
    monkeypatch.setattr(reporter.errors, "_force_terminal", True)
    monkeypatch.setattr(reporter.errors, "is_interactive", True)
    monkeypatch.setattr(reporter.errors, "file", stream)
    threads = threading.enumerate()
    reporter.report_stage("lowering")
    reporter.show_current_item("kernel 7")
    assert threading.enumerate() == threads  # or no process would be forked
    reporter.stop_progress_display()
    assert "lowering" in stream.getvalue()
    assert "lowering: kernel 7" in stream.getvalue()


def test_progress_names_the_item_and_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    texts: list[str] = []
    reporter = Reporter(quiet=False, as_json=False)
    monkeypatch.setattr(reporter, "_silent", False)
    monkeypatch.setattr(reporter._spinner, "update", lambda *, text: texts.append(text))
    monkeypatch.setattr(reporter._status, "start", lambda: None)
    clock = iter([100.0, 100.5, 110.0])
    monkeypatch.setattr("aotc.cli.console.time.monotonic", lambda: next(clock))
    reporter.report_stage("compiling")
    reporter.show_progress(1, 6, "a.c")
    reporter.show_progress(2, 6, "b.c")
    assert texts == ["compiling", "compiling: 1 of 6 (a.c)", "compiling: 2 of 6 (b.c, about 20 s left)"]


def test_stages_are_lines_in_pipes_and_nothing_where_output_is_data(tmp_path: Path) -> None:
    model = relu(tmp_path / "m.onnx", 2, 3)
    assert "aotc: importing the model\n" in call("compile", model, "-o", tmp_path / "a", "--no-build").err
    for option in ("--quiet", "--json"):
        assert call("compile", model, "-o", tmp_path / option, "--no-build", option).err == ""


@pytest.mark.parametrize(
    ("quiet", "as_json", "shown"), [(False, False, "aotc: measuring\n"), (True, False, ""), (False, True, "")]
)
def test_a_progress_bar_is_a_line_in_pipes(
    quiet: bool, as_json: bool, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with Reporter(quiet=quiet, as_json=as_json).progress_bar("measuring") as advance:
        advance(1, 2)
    assert capsys.readouterr().err == shown
