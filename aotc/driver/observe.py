# SPDX-License-Identifier: Apache-2.0
"""Instruments for the command line, which may not look below the driver itself."""

from __future__ import annotations

from aotc.relay.instrument.dump import dump_ir

__all__ = ["dump_ir"]
