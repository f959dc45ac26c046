# SPDX-License-Identifier: Apache-2.0
"""Pass instruments: observers that a pass context calls before and after every pass, and that may
skip passes.

@pass_instrument
class Count:
    def run_before_pass(self, module, info): print(info.name)

with PassContext(instruments=[Count()]): ...     # prints the name of each pass
"""

from __future__ import annotations

import re
import sys
import time
import warnings
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, ClassVar, Final, TypeVar

from aotc.ir.diagnostics import AotcError, AotcTypeError
from aotc.ir.file_checksum_manifest import remove_manifest_and_unchanged_files, write_file_and_record_in_manifest
from aotc.ir.frozen_dataclass import frozen
from aotc.ir.regular_files import translate_os_errors

C = TypeVar("C", bound=type)
#: Function that formats a module as text.
Show = Callable[[Any], str]
#: Levels of an instrument that observes passes on graphs and on kernel programs.
ALL_LEVELS: Final = frozenset({"graph", "tensor"})
#: Name of the manifest of the files that dumps wrote to a folder.
_DUMP_MANIFEST_NAME: Final = "aotc-dump.json"


@frozen(repr=False)
class PassInfo:
    """Description of a pass.

    opt_level  lowest optimization level at which a Sequential runs the pass
    required   names of passes that a Sequential runs before it
    level      "graph" for passes on graphs, "tensor" for passes on kernel programs
    """

    opt_level: int
    name: str
    required: tuple[str, ...] = ()
    level: str = "graph"

    def __repr__(self) -> str:
        required = "[\n" + "".join(f"{name}, " for name in self.required) + "]\n" if self.required else "[]\n"
        return (
            f"The meta data of the pass - pass name: {self.name}, opt_level: {self.opt_level}, "
            f"required passes: {required}"
        )


class PassInstrument:
    """Base class of pass instruments; every hook is optional.

    For each pass, the hooks of all instruments are called in the order of the context's list:

        enter_pass_ctx | should_run | run_before_pass | PASS | run_after_pass | exit_pass_ctx

    should_run is called on every instrument; if one returns False, the pass is skipped and no
    further hook is called. `levels` holds the kinds of passes whose hooks are called: "graph", or
    "graph" and "tensor".
    """

    name: str = "PassInstrument"
    levels: ClassVar[frozenset[str]] = frozenset({"graph"})

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.name = cls.__name__

    def enter_pass_ctx(self) -> None:
        """Pass instrument hook: called before the pass context is entered."""

    def exit_pass_ctx(self) -> None:
        """Pass instrument hook: called after the pass context was left."""

    def should_run(self, module: Any, info: PassInfo) -> bool:
        """Pass instrument hook: return False to skip a pass; not called for passes that the context
        requires.
        """
        return True

    def run_before_pass(self, module: Any, info: PassInfo) -> None:
        """Pass instrument hook: called before a pass runs on `module`."""

    def run_after_pass(self, module: Any, info: PassInfo) -> None:
        """Pass instrument hook: called after a pass, with the module that it returned."""

    def pass_failed(self, info: PassInfo) -> None:
        """Called if a pass raised an exception after run_before_pass; run_after_pass is not called
        then.
        """


def pass_instrument(cls: C | None = None) -> Any:
    """Class decorator: turn a class with some of the hooks into a pass instrument.

    Raises AotcTypeError if it is applied to something other than a class.
    """
    if cls is None:
        return pass_instrument
    if not isinstance(cls, type):
        raise AotcTypeError("instrument", "pi_cls must be a class")
    if issubclass(cls, PassInstrument):
        return cls
    body = {"__doc__": cls.__doc__, "__module__": cls.__module__, "__qualname__": cls.__qualname__}
    return type(cls.__name__, (cls, PassInstrument), body)


class PassObserver(PassInstrument):
    """Instrument that observes each pass with a generator, from start to end; subclasses define
    `observe_pass` and `reset_observations`.
    """

    def __init__(self) -> None:
        #: Suspended generators of the running passes, the innermost last.
        self.running: list[Generator[None, Any, None]] = []
        self._contexts = 0

    def reset_observations(self) -> None:
        """Pass instrument hook: called before the outermost of nested pass contexts is entered."""

    def observe_pass(self, module: Any, info: PassInfo) -> Generator[None, Any, None]:
        """Generator hook: run code before a pass on `module`, yield to receive the resulting
        module, run code after it.

        If the pass fails, the generator is closed at the `yield`.
        """
        raise NotImplementedError(type(self).__name__)

    def enter_pass_ctx(self) -> None:
        if self._contexts == 0:
            self.running = []
            self.reset_observations()
        self._contexts += 1

    def exit_pass_ctx(self) -> None:
        self._contexts = max(0, self._contexts - 1)

    def run_before_pass(self, module: Any, info: PassInfo) -> None:
        watch = self.observe_pass(module, info)
        next(watch)
        self.running.append(watch)

    def run_after_pass(self, module: Any, info: PassInfo) -> None:
        with suppress(StopIteration):
            self.running.pop().send(module)

    def pass_failed(self, info: PassInfo) -> None:
        if self.running:
            self.running.pop().close()


# --- timing


@dataclass(slots=True)
class PassProfile:
    """One run of a pass: its name, its start in seconds of the clock, its duration in microseconds,
    and the passes nested in it.
    """

    name: str
    start: float
    duration: float = 0.0
    children: list[PassProfile] = field(default_factory=list)


