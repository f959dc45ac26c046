# SPDX-License-Identifier: Apache-2.0
"""Multithreading: make a kernel that every thread of a team runs from a finished kernel.

`parallel_kernels` chooses the loops to divide and where the threads synchronize; `memory_effects` lists the memory that
statements read and write, `thread_costs` estimates their time, and `loop_division` assigns each thread its iterations.
"""
