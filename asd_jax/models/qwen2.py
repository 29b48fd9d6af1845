"""The Qwen2 family, Qwen2.5 included: biases on q, k and v; a sliding window in few checkpoints.

Source of the layout: Hugging Face transformers, `models/qwen2/modeling_qwen2.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asd_jax.models.hf_config import ConfigFields
from asd_jax.models.ranges import MAX_WHOLE, is_whole, shown
from asd_jax.models.transformer import TransformerConfig


def read_config(config: Mapping[str, Any]) -> TransformerConfig:
    """Reads a Hugging Face `config.json` of a Qwen2-type model.

    Raises:
      ValueError: A field is missing, ill-typed or asks for something not implemented; the message
        names it, what was got and what is allowed.
    """
    fields = ConfigFields(config)
    window, layers = sliding_window(fields)
    return fields.transformer_config(qkv_bias=True, sliding_window=window, sliding_layers=layers)


def sliding_window(fields: ConfigFields) -> tuple[int | None, tuple[int, ...]]:
    """Returns the window and the layers that have it, as Qwen2 and Qwen3 configs say.

    Released configs name a window even where `use_sliding_window` switches it off. Where it is on,
    the layers from `max_window_layers` on have it, unless `layer_types` lists them.

    Raises:
      ValueError: A field is ill-typed.
    """
    is_on = fields.flag("use_sliding_window", False)
    window = fields.optional_window() if is_on else None
    first = fields.config.get("max_window_layers", 28)
    if not is_whole(first, 0):
        raise ValueError(
            f"config field max_window_layers: got {shown(first)}, allowed is a whole number >= 0 "
            f"and <= {MAX_WHOLE}"
        )
    return window, fields.sliding_layers(window, first)
