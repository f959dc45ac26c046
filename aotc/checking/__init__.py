# SPDX-License-Identifier: Apache-2.0
"""Compiled models against independent implementations: comparisons, references, the first kernel that is wrong.

In: a model and the options that it is compiled with.  Out: how far its outputs are from those of ONNX Runtime, onnx's
evaluator, torch or the interpreter of graphs, told apart from rounding.

    verify("net.onnx", seeds=3).ok
"""
