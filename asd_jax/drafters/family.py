"""What a family of trained drafters tells the loader, and what it may know of the target."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import nnx

from asd_jax.models.transformer import DeviceShare, TransformerConfig
from asd_jax.types import Drafter

Shapes = Mapping[str, tuple[int, ...]]
# Reads one whole tensor of the checkpoint on the host, by its name there.
ReadTensor = Callable[[str], np.ndarray]


@dataclasses.dataclass(frozen=True)
class TargetFacts:
    """What a drafter may know of its target.

    Attributes:
      config: The target's sizes.
      embed_tokens: Its embedding, [V, D], this device's rows of it on a mesh.
      lm_head: Its output projection, [V, D], likewise; the embedding again where they are tied.
      data_axis: Mesh axis that divides requests, or None.
    """

    config: TransformerConfig
    embed_tokens: jax.Array
    lm_head: jax.Array
    data_axis: str | None = None

    @property
    def num_ids(self) -> int:
        """Ids that stand for a token."""
        return self.config.num_token_ids or self.config.vocab_size


@dataclasses.dataclass(frozen=True)
class DrafterOptions:
    """What a user may say about a drafter that its files do not; None: as the files say.

    Attributes:
      num_draft_tokens: G.
      confidence_threshold: DSpark proposes up to the first token of less confidence; 0 = all.
      tap_convention: What the layer ids of an EAGLE-3 config mean, "layer_output" or "layer_input"
        (see `asd_jax.models.feature_layers`).
      corpus: Earlier outputs, token ids, in which "ngram" looks up what came next.
      with_logits: Whether proposals carry the drafter's logits, for rules that read them.
    """

    num_draft_tokens: int | None = None
    confidence_threshold: float | None = None
    tap_convention: str | None = None
    corpus: Sequence[Sequence[int]] | None = None
    with_logits: bool = False

    def __post_init__(self) -> None:
        number, threshold = self.num_draft_tokens, self.confidence_threshold
        is_whole = isinstance(number, int) and not isinstance(number, bool)
        if number is not None and (not is_whole or number < 1):
            raise ValueError(f"num_draft_tokens: got {number!r}, allowed is a whole number >= 1")
        is_number = isinstance(threshold, (int, float)) and not isinstance(threshold, bool)
        if threshold is not None and (not is_number or not 0 <= threshold <= 1):
            raise ValueError(f"confidence_threshold: got {threshold!r}, allowed is a number 0..1")
        if self.tap_convention not in (None, "layer_output", "layer_input"):
            raise ValueError(
                f"tap_convention: got {self.tap_convention!r}, allowed is layer_output or "
                "layer_input"
            )

    def require_taken(self, drafter: str, takes: Collection[str]) -> None:
        """Refuses options that a drafter would ignore.

        Args:
          drafter: Its name, for the message.
          takes: Those of `confidence_threshold`, `tap_convention` and `corpus` that it heeds.

        Raises:
          ValueError: Another of them is set.
        """
        for name in ("confidence_threshold", "tap_convention", "corpus"):
            if getattr(self, name) is not None and name not in takes:
                raise ValueError(
                    f"{name}: got one with drafter {drafter}, which heeds "
                    f"{', '.join(takes) or 'no such option'}"
                )


class DrafterFamily(NamedTuple):
    """How checkpoints of one family are recognised, read and run. All names are checkpoint names.

    Attributes:
      name: As in results and messages.
      is_released_as: `(names, config) -> bool`: whether these are its tensors.
      read_config: `(config, shapes, facts, options) -> C`, a frozen dataclass of the family's own.
        Raises a ValueError that names both sides where drafter and target do not fit.
      key_rules: `C -> ((checkpoint name regex, parameter path), ...)`.
      ignored_keys: `C -> (checkpoint name regex, ...)` that carry nothing for inference.
      param_axes: Parameter path (regex) -> logical axes, as `models.transformer.PARAM_AXES`.
      divide: `(C, size, axis) -> DeviceShare`: what one device of the mesh's model axis holds.
      build: `(C, share, dtype, rngs) -> nnx.Module` of one device's share.
      as_drafter: `(C, module, facts, options, read) -> Drafter`. `read` gives tensors that are no
        parameters, such as a vocabulary map. Weights shared with the target go into the drafter's
        params as they are: the same arrays, no copies.
      takes: Options that only this kind of drafter heeds, see `DrafterOptions.require_taken`.
    """

    name: str
    is_released_as: Callable[[Collection[str], Mapping[str, Any]], bool]
    read_config: Callable[[Mapping[str, Any], Shapes, TargetFacts, DrafterOptions], Any]
    key_rules: Callable[[Any], tuple[tuple[str, str], ...]]
    ignored_keys: Callable[[Any], tuple[str, ...]]
    param_axes: tuple[tuple[str, tuple[str | None, ...]], ...]
    divide: Callable[[Any, int, str | None], DeviceShare]
    build: Callable[[Any, DeviceShare, Any, nnx.Rngs], nnx.Module]
    as_drafter: Callable[[Any, Any, TargetFacts, DrafterOptions, ReadTensor], Drafter]
    takes: tuple[str, ...] = ()
