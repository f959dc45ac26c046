# SPDX-License-Identifier: Apache-2.0
"""What commands print: progress on the terminal's error stream, results on its output, errors once.

with reporting(quiet=False, as_json=False, verbose=0) as out:
    out.stage("importing the model")
    out.result({"path": "build/net"}, lambda data: [data["path"]])
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
from rich.logging import RichHandler
from rich.markup import escape
from rich.progress import MofNCompleteColumn, Progress

from aotc.driver.temporary_folders import output_file
from aotc.ir.diagnostics import AotcError, texts_of

#: What a command found, as --json prints it; what is printed of it else, part by part.
Data: TypeAlias = Mapping[str, Any]
Shown: TypeAlias = Iterable[RenderableType]
#: Columns of an output that is no terminal: no table is folded there.
PIPE_WIDTH = 1_000_000
#: Exit code for what the user can put right.
USER_ERROR = 2


class Reporter:
    """Where one command's messages go."""

    def __init__(self, quiet: bool, as_json: bool) -> None:
        self.quiet = quiet
        self.as_json = as_json
        self.console = _console()
        self.errors = Console(stderr=True, highlight=False, soft_wrap=True)
        self._silent = quiet or as_json or not self.errors.is_terminal
        self._status = self.errors.status("")
        self._stage = ""
        self._began = 0.0

    def stage(self, name: str) -> None:
        """Show on the error stream that a stage of the work begins: where it is no terminal, in a line of its own."""
        logging.getLogger("aotc").info(name)
        self._stage, self._began = name, time.monotonic()
        if not self._silent:
            self._status.update(escape(name))
            self._status.start()
        elif not (self.quiet or self.as_json):
            self.note(f"aotc: {name}")

    def step(self, item: str) -> None:
        """Show which part of the stage the work is at, on a terminal."""
        if not self._silent:
            self._status.update(escape(f"{self._stage}: {item}"))

    def progress(self, done: int, total: int, item: str) -> None:
        """Show, on a terminal, how many items of the stage are done, the item under way and the time left.

        The time is estimated from the mean time of the items that are done, from one second on.
        """
        spent = time.monotonic() - self._began
        left = f", about {spent / done * (total - done):.0f} s left" if done and spent >= 1 else ""
        self.step(f"{done} of {total} ({item}{left})")

    @contextmanager
    def bar(self, name: str) -> Iterator[Callable[[int, int], None]]:
        """A progress bar on a terminal; what is yielded is told how many are done, and of how many."""
        columns = (*Progress.get_default_columns(), MofNCompleteColumn())
        with Progress(*columns, console=self.errors, disable=self._silent, transient=True) as progress:
            task = progress.add_task(name, total=None)
            yield lambda done, total: progress.update(task, completed=done, total=total)

    def stop(self) -> None:
        """End the progress display."""
        self._status.stop()

    def result(self, data: Data, show: Callable[[Data], Shown]) -> None:
        """Print a result: as JSON, through `show`, or not at all."""
        self.stop()
        if self.as_json:
            sys.stdout.write(_json(data))
        elif not self.quiet:
            for part in show(data):
                self.console.print(part)

    def text(self, data: Data, text: str) -> None:
        """Print a text that was asked for, as it stands (no wrapping, no markup), quiet or not; or `data` as JSON."""
        self.stop()
        sys.stdout.write(_json(data) if self.as_json else text)

    def note(self, text: str) -> None:
        """Print a text to the error stream, as it stands."""
        self.stop()
        sys.stderr.write(f"{text}\n")

    def write(self, path: Path, data: Data) -> None:
        """Write a result to a file, as JSON; AotcError (code "output") where it cannot be written."""
        with output_file(path, "output") as file:
            file.write(_json(data).encode())

    def failure(self, error: AotcError) -> None:
        """Print every diagnostic of an error."""
        self.stop()
        if self.as_json:
            problems = [
                {"code": d.code, "message": d.message, "at": str(d.span or ""), "notes": d.notes, "hint": d.hint}
                for d in error.diagnostics
            ]
            sys.stdout.write(_json({"errors": problems}))
        for text in texts_of(error.diagnostics):
            self.errors.print(f"[bold red]error[/]: {escape(text)}")


def _console() -> Console:
    """Return the console for results, where tables are as wide as their contents if the output is not a terminal."""
    console = Console(highlight=False, soft_wrap=True, markup=False)
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    return console


def _json(data: Data) -> str:
    return json.dumps(data, indent=2, default=str) + "\n"


@contextmanager
def reporting(quiet: bool = False, as_json: bool = False, verbose: int = 0) -> Iterator[Reporter]:
    """A reporter for one command; an AotcError in the block, or a file that the system refuses, is
    printed and ends the program with code 2."""
    level = logging.WARNING if verbose == 0 else logging.INFO if verbose == 1 else logging.DEBUG
    reporter = Reporter(quiet, as_json)
    handler = RichHandler(console=reporter.errors, show_path=False, show_time=False)
    logging.basicConfig(level=level, format="%(message)s", handlers=[handler])
    try:
        yield reporter
    except AotcError as error:
        reporter.failure(error)
        raise SystemExit(USER_ERROR) from None
    except OSError as error:
        if error.filename is None:
            # a stream, or no file of the user's
            raise
        reporter.failure(AotcError("file", f"cannot use {error.filename}: {error.strerror}"))
        raise SystemExit(USER_ERROR) from None
    except MemoryError:
        reporter.failure(AotcError("memory", "not enough memory for this model"))
        raise SystemExit(USER_ERROR) from None
    finally:
        reporter.stop()
