# SPDX-License-Identifier: Apache-2.0
"""Relay's targets: `aotc.target.target.Target("llvm")`."""

from aotc.relay_api.target import Target as Target
