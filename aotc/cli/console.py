# SPDX-License-Identifier: Apache-2.0
"""Console output of commands: progress and errors on standard error, results on standard output.

with report_errors_and_exit(quiet=False, as_json=False, verbose=0) as out:
    out.report_stage("importing the model")
    out.print_result({"path": "build/net"}, lambda data: [data["path"]])
"""

import json
import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from rich.console import Console, RenderableType
from rich.live import Live
from rich.logging import RichHandler
from rich.markup import escape
from rich.progress import MofNCompleteColumn, Progress
from rich.spinner import Spinner

from aotc.cli.options_in_messages import spell_option_references_for_command
from aotc.driver.temporary_folders import open_output_file
from aotc.ir.diagnostics import AotcError, diagnostic_texts
from aotc.ir.terminal_safe_text import escape_and_shorten_unsafe_lines, escape_texts_in_nested_data, escape_unsafe_text

#: Result of a command as --json prints it, and the parts printed otherwise.
JsonObject: TypeAlias = Mapping[str, Any]
RenderedParts: TypeAlias = Iterable[RenderableType]
#: Width of output that is not a terminal: large enough that no table is folded.
PIPE_WIDTH_COLUMNS = 1_000_000
#: Least time between two updates of the item that a terminal shows.
REFRESH_INTERVAL_SECONDS = 0.08
#: Exit code for errors that the user can correct.
USER_ERROR_EXIT_CODE = 2


class Reporter:
    """Prints the progress, results and errors of one command."""

    def __init__(self, quiet: bool, as_json: bool) -> None:
        self.quiet = quiet
        self.as_json = as_json
        self.console = _make_result_console()
        self.errors = Console(stderr=True, highlight=False, soft_wrap=True)
        self._silent = quiet or as_json or not self.errors.is_terminal
        # refreshed here, not by a thread: `aotc.ir.parallel_memo` forks no process that has several
        self._spinner = Spinner("dots")
        self._status = Live(self._spinner, console=self.errors, auto_refresh=False, transient=True)
        self._refreshed = 0.0
        self._stage = ""
        self._began = 0.0

    def report_stage(self, name: str) -> None:
        """Report on standard error that a stage begins: as a status on a terminal, else as a line
        of its own.
        """
        name = spell_option_references_for_command(name)
        logging.getLogger("aotc").info(name)
        self._stage, self._began = name, time.monotonic()
        if not self._silent:
            self._spinner.update(text=escape(name))
            self._status.start()
            self._status.refresh()
        elif not (self.quiet or self.as_json):
            self.print_to_stderr(f"aotc: {name}")

    def show_current_item(self, item: str) -> None:
        """Show on a terminal which item of the current stage is being processed."""
        if not self._silent:
            self._spinner.update(text=escape(f"{self._stage}: {escape_unsafe_text(item)}"))
            if (now := time.perf_counter()) - self._refreshed >= REFRESH_INTERVAL_SECONDS:
                self._refreshed = now
                self._status.refresh()

    def show_progress(self, done: int, total: int, item: str) -> None:
        """Show on a terminal the number of finished items of the stage, the current item and the
        time left.

        The time left is estimated from the mean time of the finished items, after the first second.
        """
        spent = time.monotonic() - self._began
        left = f", about {spent / done * (total - done):.0f} s left" if done and spent >= 1 else ""
        self.show_current_item(f"{done} of {total} ({item}{left})")

    @contextmanager
    def progress_bar(self, name: str) -> Iterator[Callable[[int, int], None]]:
        """Context manager: show a progress bar on a terminal, or the name as a line of its own elsewhere; yields a
        function of the numbers of finished and of all items.
        """
        if self._silent and not (self.quiet or self.as_json):
            self.print_to_stderr(f"aotc: {name}")
        columns = (*Progress.get_default_columns(), MofNCompleteColumn())
        with Progress(*columns, console=self.errors, disable=self._silent, transient=True) as progress:
            task = progress.add_task(name, total=None)
            yield lambda done, total: progress.update(task, completed=done, total=total)

    def stop_progress_display(self) -> None:
        """Remove the progress display of a command from the terminal."""
        self._status.stop()

    def print_result(self, data: JsonObject, render: Callable[[JsonObject], RenderedParts]) -> None:
        """Print a result as JSON, or formatted by `render`, or not at all with --quiet. Long texts,
        which may come from a model, are shortened unless they are printed as JSON.
        """
        self.stop_progress_display()
        shown = spell_option_references_for_command(data)
        if self.as_json:
            sys.stdout.write(_format_json(shown))
        elif not self.quiet:
            for part in render(escape_texts_in_nested_data(shown)):
                self.console.print(spell_option_references_for_command(part))

    def print_text_or_json(self, data: JsonObject, text: str) -> None:
        """Print requested text without wrapping and markup, also with --quiet; or `data` as JSON."""
        self.stop_progress_display()
        sys.stdout.write(_format_json(spell_option_references_for_command(data)) if self.as_json else text)

    def print_to_stderr(self, text: str) -> None:
        """Print text to standard error without wrapping and markup."""
        self.stop_progress_display()
        sys.stderr.write(f"{text}\n")

    def write_json_file(self, path: Path, data: JsonObject) -> None:
        """Write a result to a file as JSON; AotcError (code "output") on failure."""
        with open_output_file(path, "output") as file:
            file.write(_format_json(spell_option_references_for_command(data)).encode())

    def print_error(self, error: AotcError) -> None:
        """Print every diagnostic of an error, with --json also as JSON on standard output; options
        are named as the command has them.
        """
        self.stop_progress_display()
        diagnostics = [d.map_texts(spell_option_references_for_command) for d in error.diagnostics]
        if self.as_json:
            problems = [
                {"code": d.code, "message": d.message, "at": str(d.span or ""), "notes": d.notes, "hint": d.hint}
                for d in diagnostics
            ]
            sys.stdout.write(_format_json({"errors": problems}))
        for text in diagnostic_texts(diagnostics):
            self.errors.print(f"[bold red]error[/]: {escape(text)}")


