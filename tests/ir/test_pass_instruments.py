# SPDX-License-Identifier: Apache-2.0
"""Pass instruments: order of hooks, exceptions in hooks, timing, printing and dumping."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from aotc.ir.diagnostics import AotcError
from aotc.ir.instrument import (
    DumpIR,
    PassInstrument,
    PassObserver,
    PassPrintingInstrument,
    PassTimingInstrument,
    PrintAfterAll,
    PrintBeforeAll,
    pass_instrument,
)
from aotc.ir.transform import Pass, PassContext, PassInfo, Sequential, module_pass

MODULE: dict[str, Any] = {"main": object()}


class Recorder(PassInstrument):
    """Records every hook; raises an error in the hook `fail`, and skips passes if `run` is False."""

    def __init__(self, log: list[str], label: str, fail: str = "", run: bool = True) -> None:
        self.log, self.label, self.fail, self.run = log, label, fail, run

    def note(self, hook: str) -> None:
        if hook == self.fail:
            self.log.append(f"{self.label} bad {hook}")
            raise ValueError(f"{self.label} bad {hook}")
        self.log.append(f"{self.label} {hook}")

    def enter_pass_ctx(self) -> None:
        self.note("enter")

    def exit_pass_ctx(self) -> None:
        self.note("exit")

    def should_run(self, module: Any, info: PassInfo) -> bool:
        self.note("should")
        return self.run

    def run_before_pass(self, module: Any, info: PassInfo) -> None:
        self.note("before")

    def run_after_pass(self, module: Any, info: PassInfo) -> None:
        self.note("after")


def make_pass(log: list[str], name: str = "P", inner: Pass[Any] | None = None, fail: bool = False) -> Any:
    def body(module: Any, ctx: PassContext) -> Any:
        log.append(name)
        if fail:
            raise KeyError(name)
        return module if inner is None else inner(module)

    return module_pass(body, opt_level=0, name=name)


def test_hooks_are_called_in_list_order() -> None:
    log: list[str] = []
    with PassContext(instruments=[Recorder(log, "1"), Recorder(log, "2")]):
        make_pass(log)(MODULE)
    assert log == [
        *("1 enter", "2 enter", "1 should", "2 should", "1 before", "2 before"),
        *("P", "1 after", "2 after", "1 exit", "2 exit"),
    ]


def test_nested_passes_nest() -> None:
    log: list[str] = []
    with PassContext(instruments=[Recorder(log, "1")]):
        make_pass(log, "outer", make_pass(log, "inner"))(MODULE)
    assert log == [
        *("1 enter", "1 should", "1 before", "outer", "1 should", "1 before", "inner", "1 after", "1 after", "1 exit")
    ]


def test_every_instrument_is_asked_and_one_no_skips_the_pass() -> None:
    log: list[str] = []
    with PassContext(instruments=[Recorder(log, "1", run=False), Recorder(log, "2")]):
        assert make_pass(log)(MODULE) is MODULE
    assert log == ["1 enter", "2 enter", "1 should", "2 should", "1 exit", "2 exit"]


def test_a_required_pass_cannot_be_skipped() -> None:
    log: list[str] = []
    with PassContext(required_pass=["P"], instruments=[Recorder(log, "1", run=False)]):
        make_pass(log)(MODULE)
    assert log == ["1 enter", "1 before", "P", "1 after", "1 exit"]


def test_a_disabled_pass_has_no_events() -> None:
    log: list[str] = []
    with PassContext(disabled_pass=["P"], instruments=[Recorder(log, "1")]):
        Sequential([make_pass(log)], name="S")(MODULE)
    assert log == ["1 enter", "1 should", "1 before", "1 after", "1 exit"]


def test_inner_contexts_do_not_call_outer_instruments() -> None:
    log: list[str] = []
    with PassContext(instruments=[Recorder(log, "1")]), PassContext():
        make_pass(log)(MODULE)
    assert log == ["1 enter", "P", "1 exit"]


# --- exceptions


def test_failing_to_enter(caplog: pytest.LogCaptureFixture) -> None:
    log: list[str] = []
    outside = PassContext.current()
    context = PassContext(instruments=[Recorder(log, "0"), Recorder(log, "1"), Recorder(log, "2", "enter")])
    with caplog.at_level(logging.WARNING, "aotc.pass"), pytest.raises(ValueError, match=r"^2 bad enter$"), context:
        pytest.fail("entered")
    assert log == ["0 enter", "1 enter", "2 bad enter", "1 exit", "0 exit"]
    assert [r.getMessage() for r in caplog.records] == [
        "Pass instrumentation entering pass context failed.",
        "Disable pass instrumentation.",
        "Recorder exiting PassContext ...",
        "Recorder exited PassContext.",
        "Recorder exiting PassContext ...",
        "Recorder exited PassContext.",
    ]
    assert PassContext.current() is outside
    context.override_instruments([])
    assert len(log) == 5


def test_failing_to_exit() -> None:
    log: list[str] = []
    outside = PassContext.current()
    context = PassContext(instruments=[Recorder(log, "0"), Recorder(log, "1", "exit"), Recorder(log, "2")])
    with pytest.raises(ValueError, match="1 bad exit"), context:
        pass
    assert log == ["0 enter", "1 enter", "2 enter", "0 exit", "1 bad exit"]
    assert context.instruments == ()
    assert PassContext.current() is outside


def test_failing_before_a_pass() -> None:
    log: list[str] = []
    context = PassContext(instruments=[Recorder(log, "0"), Recorder(log, "1", "before"), Recorder(log, "2")])
    with pytest.raises(ValueError, match="1 bad before"), context:
        make_pass(log)(MODULE)
    assert log == [
        *("0 enter", "1 enter", "2 enter", "0 should", "1 should", "2 should"),
        *("0 before", "1 bad before", "0 exit", "1 exit", "2 exit"),
    ]
    log.clear()
    context.override_instruments([])
    assert log == ["0 exit", "1 exit", "2 exit"]


def test_failing_passes_leave_instruments_registered() -> None:
    log: list[str] = []
    with PassContext(instruments=[Recorder(log, "0")]) as context:
        with pytest.raises(KeyError):
            make_pass(log, fail=True)(MODULE)
        assert len(context.instruments) == 1
    assert log == ["0 enter", "0 should", "0 before", "P", "0 exit"]


def test_the_default_context_keeps_instruments_until_overridden() -> None:
    log: list[str] = []
    default = PassContext.current()
    default.override_instruments([Recorder(log, "0"), Recorder(log, "1", "before")])
    try:
        with pytest.raises(ValueError, match="1 bad before"):
            make_pass(log)(MODULE)
        assert log == ["0 enter", "1 enter", "0 should", "1 should", "0 before", "1 bad before"]
    finally:
        log.clear()
        default.override_instruments(None)
    assert log == ["0 exit", "1 exit"]
    assert default.instruments == ()


# --- making instruments


def test_any_class_can_be_decorated() -> None:
    names: list[str] = []

    @pass_instrument
    class Collect:
        """Collects names."""

        def __init__(self) -> None:
            self.name = "mine"

        def run_before_pass(self, module: Any, info: PassInfo) -> None:
            names.append(info.name)

    instrument = Collect()
    assert isinstance(instrument, PassInstrument)
    assert (Collect.__name__, Collect.__doc__, instrument.name) == ("Collect", "Collects names.", "mine")
    with PassContext(instruments=[instrument]):
        make_pass([])(MODULE)
    assert names == ["P"]
    with pytest.raises(TypeError, match="must be a class"):
        pass_instrument(3)  # type: ignore[type-var]


def test_instruments_see_tensor_passes_only_if_they_ask() -> None:
    class TensorPass(Pass[Any]):
        name = "lower"
        level = "tensor"

        def run(self, module: Any, ctx: PassContext) -> Any:
            return module

    class Curious(Recorder):
        levels = frozenset({"graph", "tensor"})

    log: list[str] = []
    with PassContext(instruments=[Recorder(log, "0"), Curious(log, "1")]):
        TensorPass()(MODULE)
    assert log == ["0 enter", "1 enter", "1 should", "1 before", "1 after", "0 exit", "1 exit"]


# --- timing


def ticking(seconds: list[float]) -> Any:
    ticks: Iterator[float] = iter(seconds)
    return lambda: next(ticks)


def test_timing_is_rendered_as_a_tree() -> None:
    # outer 0..1 s, inner 0.25..0.5 s, second 2..5 s
    timer = PassTimingInstrument(ticking([0, 0.25, 0.5, 1, 2, 5]))
    with PassContext(instruments=[timer]):
        make_pass([], "outer", make_pass([], "inner"))(MODULE)
        make_pass([], "second")(MODULE)
        text = timer.render()
    assert text == (
        "outer: 1000000us [750000us] (25.00%; 25.00%)\n"
        "\tinner: 250000us [250000us] (6.25%; 25.00%)\n"
        "second: 3000000us [3000000us] (75.00%; 75.00%)\n"
    )
    assert timer.render() == text, "the profile outlives the context"


def test_timing_survives_exceptions() -> None:
    timer = PassTimingInstrument(ticking([0, 1, 2, 3, 4, 5]))
    with PassContext(instruments=[timer]):
        with pytest.raises(KeyError):
            make_pass([], "outer", make_pass([], "inner", fail=True))(MODULE)
        make_pass([], "after")(MODULE)
        names = [line.split(":")[0] for line in timer.render().splitlines()]
    assert names == ["outer", "\tinner", "after"]


def test_timing_survives_exceptions_of_other_instruments() -> None:
    timer = PassTimingInstrument()
    with PassContext(instruments=[timer, Recorder([], "0", fail="before")]):
        with pytest.raises(ValueError, match="bad before"):
            make_pass([])(MODULE)
        assert timer.render().startswith("P: ")
    timer = PassTimingInstrument()
    with PassContext(instruments=[Recorder([], "0", fail="after"), timer]):
        with pytest.raises(ValueError, match="bad after"):
            make_pass([])(MODULE)
        assert timer.render().startswith("P: ")


def test_two_timers_do_not_share() -> None:
    first, second = PassTimingInstrument(), PassTimingInstrument()
    with PassContext(instruments=[first]):
        make_pass([], "a")(MODULE)
        with PassContext(instruments=[second, first]):
            make_pass([], "b")(MODULE)
    assert [p.name for p in first.profiles] == ["a", "b"]
    assert [p.name for p in second.profiles] == ["b"]
    with PassContext(instruments=[first]):
        assert first.profiles == ()


def test_timing_complains() -> None:
    timer = PassTimingInstrument()
    with pytest.warns(UserWarning, match="no passes have been profiled"):
        assert timer.render() == ""
    shown: list[AotcError] = []

    @module_pass(opt_level=0)
    def render_inside(module: Any, ctx: PassContext) -> Any:
        with pytest.raises(AotcError, match="cannot print pass profile while still in a pass!") as caught:
            timer.render()
        shown.append(caught.value)
        return module

    with PassContext(instruments=[timer]):
        render_inside(MODULE)
    assert shown


# --- printing


def test_printing(capsys: pytest.CaptureFixture[str]) -> None:
    def show(module: Any) -> str:
        return "<" + " ".join(module) + ">"

    chosen = PassPrintingInstrument(["P"], ["Q"], show=show)
    with PassContext(instruments=[chosen]):
        make_pass([], "P")(MODULE)
        make_pass([], "Q")(MODULE)
    assert capsys.readouterr().out == "Print IR before: P\n<main>\n\n\nPrint IR after: Q\n<main>\n\n\n"
    with PassContext(instruments=[PrintBeforeAll(show), PrintAfterAll(show)]):
        make_pass([], "P")(MODULE)
    info = repr(PassInfo(0, "P"))
    assert capsys.readouterr().out == f"Before Running Pass: {info}\n<main>\nAfter Running Pass: {info}\n<main>\n"


def test_dumping(tmp_path: Path) -> None:
    folder = tmp_path / "ir"
    with PassContext(instruments=[DumpIR(folder, show=lambda m: "text")]):
        make_pass([], "outer", make_pass([], "../in ner"))(MODULE)
    assert sorted(p.name for p in folder.iterdir()) == ["000_in_ner.txt", "001_outer.txt", "aotc-dump.json"]
    assert (folder / "001_outer.txt").read_text() == "text"
    for mine in ("notes.txt", "002_notes.txt", "001_outer.txt"):
        (folder / mine).write_text("mine")
    DumpIR(folder, refresh=True)
    assert sorted(p.name for p in folder.iterdir()) == ["001_outer.txt", "002_notes.txt", "notes.txt"]
    with PassContext(instruments=[DumpIR(folder, show=lambda m: "text")]):
        make_pass([], "first")(MODULE)
        with pytest.raises(AotcError, match="aotc did not write what is there"):
            make_pass([], "outer")(MODULE)
    assert {(folder / name).read_text() for name in ("001_outer.txt", "002_notes.txt", "notes.txt")} == {"mine"}
    with pytest.raises(AotcError, match="cannot write to"):
        DumpIR(folder / "notes.txt")


# --- following passes from beginning to end


class Follower(PassObserver):
    def reset_observations(self) -> None:
        self.log: list[str] = []

    def observe_pass(self, module: Any, info: PassInfo) -> Generator[None, Any, None]:
        self.log.append(f"{len(self.running)} {info.name} {module['n']}")
        try:
            made = yield
        except GeneratorExit:
            self.log.append(f"{info.name} fails")
            raise
        self.log.append(f"{info.name} {made['n']}")


@module_pass(opt_level=0, name="Add")
def add_one(module: Any, ctx: PassContext) -> Any:
    return {"n": module["n"] + 1}


@module_pass(opt_level=0, name="Fail")
def fail(module: Any, ctx: PassContext) -> Any:
    raise ValueError


def test_a_watch_follows_each_pass_to_its_end() -> None:
    watch = Follower()
    with PassContext(instruments=[watch]):
        with pytest.raises(ValueError):
            Sequential([add_one, fail], name="both")({"n": 0})
        assert watch.log == ["0 both 0", "1 Add 0", "Add 1", "1 Fail 1", "Fail fails", "both fails"]
        with PassContext(instruments=[watch]):  # a context inside of another begins nothing anew
            add_one({"n": 5})
    assert watch.log[-2:] == ["0 Add 5", "Add 6"]
    with PassContext(instruments=[watch]):
        add_one({"n": 7})
    assert watch.log == ["0 Add 7", "Add 8"]
