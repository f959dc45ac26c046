# SPDX-License-Identifier: Apache-2.0
"""Imports the largest of the libraries, once for all processes that check an architecture."""

from tests.zoo import check, libraries

__all__ = ["check"]

for library in ("segmentation-models-pytorch", "transformers"):
    libraries.names(library)
