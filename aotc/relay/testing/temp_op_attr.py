# SPDX-License-Identifier: Apache-2.0
"""Set an attribute of an operator temporarily.

with TempOpAttr("nn.conv2d", "FTVMLegalize", legalize):
    mod = relay.transform.Legalize()(mod)
"""

from __future__ import annotations

from typing import Any

from aotc.ir.op import get_op


class TempOpAttr:
    """Context manager that sets an attribute of an operator inside its block and restores the
    previous value afterwards.
    """

    def __init__(self, op_name: str, attr_key: str, attr_value: Any) -> None:
        self.op, self.key, self.value = get_op(op_name), attr_key, attr_value
        self._before: Any = None

    def __enter__(self) -> TempOpAttr:
        self._before = self.op.get_attr(self.key)
        self.op.reset_attr(self.key)
        self.op.set_attr(self.key, self.value)
        return self

    def __exit__(self, *_: object) -> None:
        self.op.reset_attr(self.key)
        if self._before is not None:
            self.op.set_attr(self.key, self._before)
