"""Reads Hugging Face config fields with errors that name the field."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from asd_jax.models.layers import RopeConfig
from asd_jax.models.transformer import TransformerConfig


@dataclasses.dataclass(frozen=True)
class ConfigFields:
    """Typed access to a parsed `config.json`.

    Attributes:
      config: The parsed file.
    """

    config: Mapping[str, Any]

    def whole(self, name: str, default: int | None = None) -> int:
        """Returns a whole number >= 1.

        Raises:
          ValueError: The field is missing without a default, or not such a number.
        """
        value = self._value(name, default, "a whole number >= 1")
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"config field {name}: got {value!r}, allowed is a whole number >= 1")
        return value

    def positive(self, name: str, default: float | None = None) -> float:
        """Returns a number > 0.

        Raises:
          ValueError: The field is missing without a default, or not such a number.
        """
        value = self._value(name, default, "a number > 0")
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
            raise ValueError(f"config field {name}: got {value!r}, allowed is a number > 0")
        return float(value)

    def _value(self, name: str, default: Any, needed: str) -> Any:
        """Returns the field or its default; null counts as missing."""
        value = self.config.get(name)
        if value is None and default is None:
            raise ValueError(f"config field {name}: missing, needed is {needed}")
        return default if value is None else value

    def flag(self, name: str, default: bool) -> bool:
        """Returns a bool.

        Raises:
          ValueError: The field is neither missing nor a bool.
        """
        value = self.config.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise ValueError(f"config field {name}: got {value!r}, allowed is true or false")
        return value

    def require_off(self, *names: str) -> None:
        """Refuses features that are switched on but not implemented.

        Raises:
          ValueError: A named field is set.
        """
        for name in names:
            if self.config.get(name):
                raise ValueError(
                    f"config field {name}: got {self.config[name]!r}, allowed is null or false "
                    "(not implemented for this architecture)"
                )

    def rope(self) -> RopeConfig:
        """Returns the rotary embedding, from either spelling that transformers has used.

        Raises:
          ValueError: An unknown type, or a missing or impossible field of it.
        """
        merged = dict(self.config.get("rope_parameters") or self.config.get("rope_scaling") or {})
        theta = merged.get("rope_theta", self.config.get("rope_theta"))
        fields = ConfigFields({**merged, "rope_theta": theta})
        kind = merged.get("rope_type", merged.get("type", "default"))
        if kind not in ("default", "linear", "llama3"):
            raise ValueError(
                f"config field rope_type: got {kind!r}, allowed is default, linear or llama3"
            )
        base = RopeConfig(theta=fields.positive("rope_theta", 10000.0))
        if kind == "default":
            return base
        base = dataclasses.replace(base, kind=kind, factor=fields.positive("factor"))
        if kind == "linear":
            return base
        return dataclasses.replace(
            base,
            low_freq_factor=fields.positive("low_freq_factor"),
            high_freq_factor=fields.positive("high_freq_factor"),
            original_max_position=fields.whole("original_max_position_embeddings"),
        )

    def transformer_config(
        self, *, qkv_bias: bool = False, qk_norm: bool = False
    ) -> TransformerConfig:
        """Returns the dense decoder that the fields describe.

        Args:
          qkv_bias: As in `TransformerConfig`.
          qk_norm: As in `TransformerConfig`.

        Raises:
          ValueError: A field is missing, ill-typed or not implemented.
        """
        activation = self.config.get("hidden_act", "silu")
        if activation not in ("silu", "swish"):
            raise ValueError(f"config field hidden_act: got {activation!r}, allowed is 'silu'")
        num_heads, hidden_size = self.whole("num_attention_heads"), self.whole("hidden_size")
        return TransformerConfig(
            vocab_size=self.whole("vocab_size"),
            hidden_size=hidden_size,
            num_layers=self.whole("num_hidden_layers"),
            num_heads=num_heads,
            num_kv_heads=self.whole("num_key_value_heads", num_heads),
            head_dim=self.whole("head_dim", hidden_size // num_heads),
            intermediate_size=self.whole("intermediate_size"),
            norm_eps=self.positive("rms_norm_eps", 1e-6),
            rope=self.rope(),
            max_position=self.whole("max_position_embeddings", 2048),
            qkv_bias=qkv_bias,
            qk_norm=qk_norm,
            tie_word_embeddings=self.flag("tie_word_embeddings", False),
        )
