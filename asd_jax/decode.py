"""The decode loop: draft, score, verify, commit, settle and roll back in one `lax.while_loop`.

Rows are independent requests that advance by different amounts. The host is not needed between
the prefill and the end; `stream` runs the same compiled program a few rounds at a time. Target,
drafter and rule come in as arguments: this file knows no model, no drafter and no rule.

A row is *active* while its `finish_reason` is `RUNNING`. Finished rows still take part in every
forward, but nothing is committed for them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from asd_jax import sampling
from asd_jax.sampling import SamplingParams
from asd_jax.scoring import TokenScores, score_drafts
from asd_jax.types import (
    AcceptanceRule,
    Block,
    Controls,
    Drafter,
    FinishReason,
    Ledger,
    Proposal,
    PyTree,
    Target,
    TargetOutput,
    Verdict,
)


@dataclasses.dataclass(frozen=True)
class DecodeConfig:
    """What the compiled program depends on; everything else is traced.

    Attributes:
      num_draft_tokens: G, 0 for plain autoregressive decoding.
      max_new_tokens: Size of the output buffer, tokens; requests may ask for fewer.
      max_len: Most tokens of a row, prompt and completion together.
      stop_ids: Ids that end a request; the first one is kept.
      protect_stop_ids: Whether exceptions may neither introduce nor skip a stop id.
      record_rounds: Rounds recorded in the trace; 0 for no trace.
      prefill_chunk: Prompt tokens of a row in one forward of the prefill.
    """

    num_draft_tokens: int
    max_new_tokens: int
    max_len: int
    stop_ids: tuple[int, ...] = ()
    protect_stop_ids: bool = True
    record_rounds: int = 0
    prefill_chunk: int = 256

    def __post_init__(self) -> None:
        bounds = {
            "num_draft_tokens": (0, self.max_len - 1),
            "max_new_tokens": (1, None),
            "max_len": (2, None),
            "record_rounds": (0, None),
            "prefill_chunk": (1, None),
        }
        for name, (low, high) in bounds.items():
            value = getattr(self, name)
            is_whole = isinstance(value, int) and not isinstance(value, bool)
            if not is_whole or value < low or (high is not None and value > high):
                allowed = f">= {low}" if high is None else f"{low}..{high}"
                raise ValueError(f"{name}: got {value!r}, allowed is a whole number {allowed}")

    @property
    def num_slots(self) -> int:
        """Cache slots of a row: every forward writes G + 1 slots, the last ones as slack."""
        return self.max_len + self.num_draft_tokens + 1


@struct.dataclass
class Requests:
    """A batch of requests. Leaves have a leading [B]; `make_requests` builds it.

    Attributes:
      prompt_tokens: Right-padded prompts, int32 [B, P].
      prompt_length: int32 [B], 1..P.
      max_new_tokens: int32 [B]; 0 marks a padding row, which emits nothing.
      max_draft_tokens: Cap on this request's proposals, int32 [B].
      controls: Leaves [B].
      ledger: Where this request's ledger stands (not zero in a later turn), leaves [B].
      sampling: Leaves [B].
    """

    prompt_tokens: jax.Array
    prompt_length: jax.Array
    max_new_tokens: jax.Array
    max_draft_tokens: jax.Array
    controls: Controls
    ledger: Ledger
    sampling: SamplingParams


@struct.dataclass
class Trace:
    """What happened in each of a row's first R rounds.

    Attributes:
      start: Emitted position of the round's first token, int32 [B, R]; -1 = no such round.
      draft_tokens: int32 [B, R, G].
      draft_length: int32 [B, R].
      target_tokens: int32 [B, R, G+1].
      regret: Regret of accepted exceptions, float32 [B, R, G].
      exception_mask: bool [B, R, G].
      num_accepted: int32 [B, R].
      num_committed: Tokens emitted by the round, int32 [B, R].
      stop_reason: `StopReason`, int32 [B, R].
    """

    start: jax.Array
    draft_tokens: jax.Array
    draft_length: jax.Array
    target_tokens: jax.Array
    regret: jax.Array
    exception_mask: jax.Array
    num_accepted: jax.Array
    num_committed: jax.Array
    stop_reason: jax.Array


@struct.dataclass
class DecodeResult:
    """What a batch of requests came to.

    Attributes:
      tokens: Emitted ids, int32 [B, max_new_tokens]; entries behind `num_emitted` are 0.
      num_emitted: int32 [B].
      finish_reason: `FinishReason`, int32 [B].
      ledger: Leaves [B].
      rounds: Target forwards of each row in this call, the prefill not counted, int32 [B].
      accept_histogram: Rounds by number of committed draft tokens, int32 [B, G+1].
      position_proposed: Rounds in which position g was proposed, int32 [B, G].
      position_accepted: Rounds in which position g was committed, int32 [B, G].
      trace: A `Trace`, or None.
    """

    tokens: jax.Array
    num_emitted: jax.Array
    finish_reason: jax.Array
    ledger: Ledger
    rounds: jax.Array
    accept_histogram: jax.Array
    position_proposed: jax.Array
    position_accepted: jax.Array
    trace: Trace | None

    @property
    def acceptance_length(self) -> jax.Array:
        """Emitted tokens per round, `next_token` included, float [B].

        The first token comes from the prefill and is not counted. 0 where there was no round.
        """
        emitted = jnp.maximum(jnp.asarray(self.num_emitted) - 1, 0)
        return emitted / jnp.maximum(jnp.asarray(self.rounds), 1)


@struct.dataclass
class DecodeState:
    """The carry of the loop: fixed shapes, updated only by `replace`.

    Attributes:
      result: What has been emitted and counted so far.
      cache: The target's cache: the committed history without the anchor.
      drafter_state: The drafter's own state.
      anchor: Last committed token of each row, int32 [B].
    """

    result: DecodeResult
    cache: PyTree
    drafter_state: PyTree
    anchor: jax.Array

    @property
    def is_active(self) -> jax.Array:
        """True for rows that still run, bool [B]."""
        return self.result.finish_reason == FinishReason.RUNNING


def bucket_length(length: int, *, smallest: int = 32) -> int:
    """Returns the padded prompt length for `length` tokens: powers of two and 1.5 times those.

    Few lengths mean few compilations; the steps bound the padding to a third.
    """
    bucket = smallest
    while bucket < length:
        bucket = bucket * 3 // 2 if bucket & (bucket - 1) == 0 else bucket // 3 * 4
    return bucket


def make_requests(
    prompts: Sequence[Sequence[int]],
    *,
    controls: Controls | None = None,
    sampling_params: SamplingParams | None = None,
    max_new_tokens: int | Sequence[int],
    max_draft_tokens: int | Sequence[int] | None = None,
    ledger: Ledger | None = None,
    padded_length: int | None = None,
    batch: int | None = None,
    vocab_size: int | None = None,
) -> Requests:
    """Builds a batch on the host: checks, pads and broadcasts.

    Args:
      prompts: Token ids of each request, at least one each.
      controls: Scalar or [len(prompts)] leaves. Default: `Controls()`.
      sampling_params: Leaves [len(prompts)]. Default: greedy.
      max_new_tokens: >= 1, for all or for each.
      max_draft_tokens: Cap on proposals, for all or for each. Default: no cap.
      ledger: Leaves [len(prompts)], to go on with earlier turns' ledgers. Default: zeros.
      padded_length: P. Default: `bucket_length` of the longest prompt.
      batch: B; missing rows are padding rows that emit nothing. Default: len(prompts).
      vocab_size: If given, ids are checked against it.

    Returns:
      `Requests` with leading [B].

    Raises:
      ValueError: An empty prompt or batch, a prompt longer than `padded_length`, an id outside the
        vocabulary, or a limit out of range; the message names the request by its index.
    """
    count = len(prompts)
    batch = count if batch is None else batch
    if not 1 <= count <= batch:
        raise ValueError(f"prompts: got {count} for a batch of {batch}, allowed is 1..{batch}")
    longest = max(len(prompt) for prompt in prompts)
    padded = bucket_length(longest) if padded_length is None else padded_length
    tokens = np.zeros((batch, padded), np.int32)
    lengths = np.ones((batch,), np.int32)
    for index, prompt in enumerate(prompts):
        if not 1 <= len(prompt) <= padded:
            raise ValueError(
                f"prompts[{index}]: got {len(prompt)} tokens, allowed is 1..{padded}"
            )
        ids = np.asarray(prompt)
        if not np.issubdtype(ids.dtype, np.integer) or ids.min() < 0:
            raise ValueError(f"prompts[{index}]: allowed are token ids, whole numbers >= 0")
        if vocab_size is not None and ids.max() >= vocab_size:
            raise ValueError(
                f"prompts[{index}]: got id {ids.max()}, allowed is 0..{vocab_size - 1}"
            )
        tokens[index, : len(prompt)] = ids
        lengths[index] = len(prompt)

    def limits(name: str, value: Any, low: int) -> jax.Array:
        column = np.asarray(value)
        if not np.issubdtype(column.dtype, np.integer) or (column < low).any():
            raise ValueError(f"{name}: got {value!r}, allowed is a whole number >= {low}")
        return _pad_rows(jnp.asarray(np.broadcast_to(column, (count,)), jnp.int32), batch)

    controls = Controls() if controls is None else controls
    no_cap = np.iinfo(np.int32).max
    return Requests(
        prompt_tokens=jnp.asarray(tokens),
        prompt_length=jnp.asarray(lengths),
        max_new_tokens=limits("max_new_tokens", max_new_tokens, 1),
        max_draft_tokens=limits(
            "max_draft_tokens", no_cap if max_draft_tokens is None else max_draft_tokens, 0
        ),
        controls=jax.tree.map(
            lambda leaf: _pad_rows(jnp.broadcast_to(leaf, (count,)), batch), controls
        ),
        ledger=jax.tree.map(
            lambda leaf: _pad_rows(leaf, batch), Ledger.zeros((count,)) if ledger is None else ledger
        ),
        sampling=jax.tree.map(
            lambda leaf: _pad_rows(leaf, batch), sampling_params or sampling.sampling_params(count)
        ),
    )


def _pad_rows(leaf: jax.Array, batch: int) -> jax.Array:
    """Returns a [count] leaf as [batch], missing rows zero."""
    missing = batch - leaf.shape[0]
    if missing == 0:
        return leaf
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jnp.concatenate([leaf, jnp.repeat(leaf[:1], missing, axis=0)])
    return jnp.pad(leaf, (0, missing))


def decode(
    target: Target,
    drafter: Drafter,
    rule: AcceptanceRule,
    requests: Requests,
    config: DecodeConfig,
) -> DecodeResult:
    """Decodes a batch to its end on the device.

    Compiled once per (target, drafter, rule, config, shapes). Controls, ledgers, limits, seeds and
    temperatures are traced.

    Args:
      target: The model whose tokens are wanted.
      drafter: Its proposer, with a fixed G = `config.num_draft_tokens` or any.
      rule: The acceptance rule.
      requests: The batch.
      config: Static sizes.

    Returns:
      A `DecodeResult` on the device.

    Raises:
      ValueError: `requests` and `config`, or `drafter` and `config`, do not fit.
    """
    state = prefill(target, drafter, requests, config)
    no_limit = jnp.int32(np.iinfo(np.int32).max)
    return run_rounds(target, drafter, rule, requests, config, state, no_limit).result


def stream(
    target: Target,
    drafter: Drafter,
    rule: AcceptanceRule,
    requests: Requests,
    config: DecodeConfig,
    *,
    rounds_per_chunk: int = 8,
) -> Iterator[DecodeResult]:
    """Decodes like `decode` and yields the result so far after every few rounds.

    The same compiled program as `decode` runs a chunk at a time, so the tokens are the same.

    Args:
      target: As in `decode`.
      drafter: As in `decode`.
      rule: As in `decode`.
      requests: As in `decode`.
      config: As in `decode`.
      rounds_per_chunk: Rounds between two results, >= 1.

    Yields:
      `DecodeResult`s with numpy leaves; the last one is final.

    Raises:
      ValueError: As in `decode`, or `rounds_per_chunk` < 1.
    """
    if rounds_per_chunk < 1:
        raise ValueError(f"rounds_per_chunk: got {rounds_per_chunk}, allowed is >= 1")
    state = prefill(target, drafter, requests, config)
    while True:
        state = run_rounds(
            target, drafter, rule, requests, config, state, jnp.int32(rounds_per_chunk)
        )
        # Copied to the host: the next chunk takes over the state's buffers.
        result = jax.tree.map(np.array, state.result)
        yield result
        if not (result.finish_reason == FinishReason.RUNNING).any():
            return


def prefill(
    target: Target, drafter: Drafter, requests: Requests, config: DecodeConfig
) -> DecodeState:
    """Runs the prompts and emits each row's first token.

    Args:
      target: As in `decode`.
      drafter: As in `decode`.
      requests: As in `decode`; the arrays are not donated.
      config: As in `decode`.

    Returns:
      The state from which `run_rounds` goes on.

    Raises:
      ValueError: As in `decode`.
    """
    _check_fit(target, drafter, requests, config)
    return _prefill(target, drafter, requests, config)


def run_rounds(
    target: Target,
    drafter: Drafter,
    rule: AcceptanceRule,
    requests: Requests,
    config: DecodeConfig,
    state: DecodeState,
    num_rounds: jax.Array,
) -> DecodeState:
    """Runs rounds until every row has finished or `num_rounds` are done.

    Args:
      target: As in `decode`.
      drafter: As in `decode`.
      rule: As in `decode`.
      requests: As in `decode`.
      config: As in `decode`.
      state: From `prefill` or an earlier call. Donated: it must not be used again.
      num_rounds: int32 [], traced.

    Returns:
      The state after the rounds.
    """
    return _run_rounds(target, drafter, rule, requests, config, state, num_rounds)


def _check_fit(
    target: Target, drafter: Drafter, requests: Requests, config: DecodeConfig
) -> None:
    """Raises a ValueError where sizes cannot work together."""
    if not isinstance(requests.prompt_length, jax.core.Tracer):
        longest = int(np.max(requests.prompt_length))
        if longest >= config.max_len:
            raise ValueError(
                f"prompt: got {longest} tokens, allowed is < max_len = {config.max_len}"
            )
        most = int(np.max(requests.max_new_tokens))
        if most > config.max_new_tokens:
            raise ValueError(
                f"max_new_tokens: got {most} for a request, allowed is <= {config.max_new_tokens}"
            )
    fixed = drafter.num_draft_tokens
    if fixed is not None and config.num_draft_tokens > fixed:
        raise ValueError(
            f"num_draft_tokens: got {config.num_draft_tokens}, allowed is <= {fixed} with drafter "
            f"{drafter.name}"
        )
    if config.max_len > target.context_length:
        raise ValueError(
            f"max_len: got {config.max_len}, allowed is <= the target's context of "
            f"{target.context_length} tokens"
        )


def _prefill_impl(
    target: Target, drafter: Drafter, requests: Requests, config: DecodeConfig
) -> DecodeState:
    batch, padded = requests.prompt_tokens.shape
    # Whole chunks only: the rest of the last one writes into slack, which later rounds overwrite.
    chunk = min(config.prefill_chunk, padded)
    num_chunks = -(-padded // chunk)
    num_slots = max(config.num_slots, num_chunks * chunk)
    tokens = jnp.pad(requests.prompt_tokens, ((0, 0), (0, num_chunks * chunk - padded)))
    last = requests.prompt_length - 1
    cache = target.init_cache(batch, num_slots)
    shape = jax.eval_shape(target.forward, target.params, tokens[:, :chunk], cache)

    def buffer(leaf: jax.ShapeDtypeStruct) -> jax.Array:
        return jnp.zeros((batch, num_chunks * chunk, leaf.shape[-1]), leaf.dtype)

    def run_chunk(index: jax.Array, carry: tuple) -> tuple:
        cache, logits, hidden, features = carry
        start = index * chunk
        output: TargetOutput = target.forward(
            target.params,
            jax.lax.dynamic_slice_in_dim(tokens, start, chunk, axis=1),
            cache.replace(length=jnp.full((batch,), start, jnp.int32)),
            logit_rows=jnp.clip(last - start, 0, chunk - 1),
        )
        holds_last = (last >= start) & (last < start + chunk)
        logits = jnp.where(holds_last[:, None], output.logits[:, 0].astype(jnp.float32), logits)
        hidden = jax.lax.dynamic_update_slice_in_dim(hidden, output.hidden, start, axis=1)
        features = jax.lax.dynamic_update_slice_in_dim(features, output.features, start, axis=1)
        return output.cache, logits, hidden, features

    logits = jnp.full((batch, target.vocab_size), -jnp.inf, jnp.float32)
    carry = (cache, logits, buffer(shape.hidden), buffer(shape.features))
    if num_chunks == 1:
        cache, logits, hidden, features = run_chunk(jnp.int32(0), carry)
    else:
        cache, logits, hidden, features = jax.lax.fori_loop(0, num_chunks, run_chunk, carry)
    cache = cache.replace(length=requests.prompt_length)

    drafter_state = drafter.prefill(
        drafter.params,
        drafter.init(drafter.params, batch, num_slots),
        requests.prompt_tokens,
        features[:, :padded],
        hidden[:, :padded],
        requests.prompt_length,
    )
    first_token, is_finite = _first_token(logits, requests)
    # A copy: an argument handed straight on would be donated with the state, and deleted.
    ledger = jax.tree.map(jnp.copy, requests.ledger)
    state = DecodeState(
        result=_empty_result(ledger, config),
        cache=cache,
        drafter_state=drafter_state,
        anchor=first_token,
    )
    one = jnp.ones((batch,), jnp.int32)
    emitted = first_token[:, None]
    result, _ = _commit(state, requests, emitted, one, is_finite.astype(jnp.int32), config)
    return state.replace(result=result)


def _run_rounds_impl(
    target: Target,
    drafter: Drafter,
    rule: AcceptanceRule,
    requests: Requests,
    config: DecodeConfig,
    state: DecodeState,
    num_rounds: jax.Array,
) -> DecodeState:
    def goes_on(loop: tuple[DecodeState, jax.Array]) -> jax.Array:
        state, done = loop
        return jnp.any(state.is_active) & (done < num_rounds)

    def body(loop: tuple[DecodeState, jax.Array]) -> tuple[DecodeState, jax.Array]:
        state, done = loop
        return decode_round(target, drafter, rule, requests, config, state), done + 1

    return jax.lax.while_loop(goes_on, body, (state, jnp.int32(0)))[0]


_prefill = jax.jit(_prefill_impl, static_argnames=("config",))
_run_rounds = jax.jit(
    _run_rounds_impl, static_argnames=("rule", "config"), donate_argnames=("state",)
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
        drafter.params, state.drafter_state, state.anchor, position, requests.sampling.key
    )
    tokens, length = _clip_proposal(state, requests, proposal, config)

    # 2 score
    inputs = jnp.concatenate([state.anchor[:, None], tokens], axis=1)
    output = target.forward(target.params, inputs, state.cache)

    # 3 verify
    verdict = _verify(
        rule,
        state,
        requests,
        tokens,
        length,
        proposal.logits,
        output.logits,
        target.vocab_major,
        config,
    )

    # 4 commit
    index = jnp.arange(config.num_draft_tokens + 1, dtype=jnp.int32)
    is_draft = index[None, :] < verdict.num_accepted[:, None]
    padded = jnp.pad(tokens, ((0, 0), (0, 1)))
    emitted = jnp.where(is_draft, padded, verdict.next_token[:, None])
    result, num_committed = _commit(
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
    result = _count(result, is_active, length, verdict, num_committed)
    if result.trace is not None:
        result = _record(result, state.result, is_active, tokens, length, verdict, num_committed)

    # 6 roll back: the committed rows of this forward are the realised history, exceptions included
    cache = output.cache.replace(length=position + num_committed)
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


def _first_token(logits: jax.Array, requests: Requests) -> tuple[jax.Array, jax.Array]:
    """Returns each row's first token and whether its logit is finite, from logits [B, V]."""
    params = requests.sampling

    def noisy() -> jax.Array:
        return jax.vmap(lambda z, p, at: sampling.perturb(z[None], p, at)[1][0])(
            logits, params, requests.prompt_length
        )

    chosen = jax.lax.cond(jnp.any(params.temperature > 0), noisy, lambda: logits)
    token = jnp.argmax(chosen, axis=-1).astype(jnp.int32)
    top = jnp.take_along_axis(chosen, token[:, None], axis=1)[:, 0]
    return token, jnp.isfinite(top)


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
    vocab_major: bool,
    config: DecodeConfig,
) -> Verdict:
    """Applies the rule to every row; the noise is drawn only if some row samples."""
    protected = jnp.asarray(config.stop_ids if config.protect_stop_ids else (), jnp.int32)
    params = requests.sampling
    position = state.cache.length + 1  # of the token that row 0 of the logits predicts

    def row(tokens, length, draft_logits, scores, clean, noisy, position, params, ledger, controls):
        block = Block(
            draft_tokens=tokens,
            draft_length=length,
            value_length=length,
            draft_logits=draft_logits,
            scores=scores,
            logits=clean,
            noisy_logits=noisy,
            key=sampling.rule_key(params.key, position),
        )
        return rule.verify(block, ledger, controls, protected)

    def rows(scores: TokenScores, clean: jax.Array, noisy: jax.Array) -> Verdict:
        return jax.vmap(row)(
            tokens,
            length,
            draft_logits,
            scores,
            clean,
            noisy,
            position,
            params,
            state.result.ledger,
            requests.controls,
        )

    # The branches close over the logits as they lie in memory and turn them only where needed.
    native = jnp.moveaxis(logits, -1, 0) if vocab_major else logits

    def batch_major() -> jax.Array:
        return jnp.moveaxis(native, 0, -1) if vocab_major else native

    def greedy() -> Verdict:
        scores = score_drafts(native, tokens, vocab_major=vocab_major)
        return rows(scores, batch_major(), batch_major())

    def sampled() -> Verdict:
        clean, noisy = jax.vmap(sampling.perturb)(batch_major(), params, position)
        return rows(score_drafts(noisy, tokens), clean, noisy)

    return jax.lax.cond(jnp.any(params.temperature > 0), sampled, greedy)


