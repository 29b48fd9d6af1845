"""The decode loop: rounds of draft, score, verify and commit in one `lax.while_loop`.

Rows are independent requests that advance by different amounts. The host is not needed between
the prefill and the end; `stream` runs the same compiled program a few rounds at a time. What a
round does is in `asd_jax.round`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from asd_jax.cache import rollback
from asd_jax.request import Requests, bucket_length, make_requests
from asd_jax.round import commit_tokens, decode_round, first_token
from asd_jax.sharding import BATCH, is_any, params_specs_tree, shard_state, state_specs, to_host
from asd_jax.state import DecodeConfig, DecodeResult, DecodeState, Trace, empty_result
from asd_jax.types import (
    AcceptanceRule,
    Drafter,
    FinishReason,
    Proposal,
    PyTree,
    Target,
    TargetOutput,
)

__all__ = [
    "DecodeConfig",
    "DecodeResult",
    "DecodeState",
    "Requests",
    "Trace",
    "bucket_length",
    "decode",
    "decode_round",
    "make_requests",
    "prefill",
    "propose",
    "run_rounds",
    "stream",
]


def decode(
    target: Target,
    drafter: Drafter,
    rule: AcceptanceRule,
    requests: Requests,
    config: DecodeConfig,
) -> DecodeResult:
    """Decodes a batch to its end on the device.

    Compiled once per (target, drafter, rule, config, shapes). Controls, ledgers, limits, seeds and
    temperatures are traced. A target on a mesh is decoded on the whole mesh, with the requests
    divided along its data axis.

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
    no_limit = np.int32(np.iinfo(np.int32).max)
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
    requests = _placed(requests, target)  # once, and not again for every chunk
    while True:
        state = run_rounds(
            target, drafter, rule, requests, config, state, np.int32(rounds_per_chunk)
        )
        # Copied to the host: the next chunk takes over the state's buffers.
        result = jax.tree.map(np.array, to_host(state.result))
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
    return _prefill(target, drafter, _placed(requests, target), config)


def run_rounds(
    target: Target,
    drafter: Drafter,
    rule: AcceptanceRule,
    requests: Requests,
    config: DecodeConfig,
    state: DecodeState,
    num_rounds: jax.typing.ArrayLike,
) -> DecodeState:
    """Runs rounds until every row has finished or `num_rounds` are done.

    Args:
      target: As in `decode`.
      drafter: As in `decode`.
      rule: As in `decode`.
      requests: As in `decode`.
      config: As in `decode`.
      state: From `prefill` or an earlier call. Donated: it must not be used again.
      num_rounds: A whole number, traced.

    Returns:
      The state after the rounds.

    Raises:
      ValueError: The state was handed over before.
    """
    if any(leaf.is_deleted() for leaf in jax.tree.leaves(state) if _is_array(leaf)):
        raise ValueError("state: it was donated to an earlier call; go on from what that returned")
    requests = _placed(requests, target)
    return _run_rounds(target, drafter, rule, requests, config, state, num_rounds)


def propose(target: Target, drafter: Drafter, requests: Requests, state: DecodeState) -> Proposal:
    """Returns what the drafter would propose next, without going on.

    Args:
      target: As in `decode`.
      drafter: As in `decode`.
      requests: As in `decode`.
      state: From `prefill` or `run_rounds`; not donated.
    """
    return _propose(target, drafter, _placed(requests, target), state)


def _placed(requests: Requests, target: Target) -> Requests:
    """Returns requests where the target wants them; what lies there already is not moved."""
    partition = target.partition
    return requests if partition is None else shard_state(requests, partition.mesh)


