# SPDX-License-Identifier: Apache-2.0
"""Dividing finished kernels among threads.  Kernels in, kernels that every thread of a team runs out.

`parallel` finds what can be divided, and where threads have to wait for each other; `division` deals the iterations
of one nest of loops out.
"""
