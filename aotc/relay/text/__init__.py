# SPDX-License-Identifier: Apache-2.0
"""The text form of graph programs: Relay's, printed and read back."""
