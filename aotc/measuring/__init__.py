# SPDX-License-Identifier: Apache-2.0
"""Benchmark compiled models: against other implementations, kernel by kernel, and over tilings for
tuning.

Input: a model or a built project.  Output: figures as JSON-compatible dicts; `tune` also writes
records that later compilations read.

    benchmark_model("net.onnx", against=("onnxruntime",))["rounds"]
    profile_library("build/net")["kernels"][0]
"""
