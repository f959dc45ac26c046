# SPDX-License-Identifier: Apache-2.0
"""Run options of C callers on a device, and their misuse."""

from __future__ import annotations

import ctypes
import gc
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aotc.driver.compile_sources import build_project_library
from aotc.driver.cuda_emulation import CUDA_DRIVER_VARIABLE, build_fake_cuda_driver, run_models_on_fake_gpu
from aotc.driver.toolchain import find_toolchain
from aotc.ir.diagnostics import AotcError
from aotc.runtime.abi import STATUS_MESSAGES, ffi
from aotc.runtime.gpu_session import DeviceSession, OpenGpu
from aotc.runtime.library import Library, find_library
from aotc.tir.target import get_target
from tests.cuda.programs import SIZE, diamond_results
from tests.cuda.test_project import written

X = np.linspace(-3, 3, SIZE, dtype=np.float32)
NO_WAIT, PLAIN, DEVICE_POINTERS = 1, 2, 4


class Caller:
    """A loaded model on the fake device, and a session."""

    def __init__(self, project: Path) -> None:
        self.library = Library(find_library(project))
        self.device = OpenGpu(self.library, 0)
        self.session = DeviceSession(self.device)
        self.y, self.z = (np.zeros(SIZE, np.float32) for _ in range(2))
        self.kept: list[Any] = []

    def options(self, flags: int = 0, stream: int = 0, on_step: Any = ffi.NULL, size: int | None = None) -> Any:
        how = ffi.new("aotc_cuda_options *", [ffi.sizeof("aotc_cuda_options") if size is None else size])
        how.stream, how.flags = ffi.cast("void *", stream), flags
        made = ffi.new("aotc_run_options *", [ffi.sizeof("aotc_run_options"), on_step])
        made.cuda = how
        self.kept += [how, made]
        return made

    def run(self, options: Any = ffi.NULL, x: int = X.ctypes.data, workspace: Any = None) -> int:
        read = ffi.new("void *[]", [ffi.cast("void *", x)])
        written = ffi.new("void *[]", [ffi.cast("void *", array.ctypes.data) for array in (self.y, self.z)])
        return int(self.library.run(read, written, self.session.pointer if workspace is None else workspace, options))

    @property
    def right(self) -> bool:
        return all(np.array_equal(a, b) for a, b in zip((self.y, self.z), diamond_results(X), strict=True))


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("device")
    build_project_library(folder, written(folder), find_toolchain(), get_target("cuda"))
    return folder


@pytest.fixture
def caller(project: Path) -> Caller:
    with run_models_on_fake_gpu():
        return Caller(project)


@pytest.fixture
def stream(caller: Caller) -> Iterator[int]:
    """One of the caller's own."""
    driver, context, made = ctypes.CDLL(str(build_fake_cuda_driver())), ctypes.c_void_p(), ctypes.c_void_p()
    assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert driver.cuCtxPushCurrent_v2(context) == 0
    assert driver.cuStreamCreate(ctypes.byref(made), 0) == 0
    yield made.value or 0
    assert driver.cuStreamSynchronize(made) == 0
    assert driver.cuCtxPopCurrent_v2(ctypes.byref(context)) == 0


class Capture:
    """What a caller makes of what runs put into a stream: a graph of the caller's own."""

    def __init__(self, stream: int) -> None:
        self.driver, self.stream = ctypes.CDLL(str(build_fake_cuda_driver())), ctypes.c_void_p(stream)
        self.graph, self.made = ctypes.c_void_p(), ctypes.c_void_p()

    def __enter__(self) -> Capture:
        assert self.driver.cuStreamBeginCapture_v2(self.stream, 0) == 0
        return self

    def __exit__(self, *_: object) -> None:
        self.status = self.driver.cuStreamEndCapture(self.stream, ctypes.byref(self.graph))

    def replay(self) -> None:
        if not self.made:
            assert self.driver.cuGraphInstantiateWithFlags(ctypes.byref(self.made), self.graph, ctypes.c_uint64(0)) == 0
        assert self.driver.cuGraphLaunch(self.made, self.stream) == 0
        assert self.driver.cuStreamSynchronize(self.stream) == 0


def test_runs_in_a_stream_of_the_caller(caller: Caller, stream: int) -> None:
    assert caller.run(caller.options(stream=stream)) == 0 and caller.right


@pytest.mark.parametrize("stream", [1, 2])
def test_runs_in_the_streams_that_there_always_are(caller: Caller, stream: int) -> None:
    """The one of old, which waits for all others, and that of the thread."""
    assert caller.run(caller.options(stream=stream)) == 0 and caller.right


def test_launches_one_by_one(caller: Caller) -> None:
    assert caller.run(caller.options(PLAIN)) == 0 and caller.right


def test_runs_that_nobody_waits_for_come_before_the_next(caller: Caller, stream: int) -> None:
    """The next one, in another stream, takes the session's memory after them; the last result stays."""
    other = -X
    assert caller.run(caller.options(NO_WAIT, stream), x=other.ctypes.data) == 0
    assert not caller.right
    assert caller.run() == 0 and caller.right


