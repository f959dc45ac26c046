# SPDX-License-Identifier: Apache-2.0
"""Algorithms with loop nests of their own, whose matrix products are built by the contraction
generator.

Input: a te.Winograd, groups of stages that form an attention, or a recurrent layer given by sizes
and cell. Output: statements over strips (blocks of rows, or of time steps) that fit in the
second-level cache, and their scratch buffers.

    >>> from aotc.tir.target import get_target
    >>> from aotc.tir.schedule.algorithms import attention, winograd
    >>> shape, target = (1, 64, 56, 56), get_target("x86-64-v3")
    >>> direct, fast = (winograd.estimated_cycles_of_3x3_convolution(shape, 64, tile, target) for tile in (0, 4))
    >>> fast < direct                           # cycles of a 3x3 convolution, by the definition and by tiles of 4x4
    True
    >>> attention.cache_friendly_row_pitch(128, 4, target)  # elements: an odd number of cache lines
    144
"""
