# SPDX-License-Identifier: Apache-2.0
"""These tests need torch: without it they are skipped, or fail if skipping is not allowed."""

from __future__ import annotations

import importlib.util
import os
from typing import Any

MISSING = importlib.util.find_spec("torch") is None and os.environ.get("AOTC_REQUIRE_ALL") != "1"
collect_ignore_glob = ["*.py"] if MISSING else []


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if MISSING:
        terminalreporter.write_line("skipped: tests/frontend_pytorch, since torch is missing")
