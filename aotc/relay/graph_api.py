# SPDX-License-Identifier: Apache-2.0
"""Re-exports of the graph IR in one module: nodes, modules, visitors, types and type inference.

Higher-level packages import these names from here; `graph_api.pyi` lists where each one is defined:

    from aotc.relay.graph_api import Call, Constant, ExprMutator, IRModule, infer_module
"""

from aotc.ir.lazy_exports import lazy_getattr_and_dir_from_stub_file

__getattr__, __dir__ = lazy_getattr_and_dir_from_stub_file(__name__)
