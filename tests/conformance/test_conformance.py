# SPDX-License-Identifier: Apache-2.0
"""The official ONNX suite through compiled C: tests that passed before still pass."""

from __future__ import annotations

import os
import re

import pytest
from onnx_suite import Case, all_cases, failing, read_list, run_cases, summary
from page import PAGE

LEAST_NODE_TESTS = 900
LEAST_OF_QUANTIZATION = 45
QUANTIZATION = re.compile("quanti[sz]e|qlinear|convinteger|matmulinteger")
JOBS = max(1, (os.cpu_count() or 1) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))


def _run(cases: list[Case]) -> dict[str, str | None]:
    results = run_cases(cases, JOBS)
    known = read_list()
    new = {name: why for name, why in failing(results).items() if name not in known}
    fixed = [name for name in known if results.get(name, "") is None]
    print(summary(results))
    if fixed:
        print("newly passing, to be taken off the list:", *fixed, sep="\n  ")
    assert not new, "newly failing:\n" + "\n".join(f"  {name} | {why}" for name, why in new.items())
    return results


@pytest.mark.always
def test_a_sample_of_the_suite() -> None:
    """Every 240th test: quick enough for every run."""
    results = _run(all_cases(("node", "simple", "pytorch-operator", "pytorch-converted"))[::240])
    assert sum(why is None for why in results.values()) >= len(results) // 2


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_all_of_quantization() -> None:
    """Tests that mention it, and their expanded forms: none of them is known to fail."""
    results = _run([case for case in all_cases() if QUANTIZATION.search(case.name)])
    assert len(results) >= LEAST_OF_QUANTIZATION and failing(results) == {}


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_the_whole_suite() -> None:
    results = _run(all_cases())
    passed = sum(why is None for name, why in results.items() if name.startswith("node/"))
    assert passed >= LEAST_NODE_TESTS, f"only {passed} node tests pass"


def test_the_list_names_tests_that_exist() -> None:
    names = {case.name for case in all_cases()}
    assert not [name for name in read_list() if name not in names]
    listed = sum(name.startswith("node/") for name in read_list())
    assert sum(name.startswith("node/") for name in names) - listed >= LEAST_NODE_TESTS


def test_the_page_of_the_documentation_has_the_tests_of_the_list_with_their_reasons() -> None:
    section = PAGE.read_text(encoding="utf-8").partition("## Tests that fail")[2].partition("\n## ")[0]
    listed: dict[str, str] = {}
    why = ""
    for line in section.splitlines():
        if line.startswith("- "):
            why = line.partition(": ")[2]
        elif name := re.fullmatch(r"    - `(.+)`", line):
            listed[name[1]] = why
    assert listed == {name.partition("/")[2].removeprefix("test_"): why for name, why in read_list().items()}
