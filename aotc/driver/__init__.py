# SPDX-License-Identifier: Apache-2.0
"""A model to an emitted project and a library: stages, C compiler, cache, places on disk."""
