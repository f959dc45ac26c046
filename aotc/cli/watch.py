# SPDX-License-Identifier: Apache-2.0
"""The options of `aotc compile` that look at passes: flags in, instruments and a report out.

watch = Watch(model, report=Path("out.html"), print_after=("FuseOps",), stop_after=None, check_passes=False)
with watch.writing(out) as stage:
    compile(model, instruments=watch.instruments(out), progress=stage)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click

from aotc.cli.console import Reporter
from aotc.driver.observe import NumericCheck, PrintAfter, StopAfter, Stopped, require_passes
from aotc.driver.report import PassReport
from aotc.ir.diagnostics import AotcError

WATCH_OPTIONS: Final = ("report", "print_after", "stop_after", "check_passes")


class Watch:
    """What a command is to tell about the passes.

    stopped    the text of the program at the pass after which it was to stop; None if it did not
    """

    def __init__(
        self,
        model: Path,
        *,
        report: Path | None,
        print_after: tuple[str, ...],
        stop_after: str | None,
        check_passes: bool,
    ) -> None:
        self.report_file = report
        self.stop_after = stop_after
        self.stopped: str | None = None
        self._check = check_passes
        self._names = print_after
        self._report = PassReport(str(model)) if report is not None else None
        self._print = PrintAfter(print_after, lambda text: click.echo(text, err=True))

    def instruments(self, out: Reporter) -> list[Any]:
        """The instruments that the options ask for.  Raises AotcError for names that no pass has."""
        stop = () if self.stop_after is None else (self.stop_after,)
        require_passes([*self._names, *stop])
        found: list[Any] = [self._report] if self._report is not None else []
        found += [self._print] if self._names else []
        found += [NumericCheck()] if self._check else []
        return [*found, *map(StopAfter, stop)]

    @contextmanager
    def writing(self, out: Reporter) -> Iterator[Callable[[str], None]]:
        """What is told each stage as it begins; the report is written at the end, also of a compilation that failed."""

        def stage(name: str) -> None:
            out.stage(name)
            if self._report is not None:
                self._report.stage(name)

        try:
            yield stage
        except Stopped as stop:
            self.stopped = stop.text
        finally:
            if self._report is not None and self.report_file is not None:
                self._report.stage("")
                self._report.save_html(self.report_file)
        if self._names and self._print.missing:
            out.errors.print(f"these passes did not run: {', '.join(sorted(self._print.missing))}", markup=False)
        if self.stop_after is not None and self.stopped is None:
            raise AotcError("stop-after", f"the pass {self.stop_after!r} did not run", hint="-O 3 runs most passes")
