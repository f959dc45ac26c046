# SPDX-License-Identifier: Apache-2.0
"""Tests of models for GPUs; a package, since files in other folders have the same names."""
