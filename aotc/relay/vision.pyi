# SPDX-License-Identifier: Apache-2.0
from aotc.relay.op.builders import yolo_reorg as yolo_reorg
