# SPDX-License-Identifier: Apache-2.0
"""aotc: an ahead-of-time compiler from neural networks to self-contained C.

    import aotc
    model = aotc.compile("model.onnx", output="build/model")
    session = aotc.load(model.library)
    outputs = session.run(None, {"input": array})

The names of this module, listed in `__init__.pyi`, are imported on first use, so that `aotc.load`
imports neither onnx nor the compiler.
"""

from aotc.ir.lazy_exports import lazy_getattr_and_dir_from_stub_file
from aotc.ir.version import VERSION

__version__ = VERSION

__getattr__, __dir__ = lazy_getattr_and_dir_from_stub_file(__name__)
