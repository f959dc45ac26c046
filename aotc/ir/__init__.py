# SPDX-License-Identifier: Apache-2.0
"""Floor 0: the words that both intermediate representations share.

Data types, dimensions, tensor types, source spans, diagnostics, operator attributes, the *shape* of an
operator, tensors and devices, and the pass infrastructure.  Nothing here knows a concrete operator, pass or target.

    from aotc.ir.dtype import DType
    from aotc.ir.types import TensorType
    TensorType((1, 3), "float32")          # Tensor[(1, 3), float32]

The package itself is a door: names that Relay's users look for here, such as `aotc.ir.structural_equal`.
"""

from aotc.ir.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
