# SPDX-License-Identifier: Apache-2.0
"""C back end: print programs as C projects."""
