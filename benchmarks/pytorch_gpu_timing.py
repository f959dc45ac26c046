# SPDX-License-Identifier: Apache-2.0
"""Run ONNX models in PyTorch on a GPU and time them, as competitors of compiled models.

Requires torch and onnx but not aotc. Without a GPU, tensors are in host memory and times are host
times.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx
import torch
from torch.nn import functional as F

from benchmarks.cuda_device import NO_WAIT, PLAIN, LoadedCase

MEASURING_ROUNDS = 15
SECONDS_PER_ROUND = 0.01
"""Time in seconds for which one competitor runs in each measuring round."""
RunFunctions = Mapping[str, Callable[[], Any]]

TORCH_FUNCTION_BY_ONNX_OPERATOR: dict[str, Callable[..., torch.Tensor]] = {
    "Add": torch.add,
    "BatchNormalization": lambda x, w, b, mean, var, epsilon: F.batch_norm(x, mean, var, w, b, False, 0.0, epsilon),
    "Clip": torch.clamp,
    "Concat": lambda *xs, axis: torch.cat(xs, axis),
    "Conv": lambda x, w, b=None, kernel_shape=(), pads=(0, 0), strides=1, group=1: F.conv2d(
        x, w, b, strides, pads[: len(pads) // 2], 1, group
    ),
    "Div": torch.div,
    "Erf": torch.erf,
    "Flatten": lambda x: x.flatten(1),
    "Gemm": lambda x, w, b, transB: F.linear(x, w, b),
    "GlobalAveragePool": lambda x: x.mean((2, 3), keepdim=True),
    "Identity": lambda x: x,
    "LayerNormalization": lambda x, w, b, axis, epsilon: F.layer_norm(x, x.shape[axis:], w, b, epsilon),
    "MatMul": torch.matmul,
    "MaxPool": lambda x, kernel_shape, pads, strides: F.max_pool2d(x, kernel_shape, strides, pads[:2]),
    "Mul": torch.mul,
    "ReduceMean": lambda x, axes, keepdims=1: x.mean(axes, keepdim=bool(keepdims)),
    "Relu": torch.relu,
    "Reshape": torch.reshape,
    "Softmax": lambda x, axis: x.softmax(axis),
    "Tanh": torch.tanh,
    "Transpose": lambda x, perm: x.permute(perm),
}


#: (operator function, names of inputs, name of the output, attributes).
OperatorStep: TypeAlias = "tuple[Callable[..., torch.Tensor], list[str], str, dict[str, Any]]"


def _attention_with_transposed_key(
    q: torch.Tensor, transposed_key: torch.Tensor, v: torch.Tensor, scale: float
) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, transposed_key.mT, v, scale=scale)


def _torch_function_step_of_onnx_node(node: onnx.NodeProto) -> OperatorStep:
    words = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    return TORCH_FUNCTION_BY_ONNX_OPERATOR[node.op_type], list(node.input), node.output[0], words


class Net(torch.nn.Module):
    """PyTorch module of an ONNX model.

    Graph inputs after the first `inputs` are weights, which get random values, as values do not
    affect the run time.
    """

    def __init__(self, model: onnx.ModelProto, inputs: int) -> None:
        super().__init__()
        graph = model.graph
        self.names = [value.name for value in graph.input[:inputs]]
        self.results = [value.name for value in graph.output]
        self.numbers: dict[str, Any] = {}
        for tensor in graph.initializer:
            array = onnx.numpy_helper.to_array(tensor)
            if array.dtype.kind == "f" and array.ndim:
                self.register_buffer(tensor.name, torch.from_numpy(array.copy()))
            else:
                self.numbers[tensor.name] = array.tolist()
        for value in graph.input[inputs:]:
            shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
            dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
            data = np.random.default_rng(0).standard_normal(shape, np.float32) / np.sqrt(np.prod(shape[1:]))
            self.register_buffer(value.name, torch.from_numpy(data.astype(dtype)))
        self.steps: list[OperatorStep] = []
        node_of_output = {name: node for node in graph.node for name in node.output}
        needed = set(self.results)
        for node in reversed(graph.node):
            if node.output[0] in needed:
                step = self._match_attention_pattern(node, node_of_output) or _torch_function_step_of_onnx_node(node)
                needed.update(step[1])
                self.steps.insert(0, step)

    def _match_attention_pattern(
        self, node: onnx.NodeProto, producer_by_output: Mapping[str, onnx.NodeProto]
    ) -> OperatorStep | None:
        """Return a scaled dot-product attention call if `node` is its last matrix product, else
        None.

        PyTorch models call attention as one function, so that the comparison is fair.
        """
        chain = [node]
        for kind in ("Softmax", "Mul", "MatMul"):
            before = producer_by_output.get(chain[-1].input[0])
            if node.op_type != "MatMul" or before is None or before.op_type != kind:
                return None
            chain.append(before)
        scale = self.numbers[chain[2].input[1]]
        return _attention_with_transposed_key, [*chain[3].input, node.input[1]], node.output[0], {"scale": scale}

    def forward(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        values: dict[str, Any] = dict(zip(self.names, tensors, strict=True)) | self.numbers | dict(self.named_buffers())
        for operator, inputs, output, words in self.steps:
            values[output] = operator(*(values[name] for name in inputs), **words)
        return [values[name] for name in self.results]


def seconds_per_run_by_round(runs: RunFunctions, rounds: int = MEASURING_ROUNDS) -> dict[str, list[float]]:
    """Return the seconds per run for each function, one value per round; the functions run
    alternately.
    """
    counts = {}
    for name, run in runs.items():
        for _ in range(3):
            run()
        counts[name] = max(1, min(1000, int(SECONDS_PER_ROUND / _mean_seconds_per_call(run, 1))))
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            times[name].append(_mean_seconds_per_call(run, counts[name]))
    return times


def _mean_seconds_per_call(run: Callable[[], Any], count: int) -> float:
    """Return the seconds per call of `run`, averaged over `count` consecutive calls."""
    if not torch.cuda.is_available():
        start = time.perf_counter()
        for _ in range(count):
            run()
        return (time.perf_counter() - start) / count
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    before.record()
    for _ in range(count):
        run()
    after.record()
    after.synchronize()
    return float(before.elapsed_time(after)) / 1e3 / count


def _capture_in_cuda_graph(net: Net, inputs: Sequence[torch.Tensor]) -> Callable[[], Any]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        net(*inputs)
    return lambda: graph.replay()


def _compile_with_torch_inductor(net: Net, inputs: Sequence[torch.Tensor]) -> Callable[[], Any]:
    import torch._inductor.config

    torch._inductor.config.freezing = True  # folds batch normalization
    compiled_net = torch.compile(net, mode="max-autotune")
    return lambda: compiled_net(*inputs)


RIVAL_RUN_MAKERS: dict[str, Callable[[Net, Sequence[torch.Tensor]], Callable[[], Any]]] = {
    "eager": lambda net, inputs: lambda: net(*inputs),
    "graph": _capture_in_cuda_graph,
    "compiled": _compile_with_torch_inductor,
}


@torch.no_grad()
def time_case_and_competitors(
    onnx_bytes: bytes, inputs: Sequence[Any], loaded_case: LoadedCase, case_description: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """Time a compiled case and its competitors; yield the results known after each competitor.

    us       microseconds per run, median of the rounds; runs are queued in one stream, on unchanged
             tensors
    ratio    median over rounds of aotc's time divided by that of the fastest competitor
    cpu_us   microseconds until an asynchronous run returns to the host
    close    largest difference from PyTorch's results in standard deviations, if no weights were
             randomized
    """
    cuda = torch.cuda.is_available()
    device = torch.device("cuda" if cuda else "cpu")
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    parsed = onnx.load_from_string(onnx_bytes)
    net = Net(parsed, len(inputs)).eval().to(device)
    dtypes = [getattr(torch, x["dtype"]) for x in case_description["inputs"]]
    tensors = [
        torch.from_numpy(raw).view(dtype).reshape(x["shape"]).to(device)
        for raw, dtype, x in zip(inputs, dtypes, case_description["inputs"], strict=True)
    ]
    outputs = [
        torch.empty(x["shape"], dtype=getattr(torch, x["dtype"]), device=device) for x in case_description["outputs"]
    ]
    stream = torch.cuda.Stream() if cuda else None
    addresses = [[t.data_ptr() for t in side] for side in (tensors, outputs)]

    def run_loaded_aotc_case(flags: int = NO_WAIT if cuda else 0) -> None:
        loaded_case.run_on_tensor_addresses(*addresses, stream.cuda_stream if stream is not None else 0, flags)

    rounds = MEASURING_ROUNDS if cuda else 1
    figures: dict[str, Any] = {"bytes": case_description["bytes"], "flops": 2 * case_description["macs"], "failed": {}}
    runs: dict[str, Callable[[], Any]] = {"aotc": run_loaded_aotc_case}
    with torch.cuda.stream(stream):
        for name, make in RIVAL_RUN_MAKERS.items() if cuda else [("eager", RIVAL_RUN_MAKERS["eager"])]:
            try:
                run = make(net, tensors)
                run()
            except Exception as error:
                figures["failed"][name] = f"{type(error).__name__}: {error}"[:300]
                yield figures
                continue
            runs[name] = run
            times = seconds_per_run_by_round(runs, rounds)
            figures["us"] = {key: 1e6 * statistics.median(values) for key, values in times.items()}
            best = min((key for key in runs if key != "aotc"), key=lambda key: figures["us"][key])
            ratios = (a / b for a, b in zip(times["aotc"], times[best], strict=True))
            figures |= {
                "best": best,
                "ratio": statistics.median(ratios),
                "cpu_us": 1e6 * _seconds_until_run_returns_on_host(run_loaded_aotc_case),
            }
            if name == "eager" and len(parsed.graph.input) == len(inputs):
                figures["close"] = max(map(_max_difference_in_standard_deviations, outputs, net(*tensors)))
            yield figures
        if cuda:
            yield figures | {"kernel_us": _microseconds_by_kernel(lambda: run_loaded_aotc_case(NO_WAIT | PLAIN))}


def _seconds_until_run_returns_on_host(run: Callable[[], Any]) -> float:
    """Return the seconds until a run returns on the host; each run is synchronized, so that the
    stream does not fill up.
    """
    times = []
    for _ in range(20 if torch.cuda.is_available() else 1):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    return statistics.median(times)


def _max_difference_in_standard_deviations(a: torch.Tensor, b: torch.Tensor) -> float:
    a, b = a.double(), b.double()
    return float((a - b).abs().max() / b.std())


def _microseconds_by_kernel(run: Callable[[], Any]) -> dict[str, float]:
    """Return the microseconds per run for each kernel, summed over its launches."""
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(10):
            run()
        torch.cuda.synchronize()
    return {event.key: round(event.device_time_total / 10, 3) for event in profile.key_averages()}
