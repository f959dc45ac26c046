# SPDX-License-Identifier: Apache-2.0
"""Compiled models against independent implementations: comparisons, references, the first kernel that is wrong."""
