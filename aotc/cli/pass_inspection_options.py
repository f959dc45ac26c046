# SPDX-License-Identifier: Apache-2.0
"""Options of `aotc compile` that inspect passes: they become pass instruments and a report.

watch = PassInspection(out, model, output, facts, report=Path("out.html"), print_after=("FuseOps",), ...)
with watch.write_compilation_report_at_end() as stage:
    compiled_model = compile(model, instruments=watch.requested_pass_instruments(), progress=stage)
    watch.add_model_to_compilation_report(compiled_model)
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple

from aotc.cli.console import Reporter
from aotc.driver.pass_observers import NumericCheck, ProgramVerifier, TextAfter, dump_ir, require_known_passes
from aotc.driver.pipeline import WRITING, CompiledModel
from aotc.ir import AotcError, PassInfo, PassInstrument
from aotc.ir.instrument import ALL_LEVELS
from aotc.reporting.compile_report import PassReport

PASS_INSPECTION_OPTIONS: Final = ("report", "print_after", "stop_after", "check_passes", "dump", "show_meta_data")
#: Hint that explains why a pass may not run.
_PASS_NOT_RUN_HINT: Final = (
    "-O (3 is the default), the model and the target decide which passes run; "
    "some run at level 4 only, which a PassContext in Python has"
)


class _Clocks(NamedTuple):
    """Seconds since some point in the past: wall-clock time, processor time of this process, and
    processor time of its child processes that have ended.
    """

    wall: float
    processor: float
    children: float


def _read_clocks() -> _Clocks:
    times = os.times()
    return _Clocks(time.perf_counter(), time.process_time(), times.children_user + times.children_system)


@dataclass
class StageTimes:
    """Times of the stages of a compilation, including the run of the C compiler: wall-clock time,
    processor time of aotc, and processor time of its child processes, which are the C compiler and
    the processes among which kernels are divided.

    A stage ends when the next one begins, so the times add up to the total.
    """

    begins: list[tuple[str, _Clocks]] = field(default_factory=lambda: [("preparing", _read_clocks())])

    def wrap_callback_to_record_stage_times(self, callback: Callable[[str], None]) -> Callable[[str], None]:
        """Return a function that records the times when a stage begins and then calls `callback`
        with its name.
        """

        def record_and_show_stage(stage_name: str) -> None:
            self.begins.append((stage_name, _read_clocks()))
            callback(stage_name)

        return record_and_show_stage

    def stage_time_rows(self) -> list[dict[str, Any]]:
        """Return the name and the seconds of each stage, in order; the last stage ends at the time
        of the call.
        """
        ends = [*(began for _, began in self.begins[1:]), _read_clocks()]
        return [
            {
                "stage": name,
                "seconds": end.wall - begin.wall,
                "processor_seconds": end.processor - begin.processor,
                "child_processor_seconds": end.children - begin.children,
            }
            for (name, begin), end in zip(self.begins, ends, strict=True)
        ]

    def __str__(self) -> str:
        rows = self.stage_time_rows()
        keys = ("seconds", "processor_seconds", "child_processor_seconds")
        rows.append({"stage": "all stages", **{key: sum(row[key] for row in rows) for key in keys}})
        lines = [f"{'':24} {'wall-clock':>11}  {'aotc':>11}  {'child processes':>15}"]
        for row in rows:
            wall, processor, children = (row[key] for key in keys)
            lines.append(f"{row['stage']:24} {wall:9.3f} s  {processor:9.3f} s  {children:13.2f} s")
        return "\n".join([*lines, ""])


class PassProgress(PassInstrument):
    """Instrument that shows the name of each pass when it begins."""

    levels: ClassVar[frozenset[str]] = ALL_LEVELS

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show

    def run_before_pass(self, module: Any, info: PassInfo) -> None:
        self._show(info.name)


class _Stopped(Exception):
    """Raised to stop the compilation after the pass named by --stop-after; holds the text of the
    program.
    """


@dataclass
class PassInspection:
    """The pass inspection of one `aotc compile`.

    facts      facts for the head of the report
    stopped    text of the program after the pass of --stop-after; None if the compilation was not stopped

    The other fields are values of options.  Raises AotcError for unknown pass names, and for a
    report path that cannot be written.
    """

    out: Reporter
    model: Path
    output: Path | None
    facts: dict[str, str]
    report: Path | None
    print_after: tuple[str, ...]
    stop_after: str | None
    check_passes: bool
    dump: Path | None
    show_meta_data: bool
    stopped: str | None = None

    def __post_init__(self) -> None:
        self._stops = [self.stop_after] if self.stop_after is not None else []
        require_known_passes([*self.print_after, *self._stops])
        if self.report is not None:
            _require_usable_report_path(self.report, self.model, self.output)
        self._report = PassReport(str(self.model), list(self.facts.items()))
        self._print = TextAfter(self.print_after, self._print_program_after_pass, self.show_meta_data)

    def requested_pass_instruments(self) -> list[Any]:
        """Return the pass instruments that the options request."""
        instruments: list[Any] = [self._report] if self.report is not None else []
        instruments += [dump_ir(self.dump, True, self.show_meta_data)] if self.dump is not None else []
        instruments += [self._print] if self.print_after else []
        instruments += [NumericCheck(), ProgramVerifier()] if self.check_passes else []
        instruments += (
            [TextAfter(self._stops, _raise_stopped_with_program_text, self.show_meta_data)] if self._stops else []
        )
        return instruments

    def _print_program_after_pass(self, pass_name: str, program_text: str) -> None:
        self.out.print_to_stderr(f"// after {pass_name}\n{program_text}\n")

    def add_model_to_compilation_report(self, model: CompiledModel) -> CompiledModel:
        """Add the compiled model to the report, if one is requested; return the model."""
        if self.report is not None:
            self._report.begin_stage("")
            self._report.add_compiled_model(model)
        return model

    @contextmanager
    def write_compilation_report_at_end(self) -> Iterator[Callable[[str], None]]:
        """Context manager: yield a function to be called with each stage; write the report at the
        end, also after errors.
        """

        def report_stage_or_raise_if_pass_missed(stage_name: str) -> None:
            if stage_name == WRITING and self._stops:
                # all passes have run
                text = f"the pass {self.stop_after!r} did not run"
                raise AotcError("stop-after", text, hint=_PASS_NOT_RUN_HINT)
            self.out.report_stage(stage_name)
            self._report.begin_stage(stage_name)

        try:
            yield report_stage_or_raise_if_pass_missed
        except _Stopped as stop:
            self.stopped = str(stop)
        except AotcError as error:
            self._write_requested_compilation_report(error)
            raise
        self._write_requested_compilation_report(None)
        if self._print.missing:
            self.out.print_to_stderr(f"these passes did not run: {', '.join(sorted(self._print.missing))}")

    def _write_requested_compilation_report(self, failure: AotcError | None) -> None:
        """Write the report, if one is requested and there are passes; report an error of writing
        along with `failure`.
        """
        if self.report is None or (failure is not None and not self._report.passes):
            return
        self._report.begin_stage("")
        if self.stopped is not None:
            self._report.unfinished = "stopped"
        try:
            self._report.save_html(self.report)
        except AotcError as error:
            raise AotcError.collect([*(failure.diagnostics if failure else ()), *error.diagnostics]) from failure


def _raise_stopped_with_program_text(_: str, program_text: str) -> None:
    raise _Stopped(program_text)


def _require_usable_report_path(report: Path, model: Path, output: Path | None) -> None:
    """Raise AotcError if a report cannot be written to its path, or would replace the model or the
    project.
    """
    place = report.resolve()
    problems = {
        "it is a directory": report.is_dir(),
        f"there is no directory {report.parent}": not report.parent.is_dir() and report.parent != output,
        "it is the model": place == model.resolve(),
        "it is the directory of the project": output is not None and place == output.resolve(),
    }
    for problem in (text for text, condition in problems.items() if condition):
        raise AotcError("report", f"cannot write {report}: {problem}")
