# SPDX-License-Identifier: Apache-2.0
"""Install the operator and pass tables of `aotc.relay` in `aotc.ir`, which must not import them
itself.
"""

from functools import cache

from aotc.ir import op as ir_op
from aotc.ir import transform as ir_transform
from aotc.relay.op import OPERATORS_BY_NAME
from aotc.relay.transform import PASSES


@cache
def install_operators_and_passes() -> None:
    """Register all operators and passes by name; repeated calls have no effect."""
    ir_op.install_op_table(OPERATORS_BY_NAME)
    ir_transform.install_passes(PASSES)
