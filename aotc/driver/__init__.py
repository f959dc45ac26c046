# SPDX-License-Identifier: Apache-2.0
"""A model to an emitted project and a library: the road with its stops, the C compiler, the cache, places on disk.

In: a model in any form, and `CompileOptions`.  Out: a graph, programs, a C project or a library.

    model = compile("net.onnx", output="build/net")
    CompileOptions(target="x86-64-v3").compilation("net.onnx").programs

Whoever imports a part of it can look up operators and passes by name.
"""

from aotc.driver.dependency_injection import install

install()
