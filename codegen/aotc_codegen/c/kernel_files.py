# SPDX-License-Identifier: Apache-2.0
"""Print the kernels of a program as C files: name them, print kernels of equal text once, and group
small ones.

printed = print_kernels(program.kernels, "net", GNU_C)
printed.names[kernel]                  # "net_conv2d"
printed.render_kernel_files("net", "", banner=...)  # files that compile by themselves, by path
"""

import hashlib
import re
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from typing import Any, Final, Literal, TypeAlias

from aotc.ir import AotcError, DType, JsonFormat, frozen, load_or_compute_memoized_result
from aotc.ir.parallel_memo import memoize_in_parallel
from aotc.tir import INDEX, C, CodeSize, Const, Kernel, merge_similar_kernels
from aotc_codegen.c.c_dialects import GNU_C, Dialect
from aotc_codegen.c.c_identifiers import MAX_IDENTIFIER_CHARACTERS, UniqueIdentifiers
from aotc_codegen.c.c_types import c_literal
from aotc_codegen.c.kernel_printer import PrintedKernel, kernel_prototype, model_node_comment_lines, print_kernel
from aotc_codegen.c.template_rendering import render_template


@frozen
class KernelFileSizes:
    """How kernels are distributed over C files, which are compiled in parallel.

    own      number of characters from which a kernel gets a file of its own
    shared   number of characters of the smaller kernels that share a file, half or all of it
    """

    own: int
    shared: int


#: gcc takes as long before the first kernel of a file as for 4,000 characters of kernels.
HOST_FILE_SIZES: Final = KernelFileSizes(own=24_000, shared=48_000)
#: gcc keeps calls of a helper function that several kernels of a file have in common: larger files take up to 1.3 %
#: more instructions of a Cortex-M4.
FIRMWARE_FILE_SIZES: Final = KernelFileSizes(own=8_000, shared=8_000)
#: Number of hash digits that distinguish kernels of equal names.
KERNEL_NAME_HASH_DIGITS: Final = 6
#: Kernel name in the text that the hash is computed from.
_PLACEHOLDER_KERNEL_NAME: Final = "KERNEL_NAME"
_PRINTED_KERNEL_SERIALIZER: Final = JsonFormat(PrintedKernel, [PrintedKernel, DType])


#: Kernels that are merged into one function: none (""), kernels with different "values" to compute
#: with, or kernels with any different "numbers".
KernelMerging: TypeAlias = Literal["", "values", "numbers"]
#: Number literals in the text of a kernel, and the hashes in names of helper functions.
_NUMBER_LITERAL_PATTERN: Final = re.compile(r"-?\b\d[\w.]*(?:(?<=[ep])[-+]\w+)?|_[0-9a-f]{8}\b")


@frozen
class NamedKernel:
    """Printed kernel with its C name and the comment lines before it."""

    name: str
    comment: Sequence[str]
    printed: PrintedKernel

    @property
    def prototype(self) -> str:
        return self.printed.prototype_with_name(self.name)

    @property
    def text(self) -> str:
        return "\n".join([*self.comment, self.printed.definition_with_name(self.name)])


@frozen
class ExternalKernel:
    """Kernel with user-supplied C code: its name, prototype, code, and the name of the code
    generator that wrote it.
    """

    name: str
    prototype: str
    code: str
    author: str

    def source_file_text(self) -> str:
        """Return the code followed by the prototype it is called by, so that the compiler checks
        that both agree.
        """
        return f"{self.code.rstrip()}\n\n/* How it is called. */\n#include <stdint.h>\n{self.prototype};\n"

    def metadata_entry(self, source_path: str) -> dict[str, str]:
        """Return the kernel's entry in the metadata; `source_path` is the path of its file in the
        project.
        """
        return {"kernel": self.name, "prototype": self.prototype, "generator": self.author, "source": source_path}


