# SPDX-License-Identifier: Apache-2.0
"""Architectures of libraries of models: their names, and small instances of them with random weights and inputs.

names("timm")                     # the names in the library's own registry
sample("timm", "resnet18")        # an object with the model and inputs; BuildError if it cannot be built like this
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

ROWS: Final = 7
"""Number of rows of the inputs of estimators."""

MAX_PARAMETERS: Final = 16_000_000

#: Values of the configurations of transformers, for the fields that a configuration has and that are integers.
SMALL_CONFIGURATION: Final[Mapping[str, int]] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embedding_size", "emb_dim"), 32),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("num_encoder_layers", "num_decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads", "num_experts", "num_local_experts"), 4),
    **dict.fromkeys(("n_routed_experts", "rotary_dim", "conv_kernel"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_experts_per_tok"), 2),
    **dict.fromkeys(("linear_num_key_heads", "linear_num_value_heads"), 2),
    **dict.fromkeys(("head_dim", "d_kv", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"), 8),
    **dict.fromkeys(("mamba_d_state", "state_size", "mamba_n_heads", "mamba_d_head", "patch_size"), 8),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "moe_intermediate_size", "shared_expert_intermediate_size"), 16),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "d_ff", "n_inner", "encoder_ffn_dim", "decoder_ffn_dim"), 64),
    **dict.fromkeys(("hidden_dim", "max_position_embeddings", "n_positions"), 64),
    **dict.fromkeys(("n_shared_experts", "first_k_dense_replace", "n_group", "topk_group", "bos_token_id"), 1),
    "eos_token_id": 2,
    "image_size": 32,
    "num_channels": 3,
    "pad_token_id": 0,
    "vocab_size": 99,
}


class BuildError(Exception):
    """The library cannot build the architecture in a small form, or it takes inputs that are not made here."""


@dataclass(frozen=True)
class Sample:
    """A module or estimator with positional inputs: tensors of torch, or one array of numpy."""

    model: Any
    inputs: tuple[Any, ...]


def names(library: str) -> Sequence[str]:
    """Return the sorted names of a library's registry of architectures."""
    return sorted(_REGISTRIES[library]())


def sample(library: str, name: str) -> Sample:
    """Return a small instance of an architecture, or raise BuildError."""
    try:
        return _BUILDERS[library](name)
    except BuildError:
        raise
    except Exception as error:
        first_line = (str(error).splitlines() or [""])[0]
        raise BuildError(f"{type(error).__name__}: {first_line[:120]}") from error


def draw(library: str, count: int, seed: int) -> Sequence[str]:
    """Return names of a registry in an order that a seed draws, at most `count`."""
    everything = names(library)
    return random.Random(f"{seed} {library}").sample(everything, min(count, len(everything)))


# --- transformers


def _transformers_names() -> Sequence[str]:
    from transformers import MODEL_MAPPING
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    return [name for name in CONFIG_MAPPING_NAMES if name in MODEL_MAPPING._model_mapping]


def _transformers_sample(name: str) -> Sample:
    import torch
    from transformers import CONFIG_MAPPING, AutoModel

    configuration_class = CONFIG_MAPPING[name]
    default = configuration_class()
    fields = {key: size for key, size in SMALL_CONFIGURATION.items() if isinstance(getattr(default, key, None), int)}
    configuration = configuration_class(**fields)
    module = AutoModel.from_config(configuration).eval()
    _require_few_parameters(module)
    inputs = _transformers_inputs(module.main_input_name, configuration)
    has_cache = hasattr(configuration, "use_cache")
    wrapped = _keyword_module(module, tuple(inputs), {"use_cache": False} if has_cache else {})
    with torch.no_grad():
        wrapped(*inputs.values())
    return Sample(wrapped, tuple(inputs.values()))


def _transformers_inputs(main_input: str, configuration: Any) -> dict[str, Any]:
    import torch

    generator = torch.Generator().manual_seed(0)
    if main_input == "pixel_values":
        size = getattr(configuration, "image_size", 32)
        channels = getattr(configuration, "num_channels", 3)
        return {
            main_input: torch.rand(1, channels, *([size] * 2 if isinstance(size, int) else size), generator=generator)
        }
    if main_input == "input_ids":
        ids = {main_input: torch.randint(3, 99, (1, 9), generator=generator)}
        if getattr(configuration, "is_encoder_decoder", False):
            ids["decoder_input_ids"] = torch.randint(3, 99, (1, 5), generator=generator)
        return ids
    if main_input == "input_values":
        return {main_input: torch.rand(1, 4000, generator=generator)}
    raise BuildError(f"its main input is {main_input}")


