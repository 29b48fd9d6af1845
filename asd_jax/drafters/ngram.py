"""Prompt lookup: proposes what followed the latest earlier occurrence of the current suffix.

No weights. All on the device with static shapes; one pass over the history a round. The idea is
Saxena's prompt lookup decoding (github.com/apoorvumang/prompt-lookup-decoding).
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from flax import struct

from asd_jax.cache import append_tokens
from asd_jax.sampling import SamplingParams
from asd_jax.types import Drafter, Proposal, PyTree


class NgramState(struct.PyTreeNode):
    """The token history of every row.

    Attributes:
      tokens: Ids by position, int32 [B, S]; entries at and behind `length` are garbage.
      length: Committed tokens, the anchor not counted, int32 [B].
    """

    tokens: jax.Array
    length: jax.Array


def _init(params: PyTree, batch: int, num_slots: int) -> NgramState:
    del params
    return NgramState(
        tokens=jnp.zeros((batch, num_slots), jnp.int32), length=jnp.zeros((batch,), jnp.int32)
    )


def _prefill(
    params: PyTree,
    state: NgramState,
    tokens: jax.Array,
    features: jax.Array,
    hidden: jax.Array,
    lengths: jax.Array,
) -> NgramState:
    del params, features, hidden
    history = jax.lax.dynamic_update_slice(state.tokens, tokens, (0, 0))
    return state.replace(tokens=history, length=lengths)


def lookup(
    history: jax.Array, position: jax.Array, num_draft: int, max_suffix: int
) -> tuple[jax.Array, jax.Array]:
    """Finds the longest suffix, of at most `max_suffix` tokens, that occurred before.

    Among equally long matches the most recent one wins.

    Args:
      history: Ids by position, int32 [S].
      position: Index of the last token, int32 [].
      num_draft: G, static.
      max_suffix: Longest suffix tried, tokens, static, >= 1.

    Returns:
      The G ids behind the match, int32 [G], and how many of them are real, int32 []: they end at
      the last token, so a match d tokens back gives min(G, d); 0 without a match.
    """
    num_slots = history.shape[0]
    slot = jnp.arange(num_slots, dtype=jnp.int32)
    matched = jnp.zeros((num_slots,), jnp.int32)
    still = slot < position
    shifted = history
    for back in range(max_suffix):
        if back:  # shifted[e] = history[e - back]; slots without so much history never match
            shifted = jnp.concatenate([jnp.full((1,), -1, jnp.int32), shifted[:-1]])
        wanted = history[jnp.maximum(position - back, 0)]
        still = still & (shifted == wanted) & (slot >= back) & (position >= back)
        matched = matched + still.astype(jnp.int32)
    # Longest first, then latest; both fit one int32 key as S * max_suffix does.
    best = jnp.argmax(matched * num_slots + slot).astype(jnp.int32)
    found = matched[best] > 0
    length = jnp.where(found, jnp.minimum(num_draft, position - best), 0)
    ahead = best + 1 + jnp.arange(num_draft, dtype=jnp.int32)
    return history.at[ahead].get(mode="fill", fill_value=0), length.astype(jnp.int32)


@dataclasses.dataclass(frozen=True)
class _Propose:
    """`Drafter.propose` for one G and one suffix length; equal ones share compiled programs."""

    num_draft: int
    max_suffix: int

    def __call__(
        self,
        params: PyTree,
        state: NgramState,
        anchor: jax.Array,
        position: jax.Array,
        sampling: SamplingParams,
    ) -> tuple[Proposal, NgramState]:
        del params, sampling

        def row(history: jax.Array, token: jax.Array, at: jax.Array) -> tuple:
            history = history.at[at].set(token, mode="drop")
            return *lookup(history, at, self.num_draft, self.max_suffix), history

        drafts, length, tokens = jax.vmap(row)(state.tokens, anchor, position)
        return Proposal(tokens=drafts, length=length), state.replace(tokens=tokens)


def _commit(
    params: PyTree,
    state: NgramState,
    tokens: jax.Array,
    features: jax.Array,
    hidden: jax.Array,
    num_kept: jax.Array,
) -> NgramState:
    del params, features, hidden

    history = append_tokens(state.tokens, tokens, state.length, num_kept)
    return state.replace(tokens=history, length=state.length + num_kept)


def ngram(num_draft_tokens: int, *, max_suffix: int = 4) -> Drafter:
    """Returns the prompt-lookup drafter.

    Args:
      num_draft_tokens: G, tokens a round, >= 1.
      max_suffix: Longest suffix looked up, tokens, >= 1.

    Raises:
      ValueError: A value below 1.
    """
    for name, value in (("num_draft_tokens", num_draft_tokens), ("max_suffix", max_suffix)):
        if value < 1:
            raise ValueError(f"{name}: got {value}, allowed is a whole number >= 1")
    return Drafter(
        params=(),
        init=_init,
        prefill=_prefill,
        propose=_Propose(num_draft_tokens, max_suffix),
        commit=_commit,
        name="ngram",
        num_draft_tokens=num_draft_tokens,
    )
