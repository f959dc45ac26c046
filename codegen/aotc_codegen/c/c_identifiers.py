# SPDX-License-Identifier: Apache-2.0
"""Turn arbitrary names in models into valid, unique C identifiers, comments and string literals.

c_identifier_from_text("input_1:0")    # "input_1_0"
UniqueIdentifiers(("int",)).unique_identifier("x")  # "x", then "x_1", ...
"""

import re
import unicodedata
from collections.abc import Iterable
from typing import Final

from aotc.ir import Span

_RESERVED_WORDS_TEXT: Final = """
auto break case char const continue default do double else enum extern float for goto if inline int long register
restrict return short signed sizeof static struct switch typedef union unsigned void volatile while bool true false
alignas alignof asm and and_eq bitand bitor catch char8_t char16_t char32_t class compl concept consteval constexpr
constinit const_cast co_await co_return co_yield decltype delete dynamic_cast explicit export friend mutable namespace
new noexcept not not_eq nullptr operator or or_eq private protected public reinterpret_cast requires static_assert
static_cast template this thread_local throw try typeid typename typeof typeof_unqual using virtual wchar_t xor xor_eq
unix linux main NULL
"""
#: Identifiers that C, C++ or common platform headers reserve; names that begin with `_` are not
#: listed, as no generated identifier begins with `_`.
RESERVED_IDENTIFIERS: Final = frozenset(_RESERVED_WORDS_TEXT.split())
_RESERVED_FILE_NAMES_TEXT: Final = """
aio alloca argp argz assert byteswap complex cpio crypt ctype dirent dlfcn elf endian envz err errno error execinfo
fcntl features fenv fmtmsg fnmatch fstab ftw gconv getopt glob grp iconv ifaddrs immintrin intrin inttypes io
iso646 langinfo libgen libintl limits link locale malloc math mcheck memory mntent monetary mqueue netdb nss obstack
paths poll printf process pthread pty pwd regex resolv sched search semaphore setjmp sgtty shadow signal spawn
stdalign stdarg stdatomic stdbit stdbool stdckdint stddef stdint stdio stdlib stdnoreturn string strings syscall
sysexits syslog tar termio termios tgmath threads time ttyent uchar ucontext ulimit unistd utime utmp utmpx values
wait wchar wctype windows wordexp
aotc aotc_rt aotc_loader params_to_c
m c dl rt pthread gcc gcc_s stdc
all all_build clean depend edit_cache help install list_install_components package package_source preinstall
rebuild_cache run_tests test zero_check
"""
#: Pattern of the macros without parameters in the C headers that emitted code includes.
_HEADER_MACRO_PATTERN: Final = re.compile(
    r"(U?INT(_LEAST|_FAST)?(8|16|32|64|PTR|MAX)|PTRDIFF|SIZE|SIG_ATOMIC|WCHAR|WINT)_(MAX|MIN|WIDTH)"
    r"|(FP|M|MATH|HUGE|SEEK|EXIT|TIME|L|AOTC)_\w+|NAN|INFINITY|DOMAIN|SING|OVERFLOW|UNDERFLOW|PLOSS|TLOSS"
    r"|EOF|BUFSIZ|(FILENAME|FOPEN|TMP|RAND|MB_CUR|MB_LEN)_MAX|CLOCKS_PER_SEC|P_tmpdir|std(in|out|err)|errno"
)
#: Names that a model cannot have, as headers, libraries and build targets are named after it.
RESERVED_MODEL_NAMES: Final = RESERVED_IDENTIFIERS | frozenset(_RESERVED_FILE_NAMES_TEXT.split())
#: Number of characters after which a name is cut; linkers limit the length of names.
MAX_IDENTIFIER_CHARACTERS: Final = 48


def c_identifier_from_text(text: str, fallback: str = "tensor") -> str:
    """Return a C identifier that resembles `text`: ASCII, no leading digit or underscore, no
    keyword, no macro.
    """
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    name = re.sub(r"[^A-Za-z0-9]+", "_", plain).strip("_")[:MAX_IDENTIFIER_CHARACTERS].rstrip("_") or fallback
    if name[0].isdigit():
        name = f"n{name}"
    return f"{name}_" if name in RESERVED_IDENTIFIERS or _HEADER_MACRO_PATTERN.fullmatch(name) else name


def c_model_identifier(text: str) -> str:
    """Return a C identifier for a model that is also valid as the name of its files, libraries and
    build targets.
    """
    name = c_identifier_from_text(text, "model")
    return f"{name}_model" if name.lower() in RESERVED_MODEL_NAMES else name


def escape_for_c_comment(text: str) -> str:
    """Return `text` as printable ASCII on one line that can neither end a C comment nor continue a
    line.
    """
    safe = "".join(c if " " <= c <= "~" else "?" for c in text)
    safe = re.sub(r"\*(?=/)", "* ", re.sub(r"/(?=\*)", "/ ", safe.replace("\\", "/")))
    return re.sub(r"\?(?=\?)", "? ", safe)


def model_node_names_of_span(span: Span | None) -> list[str]:
    """Return the names of the model's nodes that a span (the origin of an IR object) lists."""
    return [o.node for o in span.all_origins() if o.node] if span is not None else []


def escape_for_c_string(text: str) -> str:
    """Return the inside of a C string literal for any text: UTF-8 with octal escapes of three
    digits.
    """
    plain = frozenset(range(0x20, 0x7F)) - {ord('"'), ord("\\"), ord("?")}
    return "".join(chr(b) if b in plain else f"\\{b:03o}" for b in text.encode("utf-8", "surrogatepass"))


class UniqueIdentifiers:
    """Generator of unique identifiers; a repeated name gets a number. With `any_case`, names are
    unique ignoring case.
    """

    def __init__(self, taken: Iterable[str] = (), *, any_case: bool = False) -> None:
        self._key = str.upper if any_case else str
        self._used_identifiers = {self._key(name) for name in taken}
        # the last number appended to each base name; all smaller numbers are in use
        self._last_number_by_name: dict[str, int] = {}

    def unique_identifier(self, text: str, fallback: str = "tensor") -> str:
        """Return an identifier that resembles `text` and has not been returned before."""
        base = c_identifier_from_text(text, fallback)
        number = self._last_number_by_name.get(self._key(base), 0)
        name = f"{base}_{number}" if number else base
        while self._key(name) in self._used_identifiers:
            number += 1
            name = f"{base}_{number}"
        self._used_identifiers.add(self._key(name))
        self._last_number_by_name[self._key(base)] = number
        return name
