"""Contracts between the parts: every pytree and every function type that crosses a module border.

Shape letters used throughout the project: `B` requests (rows), `T` tokens in this call, `P` padded
prompt length, `S` cache slots, `G` draft tokens a round, `V` vocabulary, `D` model width, `N` query
heads, `K` key/value heads, `H` head width, `L` layers, `R` recorded rounds.

Everything here is data. The algorithm is in `asd_jax.verifier`, the loop in `asd_jax.decode`.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from asd_jax.scoring import TokenScores
from asd_jax.sharding import Partition

PyTree = Any


class StopReason(enum.IntEnum):
    """Why a block's acceptance ended at position `num_accepted`."""

    NONE = 0  # nothing failed: all G positions were kept
    END_OF_DRAFT = 1  # the request proposed fewer than G tokens and all were kept
    GATE = 2  # regret > gate * suffix value; of other rules: their own test of the token failed
    BUDGET = 3  # the request's regret budget cannot pay for the token
    CAP = 4  # more exceptions than block_cap
    PROTECTED = 5  # the draft or the target token is a protected id
    INVALID = 6  # draft id outside the vocabulary, or a regret that is not finite
    STRICT = 7  # a mismatch under controls that allow no exception at all


class FinishReason(enum.IntEnum):
    """Why a request ended."""

    RUNNING = 0
    STOP = 1  # a stop id was emitted (and kept)
    LENGTH = 2  # max_new_tokens reached
    CAPACITY = 3  # max_len reached
    NONFINITE = 4  # the target's logits for the next token were NaN or infinite


@jax.tree_util.register_pytree_with_keys_class
@dataclasses.dataclass(frozen=True)
class Controls:
    """The three limits of Approximate Speculative Decoding (arXiv 2608.03447, section 3).

    All are traced, so changing a value never recompiles. Leaves are scalars, or `[B]` when every
    request has its own. Concrete values are validated here; tracers pass through, and so does
    whatever JAX puts into the leaves when it maps over the pytree.

    Attributes:
      budget: Regret that one request may spend in its whole life, in logits (nats). float32.
      gate: Largest regret per token of suffix value, in logits a token. float32.
      block_cap: Largest number of exceptions in one block. int32.

    Raises:
      ValueError: A field is negative, NaN or no number, or `block_cap` is not a whole number.
    """

    budget: Any = 8.0
    gate: Any = 0.25
    block_cap: Any = 2

    def __post_init__(self) -> None:
        for name, dtype in (("budget", np.float32), ("gate", np.float32), ("block_cap", np.int32)):
            value = getattr(self, name)
            if not isinstance(value, jax.core.Tracer):
                object.__setattr__(self, name, _validated_control(name, value, dtype))

    def tree_flatten_with_keys(self) -> tuple[tuple[tuple[Any, Any], ...], None]:
        """Returns the leaves with their names (the pytree protocol of JAX)."""
        fields = ("budget", "gate", "block_cap")
        return tuple((jax.tree_util.GetAttrKey(f), getattr(self, f)) for f in fields), None

    @classmethod
    def tree_unflatten(cls, aux: None, leaves: Any) -> Controls:
        """Builds from leaves without validation: they need not be numbers (the pytree protocol)."""
        del aux
        controls = object.__new__(cls)
        for name, leaf in zip(("budget", "gate", "block_cap"), leaves, strict=True):
            object.__setattr__(controls, name, leaf)
        return controls

    @classmethod
    def strict(cls) -> Controls:
        """Returns the controls under which verification is exactly greedy."""
        return cls(budget=0.0, gate=0.0, block_cap=0)

    @classmethod
    def from_normalized(
        cls, budget: float, gate: float, block_cap: int, block_size: int
    ) -> Controls:
        """Converts from the authors' second scheme, where q_i = (n - i) / n.

        Args:
          budget: As in `Controls`.
          gate: Gate of the normalised scheme, in logits per whole block.
          block_cap: As in `Controls`.
          block_size: The n by which the scheme divides, in tokens, >= 1.

        Returns:
          Controls in the raw scheme, `gate / block_size`.

        Raises:
          ValueError: `block_size` is not a positive whole number, or as in `Controls`.
        """
        is_whole = isinstance(block_size, (int, np.integer)) and not isinstance(block_size, bool)
        if not is_whole or block_size < 1:
            raise ValueError(f"block_size: got {block_size!r}, allowed is a whole number >= 1")
        gate = _validated_control("gate", gate, np.float32)
        return cls(budget=budget, gate=gate / np.float32(block_size), block_cap=block_cap)


