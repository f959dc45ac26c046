# SPDX-License-Identifier: Apache-2.0
"""The commands of `aotc`: options, the call that does the work, and the text of the result.

Each module is imported when its command runs.
"""
