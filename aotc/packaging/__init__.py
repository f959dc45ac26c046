# SPDX-License-Identifier: Apache-2.0
"""Turn a compiled project into a package of another ecosystem: an Arduino library, a Meson project, ..."""
