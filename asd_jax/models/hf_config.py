"""Reads Hugging Face config fields with errors that name the field."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from asd_jax.models.ranges import (
    MAX_LAYERS,
    MAX_NUMBER,
    MAX_WHOLE,
    MIN_POSITIVE,
    is_number,
    is_whole,
    shown,
)
from asd_jax.models.rope import KINDS, RopeConfig
from asd_jax.models.transformer import TransformerConfig


@dataclasses.dataclass(frozen=True)
class ConfigFields:
    """Typed access to a parsed `config.json`.

    Attributes:
      config: The parsed file.
    """

    config: Mapping[str, Any]

    def whole(self, name: str, default: int | None = None, *, high: int = MAX_WHOLE) -> int:
        """Returns a whole number in 1..high.

        Raises:
          ValueError: The field is missing without a default, or not such a number.
        """
        value = self._value(name, default, "a whole number >= 1")
        if not is_whole(value, 1, high):
            raise ValueError(
                f"config field {name}: got {shown(value)}, allowed is a whole number >= 1 and <= "
                f"{high}"
            )
        return int(value)

    def positive(
        self, name: str, default: float | None = None, *, high: float = MAX_NUMBER
    ) -> float:
        """Returns a number > 0 that float32 holds.

        Raises:
          ValueError: The field is missing without a default, or not such a number.
        """
        value = self._value(name, default, "a number > 0")
        if not is_number(value, MIN_POSITIVE, high):
            raise ValueError(
                f"config field {name}: got {shown(value)}, allowed is a number > 0, from "
                f"{MIN_POSITIVE:.3g} to {high:.3g}"
            )
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
            raise ValueError(f"config field {name}: got {shown(value)}, allowed is true or false")
        return value

    def section(self, name: str) -> Mapping[str, Any]:
        """Returns a nested object, an empty one where the field is missing or null.

        Raises:
          ValueError: The field is something else.
        """
        value = self.config.get(name)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise ValueError(f"config field {name}: got {value!r}, allowed is an object or null")
        return value

    def require_off(self, *names: str) -> None:
        """Refuses features that are switched on but not implemented.

        Raises:
          ValueError: A named field is set.
        """
        for name in names:
            if self.config.get(name):
                raise ValueError(
                    f"config field {name}: got {shown(self.config[name])}, allowed is null or "
                    "false (not implemented for this architecture)"
                )

    def rope(self) -> RopeConfig:
        """Returns the rotary embedding, from either spelling that transformers has used.

        Raises:
          ValueError: An unknown type, a missing or impossible field of it, or two spellings that
            contradict each other.
        """
        names = ("rope_parameters", "rope_scaling")
        spellings = {name: self.config.get(name) for name in names}
        ropes = [
            self._rope(name, spelling)
            for name, spelling in spellings.items()
            if spelling != {} and spelling is not None
        ] or [self._rope(names[0], {})]
        if ropes[0] != ropes[-1]:
            raise _contradiction(spellings)
        return ropes[0]

    def _rope(self, name: str, spelling: Any) -> RopeConfig:
        """Returns the rotary embedding that one of the two fields describes."""
        if not isinstance(spelling, Mapping):
            raise ValueError(
                f"config field {name}: got {shown(spelling)}, allowed is an object or null"
            )
        merged = dict(spelling)
        nested = [key for key, value in merged.items() if isinstance(value, Mapping)]
        if nested:
            raise ValueError(
                f"config field {name}: got one set a layer type ({', '.join(map(str, nested))}), "
                "allowed is one set for all layers"
            )
        fields = ConfigFields({**merged, "rope_theta": self._either(name, merged, "rope_theta")})
        types = {key: merged[key] for key in ("rope_type", "type") if merged.get(key) is not None}
        if len(types) == 2 and types["rope_type"] != types["type"]:
            raise _contradiction({f"{name}.{key}": value for key, value in types.items()})
        kind = next(iter(types.values()), "default")
        if kind not in KINDS:
            raise ValueError(
                f"config field rope_type: got {shown(kind)}, allowed is one of {', '.join(KINDS)}"
            )
        rotated = self._either(name, merged, "partial_rotary_factor")
        if rotated not in (None, 1, 1.0):
            raise ValueError(
                f"config field partial_rotary_factor: got {shown(rotated)}, allowed is 1 (not "
                "implemented for this architecture)"
            )
        base = RopeConfig(theta=fields.positive("rope_theta", 10000.0))
        if kind == "default":
            return base
        max_position = self._max_position()
        context = "original_max_position_embeddings"  # in either place; the outer one holds
        is_outer = self.config.get(context) is not None
        original = (self if is_outer else fields).whole(context, max_position)
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

    def _either(self, name: str, spelling: Mapping[str, Any], field: str) -> Any:
        """Returns a field that stands inside the named one or beside it, None if nowhere."""
        places = {f"{name}.{field}": spelling.get(field), field: self.config.get(field)}
        told = [value for value in places.values() if value is not None]
        if len(told) == 2 and told[0] != told[1]:
            raise _contradiction(places)
        return told[0] if told else None

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

        Raises:
          ValueError: More positions than int32 holds.
        """
        max_position = self._max_position()
        stretched = max_position
        if rope.kind in ("linear", "dynamic"):
            stretched = int(max_position * rope.factor)
        if rope.kind == "yarn":
            stretched = max(max_position, int(rope.original_max_position * rope.factor))
        if stretched > MAX_WHOLE:
            raise ValueError(
                f"config field factor: got {rope.factor}, which stretches the context to "
                f"{stretched} positions, allowed is <= {MAX_WHOLE}"
            )
        return stretched

    def num_layers(self) -> int:
        """Returns the number of layers, bounded since they are built one by one.

        Raises:
          ValueError: As `whole`.
        """
        return self.whole("num_hidden_layers", high=MAX_LAYERS)

    def sliding_layers(self, window: int | None, first_layer: int = 0) -> tuple[int, ...]:
        """Returns the layers that see only a window, from 0.

        Args:
          window: Its size, or None where the config switches it off.
          first_layer: The first of them, where the config does not list `layer_types`.

        Raises:
          ValueError: `layer_types` does not fit the number of layers, or has an unknown entry.
        """
        num_layers = self.num_layers()
        types = self.config.get("layer_types")
        if types is None:
            return tuple(range(first_layer, num_layers)) if window is not None else ()
        allowed = ("full_attention", "sliding_attention")
        is_list = isinstance(types, list) and len(types) == num_layers
        if not is_list or not all(name in allowed for name in types):
            raise ValueError(
                f"config field layer_types: got {shown(types)}, allowed is a list of {num_layers} "
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
            raise ValueError(f"config field hidden_act: got {shown(activation)}, allowed is 'silu'")
        num_heads, hidden_size = self.whole("num_attention_heads"), self.whole("hidden_size")
        rope = self.rope()
        return TransformerConfig(
            vocab_size=self.whole("vocab_size"),
            hidden_size=hidden_size,
            num_layers=self.num_layers(),
            num_heads=num_heads,
            num_kv_heads=self.whole("num_key_value_heads", num_heads),
            head_dim=self.whole("head_dim", max(hidden_size // num_heads, 1)),
            intermediate_size=self.whole("intermediate_size"),
            norm_eps=self.positive("rms_norm_eps", 1e-6, high=1.0),
            rope=rope,
            max_position=self.context_length(rope),
            tie_word_embeddings=self.flag("tie_word_embeddings", False),
            **flags,
        )


def _contradiction(places: Mapping[str, Any]) -> ValueError:
    got = " and ".join(shown(value) for value in places.values())
    return ValueError(
        f"config fields {' and '.join(places)}: got {got}, allowed is one of them, or two that say "
        "the same"
    )
