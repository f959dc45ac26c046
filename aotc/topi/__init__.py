# SPDX-License-Identifier: Apache-2.0
"""Questions about operators under the names of TVM's `topi`; its schedules have no counterpart."""
