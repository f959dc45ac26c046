# SPDX-License-Identifier: Apache-2.0
"""The words of graphs in one place: nodes, modules, visitors, types and how they are inferred.

The module itself is how files of the floors above get these words; `graph.pyi` says where each one lives:

    from aotc.relay.graph_api import Call, Constant, ExprMutator, IRModule, infer_types
"""

from aotc.ir.lazy_exports import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
