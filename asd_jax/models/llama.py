"""The Llama family: Llama 2 and 3, SmolLM, Mistral without a sliding window, and their kin.

Source of the layout: Hugging Face transformers, `models/llama/modeling_llama.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asd_jax.models.hf_config import ConfigFields
from asd_jax.models.transformer import TransformerConfig


def read_config(config: Mapping[str, Any]) -> TransformerConfig:
    """Reads a Hugging Face `config.json` of a Llama-type model.

    Raises:
      ValueError: A field is missing, ill-typed or asks for something not implemented; the message
        names it, what was got and what is allowed.
    """
    fields = ConfigFields(config)
    fields.require_off("attention_bias", "mlp_bias", "sliding_window")
    return fields.transformer_config()


# Checkpoint names (regex) -> parameter paths of `asd_jax.models.transformer.Transformer`.
KEY_RULES: tuple[tuple[str, str], ...] = (
    (r"model\.embed_tokens\.weight", "embed_tokens"),
    (r"model\.norm\.weight", "norm/weight"),
    (r"lm_head\.weight", "lm_head"),
    (r"model\.layers\.(\d+)\.(\w+layernorm)\.weight", r"layers/\1/\2/weight"),
    (r"model\.layers\.(\d+)\.(self_attn|mlp)\.(\w+)\.weight", r"layers/\1/\2/\3/weight"),
    (r"model\.layers\.(\d+)\.self_attn\.(\w+)\.bias", r"layers/\1/self_attn/\2/bias"),
)

# Buffers that old exporters wrote; they follow from the config.
IGNORED_KEYS: tuple[str, ...] = (r".*\.rotary_emb\.inv_freq",)
