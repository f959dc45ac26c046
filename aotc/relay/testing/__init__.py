# SPDX-License-Identifier: Apache-2.0
"""Workloads: well-known networks built from scratch, with seeded weights, for tests, demos and benchmarks."""
