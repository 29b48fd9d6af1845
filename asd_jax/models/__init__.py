"""Target models: weights and forward only. `MODELS` says which reader serves which checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from asd_jax.models import llama
from asd_jax.models.transformer import TransformerConfig


class ModelFamily(NamedTuple):
    """How checkpoints of one family are read.

    Attributes:
      read_config: `config.json` -> `TransformerConfig`.
      key_rules: Checkpoint name (regex) -> parameter path.
      ignored_keys: Checkpoint names (regex) that carry nothing.
    """

    read_config: Callable[[Mapping[str, Any]], TransformerConfig]
    key_rules: tuple[tuple[str, str], ...]
    ignored_keys: tuple[str, ...]


_LLAMA = ModelFamily(llama.read_config, llama.KEY_RULES, llama.IGNORED_KEYS)

# By `model_type` of config.json.
MODELS: dict[str, ModelFamily] = {"llama": _LLAMA, "mistral": _LLAMA, "smollm": _LLAMA}