def _make_result_console() -> Console:
    """Return the console for results, where tables are as wide as their contents if the output is
    not a terminal.
    """
    console = Console(highlight=False, soft_wrap=True, markup=False)
    if not console.is_terminal:
        console.width = PIPE_WIDTH_COLUMNS
    return console


def _format_json(data: JsonObject) -> str:
    return json.dumps(data, indent=2, default=str) + "\n"


class _SafeTextFormatter(logging.Formatter):
    """Formats log records; long lines, which may come from a model, are shortened."""

    def format(self, record: logging.LogRecord) -> str:
        return escape_and_shorten_unsafe_lines(super().format(record))


@contextmanager
def report_errors_and_exit(quiet: bool = False, as_json: bool = False, verbose: int = 0) -> Iterator[Reporter]:
    """Context manager: yield a reporter for one command.

    An AotcError, an OSError of a file, or a MemoryError in the block is printed, and ends the
    program with exit code 2.
    """
    level = logging.WARNING if verbose == 0 else logging.INFO if verbose == 1 else logging.DEBUG
    reporter = Reporter(quiet, as_json)
    handler = RichHandler(console=reporter.errors, show_path=False, show_time=False)
    logging.basicConfig(level=level, handlers=[handler])
    handler.setFormatter(_SafeTextFormatter("%(message)s"))
    try:
        yield reporter
    except AotcError as error:
        reporter.print_error(error)
        raise SystemExit(USER_ERROR_EXIT_CODE) from None
    except OSError as error:
        if error.filename is None:
            # an error of a stream, not of a file
            raise
        reporter.print_error(AotcError("file", f"cannot use {error.filename}: {error.strerror}"))
        raise SystemExit(USER_ERROR_EXIT_CODE) from None
    except MemoryError:
        reporter.print_error(AotcError("memory", "not enough memory for this model"))
        raise SystemExit(USER_ERROR_EXIT_CODE) from None
    finally:
        reporter.stop_progress_display()
