# SPDX-License-Identifier: Apache-2.0
"""The language model in C: text as ONNX Runtime gives it, the tokenizer, the sampler, and prompts of any bytes."""

from __future__ import annotations

import ctypes
import heapq
import os
import struct
import subprocess
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples.llm.make_vocabulary import FIRST_BYTE, FIRST_PIECE, header_of, read_tokens
from tests.conftest import require_tool
from tests.e2e.projects import run
from tests.e2e.test_growing_state import Reference
from tests.examples.conftest import ROOT, Shell, blocks

FOLDER = ROOT / "examples" / "llm"
SANITIZED = "-O0 -g0 -fsanitize=address,undefined -fno-sanitize-recover=all"
CAPACITY = 64
BEGIN, END = 1, 2
TRAINED_TOKENS = 512
"""Number of tokens of the trained model."""


def tokenizer_file() -> bytes:
    """A tokenizer with as many tokens as the trained model: characters, and beginnings of words."""
    sentence = "Once upon a time there was a little girl named Lily. She loved to play with her toys in the park."
    characters = ["\n", *map(chr, range(32, 127)), "\u00fc", "\u20ac"]
    beginnings = [f" {word}"[:length] for word in sentence.split() for length in range(2, len(word) + 2)]
    numbers = [f" {number}" for number in range(100)]
    pieces = [text.encode() for text in dict.fromkeys([*characters, *beginnings, *numbers])]
    names = [b"<unk>", b"<s>", b"</s>", *(b"<0x%02X>" % value for value in range(256))]
    tokens = [*names, *pieces][:TRAINED_TOKENS]
    assert len(tokens) == TRAINED_TOKENS
    rows = (struct.pack("<fi", -number, len(text)) + text for number, text in enumerate(tokens))
    return struct.pack("<i", max(map(len, tokens))) + b"".join(rows)


TOKENIZER = tokenizer_file()


