# SPDX-License-Identifier: Apache-2.0
"""Relay's passes over quantized operators: `relay.qnn.transform.CanonicalizeOps()`, `Legalize()`."""

from functools import partial

from aotc.relay.transform.canonicalize_qnn_ops import QnnCanonicalizeOps
from aotc.relay.transform.legalize import Legalize as _Legalize

__all__ = ["CanonicalizeOps", "Legalize"]

CanonicalizeOps = QnnCanonicalizeOps
#: The pass Legalize with the functions attached under "FTVMQnnLegalize".
Legalize = partial(_Legalize, "FTVMQnnLegalize")
