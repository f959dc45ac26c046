# SPDX-License-Identifier: Apache-2.0
"""Floor 0: the words that both intermediate representations share.

Data types, dimensions, tensor types, source spans, diagnostics, operator attributes, the *shape* of an
operator, tensors and devices, and the pass infrastructure.  Nothing here knows a concrete operator, pass or target.

    from aotc.ir import DType, TensorType
    TensorType((1, 3), "float32")          # Tensor[(1, 3), float32]

The package itself is how other modules get these words; `__init__.pyi` says where each one lives.  For Relay's users it
has a few names more, such as `aotc.ir.structural_equal`, which nobody inside imports.
"""

from aotc.ir.lazy_exports import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