def _commit(
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

    def write(row: jax.Array, new: jax.Array, start: jax.Array, count: jax.Array) -> jax.Array:
        offset = jnp.arange(width, dtype=jnp.int32)
        slot = jnp.where(offset < count, start + offset, row.shape[0])
        return row.at[slot].set(new, mode="drop")

    tokens = jax.vmap(write)(result.tokens, emitted, result.num_emitted, count)
    return (
        result.replace(
            tokens=tokens,
            num_emitted=total,
            finish_reason=jnp.where(state.is_active, reason, result.finish_reason),
        ),
        count,
    )


def _count(
    result: DecodeResult,
    is_active: jax.Array,
    length: jax.Array,
    verdict: Verdict,
    num_committed: jax.Array,
) -> DecodeResult:
    """Adds one round to the statistics of active rows."""
    active = is_active[:, None]
    num_draft = result.position_proposed.shape[1]
    kept = jnp.minimum(num_committed, verdict.num_accepted)[:, None]
    position = jnp.arange(num_draft, dtype=jnp.int32)[None, :]
    counts = jnp.arange(num_draft + 1, dtype=jnp.int32)[None, :]

    def one_where(mask: jax.Array) -> jax.Array:
        return (mask & active).astype(jnp.int32)

    return result.replace(
        rounds=result.rounds + is_active.astype(jnp.int32),
        accept_histogram=result.accept_histogram + one_where(counts == kept),
        position_proposed=result.position_proposed + one_where(position < length[:, None]),
        position_accepted=result.position_accepted + one_where(position < kept),
    )


def _record(
    result: DecodeResult,
    before: DecodeResult,
    is_active: jax.Array,
    tokens: jax.Array,
    length: jax.Array,
    verdict: Verdict,
    num_committed: jax.Array,
) -> DecodeResult:
    """Writes this round into the trace; rounds beyond its end are dropped."""
    assert result.trace is not None
    num_recorded = result.trace.start.shape[1]
    slot = jnp.where(is_active, before.rounds, num_recorded)
    entry = Trace(
        start=before.num_emitted,
        draft_tokens=tokens,
        draft_length=length,
        target_tokens=verdict.target_tokens,
        regret=verdict.regret,
        exception_mask=verdict.exception_mask,
        num_accepted=verdict.num_accepted,
        num_committed=num_committed,
        stop_reason=verdict.stop_reason,
    )
    trace = jax.tree.map(
        lambda leaf, new: jax.vmap(lambda row, at, value: row.at[at].set(value, mode="drop"))(
            leaf, slot, new
        ),
        result.trace,
        entry,
    )
    return result.replace(trace=trace)


def _empty_result(ledger: Ledger, config: DecodeConfig) -> DecodeResult:
    """Returns the result before anything is emitted."""
    batch = ledger.spent.shape[0]
    num_draft, num_recorded = config.num_draft_tokens, config.record_rounds

    def zeros(*shape: int, dtype: Any = jnp.int32) -> jax.Array:
        return jnp.zeros((batch, *shape), dtype)

    trace = Trace(
        start=zeros(num_recorded) - 1,
        draft_tokens=zeros(num_recorded, num_draft),
        draft_length=zeros(num_recorded),
        target_tokens=zeros(num_recorded, num_draft + 1),
        regret=zeros(num_recorded, num_draft, dtype=jnp.float32),
        exception_mask=zeros(num_recorded, num_draft, dtype=bool),
        num_accepted=zeros(num_recorded),
        num_committed=zeros(num_recorded),
        stop_reason=zeros(num_recorded),
    )
    return DecodeResult(
        tokens=zeros(config.max_new_tokens),
        num_emitted=zeros(),
        finish_reason=zeros(),
        ledger=ledger,
        rounds=zeros(),
        accept_histogram=zeros(num_draft + 1),
        position_proposed=zeros(num_draft),
        position_accepted=zeros(num_draft),
        trace=trace if num_recorded else None,
    )


def _is_member(tokens: jax.Array, ids: Sequence[int]) -> jax.Array:
    """Returns a mask of the tokens [B, W] that are among `ids`."""
    members = jnp.asarray(ids, jnp.int32)
    return jnp.any(tokens[..., None] == members[None, None, :], axis=-1)


def _where_rows(mask: jax.Array, new: PyTree, old: PyTree) -> PyTree:
    """Selects whole rows of a pytree with leaves [B]."""
    return jax.tree.map(lambda a, b: jnp.where(mask, a, b), new, old)
