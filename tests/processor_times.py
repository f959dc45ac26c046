# SPDX-License-Identifier: Apache-2.0
"""Pytest plugin that measures the processor seconds of each test, including processes that the test waits for.

python -m pytest -p tests.processor_times -n 2 -m "not slow"      # writes build/processor_times.gw0 and .gw1
python -m tests.processor_times                                   # prints the sums of all tests and of each file
python -m tests.processor_times --write-expensive                 # brings tests/expensive_tests.txt up to date

Unlike the times of `--durations`, these hardly depend on what else the machine does.
"""

from __future__ import annotations

import os
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from tests.share import EXPENSIVE_TESTS, MAX_EXPECTED_SECONDS, expensive_tests

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


def _measured() -> dict[str, list[float]]:
    """Return the processor seconds of each case, by the name of its test function."""
    seconds = defaultdict[str, list[float]](list)
    for path in FOLDER.glob("processor_times.*"):
        for line in path.read_text(encoding="utf-8").splitlines():
            time, _, test = line.partition("\t")
            seconds[test.partition("[")[0]].append(float(time))
    return seconds


def write_expensive(measured: Mapping[str, Sequence[float]]) -> None:
    """Write expensive_tests.txt: functions that took longer than MAX_EXPECTED_SECONDS, with the mean of their cases.

    A function that stands in the file and exists stays, because only a share of its cases may have been measured.
    """
    means = {name: value for name, value in expensive_tests().items() if exists(name)}
    for name, times in measured.items():
        if name in means or sum(times) > MAX_EXPECTED_SECONDS:
            means[name] = sum(times) / len(times)
    lines = [f"{max(value, 0.0001):.4f} {name}\n" for name, value in sorted(means.items())]
    EXPENSIVE_TESTS.write_text("".join(lines), encoding="utf-8")


def exists(name: str) -> bool:
    """Return True if a file defines the test function of a name such as `tests/ops/test_dense.py::test_shapes`."""
    path, _, function = name.partition("::")
    file = EXPENSIVE_TESTS.parents[1] / path
    return file.is_file() and f"def {function.rpartition('::')[2]}(" in file.read_text(encoding="utf-8")


def main() -> None:
    """Print the sums of the files that the last run wrote, or bring expensive_tests.txt up to date."""
    measured = _measured()
    if "--write-expensive" in sys.argv[1:]:
        write_expensive(measured)
        return
    files, tests = defaultdict[str, float](float), Counter[str]()
    for name, times in measured.items():
        files[name.partition("::")[0]] += sum(times)
        tests[name.partition("::")[0]] += len(times)
    print(f"{sum(files.values()):9.1f} s {tests.total():6} tests in all")
    for name, total in sorted(files.items(), key=lambda item: -item[1]):
        print(f"{total:9.1f} s {tests[name]:6} tests in {name}")


if __name__ == "__main__":
    main()
