# SPDX-License-Identifier: Apache-2.0
"""Compare a decoder with the layers of Llama, of 135 million seeded parameters, with llama.cpp and ONNX Runtime, and
print the table of docs/performance.md.

    python -m benchmarks.decoder                           # all formats, one thread and two
    python -m benchmarks.decoder q4 --threads 1 --rounds 20
    python -m benchmarks.decoder q4 --rivals onnxruntime   # without llama.cpp

It has 30 layers of width 576 with 9 heads of queries and 3 of keys and values. All contestants have the same weights:
float32, or integers of 8 or 4 bits with a scale for each block of 32 that float16 can represent (Q8_0 and Q4_0 of
llama.cpp; MatMulNBits of com.microsoft with `accuracy_level` 4, which lets products round their data to 8 bits, as
those of llama.cpp do). The format q4_qdq has the weights of q4 as int4 behind DequantizeLinear; aotc does not round the
data of its products, ONNX Runtime does by default. The same model is q4_qdq_rounded, compiled with `--round-data`.
Caches are float32, and in llama.cpp float16, which is its default.

A prefill is one run of 128 tokens from empty caches; a decode is one run of one token with 128 or 1,024 tokens in the
caches. Each run computes the logits of its last token. Contestants run alternately, one run of each in a round. Times
are minima and medians in milliseconds; a ratio is the median over rounds of the ratio to the rival that is the faster
one by its median. GB/s is the size of the weights that a decode reads, in llama.cpp's format, and of the caches,
divided by the least time; beside it is the rate at which a loop that only adds up numbers reads as many bytes.

Both rivals are optional: `pip install -e .[bench-decoder]`, which compiles llama.cpp for this machine (some minutes).
"""

from __future__ import annotations

import importlib.util
import math
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import click
import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import aotc
from aotc.driver.toolchain import find_toolchain, resolve_target
from aotc.ir import Array, frozen
from aotc.ir.option_value_text import parse_thread_counts
from aotc.measuring.machine_peak import Probe

