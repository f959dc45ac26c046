# SPDX-License-Identifier: Apache-2.0
"""Write the vocabulary of a tokenizer as a C header, which tokenizer.c includes.

    python make_vocabulary.py vocabulary.h tokenizer.bin     # the vocabulary of a trained model
    python make_vocabulary.py vocabulary.h                   # one token for each byte

In: a file in the format of llama2.c, with little-endian numbers: the length of the longest token (int32), then for each
token its score (float32), its length (int32) and its bytes.  Tokens 0 to 2 are for what is unknown, for the beginning
and for the end, tokens 3 to 258 are the 256 bytes; byte-pair encoding joins the others, highest score first.
Out: arrays of the tokens' bytes, where they begin, their scores, and the numbers of joined tokens sorted by bytes.
"""

from __future__ import annotations

import math
import struct
import sys
from collections.abc import Iterable
from pathlib import Path

FIRST_BYTE, FIRST_PIECE = 3, 3 + 256
BYTES = [(bytes([value]), 0.0) for value in range(256)]


def read_tokens(data: bytes) -> list[tuple[bytes, float]]:
    """Return bytes and score of each token of a file; raise ValueError for another format."""
    tokens, at = [], 4
    while at < len(data):
        if at + 8 > len(data):
            raise ValueError(f"the file ends within token {len(tokens)}")
        score, length = struct.unpack_from("<fi", data, at)
        text = data[at + 8 : at + 8 + length]
        if length < 0 or len(text) != length or not math.isfinite(score):
            raise ValueError(f"token {len(tokens)} has the length {length} and the score {score}, or the file ends")
        tokens.append((text, score))
        at += 8 + length
    names = [text for text, _ in tokens[FIRST_BYTE:FIRST_PIECE]]
    if names != [b"<0x%02X>" % value for value in range(256)]:
        raise ValueError(f"tokens {FIRST_BYTE} to {FIRST_PIECE - 1} are not the 256 bytes")
    return [(b"<unk>", 0.0), (b"", 0.0), (b"", 0.0), *BYTES, *tokens[FIRST_PIECE:]]


def array(declaration: str, values: Iterable[object]) -> str:
    """Return the definition of an array in C; an empty one gets one element, since C has no empty arrays."""
    return f"static const {declaration}[] = {{{', '.join(map(str, values)) or '0'}}};\n"


def header_of(tokens: list[tuple[bytes, float]]) -> str:
    """Return the header for tokens, given as bytes and score."""
    texts = [text for text, _ in tokens]
    starts = [0]
    for text in texts:
        starts.append(starts[-1] + len(text))
    pieces = {text: k for k, text in reversed(list(enumerate(texts))) if k >= FIRST_PIECE and text}
    joined = [pieces[text] for text in sorted(pieces)]
    counts = {"TOKENS": len(tokens), "PIECES": len(joined), "LONGEST": max(map(len, texts))}
    return (
        "// Written by make_vocabulary.py.\n#include <stdint.h>\n\n"
        + "".join(f"#define VOCABULARY_{name} {count}\n" for name, count in counts.items())
        + array("unsigned char vocabulary_text", b"".join(texts))
        + array("uint32_t vocabulary_start", starts)
        + array("float vocabulary_score", (f"{score!r}F" for _, score in tokens))
        + array("int32_t vocabulary_sorted", joined)
    )


def main(output: str, tokenizer: str = "") -> None:
    data = Path(tokenizer).read_bytes() if tokenizer else None
    tokens = [(b"<unk>", 0.0), (b"", 0.0), (b"", 0.0), *BYTES] if data is None else read_tokens(data)
    Path(output).write_text(header_of(tokens), encoding="ascii")


if __name__ == "__main__":
    try:
        main(*sys.argv[1:3])
    except (OSError, ValueError) as error:
        sys.exit(f"make_vocabulary.py: {error}")
