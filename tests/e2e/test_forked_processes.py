# SPDX-License-Identifier: Apache-2.0
"""Sessions in forked children, in other processes, and at the end of a process.

Each scenario is a program with a time limit: what goes wrong here hangs or crashes.
"""

from __future__ import annotations

import copy
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest

from aotc.driver.compile import compile
from aotc.driver.pipeline import CompiledModel
from aotc.ir.diagnostics import AotcError, AotcTypeError, Diagnostic
from aotc.ir.span import Span
from aotc.ir.types import TensorType
from aotc.relay.expr import Constant, Function, Var
from aotc.relay.module import IRModule
from aotc.relay.op.dense import dense
from aotc.relay.op.elementwise_unary import relu
from aotc.runtime.fork_safety import ScratchDirectory
from aotc.runtime.session import load

ROOT = Path(__file__).parents[2]
SECONDS = 60
PREAMBLE = """
import gc, multiprocessing, os, pickle, sys, threading, time, traceback
import numpy as np
import aotc

path = sys.argv[1]
FEEDS = {"x": np.linspace(-1, 1, 256, dtype=np.float32).reshape(1, 256)}

def check(session, expected, rounds=5):
    binding = session.bind(FEEDS)
    for _ in range(rounds):
        assert (session.run(None, FEEDS)[0] == expected).all()
        binding.run()
        assert (binding.outputs["output"] == expected).all()

def forked(body):
    pid = os.fork()
    if pid:
        return pid
    try:
        body()
    except Exception:
        traceback.print_exc()
        os._exit(1)
    sys.exit(0)  # with all that Python does at its end

def joined(*pids):
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0] * len(pids)
"""


def network() -> IRModule:
    rng = np.random.default_rng(0)
    x = Var("x", TensorType((1, 256)))
    weights = [Constant(rng.standard_normal((256, 256)).astype(np.float32) / 16) for _ in range(3)]
    return IRModule({"main": Function((x,), dense(relu(dense(relu(dense(x, weights[0])), weights[1])), weights[2]))})


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> CompiledModel:
    return compile(network(), output=tmp_path_factory.mktemp("processes") / "net", name="net", target="x86-64-v3")


def runs(body: str, *arguments: object, folder: Path) -> None:
    """Run a program to its end: the preamble, then `body`."""
    program = folder / "program.py"
    program.write_text(PREAMBLE + dedent(body))
    paths = os.pathsep.join(str(ROOT / part) for part in (".", "codegen", "runtime_c"))
    command = [sys.executable, str(program), *map(str, arguments)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=SECONDS, check=False, env={**os.environ, "PYTHONPATH": paths}
    )
    assert done.returncode == 0 and not done.stderr, done.stderr


def test_forked_children_run(model: CompiledModel, tmp_path: Path) -> None:
    """Used before the fork or not, used in the child or not, in children of children, dropped in the child."""
    body = """
        expected = aotc.load(path).run(None, FEEDS)[0]
        session, unused = aotc.load(path, threads=3), aotc.load(path, threads=2)
        binding = session.bind(FEEDS)
        check(session, expected)

        def child(depth):
            check(unused, expected)
            check(session, expected)
            binding.run()
            if depth:
                joined(forked(lambda: child(depth - 1)), forked(lambda: None))
            check(session, expected)

        def dropping():
            global session, binding
            del session, binding
            gc.collect()

        joined(forked(lambda: None), forked(lambda: child(1)), forked(dropping))
        check(session, expected)
        """
    runs(body, model.path, folder=tmp_path)


BUSY = """
session = aotc.load(path, threads=2)
expected = aotc.load(path).run(None, FEEDS)[0]
binding = session.bind(FEEDS)
done = False

def work(step):
    while not done:
        step()

def while_others(*steps):
    global done
    workers = [threading.Thread(target=work, args=(s,)) for s in steps]
    for worker in workers:
        worker.start()
    for _ in range(6):
        joined(forked(child))
    done = True
    for worker in workers:
        worker.join()
"""


def test_fork_while_other_threads_run(model: CompiledModel, tmp_path: Path) -> None:
    body = """
        def child():
            binding.run()
            assert (binding.outputs["output"] == expected).all()
            check(session, expected, rounds=1)

        while_others(binding.run, lambda: session.run(None, FEEDS))
        check(session, expected, rounds=1)
        """
    runs(BUSY + dedent(body), model.path, folder=tmp_path)


def test_fork_while_another_thread_copies_bound_inputs(model: CompiledModel, tmp_path: Path) -> None:
    body = """
        binding = session.bind({"x": np.repeat(FEEDS["x"], 2, axis=1)[:, ::2]})  # not contiguous

        def child():
            binding.run()
            assert (binding.outputs["output"] == expected).all()

        while_others(binding.run)
        """
    runs(BUSY + dedent(body), model.path, folder=tmp_path)


def test_fork_while_another_thread_loads(model: CompiledModel, tmp_path: Path) -> None:
    body = """
        from aotc.runtime.abi import ffi

        def load():
            with ffi._lock:  # as while it opens a library, but for longer
                time.sleep(0.002)
            aotc.load(path)

        def child():
            check(aotc.load(path), expected, rounds=1)

        while_others(load)
        """
    runs(BUSY + dedent(body), model.path, folder=tmp_path)


