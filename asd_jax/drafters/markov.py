"""The sequential part of DSpark: what the token before a slot adds to its logits, drawn in order.

Source: deepseek-ai/DeepSpec@afdfa7c, `deepspec/modeling/dspark`. Columns throughout: features in
front, requests behind.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx, struct

from asd_jax.models.layers import Linear, look_up


class MarkovHead(nnx.Module):
    """A bias on the logits by the token before: W2 of what a step makes of W1[token], width r.

    - vanilla: W1[token] itself.
    - gated: W1[token] times a sigmoid gate of [hidden; W1[token]].
    - rnn: the output of a gated recurrence over [state; W1[token]; hidden].
    """

    def __init__(
        self,
        kind: str,
        rank: int,
        dim: int,
        *,
        vocab_size: int,
        num_rows: int,
        num_reduced: int | None,
        axis: str | None,
        dtype: Any,
        rngs: nnx.Rngs,
    ) -> None:
        """Builds one device's share: `num_rows` of `vocab_size` ids, `num_reduced` of them scored.

        Where the scored ids are a reduced vocabulary, all of them are here, under another path:
        only the tokens before, which W1 looks up, are ids of the target.
        """
        self.kind, self.vocab_size, self.axis = kind, vocab_size, axis

        def table(rows: int) -> nnx.Param:
            return nnx.Param(jax.random.normal(rngs.params(), (rows, rank), dtype) * 0.02)

        self.w1 = table(num_rows)
        self.w2 = table(num_rows) if num_reduced is None else None
        self.reduced_w2 = None if num_reduced is None else table(num_reduced)

        def linear(wanted: str, in_dim: int, out_dim: int) -> Linear | None:
            if kind != wanted:
                return None
            return Linear(in_dim, out_dim, bias=True, dtype=dtype, rngs=rngs)

        self.gate_proj = linear("gated", dim + rank, rank)
        self.joint_proj = linear("rnn", 2 * rank + dim, 3 * rank)

    @property
    def rank(self) -> int:
        """Width r."""
        return self.w1.shape[1]

    def embed(self, tokens: jax.Array) -> jax.Array:
        """Looks tokens [B] of the target's vocabulary up in W1, [r, B]."""
        return look_up(self.w1[...], tokens, self.vocab_size, self.axis)

    def step(
        self, state: jax.Array, embedded: jax.Array, hidden: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Goes one slot further.

        Args:
          state: Of the recurrence, [r, B]; the other kinds hand it on.
          embedded: W1 of the token before, [r, B].
          hidden: The slot's hidden state, [D, B].

        Returns:
          The next state and the bias on the logits, [V, B].
        """
        if self.joint_proj is not None:
            joint = self.joint_proj(jnp.concatenate([state, embedded, hidden]))
            keep, candidate, output = jnp.split(joint, 3)
            keep = jax.nn.sigmoid(keep)
            state = keep * state + (1 - keep) * jnp.tanh(candidate)
            latent = jnp.tanh(output)
        elif self.gate_proj is not None:
            gate = self.gate_proj(jnp.concatenate([hidden, embedded]))
            latent = jax.nn.sigmoid(gate) * embedded
        else:
            latent = embedded
        table = self.w2 if self.reduced_w2 is None else self.reduced_w2
        assert table is not None
        return state, table[...] @ latent


class DraftChain(struct.PyTreeNode):
    """The drafts of a block in order.

    Attributes:
      tokens: Ids of the target's vocabulary, int32 [G, B].
      logits: With the Markov bias, of the ids on this device, [G, V, B].
      confidence: Logit that each token survives if those before it do, float32 [G, B]; None
        without a confidence head. That of a token depends on the tokens before it, not on itself.
    """

    tokens: jax.Array
    logits: jax.Array
    confidence: jax.Array | None


def draft_chain(
    markov: MarkovHead | None,
    confidence: Linear | None,
    hidden: jax.Array,
    base: jax.Array,
    anchor: jax.Array,
    choose: Callable[[jax.Array, jax.Array], jax.Array],
) -> DraftChain:
    """Chooses the drafts of a block from left to right.

    Args:
      markov: The Markov head, or None.
      confidence: The confidence head, over [hidden; W1[token before]] or the hidden state alone.
      hidden: Hidden states of the slots, [G, D, B].
      base: Their logits without a bias, [G, V, B].
      anchor: The token before the first draft, int32 [B].
      choose: `(logits [V, B], slot) -> tokens [B]`.
    """

    def slot(carry: tuple, inputs: tuple) -> tuple:
        state, before = carry
        index, hidden, logits = inputs
        read = hidden
        if markov is not None:
            embedded = markov.embed(before).astype(hidden.dtype)
            state, bias = markov.step(state, embedded, hidden)
            logits = logits + bias.astype(logits.dtype)
            read = jnp.concatenate([hidden, embedded])
        sure = None
        if confidence is not None:
            sure = confidence(read[: confidence.weight.shape[1]])[0].astype(jnp.float32)
        token = choose(logits, index)
        return (state, token), DraftChain(tokens=token, logits=logits, confidence=sure)

    num_slots, _, batch = hidden.shape
    state = jnp.zeros((0 if markov is None else markov.rank, batch), hidden.dtype)
    steps = jnp.arange(num_slots, dtype=jnp.int32)
    return jax.lax.scan(slot, (state, anchor), (steps, hidden, base))[1]


def proposal_length(chain: DraftChain, threshold: float) -> jax.Array:
    """Returns how many drafts come before the first of too little confidence, int32 [B], 0..G.

    It looks at no token that it leaves out, so nothing is biased by it.

    Args:
      chain: The block.
      threshold: Least confidence, a probability; 0 keeps all drafts.
    """
    num_drafts, batch = chain.tokens.shape
    if chain.confidence is None or threshold <= 0:
        return jnp.full((batch,), num_drafts, jnp.int32)
    is_sure = jax.nn.sigmoid(chain.confidence) >= threshold
    return jnp.sum(jnp.cumprod(is_sure.astype(jnp.int32), axis=0), axis=0, dtype=jnp.int32)