@frozen
class PrintedKernels:
    """Distinct printed kernels, and the C name under which each kernel of the program is called.

    externals   kernels with user-supplied code, each with its own file
    numbers     for each kernel that was merged with others: its arguments after the buffers
    file_sizes  how the kernels are distributed over files
    """

    kernels: tuple[NamedKernel, ...]
    names: dict[Kernel, str]
    dialect: Dialect
    externals: tuple[ExternalKernel, ...] = ()
    numbers: Mapping[Kernel, Sequence[str]] = field(default_factory=dict)
    file_sizes: KernelFileSizes = HOST_FILE_SIZES

    @property
    def prototypes(self) -> list[str]:
        """Prototypes of all kernels, including kernels with user-supplied code."""
        return [*(k.prototype for k in self.externals), *(k.prototype for k in self.kernels)]

    def kernel_call_statement(self, kernel: Kernel, arguments: Sequence[str]) -> str:
        """Return the statement that runs a kernel; a kernel that is split among threads also gets
        its team.
        """
        team = [self.dialect.team_argument] if kernel.team and self.dialect.team_argument else []
        return self.dialect.launch.format(
            name=self.names[kernel], arguments=", ".join([*arguments, *self.numbers.get(kernel, ()), *team])
        )

    def external_kernels_by_path(self, project_name: str) -> dict[str, ExternalKernel]:
        """Return the kernels with user-supplied code by their file paths in a project."""
        return {f"src/{project_name}_extern_{k}.c": external for k, external in enumerate(self.externals)}

    def render_kernel_files(self, name: str, suffix: str, **common: Any) -> dict[str, str]:
        """Return the kernels as files that compile by themselves, by their paths in the project
        `name`.

        common   template values of the project

        Helper functions used by several files go into a common header, together with all vector
        types.
        """
        groups = distribute_kernels_over_files(self.kernels, self.file_sizes)
        uses = Counter(helper for group in groups for helper in _helper_definitions_by_name(group))
        shared = {
            helper: text for helper, text in _helper_definitions_by_name(self.kernels).items() if uses[helper] > 1
        }
        common = {**common, "name": name}
        header = f"{name}_helpers{suffix}.h" if shared else ""
        files = {
            f"src/{name}_kernels{suffix}_{k}.c": self.render_kernel_file("kernels.c", group, header, shared, **common)
            for k, group in enumerate(groups)
        }
        if shared:
            vectors = self.dialect.vector_file_prelude({v for k in self.kernels for v in k.printed.vectors})
            guard = header.upper().replace(".", "_")
            words = {"vectors": vectors, "helpers": "\n".join(shared.values()), "guard": guard}
            files[f"src/{header}"] = render_template("helpers.h", **words, **common)
        return files

    def render_kernel_file(
        self,
        template: str,
        kernels: Sequence[NamedKernel],
        header: str = "",
        helpers_defined_in_header: Container[str] = frozenset(),
        **common: Any,
    ) -> str:
        """Return a file with some of the kernels, and the helper functions and vector types that
        they need.

        header   name of an included header with the vector types and the helper functions named in
                 `helpers_defined_in_header`
        """
        helpers = [
            text for name, text in _helper_definitions_by_name(kernels).items() if name not in helpers_defined_in_header
        ]
        vectors = set() if header else {vector for k in kernels for vector in k.printed.vectors}
        words = {"vectors": self.dialect.vector_file_prelude(vectors), "helpers": "\n".join(helpers)}
        include = [f'#include "{header}"'] if header else []
        return render_template(template, kernels=kernels, helpers_include=include, **words, **common)


def _helper_definitions_by_name(kernels: Sequence[NamedKernel]) -> dict[str, str]:
    """Return the helper functions of some kernels: definitions by name, callees first."""
    return {name: text for k in kernels for name, text in k.printed.definitions.items()}


def _external_kernels(
    kernels: Sequence[Kernel], used_names: UniqueIdentifiers, dialect: Dialect
) -> dict[Kernel, ExternalKernel]:
    """Return the kernels with user-supplied code, which are called by their own names.

    Raise AotcError (code "name") if a name is in use.
    """
    externals: dict[Kernel, ExternalKernel] = {}
    plain = replace(dialect, restrict="")
    for kernel in kernels:
        if kernel.source is None:
            continue
        if used_names.unique_identifier(kernel.name) != kernel.name:
            raise AotcError(
                "name", f"two functions of the project would have the name {kernel.name!r}", span=kernel.span
            )
        source = kernel.source
        externals[kernel] = ExternalKernel(kernel.name, kernel_prototype(kernel, plain), source.text, source.author)
    return externals


