# SPDX-License-Identifier: Apache-2.0
"""The data types and functions that programs share: `relay.prelude.Prelude(mod).hd`."""

from aotc.relay_api.prelude import Prelude as Prelude
