# SPDX-License-Identifier: Apache-2.0
"""Layer 0 of the compiler: definitions shared by the graph IR and the tensor-program IR.

This package defines data types, dimensions, tensor types, source spans, diagnostics, operator
attributes, the interface of an operator, tensors and devices, and the pass infrastructure.  It
knows no concrete operator, pass or target.

    from aotc.ir import DType, TensorType
    TensorType((1, 3), "float32")          # Tensor[(1, 3), float32]

Other modules import these names from this package; `__init__.pyi` lists the module that defines
each one.  A few further names, such as `aotc.ir.structural_equal`, exist for users of Relay's API
only.
"""

from aotc.ir.lazy_exports import lazy_getattr_and_dir_from_stub_file

__getattr__, __dir__ = lazy_getattr_and_dir_from_stub_file(__name__)
