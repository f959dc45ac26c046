# SPDX-License-Identifier: Apache-2.0
"""Pattern tables of external compilers, from which the pass MergeComposite makes composite
functions.

@register_pattern_table("mine")
def table():
    return [("mine.dense_relu", is_op("nn.relu")(is_op("nn.dense")(wildcard(), wildcard())))]

relay.transform.MergeComposite(get_pattern_table("mine"))
"""

from aotc.relay.op.contrib.register import get_pattern_table as get_pattern_table
from aotc.relay.op.contrib.register import register_pattern_table as register_pattern_table
