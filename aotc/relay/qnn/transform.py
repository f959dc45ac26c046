# SPDX-License-Identifier: Apache-2.0
"""Relay's passes over quantised operators: `relay.qnn.transform.CanonicalizeOps()`."""

from aotc.relay.transform.quantised import QnnCanonicalizeOps

__all__ = ["CanonicalizeOps"]

CanonicalizeOps = QnnCanonicalizeOps
