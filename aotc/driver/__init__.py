# SPDX-License-Identifier: Apache-2.0
"""The compiler driver: compile a model to an emitted C or CUDA project and a library.

This package holds the compilation pipeline, the C toolchain, the object cache and the handling of
output folders. Input: a model in any supported form and `CompileOptions`.  Output: a graph, kernel
programs, a C project or a library.

    model = compile("net.onnx", output="build/net")
    CompileOptions(target="x86-64-v3").start_compilation("net.onnx").scheduled_programs

Importing this package registers the operators and passes by name.
"""

from aotc.driver.operator_and_pass_registration import install_operators_and_passes

install_operators_and_passes()
