# SPDX-License-Identifier: Apache-2.0
"""Operators on quantized tensors, Relay's `qnn` dialect: scales and zero points are arguments of
the operators.

real = scale * (stored - zero_point)

A scale or zero point is one value or one value for each element along an axis, and usually a
constant. Tensor types do not contain it. The pass `qnn.CanonicalizeOps` replaces each operator by
integer arithmetic on other operators (`OpDef.expand`).
"""
