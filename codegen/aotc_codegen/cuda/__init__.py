# SPDX-License-Identifier: Apache-2.0
"""CUDA back end: print programs as CUDA projects."""
