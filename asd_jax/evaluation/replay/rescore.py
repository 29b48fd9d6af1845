"""Scores a finished answer with the target, teacher-forced, in chunks of one size."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from asd_jax import sampling
from asd_jax.request import bucket_length
from asd_jax.sampling import SamplingParams
from asd_jax.types import PyTree, Target

# Tokens a forward: enough to keep the products busy, few enough for their logits to be small.
CHUNK = 64


@dataclasses.dataclass(frozen=True)
class Rescored:
    """What the target says of each token of an answer, given all tokens before it.

    Attributes:
      top_ids: Its own choice, int32 [N].
      regret: Top logit minus the emitted token's, float32 [N]; perturbed logits where the request
        was sampled.
      target_regret: Regret of the token that is said to be the target's, float32 [N]: 0 but for
        rounding, where that is true.
    """

    top_ids: np.ndarray
    regret: np.ndarray
    target_regret: np.ndarray


class Rescorer:
    """Scores answers, one at a time; programs are compiled once for each length of cache."""

    def __init__(self, target: Target) -> None:
        """Takes a target on one device.

        Raises:
          ValueError: It lies on a mesh.
        """
        if target.partition is not None:
            raise ValueError("target: got one on a mesh, allowed is one on a single device")
        self._target = target

    def __call__(
        self,
        prompt: Sequence[int],
        answer: Sequence[int],
        claimed: Sequence[int],
        params: SamplingParams,
    ) -> Rescored:
        """Scores one turn.

        Args:
          prompt: Ids before the answer, at least one.
          answer: Emitted ids, N.
          claimed: Ids that are said to be the target's own choice, N.
          params: Of the request, scalar leaves.

        Raises:
          ValueError: There is no prompt, or the lists differ in length.
        """
        if not prompt:
            raise ValueError("prompt: got no ids, allowed is at least one")
        if len(answer) != len(claimed):
            raise ValueError(f"claimed: got {len(claimed)} ids for an answer of {len(answer)}")
        text = np.asarray([*prompt, *answer], np.int32)
        first = len(prompt) - 1  # the row that predicts the answer's first token
        num_slots = bucket_length(text.size, smallest=CHUNK) + CHUNK
        cache = self._target.init_cache(1, num_slots)
        said = np.zeros(text.size, np.int32)
        said[len(prompt) :] = np.asarray(claimed, np.int32)
        parts = []
        for start in range(0, text.size - 1, CHUNK):
            tokens, emitted, own = (
                _window(x, at) for x, at in ((text, start), (text, start + 1), (said, start + 1))
            )
            cache, part = _score_chunk(
                self._target, cache, tokens, emitted, own, params, jnp.int32(start + 1)
            )
            parts.append(part)
        if not parts:
            empty = np.zeros(0, np.float32)
            return Rescored(empty.astype(np.int32), empty, empty)
        columns = [np.concatenate([np.asarray(part[i]) for part in parts]) for i in range(3)]
        rows = slice(first, first + len(answer))
        return Rescored(*(column[rows] for column in columns))


def _window(ids: np.ndarray, start: int) -> jax.Array:
    """Returns CHUNK ids from a place on, zeros behind the end, int32 [CHUNK]."""
    part = ids[start : start + CHUNK]
    return jnp.asarray(np.pad(part, (0, CHUNK - part.size)))


@functools.partial(jax.jit, donate_argnames=("cache",))
def _score_chunk(
    target: Target,
    cache: PyTree,
    tokens: jax.Array,
    emitted: jax.Array,
    own: jax.Array,
    params: SamplingParams,
    position: jax.Array,
) -> tuple[PyTree, tuple[jax.Array, jax.Array, jax.Array]]:
    """Feeds a chunk; returns the cache and top ids, regrets and regrets of the claims, [CHUNK]."""
    output = target.forward(target.params, tokens[None], cache)
    logits = output.logits[0].astype(jnp.float32)
    # Sorting and drawing over the vocabulary cost more than the forward; temperature 0 needs none.
    noisy = jax.lax.cond(
        params.temperature > 0,
        lambda: sampling.perturb(logits, params, position)[1],
        lambda: logits,
    )
    top = jnp.max(noisy, axis=-1)

    def regret_of(ids: jax.Array) -> jax.Array:
        return top - jnp.take_along_axis(noisy, ids[:, None], axis=-1)[:, 0]

    cache = output.cache.replace(length=output.cache.length + tokens.shape[0])
    scores = (jnp.argmax(noisy, axis=-1).astype(jnp.int32), regret_of(emitted), regret_of(own))
    return cache, scores
