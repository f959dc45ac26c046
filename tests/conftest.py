# SPDX-License-Identifier: Apache-2.0
"""What all tests share: the operator table, optional tools and data, one compiled library per batch."""

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

ROOT = Path(__file__).parents[1]

install_operators_and_passes()

# Tests start hundreds of Python processes.  Without files of byte code each of these compiles every module of aotc,
# which takes longer than what most of them do.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# One thread for each worker's matrix products: threads of several workers would wait for one another in busy loops,
# which takes most of the time of small products.  Workers and commands that tests start inherit it.
for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

# A change is judged by examples that are drawn alike each time; `make test-all` looks for others.
settings.register_profile("seeded", derandomize=True)
settings.register_profile("random", derandomize=False)
settings.load_profile("seeded")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="Write the expected texts of tests/golden anew.")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Tell for which targets nothing could run."""
    from tests.targets.native import beyond

    for target, why in beyond().items():
        terminalreporter.write_line(f"not run: kernels for {target}, compiled and interpreted: {why}")


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether expected texts are written instead of compared."""
    return bool(request.config.getoption("--update-golden"))


@pytest.fixture(autouse=True, scope="session")
def cache(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The cache of kernels and objects: one for all workers of this run, not the user's.

    A worker's temporary folder lies in that of the run.  Variables of the environment do not tell workers: a test that
    starts pytest hands them on.
    """
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if hasattr(request.config, "workerinput") else own) / "cache"
    folder.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AOTC_CACHE_DIR", str(folder))
        yield folder


@pytest.fixture(autouse=True, scope="module")
def few_objects_to_search() -> None:
    """What is alive between modules is left out of Python's search for garbage: otherwise each search goes through the
    objects of ten thousand tests, and takes a third of the time."""
    gc.collect()
    gc.freeze()


def missing(what: str) -> None:
    """Skip the test, or fail it where nothing may be skipped (AOTC_REQUIRE_ALL=1)."""
    if os.environ.get("AOTC_REQUIRE_ALL") == "1":
        pytest.fail(f"{what} is missing and AOTC_REQUIRE_ALL=1 allows no skips")
    pytest.skip(f"{what} is missing")


def require_tool(name: str) -> str:
    """The path of a command, or no test."""
    path = shutil.which(name)
    if path is None:
        missing(name)
    return path or ""


@pytest.fixture
def clang() -> str:
    return require_tool("clang")


@pytest.fixture
def cmake() -> str:
    return require_tool("cmake")


@pytest.fixture(scope="session")
def models() -> Path:
    """The folder of trained models: $AOTC_MODELS, or shared/models beside the checkout."""
    folder = Path(os.environ.get("AOTC_MODELS", ROOT.parent / "shared" / "models"))
    if not folder.is_dir():
        pytest.skip(f"no trained models at {folder}")
    return folder
