# SPDX-License-Identifier: Apache-2.0
"""Times of compiled models: of whole runs beside other implementations, of each kernel, and of tilings to choose among.

In: a model or a built project.  Out: figures, ready for JSON; of `tune` also records that later compilations read.

    bench("net.onnx", against=("onnxruntime",))["rounds"]
    profile("build/net")["kernels"][0]
"""
