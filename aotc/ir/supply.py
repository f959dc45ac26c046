# SPDX-License-Identifier: Apache-2.0
"""Relay's generators of unique names: `NameSupply("prefix").fresh_name("f")`."""

from aotc.relay.name_supply import GlobalVarSupply as GlobalVarSupply
from aotc.relay.name_supply import NameSupply as NameSupply
