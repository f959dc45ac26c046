# SPDX-License-Identifier: Apache-2.0
"""`aotc cache`: show the size of the cache of compiled kernels, or empty it."""

from __future__ import annotations

import click

from aotc.cli.command_definition import define_command
from aotc.cli.console import JsonObject, RenderedParts, Reporter
from aotc.cli.options import declare_flag
from aotc.driver.object_cache import user_object_cache
from aotc.ir import AotcError
from aotc.reporting.text_tables import format_with_unit_prefix


@define_command(
    "cache",
    declare_flag("--info", "Say where it is, and how much it holds (the default)."),
    declare_flag("--clear", "Empty it."),
)
def cache_command(out: Reporter, info: bool, clear: bool) -> None:
    """Look at, or empty, the cache of compiled kernels."""
    if info and clear:
        raise click.UsageError("--info and --clear exclude each other")
    cache = user_object_cache()
    if cache is None:
        raise AotcError("cache", "no home directory exists for the cache", hint="set AOTC_CACHE_DIR")
    entries, used = cache.remove_all_cache_entries() if clear else cache.cache_entry_count_and_total_bytes()
    data = {"folder": str(cache.folder), "entries": entries, "bytes": used, "limit": cache.limit, "cleared": clear}

    out.print_result(data, render_object_cache_state)


def render_object_cache_state(data: JsonObject) -> RenderedParts:
    """Format the contents of the object cache, or the number of entries removed."""
    amount = f"{data['entries']} objects, {format_with_unit_prefix(data['bytes'], 'B')}"
    state_text = (
        f"removed {amount}" if data["cleared"] else f"{amount} of at most {format_with_unit_prefix(data['limit'], 'B')}"
    )
    yield f"{data['folder']}: {state_text}"
