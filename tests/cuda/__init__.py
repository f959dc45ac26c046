# SPDX-License-Identifier: Apache-2.0
"""Tests of models for GPUs: a package, since other folders have files of the same names."""
