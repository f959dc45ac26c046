# SPDX-License-Identifier: Apache-2.0
"""What Relay's users check results with: `aotc.testing.assert_allclose(actual, desired, rtol=1e-5)`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aotc.ir.lazy import lazy_names

if TYPE_CHECKING:
    from aotc.relay_api.files import assert_allclose as assert_allclose

__getattr__, __dir__ = lazy_names(__name__, {"aotc.relay_api.files": "assert_allclose"})
