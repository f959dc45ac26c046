# SPDX-License-Identifier: Apache-2.0
"""Where programs for TVM find its exception: `from aotc._ffi.base import TVMError`."""
