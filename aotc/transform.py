# SPDX-License-Identifier: Apache-2.0
"""Passes and their context, for modules of any kind.

with aotc.transform.PassContext(opt_level=3):
    mod = aotc.transform.Sequential([relay.transform.FoldConstant()])(mod)
"""

from aotc.driver.operator_and_pass_registration import install_operators_and_passes as _install
from aotc.ir import ModulePass as ModulePass
from aotc.ir import Pass as Pass
from aotc.ir import Sequential as Sequential
from aotc.ir import module_pass as module_pass
from aotc.ir.transform import PassContext as PassContext
from aotc.ir.transform import PassInfo as PassInfo
from aotc.relay.transform.pass_base import function_pass as function_pass
from aotc.relay_api.print_ir_pass import PrintIR as PrintIR

_install()
