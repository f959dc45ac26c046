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
from functools import cache
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
    """A module, function or estimator with positional inputs: tensors of torch for modules of torch, else arrays."""

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


def can_build(library: str, name: str) -> bool:
    """Return whether the library makes a small instance of an architecture."""
    try:
        sample(library, name)
    except BuildError:
        return False
    return True


def draw(library: str, seed: int) -> Sequence[str]:
    """Return all names of a registry in an order that a seed draws."""
    everything = names(library)
    return random.Random(f"{seed} {library}").sample(everything, len(everything))


# --- transformers


def _transformers_names() -> Sequence[str]:
    _torchvision()
    from transformers import MODEL_MAPPING
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    return [name for name in CONFIG_MAPPING_NAMES if name in MODEL_MAPPING._model_mapping]


def _transformers_sample(name: str) -> Sample:
    _torchvision()
    import torch
    from transformers import CONFIG_MAPPING, AutoModel

    configuration = _small_configuration(CONFIG_MAPPING[name])
    with torch.device("meta"):
        _require_few_parameters(AutoModel.from_config(configuration))
    module = AutoModel.from_config(configuration).eval()
    inputs = _transformers_inputs(module.main_input_name, configuration)
    has_cache = hasattr(configuration, "use_cache")
    wrapped = _keyword_module(module, tuple(inputs), {"use_cache": False} if has_cache else {})
    return _tried_sample(wrapped, tuple(inputs.values()))


def _small_configuration(configuration_class: Any) -> Any:
    """Return a configuration of transformers with the small values, in the configurations that it contains, too."""
    default = configuration_class()
    fields: dict[str, Any] = {
        key: size for key, size in SMALL_CONFIGURATION.items() if isinstance(getattr(default, key, None), int)
    }
    for key in getattr(default, "sub_configs", ()):
        part = getattr(default, key, None)
        if hasattr(part, "sub_configs"):
            fields[key] = _small_configuration(type(part))
    return configuration_class(**fields)


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


# --- timm, torchvision and segmentation-models-pytorch


def _image(*shape: int) -> Any:
    import torch

    return torch.rand(*shape, generator=torch.Generator().manual_seed(0))


def _timm_names() -> Sequence[str]:
    _torchvision()
    import timm

    return list(timm.list_models())


def _timm_sample(name: str) -> Sample:
    _torchvision()
    import timm
    import torch

    with torch.device("meta"):
        _require_few_parameters(timm.create_model(name, num_classes=10))
    module = timm.create_model(name, num_classes=10).eval()
    channels, height, width = module.default_cfg["input_size"]
    if not module.default_cfg.get("fixed_input_size"):
        height = width = 64
    return _tried_sample(_keyword_module(module, (), {}), (_image(1, channels, height, width),))


@cache
def _torchvision() -> Any:
    """Import torchvision, whose package for GPUs works on CPUs except for its operators on boxes."""
    import torch

    try:
        import torchvision
    except RuntimeError:  # it registers what nms is on other devices, although its libraries have not been loaded
        boxes = torch.library.Library("torchvision", "FRAGMENT")
        for operator in ("nms", "qnms"):
            boxes.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        globals()["_boxes"] = boxes  # the operators live as long as this object
        import torchvision
    return torchvision


def _torchvision_names() -> Sequence[str]:
    return list(_torchvision().models.list_models())


def _torchvision_sample(name: str) -> Sample:
    import torch

    models = _torchvision().models
    kinds = {kind: name in models.list_models(module=getattr(models, kind)) for kind in ("detection", "video")}
    if kinds["detection"]:
        raise BuildError("it takes lists of images and gives boxes whose number is that of what is found")
    no_backbone = {"weights_backbone": None} if name in models.list_models(module=models.segmentation) else {}
    with torch.device("meta"):
        _require_few_parameters(models.get_model(name, weights=None, **no_backbone))
    module = models.get_model(name, weights=None, **no_backbone).eval()
    size = getattr(module, "image_size", 75 if "inception" in name else 64)
    return _tried_sample(_keyword_module(module, (), {}), (_image(1, 3, *(8,) * kinds["video"], size, size),))


def _segmentation_names() -> Sequence[str]:
    _torchvision()
    import segmentation_models_pytorch as smp

    return [f"{model}/{encoder}" for model in smp.MODEL_ARCHITECTURES_MAPPING for encoder in smp.encoders.encoders]


def _segmentation_sample(name: str) -> Sample:
    _torchvision()
    import segmentation_models_pytorch as smp
    import torch

    model, encoder = name.split("/")

    def create() -> Any:
        return smp.create_model(model, encoder, encoder_weights=None, classes=3)

    with torch.device("meta"):
        _require_few_parameters(create())
    return _tried_sample(_keyword_module(create().eval(), (), {}), (_image(1, 3, 64, 64),))


# --- scikit-learn, XGBoost and LightGBM


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
    features, classes, values = _table()
    candidates = (features, np.abs(features), np.abs(features * 2).astype(np.int64))
    targets = (values, np.abs(values)) if is_regressor(estimator) else (classes,)
    for data in candidates:  # some estimators take numbers that are not negative, or categories, only
        for target in targets:
            try:
                return Sample(estimator.fit(data, target), (data[:ROWS],))
            except ValueError as error:
                failure = error
    raise BuildError(str(failure).splitlines()[0][:120])


