# SPDX-License-Identifier: Apache-2.0
"""Operators of classical machine learning: `relay.ml.tree_ensemble(data, ...)` and others."""

from functools import partial

from aotc.ir.lazy_exports import lazy_getattr_and_dir_from_stub_file
from aotc.relay_api.expr import op_functions_with_prefix as _op_namespace

__getattr__, __dir__ = lazy_getattr_and_dir_from_stub_file(__name__, extra_names=partial(_op_namespace, "ml"))
