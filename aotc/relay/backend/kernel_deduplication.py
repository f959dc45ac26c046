# SPDX-License-Identifier: Apache-2.0
"""Numbering of the functions that become kernels: structurally equal functions share one kernel.

table = FunctionTable()
table.find_or_add_structurally_equal_function(fused), table.find_or_add_structurally_equal_function(equal_one)  # 0, 0
kernel = lower_function_to_kernel(table.functions[0], target)
"""

from aotc.ir.failure_context import Failure, attach_failure_to_exceptions
from aotc.relay.backend.external_c_code import kernel_of_external_function
from aotc.relay.backend.function_to_kernel import kernel_name_from_anchor_operator, lower_fused_function
from aotc.relay.graph_api import Function, structural_equal, structural_hash
from aotc.tir import Kernel, Target


class FunctionTable:
    """Table of the functions that become kernels, numbered in order of first use; structurally
    equal ones share a number.

    functions    the first function with each number
    """

    def __init__(self) -> None:
        self.functions: list[Function] = []
        self._numbers: dict[Function, int] = {}
        self._by_hash: dict[int, list[int]] = {}

    def find_or_add_structurally_equal_function(self, function: Function) -> int:
        """Return the number of a function; a function without a structurally equal predecessor gets
        the next number.
        """
        if function in self._numbers:
            return self._numbers[function]
        alike = self._by_hash.setdefault(structural_hash(function), [])
        equal = (k for k in alike if structural_equal(self.functions[k], function, exact=True))
        number = next(equal, len(self.functions))
        if number == len(self.functions):
            self.functions.append(function)
            alike.append(number)
        self._numbers[function] = number
        return number


def lower_function_to_kernel(function: Function, target: Target) -> Kernel:
    """Return the kernel of a primitive function, named after its main operator, or of an external
    compiler's function.

    Raise AotcError for shapes that are not static and operators without `compute`.
    """
    if "Compiler" in function.attrs:
        return kernel_of_external_function(function)
    name = kernel_name_from_anchor_operator(function)
    with attach_failure_to_exceptions(Failure("kernel", name, function, target)):
        return lower_fused_function(function, name, target)