def print_kernels(
    kernels: Iterable[Kernel],
    prefix: str,
    dialect: Dialect = GNU_C,
    suffix: str = "",
    kernel_merging: KernelMerging = "",
    code_size: CodeSize = C.code_size,
    file_sizes: KernelFileSizes = HOST_FILE_SIZES,
) -> PrintedKernels:
    """Print each kernel as PREFIX_NAME with a suffix; kernels with equal texts become one function.

    kernel_merging   "values" also merges kernels that compute with different constants; "numbers"
                     merges kernels that differ in any numbers if this saves code
                     (`aotc.tir.plan.similar_kernel_merging`)
    code_size        figures of the target by which this is estimated
    file_sizes       how the kernels are distributed over files

    Kernels of equal names get a hash of their text as a suffix rather than a number, so that a
    kernel's text does not change when other kernels are added or removed.
    """
    kernels = tuple(kernels)
    functions = ("run", "info", "params", "shapes", "sizes", "tiers", "check", "workspace_bytes")
    used_names = UniqueIdentifiers((prefix, *(f"{prefix}_{function}" for function in functions)))
    externals = _external_kernels(kernels, used_names, dialect)
    names = {k: k.name for k in externals}
    alike: dict[str, tuple[PrintedKernel, list[Kernel]]] = {}
    memoize_in_parallel([partial(_print_kernel_cached, kernel, dialect) for kernel in kernels if kernel not in names])
    for kernel in kernels:
        if kernel not in names:
            printed_kernel = _print_kernel_cached(kernel, dialect)
            alike.setdefault(printed_kernel.definition_with_name(_PLACEHOLDER_KERNEL_NAME), (printed_kernel, []))[
                1
            ].append(kernel)
    numbers = (
        _parameterize_texts_differing_in_numbers(alike, dialect, code_size, sizes=kernel_merging == "numbers")
        if kernel_merging
        else {}
    )
    shared = Counter(group[0].name for _, group in alike.values())
    distinct = []
    for text, (printed_kernel, group) in alike.items():
        base = f"{prefix}_{group[0].name}"
        mark = (
            f"_{hashlib.sha256(text.encode()).hexdigest()[:KERNEL_NAME_HASH_DIGITS]}"
            if shared[group[0].name] > 1
            else ""
        )
        name = used_names.unique_identifier(
            f"{base[: MAX_IDENTIFIER_CHARACTERS - len(mark) - len(suffix)]}{mark}{suffix}"
        )
        names.update((kernel, name) for kernel in group)
        distinct.append(NamedKernel(name, model_node_comment_lines(group[0]), printed_kernel))
    return PrintedKernels(tuple(distinct), names, dialect, tuple(externals.values()), numbers, file_sizes)


def _parameterize_texts_differing_in_numbers(
    kernels_by_text: dict[str, tuple[PrintedKernel, list[Kernel]]],
    dialect: Dialect,
    code_size: CodeSize,
    *,
    sizes: bool,
) -> dict[Kernel, Sequence[str]]:
    """Replace texts that differ only in numbers by one parameterized text; return the arguments for
    each kernel.

    `kernels_by_text`, the printed kernels grouped by text, is updated in place.
    """
    # comparing texts is cheap, and most kernels resemble no other kernel
    outlines = {
        text: _NUMBER_LITERAL_PATTERN.sub("", printed_kernel.body)
        for text, (printed_kernel, _) in kernels_by_text.items()
    }
    several = Counter(outlines.values())
    texts = {group[0]: text for text, (_, group) in kernels_by_text.items() if sizes or several[outlines[text]] > 1}
    numbers: dict[Kernel, Sequence[str]] = {}
    for merged_kernel in merge_similar_kernels(texts, code_size, may_differ_in_sizes=sizes):
        printed_kernel = print_kernel(merged_kernel.kernel, dialect)
        members: list[Kernel] = []
        for kernel, values in merged_kernel.members:
            arguments = [*map(c_number_argument, values)]
            group = kernels_by_text.pop(texts[kernel])[1]
            numbers |= dict.fromkeys(group, arguments)
            members += group
        # groups that differ in properties that C does not express, for example alignment, can
        # yield equal texts
        kernels_by_text.setdefault(printed_kernel.definition_with_name(_PLACEHOLDER_KERNEL_NAME), (printed_kernel, []))[
            1
        ].extend(members)
    return numbers


def c_number_argument(value: Const) -> str:
    """Return the C argument for a number of a kernel."""
    return c_literal(
        value.value, DType("int32") if value.dtype == INDEX and abs(value.value) < 1 << 31 else value.dtype
    )


def _print_kernel_cached(kernel: Kernel, dialect: Dialect) -> PrintedKernel:
    key = f"c {dialect.name} {dialect.index} {' '.join(sorted(dialect.features))}"
    return load_or_compute_memoized_result(
        key, kernel, lambda: print_kernel(kernel, dialect), _PRINTED_KERNEL_SERIALIZER
    )


def distribute_kernels_over_files(kernels: Sequence[NamedKernel], sizes: KernelFileSizes) -> list[list[NamedKernel]]:
    """Distribute kernels over files: large kernels get their own file, small ones share files.

    A small kernel's file depends on the kernel's prototype and the number of files alone, so that a
    change of one kernel affects few files.
    """
    small = [k for k in kernels if len(k.text) < sizes.own]
    count = 1 << (sum(len(k.text) for k in small) // sizes.shared).bit_length()
    groups: dict[int, list[NamedKernel]] = {}
    for kernel in small:
        place = int(hashlib.sha256(kernel.prototype.encode()).hexdigest(), 16) % count
        groups.setdefault(place, []).append(kernel)
    return [*([k] for k in kernels if len(k.text) >= sizes.own), *(groups[key] for key in sorted(groups))]
