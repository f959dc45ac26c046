# SPDX-License-Identifier: Apache-2.0
"""Pytest plugin that measures the processor seconds of each test, including processes that the test waits for.

python -m pytest -p tests.processor_times -n 2 -m "not slow"      # writes build/processor_times.gw0 and .gw1
python -m tests.processor_times                                   # prints the sums of all tests and of each file

Unlike the times of `--durations`, these hardly depend on what else the machine does.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

FOLDER = Path("build")


def _seconds() -> float:
    """Return the processor seconds of this process and of its children that ended."""
    return sum(os.times()[:4])


def pytest_configure() -> None:
    """Empty the output file of this worker."""
    FOLDER.mkdir(exist_ok=True)
    _file().write_text("", encoding="utf-8")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Append a line with the seconds, a tab and the name of the test."""
    before = _seconds()
    yield
    with _file().open("a", encoding="utf-8") as file:
        file.write(f"{_seconds() - before:.3f}\t{item.nodeid}\n")


def _file() -> Path:
    return FOLDER / f"processor_times.{os.environ.get('PYTEST_XDIST_WORKER', 'main')}"


def main() -> None:
    """Print the sums of the files that the last run wrote."""
    files, tests = defaultdict[str, float](float), Counter[str]()
    for path in FOLDER.glob("processor_times.*"):
        for line in path.read_text(encoding="utf-8").splitlines():
            seconds, _, test = line.partition("\t")
            name = test.partition("::")[0]
            files[name] += float(seconds)
            tests[name] += 1
    print(f"{sum(files.values()):9.1f} s {tests.total():6} tests in all")
    for name, total in sorted(files.items(), key=lambda item: -item[1]):
        print(f"{total:9.1f} s {tests[name]:6} tests in {name}")


if __name__ == "__main__":
    main()
