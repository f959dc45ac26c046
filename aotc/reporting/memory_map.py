# SPDX-License-Identifier: Apache-2.0
"""List what a compiled model takes of flash and RAM: parameters, kernels and tensors, by region of memory.

memory_map = describe_memory_map(Path("build/net"))                                  # as planned
memory_map = describe_memory_map(Path("build/net"), Path("build/firmware.elf"))      # of the whole program
memory_map["regions"][0]["items"][0]                       # {"kind": "parameter", "name": "net_const0", ...}
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

from aotc.ir import AotcError
from aotc.ir.file_checksum_manifest import MANIFEST_FILE_NAME
from aotc.reporting.elf_symbols import ElfFile, ElfSegment, ElfSymbol, read_elf_file
from aotc.reporting.model_inspection import SHARED_LIBRARY_SUFFIXES, inspect_project
from aotc.runtime.library import METADATA_FILE_NAME

#: Version of the form of the map.
MEMORY_MAP_FORMAT: Final = 1
#: Fraction of a region from which on a symbol of the application is an item of its own.
_LEAST_APPLICATION_SHARE: Final = 0.01
#: A region or an item as JSON has them.
JsonObject: TypeAlias = "dict[str, Any]"


def describe_memory_map(project: Path, elf: Path | None = None) -> JsonObject:
    """Return the regions of memory that a compiled model takes, with what lies in each, in bytes.

    project   directory of a project, or a library in it
    elf       program that the model is linked into

    "regions" have a name, a kind ("flash" or "ram"; on systems with an operating system memory that is read-only or
    writable), the bytes taken, and items. An item has a kind ("parameter", "padding", "kernel", "code", "arena",
    "tensors", "state", "stack", "application", "other"), a name and its bytes; the items of a region add up to its
    bytes. Without `elf` the sizes are those of the plan: code of kernels is measured in the project's library if that
    is an ELF file or an archive of ELF files, and otherwise estimated. With `elf`, the regions are the segments of the
    program, and items have addresses.
    "arena" has the tensors in the arena with their offsets and the steps during which they live.

    Raises AotcError: code "not-a-project" if there is no project, "elf" if a program is no ELF file, does not contain
    the model or contains another version of it, "memory-map" for a model file, a project of a GPU, or one that an
    earlier version of aotc wrote.
    """
    if project.is_file() and project.suffix not in (*SHARED_LIBRARY_SUFFIXES, ".a"):
        text = f"{project} has no memory map: it is neither a project nor the library of one"
        raise AotcError("memory-map", text, hint="compile the model, and give the folder of the project")
    metadata = inspect_project(project)
    if "device" in metadata or "parameters" not in metadata.get("memory", {}):
        reason = "it is for a GPU" if "device" in metadata else "its metadata.json does not list the parameters"
        text = f"{project} has no memory map: {reason}"
        raise AotcError("memory-map", text, hint="compile the model again, for a processor, with this version of aotc")
    regions = _planned_regions(project, metadata) if elf is None else _linked_regions(elf, metadata)
    memory = metadata["memory"]
    return {
        "format": MEMORY_MAP_FORMAT,
        "model": metadata["name"],
        "target": metadata["target"],
        "program": None if elf is None else elf.name,
        "regions": regions,
        "arena": {"bytes": memory["peak"], "lower_bound": memory["lower_bound"], "tensors": memory["buffers"]},
        "steps": [{"kernel": step["kernel"], "nodes": step["nodes"]} for step in metadata["steps"]],
    }


def input_files_of_memory_map(project: Path, elf: Path | None) -> list[Path]:
    """Return the files that a memory map must not overwrite: those that describe the project, and the program."""
    names = (METADATA_FILE_NAME, MANIFEST_FILE_NAME)
    return [*(_folder_of_project(project) / name for name in names), *([] if elf is None else [elf])]


def _folder_of_project(project: Path) -> Path:
    return project if project.is_dir() else project.absolute().parent.parent


def _item(kind: str, name: str, size: int, **more: Any) -> JsonObject:
    return {"kind": kind, "name": name, "bytes": size, **more}


def _region(name: str, kind: str, items: Iterable[JsonObject], **more: Any) -> JsonObject:
    rows = [row for row in items if row["bytes"]]
    return {"name": name, "kind": kind, "bytes": sum(row["bytes"] for row in rows), **more, "items": rows}


def _planned_regions(project: Path, metadata: Mapping[str, Any]) -> list[JsonObject]:
    """Return the regions of the plan: those of the target's memories, and otherwise one of each kind."""
    memory, footprint = metadata["memory"], metadata["footprint"]
    flash: dict[str, list[JsonObject]] = {"flash": _code_items(project, metadata)}
    ram: dict[str, list[JsonObject]] = {"ram": []}
    for row in memory["parameters"]:
        flash.setdefault(row.get("memory", "flash"), []).append(
            _item("parameter", row["name"], row["bytes"], nodes=row["nodes"])
        )
    stated = sum(row["bytes"] for row in memory["parameters"])
    flash[_last_key(flash)].append(_item("padding", "padding of parameters", max(0, footprint["parameters"] - stated)))
    parts = memory.get("parts") or [{"memory": "ram", "bytes": memory["peak"]}]
    for part in parts:
        ram.setdefault(part["memory"], []).append(_item("arena", "tensors of a run", part["bytes"]))
    rest = {
        "tensors": ("inputs and outputs", footprint["io"]),
        "state": ("state between runs", footprint.get("state", 0)),
        "stack": (f"most in {footprint['stack_kernel']}, estimated", footprint["stack"]),
    }
    ram["ram"] += [_item(kind, name, size) for kind, (name, size) in rest.items()]
    regions = [_region(name, "flash", items) for name, items in flash.items()]
    regions += [_region(name, "ram", items) for name, items in ram.items()]
    return [region for region in regions if region["bytes"]]


