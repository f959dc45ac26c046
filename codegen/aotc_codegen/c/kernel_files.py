# SPDX-License-Identifier: Apache-2.0
"""The kernels of a program as C files: each distinct one printed once, named, and put beside others.

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

#: Kernels of this size have a file of their own; files compile in parallel.
FILE_CHARACTERS: Final = 8_000
#: Digits of the hash that tells kernels of one name apart.
HASH_DIGITS: Final = 6
#: What a kernel is called in the text that its mark is made from.
_ANY_NAME: Final = "KERNEL_NAME"
_PRINTED: Final = Form(PrintedKernel, [PrintedKernel, DType])


#: Kernels that one function stands for: none, those of other values, or those of any other numbers.
Share: TypeAlias = Literal["", "values", "numbers"]
#: Literals in the text of a kernel, and the marks of helper functions, which are hashes.
_NUMBERS: Final = re.compile(r"-?\b\d[\w.]*(?:(?<=[ep])[-+]\w+)?|_[0-9a-f]{8}\b")


@frozen
class NamedKernel:
    """A printed kernel, its name, and the comment lines in front of it."""

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
    """A kernel whose code is the user's: its name, its prototype, the code and who wrote it."""

    name: str
    prototype: str
    code: str
    author: str

    def file(self) -> str:
        """The code, and behind it the declaration by which it is called: the compiler sees whether they agree."""
        return f"{self.code.rstrip()}\n\n/* How it is called. */\n#include <stdint.h>\n{self.prototype};\n"

    def described(self, path: str) -> dict[str, str]:
        """What the metadata say of the kernel; `path` is where its file lies in the project."""
        return {"kernel": self.name, "prototype": self.prototype, "generator": self.author, "source": path}


@frozen
class PrintedKernels:
    """Every distinct kernel, and the C name under which each kernel is called.

    externals   kernels whose code is the user's, a file each
    numbers     arguments of one that stands for several, for each of them, behind the buffers
    """

    kernels: tuple[NamedKernel, ...]
    names: dict[Kernel, str]
    dialect: Dialect
    externals: tuple[External, ...] = ()
    numbers: Mapping[Kernel, Sequence[str]] = field(default_factory=dict)

    @property
    def prototypes(self) -> list[str]:
        """The prototypes of all kernels, the user's included."""
        return [*(k.prototype for k in self.externals), *(k.prototype for k in self.kernels)]

    def launch(self, kernel: Kernel, arguments: Sequence[str]) -> str:
        """The statement that runs a kernel; a kernel of a team gets the team."""
        team = [self.dialect.team_argument] if kernel.team and self.dialect.team_argument else []
        return self.dialect.launch.format(
            name=self.names[kernel], arguments=", ".join([*arguments, *self.numbers.get(kernel, ()), *team])
        )

    def external_files(self, name: str) -> dict[str, External]:
        """The user's code by its paths in a project."""
        return {f"src/{name}_extern_{k}.c": external for k, external in enumerate(self.externals)}

    def files(self, name: str, suffix: str, **common: Any) -> dict[str, str]:
        """The kernels as files that compile by themselves, by their paths in the project `name`.

        common    the project's values for templates

        Helper functions that several of them need are in a header, with all types of vectors.
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
        """Some of the kernels in a template, with the helper functions and vectors that they need.

        header    the file that has the vectors, and the helper functions of the names in `shared`
        """
        helpers = [text for name, text in _helpers(kernels).items() if name not in shared]
        vectors = set() if header else {vector for k in kernels for vector in k.printed.vectors}
        words = {"vectors": self.dialect.vector_prelude(vectors), "helpers": "\n".join(helpers)}
        include = [f'#include "{header}"'] if header else []
        return render(template, kernels=kernels, helpers_include=include, **words, **common)


def _helpers(kernels: Sequence[NamedKernel]) -> dict[str, str]:
    """The definitions of the helper functions of some kernels, by name, each behind those that it calls."""
    return {name: text for k in kernels for name, text in k.printed.definitions.items()}


def _externals(kernels: Sequence[Kernel], taken: Names, dialect: Dialect) -> dict[Kernel, External]:
    """The kernels that the user's sources define; they are called by their names, which must be free."""
    found: dict[Kernel, External] = {}
    plain = replace(dialect, restrict="")
    for kernel in kernels:
        if kernel.source is None:
            continue
        if taken.fresh(kernel.name) != kernel.name:
            raise AotcError("name", f"two functions of the project would be called {kernel.name!r}", span=kernel.span)
        source = kernel.source
        found[kernel] = External(kernel.name, prototype(kernel, plain), source.text, source.author)
    return found


def print_kernels(
    kernels: Iterable[Kernel], prefix: str, dialect: Dialect = GNU_C, suffix: str = "", share: Share = ""
) -> PrintedKernels:
    """Print each kernel as PREFIX_NAME, a suffix behind it; kernels with equal texts are one function.

    share    so are kernels that differ in the "values" that they compute with, or in any "numbers" where that is less
             code (`aotc.tir.plan.merge_kernels`)

    Where several would have a name, all have a hash of their text behind it, not a
    number: so a kernel's text does not change when others come and go.
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
    """Put one text in the place of several that differ in numbers; the arguments of each kernel then."""
    # texts are cheap to compare: most kernels are like no other
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
        # groups that differ in what C does not say, as how memory is aligned, come to one text
        alike.setdefault(made.text(_ANY_NAME), (made, []))[1].extend(members)
    return numbers


def _remembered(kernel: Kernel, dialect: Dialect) -> PrintedKernel:
    return remembered(f"c {dialect.name} {dialect.index}", kernel, lambda: print_kernel(kernel, dialect), _PRINTED)


def split(kernels: Sequence[NamedKernel]) -> list[list[NamedKernel]]:
    """Kernels distributed over files: large ones have a file of their own, small ones share.

    Which small ones share depends on their texts alone, so that a change of one
    kernel touches few files.
    """
    small = [k for k in kernels if len(k.text) < FILE_CHARACTERS]
    count = 1 << (sum(len(k.text) for k in small) // FILE_CHARACTERS).bit_length()
    groups: dict[int, list[NamedKernel]] = {}
    for kernel in small:
        place = int(hashlib.sha256(kernel.prototype.encode()).hexdigest(), 16) % count
        groups.setdefault(place, []).append(kernel)
    return [*([k] for k in kernels if len(k.text) >= FILE_CHARACTERS), *(groups[key] for key in sorted(groups))]
