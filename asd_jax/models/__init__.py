"""Target models: weights and forward only. `MODELS` says which reader serves which checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from asd_jax.models import checkpoint_keys, llama, qwen2, qwen3
from asd_jax.models.transformer import TransformerConfig


class ModelFamily(NamedTuple):
    """How checkpoints of one family are read.

    Attributes:
      read_config: `config.json` -> `TransformerConfig`.
      key_rules: Checkpoint name (regex) -> parameter path.
      ignored_keys: Checkpoint names (regex) that carry nothing.
    """

    read_config: Callable[[Mapping[str, Any]], TransformerConfig]
    key_rules: tuple[tuple[str, str], ...] = checkpoint_keys.KEY_RULES
    ignored_keys: tuple[str, ...] = checkpoint_keys.IGNORED_KEYS


# By `model_type` of config.json.
MODELS: dict[str, ModelFamily] = {
    "llama": ModelFamily(llama.read_config),
    "mistral": ModelFamily(llama.read_config),
    "qwen2": ModelFamily(qwen2.read_config),
    "qwen3": ModelFamily(qwen3.read_config),
    "smollm": ModelFamily(llama.read_config),
}
