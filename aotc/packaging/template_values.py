# SPDX-License-Identifier: Apache-2.0
"""Compute the values that the templates of packages use, from the sources of a project and the
information on its package.

values = template_values(sources, ECOSYSTEMS["meson"], "digits", PackageInformation())
values["upper"], values["kernel_groups"]
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from aotc_codegen.c.host_project import GENERATED_FILE_BANNER

from aotc.packaging.ecosystems import RUST_KEYWORDS, Ecosystem
from aotc.packaging.package_information import PackageInformation
from aotc.packaging.project_sources import PackagedTensor, ProjectSources
from aotc.packaging.rendering import render_package_template
from aotc.packaging.wasm_module import MAX_THREADS

_MODEL_CLASS_TEXT: Final = "The class `Model` has the memory of its runs, and `run` takes and returns arrays."
#: Names that Meson gives to targets of its own, beyond those that no model has (`aotc_codegen.c.c_identifiers`).
_MESON_TARGETS_TEXT: Final = (
    "benchmark coverage cscope ctags dist distcheck etags PHONY phony reconfigure tags uninstall"
)
_MESON_TARGETS: Final = frozenset(_MESON_TARGETS_TEXT.split())
#: Number of elements of an output that examples print.
_SHOWN_ELEMENTS: Final = 16
#: Version of the structures in aotc.h, which loaders compare.
_ABI_VERSION_PATTERN: Final = re.compile(rb"^#define AOTC_ABI_VERSION (\d+)$", re.MULTILINE)
#: Words of Rust that cannot be raw identifiers.
_RUST_PATH_WORDS: Final = frozenset({"crate", "self", "super", "Self"})
_RUST_TYPES: Final = {"float": "f32", "double": "f64"}
_JAVASCRIPT_ARRAYS: Final = {"float": "Float32Array", "double": "Float64Array"}


def template_values(
    sources: ProjectSources, row: Ecosystem, name: str, information: PackageInformation
) -> dict[str, Any]:
    """Return the values that all templates use; `name` is the name of the package."""
    states = [{"bytes": sources.sizes.get("STATE_BYTES", 0), "alignment": sources.sizes.get("STATE_ALIGNMENT", 1)}]
    abi = _ABI_VERSION_PATTERN.search(sources.headers.get("aotc.h", b""))
    values = {
        "banner": GENERATED_FILE_BANNER,
        "package": name,
        "crate": re.sub(r"\W", "_", name, flags=re.ASCII),
        "name": sources.name,
        "example": f"{sources.name}_example",
        "meson_target": f"{sources.name}_model" if sources.name in _MESON_TARGETS else sources.name,
        "upper": sources.name.upper(),
        "kconfig": f"AOTC_MODEL_{sources.name.upper()}",
        "target": sources.target.name,
        "relaxed_simd": ["yes"] if "relaxed_simd" in sources.target.features else [],
        "thread_teams": ["yes"] if sources.target.threads else [],
        "unthreaded": [] if sources.target.threads else ["yes"],
        "max_threads": MAX_THREADS,
        "oldest_node": "22" if "relaxed_simd" in sources.target.features else "16.9",
        "numerics": sources.numerics,
        "compiled_by_user": ["yes"] if row.content in ("sources", "merged") else [],
        "inputs": [_tensor_values(tensor) for tensor in sources.inputs],
        "outputs": [_tensor_values(tensor) for tensor in sources.outputs],
        "states": states if sources.has_state else [],
        "stateless": [] if sources.has_state else ["none"],
        "shown_elements": _SHOWN_ELEMENTS,
        "no_arguments": [] if sources.inputs or sources.has_state else ["none"],
        "parameter_bytes": sources.parameter_bytes,
        "workspace_bytes": sources.sizes["WORKSPACE_BYTES"],
        "workspace_alignment": sources.sizes["WORKSPACE_ALIGNMENT"],
        "abi_version": int(abi[1]) if abi else 0,
        "library_file": f"lib{sources.name}.so",
        **_file_values(sources, row),
        **_cmake_config_values(sources, name),
        **_cpp_wrapper_values(sources),
        **_information_values(sources, information),
    }
    return values | {"run_model": render_package_template("common/run_model.c", **values)}


def path_in_folder(folder: str, file: str) -> str:
    """Return the path of a file in a folder of a package; "" is the package's own folder."""
    return f"{folder}/{file}" if folder else file


def _file_values(sources: ProjectSources, row: Ecosystem) -> dict[str, Any]:
    """Return the values on headers, sources, flags and libraries."""
    kernels = [group for group in sources.groups if group.flags]
    system = ["m", *(["pthread"] if sources.threads else [])]
    header = path_in_folder(row.headers, f"{sources.name}.h")
    interfaces = {
        "library": _MODEL_CLASS_TEXT,
        "module": _MODEL_CLASS_TEXT,
        "sources": f"`{header}` declares `{sources.name}_run` and the sizes of its memory; the example shows how it is "
        "called. A run allocates nothing.",
    }
    return {
        "headers": [*sources.headers, *([f"{sources.name}.hpp"] if row.wrapper else [])],
        "interface": interfaces.get(row.content, interfaces["sources"]),
        "private_headers": list(sources.private_headers),
        "sources": sources.source_names,
        "common_sources": list(sources.groups[0].files),
        "kernel_groups": [
            {"name": g.name, "flags": g.flags, "flag_list": list(g.flags), "files": list(g.files)} for g in kernels
        ],
        "kernel_labels": [f":{sources.name}_kernels_{g.name}" for g in kernels],
        "kernel_flags": [
            {"file": file, "flags": " ".join(g.flags), "options": ";".join(g.flags)}
            for g in kernels
            for file in g.files
        ],
        "libraries": " ".join(f"-l{library}" if library == "m" else f"-{library}" for library in system),
        "system_libraries": system,
        "thread_libraries": ["threads"] if sources.threads else [],
    }