LAYERS, WIDTH, HEADS, KEY_HEADS, HIDDEN, TOKENS = 30, 576, 9, 3, 1536, 49152
HEAD_SIZE: Final = WIDTH // HEADS
KEY_WIDTH: Final = KEY_HEADS * HEAD_SIZE
CAPACITY: Final = 1152
PROMPT, DECODE_LENGTHS = 128, (128, 1024)
EPSILON, ROTATION_BASE = 1e-5, 10000.0
#: Neighboring weights with a common scale, in all quantized formats.
BLOCK: Final = 32
Q4_FORMATS: Final = ("q4", "q4_qdq", "q4_qdq_rounded")
#: Bits of a weight by the name of a format, and the bytes of a block with its scale.
BITS_BY_FORMAT: Final = {"float32": 32, "q8": 8, "q4": 4, "q4_qdq": 4, "q4_qdq_rounded": 4}
BLOCK_BYTES: Final = {"float32": 4 * BLOCK, "q8": BLOCK + 2} | dict.fromkeys(Q4_FORMATS, BLOCK // 2 + 2)
#: Largest difference of logits between contestants, relative to their standard deviation: they add in other orders,
#: those with integers round the data of products, and llama.cpp rounds its caches to float16.
TOLERANCE: Final = {"float32": 0.05, "q8": 0.15} | dict.fromkeys(Q4_FORMATS, 0.15)
#: Pause before a run with several threads, in which the workers of the contestant before come to rest.
PAUSE_SECONDS: Final = 0.03
RIVALS: Final = {"onnxruntime": "onnxruntime", "llama.cpp": "llama_cpp"}
HEADER: Final = (
    "format", "run", "threads", "aotc", "median", *RIVALS, "of the better", "GB/s", "GB/s of reading", "difference",
)  # fmt: skip

Weights = dict[str, Array]


class Contestant(Protocol):
    """A decoder with its caches."""

    def run(self, tokens: Array) -> Array:
        """Append tokens (steps) to the caches; return the logits of the last one."""

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` tokens."""


# --- weights


def draw_weights(seed: int = 0) -> Weights:
    """Return the weights, each matrix as (outputs, inputs) in float32."""
    rng = np.random.default_rng(seed)
    shapes = {"q": (WIDTH, WIDTH), "k": (KEY_WIDTH, WIDTH), "v": (KEY_WIDTH, WIDTH), "o": (WIDTH, WIDTH)}
    shapes |= {"gate": (HIDDEN, WIDTH), "up": (HIDDEN, WIDTH), "down": (WIDTH, HIDDEN)}

    def draw(shape: tuple[int, int], deviation: float) -> Array:
        return rng.standard_normal(shape, np.float32) * np.float32(deviation)

    weights = {"embedding": draw((TOKENS, WIDTH), 1), "head": draw((TOKENS, WIDTH), WIDTH**-0.5)}
    for n in range(LAYERS):
        weights |= {f"{name}{n}": draw(shape, shape[1] ** -0.5) for name, shape in shapes.items()}
        weights |= {f"{name}{n}": rng.uniform(0.8, 1.2, WIDTH).astype(np.float32) for name in ("norm", "ffn_norm")}
    return weights | {"last_norm": np.ones(WIDTH, np.float32)}


def quantize(weight: Array, bits: int) -> tuple[Array, Array]:
    """Quantize a matrix (rows, columns) as Q8_0 or Q4_0; return unsigned integers of its shape, with the zero point
    2 ** (bits - 1), and the scale of each block in float16.
    """
    blocks, middle = weight.reshape(len(weight), -1, BLOCK), 1 << bits - 1
    largest = np.take_along_axis(blocks, np.abs(blocks).argmax(-1)[..., None], -1)[..., 0]
    scale = (np.abs(largest) / 127 if bits == 8 else largest / -8).astype(np.float16)
    whole = np.rint(blocks / scale[..., None].astype(np.float32)) + middle
    return np.clip(whole, 0, 2 * middle - 1).astype(np.uint8).reshape(weight.shape), scale


def is_matrix_of_products(name: str, weight: Array) -> bool:
    """Return True for weights that are quantized; the embedding has float16 numbers instead."""
    return weight.ndim == 2 and name != "embedding"


def bytes_of_decode(kind: str, length: int, cache_bytes: int = 4) -> int:
    """Return the bytes that a decode with `length` tokens in its caches reads."""
    per_layer = 2 * WIDTH * (WIDTH + KEY_WIDTH) + 3 * WIDTH * HIDDEN
    blocks = (LAYERS * per_layer + TOKENS * WIDTH) // BLOCK
    return blocks * BLOCK_BYTES[kind] + cache_bytes * 2 * LAYERS * KEY_WIDTH * length


# --- the decoder as an ONNX model


class _DecoderBuilder:
    """Builder of the ONNX graph of a format: integer weights are those of MatMulNBits or of DequantizeLinear."""

    def __init__(self, weights: Weights, kind: str) -> None:
        self.weights, self.bits, self.dequantizes = weights, BITS_BY_FORMAT[kind], "_qdq" in kind
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, Array] = {}

    def node(self, op: str, inputs: Sequence[str], *names: str, domain: str = "", **attributes: Any) -> str:
        """Append a node with results `names`; return the first name."""
        self.nodes.append(helper.make_node(op, list(inputs), list(names), domain=domain, **attributes))
        return names[0]

    def constant(self, name: str, value: Array) -> str:
        self.constants[name] = value
        return name

    def product(self, x: str, name: str) -> str:
        """Append the product of data and a matrix of weights."""
        weight = self.weights[name]
        if self.bits == 32:
            return self.node("MatMul", [x, self.constant(f"{name}_w", np.ascontiguousarray(weight.T))], f"{name}_y")
        integers, scale = quantize(weight, self.bits)
        if self.dequantizes:
            signed = (integers.T.astype(np.int8) - 8).astype(ml_dtypes.int4)
            parts = [
                self.constant(f"{name}_w", np.ascontiguousarray(signed)),
                self.constant(f"{name}_s", np.ascontiguousarray(scale.T.astype(np.float32))),
            ]
            matrix = self.node("DequantizeLinear", parts, f"{name}_m", axis=0, block_size=BLOCK)
            return self.node("MatMul", [x, matrix], f"{name}_y")
        if self.bits == 4:
            integers = integers[:, ::2] | integers[:, 1::2] << 4
        units, depth = weight.shape
        parts = [
            self.constant(f"{name}_w", integers.reshape(units, depth // BLOCK, -1)),
            self.constant(f"{name}_s", scale.astype(np.float32).reshape(-1)),
        ]
        sizes = {"K": depth, "N": units, "bits": self.bits, "block_size": BLOCK, "accuracy_level": 4}
        return self.node("MatMulNBits", [x, *parts], f"{name}_y", domain="com.microsoft", **sizes)

    def norm(self, x: str, name: str) -> str:
        gain = self.constant(f"{name}_g", self.weights[name])
        return self.node("SimplifiedLayerNormalization", [x, gain], f"{name}_y", epsilon=EPSILON)

    def layer(self, x: str, n: int) -> str:
        """Append a layer; return its result."""
        h = self.norm(x, f"norm{n}")
        q, k, v = (self.product(h, f"{name}{n}") for name in "qkv")
        caches = [f"past_k{n}", f"past_v{n}"]
        attended = self.node(
            "GroupQueryAttention", [q, k, v, *caches, "last", "total", "cosines", "sines"],
            f"attended{n}", f"present_k{n}", f"present_v{n}",
            domain="com.microsoft", num_heads=HEADS, kv_num_heads=KEY_HEADS, do_rotary=1,
        )  # fmt: skip
        x = self.node("Add", [x, self.product(attended, f"o{n}")], f"x{n}_mid")
        h = self.norm(x, f"ffn_norm{n}")
        gate, up = (self.product(h, f"{name}{n}") for name in ("gate", "up"))
        gate = self.node("Mul", [gate, self.node("Sigmoid", [gate], f"sigmoid{n}")], f"silu{n}")
        hidden = self.node("Mul", [gate, up], f"hidden{n}")
        return self.node("Add", [x, self.product(hidden, f"down{n}")], f"x{n}_end")

    def model(self) -> onnx.ModelProto:
        """Return the model: int64[1, steps] tokens, int32[1] last, int32 total, caches float32[1, 3, past, 64]
        -> logits float32[1, 1, 49152], longer caches.
        """
        self.constant("embedding", self.weights["embedding"].astype(np.float16))
        x = self.node("Gather", ["embedding", "tokens"], "embedded")
        x = self.node("Cast", [x], "x", to=TensorProto.FLOAT)
        angles = np.arange(CAPACITY)[:, None] * ROTATION_BASE ** -(np.arange(0, HEAD_SIZE, 2) / HEAD_SIZE)
        self.constant("cosines", np.cos(angles).astype(np.float32))
        self.constant("sines", np.sin(angles).astype(np.float32))
        for n in range(LAYERS):
            x = self.layer(x, n)
        ends = [
            self.constant(name, np.array([k], np.int64))
            for name, k in (("minus_one", -1), ("end", 1 << 40), ("axis", 1))
        ]
        x = self.node("Slice", [x, *ends], "last_x")
        self.node("Identity", [self.product(self.norm(x, "last_norm"), "head")], "logits")
        declare, caches = helper.make_tensor_value_info, [f"{kind}{n}" for n in range(LAYERS) for kind in "kv"]
        inputs = [declare("tokens", TensorProto.INT64, [1, "steps"]), declare("last", TensorProto.INT32, [1])]
        inputs.append(declare("total", TensorProto.INT32, []))
        outputs = [declare("logits", TensorProto.FLOAT, [1, 1, TOKENS])]
        for text, length, values in (("past", "past", inputs), ("present", "longer", outputs)):
            shape = [1, KEY_HEADS, length, HEAD_SIZE]
            values += [declare(f"{text}_{cache}", TensorProto.FLOAT, shape) for cache in caches]
        tensors = [numpy_helper.from_array(value, name) for name, value in self.constants.items()]
        graph = helper.make_graph(self.nodes, "decoder", inputs, outputs, tensors)
        imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=imports, ir_version=10)


def build_onnx_decoder(weights: Weights, kind: str) -> onnx.ModelProto:
    """Return the decoder as an ONNX model with weights of a format."""
    return _DecoderBuilder(weights, kind).model()


# --- the decoder as a GGUF file


def _interleave_halves(rows: Array, heads: int) -> Array:
    """Reorder the rows of each head from (first half, second half) to pairs of both, as llama.cpp rotates them."""
    return rows.reshape(heads, 2, -1, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)


def write_gguf_decoder(weights: Weights, kind: str, path: Path) -> None:
    """Write the decoder as a file for llama.cpp, without a vocabulary."""
    import gguf

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(CAPACITY)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KEY_HEADS)
    writer.add_rope_dimension_count(HEAD_SIZE)
    writer.add_rope_freq_base(ROTATION_BASE)
    writer.add_layer_norm_rms_eps(EPSILON)
    writer.add_vocab_size(TOKENS)
    writer.add_tokenizer_model("no_vocab")
    names = {"q": "attn_q", "k": "attn_k", "v": "attn_v", "o": "attn_output", "gate": "ffn_gate", "up": "ffn_up"}
    names |= {"down": "ffn_down", "norm": "attn_norm", "ffn_norm": "ffn_norm"}
    paths = {f"{name}{n}": f"blk.{n}.{text}.weight" for n in range(LAYERS) for name, text in names.items()}
    paths |= {"embedding": "token_embd.weight", "head": "output.weight", "last_norm": "output_norm.weight"}
    for name, weight in weights.items():
        if name == "embedding":
            writer.add_tensor(paths[name], weight.astype(np.float16))
            continue
        heads = {"q": HEADS, "k": KEY_HEADS}.get(name.rstrip("0123456789"))
        ordered = weight if heads is None else _interleave_halves(weight, heads)
        if kind == "float32" or not is_matrix_of_products(name, weight):
            writer.add_tensor(paths[name], ordered)
            continue
        integers, scale = quantize(ordered, BITS_BY_FORMAT[kind])
        blocks = integers.reshape(*scale.shape, BLOCK)
        if kind == "q8":
            data, dtype = blocks ^ 128, gguf.GGMLQuantizationType.Q8_0
        else:
            data, dtype = blocks[..., : BLOCK // 2] | blocks[..., BLOCK // 2 :] << 4, gguf.GGMLQuantizationType.Q4_0
        rows = np.concatenate([scale[..., None].view(np.uint8), data], -1).reshape(len(scale), -1)
        writer.add_tensor(paths[name], rows, raw_dtype=dtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


# --- contestants


def _lengths(past: int, steps: int) -> dict[str, Array]:
    """Return the inputs that state how many tokens there are."""
    return {"last": np.array([past + steps - 1], np.int32), "total": np.array(past + steps, np.int32)}


class AotcDecoder:
    """The decoder compiled by aotc for runs of `steps` tokens."""

    def __init__(self, folder: Path, threads: int) -> None:
        self.session = aotc.load(folder, threads=threads)
        self.state = self.session.new_state()

    @staticmethod
    def compile(model: onnx.ModelProto, steps: int, folder: Path, round_data: bool) -> None:
        state = {"past_*": f"present_*:{CAPACITY}"}
        dims = {"steps": steps}
        aotc.compile(model, output=folder, name="decoder", dims=dims, state=state, round_data=round_data)

    def run(self, tokens: Array) -> Array:
        inputs = {"tokens": tokens[None], **_lengths(self.state.length, len(tokens))}
        return np.asarray(self.session.run(None, inputs, state=self.state)[0])

    def truncate(self, length: int) -> None:
        self.state.truncate(length)


class OnnxRuntimeDecoder:
    """The decoder in ONNX Runtime, whose caches are buffers that runs write in place."""

    def __init__(self, path: Path, threads: int) -> None:
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.add_session_config_entry("session.force_spinning_stop", "1")
        self.session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.binding, self.length = self.session.io_binding(), 0
        shape = (1, KEY_HEADS, CAPACITY, HEAD_SIZE)
        for n in range(LAYERS):
            for kind in "kv":
                cache = ort.OrtValue.ortvalue_from_numpy(np.zeros(shape, np.float32))
                self.binding.bind_ortvalue_input(f"past_{kind}{n}", cache)
                self.binding.bind_ortvalue_output(f"present_{kind}{n}", cache)
        self.logits = np.zeros((1, 1, TOKENS), np.float32)
        self.binding.bind_ortvalue_output("logits", ort.OrtValue.ortvalue_from_numpy(self.logits))

    def run(self, tokens: Array) -> Array:
        for name, value in {"tokens": tokens[None], **_lengths(self.length, len(tokens))}.items():
            self.binding.bind_cpu_input(name, value)
        self.session.run_with_iobinding(self.binding)
        self.length += len(tokens)
        return np.asarray(self.binding.get_outputs()[-1].numpy())

    def truncate(self, length: int) -> None:
        self.length = length


class LlamaCppDecoder:
    """The decoder in llama.cpp, called through the C interface that llama-cpp-python declares."""

    def __init__(self, path: Path, threads: int) -> None:
        import llama_cpp

        self.api = llama_cpp
        llama_cpp.llama_backend_init()
        self._silent = llama_cpp.llama_log_callback(lambda *_: None)
        llama_cpp.llama_log_set(self._silent, None)
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
        how = llama_cpp.llama_context_default_params()
        how.n_ctx, how.n_batch, how.n_ubatch = CAPACITY, CAPACITY, 512
        how.n_threads = how.n_threads_batch = threads
        self.context = llama_cpp.llama_init_from_model(self.model, how)
        self.memory = llama_cpp.llama_get_memory(self.context)

    def run(self, tokens: Array) -> Array:
        values = (self.api.llama_token * len(tokens))(*tokens.tolist())
        if self.api.llama_decode(self.context, self.api.llama_batch_get_one(values, len(tokens))):
            raise RuntimeError("llama_decode returned an error")
        return np.ctypeslib.as_array(self.api.llama_get_logits_ith(self.context, -1), (TOKENS,)).copy()

    def truncate(self, length: int) -> None:
        self.api.llama_memory_seq_rm(self.memory, 0, length, -1)


# --- measurement


@frozen
class Case:
    """A run that is measured: `steps` tokens behind `length` earlier ones."""

    name: str
    length: int
    steps: int


CASES: Final = (
    Case(f"prefill {PROMPT}", 0, PROMPT),
    *(Case(f"decode at {length:,}", length, 1) for length in DECODE_LENGTHS),
)


def fill(contestant: Contestant, tokens: Array, at_a_time: int) -> None:
    """Let a contestant read tokens from the first one on, so many in each run."""
    contestant.truncate(0)
    for start in range(0, len(tokens), at_a_time):
        contestant.run(tokens[start : start + at_a_time])


def measure(
    contestants: Mapping[str, Contestant], case: Case, tokens: Array, rounds: int, pause: float
) -> dict[str, Array]:
    """Return the milliseconds of each round of a case, by contestant; `pause` seconds precede each run."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, contestant in contestants.items():
            contestant.truncate(case.length)
            time.sleep(pause)
            begin = time.perf_counter()
            contestant.run(tokens[case.length : case.length + case.steps])
            times[name].append(1e3 * (time.perf_counter() - begin))
    return {name: np.array(values) for name, values in times.items()}


def difference_of_logits(results: Mapping[str, Array]) -> float:
    """Return the largest difference of a contestant's logits from aotc's, relative to their standard deviation."""
    ours = results["aotc"].reshape(-1)
    return max((float(np.abs(other.reshape(-1) - ours).max() / ours.std()) for other in results.values()), default=0.0)


def row(kind: str, case: Case, threads: int, times: Mapping[str, Array], difference: float, read_rate: float) -> str:
    """Return a row of the table."""
    ours = times["aotc"]
    rivals = {name: times[name] for name in RIVALS if name in times}
    best = min(rivals.values(), key=np.median, default=None)
    cells = [kind, case.name, str(threads), f"{ours.min():.2f}", f"{np.median(ours):.2f}"]
    cells += [f"{rivals[name].min():.2f}, {np.median(rivals[name]):.2f}" if name in rivals else "-" for name in RIVALS]
    cells.append("-" if best is None else f"{np.median(ours / best):.2f}")
    if case.steps == 1:
        rate = bytes_of_decode(kind, case.length) / ours.min() / 1e6
        cells += [f"{rate:.1f}", f"{read_rate / 1e9:.1f}"]
    else:
        cells += ["-", "-"]
    return f"| {' | '.join([*cells, f'{difference:.3f}'])} |"


def load_contestants(folder: Path, kind: str, steps: int, threads: int, rivals: Sequence[str]) -> dict[str, Contestant]:
    """Return the contestants, of whose files those that are missing are written first."""
    weights = None
    source, gguf_path, compiled = folder / f"{kind}.onnx", folder / f"{kind}.gguf", folder / f"{kind}_{steps}"
    if not source.exists():
        weights = draw_weights()
        onnx.save(build_onnx_decoder(weights, kind), source)
    if not compiled.exists():
        AotcDecoder.compile(onnx.load(source), steps, compiled, kind.endswith("_rounded"))
    contestants: dict[str, Contestant] = {"aotc": AotcDecoder(compiled, threads)}
    if "onnxruntime" in rivals:
        contestants["onnxruntime"] = OnnxRuntimeDecoder(source, threads)
    if "llama.cpp" in rivals:
        if not gguf_path.exists():
            write_gguf_decoder(weights or draw_weights(), kind, gguf_path)
        contestants["llama.cpp"] = LlamaCppDecoder(gguf_path, threads)
    return contestants


def measured_rows(folder: Path, kind: str, threads: int, rounds: int, rivals: Sequence[str], probe: Probe) -> list[str]:
    """Measure all cases of a format; return their rows. Raise ValueError if logits of contestants differ."""
    tokens = np.random.default_rng(1).integers(0, TOKENS, CAPACITY)
    rows: list[str] = []
    for steps in dict.fromkeys(case.steps for case in CASES):
        contestants = load_contestants(folder, kind, steps, threads, rivals)
        for case in (c for c in CASES if c.steps == steps):
            for name, contestant in contestants.items():
                fill(contestant, tokens[: case.length], 1 if name == "aotc" else PROMPT)
            results = {n: c.run(tokens[case.length : case.length + steps]) for n, c in contestants.items()}
            difference = difference_of_logits(results)
            if not difference <= TOLERANCE[kind]:
                raise ValueError(f"{kind}, {case.name}: logits differ by {difference:.3f} standard deviations")
            times = measure(contestants, case, tokens, rounds, PAUSE_SECONDS if threads > 1 else 0.0)
            rate = probe.peak_read_bytes_per_second(bytes_of_decode(kind, case.length)) if steps == 1 else math.nan
            rows.append(row(kind, case, threads, times, difference, rate))
            click.echo(rows[-1])
    return rows


@click.command()
@click.argument("kinds", nargs=-1, type=click.Choice(list(BITS_BY_FORMAT)))
@click.option("--threads", default="1,2", help="Numbers of threads, separated by commas.")
@click.option("--rounds", default=20, help="Runs of each contestant.")
@click.option("--rivals", default=None, help="Rivals, separated by commas; by default those that are installed.")
@click.option("--folder", type=click.Path(path_type=Path), help="Keep models and libraries there.")
def print_decoder_table(
    kinds: Sequence[str], threads: str, rounds: int, rivals: str | None, folder: Path | None
) -> None:
    """Print the table of docs/performance.md for some formats of weights, by default for all."""
    installed = [name for name, package in RIVALS.items() if importlib.util.find_spec(package)]
    chosen = installed if rivals is None else [name for name in rivals.split(",") if name]
    probe = Probe(resolve_target("host"), find_toolchain(None))
    click.echo(f"| {' | '.join(HEADER)} |\n{'|---' * len(HEADER)}|")
    with tempfile.TemporaryDirectory() as scratch:
        place = folder or Path(scratch)
        place.mkdir(parents=True, exist_ok=True)
        for kind in kinds or BITS_BY_FORMAT:
            for count in parse_thread_counts(threads):
                measured_rows(place, kind, count, rounds, chosen, probe)


if __name__ == "__main__":
    print_decoder_table()
