# SPDX-License-Identifier: Apache-2.0
"""Relay's prelude, a library of common data types and functions: `relay.prelude.Prelude(mod).hd`."""

from aotc.relay_api.prelude import Prelude as Prelude
