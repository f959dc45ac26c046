# SPDX-License-Identifier: Apache-2.0
"""Functions that build calls of quantized operators, with Relay's names; see
`aotc.relay.op.builders`.

quantize(data, 0.1, 3, out_dtype="uint8")                    # relay.qnn.op.quantize
"""

from aotc.relay.op.call_builders import FUNCTIONS

_QNN_BUILDERS_BY_NAME = {name.removeprefix("qnn."): f for name, f in FUNCTIONS.items() if name.startswith("qnn.")}
__all__ = sorted(_QNN_BUILDERS_BY_NAME)

globals().update(_QNN_BUILDERS_BY_NAME)