def _check_fit(target: Target, drafter: Drafter, requests: Requests, config: DecodeConfig) -> None:
    """Raises a ValueError where sizes cannot work together."""
    if not isinstance(requests.prompt_length, jax.core.Tracer):
        longest = _largest(requests.prompt_length)
        if longest >= config.max_len:
            raise ValueError(
                f"prompt: got {longest} tokens, allowed is < max_len = {config.max_len}"
            )
        most = _largest(requests.max_new_tokens)
        if most > config.max_new_tokens:
            raise ValueError(
                f"max_new_tokens: got {most} for a request, allowed is <= {config.max_new_tokens}"
            )
    meshes = [None if part is None else part.mesh for part in (target.partition, drafter.partition)]
    if meshes[1] is not None and meshes[0] != meshes[1]:
        shown = [None if mesh is None else dict(mesh.shape) for mesh in meshes]
        raise ValueError(
            f"drafter {drafter.name}: lies on the mesh {shown[1]}, allowed is that of the target: "
            f"{shown[0]}"
        )
    fixed = drafter.num_draft_tokens
    if fixed is not None and config.num_draft_tokens > fixed:
        raise ValueError(
            f"num_draft_tokens: got {config.num_draft_tokens}, allowed is <= {fixed} with drafter "
            f"{drafter.name}"
        )
    for owner, length in (
        ("target", target.context_length),
        (f"drafter {drafter.name}", drafter.context_length),
    ):
        if length is not None and config.max_len > length:
            raise ValueError(
                f"max_len: got {config.max_len}, allowed is <= the {owner}'s context of "
                f"{length} tokens"
            )


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and not isinstance(leaf, jax.core.Tracer)


def _largest(column: jax.Array) -> int:
    """Returns the largest entry that this process can see."""
    if isinstance(column, jax.Array) and not column.is_fully_addressable:
        return max(int(np.max(shard.data)) for shard in column.addressable_shards)
    return int(np.max(column))


@functools.partial(jax.jit, static_argnames=("config",))
def _prefill(
    target: Target, drafter: Drafter, requests: Requests, config: DecodeConfig
) -> DecodeState:
    prefill_rows = functools.partial(_prefill_rows, config=config)
    if target.partition is None:
        return prefill_rows(target, drafter, requests)
    target_specs, drafter_specs = _weight_specs(target, drafter)
    batch = requests.prompt_length.shape[0]
    # The structure of the state, not its sizes, is what its specs depend on.
    cache, drafter_state = jax.eval_shape(
        lambda: (
            target.init_cache(batch, config.num_slots),
            drafter.init(drafter.params, batch, config.num_slots),
        )
    )
    specs = DecodeState(
        result=BATCH,  # type: ignore[arg-type]
        cache=state_specs(cache),
        drafter_state=state_specs(drafter_state),
        anchor=BATCH,  # type: ignore[arg-type]
    )
    return jax.shard_map(
        prefill_rows,
        mesh=target.partition.mesh,
        in_specs=(target_specs, drafter_specs, BATCH),
        out_specs=specs,
        check_vma=False,
    )(target, drafter, requests)


@functools.partial(jax.jit, static_argnames=("rule", "config"), donate_argnames=("state",))
def _run_rounds(
    target: Target,
    drafter: Drafter,
    rule: AcceptanceRule,
    requests: Requests,
    config: DecodeConfig,
    state: DecodeState,
    num_rounds: jax.typing.ArrayLike,
) -> DecodeState:
    run_rows = functools.partial(_run_rows, rule=rule, config=config)
    if target.partition is None:
        return run_rows(target, drafter, requests, state, num_rounds)
    specs = state_specs(state)
    return jax.shard_map(
        run_rows,
        mesh=target.partition.mesh,
        in_specs=(*_weight_specs(target, drafter), BATCH, specs, PartitionSpec()),
        out_specs=specs,
        check_vma=False,
    )(target, drafter, requests, state, num_rounds)


@jax.jit
def _propose(target: Target, drafter: Drafter, requests: Requests, state: DecodeState) -> Proposal:
    def propose_rows(
        drafter: Drafter, requests: Requests, drafter_state: PyTree, anchor: jax.Array,
        position: jax.Array,
    ) -> Proposal:  # fmt: skip
        return drafter.propose(drafter.params, drafter_state, anchor, position, requests.sampling)[
            0
        ]

    operands = (requests, state.drafter_state, state.anchor, state.cache.length)
    if target.partition is None:
        return propose_rows(drafter, *operands)
    return jax.shard_map(
        propose_rows,
        mesh=target.partition.mesh,
        in_specs=(
            _weight_specs(target, drafter)[1],
            BATCH,
            state_specs(state.drafter_state),
            BATCH,
            BATCH,
        ),
        out_specs=BATCH,
        check_vma=False,
    )(drafter, *operands)


