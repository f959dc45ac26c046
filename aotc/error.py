# SPDX-License-Identifier: Apache-2.0
"""Relay's exceptions: all problems of programs are `AotcError`, which TVM's names stand for."""

from aotc.ir.diagnostics import AotcError as DiagnosticError
from aotc.ir.diagnostics import AotcError as OpError
from aotc.ir.diagnostics import AotcError as TVMError

__all__ = ["DiagnosticError", "OpError", "TVMError"]
