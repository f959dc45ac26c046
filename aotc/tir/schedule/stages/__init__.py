# SPDX-License-Identifier: Apache-2.0
"""Stages and epilogues.  Tensor expressions in; which are stored, and which loop nest computes them, out.

`inline` decides what is stored and what is computed where it is used, `grouping` which stored tensors share loops,
`inplace` which outputs may take the memory of an input; `body` makes expressions of a tensor's definition, and `reduce`
the nests of reductions.
"""
