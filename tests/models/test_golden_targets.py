"""Targets from released layouts against the official implementations' outputs.

The checkpoints and their outputs lie in `tests/data/golden`, each with a README of how it was made.
"""

from __future__ import annotations

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from asd_jax import Controls, DecodeConfig, asd, decode, load_target, make_requests, no_drafter
from asd_jax.cache import rollback
from tests import tiny

GOLDEN = Path(__file__).resolve().parents[1] / "data" / "golden"
NAMES = ("target_llama31", "target_qwen25", "target_qwen3")
TOLERANCE = 2e-4


@functools.cache
def load(name, with_layers=False):
    arrays = dict(np.load(GOLDEN / name / "golden.npz"))
    layers = range(len(arrays["hidden_states"])) if with_layers else ()
    return load_target(str(GOLDEN / name), feature_layers=tuple(layers)), arrays


@functools.cache
def forward(name, with_layers=False):
    target = load(name, with_layers)[0].target
    return jax.jit(lambda tokens, cache: target.forward(target.params, tokens, cache))


def cached_logits(name, tokens, *, widths, slots=64):
    """Returns the logits of rows fed through the cache in calls of these widths."""
    target = load(name)[0].target
    cache, got, start = target.init_cache(len(tokens), slots), [], 0
    for width in widths:
        output = forward(name)(jnp.asarray(tokens[:, start : start + width]), cache)
        got.append(np.asarray(output.logits))
        cache = output.cache.replace(length=cache.length + width)
        start += width
    return np.concatenate(got, axis=1)


@pytest.mark.parametrize("name", NAMES)
def test_logits_and_every_layers_residual(name):
    loaded, golden = load(name, with_layers=True)
    tokens = jnp.asarray(golden["input_ids"])
    batch, length = tokens.shape
    output = forward(name, True)(tokens, loaded.target.init_cache(batch, length))
    np.testing.assert_allclose(output.logits, golden["logits"], atol=TOLERANCE, rtol=0)
    layers = np.split(np.asarray(output.features), len(golden["hidden_states"]), axis=-1)
    assert len(layers) == loaded.config.num_layers + 1
    for index, (got, expected) in enumerate(zip(layers, golden["hidden_states"], strict=True)):
        np.testing.assert_allclose(
            got, expected, atol=TOLERANCE, rtol=0, err_msg=f"hidden_states[{index}]"
        )


@pytest.mark.parametrize("name", NAMES)
def test_prefill_and_cached_steps(name):
    golden = load(name)[1]
    length = golden["input_ids"].shape[1]
    widths = [length - 13, 1, 1, 8, 3]
    got = cached_logits(name, golden["input_ids"], widths=widths)
    np.testing.assert_allclose(got, golden["logits"], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("name", NAMES)
def test_rollback_at_every_position(name):
    loaded, golden = load(name)
    target, tokens = loaded.target, golden["input_ids"]
    prompt, width = 10, 8
    wrong = (tokens + 1) % golden["logits"].shape[-1]
    output = forward(name)(jnp.asarray(tokens[:, :prompt]), target.init_cache(3, 64))
    start = output.cache.replace(length=jnp.full((3,), prompt, jnp.int32))
    for kept in range(width + 1):
        drafts = np.concatenate(
            [tokens[:, prompt : prompt + kept], wrong[:, prompt + kept : prompt + width]], axis=1
        )
        output = forward(name)(jnp.asarray(drafts), start)
        back = rollback(output.cache, jnp.full((3,), prompt + kept, jnp.int32))
        rest = tokens[:, prompt + kept : prompt + kept + width]
        logits = forward(name)(jnp.asarray(rest), back).logits
        expected = golden["logits"][:, prompt + kept : prompt + kept + width]
        np.testing.assert_allclose(logits, expected, atol=TOLERANCE, rtol=0, err_msg=f"{kept=}")


@pytest.mark.parametrize("name", NAMES)
def test_ragged_rows(name):
    loaded, golden = load(name)
    target, tokens = loaded.target, golden["input_ids"]
    lengths, width = np.array([16, 5, 11]), 8
    output = forward(name)(jnp.asarray(tokens[:, :16]), target.init_cache(3, 64))
    cache = output.cache.replace(length=jnp.asarray(lengths, jnp.int32))
    following = np.stack([row[n : n + width] for row, n in zip(tokens, lengths, strict=True)])
    logits = forward(name)(jnp.asarray(following), cache).logits
    for row, start in enumerate(lengths):
        expected = golden["logits"][row, start : start + width]
        np.testing.assert_allclose(logits[row], expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize(("name", "num_draft"), [*((name, 4) for name in NAMES), (NAMES[-1], 0)])
def test_greedy_continuations_token_for_token(name, num_draft):
    """Rows of other lengths in one batch, plain and with drafts that are right, wrong and short."""
    loaded, golden = load(name)
    prompts, expected = golden["input_ids"].tolist(), golden["greedy_tokens"]
    # Prompts of the golden run are equally long; a first part of the answer makes them ragged.
    given = [0, 5, 2]
    ragged = [p + e[:n].tolist() for p, e, n in zip(prompts, expected, given, strict=True)]
    config = DecodeConfig(num_draft_tokens=num_draft, max_new_tokens=24, max_len=80)
    drafter = no_drafter()
    if num_draft:
        greedy = [e[n:].tolist() for e, n in zip(expected, given, strict=True)]
        drafter = tiny.scripted_drafter(
            *tiny.random_script(1, greedy, ragged, num_draft, config.num_slots)
        )
    requests = make_requests(
        ragged, controls=Controls.strict(), max_new_tokens=[24 - n for n in given]
    )
    result = decode(loaded.target, drafter, asd(), requests, config)
    for row, skipped in enumerate(given):
        got = np.asarray(result.tokens[row, : 24 - skipped])
        np.testing.assert_array_equal(got, expected[row, skipped:])
    if num_draft:
        assert 0 < int(result.ledger.accepted.sum()) < int(result.ledger.proposed.sum())


@pytest.mark.parametrize(
    ("name", "stop_ids"),
    [("target_llama31", (131, 132, 133)), ("target_qwen25", (140,)), ("target_qwen3", (141,))],
)
def test_stop_ids_without_a_tokenizer(name, stop_ids):
    tokenizer = load(name)[0].tokenizer
    assert tokenizer.stop_ids == stop_ids
    with pytest.raises(ValueError, match="no tokenizer: give prompt_token_ids"):
        tokenizer.encode("text")
