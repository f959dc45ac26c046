# SPDX-License-Identifier: Apache-2.0
"""Print the kernels of a program as C files: name them, print kernels of equal text once, and group
small ones.

printed = print_kernels(program.kernels, "net", GNU_C)
printed.names[kernel]                  # "net_conv2d"
printed.files("net", "", banner=...)  # files that compile by themselves, by path
"""

import hashlib
import re
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, Final, Literal, TypeAlias

from aotc.ir import AotcError, DType, Form, frozen, remembered
from aotc.tir import INDEX, Kernel, shared_kernels
from aotc_codegen.c.c_dialects import GNU_C, Dialect
from aotc_codegen.c.c_identifiers import LONGEST, Names
from aotc_codegen.c.c_types import literal
from aotc_codegen.c.file_templates import render
from aotc_codegen.c.kernel_printer import PrintedKernel, origin, print_kernel, prototype

#: Number of characters from which a kernel gets its own file, so that files compile in parallel.
FILE_CHARACTERS: Final = 8_000
#: Number of hash digits that distinguish kernels of equal names.
HASH_DIGITS: Final = 6
#: Kernel name in the text that the hash is computed from.
_ANY_NAME: Final = "KERNEL_NAME"
_PRINTED: Final = Form(PrintedKernel, [PrintedKernel, DType])


#: Kernels that are merged into one function: none (""), kernels with different "values" to compute
#: with, or kernels with any different "numbers".
Share: TypeAlias = Literal["", "values", "numbers"]
#: Number literals in the text of a kernel, and the hashes in names of helper functions.
_NUMBERS: Final = re.compile(r"-?\b\d[\w.]*(?:(?<=[ep])[-+]\w+)?|_[0-9a-f]{8}\b")


@frozen
class NamedKernel:
    """Printed kernel with its C name and the comment lines before it."""

    name: str
    comment: Sequence[str]
    printed: PrintedKernel

    @property
    def prototype(self) -> str:
        return self.printed.prototype(self.name)

    @property
    def text(self) -> str:
        return "\n".join([*self.comment, self.printed.text(self.name)])


@frozen
class External:
    """Kernel with user-supplied C code: its name, prototype, code, and the name of the code
    generator that wrote it.
    """

    name: str
    prototype: str
    code: str
    author: str

    def file(self) -> str:
        """Return the code followed by the prototype it is called by, so that the compiler checks
        that both agree.
        """
        return f"{self.code.rstrip()}\n\n/* How it is called. */\n#include <stdint.h>\n{self.prototype};\n"

    def described(self, path: str) -> dict[str, str]:
        """Return the kernel's entry in the metadata; `path` is the path of its file in the project."""
        return {"kernel": self.name, "prototype": self.prototype, "generator": self.author, "source": path}


@frozen
class PrintedKernels:
    """Distinct printed kernels, and the C name under which each kernel of the program is called.

    externals   kernels with user-supplied code, each with its own file
    numbers     for each kernel that was merged with others: its arguments after the buffers
    """

    kernels: tuple[NamedKernel, ...]
    names: dict[Kernel, str]
    dialect: Dialect
    externals: tuple[External, ...] = ()
    numbers: Mapping[Kernel, Sequence[str]] = field(default_factory=dict)

    @property
    def prototypes(self) -> list[str]:
        """Prototypes of all kernels, including kernels with user-supplied code."""
        return [*(k.prototype for k in self.externals), *(k.prototype for k in self.kernels)]

    def launch(self, kernel: Kernel, arguments: Sequence[str]) -> str:
        """Return the statement that runs a kernel; a kernel that is split among threads also gets
        its team.
        """
        team = [self.dialect.team_argument] if kernel.team and self.dialect.team_argument else []
        return self.dialect.launch.format(
            name=self.names[kernel], arguments=", ".join([*arguments, *self.numbers.get(kernel, ()), *team])
        )

    def external_files(self, name: str) -> dict[str, External]:
        """Return the kernels with user-supplied code by their file paths in a project."""
        return {f"src/{name}_extern_{k}.c": external for k, external in enumerate(self.externals)}

    def files(self, name: str, suffix: str, **common: Any) -> dict[str, str]:
        """Return the kernels as files that compile by themselves, by their paths in the project
        `name`.

        common   template values of the project

        Helper functions used by several files go into a common header, together with all vector
        types.
        """
        groups = split(self.kernels)
        uses = Counter(helper for group in groups for helper in _helpers(group))
        shared = {helper: text for helper, text in _helpers(self.kernels).items() if uses[helper] > 1}
        common = {**common, "name": name}
        header = f"{name}_helpers{suffix}.h" if shared else ""
        made = {
            f"src/{name}_kernels{suffix}_{k}.c": self.file("kernels.c", group, header, shared, **common)
            for k, group in enumerate(groups)
        }
        if shared:
            vectors = self.dialect.vector_prelude({v for k in self.kernels for v in k.printed.vectors})
            guard = header.upper().replace(".", "_")
            words = {"vectors": vectors, "helpers": "\n".join(shared.values()), "guard": guard}
            made[f"src/{header}"] = render("helpers.h", **words, **common)
        return made

    def file(
        self,
        template: str,
        kernels: Sequence[NamedKernel],
        header: str = "",
        shared: Container[str] = frozenset(),
        **common: Any,
    ) -> str:
        """Return a file with some of the kernels, and the helper functions and vector types that
        they need.

        header   name of an included header with the vector types and the helper functions named in
                 `shared`
        """
        helpers = [text for name, text in _helpers(kernels).items() if name not in shared]
        vectors = set() if header else {vector for k in kernels for vector in k.printed.vectors}
        words = {"vectors": self.dialect.vector_prelude(vectors), "helpers": "\n".join(helpers)}
        include = [f'#include "{header}"'] if header else []
        return render(template, kernels=kernels, helpers_include=include, **words, **common)


