# SPDX-License-Identifier: Apache-2.0
"""Relay's generators of unique names: `NameSupply("prefix").fresh_name("f")`."""

from aotc.relay.supply import GlobalVarSupply as GlobalVarSupply
from aotc.relay.supply import NameSupply as NameSupply
