"""Drives any drafter by hand: prefill, rounds with chosen outcomes, a fresh start from a history.

The target is real, the outcomes are the test's: any number of drafts is kept, whatever the target
thinks of them, and any token may follow. So kept drafts are exceptions more often than not, and
what the drafter knows must still be what a prefill of the same text would have told it.
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from asd_jax import Drafter, Target, sampling_params

NUM_SLOTS = 64  # of the caches; histories stay shorter
PADDED = 48  # prompts and histories are padded to this


@dataclasses.dataclass
class Run:
    """A batch under way.

    Attributes:
      texts: Committed tokens of each row, the anchor last.
      cache: The target's.
      state: The drafter's.
    """

    texts: list[list[int]]
    cache: object
    state: object

    @property
    def anchor(self) -> jax.Array:
        return jnp.asarray([text[-1] for text in self.texts], jnp.int32)

    @property
    def position(self) -> jax.Array:
        return jnp.asarray([len(text) - 1 for text in self.texts], jnp.int32)


class Driver:
    """Runs one drafter with its target, G tokens a round."""

    def __init__(self, target: Target, drafter: Drafter, num_draft: int) -> None:
        self.target, self.drafter, self.num_draft = target, drafter, num_draft

    def start(self, texts: list[list[int]]) -> Run:
        """Prefills everything but the last token of each text, which is the anchor."""
        tokens = np.zeros((len(texts), PADDED), np.int32)
        for row, text in enumerate(texts):
            tokens[row, : len(text) - 1] = text[:-1]
        lengths = jnp.asarray([len(text) - 1 for text in texts], jnp.int32)
        cache, state = self._prefill(self.target, self.drafter, jnp.asarray(tokens), lengths)
        return Run([list(text) for text in texts], cache, state)

    def propose(self, run: Run, **sampled):
        """Returns the proposal and the run with the state that it leaves."""
        params = sampling_params(len(run.texts), **sampled)
        proposal, state = self._propose(
            self.target, self.drafter, run.state, run.anchor, run.position, params
        )
        return proposal, dataclasses.replace(run, state=state)

    def commit(self, run: Run, proposal, kept: list[int | None], following: list[int]) -> Run:
        """Keeps so many drafts of each row and appends a token; None: the row has finished."""
        drafts = np.asarray(proposal.tokens)[:, : self.num_draft]
        inputs = jnp.concatenate([run.anchor[:, None], jnp.asarray(drafts)], axis=1)
        num_kept = jnp.asarray([0 if n is None else n + 1 for n in kept], jnp.int32)
        cache, state = self._commit(
            self.target, self.drafter, run.state, run.cache, inputs, run.position, num_kept
        )
        texts = [
            text if n is None else text + drafts[row, :n].tolist() + [following[row]]
            for row, (text, n) in enumerate(zip(run.texts, kept, strict=True))
        ]
        return Run(texts, cache, state)

    @functools.cached_property
    def _prefill(self):
        @jax.jit
        def prefill(target, drafter, tokens, lengths):
            batch = tokens.shape[0]
            output = target.forward(
                target.params,
                tokens,
                target.init_cache(batch, NUM_SLOTS),
                feature_layers=drafter.feature_layers,
            )
            state = drafter.init(drafter.params, batch, NUM_SLOTS)
            state = drafter.prefill(
                drafter.params, state, tokens, output.features, output.hidden, lengths
            )
            return output.cache.replace(length=lengths), state

        return prefill

    @functools.cached_property
    def _propose(self):
        @jax.jit
        def propose(target, drafter, state, anchor, position, params):
            del target
            return drafter.propose(drafter.params, state, anchor, position, params)

        return propose

    @functools.cached_property
    def _commit(self):
        @jax.jit
        def commit(target, drafter, state, cache, inputs, position, num_kept):
            output = target.forward(
                target.params,
                inputs,
                cache.replace(length=position),
                feature_layers=drafter.feature_layers,
            )
            state = drafter.commit(
                drafter.params, state, inputs, output.features, output.hidden, num_kept
            )
            return output.cache.replace(length=position + num_kept), state

        return commit
