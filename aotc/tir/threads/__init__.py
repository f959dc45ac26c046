# SPDX-License-Identifier: Apache-2.0
"""Dividing finished kernels among threads.  Kernels in, kernels that every thread of a team runs out.

`parallel` chooses what is divided, and where threads have to wait for each other.  `uses` says what statements touch
and leave behind, `costs` how long they take, and `division` gives each thread its share of the iterations of a nest.
"""
