# SPDX-License-Identifier: Apache-2.0
"""Times of compiled models: beside other implementations, by kernel, and of candidates for tuning."""
