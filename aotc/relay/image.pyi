# SPDX-License-Identifier: Apache-2.0
from aotc.relay.op.builders import affine_grid as affine_grid
from aotc.relay.op.builders import crop_and_resize as crop_and_resize
from aotc.relay.op.builders import dilation2d as dilation2d
from aotc.relay.op.builders import grid_sample as grid_sample
from aotc.relay.op.builders import resize1d as resize1d
from aotc.relay.op.builders import resize2d as resize2d
from aotc.relay.op.builders import resize3d as resize3d
