# SPDX-License-Identifier: Apache-2.0
"""Kernels for devices that are given blocks of threads: what runs at once, and which iterations each thread takes."""