@dataclass(frozen=True)
class Program:
    """The program `generate`, and the model in it."""

    path: Path
    model: onnx.ModelProto

    def __call__(self, *arguments: str | bytes) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run([self.path, *arguments], capture_output=True, check=False)

    def text(self, *arguments: str | bytes) -> bytes:
        done = self(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout.removesuffix(b"\n")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    """The program of the seeded model, by the commands of the example's page, with sanitizers."""
    folder = tmp_path_factory.mktemp("llm")
    (folder / "examples").symlink_to(ROOT / "examples")
    (commands,) = blocks(FOLDER / "README.md", "sh")
    assert f"CAPACITY={CAPACITY} " in commands
    done = Shell(folder, folder / "bin")(commands, {"CFLAGS": SANITIZED})
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Once upon a time") and done.stdout.count("It was") == 3
    out = folder / "build" / "llm"
    return Program(out / "generate", onnx.load(out / "seeded.onnx"))


def greedy(model: onnx.ModelProto, tokens: list[int], count: int) -> list[int]:
    """The most likely `count` tokens behind others, by ONNX Runtime with the caches as inputs and outputs."""
    reference, written = Reference(model), list[int]()
    for position in range(len(tokens) + count - 1):
        token = [*tokens, *written][position]
        logits = reference({"tokens": np.array([[token]]), "position": np.array([position])})
        if position >= len(tokens) - 1:
            written.append(int(logits.argmax()))
    return written[: written.index(END)] if END in written else written


def bytes_of(tokens: list[int], pieces: list[bytes] | None = None) -> bytes:
    """What the program writes for tokens: bytes, and pieces of text of a tokenizer."""
    byte_tokens = [bytes([value]) for value in range(256)]
    texts = [*[b"<unk>"] * FIRST_BYTE, *byte_tokens, *(pieces or [])]
    values = [texts[t] for t in tokens]
    controls = [bytes([value]) for value in (*range(32), 127) if value not in b"\n\t"]
    return b"".join(b"\\x%02x" % v[0] if v in controls else v for v in values)


@pytest.mark.parametrize(
    "prompt", [b"", b"Once", b"\xff\xfe\xc3(", "\u00e4\u20ac\U0001f600".encode(), b"\x1b[2J\r%s%n"]
)
def test_greedy_text_is_that_of_onnx_runtime(program: Program, prompt: bytes) -> None:
    tokens = [BEGIN, *(FIRST_BYTE + value for value in prompt)]
    expected = bytes_of(greedy(program.model, tokens, 24))
    assert program.text("-n", "24", "--", prompt) == prompt + expected
    assert len(set(expected)) > 4


def test_a_prompt_fills_the_caches_or_is_refused(program: Program) -> None:
    longest = b"a" * (CAPACITY - 1)
    expected = bytes_of(greedy(program.model, [BEGIN, *[FIRST_BYTE + ord("a")] * len(longest)], 1))
    assert program.text(longest) == longest + expected
    for length in (CAPACITY, 8 * CAPACITY + 2, 100_000):
        done = program(b"a" * length)
        assert (done.returncode, done.stdout) == (1, b"")
        assert done.stderr == b"generate: the prompt is too long for the model\n"


def test_text_ends_where_the_caches_are_full(program: Program) -> None:
    expected = bytes_of(greedy(program.model, [BEGIN, FIRST_BYTE + ord("x")], CAPACITY - 1))
    assert program.text("-n", "1000", "x") == b"x" + expected


def test_continuations_begin_at_the_saved_conversation(program: Program) -> None:
    drawn = ("-n", "20", "-t", "1.2", "-p", "0.9")
    texts = program.text(*drawn, "-s", "5", "-k", "3", "It was").split(b"It was")
    alone = [program.text(*drawn, "-s", seed, "It was") for seed in ("5", "6", "7")]
    assert [b"It was" + text.removesuffix(b"\n") for text in texts[1:]] == alone
    assert len(set(alone)) == 3
    assert program.text("-n", "0", "It was") == b"It was"


def test_a_vocabulary_of_another_model_is_refused(program: Program, tmp_path: Path) -> None:
    (tmp_path / "vocabulary.h").write_text(header_of(read_tokens(TOKENIZER)))
    sources = (FOLDER / f"{name}.c" for name in ("main", "generate", "tokenizer", "sampler"))
    project = program.path.parent / "llm"
    libraries = (project / "build" / f"lib{name}.a" for name in ("llm", "aotc_rt"))
    flags = ["-std=c99", *SANITIZED.split(), f"-I{tmp_path}", f"-I{project}/include"]
    run(["cc", *flags, *sources, *libraries, "-lm", "-o", "other"], tmp_path)
    done = subprocess.run([tmp_path / "other", "It was"], capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.startswith(b"generate: the vocabulary has another number of tokens than the model")


def test_the_prompt_may_contain_quotation_marks(shell: Shell) -> None:
    (shell.folder / "generate").write_text("#!/bin/sh\nprintf '%s|' \"$@\"\n")
    (shell.folder / "generate").chmod(0o755)
    make = f'make -s -C "{FOLDER}" run -o program OUT="{shell.folder}" MODEL= ARGS="-n 1"'
    assert shell.succeed(make + """ PROMPT='"a" `b` \\ c'""") == '-n|1|--|"a" `b` \\ c|'


@pytest.mark.parametrize(
    "arguments",
    ["-n", "-n x", "-n -1", "-n 1.5", "-n 1e99", "-t nan", "-t -1", "-p 1.1", "-s 0x", "-k 0", "-x 1", "--n 1", "a b"],
)
def test_mistakes_in_arguments_print_the_usage(program: Program, arguments: str) -> None:
    done = program(*arguments.split())
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"usage: generate [-n TOKENS]")


def test_a_trained_model_with_a_tokenizer(models: Path, shell: Shell) -> None:
    model, tokenizer = models / "tinystories260k_decode.onnx", shell.folder / "tokenizer.bin"
    tokenizer.write_bytes(TOKENIZER)
    make = f'make -s -C "{FOLDER}" PYTHON=python OUT="{shell.folder}/out"'
    printed = shell.succeed(f'{make} MODEL="{model}" TOKENIZER="{tokenizer}" CAPACITY=128 ARGS="-n 60"')
    texts = [text for text, _ in read_tokens(TOKENIZER)]
    tokens = encoded(texts, read_tokens(TOKENIZER), b"Once upon a time")
    assert len(tokens) < 10, "the prompt is joined to words"
    expected = bytes_of(greedy(onnx.load(model), tokens, 60), texts[FIRST_PIECE:])
    assert printed.encode("utf-8", "surrogateescape") == b"Once upon a time" + expected + b"\n"


def test_firmware_writes_the_text_of_the_program(program: Program, shell: Shell) -> None:
    for tool in ("arm-none-eabi-gcc", "qemu-system-arm"):
        require_tool(tool)
    make = f'make -s -C "{FOLDER}" firmware PYTHON=python MODEL= OUT="{shell.folder}/out" CAPACITY={CAPACITY}'
    first, second = shell.succeed(f'{make} PROMPT="It was" 2>&1').splitlines()
    assert first.encode() == program.text("-n", "32", "It was")
    assert second.startswith("It was") and second != first


# The sampler.


def library(folder: Path, *sources: str) -> ctypes.CDLL:
    path = folder / "library.so"
    command = ["cc", "-std=c99", "-O1", "-shared", "-fPIC", f"-I{folder}", *(FOLDER / s for s in sources)]
    run([*command, "-lm", "-o", path], folder)
    return ctypes.CDLL(os.fspath(path))


class Sampler(ctypes.Structure):
    """The struct `sampler`."""

    _fields_ = (("temperature", ctypes.c_float), ("top_p", ctypes.c_float), ("random", ctypes.c_uint64))


class Draw:
    """sampler_draw on copies of the logits."""

    def __init__(self, folder: Path) -> None:
        self.function = library(folder, "sampler.c").sampler_draw

    def __call__(self, sampler: Sampler, logits: list[float]) -> int:
        count = len(logits)
        values, order = (ctypes.c_float * count)(*logits), (ctypes.c_int32 * count)()
        return int(self.function(ctypes.byref(sampler), values, order, count))


@pytest.fixture(scope="module")
def draw(tmp_path_factory: pytest.TempPathFactory) -> Draw:
    return Draw(tmp_path_factory.mktemp("sampler"))


def probabilities(logits: list[float], temperature: float, top_p: float) -> np.ndarray:
    """The distribution that the sampler draws from: softmax, cut off behind the most likely tokens."""
    scaled = np.array(logits) / temperature
    p = np.exp(scaled - scaled.max())
    p /= p.sum()
    order = np.argsort(-p, kind="stable")
    kept = order[: int(np.searchsorted(np.cumsum(p[order]), top_p)) + 1] if top_p < 1 else order
    cut = np.zeros_like(p)
    cut[kept] = p[kept]
    return cut / cut.sum()


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.7, 0.85), (2.0, 0.5), (1.0, 0.0)])
def test_tokens_are_drawn_with_their_probabilities(draw: Draw, temperature: float, top_p: float) -> None:
    logits = [0.0, 1.5, -np.inf, 1.5, 3.0, -2.0, 2.0, 0.5, -100.0]
    expected, draws = probabilities(logits, temperature, top_p), 20_000
    sampler = Sampler(temperature, top_p, 3)
    counts = np.bincount([draw(sampler, logits) for _ in range(draws)], minlength=len(logits))
    possible = expected > 1e-9
    assert counts[~possible].sum() == 0
    chi_square = ((counts - draws * expected)[possible] ** 2 / (draws * expected[possible])).sum()
    # far above the 99.99th percentile for up to 7 degrees of freedom
    assert chi_square < 35


