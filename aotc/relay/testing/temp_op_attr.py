# SPDX-License-Identifier: Apache-2.0
"""An attribute of an operator for a while.

with TempOpAttr("nn.conv2d", "FTVMLegalize", legalize):
    mod = relay.transform.Legalize()(mod)
"""

from __future__ import annotations

from typing import Any

from aotc.ir.op import get_op


class TempOpAttr:
    """Attaches a value to an operator inside of a block; what was there before is there again after it."""

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