def _validated_control(name: str, value: Any, dtype: type) -> Any:
    """Returns `value` as an array of `dtype`, or raises a ValueError naming the field."""
    kind = "a whole number" if dtype is np.int32 else "a number"
    error = ValueError(f"{name}: got {value!r}, allowed is {kind} >= 0 (or one for each request)")
    if isinstance(value, jax.Array) and not value.is_fully_addressable:
        return value.astype(dtype)  # spread over processes: no single host can look at it
    host = np.asarray(value)
    if not (np.issubdtype(host.dtype, np.number) or host.dtype == jnp.bfloat16):
        raise error  # bools, strings and objects (such as integers beyond 64 bits)
    number = host.astype(np.float64)
    if np.isnan(number).any() or (number < 0).any():
        raise error
    if dtype is np.int32:
        if not (np.isfinite(number) & (number == np.floor(number))).all():
            raise error
        number = np.minimum(number, np.iinfo(np.int32).max)  # no block is that long
    else:
        with np.errstate(over="ignore", under="ignore"):
            single = number.astype(np.float32)
        # A number must not turn into infinity, nor into the 0 that means strict decoding.
        if (np.isinf(single) & np.isfinite(number) | (single == 0) & (number > 0)).any():
            raise error
    # An array on a device keeps its place there.
    return value.astype(dtype) if isinstance(value, jax.Array) else number.astype(dtype)


class Ledger(struct.PyTreeNode):
    """What one request has spent and gained so far. Leaves are `[]` or `[B]`.

    Attributes:
      spent: Regret charged, in logits, float32. Never above the request's budget.
      exceptions: Committed draft tokens that were not the target's argmax, int32.
      reused: Committed draft tokens behind the first exception of their block, int32.
      proposed: Draft tokens proposed, int32.
      accepted: Draft tokens committed, int32.
      strict_accepted: Draft tokens that strict verification of the same blocks would have
        committed, int32.
      rounds: Blocks verified, int32.
      exhausted_at: Round (from 0) in which the budget first refused a token, int32; -1 = never.
      first_exception_at: Emitted position (from 0) of the first exception, int32; -1 = none.
    """

    spent: jax.Array
    exceptions: jax.Array
    reused: jax.Array
    proposed: jax.Array
    accepted: jax.Array
    strict_accepted: jax.Array
    rounds: jax.Array
    exhausted_at: jax.Array
    first_exception_at: jax.Array

    @classmethod
    def zeros(cls, batch_shape: tuple[int, ...] = ()) -> Ledger:
        """Returns a fresh ledger with leaves of shape `batch_shape`."""

        def counter(value: int = 0) -> jax.Array:
            return jnp.full(batch_shape, value, jnp.int32)

        return cls(
            spent=jnp.zeros(batch_shape, jnp.float32),
            exceptions=counter(),
            reused=counter(),
            proposed=counter(),
            accepted=counter(),
            strict_accepted=counter(),
            rounds=counter(),
            exhausted_at=counter(-1),
            first_exception_at=counter(-1),
        )


class Verdict(struct.PyTreeNode):
    """The decision on one block. A leading `[B]` is added by `vmap`.

    Attributes:
      num_accepted: Draft tokens kept, int32 [].
      next_token: The target's own token behind them (correction or bonus), int32 []. Rules that
        toss coins put a draw of their own in place of a correction.
      target_tokens: The target's argmax at every position, int32 [G+1].
      regret: Regret of accepted exceptions in logits, 0 elsewhere, float32 [G].
      exception_mask: True where an accepted token is not the target's argmax, bool [G].
      num_strict: Draft tokens that strict verification would have kept, int32 [].
      stop_reason: A `StopReason`, int32 [].
      stop_regret: Regret of the draft token that ended the prefix, in logits, float32 []; 0 where
        the draft ended, infinite for a token that has none.
      is_finite: False if a row that this decision rests on (0..num_accepted) has an argmax that
        is NaN or infinite, bool [].
      num_finite: Leading rows with a finite argmax, int32 []: only the first `num_finite` of the
        emitted tokens may be committed.
    """

    num_accepted: jax.Array
    next_token: jax.Array
    target_tokens: jax.Array
    regret: jax.Array
    exception_mask: jax.Array
    num_strict: jax.Array
    stop_reason: jax.Array
    stop_regret: jax.Array
    is_finite: jax.Array
    num_finite: jax.Array


