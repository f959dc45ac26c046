# SPDX-License-Identifier: Apache-2.0
"""Sessions on handwritten libraries: results, zero copies, bindings, threads, element types."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aotc.ir.diagnostics import AotcError, AotcTypeError
from aotc.runtime.abi import DTYPE_BY_CODE, ffi
from aotc.runtime.session import Session, load

ROOT = Path(__file__).parents[2]
SCALE = np.float32(2)


def feeds(x: Any = None) -> dict[str, Any]:
    return {"x": np.arange(6, dtype=np.float32).reshape(2, 3) if x is None else x, "scale:0": SCALE}


def addresses_passed(session: Session, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The addresses of the first input and the first output that go into C, call by call."""
    seen: list[tuple[int, int]] = []
    call = session._call

    def spy(inputs: Any, outputs: Any, *others: Any) -> Any:
        seen.append((int(ffi.cast("uintptr_t", inputs[0])), int(ffi.cast("uintptr_t", outputs[0]))))
        return call(inputs, outputs, *others)

    monkeypatch.setattr(session, "_call", spy)
    return seen


def test_describes_itself(tiny: Session) -> None:
    assert (tiny.name, tiny.version, tiny.workspace_bytes, tiny.weights_bytes) == ("tiny", "0", 24, 0)
    assert [(i.name, i.shape, i.type, i.dtype) for i in tiny.get_inputs()] == [
        ("x", [2, 3], "tensor(float)", "float32"),
        ("scale:0", [], "tensor(float)", "float32"),
    ]
    assert [(o.name, o.shape, o.type) for o in tiny.get_outputs()] == [
        ("y", [2, 3], "tensor(float)"),
        ("sum", [1], "tensor(double)"),
    ]
    assert "tiny" in repr(tiny)


def test_runs(tiny: Session) -> None:
    y, total = tiny.run(None, feeds())
    np.testing.assert_array_equal(y, [[1, 3, 5], [7, 9, 11]])
    np.testing.assert_array_equal(total, [36.0])
    assert (y.dtype, total.dtype) == (np.float32, np.float64)


def test_chosen_outputs_in_the_order_asked_for(tiny: Session) -> None:
    total, y = tiny.run(["sum", "y"], feeds())
    assert (total.shape, y.shape) == ((1,), (2, 3))
    assert len(tiny.run(["sum"], feeds())) == 1
    assert len(tiny.run([], feeds())) == 2


def test_results_are_new_arrays(tiny: Session) -> None:
    first = tiny.run(None, feeds())[0]
    kept = first.copy()
    tiny.run(None, feeds(np.full((2, 3), 9, np.float32)))
    np.testing.assert_array_equal(first, kept)


def test_contiguous_inputs_are_not_copied(tiny: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = addresses_passed(tiny, monkeypatch)
    x = np.ones((2, 3), np.float32)
    x.flags.writeable = False
    tiny.run(None, feeds(x))
    assert seen[0][0] == x.__array_interface__["data"][0]
    for copied in (x.T.copy().T, x.astype(">f4")):
        tiny.run(None, feeds(copied))
        assert seen[-1][0] != copied.__array_interface__["data"][0]


def misaligned() -> np.ndarray[Any, Any]:
    raw = np.zeros(25, np.uint8)[1:].view(np.float32).reshape(2, 3)
    assert not raw.flags.aligned
    return raw


@pytest.mark.parametrize(
    "make",
    [
        lambda: np.zeros((3, 2), np.float32).T,
        lambda: np.zeros((2, 6), np.float32)[:, ::2],
        lambda: np.zeros((2, 3), np.float32)[::-1, ::-1],
        lambda: np.broadcast_to(np.zeros(3, np.float32), (2, 3)).copy(order="F"),
        lambda: np.zeros((2, 3), ">f4"),
        misaligned,
    ],
    ids=["transposed", "strided", "reversed", "fortran", "big-endian", "misaligned"],
)
def test_other_layouts_give_the_same_result(tiny: Session, make: Callable[[], np.ndarray[Any, Any]]) -> None:
    values = np.arange(6).reshape(2, 3)
    x = make()
    x[...] = values
    expected = values * 2 + 1
    np.testing.assert_array_equal(tiny.run(["y"], feeds(x))[0], expected)
    binding = tiny.bind(feeds(x))
    binding.run()
    np.testing.assert_array_equal(binding.outputs["y"], expected)
    x[...] = -values  # bound arrays are read anew by each run, whatever their layout
    binding.run()
    np.testing.assert_array_equal(binding.outputs["y"], -values * 2 + 1)


def test_binding_keeps_its_buffers(tiny: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = addresses_passed(tiny, monkeypatch)
    x, y = np.ones((2, 3), np.float32), np.empty((2, 3), np.float32)
    binding = tiny.bind(feeds(x), {"y": y})
    assert binding.outputs["y"] is y
    for value in (1, 5):
        x[...] = value
        binding.run()
        np.testing.assert_array_equal(y, np.full((2, 3), 2 * value + 1))
        assert binding.outputs["sum"][0] == 6 * (2 * value + 1)
    assert seen == [(x.__array_interface__["data"][0], y.__array_interface__["data"][0])] * 2


def test_binding_outlives_what_the_caller_drops(tiny_library: Path) -> None:
    binding = load(tiny_library).bind(feeds())
    gc.collect()
    binding.run()
    np.testing.assert_array_equal(binding.outputs["sum"], [36.0])


def test_calls_into_c_are_counted(tiny: Session) -> None:
    assert tiny.calls == 0
    binding = tiny.bind(feeds())
    assert tiny.calls == 0
    tiny.run(None, feeds())
    binding.run()
    with pytest.raises(AotcError):
        tiny.run(None, {})
    assert tiny.calls == 2


def in_threads(count: int, work: Callable[[int], None]) -> None:
    failures: list[BaseException] = []

    def guarded(k: int) -> None:
        try:
            work(k)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(k,)) for k in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]


