"""The Qwen3 family: queries and keys are normalised per head before RoPE; no biases as released.

Source of the layout: Hugging Face transformers, `models/qwen3/modeling_qwen3.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asd_jax.models import qwen2
from asd_jax.models.hf_config import ConfigFields
from asd_jax.models.transformer import TransformerConfig


def read_config(config: Mapping[str, Any]) -> TransformerConfig:
    """Reads a Hugging Face `config.json` of a Qwen3-type model.

    Raises:
      ValueError: A field is missing, ill-typed or asks for something not implemented; the message
        names it, what was got and what is allowed.
    """
    fields = ConfigFields(config)
    has_bias = fields.flag("attention_bias", False)
    window, layers = qwen2.sliding_window(fields)
    if config.get("head_dim") is None:
        # Unlike its kin, the reference does not derive it from the width.
        fields = ConfigFields({**config, "head_dim": 128})
    return fields.transformer_config(
        qkv_bias=has_bias,
        output_bias=has_bias,
        qk_norm=True,
        sliding_window=window,
        sliding_layers=layers,
    )
