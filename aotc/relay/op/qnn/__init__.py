# SPDX-License-Identifier: Apache-2.0
"""The dialect of quantized operators, Relay's `qnn`: integers with scales and zero points as arguments.

real = scale * (stored - zero point)

Scales and zero points are one value, or one for each element of an axis, and usually
constants.  Types know nothing of them.  `qnn.CanonicalizeOps` says each operator with
integer arithmetic of other operators (`OpDef.expand`).
"""
