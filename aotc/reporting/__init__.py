# SPDX-License-Identifier: Apache-2.0
"""What models are and what their compilation did, as data, tables and pages."""