def _xgboost_names() -> Sequence[str]:
    learners = ("XGBClassifier", "XGBRFClassifier", "XGBRFRegressor", "XGBRanker", "XGBRegressor")
    return [f"{learner}/{booster}" for learner in learners for booster in ("dart", "gblinear", "gbtree")]


def _lightgbm_names() -> Sequence[str]:
    from lightgbm import sklearn

    learners = [name for name in sklearn.__all__ if name != "LGBMModel"]
    return [f"{learner}/{boosting}" for learner in learners for boosting in ("dart", "gbdt", "rf")]


def _boosting_sample(name: str) -> Sample:
    import lightgbm
    import xgboost

    learner, kind = name.split("/")
    arguments: dict[str, Any] = {"n_estimators": 9, "max_depth": 5, "random_state": 0}
    if learner.startswith("XGB"):
        estimator_class = getattr(xgboost, learner)
        arguments["booster"] = kind
    else:
        estimator_class = getattr(lightgbm, learner)
        arguments |= {"boosting_type": kind, "verbose": -1, "min_child_samples": 3}
        arguments |= {"subsample": 0.7, "subsample_freq": 1} if kind == "rf" else {}
    features, classes, values = _table()
    features[::5, 2] = np.nan
    target = values if "Regressor" in learner else classes
    groups = {"group": [20] * (len(features) // 20)} if "Ranker" in learner else {}
    return Sample(estimator_class(**arguments).fit(features, target, **groups), (features[:ROWS],))


def _table() -> tuple[Any, Any, Any]:
    """Return features (80, 6), the class number of each row, and a value of each row."""
    generator = np.random.default_rng(0)
    features = generator.normal(size=(80, 6)).astype(np.float32)
    classes = (features[:, 0] + features[:, 1] * features[:, 2] > 0).astype(int) + (features[:, 3] > 1)
    return features, classes, features @ generator.normal(size=6) + np.sin(features[:, 0])


# --- Keras and JAX


def _keras_names() -> Sequence[str]:
    import keras

    return [name for name, _ in inspect.getmembers(keras.applications, inspect.isfunction)]


def _keras_sample(name: str) -> Sample:
    import keras

    keras.utils.set_random_seed(0)
    model = getattr(keras.applications, name)(weights=None, include_top=False, pooling="avg", input_shape=(96, 96, 3))
    count = model.count_params()
    if count > MAX_PARAMETERS:
        raise BuildError(f"{count} parameters, more than {MAX_PARAMETERS}")
    return Sample(model, (np.random.default_rng(0).random((1, 96, 96, 3), np.float32),))


def _jax_names() -> Sequence[str]:
    return list(_jax_examples())


@cache
def _jax_examples() -> Mapping[str, Mapping[str, Any]]:
    """Return jax2onnx's examples, networks of Flax, Equinox or JAX alone, whose inputs have fixed sizes."""
    from jax2onnx.plugins import plugin_system

    plugin_system.import_all_plugins()
    return {
        f"{example['context'].removeprefix('examples.')}/{case['testcase']}": case
        for example in plugin_system.EXAMPLE_REGISTRY.values()
        for case in example["testcases"]
        if "input_shapes" in case
        and not case.get("input_params")
        and all(isinstance(size, int) for shape in case["input_shapes"] for size in shape)
    }


def _jax_sample(name: str) -> Sample:
    case = _jax_examples()[name]
    generator = np.random.default_rng(0)
    # jax2onnx exports in single precision
    wanted = (np.dtype(dtype) for dtype in case.get("input_dtypes", ["f4"] * len(case["input_shapes"])))
    dtypes = [np.dtype("f4") if dtype == "f8" else dtype for dtype in wanted]
    inputs = tuple(
        generator.random(shape).astype(dtype) if dtype.kind == "f" else generator.integers(0, 9, shape).astype(dtype)
        for shape, dtype in zip(case["input_shapes"], dtypes, strict=True)
    )
    function = case["callable"]
    if hasattr(function, "instantiate"):  # the network is not yet built
        function = function.instantiate()
    function(*inputs)
    return Sample(function, inputs)


# --- all


def _require_few_parameters(module: Any) -> None:
    count = sum(parameter.numel() for parameter in module.parameters())
    if count > MAX_PARAMETERS:
        raise BuildError(f"{count} parameters, more than {MAX_PARAMETERS}")


def _tried_sample(module: Any, inputs: tuple[Any, ...]) -> Sample:
    """Return a module of torch with its inputs after a run, which raises if they do not fit."""
    import torch

    with torch.no_grad():
        if not module(*inputs):
            raise BuildError("it gives no tensors of floats")
    return Sample(module, inputs)


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
    "JAX": _jax_names,
    "Keras": _keras_names,
    "LightGBM": _lightgbm_names,
    "XGBoost": _xgboost_names,
    "scikit-learn": _sklearn_names,
    "segmentation-models-pytorch": _segmentation_names,
    "timm": _timm_names,
    "torchvision": _torchvision_names,
    "transformers": _transformers_names,
}

_BUILDERS: Final[Mapping[str, Callable[[str], Sample]]] = {
    "JAX": _jax_sample,
    "Keras": _keras_sample,
    "LightGBM": _boosting_sample,
    "XGBoost": _boosting_sample,
    "scikit-learn": _sklearn_sample,
    "segmentation-models-pytorch": _segmentation_sample,
    "timm": _timm_sample,
    "torchvision": _torchvision_sample,
    "transformers": _transformers_sample,
}

LIBRARIES: Final = tuple(_REGISTRIES)
