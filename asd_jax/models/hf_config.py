"""Reads Hugging Face config fields with errors that name the field."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from asd_jax.models.rope import KINDS, RopeConfig
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
          ValueError: An unknown type, a missing or impossible field of it, or two spellings that
            contradict each other.
        """
        spellings = [self.config.get(name) for name in ("rope_parameters", "rope_scaling")]
        ropes = [self._rope(spelling) for spelling in spellings if spelling] or [self._rope({})]
        if ropes[0] != ropes[-1]:
            raise ValueError(
                f"config fields rope_parameters and rope_scaling: got {spellings[0]!r} and "
                f"{spellings[1]!r}, allowed is one of them, or two that say the same"
            )
        return ropes[0]

    def _rope(self, spelling: Mapping[str, Any]) -> RopeConfig:
        """Returns the rotary embedding that one of the two fields describes."""
        merged = dict(spelling)
        nested = [name for name, value in merged.items() if isinstance(value, Mapping)]
        if nested:
            raise ValueError(
                f"config field rope_parameters: got one set a layer type ({', '.join(nested)}), "
                "allowed is one set for all layers"
            )
        theta = merged.get("rope_theta", self.config.get("rope_theta"))
        fields = ConfigFields({**merged, "rope_theta": theta})
        kind = merged.get("rope_type", merged.get("type")) or "default"
        if kind not in KINDS:
            raise ValueError(
                f"config field rope_type: got {kind!r}, allowed is one of {', '.join(KINDS)}"
            )
        rotated = merged.get("partial_rotary_factor", self.config.get("partial_rotary_factor"))
        if rotated not in (None, 1, 1.0):
            raise ValueError(
                f"config field partial_rotary_factor: got {rotated!r}, allowed is 1 (not "
                "implemented for this architecture)"
            )
        base = RopeConfig(theta=fields.positive("rope_theta", 10000.0))
        if kind == "default":
            return base
        max_position = self._max_position()
        name = "original_max_position_embeddings"  # in either place; the outer one holds
        original = (self if self.config.get(name) else fields).whole(name, max_position)
        is_factor_implied = kind == "yarn" and merged.get("factor") is None
        base = dataclasses.replace(
            base,
            kind=kind,
            factor=max_position / original if is_factor_implied else fields.positive("factor"),
        )
        if kind == "linear":
            return base
        if kind == "dynamic":  # knows no other original context than the config's own
            return dataclasses.replace(base, original_max_position=max_position)
        base = dataclasses.replace(base, original_max_position=original)
        if kind == "llama3":
            return dataclasses.replace(
                base,
                low_freq_factor=fields.positive("low_freq_factor"),
                high_freq_factor=fields.positive("high_freq_factor"),
            )
        return dataclasses.replace(
            base,
            beta_fast=fields.positive("beta_fast", 32.0),
            beta_slow=fields.positive("beta_slow", 1.0),
            truncate=fields.flag("truncate", True),
            attention_factor=fields.yarn_attention_factor(base.factor),
        )

    def yarn_attention_factor(self, factor: float) -> float:
        """Returns YaRN's scale of cosines and sines, from whichever fields a config has.

        Raises:
          ValueError: A field that is no number > 0.
        """
        if self.config.get("attention_factor") is not None:
            return self.positive("attention_factor")

        def scale(weight: float) -> float:
            return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

        if self.config.get("mscale") and self.config.get("mscale_all_dim"):
            return scale(self.positive("mscale")) / scale(self.positive("mscale_all_dim"))
        return scale(1.0)

    def _max_position(self) -> int:
        return self.whole("max_position_embeddings", 2048)

    def context_length(self, rope: RopeConfig) -> int:
        """Returns the positions that a model is good for, with its stretched rotary embedding.

        llama3 configs count them in `max_position_embeddings`; the others there count the context
        before stretching, or both are given and the larger holds.
        """
        max_position = self._max_position()
        if rope.kind in ("linear", "dynamic"):
            return int(max_position * rope.factor)
        if rope.kind == "yarn":
            return max(max_position, int(rope.original_max_position * rope.factor))
        return max_position

    def sliding_layers(self, window: int | None, first_layer: int = 0) -> tuple[int, ...]:
        """Returns the layers that see only a window, from 0.

        Args:
          window: Its size, or None where the config switches it off.
          first_layer: The first of them, where the config does not list `layer_types`.

        Raises:
          ValueError: `layer_types` does not fit the number of layers, or has an unknown entry.
        """
        num_layers = self.whole("num_hidden_layers")
        types = self.config.get("layer_types")
        if types is None:
            return tuple(range(first_layer, num_layers)) if window is not None else ()
        allowed = ("full_attention", "sliding_attention")
        if not isinstance(types, list) or len(types) != num_layers or not set(types) <= {*allowed}:
            raise ValueError(
                f"config field layer_types: got {types!r}, allowed is a list of {num_layers} "
                f"entries out of {', '.join(allowed)}"
            )
        sliding = tuple(i for i, name in enumerate(types) if name == "sliding_attention")
        if sliding and window is None:
            raise ValueError(
                "config field layer_types: got sliding_attention, but sliding_window is off"
            )
        return sliding

    def optional_window(self) -> int | None:
        """Returns `sliding_window`, None where it is null or missing.

        Raises:
          ValueError: It is no whole number >= 1.
        """
        return None if self.config.get("sliding_window") is None else self.whole("sliding_window")

    def transformer_config(self, **flags: Any) -> TransformerConfig:
        """Returns the dense decoder that the fields describe.

        Args:
          **flags: Fields of `TransformerConfig` in which the families differ.

        Raises:
          ValueError: A field is missing, ill-typed or not implemented.
        """
        activation = self.config.get("hidden_act", "silu")
        if activation not in ("silu", "swish"):
            raise ValueError(f"config field hidden_act: got {activation!r}, allowed is 'silu'")
        num_heads, hidden_size = self.whole("num_attention_heads"), self.whole("hidden_size")
        rope = self.rope()
        return TransformerConfig(
            vocab_size=self.whole("vocab_size"),
            hidden_size=hidden_size,
            num_layers=self.whole("num_hidden_layers"),
            num_heads=num_heads,
            num_kv_heads=self.whole("num_key_value_heads", num_heads),
            head_dim=self.whole("head_dim", max(hidden_size // num_heads, 1)),
            intermediate_size=self.whole("intermediate_size"),
            norm_eps=self.positive("rms_norm_eps", 1e-6),
            rope=rope,
            max_position=self.context_length(rope),
            tie_word_embeddings=self.flag("tie_word_embeddings", False),
            **flags,
        )
