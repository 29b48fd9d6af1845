"""The dense decoder: facts that hold whatever the layout; `test_hf_parity` has the reference."""

from __future__ import annotations

import dataclasses
import re

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from asd_jax.cache import rollback, write_slots
from asd_jax.models import MODELS
from asd_jax.models.transformer import Transformer, as_target
from tests import tiny

TOKENS = np.random.default_rng(0).integers(0, tiny.VOCAB, 20).tolist()


def step(target, cache, tokens):
    output = target.forward(target.params, jnp.asarray([tokens], jnp.int32), cache)
    length = cache.length + len(tokens)
    return np.asarray(output.logits[0]), output.cache.replace(length=length)


def test_cached_steps_of_any_width_equal_one_forward():
    target = tiny.tiny_target()
    expected = tiny.full_logits(target, TOKENS)
    cache, got = target.init_cache(1, 32), []
    for start, stop in [(0, 5), (5, 6), (6, 13), (13, 20)]:
        logits, cache = step(target, cache, TOKENS[start:stop])
        got.append(logits)
    np.testing.assert_allclose(np.concatenate(got), expected, atol=1e-4)


@pytest.mark.parametrize("kept", range(9))
def test_rollback_at_every_position_leaves_no_trace_of_the_rejected(kept):
    target = tiny.tiny_target()
    cache = target.init_cache(1, 32)
    _, cache = step(target, cache, TOKENS[:5])
    wrong = [(token + 1) % tiny.VOCAB for token in TOKENS[5 + kept : 13]]
    _, cache = step(target, cache, TOKENS[5 : 5 + kept] + wrong)
    cache = rollback(cache, jnp.asarray([5 + kept], jnp.int32))
    logits, _ = step(target, cache, TOKENS[5 + kept : 16])
    expected = tiny.full_logits(target, TOKENS)[5 + kept : 16]
    np.testing.assert_allclose(logits, expected, atol=1e-4)


def test_ragged_batch_equals_each_row_alone():
    target = tiny.tiny_target()
    cache = target.init_cache(3, 32)
    prompts = np.asarray([TOKENS[:8], TOKENS[2:10], TOKENS[5:13]])
    lengths = jnp.asarray([8, 3, 5], jnp.int32)
    output = target.forward(target.params, jnp.asarray(prompts, jnp.int32), cache)
    cache = output.cache.replace(length=lengths)
    more = jnp.asarray([TOKENS[8:12], TOKENS[12:16], TOKENS[1:5]], jnp.int32)
    output = target.forward(target.params, more, cache)
    for row, length in enumerate(lengths.tolist()):
        text = prompts[row, :length].tolist() + more[row].tolist()
        expected = tiny.full_logits(target, text)[length:]
        np.testing.assert_allclose(output.logits[row], expected, atol=1e-4)


def test_logits_of_chosen_rows_equal_those_of_all_rows():
    target = tiny.tiny_target()
    tokens = jnp.asarray([TOKENS[:6], TOKENS[6:12]], jnp.int32)
    everything = target.forward(target.params, tokens, target.init_cache(2, 8))
    rows = jnp.asarray([5, 2], jnp.int32)
    some = target.forward(target.params, tokens, target.init_cache(2, 8), logit_rows=rows)
    assert some.logits.shape == (2, 1, tiny.VOCAB)
    expected = jnp.stack([everything.logits[0, 5], everything.logits[1, 2]])
    np.testing.assert_allclose(some.logits[:, 0], expected, atol=1e-5)


def test_features_are_the_residual_streams_asked_for():
    config = dataclasses.replace(tiny.CONFIG, feature_layers=(0, 1, 2))
    model = Transformer(config, rngs=nnx.Rngs(0))
    target = as_target(model)
    tokens = jnp.asarray([TOKENS[:6]], jnp.int32)
    output = target.forward(target.params, tokens, target.init_cache(1, 8))
    width = config.hidden_size
    assert output.features.shape == (1, 6, 3 * width)
    embedded, _, last = np.split(np.asarray(output.features[0]), 3, axis=-1)
    np.testing.assert_allclose(embedded, model.embed_tokens[...][tokens[0]], rtol=1e-6)
    rms = np.sqrt(np.mean(np.square(last), axis=-1, keepdims=True) + config.norm_eps)
    np.testing.assert_allclose(output.hidden[0], last / rms, atol=1e-4)  # before the final norm


def test_write_slots_moves_each_row_by_its_own_start():
    buffer = jnp.arange(3 * 1 * 6 * 1, dtype=jnp.float32).reshape(3, 1, 6, 1)
    update = -jnp.ones((3, 1, 2, 1))
    for batch in (1, 3):
        got = write_slots(buffer[:batch], update[:batch], jnp.asarray([4, 0, 2])[:batch])
        expected = np.array(buffer[:batch])
        for row, start in enumerate([4, 0, 2][:batch]):
            expected[row, 0, start : start + 2] = -1
        np.testing.assert_array_equal(got, expected)


def test_every_family_names_every_parameter():
    model = nnx.eval_shape(lambda: Transformer(tiny.CONFIG, rngs=nnx.Rngs(0)))
    paths = {"/".join(map(str, path)) for path, _ in nnx.to_flat_state(nnx.state(model))}
    assert "layers/1/self_attn/o_proj/weight" in paths
    names = {
        "model.embed_tokens.weight": "embed_tokens",
        "lm_head.weight": "lm_head",
        "model.norm.weight": "norm/weight",
        "model.layers.1.mlp.gate_proj.weight": "layers/1/mlp/gate_proj/weight",
        "model.layers.0.post_attention_layernorm.weight": (
            "layers/0/post_attention_layernorm/weight"
        ),
    }
    for family in MODELS.values():
        for name, path in names.items():
            hits = [
                match.expand(to)
                for pattern, to in family.key_rules
                if (match := re.fullmatch(pattern, name))
            ]
            assert hits == [path] and path in paths
