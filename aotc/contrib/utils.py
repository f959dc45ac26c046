# SPDX-License-Identifier: Apache-2.0
"""Relay's helpers for files: `tempdir().relpath("deploy_lib.tar")`."""

from aotc.relay_api.contrib_utilities import TempDirectory as TempDirectory
from aotc.relay_api.contrib_utilities import tempdir as tempdir