def test_the_stream_of_another_thread_is_another_one(caller: Caller) -> None:
    """Though its number is the same: what came before is waited for, and what comes last stays."""
    other, mine = -X, 2
    first = threading.Thread(target=lambda: caller.run(caller.options(NO_WAIT, mine), x=other.ctypes.data))
    first.start()
    first.join()
    assert caller.run(caller.options(stream=mine)) == 0
    caller.device.cuda_driver("cuCtxSynchronize")
    assert caller.right


@pytest.mark.parametrize("before", [0, NO_WAIT])
def test_callers_capture_runs(caller: Caller, stream: int, before: int) -> None:
    """Their graph does what a run would, on what lies in the tensors by then; other runs come between."""
    x = X.copy()
    assert caller.run(caller.options(before)) == 0
    with Capture(stream) as capture:
        assert caller.run(caller.options(NO_WAIT | PLAIN, stream), x=x.ctypes.data) == 0
        caller.y[:] = caller.z[:] = 0
    assert capture.status == 0 and not caller.y.any()
    x[:] = -X
    assert caller.run() == 0 and caller.right
    for k in range(2):
        capture.replay()
        assert caller.right == (k == 1)
        x[:] = X


@pytest.mark.parametrize(("flags", "own"), [(PLAIN, True), (0, True), (0, False)])
def test_runs_that_wait_end_a_capture(caller: Caller, stream: int, flags: int, own: bool) -> None:
    """The driver's error is theirs, the capture is lost, and the session goes on."""
    with Capture(stream) as capture:
        status = caller.run(caller.options(flags, stream if own else 0))
        assert STATUS_MESSAGES[status] == "the driver of the GPU reports an error"
        said = caller.device.driver_error_text(status, caller.session.pointer)
        assert said == ": CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"
    assert capture.status == 901 and not capture.graph
    assert caller.run() == 0 and caller.right


def test_a_session_is_for_one_run_at_a_time(caller: Caller) -> None:
    inner: list[int] = []
    told = ffi.callback("aotc_step_fn", lambda *_: inner.append(caller.run()))
    assert caller.run(caller.options(on_step=told)) == 0 and caller.right
    assert {STATUS_MESSAGES[status] for status in inner} == {"another thread runs the session"}
    assert caller.run() == 0


def test_another_thread_is_told_that_a_session_runs(caller: Caller) -> None:
    begun, end, found = threading.Event(), threading.Event(), list[int]()
    told = ffi.callback("aotc_step_fn", lambda *_: begun.set() or (end.wait(60) and None))
    first = threading.Thread(target=lambda: found.append(caller.run(caller.options(on_step=told))))
    first.start()
    assert begun.wait(60)
    assert STATUS_MESSAGES[caller.run()] == "another thread runs the session"
    end.set()
    first.join()
    assert found == [0] and caller.right


@pytest.mark.parametrize("others", [False, True])
def test_a_reset_of_the_device_ends_sessions(
    project: Path, others: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They say so, and close, also where others have the device's memory by then; what is opened anew runs."""
    own = shutil.copy(build_fake_cuda_driver(), tmp_path)
    monkeypatch.setenv(CUDA_DRIVER_VARIABLE, own)
    before, driver, context, made = Caller(project), ctypes.CDLL(own), ctypes.c_void_p(), ctypes.c_uint64()
    assert before.run(before.options(NO_WAIT)) == 0
    assert driver.cuDevicePrimaryCtxReset_v2(0) == 0
    if others:
        assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
        assert driver.cuCtxPushCurrent_v2(context) == 0
        for _ in range(8):
            assert driver.cuMemAlloc_v2(ctypes.byref(made), ctypes.c_size_t(4 * SIZE)) == 0
    status = before.run()
    assert STATUS_MESSAGES[status] == "the driver of the GPU reports an error"
    assert before.device.driver_error_text(status, before.session.pointer) == ": CUDA_ERROR_CONTEXT_IS_DESTROYED"
    with pytest.raises(AotcError, match="does not take another run: the driver of the GPU reports an error"):
        DeviceSession(before.device)
    after = Caller(project)
    assert after.run() == 0 and after.right
    assert before.run() == status
    del before
    gc.collect()
    assert after.run() == 0 and after.right


def test_wrong_arguments_are_statuses(caller: Caller) -> None:
    """After each the session is as before."""
    for status, said in (
        (caller.run(x=X.ctypes.data + 1), "an input, an output or the workspace is not aligned"),
        (caller.run(x=0), "an input, an output or the workspace is missing"),
        (caller.run(workspace=ffi.NULL), "an input, an output or the workspace is missing"),
        (caller.run(caller.options(size=3)), "the options have an unknown size"),
        (caller.run(caller.options(DEVICE_POINTERS)), "a pointer is not of the GPU's memory, as was promised"),
    ):
        assert STATUS_MESSAGES[status] == said
        assert caller.run() == 0 and caller.right
