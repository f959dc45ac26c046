# SPDX-License-Identifier: Apache-2.0
from aotc.relay.op.builders import all_class_non_max_suppression as all_class_non_max_suppression
from aotc.relay.op.builders import get_valid_counts as get_valid_counts
from aotc.relay.op.builders import multibox_prior as multibox_prior
from aotc.relay.op.builders import multibox_transform_loc as multibox_transform_loc
from aotc.relay.op.builders import non_max_suppression as non_max_suppression
from aotc.relay.op.builders import proposal as proposal
from aotc.relay.op.builders import roi_align as roi_align
from aotc.relay.op.builders import roi_pool as roi_pool
from aotc.relay.op.builders import select_boxes as select_boxes
from aotc.relay.op.builders import yolo_reorg as yolo_reorg
