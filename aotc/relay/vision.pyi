# SPDX-License-Identifier: Apache-2.0
from aotc.relay.op.builders import roi_align as roi_align
from aotc.relay.op.builders import roi_pool as roi_pool
from aotc.relay.op.builders import yolo_reorg as yolo_reorg
