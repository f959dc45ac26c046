# SPDX-License-Identifier: Apache-2.0
"""The functions that build calls of operators, under Relay's names.

    conv2d(data, weight, channels=64, kernel_size=(3, 3))        # relay.nn.conv2d

Each is made from its operator (`aotc.relay.op.call_builders`); their types, for checkers
and editors, stand in builders.pyi, which `python -m tests.ops.builders_stub` writes.
"""

from aotc.relay.op.call_builders import FUNCTIONS

_OURS = {name: f for name, f in FUNCTIONS.items() if not name.startswith(("dyn.", "qnn."))}
__all__ = sorted({name.rpartition(".")[2] for name in _OURS})

globals().update({name.rpartition(".")[2]: f for name, f in _OURS.items()})
