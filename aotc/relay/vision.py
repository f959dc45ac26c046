# SPDX-License-Identifier: Apache-2.0
"""Relay's operators for object detection: `relay.vision.yolo_reorg(data, stride=2)` and others."""

from functools import partial

from aotc.ir.lazy_exports import lazy_names
from aotc.relay_api.expr import op_namespace as _op_namespace

__getattr__, __dir__ = lazy_names(__name__, more=partial(_op_namespace, "vision"))