def test_draws_repeat_with_their_seed(draw: Draw) -> None:
    logits = list(np.random.default_rng(0).normal(size=50))
    one, two, other = (Sampler(1.0, 0.9, seed) for seed in (7, 7, 8))
    rows = [[draw(sampler, logits) for _ in range(30)] for sampler in (one, two, other)]
    assert rows[0] == rows[1] != rows[2]


@pytest.mark.parametrize("temperature", [0.0, 1e-30, 1.0])
def test_what_cannot_be_drawn_from(draw: Draw, temperature: float) -> None:
    for logits in ([0.0, np.nan], [np.nan, 0.0], [0.0, np.inf], [-np.inf, -np.inf]):
        assert draw(Sampler(temperature, 0.9, 0), logits) == -1
    assert draw(Sampler(temperature, 0.9, 0), [-np.inf, 3e38, -3e38]) == 1
    if temperature < 1:
        assert draw(Sampler(temperature, 1.0, 0), [1.0, 2.0, 2.0]) in ((1,) if temperature == 0 else (1, 2))


# The tokenizer.


def encoded(texts: list[bytes], tokens: list[tuple[bytes, float]], text: bytes) -> list[int]:
    """Byte-pair encoding, written for clarity: the highest score first, the leftmost of several."""
    pieces = {t: k for k, t in reversed(list(enumerate(texts))) if k >= FIRST_PIECE}
    parts: list[tuple[int, bytes]] = [(pieces[b" "], b" ")] if text else []
    characters = text.decode("utf-8", "surrogateescape")
    for character in characters:
        data = character.encode("utf-8", "surrogateescape")
        parts += [(pieces[data], data)] if data in pieces else [(FIRST_BYTE + b, b"") for b in data]
    while True:
        pairs = [
            (-tokens[pieces[a + b]][1], k)
            for k, ((_, a), (_, b)) in enumerate(pairwise(parts))
            if a and b and a + b in pieces
        ]
        if not pairs:
            return [BEGIN, *(token for token, _ in parts)]
        _, k = heapq.nsmallest(1, pairs)[0]
        joined = parts[k][1] + parts[k + 1][1]
        parts[k : k + 2] = [(pieces[joined], joined)]


