# SPDX-License-Identifier: Apache-2.0
"""Relay's debugger: `from aotc.contrib.debugger import debug_executor`."""

from aotc.contrib.debugger import debug_executor as debug_executor
