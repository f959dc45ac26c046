# SPDX-License-Identifier: Apache-2.0
"""Multithreading: turn a finished kernel into a kernel that all threads of a team run together.

`parallel_kernels` chooses the loops to divide and where the threads synchronize; `memory_effects`
lists the memory that statements read and write, `thread_costs` estimates their time, and
`cpu_thread_loop_division` assigns each thread its iterations.
"""
