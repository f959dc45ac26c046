# SPDX-License-Identifier: Apache-2.0
"""Relay's `contrib`: the executor interface, temporary directories, and kernels of the user's own.

from aotc.contrib import graph_executor

The modules, listed in `__init__.pyi`, come when they are asked for: an executor needs no operators.
"""

from aotc.ir.lazy_exports import lazy_getattr_and_dir_from_stub_file

__getattr__, __dir__ = lazy_getattr_and_dir_from_stub_file(__name__)
