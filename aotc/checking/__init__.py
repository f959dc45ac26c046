# SPDX-License-Identifier: Apache-2.0
"""Comparison of compiled models with independent implementations, and search for the first wrong
kernel.

In: a model and its compile options.  Out: the error of the outputs against ONNX Runtime, onnx's
evaluator, LiteRT, torch or the graph interpreter, with rounding errors distinguished from wrong
results.

    verify("net.onnx", seeds=3).ok
"""
