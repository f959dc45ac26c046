# SPDX-License-Identifier: Apache-2.0
"""Relay's helpers for files: `tempdir().relpath("deploy_lib.tar")`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aotc.ir.lazy import lazy_names

if TYPE_CHECKING:
    from aotc.relay_api.files import TempDirectory as TempDirectory
    from aotc.relay_api.files import tempdir as tempdir

__getattr__, __dir__ = lazy_names(__name__, {"aotc.relay_api.files": "TempDirectory tempdir"})
