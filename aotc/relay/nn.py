# SPDX-License-Identifier: Apache-2.0
"""Relay's neural-network operators: `relay.nn.conv2d(data, weight, padding=(1, 1))` and others."""

from functools import partial

from aotc.ir.lazy_exports import lazy_getattr_and_dir_from_stub_file
from aotc.relay_api.expr import op_functions_with_prefix as _op_namespace

__getattr__, __dir__ = lazy_getattr_and_dir_from_stub_file(__name__, extra_names=partial(_op_namespace, "nn"))
