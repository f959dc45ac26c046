# SPDX-License-Identifier: Apache-2.0
"""Floor 1: tensor programs, loop nests over flat memory, and the whole-model `plan.Program`.

`expr`, `stmt` and `kernel` are the data; `te` describes tensors as index expressions, which `schedule`
turns into kernels; `text`, `verify` and `interp` print, check and run a kernel; `target` says what the
machine has.

The package itself is how other modules get these words; `__init__.pyi` says where each one lives:

    from aotc.tir import Expr, For, Kernel, Load, Target, te
"""

from aotc.ir.lazy_exports import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
