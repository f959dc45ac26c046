# SPDX-License-Identifier: Apache-2.0
"""Verification: compare compiled models with independent implementations, and find the first wrong kernel.

In: a model and the options that it is compiled with.  Out: the error of its outputs against ONNX Runtime, onnx's
evaluator, LiteRT, torch or the graph interpreter, with rounding errors distinguished from faults.

    verify("net.onnx", seeds=3).ok
"""
