"""What a proposal costs: its parameters, and its time apart from everything else."""

from __future__ import annotations

import dataclasses
import statistics
import time

import jax

from asd_jax.decode import Requests, propose
from asd_jax.state import DecodeState
from asd_jax.types import Drafter, Target

_REPEATS = 7


@dataclasses.dataclass(frozen=True)
class DrafterCost:
    """The cost of one proposal for a whole batch.

    Attributes:
      name: The drafter's.
      num_params: Numbers of its own; those shared with the target are not counted.
      num_draft_tokens: Tokens that a proposal holds.
      batch: Requests.
      seconds: Median time of a proposal by itself. Following the committed tokens, which some
        drafters do by a product of their own, is not in it.
    """

    name: str
    num_params: int
    num_draft_tokens: int
    batch: int
    seconds: float


def measure(
    target: Target, drafter: Drafter, requests: Requests, state: DecodeState
) -> DrafterCost:
    """Times proposals from a state, which is left as it is; the first call compiles.

    Args:
      target: Its partition says where the proposal runs.
      drafter: The proposer.
      requests: The batch.
      state: After its prefill.
    """
    proposal = jax.block_until_ready(propose(target, drafter, requests, state))
    seconds = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        jax.block_until_ready(propose(target, drafter, requests, state))
        seconds.append(time.perf_counter() - start)
    return DrafterCost(
        name=drafter.name,
        num_params=drafter.num_params,
        num_draft_tokens=proposal.tokens.shape[1],
        batch=proposal.tokens.shape[0],
        seconds=statistics.median(seconds),
    )