def test_preloading_server(model: CompiledModel, tmp_path: Path) -> None:
    """Loaded and run once, then forked into workers that run requests on several threads."""
    body = """
        session = aotc.load(path, threads=2)
        expected = session.run(None, FEEDS)[0]

        def serve():
            failures = []

            def requests():
                try:
                    check(session, expected, rounds=20)
                except BaseException as error:
                    failures.append(error)

            threads = [threading.Thread(target=requests) for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert not failures, failures

        joined(*[forked(serve) for _ in range(3)])
        check(session, expected)
        """
    runs(body, model.path, folder=tmp_path)


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_multiprocessing(model: CompiledModel, method: str, tmp_path: Path) -> None:
    body = """
        def work(session):
            assert session.threads.count == 2
            check(session, session.run(None, FEEDS)[0])
            return session, session.run(None, FEEDS)[0]

        def wrong(session):
            session.run(None, {})

        if __name__ == "__main__":
            context = multiprocessing.get_context(sys.argv[2])
            session = aotc.load(path, threads=2)
            expected = session.run(None, FEEDS)[0]
            process = context.Process(target=work, args=(session,))
            process.start()
            process.join()
            assert process.exitcode == 0
            with context.Pool(2) as pool:
                for there, found in pool.map(work, [session] * 2):
                    assert (found == expected).all()
                    check(there, expected)
                try:
                    pool.map(wrong, [session])
                except aotc.AotcError as error:
                    assert error.code == "input-missing", error
                else:
                    raise AssertionError
        """
    runs(body, model.path, method, folder=tmp_path)


def test_the_end_of_a_process(model: CompiledModel, tmp_path: Path) -> None:
    """Sessions that are running, in cycles, and kept by modules."""
    body = """
        session = aotc.load(path, threads=2)
        expected = session.run(None, FEEDS)[0]
        tasks = lambda: len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else 0
        before = tasks()
        for _ in range(30):
            other = aotc.load(path, threads=3)
            other.keep_alive = [other]
            check(other, expected, rounds=1)
        sessions = [aotc.load(path, threads=2) for _ in range(20)]
        for other in sessions:
            check(other, expected, rounds=1)
        del other, sessions
        gc.collect()
        assert tasks() == before

        dropped = aotc.load(path, threads=2)
        thread = threading.Thread(target=check, args=(dropped, expected, 200))
        thread.start()
        del dropped  # while it runs
        thread.join()

        def work(step):
            while True:
                step()

        for step in (session.bind(FEEDS).run, lambda: session.run(None, FEEDS)):
            threading.Thread(target=work, args=(step,), daemon=True).start()
        cycle = aotc.load(path, threads=2)
        cycle.keep_alive = cycle, cycle.bind(FEEDS)
        cycle.run(None, FEEDS)
        time.sleep(0.05)
        """
    runs(body, model.path, folder=tmp_path)


def test_children_leave_the_files_of_their_parent(model: CompiledModel, tmp_path: Path) -> None:
    body = """
        from aotc.runtime.module import load_module

        session = load_module(path)["net"](aotc.cpu())
        expected = session.run(None, FEEDS)[0]
        text = pickle.dumps(session)
        joined(forked(lambda: None))
        assert session.path.is_file()
        assert (pickle.loads(text).run(None, FEEDS)[0] == expected).all()
        folder = session.path.parent.parent
        del session
        gc.collect()
        assert not folder.exists()
        try:
            pickle.loads(text)
        except aotc.AotcError as error:
            assert error.code == "load" and "temporary directory" in str(error), error
        else:
            raise AssertionError
        """
    archive = shutil.make_archive(str(tmp_path / "net"), "tar", model.path)
    runs(body, archive, folder=tmp_path)


def test_scratch_directories_are_removed(tmp_path: Path) -> None:
    first, second = ScratchDirectory("aotc-test-"), ScratchDirectory("aotc-test-")
    paths = [Path(first.name), Path(second.name)]
    (paths[0] / "file").touch()
    assert all(path.is_dir() for path in paths)
    first.remove()
    del second
    assert not any(path.exists() for path in paths)


def test_pickled_sessions_keep_their_options(
    model: CompiledModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(model.path.parent)
    session = load("net", threads=2, isa="x86-64-v3")
    sharing = load("net", threads=session.threads)  # type: ignore[arg-type]
    monkeypatch.chdir(tmp_path)
    there, beside, alone = pickle.loads(pickle.dumps([session, sharing, load(model.path)]))
    assert (there.threads.count, there.isa, alone.threads) == (2, "x86-64-v3", None)
    assert beside.threads is there.threads is not session.threads
    assert copy.copy(session).threads.count == 2
    with pytest.raises(AotcTypeError, match="cannot be pickled"):
        pickle.dumps(session.bind({"x": np.zeros((1, 256), np.float32)}))


def test_errors_are_pickled_whole() -> None:
    items = [Diagnostic("a", "first", Span("net.onnx", "node"), ("note",), "hint"), Diagnostic("b", "second")]
    for kind in (AotcError, AotcTypeError):
        found = pickle.loads(pickle.dumps(kind.collect(items)))
        assert (type(found), found.diagnostics, str(found)) == (kind, tuple(items), str(kind.collect(items)))
