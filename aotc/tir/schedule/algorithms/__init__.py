# SPDX-License-Identifier: Apache-2.0
"""Algorithms with nests of their own, made of contractions and elementwise loops: Winograd, attention, recurrence."""
