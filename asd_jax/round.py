"""One round of the decode loop: propose, score, verify, commit, settle, roll back, follow.

`decode_round` is the algorithm on one screen; the functions behind it are its steps. Target,
drafter and rule come in as arguments: this file knows no model, no drafter and no rule.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from asd_jax import sampling
from asd_jax.cache import append_tokens, rollback
from asd_jax.request import Requests
from asd_jax.scoring import score_drafts
from asd_jax.sharding import is_any
from asd_jax.state import DecodeConfig, DecodeResult, DecodeState, count_round, record_round
from asd_jax.types import (
    AcceptanceRule,
    Block,
    Drafter,
    FinishReason,
    Proposal,
    PyTree,
    Target,
    TargetOutput,
    Verdict,
)


def decode_round(
    target: Target,
    drafter: Drafter,
    rule: AcceptanceRule,
    requests: Requests,
    config: DecodeConfig,
    state: DecodeState,
) -> DecodeState:
    """Runs one round for every row: the algorithm, in seven steps.

    Args:
      target: As in `decode`.
      drafter: As in `decode`.
      rule: As in `decode`.
      requests: As in `decode`.
      config: As in `decode`.
      state: Before the round.

    Returns:
      The state after the round.
    """
    # 1 propose
    position = state.cache.length  # of the anchor, which the cache does not hold yet
    proposal, drafter_state = drafter.propose(
        drafter.params, state.drafter_state, state.anchor, position, requests.sampling
    )
    tokens, length = _clip_proposal(state, requests, proposal, config)

    # 2 score
    inputs = jnp.concatenate([state.anchor[:, None], tokens], axis=1)
    output = _score(target, drafter, inputs, length, state.cache)

    # 3 verify
    verdict = _verify(
        rule,
        state,
        requests,
        tokens,
        length,
        proposal.logits,
        output.logits,
        target,
        config,
    )

    # 4 commit
    index = jnp.arange(config.num_draft_tokens + 1, dtype=jnp.int32)
    is_draft = index[None, :] < verdict.num_accepted[:, None]
    padded = jnp.pad(tokens, ((0, 0), (0, 1)))
    emitted = jnp.where(is_draft, padded, verdict.next_token[:, None])
    result, num_committed = commit_tokens(
        state, requests, emitted, verdict.num_accepted + 1, verdict.num_finite, config
    )

    # 5 settle
    is_active = state.is_active
    settled = jax.vmap(
        lambda ledger, verdict, committed, length, position: rule.settle(
            ledger, verdict, committed, draft_length=length, position=position
        )
    )(state.result.ledger, verdict, num_committed, length, state.result.num_emitted)
    result = result.replace(ledger=_where_rows(is_active, settled, state.result.ledger))
    result = count_round(result, is_active, length, verdict, num_committed)
    if result.trace is not None:
        result = record_round(
            result, state.result, is_active, tokens, length, verdict, num_committed
        )

    # 6 roll back: the committed rows of this forward are the realised history, exceptions included
    cache = rollback(output.cache, position + num_committed)
    last = jnp.maximum(num_committed - 1, 0)
    anchor = jnp.take_along_axis(emitted, last[:, None], axis=1)[:, 0]

    # 7 let the drafter follow
    drafter_state = drafter.commit(
        drafter.params, drafter_state, inputs, output.features, output.hidden, num_committed
    )
    return state.replace(
        result=result,
        cache=cache,
        drafter_state=drafter_state,
        anchor=jnp.where(num_committed > 0, anchor, state.anchor),
    )


def _clip_proposal(
    state: DecodeState, requests: Requests, proposal: Proposal, config: DecodeConfig
) -> tuple[jax.Array, jax.Array]:
    """Returns the drafts [B, G] and how many of them can still be of use to each row [B]."""
    num_draft = config.num_draft_tokens
    tokens = proposal.tokens[:, :num_draft]
    room = _room(state, requests, config) - 1  # the target's own token takes one place
    length = jnp.minimum(proposal.length, requests.max_draft_tokens)
    length = jnp.clip(jnp.minimum(length, room), 0, num_draft)
    return tokens, jnp.where(state.is_active, length, 0).astype(jnp.int32)


def _score(
    target: Target, drafter: Drafter, inputs: jax.Array, length: jax.Array, cache: PyTree
) -> TargetOutput:
    """Scores anchors and drafts [B, G+1]; in a round without any draft the anchors alone.

    A forward of several columns costs more than one of a single one (half as much again on CPU), so
    a drafter that can abstain must not pay for drafts that it has not got. The rows behind the
    anchors are zeros then, and no one looks at them.
    """
    num_columns = inputs.shape[1]

    def forward(num_columns: int, cache: PyTree) -> TargetOutput:
        return target.forward(
            target.params, inputs[:, :num_columns], cache, feature_layers=drafter.feature_layers
        )

    if not drafter.can_abstain or num_columns == 1:
        return forward(num_columns, cache)

    def as_carried(output: TargetOutput) -> TargetOutput:
        """Logits as they lie in memory, so that no loop turns them."""
        order = (2, 0, 1) if target.vocab_major else (0, 1, 2)
        return output.replace(logits=output.logits.transpose(order))

    rows = jax.eval_shape(lambda: as_carried(forward(num_columns, cache)).replace(cache=()))
    empty = jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), rows)

    def trip(num_columns: int) -> Callable[[tuple], tuple]:
        def body(carry: tuple) -> tuple:
            new = as_carried(forward(num_columns, carry[1].cache))
            filled = jax.tree.map(_pad_to, new.replace(cache=()), empty)
            return jnp.bool_(False), filled.replace(cache=new.cache)

        return body

    has_drafts = is_any(length > 0, target.data_axis)
    # Loops of at most one trip and no `cond`, whose branches XLA gives copies of the cache.
    carry = (has_drafts, empty.replace(cache=cache))
    _, output = jax.lax.while_loop(lambda carry: carry[0], trip(num_columns), carry)
    _, output = jax.lax.while_loop(lambda carry: carry[0], trip(1), (~has_drafts, output))
    order = (1, 2, 0) if target.vocab_major else (0, 1, 2)
    return output.replace(logits=output.logits.transpose(order))


def _pad_to(part: jax.Array, whole: jax.Array) -> jax.Array:
    """Returns a part with zeros behind it on every axis on which the whole is larger."""
    sizes = zip(whole.shape, part.shape, strict=True)
    return jnp.pad(part, [(0, wide - have) for wide, have in sizes])


def _room(state: DecodeState, requests: Requests, config: DecodeConfig) -> jax.Array:
    """Returns how many more tokens each row may emit, int32 [B]."""
    emitted = state.result.num_emitted
    by_length = requests.max_new_tokens - emitted
    by_capacity = config.max_len - requests.prompt_length - emitted
    return jnp.minimum(jnp.minimum(by_length, by_capacity), config.max_new_tokens - emitted)


def _verify(
    rule: AcceptanceRule,
    state: DecodeState,
    requests: Requests,
    tokens: jax.Array,
    length: jax.Array,
    draft_logits: jax.Array | None,
    logits: jax.Array,
    target: Target,
    config: DecodeConfig,
) -> Verdict:
    """Applies the rule to every row; the noise is drawn only if some row samples."""
    protected = jnp.asarray(config.stop_ids if config.protect_stop_ids else (), jnp.int32)
    params = requests.sampling
    position = state.cache.length + 1  # of the token that row 0 of the logits predicts
    vocab_major, model_axis = target.vocab_major, target.model_axis

    # The branches close over the logits as they lie in memory and turn them only where needed.
    # Most rules live on the scores, so the logits stay inside.
    native = jnp.moveaxis(logits, -1, 0) if vocab_major else logits
    drafted = None
    if draft_logits is not None:
        drafted = draft_logits[:, : config.num_draft_tokens].astype(jnp.float32)

    def batch_major() -> jax.Array:
        return jnp.moveaxis(native, 0, -1) if vocab_major else native

    def greedy() -> tuple:
        scores = score_drafts(native, tokens, vocab_major=vocab_major, model_axis=model_axis)
        if not rule.needs_logits:
            return scores, None, None, None
        clean = _whole_rows(batch_major().astype(jnp.float32), model_axis)
        return scores, clean, clean, drafted

    def sampled() -> tuple:
        perturb = functools.partial(sampling.perturb, model_axis=model_axis)
        clean, noisy = jax.vmap(perturb)(batch_major(), params, position)
        scores = score_drafts(noisy, tokens, model_axis=model_axis)
        if not rule.needs_logits:
            return scores, None, None, None
        # The drafter drew from what `transform` leaves; its rows are whole on every device.
        drawn_from = None if drafted is None else jax.vmap(sampling.transform)(drafted, params)
        return scores, _whole_rows(clean, model_axis), _whole_rows(noisy, model_axis), drawn_from

    is_sampled = is_any(params.temperature > 0, target.data_axis)
    scores, clean, noisy, draft_rows = jax.lax.cond(is_sampled, sampled, greedy)
    blocks = Block(
        draft_tokens=tokens,
        draft_length=length,
        value_length=length,
        draft_logits=draft_rows,
        scores=scores,
        logits=clean,
        noisy_logits=noisy,
        key=jax.vmap(sampling.rule_key)(params.key, position),
        temperature=params.temperature,
    )
    return jax.vmap(rule.verify, in_axes=(0, 0, 0, None))(
        blocks, state.result.ledger, requests.controls, protected
    )


def commit_tokens(
    state: DecodeState,
    requests: Requests,
    emitted: jax.Array,
    num_emitted: jax.Array,
    num_finite: jax.Array,
    config: DecodeConfig,
) -> tuple[DecodeResult, jax.Array]:
    """Writes what survives the cuts into the output buffer and decides who is done.

    Args:
      state: Before the commit.
      requests: The batch.
      emitted: Tokens of this round, int32 [B, W].
      num_emitted: How many of them the verdict gives, int32 [B], 1..W.
      num_finite: How many of them rest on finite logits, int32 [B].
      config: Static sizes.

    Returns:
      The result with tokens, counts and finish reasons brought up to date, and the number of
      tokens committed, int32 [B] (0 for rows that had finished).
    """
    result = state.result
    width = emitted.shape[1]
    index = jnp.arange(width, dtype=jnp.int32)[None, :]
    is_stop = _is_member(emitted, config.stop_ids)
    stop_at = jnp.min(jnp.where(is_stop, index, width), axis=1)
    room = _room(state, requests, config)
    finite = jnp.minimum(num_emitted, num_finite)
    count = jnp.minimum(jnp.minimum(finite, stop_at + 1), room)
    count = jnp.where(state.is_active, count, 0).astype(jnp.int32)

    total = result.num_emitted + count
    last = jnp.maximum(count - 1, 0)
    ends_in_stop = (stop_at == last) & (count > 0)
    is_full = total >= jnp.minimum(requests.max_new_tokens, config.max_new_tokens)
    is_at_capacity = requests.prompt_length + total >= config.max_len
    is_nonfinite = finite < num_emitted
    reason = jnp.select(
        [ends_in_stop, is_full, is_at_capacity, is_nonfinite],
        [
            jnp.int32(FinishReason.STOP),
            jnp.int32(FinishReason.LENGTH),
            jnp.int32(FinishReason.CAPACITY),
            jnp.int32(FinishReason.NONFINITE),
        ],
        jnp.int32(FinishReason.RUNNING),
    )

    return (
        result.replace(
            tokens=append_tokens(result.tokens, emitted, result.num_emitted, count),
            num_emitted=total,
            finish_reason=jnp.where(state.is_active, reason, result.finish_reason),
        ),
        count,
    )


def first_token(
    logits: jax.Array, requests: Requests, target: Target
) -> tuple[jax.Array, jax.Array]:
    """Chooses each row's first token from the logits behind its prompt.

    Args:
      logits: [B, V].
      requests: The batch.
      target: Whose logits they are.

    Returns:
      The tokens, int32 [B], and whether their logits are finite, bool [B].
    """
    params, axis = requests.sampling, target.model_axis

    def noisy() -> jax.Array:
        return jax.vmap(lambda z, p, at: sampling.perturb(z[None], p, at, model_axis=axis)[1][0])(
            logits, params, requests.prompt_length
        )

    is_sampled = is_any(params.temperature > 0, target.data_axis)
    chosen = jax.lax.cond(is_sampled, noisy, lambda: logits)
    no_drafts = jnp.zeros((chosen.shape[0], 0), jnp.int32)
    scores = score_drafts(chosen[:, None], no_drafts, model_axis=axis)
    return scores.target_tokens[:, 0], jnp.isfinite(scores.top_logits[:, 0])


def _whole_rows(logits: jax.Array, model_axis: str | None) -> jax.Array:
    """Joins the parts of the vocabulary, [..., V]; only for rules that need whole rows."""
    if model_axis is None:
        return logits
    return jax.lax.all_gather(logits, model_axis, axis=logits.ndim - 1, tiled=True)


def _is_member(tokens: jax.Array, ids: Sequence[int]) -> jax.Array:
    """Returns a mask of the tokens [B, W] that are among `ids`."""
    members = jnp.asarray(ids, jnp.int32)
    return jnp.any(tokens[..., None] == members[None, None, :], axis=-1)


def _where_rows(mask: jax.Array, new: PyTree, old: PyTree) -> PyTree:
    """Selects whole rows of a pytree with leaves [B]."""
    return jax.tree.map(lambda a, b: jnp.where(mask, a, b), new, old)
