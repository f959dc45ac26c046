# SPDX-License-Identifier: Apache-2.0
"""Pass instruments: observers that a pass context calls around every pass, and may skip passes.

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
from aotc.ir.frozen_dataclass import frozen
from aotc.ir.manifest import remove_recorded, write_recorded
from aotc.ir.regular_files import refusals

C = TypeVar("C", bound=type)
#: How an instrument prints a module.
Show = Callable[[Any], str]
#: The levels of an instrument that takes graphs and programs of kernels alike.
ALL_LEVELS: Final = frozenset({"graph", "tensor"})
#: Which files of a folder dumps wrote.
_DUMPS: Final = "aotc-dump.json"


@frozen(repr=False)
class PassInfo:
    """What is known of a pass without running it.

    required   names of passes that a Sequential runs before it
    level      "graph", or "tensor": which instruments see it
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
    """Base of instruments; every hook is optional.

    Around a pass all instruments are called in the order of the context's list:

        enter_pass_ctx | should_run | run_before_pass | PASS | run_after_pass | exit_pass_ctx

    should_run is asked of every instrument; the pass is skipped, with no further hook, if one says False.
    levels    the kinds of passes whose hooks are called: "graph" passes, or "tensor" passes too
    """

    name: str = "PassInstrument"
    levels: ClassVar[frozenset[str]] = frozenset({"graph"})

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.name = cls.__name__

    def enter_pass_ctx(self) -> None:
        """The context is about to be entered."""

    def exit_pass_ctx(self) -> None:
        """The context has been left."""

    def should_run(self, module: Any, info: PassInfo) -> bool:
        """Whether to run a pass.  Not asked about passes that the context requires."""
        return True

    def run_before_pass(self, module: Any, info: PassInfo) -> None:
        """A pass is about to run on `module`."""

    def run_after_pass(self, module: Any, info: PassInfo) -> None:
        """A pass has made `module`."""

    def pass_failed(self, info: PassInfo) -> None:
        """A pass raised an exception after run_before_pass; run_after_pass will not be called."""


def pass_instrument(cls: C | None = None) -> Any:
    """Class decorator: make an instrument of any class that has some of the hooks.

    Raises AotcTypeError for what is not a class.
    """
    if cls is None:
        return pass_instrument
    if not isinstance(cls, type):
        raise AotcTypeError("instrument", "pi_cls must be a class")
    if issubclass(cls, PassInstrument):
        return cls
    body = {"__doc__": cls.__doc__, "__module__": cls.__module__, "__qualname__": cls.__qualname__}
    return type(cls.__name__, (cls, PassInstrument), body)


class Watch(PassInstrument):
    """An instrument that follows each pass from its beginning to its end.  A subclass gives `watch`, and `restart`."""

    def __init__(self) -> None:
        #: What follows the passes that run, the innermost last.
        self.running: list[Generator[None, Any, None]] = []
        self._contexts = 0

    def restart(self) -> None:
        """The outermost of the contexts that are inside of each other is about to be entered."""

    def watch(self, module: Any, info: PassInfo) -> Generator[None, Any, None]:
        """What is due before a pass runs on `module`; after a `yield`, which gives what the pass made, what follows.

        If the pass fails, the generator is closed where it waits.
        """
        raise NotImplementedError(type(self).__name__)

    def enter_pass_ctx(self) -> None:
        if self._contexts == 0:
            self.running = []
            self.restart()
        self._contexts += 1

    def exit_pass_ctx(self) -> None:
        self._contexts = max(0, self._contexts - 1)

    def run_before_pass(self, module: Any, info: PassInfo) -> None:
        watch = self.watch(module, info)
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
    """How long one run of a pass took, in microseconds, and the passes that ran inside it."""

    name: str
    start: float
    duration: float = 0.0
    children: list[PassProfile] = field(default_factory=list)