def _weight_specs(target: Target, drafter: Drafter) -> tuple[PyTree, PyTree]:
    return (
        params_specs_tree(target, target.partition),
        params_specs_tree(drafter, drafter.partition),
    )


def _prefill_rows(
    target: Target, drafter: Drafter, requests: Requests, config: DecodeConfig
) -> DecodeState:
    """Runs the prompts of this device's rows."""
    batch, padded = requests.prompt_tokens.shape
    # Whole chunks only: the rest of the last one writes into slack, which later rounds overwrite.
    chunk = min(config.prefill_chunk, padded)
    num_chunks = -(-padded // chunk)
    num_slots = max(config.num_slots, num_chunks * chunk)
    tokens = jnp.pad(requests.prompt_tokens, ((0, 0), (0, num_chunks * chunk - padded)))
    last = requests.prompt_length - 1
    cache = target.init_cache(batch, num_slots)
    forward = functools.partial(target.forward, feature_layers=drafter.feature_layers)
    shape = jax.eval_shape(forward, target.params, tokens[:, :chunk], cache)

    def buffer(leaf: jax.ShapeDtypeStruct) -> jax.Array:
        return jnp.zeros((batch, num_chunks * chunk, leaf.shape[-1]), leaf.dtype)

    def run_chunk(index: jax.Array, carry: tuple) -> tuple:
        cache, logits, hidden, features = carry
        start = index * chunk
        output: TargetOutput = forward(
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

    logits = jnp.full((batch, shape.logits.shape[-1]), -jnp.inf, jnp.float32)
    carry = (cache, logits, buffer(shape.hidden), buffer(shape.features))
    if num_chunks == 1:
        cache, logits, hidden, features = run_chunk(jnp.int32(0), carry)
    else:
        cache, logits, hidden, features = jax.lax.fori_loop(0, num_chunks, run_chunk, carry)
    cache = rollback(cache, requests.prompt_length)

    drafter_state = drafter.prefill(
        drafter.params,
        drafter.init(drafter.params, batch, num_slots),
        requests.prompt_tokens,
        features[:, :padded],
        hidden[:, :padded],
        requests.prompt_length,
    )
    token, is_finite = first_token(logits, requests, target)
    # A copy: an argument handed straight on would be donated with the state, and deleted.
    ledger = jax.tree.map(jnp.copy, requests.ledger)
    state = DecodeState(
        result=empty_result(ledger, config),
        cache=cache,
        drafter_state=drafter_state,
        anchor=token,
    )
    one = jnp.ones((batch,), jnp.int32)
    emitted = token[:, None]
    result, _ = commit_tokens(state, requests, emitted, one, is_finite.astype(jnp.int32), config)
    return state.replace(result=result)


def _run_rows(
    target: Target,
    drafter: Drafter,
    requests: Requests,
    state: DecodeState,
    num_rounds: jax.typing.ArrayLike,
    *,
    rule: AcceptanceRule,
    config: DecodeConfig,
) -> DecodeState:
    """Runs rounds for this device's rows until no row of any device is active."""

    def goes_on(state: DecodeState, done: jax.Array) -> jax.Array:
        return is_any(state.is_active, target.data_axis) & (done < num_rounds)

    def body(loop: tuple[DecodeState, jax.Array, jax.Array]) -> tuple:
        state, done, _ = loop
        state = decode_round(target, drafter, rule, requests, config, state)
        return state, done + 1, goes_on(state, done + 1)

    zero = jnp.int32(0)
    return jax.lax.while_loop(lambda loop: loop[2], body, (state, zero, goes_on(state, zero)))[0]