def _helpers(kernels: Sequence[NamedKernel]) -> dict[str, str]:
    """Return the helper functions of some kernels: definitions by name, callees first."""
    return {name: text for k in kernels for name, text in k.printed.definitions.items()}


def _externals(kernels: Sequence[Kernel], taken: Names, dialect: Dialect) -> dict[Kernel, External]:
    """Return the kernels with user-supplied code, which are called by their own names.

    Raise AotcError (code "name") if a name is in use.
    """
    found: dict[Kernel, External] = {}
    plain = replace(dialect, restrict="")
    for kernel in kernels:
        if kernel.source is None:
            continue
        if taken.fresh(kernel.name) != kernel.name:
            raise AotcError(
                "name", f"two functions of the project would have the name {kernel.name!r}", span=kernel.span
            )
        source = kernel.source
        found[kernel] = External(kernel.name, prototype(kernel, plain), source.text, source.author)
    return found


def print_kernels(
    kernels: Iterable[Kernel], prefix: str, dialect: Dialect = GNU_C, suffix: str = "", share: Share = ""
) -> PrintedKernels:
    """Print each kernel as PREFIX_NAME with a suffix; kernels with equal texts become one function.

    share   "values" also merges kernels that compute with different constants; "numbers" merges
            kernels that differ in any numbers if this saves code (`aotc.tir.plan.merge_kernels`)

    Kernels of equal names get a hash of their text as a suffix rather than a number, so that a
    kernel's text does not change when other kernels are added or removed.
    """
    kernels = tuple(kernels)
    taken = Names((prefix, f"{prefix}_run", f"{prefix}_info", f"{prefix}_params"))
    externals = _externals(kernels, taken, dialect)
    names = {k: k.name for k in externals}
    alike: dict[str, tuple[PrintedKernel, list[Kernel]]] = {}
    for kernel in kernels:
        if kernel not in names:
            made = _remembered(kernel, dialect)
            alike.setdefault(made.text(_ANY_NAME), (made, []))[1].append(kernel)
    numbers = _share(alike, dialect, sizes=share == "numbers") if share else {}
    shared = Counter(group[0].name for _, group in alike.values())
    distinct = []
    for text, (made, group) in alike.items():
        base = f"{prefix}_{group[0].name}"
        mark = f"_{hashlib.sha256(text.encode()).hexdigest()[:HASH_DIGITS]}" if shared[group[0].name] > 1 else ""
        name = taken.fresh(f"{base[: LONGEST - len(mark) - len(suffix)]}{mark}{suffix}")
        names.update((kernel, name) for kernel in group)
        distinct.append(NamedKernel(name, origin(group[0]), made))
    return PrintedKernels(tuple(distinct), names, dialect, tuple(externals.values()), numbers)


def _share(
    alike: dict[str, tuple[PrintedKernel, list[Kernel]]], dialect: Dialect, *, sizes: bool
) -> dict[Kernel, Sequence[str]]:
    """Replace texts that differ only in numbers by one parameterized text; return the arguments for
    each kernel.

    `alike`, the printed kernels grouped by text, is updated in place.
    """
    # comparing texts is cheap, and most kernels resemble no other kernel
    outlines = {text: _NUMBERS.sub("", made.body) for text, (made, _) in alike.items()}
    several = Counter(outlines.values())
    texts = {group[0]: text for text, (_, group) in alike.items() if sizes or several[outlines[text]] > 1}
    numbers: dict[Kernel, Sequence[str]] = {}
    for one in shared_kernels(texts, sizes=sizes):
        made = print_kernel(one.kernel, dialect, one.ranges())
        members: list[Kernel] = []
        for kernel, values in one.members:
            told = [literal(v.value, DType("int32") if v.dtype == INDEX else v.dtype) for v in values]
            group = alike.pop(texts[kernel])[1]
            numbers |= dict.fromkeys(group, told)
            members += group
        # groups that differ in properties that C does not express, for example alignment, can
        # yield equal texts
        alike.setdefault(made.text(_ANY_NAME), (made, []))[1].extend(members)
    return numbers


def _remembered(kernel: Kernel, dialect: Dialect) -> PrintedKernel:
    return remembered(f"c {dialect.name} {dialect.index}", kernel, lambda: print_kernel(kernel, dialect), _PRINTED)


def split(kernels: Sequence[NamedKernel]) -> list[list[NamedKernel]]:
    """Distribute kernels over files: large kernels get their own file, small ones share files.

    A small kernel's file depends on the kernel's prototype and the number of files alone, so that a
    change of one kernel affects few files.
    """
    small = [k for k in kernels if len(k.text) < FILE_CHARACTERS]
    count = 1 << (sum(len(k.text) for k in small) // FILE_CHARACTERS).bit_length()
    groups: dict[int, list[NamedKernel]] = {}
    for kernel in small:
        place = int(hashlib.sha256(kernel.prototype.encode()).hexdigest(), 16) % count
        groups.setdefault(place, []).append(kernel)
    return [*([k] for k in kernels if len(k.text) >= FILE_CHARACTERS), *(groups[key] for key in sorted(groups))]
