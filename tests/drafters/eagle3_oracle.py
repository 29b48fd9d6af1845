"""EAGLE-3 by the book: numpy, float64, one row, everything anew at every step and no cache.

Written from the published description and not from `asd_jax.drafters`; the golden files of
`tests/data/golden/eagle3_llama_original` hold it against the official code.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import numpy as np


@dataclasses.dataclass(frozen=True)
class Oracle:
    """One drafter.

    Attributes:
      tensors: By checkpoint name, the layer's behind `layer.`; which are there decides what is run.
      embedding: [V, D].
      head: [Vd, D].
      ids: Target id of each row of `head`, [Vd].
      num_heads: Query heads.
      num_kv_heads: Key/value heads.
      theta: Base of the rotary frequencies.
      eps: Of every norm.
      num_ids: Ids that may be drafted.
      norm_before_residual: As in the config.
      norm_output: As in a speculators config.
    """

    tensors: Mapping[str, np.ndarray]
    embedding: np.ndarray
    head: np.ndarray
    ids: np.ndarray
    num_heads: int
    num_kv_heads: int
    theta: float
    eps: float
    num_ids: int
    norm_before_residual: bool = False
    norm_output: bool = False

    def fuse(self, taps: np.ndarray) -> np.ndarray:
        """Maps tapped streams [n, F * D] to features [n, D]."""
        x = taps.astype(np.float64)
        if "input_norm.weight" in self.tensors:
            x = self._norm(x, "input_norm")
        count = sum(name.startswith("fc_norm.") for name in self.tensors)
        if count:
            parts = np.split(x, count, axis=1)
            x = np.concatenate([self._norm(p, f"fc_norm.{i}") for i, p in enumerate(parts)], axis=1)
        return self._linear(x, "fc") if "fc.weight" in self.tensors else x

    def layer(self, tokens: np.ndarray, features: np.ndarray) -> np.ndarray:
        """Maps pairs (token i + 1, feature i), i = 0..n-1, to z [n, D]."""
        normed = self._norm(features, "layer.hidden_norm")
        embedded = self._norm(self.embedding[tokens].astype(np.float64), "layer.input_layernorm")
        both = np.concatenate([embedded, normed], axis=1)
        residual = normed if self.norm_before_residual else features
        y = residual + self._attend(both)
        x = self._norm(y, "layer.post_attention_layernorm")
        gate = self._linear(x, "layer.mlp.gate_proj")
        up = self._linear(x, "layer.mlp.up_proj")
        return y + self._linear(gate / (1 + np.exp(-gate)) * up, "layer.mlp.down_proj")

    def logits(self, z: np.ndarray) -> np.ndarray:
        """Scores the target's vocabulary, [V]; -inf for ids that are never drafted."""
        scores = self.head.astype(np.float64) @ self._norm(z[None], "norm")[0]
        wide = np.full(len(self.embedding), -np.inf)
        wide[self.ids] = scores
        wide[self.num_ids :] = -np.inf
        return wide

    def chain(
        self,
        tokens: list[int],
        taps: np.ndarray,
        num_draft: int,
        choose: Callable[[int, np.ndarray], int],
    ) -> tuple[list[int], np.ndarray]:
        """Drafts behind a committed text.

        Args:
          tokens: Of positions 0..n, the last one being the anchor.
          taps: The target's streams at positions 0..n-1.
          num_draft: G.
          choose: `(absolute position, logits [V]) -> token`.

        Returns:
          The drafts and their logits [G, V].
        """
        following, features = list(tokens[1:]), self.fuse(taps)
        drafts, scores = [], []
        for step in range(num_draft):
            z = self.layer(np.asarray(following), features)[-1]
            scores.append(self.logits(z))
            drafts.append(choose(len(tokens) + step, scores[-1]))
            following.append(drafts[-1])
            fed = self._norm(z[None], "norm")[0] if self.norm_output else z
            features = np.concatenate([features, fed[None]])
        return drafts, np.asarray(scores)

    def _linear(self, x: np.ndarray, name: str) -> np.ndarray:
        y = x @ self.tensors[f"{name}.weight"].astype(np.float64).T
        return y + self.tensors.get(f"{name}.bias", 0.0)

    def _norm(self, x: np.ndarray, name: str) -> np.ndarray:
        scale = self.tensors[f"{name}.weight"].astype(np.float64)
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + self.eps) * scale

    def _heads(self, x: np.ndarray, name: str, count: int) -> np.ndarray:
        """Projects to heads [count, n, H], with their norm and rotation if it is not `v`."""
        prefix = f"layer.self_attn.{name}"
        heads = self._linear(x, f"{prefix}_proj").reshape(len(x), count, -1).transpose(1, 0, 2)
        if name == "v":
            return heads
        if f"{prefix}_norm.weight" in self.tensors:
            heads = self._norm(heads, f"{prefix}_norm")
        half = heads.shape[-1] // 2
        angle = np.arange(len(x))[:, None] / self.theta ** (np.arange(half) / half)
        first, second = heads[..., :half], heads[..., half:]
        turned = first * np.cos(angle) - second * np.sin(angle)
        return np.concatenate([turned, second * np.cos(angle) + first * np.sin(angle)], axis=-1)

    def _attend(self, x: np.ndarray) -> np.ndarray:
        group = self.num_heads // self.num_kv_heads
        q = self._heads(x, "q", self.num_heads)
        k = self._heads(x, "k", self.num_kv_heads).repeat(group, axis=0)
        v = self._heads(x, "v", self.num_kv_heads).repeat(group, axis=0)
        scores = q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1])
        scores = np.where(np.tri(len(x), dtype=bool), scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = weights / weights.sum(-1, keepdims=True) @ v
        joined = mixed.transpose(1, 0, 2).reshape(len(x), -1)
        return self._linear(joined, "layer.self_attn.o_proj")