class Symbol(ctypes.Structure):
    """The struct `tokenizer_symbol`."""

    _fields_ = (("token", ctypes.c_int32), ("joined", ctypes.c_int32))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("tokenizer")
    (folder / "vocabulary.h").write_text(header_of(read_tokens(TOKENIZER)))
    loaded = library(folder, "tokenizer.c")
    loaded.tokenizer_decode.restype = ctypes.c_void_p
    return loaded


def encode(tokenizer: ctypes.CDLL, text: bytes, room: int) -> list[int] | None:
    symbols = (Symbol * room)()
    count = tokenizer.tokenizer_encode(text, symbols, room)
    return None if count < 0 else [symbols[k].token for k in range(count)]


def decode(tokenizer: ctypes.CDLL, tokens: list[int]) -> bytes:
    length, found = ctypes.c_size_t(), b""
    for previous, token in pairwise(tokens):
        at = tokenizer.tokenizer_decode(previous, token, ctypes.byref(length))
        found += ctypes.string_at(at, length.value)
    return found


WORDS = st.sampled_from(
    ["Once upon a time", ", there was a little girl", " <0x0A>", "<s>", "\n", "  ", "M\u00fcll", "\u20ac"]
)
PROMPTS = st.one_of(
    st.lists(WORDS).map(lambda words: "".join(words).encode()),
    st.text(max_size=30).map(lambda text: text.replace("\0", "").encode("utf-8", "surrogatepass")),
    st.binary(max_size=30).map(lambda data: data.replace(b"\0", b"")),
)


@settings(max_examples=100, deadline=None)
@given(text=PROMPTS)
def test_tokens_of_a_text_join_to_the_text(tokenizer: ctypes.CDLL, text: bytes) -> None:
    vocabulary = read_tokens(TOKENIZER)
    found = encode(tokenizer, text, len(text) + 2)
    assert found is not None and decode(tokenizer, found) == text
    try:
        text.decode()
    except UnicodeDecodeError:
        return
    assert found == encoded([t for t, _ in vocabulary], vocabulary, text)


def test_room_for_tokens(tokenizer: ctypes.CDLL) -> None:
    assert encode(tokenizer, b"", 1) == [BEGIN]
    emoji = "\U0001f600".encode()  # no token: four bytes behind the space
    assert encode(tokenizer, emoji, 5) is None
    assert encode(tokenizer, emoji, 6) is not None
    assert encode(tokenizer, b"ab", 3) is None
    assert encode(tokenizer, b"ab", 4) is not None


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "not the 256 bytes"),
        (TOKENIZER[:-1], "or the file ends"),
        (TOKENIZER[:32], "the file ends within token"),
        (TOKENIZER.replace(b"<0x41>", b"<0x42>"), "tokens 3 to 258 are not the 256 bytes"),
    ],
    ids=["empty", "cut in a text", "cut in a number", "other bytes"],
)
def test_tokenizer_files_that_are_refused(data: bytes, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        read_tokens(data)
