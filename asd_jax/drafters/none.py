"""No drafter: G = 0, so that plain autoregressive decoding is the same loop as all else."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from asd_jax.sampling import SamplingParams
from asd_jax.types import Drafter, Proposal, PyTree


def _init(params: PyTree, batch: int, num_slots: int) -> PyTree:
    del params, batch, num_slots
    return ()


def _keep(params: PyTree, state: PyTree, *args: jax.Array) -> PyTree:
    del params, args
    return state


def _propose(
    params: PyTree, state: PyTree, anchor: jax.Array, position: jax.Array, sampling: SamplingParams
) -> tuple[Proposal, PyTree]:
    del params, position, sampling
    batch = anchor.shape[0]
    return Proposal(jnp.zeros((batch, 0), jnp.int32), jnp.zeros((batch,), jnp.int32)), state


def no_drafter() -> Drafter:
    """Returns the drafter that proposes nothing; use it with `num_draft_tokens` 0."""
    return Drafter(
        params=(),
        init=_init,
        prefill=_keep,
        propose=_propose,
        commit=_keep,
        name="none",
        num_draft_tokens=0,
    )