def _last_key(table: Mapping[str, Any]) -> str:
    return next(reversed(list(table)))


def _code_items(project: Path, metadata: Mapping[str, Any]) -> list[JsonObject]:
    """Return the code of kernels and of the rest of the library, measured if it can be, else one estimate."""
    library = _folder_of_project(project) / metadata["library"]
    try:
        symbols = read_elf_file(library).symbols if library.is_file() else ()
    except AotcError:
        # a library for Windows or macOS
        symbols = ()
    functions = [symbol for symbol in symbols if symbol.kind == "function"]
    if not functions:
        return [_item("code", "code, estimated", metadata["footprint"]["code"])]
    kernels = _kernel_nodes(metadata)
    rows = [_item(*_code_kind_and_name(s, kernels), s.bytes, nodes=kernels.get(s.name, [])) for s in functions]
    return sorted(rows, key=lambda row: (-row["bytes"], row["name"]))


def _kernel_nodes(metadata: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the model nodes of each kernel, by its name in C."""
    steps = [step for version in metadata.get("isas", ()) for step in version["steps"]]
    nodes: dict[str, list[str]] = {name: [] for name in steps}
    for step in metadata["steps"]:
        nodes[step["kernel"]] = [*nodes.get(step["kernel"], ()), *step["nodes"]]
    return nodes


def _code_kind_and_name(symbol: ElfSymbol, kernels: Mapping[str, Any]) -> tuple[str, str]:
    return ("kernel" if symbol.name in kernels else "code"), symbol.name


def _linked_regions(elf: Path, metadata: Mapping[str, Any]) -> list[JsonObject]:
    """Return the segments of a linked program as regions, with symbols as items."""
    program = read_elf_file(elf)
    if not program.segments:
        raise AotcError("elf", f"{elf} is an archive or an object file", hint="give the program that the linker wrote")
    if not any(symbol.name == f"{metadata['name']}_run" for symbol in program.symbols):
        text = f"{elf} does not contain the model: it has no function {metadata['name']}_run"
        raise AotcError("elf", text, hint="give a program with its symbols (not stripped) that runs the model")
    regions = []
    arrays = _parameters_by_array(metadata)
    for symbol in program.symbols:
        if symbol.name in arrays and any(row["offset"] + row["bytes"] > symbol.bytes for row in arrays[symbol.name]):
            text = f"{elf} contains another version of the model: {symbol.name} has {symbol.bytes} bytes only"
            raise AotcError("elf", text, hint="link the program with the library of this project")
    for segment in program.segments:
        kind = "ram" if segment.is_writable else "flash"
        items = [*_items_of_segment(segment, program, metadata)]
        regions.append(_region(f"{kind} at {segment.address:#x}", kind, items, address=segment.address))
        if segment.is_writable and segment.stored_bytes and segment.load_address != segment.address:
            values = [_item("other", "initial values of variables", segment.stored_bytes, address=segment.load_address)]
            regions.append(
                _region(f"flash at {segment.load_address:#x}", "flash", values, address=segment.load_address)
            )
    return regions


def _items_of_segment(segment: ElfSegment, program: ElfFile, metadata: Mapping[str, Any]) -> Iterator[JsonObject]:
    """Yield what lies in a segment; parts of symbols that others overlap count once."""
    kernels, arrays = _kernel_nodes(metadata), _parameters_by_array(metadata)
    at, end, unnamed, application = segment.address, segment.address + segment.bytes, 0, 0
    for symbol in program.symbols:
        size = min(symbol.address + symbol.bytes, end) - max(symbol.address, at)
        if size <= 0 or not segment.address <= symbol.address < end:
            continue
        unnamed += max(0, symbol.address - at)
        at = symbol.address + symbol.bytes
        if symbol.name in arrays and size == symbol.bytes:
            yield from _parameter_items(symbol, arrays[symbol.name])
        elif symbol.name in kernels:
            yield _item("kernel", symbol.name, size, address=symbol.address, nodes=kernels[symbol.name])
        elif symbol.name.startswith((f"{metadata['name']}_", "aotc_")):
            yield _item("code" if symbol.kind == "function" else "other", symbol.name, size, address=symbol.address)
        elif size >= _LEAST_APPLICATION_SHARE * segment.bytes:
            yield _item("application", symbol.name, size, address=symbol.address)
        else:
            application += size
    yield _item("application", "smaller symbols of the application", application)
    yield _item("other", "bytes without a symbol", unnamed + max(0, end - at))


def _parameters_by_array(metadata: Mapping[str, Any]) -> dict[str, list[JsonObject]]:
    arrays: dict[str, list[JsonObject]] = {}
    for row in metadata["memory"]["parameters"]:
        arrays.setdefault(row["array"], []).append(row)
    return arrays


def _parameter_items(symbol: ElfSymbol, rows: Sequence[Mapping[str, Any]]) -> Iterator[JsonObject]:
    used = 0
    for row in rows:
        address = symbol.address + row["offset"]
        yield _item("parameter", row["name"], row["bytes"], address=address, nodes=row["nodes"])
        used += row["bytes"]
    yield _item("padding", f"padding and checksums in {symbol.name}", symbol.bytes - used, address=symbol.address)
