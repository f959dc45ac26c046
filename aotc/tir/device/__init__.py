# SPDX-License-Identifier: Apache-2.0
"""Kernels for devices that are given blocks of threads.  Programs of calls in, programs of launches out.

`launches` makes a kernel, or several, of each that is called.  `parts` says what of it can be launched by itself, and
what passes from one to the next; `grid` gives each thread its iterations of a nest of loops, and scratch of its own;
`rows` gives blocks the iterations, and their threads those of the loops inside; `coarsening` gives a thread several
neighboring iterations and moves their memory in pieces, where `alignment` has found it aligned; `transposes` has
blocks read along one axis and write along another, through shared memory; `horizontal_fusion` makes one of launches
that do not wait for each other.
"""
