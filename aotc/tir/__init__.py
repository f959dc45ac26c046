# SPDX-License-Identifier: Apache-2.0
"""Layer 1: tensor programs (loop nests over flat memory), and the program of a whole model.

`expr` and `stmt` define expressions, statements and kernels; `te` describes tensors by index
expressions, which `schedule` turns into kernels; `kernel_text`, `kernel_verifier` and `interpreter`
print, check and run a kernel; `target` describes a machine.

Other modules import these names from this package; `__init__.pyi` lists the module that defines
each one:

    from aotc.tir import Expr, For, Kernel, Load, Target, te
"""

from aotc.ir.lazy_exports import lazy_getattr_and_dir_from_stub_file

__getattr__, __dir__ = lazy_getattr_and_dir_from_stub_file(__name__)
