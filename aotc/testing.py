# SPDX-License-Identifier: Apache-2.0
"""Comparison of arrays at the name that Relay's users know: `aotc.testing.assert_allclose(actual,
desired, rtol=1e-5)`.
"""

from aotc.relay_api.contrib_utilities import assert_allclose as assert_allclose
