# SPDX-License-Identifier: Apache-2.0
"""Collect the cases of `.test` files as tests: `pytest tests/passes/fold_constant.test -k tuples`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.passes.case_check import check_case
from tests.passes.case_file import Case, CaseFileError, read_cases


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Return the collector of a `.test` file, None for other files."""
    return CaseFile.from_parent(parent, path=file_path) if file_path.suffix == ".test" else None


class CaseFile(pytest.File):
    """A `.test` file; each case is a test."""

    def collect(self) -> Iterator[pytest.Item]:
        """Yield a test for each case; a file that is not well formed is an error of collection."""
        try:
            cases = read_cases(self.path)
        except CaseFileError as error:
            raise self.CollectError(str(error)) from None
        for case in cases:
            yield CaseItem.from_parent(self, name=case.name, case=case)


class CaseItem(pytest.Item):
    """A case of a `.test` file."""

    def __init__(self, *, case: Case, **options: Any) -> None:
        super().__init__(**options)
        self.case = case

    def runtest(self) -> None:
        """Run the case; with --update-golden, write the result into the file."""
        check_case(self.case, update=bool(self.config.getoption("--update-golden")))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Return the message of a failed comparison alone, and the traceback of other exceptions."""
        if isinstance(excinfo.value, CaseFileError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int, str]:
        """Return file, line (from 0) and name of the case."""
        return self.path, self.case.line - 1, self.name