def test_threads_run_one_session(tiny: Session) -> None:
    rounds = 200

    def work(k: int) -> None:
        x = np.full((2, 3), k, np.float32)
        for _ in range(rounds):
            np.testing.assert_array_equal(tiny.run(["y"], feeds(x))[0], np.full((2, 3), 2 * k + 1))

    in_threads(4, work)
    assert tiny.calls == 4 * rounds


def test_a_run_within_a_run(tiny: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a signal handler has it: what the outer run prepared stays."""
    call, values = tiny._call, [1, 2]

    def nested(*arguments: Any) -> int:
        if values:
            value = values.pop()
            inner = tiny.run(["sum"], feeds(np.full((2, 3), value, np.float32)))[0]
            np.testing.assert_array_equal(inner, [6 * (2 * value + 1)])
        status: int = call(*arguments)
        return status

    monkeypatch.setattr(tiny, "_call", nested)
    np.testing.assert_array_equal(tiny.run(["sum"], feeds())[0], [36.0])
    assert tiny.calls == 3


def test_threads_share_a_binding_in_turns(tiny: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    inside, most = 0, 0
    call = tiny._call

    def watched(*arguments: Any) -> int:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        time.sleep(0.001)
        status: int = call(*arguments)
        inside -= 1
        return status

    monkeypatch.setattr(tiny, "_call", watched)
    binding = tiny.bind(feeds())
    in_threads(4, lambda _: [binding.run() for _ in range(20)] and None)
    assert (most, tiny.calls) == (1, 80)
    np.testing.assert_array_equal(binding.outputs["sum"], [36.0])


def test_calls_release_the_interpreter_lock(build: Callable[..., Path]) -> None:
    session = load(build("tiny", "-DTINY_SLOW"))
    binding = session.bind(feeds())
    ticks = 0
    thread = threading.Thread(target=binding.run)
    thread.start()
    while thread.is_alive():
        time.sleep(0.01)
        ticks += 1
    assert ticks > 5


def test_session_keeps_and_releases_what_it_is_given(tiny_library: Path) -> None:
    class Resource:
        pass

    session = load(tiny_library)
    assert session.keep_alive is None
    resource = Resource()
    watch = weakref.ref(resource)
    session.keep_alive = resource
    binding = session.bind(feeds())
    del resource, session
    gc.collect()
    assert watch() is not None
    del binding
    gc.collect()
    assert watch() is None


VALUES = {"bool": [0, 1, 1, 0], "uint2": [0, 1, 2, 3], "int2": [-2, -1, 0, 1]}


def sample(dtype: Any) -> np.ndarray[Any, Any]:
    signed = [-3, -1, 0, 3] if dtype.is_signed and dtype != "float8_e8m0fnu" else [1, 2, 4, 8]
    return np.array(VALUES.get(dtype, signed)).astype(np.float32).astype(dtype.numpy)


def echo_feeds() -> dict[str, np.ndarray[Any, Any]]:
    return {f"AOTC_{dtype.upper()}": sample(dtype) for dtype in DTYPE_BY_CODE}


def test_every_element_type(echo: Session) -> None:
    given = echo_feeds()
    *copies, widened = echo.run(None, given)
    binding = echo.bind(given)
    binding.run()
    for info, copy in zip(echo.get_outputs(), copies, strict=False):
        expected = given[info.name]
        assert copy.dtype == binding.outputs[info.name].dtype == info.dtype.numpy == expected.dtype
        assert copy.tobytes() == binding.outputs[info.name].tobytes() == expected.tobytes()
    np.testing.assert_array_equal(widened, given["AOTC_INT4"].astype(np.int32))
    np.testing.assert_array_equal(binding.outputs["widened"], widened)


def test_bound_sub_byte_outputs_are_written(echo: Session) -> None:
    given = echo_feeds()
    mine = np.zeros(4, given["AOTC_INT4"].dtype)
    binding = echo.bind(given, {"AOTC_INT4": mine})
    binding.run()
    np.testing.assert_array_equal(mine.astype(np.int32), [-3, -1, 0, 3])
    given["AOTC_INT4"][...] = np.array([-8, 7, 1, -2]).astype(mine.dtype)
    binding.run()
    np.testing.assert_array_equal(mine.astype(np.int32), [-8, 7, 1, -2])


def test_types_as_onnxruntime_spells_them(echo: Session) -> None:
    spelled = {i.dtype: i.type for i in echo.get_inputs()}
    names = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float double bfloat16 float8e4m3fn"
    names += " float8e4m3fnuz float8e5m2 float8e5m2fnuz float8e8m0 float4e2m1 int4 uint4 int2 uint2"
    assert list(spelled.values()) == [f"tensor({name})" for name in names.split()]


def test_model_without_inputs(build: Callable[..., Path]) -> None:
    session = load(build("echo", "-DECHO_EMPTY"))
    assert session.get_inputs() == []
    np.testing.assert_array_equal(session.run(None, {})[0], [0, 1, 2, 3])
    with pytest.raises(AotcError, match="the model has no input 'x'"):
        session.run(None, {"x": np.zeros(1)})


def failure(action: Callable[[], object]) -> list[tuple[str, str, str]]:
    """(code, message, hint) of every diagnostic of the error that `action` raises."""
    with pytest.raises(AotcError) as caught:
        action()
    return [(d.code, d.message, d.hint) for d in caught.value.diagnostics]


def test_all_wrong_inputs_in_one_error(tiny: Session) -> None:
    found = failure(lambda: tiny.run(["why", "z"], {"X": np.zeros((2, 3)), "x": np.zeros((3, 2))}))
    assert [code for code, _, _ in found] == [
        "input-unknown",
        "input-dtype",
        "input-shape",
        "input-missing",
        "output-unknown",
        "output-unknown",
    ]
    messages = [message for _, message, _ in found]
    assert messages[1:4] == [
        "input 'x' is float64, expected float32",
        "input 'x' has shape [3, 2], expected [2, 3]",
        "input 'scale:0' (float32[]) is missing",
    ]
    assert found[1][2] == "convert it with .astype(np.float32)"
    assert found[5][2] == "outputs: y, sum"


def test_nearest_name_is_suggested(tiny: Session) -> None:
    found = failure(lambda: tiny.run(None, {"x": feeds()["x"], "scale": SCALE}))
    assert found[0][2] == "did you mean 'scale:0'?"


def test_bfloat16_hint_names_its_module(echo: Session) -> None:
    given = echo_feeds() | {"AOTC_BFLOAT16": np.zeros(4, np.float32)}
    assert failure(lambda: echo.run(None, given))[0][2] == "convert it with .astype(ml_dtypes.bfloat16)"


@pytest.mark.parametrize("value", [[[0, 1, 2], [3, 4, 5]], 1.0, None, "text"])
def test_inputs_must_be_arrays(tiny: Session, value: object) -> None:
    assert failure(lambda: tiny.run(None, {"x": value, "scale:0": SCALE}))[0][0] == "input-type"


@pytest.mark.parametrize("dtype", [object, np.complex64, "U3", "M8[s]", [("a", np.float32)]])
def test_dtypes_of_no_tensor(tiny: Session, dtype: Any) -> None:
    assert failure(lambda: tiny.run(None, feeds(np.zeros((2, 3), dtype))))[0][0] == "input-dtype"


def test_arguments_of_the_wrong_kind(tiny: Session) -> None:
    with pytest.raises(AotcTypeError, match="mapping"):
        tiny.run(None, [np.zeros(3)])  # type: ignore[arg-type]
    with pytest.raises(AotcTypeError, match="mapping"):
        tiny.bind(feeds(), [np.zeros(3)])  # type: ignore[arg-type]
    with pytest.raises(AotcTypeError, match="list, not a string"):
        tiny.run("y", feeds())


def test_all_wrong_outputs_of_a_binding_in_one_error(tiny: Session) -> None:
    read_only = np.zeros(1)
    read_only.flags.writeable = False
    found = failure(lambda: tiny.bind(feeds(), {"yy": None, "y": np.zeros((3, 2)).T, "sum": read_only}))
    assert [code for code, _, _ in found] == ["output-unknown", "output-dtype", "output-memory", "output-memory"]
    assert failure(lambda: tiny.bind(feeds(), {"y": [1, 2]}))[0][0] == "output-type"
    assert failure(lambda: tiny.bind(feeds(), {"y": None}))[0][0] == "output-type"


def test_bound_arrays_must_not_overlap(tiny: Session) -> None:
    x = np.zeros((2, 3), np.float32)
    memory = np.zeros(32, np.uint8)
    y, total = memory[:24].view(np.float32).reshape(2, 3), memory[16:24].view(np.float64)
    assert failure(lambda: tiny.bind(feeds(x), {"y": x}))[0][1] == "output 'y' and input 'x' share memory"
    found = failure(lambda: tiny.bind(feeds(), {"y": y, "sum": total}))
    assert [message for _, message, _ in found] == ["output 'y' and output 'sum' share memory"]
    tiny.bind(feeds(), {"y": y, "sum": memory[24:].view(np.float64)}).run()


@pytest.mark.parametrize(("status", "words"), [(3, "options"), (99, "unknown status")])
def test_failing_run(build: Callable[..., Path], status: int, words: str) -> None:
    session = load(build("tiny", f"-DTINY_STATUS={status}"))
    for action in (lambda: session.run(None, feeds()), session.bind(feeds()).run):
        code, message, _ = failure(action)[0]
        assert code == "run"
        assert f"status {status}" in message and words in message


def test_loading_needs_no_compiler_modules(tiny_library: Path) -> None:
    program = (
        "import sys, numpy as np, aotc\n"
        f"session = aotc.load({str(tiny_library)!r})\n"
        "session.run(None, {'x': np.zeros((2, 3), 'float32'), 'scale:0': np.float32(1)})\n"
        "print(*sorted(m for m in sys.modules if m.split('.')[0] in ('aotc', 'aotc_codegen', 'onnx', 'jinja2')))\n"
    )
    paths = [str(ROOT / folder) for folder in (".", "codegen", "runtime_c")]
    command = [sys.executable, "-c", f"import sys; sys.path[:0] = {paths!r}\n{program}"]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout.split()
    allowed = ("aotc.ir", "aotc.runtime")
    assert "aotc.runtime.session" in loaded
    assert [m for m in loaded if m != "aotc" and not m.startswith(allowed)] == []


def test_session_ends_with_its_last_reference(tiny_library: Path) -> None:
    """Without garbage collection, so that its library is unloaded at once."""
    session = load(tiny_library)
    session.run(None, feeds())
    watch = weakref.ref(session)
    gc.disable()
    try:
        del session
        assert watch() is None
    finally:
        gc.enable()


def test_an_error_of_a_signal_leaves_the_lock_of_another_thread(tiny: Session) -> None:
    binding = tiny.bind(feeds())
    taken, release = threading.Event(), threading.Event()

    def hold() -> None:
        with binding._lock:
            taken.set()
            release.wait(10)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    holder = threading.Thread(target=hold)
    holder.start()
    taken.wait()
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(KeyboardInterrupt):
            binding.run()
        other: list[bool] = []
        thread = threading.Thread(target=lambda: other.append(binding._lock.acquire(blocking=False)))
        thread.start()
        thread.join()
        assert (other, tiny.calls) == ([False], 0)
    finally:
        signal.signal(signal.SIGALRM, before)
        release.set()
        holder.join()
    binding.run()
    assert (tiny.calls, tiny.calls) == (1, 1)


def test_a_run_within_a_run_of_a_binding_is_refused(tiny: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a function that is called before each step has it: the buffers of the outer run stay."""
    call = tiny._call

    def nested(*arguments: Any) -> int:
        with pytest.raises(AotcError, match="runs on these buffers already"):
            binding.run()
        status: int = call(*arguments)
        return status

    monkeypatch.setattr(tiny, "_call", nested)
    binding = tiny.bind(feeds())
    binding.run_with_step_callback(0, 0)
    np.testing.assert_array_equal(binding.outputs["sum"], [36.0])