def _cmake_config_values(sources: ProjectSources, name: str) -> dict[str, Any]:
    """Return the lines of the file that find_package of CMake reads."""
    threads = ["include(CMakeFindDependencyMacro)", "find_dependency(Threads)"] if sources.threads else []
    return {"config_lines": [*threads, rf"include(\${{CMAKE_CURRENT_LIST_DIR}}/{name}Targets.cmake)"]}


def _cpp_wrapper_values(sources: ProjectSources) -> dict[str, Any]:
    """Return the values of the C++ class: its tensors, and the offsets of the parts of its memory."""
    sides = [*(("input", t) for t in sources.inputs), *(("output", t) for t in sources.outputs)]
    tensors = [
        {
            "accessor": f"{role}_{t.name}",
            "ctype": t.ctype,
            "count": t.elements,
            "bytes": f"{t.elements} * sizeof({t.ctype})",
        }
        for role, t in sides
    ]
    first = {role: next((f"{role}_{t.name}" for r, t in sides if r == role), role) for role in ("input", "output")}
    return {
        "cpp_tensors": tensors,
        "cpp_layout": list(_cpp_memory_layout(tensors, sources)),
        "first_input": first["input"],
        "first_output": first["output"],
        "state_words": ", the block of state" if sources.has_state else "",
        "state_sentence": " and its state" if sources.has_state else "",
    }


def _cpp_memory_layout(tensors: list[dict[str, Any]], sources: ProjectSources) -> Iterator[dict[str, str]]:
    """Yield the parts of the memory of a C++ object with expressions for their offsets."""
    state = [("state", f"{sources.name.upper()}_STATE_BYTES")] if sources.has_state else []
    begin = "0"
    for member, size in [*((t["accessor"], t["bytes"]) for t in tensors), *state]:
        yield {"member": member, "begin": begin}
        begin = f"detail::aligned_end(begin_of_{member}, {size})"
    yield {"member": "workspace", "begin": begin}


def _information_values(sources: ProjectSources, information: PackageInformation) -> dict[str, Any]:
    stated, author = information.license, information.author
    about = {"name": information.author_name, "email": information.author_email}
    description = information.description or f"The neural network {sources.name} as C code."
    unknown = "The license of the model's code and parameters is not stated here; aotc claims no rights in them."
    return {
        "version": information.version,
        "description": description,
        "docstring": json.dumps(description, ensure_ascii=False),
        "author_or_unknown": author or "unknown author",
        "authors": [author] if author else [],
        "author_names": [about["name"]] if about["name"] else [],
        "author_emails": [about["email"]] if about["email"] else [],
        "author_objects": [{key: text for key, text in about.items() if text}] if author else [],
        "vendor": re.sub(r"[^A-Za-z0-9]+", "", information.author_name) or "Unknown",
        "license_texts": [stated] if stated else [],
        "license_or_null": stated or None,
        "licenses": [f"The code and the parameters of the model: {stated}." if stated else unknown],
        "urls": [information.url] if information.url else [],
        "url_or_example": information.url or "https://example.org",
    }


def _tensor_values(tensor: PackagedTensor) -> Mapping[str, Any]:
    """Return the template values of a tensor: how the example fills and prints it."""
    is_float = tensor.ctype in ("float", "double")
    numbers = "k % 17" if is_float else "k % 2"
    rust = _RUST_TYPES.get(tensor.ctype) or re.sub(r"^(u?)int(\d+)_t$", lambda m: f"{m[1] or 'i'}{m[2]}", tensor.ctype)
    array_type = _javascript_array(tensor.ctype)
    return {
        "name": tensor.name,
        "ctype": tensor.ctype,
        "count": tensor.elements,
        "elements": max(tensor.elements, 1),
        "fill": f"({tensor.ctype})({numbers})" + (" * 0.125f - 1.0f" if is_float else ""),
        "shown": min(tensor.elements, _SHOWN_ELEMENTS),
        "format": "%.9g" if tensor.ctype == "float" else "%.17g",
        "shape": list(tensor.shape),
        "array_type": array_type,
        "js_fill": f"BigInt({numbers})"
        if array_type.startswith("Big")
        else f"({numbers})" + (" * 0.125 - 1" if is_float else ""),
        "js_variable": f"array_{tensor.name}",
        "rust_type": rust,
        "rust_field": _rust_identifier(tensor.name),
        "rust_fill": f"({numbers}) as {rust}" + (" * 0.125 - 1.0" if is_float else ""),
    }


def _javascript_array(ctype: str) -> str:
    """Return the class of JavaScript's arrays whose elements have a C type: int8_t is Int8Array."""
    if ctype in _JAVASCRIPT_ARRAYS:
        return _JAVASCRIPT_ARRAYS[ctype]
    unsigned, bits = re.fullmatch(r"(u?)int(\d+)_t", ctype).groups()  # type: ignore[union-attr]
    return f"{'Big' if bits == '64' else ''}{'Uint' if unsigned else 'Int'}{bits}Array"


def _rust_identifier(name: str) -> str:
    """Return an identifier of Rust for a name in C: a raw one for keywords."""
    if name in _RUST_PATH_WORDS:
        return f"{name}_"
    return f"r#{name}" if name in RUST_KEYWORDS else name
