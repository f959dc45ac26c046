# SPDX-License-Identifier: Apache-2.0
"""Where tables of upper floors are installed for lower ones: operators by name, passes by name."""

from functools import cache

from aotc.ir import op as ir_op
from aotc.ir import transform as ir_transform
from aotc.relay.op import REGISTRY
from aotc.relay.transform import PASSES


@cache
def install() -> None:
    """Make operators and passes known by name; harmless to call again."""
    ir_op.install(REGISTRY)
    ir_transform.install_passes(PASSES)
