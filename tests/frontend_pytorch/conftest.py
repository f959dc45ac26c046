# SPDX-License-Identifier: Apache-2.0
"""These tests need torch."""

from __future__ import annotations

import importlib.util
import os

collect_ignore_glob = [] if importlib.util.find_spec("torch") or os.environ.get("AOTC_REQUIRE_ALL") == "1" else ["*.py"]
