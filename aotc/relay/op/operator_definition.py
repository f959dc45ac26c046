# SPDX-License-Identifier: Apache-2.0
"""The words in which operators are defined: their record, type rules, axis maps, tables of rows and samples.

The module itself is how files of operators get these words; `define.pyi` says where each one lives:

    from aotc.relay.op.operator_definition import OpDef, Samples, exact, pointwise, random_array, same_type
"""

from aotc.ir.lazy_exports import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