# --- timm


def _timm_names() -> Sequence[str]:
    import timm

    return list(timm.list_models())


def _timm_sample(name: str) -> Sample:
    import timm
    import torch

    with torch.device("meta"):
        _require_few_parameters(timm.create_model(name, num_classes=10))
    module = timm.create_model(name, num_classes=10).eval()
    channels, height, width = module.default_cfg["input_size"]
    if not module.default_cfg.get("fixed_input_size"):
        height = width = 64
    image = torch.rand(1, channels, height, width, generator=torch.Generator().manual_seed(0))
    wrapped = _keyword_module(module, (), {})
    with torch.no_grad():
        wrapped(image)
    return Sample(wrapped, (image,))


# --- scikit-learn


def _sklearn_names() -> Sequence[str]:
    from sklearn.utils import all_estimators

    return [name for name, _ in all_estimators()]


def _sklearn_sample(name: str) -> Sample:
    from sklearn.base import is_regressor
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.utils import all_estimators

    estimator_class = dict(all_estimators())[name]
    parameters = inspect.signature(estimator_class).parameters
    arguments: dict[str, Any] = {
        key: value for key, value in {"n_estimators": 5, "random_state": 0}.items() if key in parameters
    }
    if "estimator" in parameters and parameters["estimator"].default is inspect.Parameter.empty:
        arguments["estimator"] = Ridge() if "Regress" in name else LogisticRegression()
    estimator = estimator_class(**arguments)
    generator = np.random.default_rng(0)
    features = generator.normal(size=(80, 6)).astype(np.float32)
    classes = (features[:, 0] + features[:, 1] * features[:, 2] > 0).astype(int) + (features[:, 3] > 1)
    values = features @ generator.normal(size=6) + np.sin(features[:, 0])
    candidates = (features, np.abs(features), np.abs(features * 2).astype(np.int64))
    targets = (values, np.abs(values)) if is_regressor(estimator) else (classes,)
    for data in candidates:  # some estimators take numbers that are not negative, or categories, only
        for target in targets:
            try:
                return Sample(estimator.fit(data, target), (data[:ROWS],))
            except ValueError as error:
                failure = error
    raise BuildError(str(failure).splitlines()[0][:120])


# --- all


def _require_few_parameters(module: Any) -> None:
    count = sum(parameter.numel() for parameter in module.parameters())
    if count > MAX_PARAMETERS:
        raise BuildError(f"{count} parameters, more than {MAX_PARAMETERS}")


def _keyword_module(module: Any, keywords: tuple[str, ...], constants: Mapping[str, Any]) -> Any:
    """Wrap a module of torch: positional inputs are handed on by keywords, and the result is the tuple of its first
    two tensors of floats."""
    import torch

    class Wrapped(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, *inputs: Any) -> tuple[Any, ...]:
            if keywords:
                result = self.module(**dict(zip(keywords, inputs, strict=True)), **constants)
            else:
                result = self.module(*inputs)
            return tuple(_tensors(result)[:2])

    return Wrapped().eval()


def _tensors(result: Any) -> list[Any]:
    """Return the floating-point tensors in a result, nested in tuples, lists and mappings."""
    import torch

    if isinstance(result, torch.Tensor):
        return [result] if result.is_floating_point() else []
    members = result.values() if isinstance(result, Mapping) else result if isinstance(result, (tuple, list)) else ()
    return [tensor for member in members for tensor in _tensors(member)]


_REGISTRIES: Final[Mapping[str, Callable[[], Sequence[str]]]] = {
    "scikit-learn": _sklearn_names,
    "timm": _timm_names,
    "transformers": _transformers_names,
}

_BUILDERS: Final[Mapping[str, Callable[[str], Sample]]] = {
    "scikit-learn": _sklearn_sample,
    "timm": _timm_sample,
    "transformers": _transformers_sample,
}

LIBRARIES: Final = tuple(_REGISTRIES)
