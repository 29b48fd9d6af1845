"""Prompt lookup: proposes what followed the latest earlier occurrence of the current suffix.

No weights. All on the device with static shapes; one pass over the history a round, and one for
each row over a corpus of earlier outputs where there is one. The idea is Saxena's prompt lookup
decoding (github.com/apoorvumang/prompt-lookup-decoding).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from asd_jax.cache import append_tokens
from asd_jax.sampling import SamplingParams
from asd_jax.types import Drafter, Proposal, PyTree

# Stands behind every sequence of a corpus; equal to no token, so no match reaches over it.
_END = -1


class Corpus(struct.PyTreeNode):
    """Earlier outputs, the drafter's only params: looked up, never written.

    Attributes:
      tokens: All sequences one after the other, each with an end mark of -1 behind it, int32 [C].
    """

    tokens: jax.Array


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
    history: jax.Array,
    position: jax.Array,
    num_draft: int,
    max_suffix: int,
    corpus: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Finds the longest suffix, of at most `max_suffix` tokens, that occurred before.

    Among equally long matches the history comes before the corpus, and later before earlier.

    Args:
      history: Ids by position, int32 [S].
      position: Index of the last token, int32 [].
      num_draft: G, static.
      max_suffix: Longest suffix tried, tokens, static, >= 1.
      corpus: `Corpus.tokens`, int32 [C], or None.

    Returns:
      The G ids behind the match, int32 [G], and how many of them are real, int32 []: they end at
      the last token of the history, so a match d tokens back gives min(G, d), or with their
      sequence of the corpus; 0 without a match.
    """
    num_slots = history.shape[0]
    slot = jnp.arange(num_slots, dtype=jnp.int32)
    matched = _match_lengths(history, slot < position, history, position, max_suffix)
    # Longest first, then latest; both fit one int32 key as S * max_suffix does.
    best = jnp.argmax(matched * num_slots + slot).astype(jnp.int32)
    size = matched[best]
    length = jnp.where(size > 0, jnp.minimum(num_draft, position - best), 0).astype(jnp.int32)
    ahead = best + 1 + jnp.arange(num_draft, dtype=jnp.int32)
    drafts = history.at[ahead].get(mode="fill", fill_value=0)
    if corpus is None:
        return drafts, length
    known, known_length, known_size = _look_up_corpus(
        corpus, history, position, num_draft, max_suffix
    )
    is_longer = known_size > size
    return jnp.where(is_longer, known, drafts), jnp.where(is_longer, known_length, length)


def _match_lengths(
    text: jax.Array,
    may_end: jax.Array,
    history: jax.Array,
    position: jax.Array,
    max_suffix: int,
) -> jax.Array:
    """Returns how many tokens up to each slot of a text equal the last ones of the history.

    Args:
      text: Where to look, int32 [C].
      may_end: Slots at which a match may end, bool [C]; 0 at all others.
      history: As in `lookup`.
      position: As in `lookup`.
      max_suffix: As in `lookup`.

    Returns:
      int32 [C], 0..max_suffix.
    """
    slot = jnp.arange(text.shape[0], dtype=jnp.int32)
    matched = jnp.zeros(text.shape, jnp.int32)
    still = may_end
    shifted = text
    for back in range(max_suffix):
        if back:  # shifted[e] = text[e - back]; slots without so much text never match
            shifted = jnp.concatenate([jnp.full((1,), _END, jnp.int32), shifted[:-1]])
        wanted = history[jnp.maximum(position - back, 0)]
        still = still & (shifted == wanted) & (slot >= back) & (position >= back)
        matched = matched + still.astype(jnp.int32)
    return matched


def _look_up_corpus(
    corpus: jax.Array, history: jax.Array, position: jax.Array, num_draft: int, max_suffix: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns the ids behind the longest match [G], how many are real [], and its size []."""
    following = jnp.concatenate([corpus[1:], jnp.full((1,), _END, jnp.int32)])
    matched = _match_lengths(corpus, following != _END, history, position, max_suffix)
    # The first maximum of the reversed array is the latest; unlike a key that joins size and slot
    # it cannot overflow, however large the corpus.
    best = corpus.shape[0] - 1 - jnp.argmax(matched[::-1]).astype(jnp.int32)
    ahead = best + 1 + jnp.arange(num_draft, dtype=jnp.int32)
    drafts = corpus.at[ahead].get(mode="fill", fill_value=_END)
    size = matched[best]
    length = jnp.sum(jnp.cumprod((drafts != _END).astype(jnp.int32)))
    return drafts, jnp.where(size > 0, length, 0).astype(jnp.int32), size


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
        del sampling
        corpus = params.tokens if isinstance(params, Corpus) else None

        def row(history: jax.Array, token: jax.Array, at: jax.Array) -> tuple:
            history = history.at[at].set(token, mode="drop")
            return *lookup(history, at, self.num_draft, self.max_suffix, corpus), history

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


def ngram(
    num_draft_tokens: int, *, max_suffix: int = 4, corpus: Iterable[Sequence[int]] = ()
) -> Drafter:
    """Returns the prompt-lookup drafter.

    Args:
      num_draft_tokens: G, tokens a round, >= 1.
      max_suffix: Longest suffix looked up, tokens, >= 1.
      corpus: Earlier outputs to look up besides a request's own history, each a sequence of token
        ids, earlier ones first. Every row reads all of it every round.

    Raises:
      ValueError: A size below 1, or a sequence that is not of token ids.
    """
    for name, value in (("num_draft_tokens", num_draft_tokens), ("max_suffix", max_suffix)):
        if value < 1:
            raise ValueError(f"{name}: got {value}, allowed is a whole number >= 1")
    tokens = _join_corpus(corpus)
    return Drafter(
        params=Corpus(jnp.asarray(tokens)) if tokens.size else (),
        init=_init,
        prefill=_prefill,
        propose=_Propose(num_draft_tokens, max_suffix),
        commit=_commit,
        name="ngram",
        num_draft_tokens=num_draft_tokens,
        can_abstain=True,
    )


def _join_corpus(corpus: Iterable[Sequence[int]]) -> np.ndarray:
    """Returns the sequences with their end marks, int32 [C]; empty ones leave nothing."""
    parts = []
    for index, sequence in enumerate(corpus):
        ids = np.asarray(sequence)
        if ids.size == 0 and ids.ndim == 1:
            continue
        if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer):
            raise ValueError(
                f"corpus[{index}]: got {repr(sequence)[:80]}, allowed is a sequence of token ids"
            )
        wrong = ids[(ids < 0) | (ids > np.iinfo(np.int32).max)]
        if wrong.size:
            raise ValueError(
                f"corpus[{index}]: got id {wrong[0]}, allowed is 0..{np.iinfo(np.int32).max}"
            )
        parts += [ids.astype(np.int32), np.full((1,), _END, np.int32)]
    return np.concatenate(parts) if parts else np.zeros((0,), np.int32)
