"""The Llama family: Llama 2 and 3, SmolLM, Mistral and their kin.

Source of the layout: Hugging Face transformers, `models/llama/modeling_llama.py` and
`models/mistral/modeling_mistral.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asd_jax.models.hf_config import ConfigFields
from asd_jax.models.transformer import TransformerConfig


def read_config(config: Mapping[str, Any]) -> TransformerConfig:
    """Reads a Hugging Face `config.json` of a Llama-type model.

    A `sliding_window` counts where the model type knows one: Mistral does, in all layers, and means
    4096 where a config says nothing (null switches it off).

    Raises:
      ValueError: A field is missing, ill-typed or asks for something not implemented; the message
        names it, what was got and what is allowed.
    """
    fields = ConfigFields(config)
    has_bias = fields.flag("attention_bias", False)
    window = None
    if config.get("model_type") == "mistral":
        window = ConfigFields({"sliding_window": 4096, **config}).optional_window()
    return fields.transformer_config(
        qkv_bias=has_bias,
        output_bias=has_bias,
        mlp_bias=fields.flag("mlp_bias", False),
        sliding_window=window,
        sliding_layers=fields.sliding_layers(window),
    )
