"""Rotary position embeddings and the ways in which released models stretch them.

Formulas: Hugging Face transformers, `modeling_rope_utils.py`, whose names for the kinds are kept.
"""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp

from asd_jax.models.ranges import MAX_NUMBER, MAX_WHOLE, MIN_POSITIVE, is_number, is_whole

KINDS = ("default", "linear", "dynamic", "yarn", "llama3")


@dataclasses.dataclass(frozen=True)
class RopeConfig:
    """Rotary position embedding.

    Attributes:
      theta: Base of the frequencies, > 1.
      kind: One of `KINDS`.
      factor: Context extension of every kind but "default", >= 1.
      original_max_position: The context, in tokens, that the model was first trained with; of
        "dynamic", "yarn" and "llama3".
      low_freq_factor: Of "llama3": wavelengths above original / low are divided by `factor`.
      high_freq_factor: Of "llama3": wavelengths below original / high are kept.
      beta_fast: Of "yarn": features that turn at least so often in the original context are kept.
      beta_slow: Of "yarn": features that turn at most so often are divided by `factor`.
      truncate: Of "yarn": whether the bounds between the two are rounded to whole features.
      attention_factor: Of "yarn": scale of cosines and sines, hence of logits squared.

    Raises:
      ValueError: An unknown kind, or a number that is not finite or with which the kind's formula
        is not defined; the message names the field.
    """

    theta: float = 10000.0
    kind: str = "default"
    factor: float = 1.0
    original_max_position: int = 8192
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"rope kind: got {self.kind!r}, allowed is one of {', '.join(KINDS)}")
        for name, low, high, allowed in (
            ("theta", MIN_POSITIVE, MAX_NUMBER, "a number > 1"),
            ("factor", 1.0, MAX_WHOLE, f"a number in 1..{MAX_WHOLE}"),
            ("low_freq_factor", MIN_POSITIVE, MAX_NUMBER, "a number > 0"),
            ("high_freq_factor", MIN_POSITIVE, MAX_NUMBER, "a number > 0"),
            ("beta_fast", MIN_POSITIVE, MAX_NUMBER, "a number > 0"),
            ("beta_slow", MIN_POSITIVE, MAX_NUMBER, "a number > 0"),
            ("attention_factor", MIN_POSITIVE, MAX_NUMBER, "a number > 0"),
        ):
            value = getattr(self, name)
            if not is_number(value, low, high) or (name == "theta" and value <= 1):
                raise ValueError(
                    f"rope {name}: got {value!r}, allowed is {allowed} that float32 holds"
                )
        if not is_whole(self.original_max_position):
            raise ValueError(
                f"rope original_max_position: got {self.original_max_position!r}, allowed is a "
                f"whole number in 1..{MAX_WHOLE}"
            )
        if self.kind == "llama3" and self.high_freq_factor <= self.low_freq_factor:
            raise ValueError(
                f"rope high_freq_factor: got {self.high_freq_factor}, allowed is > low_freq_factor "
                f"{self.low_freq_factor}"
            )
        if self.kind == "yarn" and self.beta_fast < self.beta_slow:
            raise ValueError(
                f"rope beta_fast: got {self.beta_fast}, allowed is >= beta_slow {self.beta_slow}"
            )

    def inverse_frequencies(self, head_dim: int) -> tuple[float, ...]:
        """Returns the H / 2 angular frequencies in radians a position.

        Those of "dynamic" hold up to `original_max_position`; `rope_tables` has the rest.
        """
        freqs = [self.theta ** (-2.0 * j / head_dim) for j in range(head_dim // 2)]
        if self.kind == "linear":
            return tuple(f / self.factor for f in freqs)
        if self.kind == "llama3":
            return tuple(self._llama3(f) for f in freqs)
        if self.kind == "yarn":
            low, high = self._yarn_bounds(head_dim)
            kept = [1 - min(max((j - low) / (high - low), 0.0), 1.0) for j in range(len(freqs))]
            return tuple(
                f / self.factor * (1 - k) + f * k for f, k in zip(freqs, kept, strict=True)
            )
        return tuple(freqs)

    def _llama3(self, freq: float) -> float:
        wavelength = 2 * math.pi / freq
        longest = self.original_max_position / self.low_freq_factor
        shortest = self.original_max_position / self.high_freq_factor
        if wavelength > longest:
            return freq / self.factor
        if wavelength < shortest:
            return freq
        smooth = (self.original_max_position / wavelength - self.low_freq_factor) / (
            self.high_freq_factor - self.low_freq_factor
        )
        return (1 - smooth) * freq / self.factor + smooth * freq

    def _yarn_bounds(self, head_dim: int) -> tuple[float, float]:
        """Returns the features between which interpolation sets in (arXiv 2309.00071)."""

        def feature(turns: float) -> float:
            wavelength = self.original_max_position / (turns * 2 * math.pi)
            return head_dim * math.log(wavelength) / (2 * math.log(self.theta))

        low, high = feature(self.beta_fast), feature(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, head_dim - 1)
        return low, high if high != low else high + 0.001


def rope_tables(
    rope: RopeConfig, head_dim: int, positions: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Returns cosines and sines, float32 [H / 2, M], for positions int32 [M].

    "dynamic" stretches with the length of the text. Keys are cached already rotated, so a position
    takes the frequencies of the text that ends with it: what HF's cache holds when tokens come one
    at a time, and the same for any chunking, any batch and after any rollback.
    """
    where = positions.astype(jnp.float32)[None, :]
    angles = jnp.asarray(rope.inverse_frequencies(head_dim), jnp.float32)[:, None] * where
    if rope.kind == "dynamic":
        original = jnp.float32(rope.original_max_position)
        stretch = rope.factor * (where + 1) / original - (rope.factor - 1)
        power = head_dim / (head_dim - 2) if head_dim > 2 else 0.0
        log_theta = math.log(rope.theta) + power * jnp.log(jnp.maximum(stretch, 1.0))
        exponent = jnp.arange(head_dim // 2, dtype=jnp.float32)[:, None] * (2.0 / head_dim)
        angles = jnp.where(where < original, angles, jnp.exp(-exponent * log_theta) * where)
    scale = jnp.float32(rope.attention_factor)
    return jnp.cos(angles) * scale, jnp.sin(angles) * scale


def apply_rope(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """Rotates [N, H, M] by tables [H / 2, M], pairing feature j with j + H / 2 (HF's layout)."""
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=1)
    cos, sin = cos[None], sin[None]
    rotated = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=1)
    return rotated.astype(x.dtype)
