# SPDX-License-Identifier: Apache-2.0
"""TVM's exception, which is aotc's: `aotc._ffi.base.TVMError`."""

from aotc.ir.diagnostics import AotcError as TVMError

__all__ = ["TVMError"]
