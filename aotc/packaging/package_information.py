# SPDX-License-Identifier: Apache-2.0
"""Descriptive metadata of packages: name, version, license, author and description.

read_package_information(Path("package.toml"))  # PackageInformation(name="digits", version="1.2.0", ...)

The file has a table of texts, in which every entry is optional:

    [package]
    name = "digits"
    version = "1.2.0"
    license = "MIT"
    author = "Ada Lovelace <ada@example.org>"
    description = "Recognizes handwritten digits."
    url = "https://example.org/digits"
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Final

from aotc.ir import AotcError, frozen, open_regular_file, require_known_name, translate_os_errors
from aotc.packaging.project_sources import package_error

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_VERSION_PATTERN: Final = re.compile(r"(0|[1-9]\d{0,8})(\.(0|[1-9]\d{0,8})){2}")
#: Characters of an SPDX license expression, such as "MIT OR Apache-2.0".
_LICENSE_PATTERN: Final = re.compile(r"[A-Za-z0-9.+() -]*")
_URL_PATTERN: Final = re.compile(r"(https?://[!-~]+)?")
_NAME_WITH_EMAIL_PATTERN: Final = re.compile(r"(?P<name>[^<>]*[^<> ])( *<(?P<email>[^<>@ ]+@[^<>@ ]+)>)?")
_MAX_TEXT_CHARACTERS: Final = 500
_TABLE_HINT: Final = 'a table [package] with texts, such as version = "1.2.0"'


@frozen
class PackageInformation:
    """Descriptive metadata of a package; "" stands for an entry that is not known.

    name          name of the package
    version       three numbers
    license       SPDX license expression of the model's code and parameters
    author        a name, or "name <email>"
    description   one sentence
    url           page of the package

    Raises AotcError (code "package") for a value that no ecosystem accepts.
    """

    name: str = ""
    version: str = "0.1.0"
    license: str = ""
    author: str = ""
    description: str = ""
    url: str = ""

    def __post_init__(self) -> None:
        for field in fields(self):
            text = getattr(self, field.name)
            if not text.isprintable() or len(text) > _MAX_TEXT_CHARACTERS:
                hint = f"write one line of at most {_MAX_TEXT_CHARACTERS} printable characters"
                raise package_error(f"{text[:80]!r} cannot be the {field.name} of a package", hint)
            if text != text.strip():
                hint = "write it without spaces at its ends, or leave it out"
                raise package_error(f"{text!r} cannot be the {field.name} of a package", hint)
        patterns = {
            "version": (_VERSION_PATTERN, "write three numbers, such as 1.2.0"),
            "license": (_LICENSE_PATTERN, "write an identifier of SPDX, such as MIT or Apache-2.0"),
            "url": (_URL_PATTERN, "write an address that begins with https://"),
        }
        for name, (pattern, hint) in patterns.items():
            if not pattern.fullmatch(getattr(self, name)):
                raise package_error(f"{getattr(self, name)!r} cannot be the {name} of a package", hint)
        if self.author and not _NAME_WITH_EMAIL_PATTERN.fullmatch(self.author):
            hint = "write a name, or a name and an address: Ada Lovelace <ada@example.org>"
            raise package_error(f"{self.author!r} cannot be the author of a package", hint)

    @property
    def author_name(self) -> str:
        """The name of the author, without an address."""
        match = _NAME_WITH_EMAIL_PATTERN.fullmatch(self.author)
        return match["name"] if match else ""

    @property
    def author_email(self) -> str:
        """The address of the author; "" if there is none."""
        match = _NAME_WITH_EMAIL_PATTERN.fullmatch(self.author)
        return (match["email"] or "") if match else ""


INFORMATION_FIELDS: Final = tuple(field.name for field in fields(PackageInformation))


def read_package_information(path: Path) -> PackageInformation:
    """Read the table [package] of a TOML file; other tables are ignored.

    Raise AotcError (code "package") for an unreadable file, a missing table, and unknown or invalid
    entries.
    """
    with open_regular_file(path, "package") as file, translate_os_errors("package", f"read {path}"):
        data = file.read()
    try:
        table = tomllib.loads(data.decode("utf-8")).get("package")
    except (ValueError, RecursionError) as error:
        raise package_error(f"{path.name} is not TOML: {error}", _TABLE_HINT) from error
    if not isinstance(table, dict):
        raise package_error(f"{path.name} has no table [package]", _TABLE_HINT)
    for key, value in table.items():
        require_known_name("package", f"entry of [package] in {path.name}", key, INFORMATION_FIELDS)
        if not isinstance(value, str):
            raise package_error(f"{path.name}: {key} is {value!r}, not a text", _TABLE_HINT)
    try:
        return PackageInformation(**table)
    except AotcError as error:
        raise package_error(f"{path.name}: {error.diagnostics[0].message}", error.diagnostics[0].hint) from error


def combine_package_information(manifest: Path | None, given: Mapping[str, str | None]) -> PackageInformation:
    """Return the information in a file, if there is one, with the values that are given in place of
    those of the file.
    """
    base = PackageInformation() if manifest is None else read_package_information(manifest)
    return replace(base, **{name: text for name, text in given.items() if text is not None})


@frozen
class PackageNameRule:
    """Names that an ecosystem allows.

    pattern       regular expression of the allowed names
    description   what the pattern allows, for messages
    separator     character in place of those that are not allowed
    lower         True if names are in lower case
    reserved      names, in lower case, that no package can have
    most          largest number of characters
    """

    pattern: str
    description: str
    separator: str = "_"
    lower: bool = False
    reserved: frozenset[str] = frozenset()
    most: int = 64

    def allows(self, name: str) -> bool:
        """Return True if a package can have a name."""
        fits = re.fullmatch(self.pattern, name) is not None and len(name) <= self.most
        # modules and crates are called like packages, with '_' for '-'
        return fits and self.reserved.isdisjoint([name.lower(), name.lower().replace("-", "_")])

    def nearest_allowed_name(self, name: str) -> str:
        """Return an allowed name that resembles `name`; `name` itself if it is allowed, "" if there is
        none.
        """
        if self.allows(name):
            return name
        text = name.lower() if self.lower else name
        text = re.sub(r"[^A-Za-z0-9]+", self.separator, text).strip(self.separator)[: self.most]
        candidates = (text, f"{text}{self.separator}model", f"model{self.separator}{text}")
        return next((candidate for candidate in candidates if self.allows(candidate)), "")