class PassTimingInstrument(PassObserver):
    """Instrument that measures the time of every pass.

    The profile remains readable after the context is left, and is reset when one is entered.
    """

    levels: ClassVar[frozenset[str]] = ALL_LEVELS

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        """Create the timing instrument; `clock` is a function that returns the current time in
        seconds.
        """
        super().__init__()
        self._clock = clock
        self.reset_observations()

    def reset_observations(self) -> None:
        self._roots: list[PassProfile] = []
        self._siblings = self._roots  # profiles at the level of the next pass

    def observe_pass(self, module: Any, info: PassInfo) -> Generator[None, Any, None]:
        profile = PassProfile(info.name, self._clock())
        siblings, self._siblings = self._siblings, profile.children
        siblings.append(profile)
        try:
            yield
        finally:
            self._siblings = siblings
            profile.duration = (self._clock() - profile.start) * 1e6

    @property
    def profiles(self) -> tuple[PassProfile, ...]:
        """Timing profiles of the outermost passes that ran, in order."""
        return tuple(self._roots)

    def render(self) -> str:
        """Return the profile as a tree with one line per pass: `name: total [self] (share of all;
        share of parent)`.

        Raises AotcError while a pass is running.
        """
        if self.running:
            raise AotcError("timing", "cannot print pass profile while still in a pass!")
        if not self._roots:
            warnings.warn("no passes have been profiled, did you enable pass profiling?", stacklevel=2)
            return ""
        total = sum(p.duration for p in self._roots)
        lines: list[str] = []
        stack = [(p, 0, total) for p in reversed(self._roots)]
        while stack:
            profile, depth, parent = stack.pop()
            lines.append(_pass_timing_line(profile, depth, total, parent))
            stack.extend((child, depth + 1, profile.duration) for child in reversed(profile.children))
        return "".join(lines)


def _pass_timing_line(profile: PassProfile, depth: int, total_duration: float, parent_duration: float) -> str:
    self_duration = profile.duration - sum(child.duration for child in profile.children)
    of_total, of_parent = (
        100 * profile.duration / whole if whole else 0.0 for whole in (total_duration, parent_duration)
    )
    text = f"{profile.name}: {profile.duration:.0f}us [{self_duration:.0f}us] ({of_total:.2f}%; {of_parent:.2f}%)"
    return "\t" * depth + text + "\n"


# --- printing


class _ModulePrinter(PassInstrument):
    """Base of instruments that print modules, formatted by `show`, to a file or the current
    standard output.
    """

    levels: ClassVar[frozenset[str]] = ALL_LEVELS

    def __init__(self, show: Show = str, file: IO[str] | None = None) -> None:
        self._show = show
        self._file = file

    def _print_module(self, title: str, module: Any, end: str = "\n") -> None:
        print(f"{title}\n{self._show(module)}", end=end, file=self._file or sys.stdout)


class PassPrintingInstrument(_ModulePrinter):
    """Instrument that prints the module before and after the passes with the given names."""

    def __init__(
        self,
        print_before_pass_names: Iterable[str] = (),
        print_after_pass_names: Iterable[str] = (),
        show: Show = str,
        file: IO[str] | None = None,
    ) -> None:
        super().__init__(show, file)
        self.before = frozenset(print_before_pass_names)
        self.after = frozenset(print_after_pass_names)

    def run_before_pass(self, module: Any, info: PassInfo) -> None:
        if info.name in self.before:
            self._print_module(f"Print IR before: {info.name}", module, end="\n\n\n")

    def run_after_pass(self, module: Any, info: PassInfo) -> None:
        if info.name in self.after:
            self._print_module(f"Print IR after: {info.name}", module, end="\n\n\n")


class PrintBeforeAll(_ModulePrinter):
    """Instrument that prints the module before every pass."""

    def run_before_pass(self, module: Any, info: PassInfo) -> None:
        self._print_module(f"Before Running Pass: {info}", module)


class PrintAfterAll(_ModulePrinter):
    """Instrument that prints the module after every pass."""

    def run_after_pass(self, module: Any, info: PassInfo) -> None:
        self._print_module(f"After Running Pass: {info}", module)


class DumpIR(PassInstrument):
    """Instrument that writes the module after every pass to `dump_dir/NNN_name.suffix`, numbered
    consecutively.

    Kernel programs get the suffix .tir.

    refresh    first remove the files of earlier dumps that were not changed since, and no other files

    The file aotc-dump.json in the directory lists the files written.  Raises AotcError (code
    "dump-ir") if the directory is not writable, or if a file of that name exists that no dump
    wrote.
    """

    levels: ClassVar[frozenset[str]] = ALL_LEVELS

    def __init__(
        self, dump_dir: str | Path, refresh: bool = False, show: Show = str, suffix: str = "txt", start: int = 0
    ) -> None:
        self.dump_dir = Path(dump_dir)
        self.counter = start
        self._show = show
        self._suffix = suffix
        with translate_os_errors("dump-ir", f"write to {self.dump_dir}"):
            self.dump_dir.mkdir(parents=True, exist_ok=True)
        if refresh:
            remove_manifest_and_unchanged_files(self.dump_dir, _DUMP_MANIFEST_NAME, "dump-ir")

    def run_after_pass(self, module: Any, info: PassInfo) -> None:
        name = re.sub(r"\W+", "_", info.name, flags=re.ASCII).strip("_")
        file = f"{self.counter:03d}_{name}.{'tir' if info.level == 'tensor' else self._suffix}"
        self.counter += 1
        text = self._show(module).encode("utf-8", "backslashreplace")
        write_file_and_record_in_manifest(self.dump_dir, _DUMP_MANIFEST_NAME, file, text, "dump-ir")
