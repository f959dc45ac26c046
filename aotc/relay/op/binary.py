# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from aotc.relay.op.opdef import OpDef

OPS: tuple[OpDef, ...] = ()
