# SPDX-License-Identifier: Apache-2.0
"""The functions that build calls of operators, with Relay's names.

    conv2d(data, weight, channels=64, kernel_size=(3, 3))        # relay.nn.conv2d

The functions are derived from the operators (`aotc.relay.op.call_builders`). Their types, for type
checkers and editors, are in builders.pyi, which `python -m tests.ops.builders_stub` generates.
"""

from aotc.relay.op.call_builders import FUNCTIONS

_UNPREFIXED_BUILDERS = {name: f for name, f in FUNCTIONS.items() if not name.startswith(("dyn.", "qnn."))}
__all__ = sorted({name.rpartition(".")[2] for name in _UNPREFIXED_BUILDERS})

globals().update({name.rpartition(".")[2]: f for name, f in _UNPREFIXED_BUILDERS.items()})
