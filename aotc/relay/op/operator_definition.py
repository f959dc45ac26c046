# SPDX-License-Identifier: Apache-2.0
"""Facade for operator definitions: re-exports the OpDef record, type rules, axis maps and sample
builders.

`operator_definition.pyi` lists the module in which each name is defined.

    from aotc.relay.op.operator_definition import OpDef, Samples, exact, pointwise, random_array, infer_same_type
"""

from aotc.ir.lazy_exports import lazy_getattr_and_dir_from_stub_file

__getattr__, __dir__ = lazy_getattr_and_dir_from_stub_file(__name__)
