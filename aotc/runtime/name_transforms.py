# SPDX-License-Identifier: Apache-2.0
"""Conversion of names to those of TVM's C interface: `sanitize_name("input:0")` is "input_0"."""

from aotc.relay.backend.name_transforms import sanitize_name as sanitize_name