class PassTimingInstrument(Watch):
    """Measures every pass.

    The profile belongs to the instrument; it stays readable when the context is left, and starts afresh
    when one is entered.
    """

    levels: ClassVar[frozenset[str]] = ALL_LEVELS

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        """`clock` gives seconds."""
        super().__init__()
        self._clock = clock
        self.restart()

    def restart(self) -> None:
        self._roots: list[PassProfile] = []
        self._siblings = self._roots  # of the pass that begins next

    def watch(self, module: Any, info: PassInfo) -> Generator[None, Any, None]:
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
        """The outermost passes that ran, in order."""
        return tuple(self._roots)

    def render(self) -> str:
        """The profile as a tree, a line per pass: `name: total [self] (share of all; share of the parent)`.

        Raises AotcError while a pass runs.
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
            lines.append(_timing_line(profile, depth, total, parent))
            stack.extend((child, depth + 1, profile.duration) for child in reversed(profile.children))
        return "".join(lines)


def _timing_line(profile: PassProfile, depth: int, total: float, parent: float) -> str:
    own = profile.duration - sum(child.duration for child in profile.children)
    of_total, of_parent = (100 * profile.duration / whole if whole else 0.0 for whole in (total, parent))
    text = f"{profile.name}: {profile.duration:.0f}us [{own:.0f}us] ({of_total:.2f}%; {of_parent:.2f}%)"
    return "\t" * depth + text + "\n"


# --- printing


class _Printing(PassInstrument):
    """Prints modules with `show` to a file, or to what is standard output at that time."""

    levels: ClassVar[frozenset[str]] = ALL_LEVELS

    def __init__(self, show: Show = str, file: IO[str] | None = None) -> None:
        self._show = show
        self._file = file

    def _print(self, title: str, module: Any, end: str = "\n") -> None:
        print(f"{title}\n{self._show(module)}", end=end, file=self._file or sys.stdout)


class PassPrintingInstrument(_Printing):
    """Prints the module before and after the passes named."""

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
            self._print(f"Print IR before: {info.name}", module, end="\n\n\n")

    def run_after_pass(self, module: Any, info: PassInfo) -> None:
        if info.name in self.after:
            self._print(f"Print IR after: {info.name}", module, end="\n\n\n")


class PrintBeforeAll(_Printing):
    """Prints the module before every pass."""

    def run_before_pass(self, module: Any, info: PassInfo) -> None:
        self._print(f"Before Running Pass: {info}", module)


class PrintAfterAll(_Printing):
    """Prints the module after every pass."""

    def run_after_pass(self, module: Any, info: PassInfo) -> None:
        self._print(f"After Running Pass: {info}", module)


class DumpIR(PassInstrument):
    """Writes the module after every pass to `dump_dir/NNN_name.suffix`, numbered in the order of the passes.

    Programs of kernels go to files that end in .tir.

    refresh    first remove the files of earlier dumps that were not changed since (and nothing else) from the directory

    The file aotc-dump.json there lists what was written.  Raises AotcError (code "dump-ir") if the directory cannot be
    written to, and for a file of such a name that no dump wrote.
    """

    levels: ClassVar[frozenset[str]] = ALL_LEVELS

    def __init__(
        self, dump_dir: str | Path, refresh: bool = False, show: Show = str, suffix: str = "txt", start: int = 0
    ) -> None:
        self.dump_dir = Path(dump_dir)
        self.counter = start
        self._show = show
        self._suffix = suffix
        with refusals("dump-ir", f"write to {self.dump_dir}"):
            self.dump_dir.mkdir(parents=True, exist_ok=True)
        if refresh:
            remove_recorded(self.dump_dir, _DUMPS, "dump-ir")

    def run_after_pass(self, module: Any, info: PassInfo) -> None:
        name = re.sub(r"\W+", "_", info.name, flags=re.ASCII).strip("_")
        file = f"{self.counter:03d}_{name}.{'tir' if info.level == 'tensor' else self._suffix}"
        self.counter += 1
        text = self._show(module).encode("utf-8", "backslashreplace")
        write_recorded(self.dump_dir, _DUMPS, file, text, "dump-ir")
