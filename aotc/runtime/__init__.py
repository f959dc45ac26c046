# SPDX-License-Identifier: Apache-2.0
"""Run compiled models from Python: sessions on numpy arrays, and Relay-compatible modules and
executors.

session = aotc.load("build/net")                     # `session`
library = aotc.runtime.load_module("deploy_lib.tar") # `module`

The names of this package, listed in `__init__.pyi`, are imported on first use, so that compiling a
model loads nothing that only runs one.
"""

from aotc.ir.lazy_exports import lazy_getattr_and_dir_from_stub_file

__getattr__, __dir__ = lazy_getattr_and_dir_from_stub_file(__name__)
