# SPDX-License-Identifier: Apache-2.0
"""Write a decoder with the layers of Llama and seeded random weights as an ONNX model.

    python make_model.py decode.onnx          # positions 0 to 511
    python make_model.py decode.onnx 2048     # positions 0 to 2047

Its text has no meaning: it stands for a trained model of the same form.  A run takes one token:

    tokens int64[1, 1], position int64[1], past_k0 float32[1, 2, past, 8], past_v0, past_k1, ...
    -> logits float32[1, 1, 259], present_k0 float32[1, 2, past + 1, 8], present_v0, present_k1, ...

Tokens 0 to 2 are for what is unknown, for the beginning and for the end; token 3 + b is the byte b.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper, parser

LAYERS, HEADS, KEY_HEADS, WIDTH, HIDDEN, TOKENS = 3, 4, 2, 8, 64, 259
DIM = HEADS * WIDTH

NORM = """
  {x}_square = Mul ({x}, {x})
  {x}_mean = ReduceMean <axes = [-1]> ({x}_square)
  {x}_above = Add ({x}_mean, epsilon)
  {x}_root = Sqrt ({x}_above)
  {x}_unit = Div ({x}, {x}_root)
  {x}_norm = Mul ({x}_unit, {x}_gain)"""
ROTATE = """
  {x}_left, {x}_right = Split <axis = -1> ({x})
  {x}_minus = Neg ({x}_right)
  {x}_turned = Concat <axis = -1> ({x}_minus, {x}_left)
  {x}_a = Mul ({x}, cosine)
  {x}_b = Mul ({x}_turned, sine)
  {x}_at = Add ({x}_a, {x}_b)"""
PROJECT = """
  {y}_flat = MatMul ({x}, {y}_weight)
  {y}_split = Reshape ({y}_flat, {heads})
  {y} = Transpose <perm = [0, 2, 1, 3]> ({y}_split)"""
ATTENTION = """
  present_k{n} = Concat <axis = 2> (past_k{n}, k{n}_at)
  present_v{n} = Concat <axis = 2> (past_v{n}, v{n})
  k{n}_groups = Unsqueeze (present_k{n}, two)
  v{n}_groups = Unsqueeze (present_v{n}, two)
  k{n}_repeated = Expand (k{n}_groups, repeats)
  v{n}_repeated = Expand (v{n}_groups, repeats)
  keys{n} = Reshape (k{n}_repeated, all_heads)
  values{n} = Reshape (v{n}_repeated, all_heads)
  keys{n}_turned = Transpose <perm = [0, 1, 3, 2]> (keys{n})
  products{n} = MatMul (q{n}_at, keys{n}_turned)
  scores{n} = Mul (products{n}, scale)
  weights{n} = Softmax <axis = -1> (scores{n})
  mixed{n} = MatMul (weights{n}, values{n})
  mixed{n}_rows = Transpose <perm = [0, 2, 1, 3]> (mixed{n})
  mixed{n}_flat = Reshape (mixed{n}_rows, flat)
  attended{n} = MatMul (mixed{n}_flat, out{n}_weight)
  y{n} = Add (x{n}, attended{n})"""
FEED_FORWARD = """
  gate{n} = MatMul (y{n}_norm, gate{n}_weight)
  up{n} = MatMul (y{n}_norm, up{n}_weight)
  gate{n}_sigmoid = Sigmoid (gate{n})
  gate{n}_silu = Mul (gate{n}, gate{n}_sigmoid)
  hidden{n} = Mul (gate{n}_silu, up{n})
  down{n} = MatMul (hidden{n}, down{n}_weight)
  x{m} = Add (y{n}, down{n})"""


def layer(n: int) -> str:
    """Return the nodes of a layer, from x`n` to x`n + 1`."""
    projections = [PROJECT.format(x=f"x{n}_norm", y=f"q{n}", heads="heads")]
    projections += [PROJECT.format(x=f"x{n}_norm", y=f"{kind}{n}", heads="key_heads") for kind in "kv"]
    rotated = [ROTATE.format(x=f"q{n}"), ROTATE.format(x=f"k{n}")]
    rest = [ATTENTION.format(n=n), NORM.format(x=f"y{n}"), FEED_FORWARD.format(n=n, m=n + 1)]
    return "".join([NORM.format(x=f"x{n}"), *projections, *rotated, *rest])


def weights_of(positions: int, seed: int) -> dict[str, Any]:
    """Return the model's weights and constants, and the rotations of `positions` positions."""
    rng = np.random.default_rng(seed)
    shapes = {"q": (DIM, DIM), "k": (DIM, KEY_HEADS * WIDTH), "v": (DIM, KEY_HEADS * WIDTH), "out": (DIM, DIM)}
    shapes |= {"gate": (DIM, HIDDEN), "up": (DIM, HIDDEN), "down": (HIDDEN, DIM)}
    shapes = {f"{name}{n}_weight": shape for n in range(LAYERS) for name, shape in shapes.items()}
    values: dict[str, Any] = {name: rng.normal(0, shape[0] ** -0.5, shape) for name, shape in shapes.items()}
    gains = [f"{name}{n}_gain" for n in range(LAYERS) for name in "xy"] + [f"x{LAYERS}_gain"]
    values |= {name: rng.uniform(0.8, 1.2, DIM) for name in gains}
    values["embedding"] = rng.normal(0, 1, (TOKENS, DIM))
    # logits of bytes that are not text, and of the end, are small
    is_text = [k - 3 in range(ord(" "), ord("~") + 1) for k in range(TOKENS)]
    values["head"] = rng.normal(0, 0.5, (DIM, TOKENS)) * np.where(is_text, 1.0, 0.1)
    angles = np.arange(positions)[:, None] * 10000.0 ** -(np.arange(0, WIDTH, 2) / WIDTH)
    values |= {"cosines": np.cos(np.tile(angles, 2)), "sines": np.sin(np.tile(angles, 2))}
    values |= {"epsilon": 1e-5, "scale": WIDTH**-0.5}
    floats = {name: np.asarray(value, np.float32) for name, value in values.items()}
    sizes = {"heads": [1, 1, HEADS, WIDTH], "key_heads": [1, 1, KEY_HEADS, WIDTH], "flat": [1, 1, DIM], "two": [2]}
    sizes |= {"repeats": [1, 1, HEADS // KEY_HEADS, 1, 1], "all_heads": [1, HEADS, -1, WIDTH]}
    return {**floats, **{name: np.array(value, np.int64) for name, value in sizes.items()}}


def decoder(positions: int = 512, seed: int = 0) -> onnx.ModelProto:
    """Return the model, for `positions` tokens at most; see the top of the file for its inputs and outputs."""
    caches = [f"{kind}{n}" for n in range(LAYERS) for kind in "kv"]
    inputs = ["int64[1,1] tokens", "int64[1] position"]
    inputs += [f"float[1,{KEY_HEADS},past,{WIDTH}] past_{name}" for name in caches]
    outputs = [f"float[1,1,{TOKENS}] logits"]
    outputs += [f"float[1,{KEY_HEADS},longer,{WIDTH}] present_{name}" for name in caches]
    body = "x0 = Gather (embedding, tokens)  cosine = Gather (cosines, position)  sine = Gather (sines, position)"
    body += "".join(map(layer, range(LAYERS))) + NORM.format(x=f"x{LAYERS}")
    body += f"  logits = MatMul (x{LAYERS}_norm, head)"
    graph = f"decoder ({', '.join(inputs)}) => ({', '.join(outputs)}) {{ {body} }}"
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {graph}')
    tensors = weights_of(positions, seed).items()
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in tensors)
    onnx.checker.check_model(model)
    return model


if __name__ == "__main__":
    onnx.save(decoder(*map(int, sys.argv[2:3])), sys.argv[1])
