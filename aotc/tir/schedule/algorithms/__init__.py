# SPDX-License-Identifier: Apache-2.0
"""Algorithms with nests of their own, whose products the contraction generator computes.

In: a te.Winograd, groups of stages that are attention, or the sizes and the cell of a recurrent layer.  Out: statements
over strips (blocks of rows, or of steps) that stay in the second-level cache, and the scratch that they need.

    >>> from aotc.tir.target import get_target
    >>> from aotc.tir.schedule.algorithms import attention, winograd
    >>> shape, target = (1, 64, 56, 56), get_target("x86-64-v3")
    >>> direct, fast = (winograd.convolution_cost(shape, 64, tile, target) for tile in (0, 4))
    >>> fast < direct                           # cycles of a 3x3 convolution, by the definition and by tiles of 4x4
    True
    >>> attention.padded_pitch(128, 4, target)  # elements from row to row of a strip: an odd number of cache lines
    144
"""