class Proposal(struct.PyTreeNode):
    """What a drafter proposes for one round.

    Attributes:
      tokens: Draft ids, int32 [B, G]. Entries at and behind `length` are ignored.
      length: Proposed tokens per request, int32 [B], 0..G.
      logits: The drafter's logits, float32 [B, G, V], or None where the drafter has none.
    """

    tokens: jax.Array
    length: jax.Array
    logits: jax.Array | None = None


class Block(struct.PyTreeNode):
    """All that an acceptance rule may look at, for one request (`vmap` adds the batch).

    Attributes:
      draft_tokens: int32 [G].
      draft_length: int32 [].
      value_length: The n in the suffix value q_i = n - i, int32 [].
      draft_logits: The drafter's logits after the same temperature, top-k and top-p, which the
        draft tokens were drawn with, float32 [G, V]; None if the drafter hands out none, or unless
        the rule `needs_logits`.
      scores: Argmax, maximum and draft logit of `noisy_logits`: all that most rules need.
      logits: Target logits after temperature, top-k and top-p, float32 [G+1, V]; None unless the
        rule `needs_logits`.
      noisy_logits: `logits` plus the request's position-keyed Gumbel noise; the very same values
        where the temperature is 0. Their argmax is what plain sampling would emit. float32
        [G+1, V], or None as above.
      key: PRNG key of this request and round, for rules that draw; not consumed elsewhere.
      temperature: The request's, float32 []; None = 0.
    """

    draft_tokens: jax.Array
    draft_length: jax.Array
    value_length: jax.Array
    draft_logits: jax.Array | None
    scores: TokenScores
    logits: jax.Array | None
    noisy_logits: jax.Array | None
    key: jax.Array
    temperature: jax.Array | None = None


class AcceptanceRule(NamedTuple):
    """An acceptance rule: two pure functions, written for one request and vmapped by the loop.

    Attributes:
      name: The rule's name in configs and results.
      verify: `(block, ledger, controls, protected_ids) -> Verdict`.
      settle: `(ledger, verdict, num_committed, *, draft_length, position) -> Ledger`.
      needs_logits: Whether `verify` reads whole rows of logits. They cost memory traffic, so a rule
        that can live on `Block.scores` should.
      reads_draft_logits: Whether `verify` looks at the drafter's logits where there are any, so
        that the drafter should be loaded `with_logits`.
      needs_draft_logits: Whether it cannot do without them.
    """

    name: str
    verify: Callable[..., Verdict]
    settle: Callable[..., Ledger]
    needs_logits: bool = False
    reads_draft_logits: bool = False
    needs_draft_logits: bool = False


class TargetOutput(struct.PyTreeNode):
    """One forward of the target.

    Attributes:
      logits: [B, T, V], or [B, 1, V] where the caller asked for one row a request.
      hidden: Final-norm hidden state, [B, T, D].
      features: Residual streams of the tapped layers side by side, [B, T, F * D]; F may be 0.
      cache: The cache with this call's keys and values written behind `cache.length`; the length
        itself is unchanged, the caller decides how many of the rows are valid.
    """

    logits: jax.Array
    hidden: jax.Array
    features: jax.Array
    cache: PyTree


