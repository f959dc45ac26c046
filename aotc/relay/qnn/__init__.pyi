# SPDX-License-Identifier: Apache-2.0
from aotc.relay.qnn import op as op
from aotc.relay.qnn import transform as transform
