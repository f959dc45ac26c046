# SPDX-License-Identifier: Apache-2.0
"""Fixtures and settings of all tests: registered operators, the compile cache, optional tools and trained models."""

from __future__ import annotations

import gc
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from aotc.driver.operator_and_pass_registration import install_operators_and_passes
from tests.share import expensive_tests, leave_out_expensive_cases

ROOT = Path(__file__).parents[1]

install_operators_and_passes()

# Tests start hundreds of Python processes.  Without cached bytecode, each process would compile every module of aotc,
# which takes longer than the work of most of these processes.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Matrix products of each worker run on one thread: threads of several workers would wait for each other in busy loops,
# which takes most of the time of small products.  Workers and commands that tests start inherit these variables.
for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

# Property tests draw the same examples in every run, so that only a change can make them fail; `make test-all` draws
# others.
settings.register_profile("seeded", derandomize=True)
settings.register_profile("random", derandomize=False)
settings.load_profile("seeded")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="Write the expected texts of tests/golden again.")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what `make test` leaves out as slow, before the option -m selects tests by their marks."""
    leave_out_expensive_cases(items, expensive_tests())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print each target whose kernels no test could run on this processor, with the reason."""
    from tests.targets.native_targets import targets_that_cannot_run

    for target, why in targets_that_cannot_run().items():
        terminalreporter.write_line(f"not run: kernels for {target}, compiled and interpreted: {why}")


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """True if tests write the expected texts instead of comparing with them."""
    return bool(request.config.getoption("--update-golden"))


@pytest.fixture(autouse=True, scope="session")
def cache(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Folder of the compile cache for all workers of this test run, in place of the user's cache.

    A worker's temporary folder lies in that of the run.  Variables of the environment do not identify workers, because
    a test that starts pytest hands them on.
    """
    temporary_folder = tmp_path_factory.getbasetemp()
    is_worker = hasattr(request.config, "workerinput")
    folder = (temporary_folder.parent if is_worker else temporary_folder) / "cache"
    folder.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AOTC_CACHE_DIR", str(folder))
        yield folder


@pytest.fixture(autouse=True, scope="module")
def exclude_live_objects_from_garbage_collection() -> None:
    """Exclude the objects that exist before the tests of a module from Python's garbage collection.

    Otherwise each collection visits the objects of ten thousand tests, which takes a third of the time of all tests.
    """
    gc.collect()
    gc.freeze()


def skip_or_fail_without(requirement: str) -> None:
    """Skip the running test because a tool or package is missing; fail it if AOTC_REQUIRE_ALL=1 forbids skipping."""
    if os.environ.get("AOTC_REQUIRE_ALL") == "1":
        pytest.fail(f"{requirement} is missing and AOTC_REQUIRE_ALL=1 allows no skips")
    pytest.skip(f"{requirement} is missing")


def require_tool(name: str) -> str:
    """Return the path of a command; skip or fail the running test if the command is not installed."""
    path = shutil.which(name)
    if path is None:
        skip_or_fail_without(name)
    return path or ""


@pytest.fixture
def no_ziglang(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the Python package with zig's C compiler from this process."""
    monkeypatch.setitem(sys.modules, "ziglang", None)


@pytest.fixture
def clang() -> str:
    return require_tool("clang")


@pytest.fixture
def cmake() -> str:
    return require_tool("cmake")


@pytest.fixture(scope="session")
def models() -> Path:
    """The folder of trained models: $AOTC_MODELS, or ../shared/models from the checkout; skips the test without it."""
    folder = Path(os.environ.get("AOTC_MODELS", ROOT.parent / "shared" / "models"))
    if not folder.is_dir():
        pytest.skip(f"no trained models at {folder}")
    return folder