class Target(struct.PyTreeNode):
    """A target model as weights and pure functions; a pytree, so weights are never constants.

    Attributes:
      params: Weights.
      forward: `(params, tokens [B, T], cache, *, logit_rows=None, feature_layers=()) ->
        TargetOutput`. Row b's tokens stand at positions `cache.length[b] + t`. `logit_rows` int32
        [B] asks for the logits of that one row only (the prefill needs no others).
        `feature_layers`, static, names the residual streams wanted as HF hidden_states indices: 0
        is the embedding, i the output of the i-th layer, all before the final norm.
      init_cache: `(batch, num_slots) -> cache`, an empty cache.
      vocab_size: Ids that stand for a token. Logits may be wider; those of padding ids are -inf.
      context_length: Largest number of positions the model was made for.
      vocab_major: Whether `forward` computes logits as [V, B, T] and hands out a transposed view;
        under jit the loop then reads them in place.
      partition: The mesh that the weights lie on, or None for one device. With a mesh `forward`
        and `init_cache` are the functions of one of its devices, to be called under
        `jax.shard_map` as `asd_jax.decode` does: batches are this device's rows and logits those of
        its part of the vocabulary.
    """

    params: PyTree
    forward: Callable[..., TargetOutput] = struct.field(pytree_node=False)
    init_cache: Callable[..., PyTree] = struct.field(pytree_node=False)
    vocab_size: int = struct.field(pytree_node=False)
    context_length: int = struct.field(pytree_node=False)
    vocab_major: bool = struct.field(pytree_node=False, default=False)
    partition: Partition | None = struct.field(pytree_node=False, default=None)

    @property
    def data_axis(self) -> str | None:
        """The mesh axis that divides requests, or None."""
        return None if self.partition is None else self.partition.data_axis

    @property
    def model_axis(self) -> str | None:
        """The mesh axis that divides weights and vocabulary, or None."""
        return None if self.partition is None else self.partition.model_axis


class Drafter(struct.PyTreeNode):
    """A drafter as weights and pure functions over an explicit state; a pytree like `Target`.

    Weights go in as the first argument and stay outside the state, which the loop carries.
    States are batched on the leading axis of every leaf. The loop never freezes a finished row:
    it commits nothing for it (`num_kept` 0), which must leave the row's committed state alone.

    Attributes:
      params: Weights, `()` where there are none.
      init: `(params, batch, num_slots) -> state`.
      prefill: `(params, state, tokens [B, P], features [B, P, F*D], hidden [B, P, D],
        lengths [B]) -> state`, with right-padded prompts.
      propose: `(params, state, anchor [B], position [B], sampling) -> (Proposal, state)`. `anchor`
        is the last committed token, which no cache holds yet; `position` is its index in the
        sequence; `sampling` are the requests' `SamplingParams`: drafters draw with the target's
        own noise (`asd_jax.sampling.draw`).
      commit: `(params, state, tokens [B, G+1], features [B, G+1, F*D], hidden [B, G+1, D],
        num_kept [B]) -> state`. `tokens` are the target's inputs of this round, the anchor first;
        the first `num_kept` rows are now part of the committed history.
      num_draft_tokens: Proposed block length G, or None where any G will do.
      can_abstain: Whether proposals may be empty, so that a round of plain decoding is worth
        compiling.
      feature_layers: Residual streams of the target that it reads, as in `Target.forward`.
      num_params: Numbers of its own, those shared with the target not counted.
      context_length: Largest number of positions that it was made for, None: no limit.
      partition: Where the weights lie on the target's mesh, as in `Target`; None: on every device.
    """

    params: PyTree
    init: Callable[..., PyTree] = struct.field(pytree_node=False)
    prefill: Callable[..., PyTree] = struct.field(pytree_node=False)
    propose: Callable[..., tuple[Proposal, PyTree]] = struct.field(pytree_node=False)
    commit: Callable[..., PyTree] = struct.field(pytree_node=False)
    name: str = struct.field(pytree_node=False, default="drafter")
    num_draft_tokens: int | None = struct.field(pytree_node=False, default=None)
    can_abstain: bool = struct.field(pytree_node=False, default=False)
    feature_layers: tuple[int, ...] = struct.field(pytree_node=False, default=())
    num_params: int = struct.field(pytree_node=False, default=0)
    context_length: int | None = struct.field(pytree_node=False, default=None)
    partition: Partition | None = struct.field(pytree_node=False, default=None)
