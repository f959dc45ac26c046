# SPDX-License-Identifier: Apache-2.0
"""InferType: fill in the type of every expression.

def @main(%x: Tensor[(2, 3), float32]) { nn.relu(%x) }
def @main(%x: Tensor[(2, 3), float32]) -> Tensor[(2, 3), float32] { nn.relu(%x) /* Tensor[(2, 3), float32] */ }
"""

from __future__ import annotations

from aotc.ir import Pass, PassContext
from aotc.relay.infer import infer_module
from aotc.relay.module import IRModule


class InferType(Pass[IRModule]):
    """Type inference over the whole module; see `aotc.relay.infer`."""

    def run(self, module: IRModule, ctx: PassContext) -> IRModule:
        return infer_module(module)
