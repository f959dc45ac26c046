# SPDX-License-Identifier: Apache-2.0
"""The version of aotc, read by packaging, emitted projects, reports and `aotc.__version__`.

A literal, so that setuptools finds it without importing the package.
"""

from typing import Final

VERSION: Final = "0.3.0"
