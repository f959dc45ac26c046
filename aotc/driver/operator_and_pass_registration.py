# SPDX-License-Identifier: Apache-2.0
"""Tell `aotc.ir` where the tables of operators and passes are; it must not import `aotc.relay`
itself.
"""

from functools import cache
from importlib import import_module

from aotc.ir import op as ir_op
from aotc.ir import transform as ir_transform


@cache
def install_operators_and_passes() -> None:
    """Register all operators and passes by name; repeated calls have no effect.

    The first lookup of an operator or a pass imports all of them, which takes half a second.
    """
    ir_op.install_op_table(lambda: import_module("aotc.relay.op").OPERATORS_BY_NAME)
    ir_transform.install_passes(lambda: import_module("aotc.relay.transform").PASSES)
