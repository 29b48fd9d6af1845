"""The dense decoder: layout-independent facts here, parity with HF transformers at the end."""

from __future__ import annotations

import dataclasses
import re

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from asd_jax.cache import rollback, write_slots
from asd_jax.models import MODELS, checkpoint_keys, llama
from asd_jax.models.rope import RopeConfig, apply_rope, rope_tables
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


def test_rope_rotates_pairs_by_position_times_frequency():
    cos, sin = rope_tables(RopeConfig(theta=100.0), 4, jnp.asarray([0, 3], jnp.int32))
    x = jnp.asarray([[1.0, 2.0, 3.0, 4.0]]).T[None]
    x = jnp.concatenate([x, x], axis=2)
    got = np.asarray(apply_rope(x, cos, sin))[0, :, 1]
    for j, frequency in enumerate([1.0, 0.1]):
        z = complex(x[0, j, 0], x[0, j + 2, 0]) * np.exp(1j * 3 * frequency)
        np.testing.assert_allclose([got[j], got[j + 2]], [z.real, z.imag], rtol=1e-5)
    np.testing.assert_array_equal(apply_rope(x, cos, sin)[0, :, 0], x[0, :, 0])


BASE = dict(
    vocab_size=64,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    intermediate_size=48,
)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (dict(hidden_size=None), "hidden_size: missing"),
        (dict(hidden_size="32"), "hidden_size: got '32'"),
        (dict(num_hidden_layers=0), "num_hidden_layers: got 0"),
        (dict(num_key_value_heads=3), "num_kv_heads: got 3"),
        (dict(head_dim=7), "head_dim: got 7"),
        (dict(rms_norm_eps=-1e-5), "rms_norm_eps: got -1e-05"),
        (dict(hidden_act="gelu"), "hidden_act: got 'gelu'"),
        (dict(attention_bias=1), "attention_bias: got 1"),
        (dict(mlp_bias="yes"), "mlp_bias: got 'yes'"),
        (dict(model_type="mistral", sliding_window=0), "sliding_window: got 0"),
        (dict(tie_word_embeddings=1), "tie_word_embeddings: got 1"),
        (dict(rope_scaling={"type": "spiral"}), "rope_type: got 'spiral'"),
        (dict(rope_scaling={"type": "linear"}), "factor: missing"),
        (dict(rope_theta=0), "rope_theta: got 0"),
    ],
)
def test_impossible_llama_config_is_refused_by_field(change, words):
    with pytest.raises(ValueError, match=words):
        llama.read_config({**BASE, **change})


def test_both_spellings_of_rope_give_one_config():
    scaling = dict(
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=64,
    )
    old = llama.read_config(
        {**BASE, "rope_theta": 5e5, "rope_scaling": {**scaling, "rope_type": "llama3"}}
    )
    new = llama.read_config(
        {**BASE, "rope_parameters": {**scaling, "rope_theta": 5e5, "rope_type": "llama3"}}
    )
    assert old == new and old.rope.kind == "llama3"


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


def _hf_pair(**changes):
    """Returns an HF Llama with random weights and our target holding the same weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from asd_jax.checkpoints.key_map import KeyRule, map_tensors
    from asd_jax.checkpoints.source import TensorSource

    torch.manual_seed(0)
    config = LlamaConfig(**{**BASE, "max_position_embeddings": 256, **changes})
    model = LlamaForCausalLM(config).eval().float()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    ours = llama.read_config(config.to_dict())
    ours = dataclasses.replace(ours, feature_layers=tuple(range(ours.num_layers + 1)))
    abstract = nnx.eval_shape(lambda: Transformer(ours, rngs=nnx.Rngs(0)))
    graphdef, state = nnx.split(abstract)
    flat = dict(nnx.to_flat_state(state))
    arrays = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    if ours.tie_word_embeddings:
        arrays.pop("lm_head.weight", None)
    sources = {
        name: TensorSource(name, array.shape, array.dtype, lambda index, a=array: a[index])
        for name, array in arrays.items()
    }
    mapped = map_tensors(
        sources,
        [KeyRule(*rule) for rule in checkpoint_keys.KEY_RULES],
        {path: leaf.shape for path, leaf in flat.items()},
    )
    placed = [(path, leaf.replace(jnp.asarray(mapped[path].read()))) for path, leaf in flat.items()]
    return model, as_target(nnx.merge(graphdef, nnx.from_flat_state(placed)))


@pytest.mark.parity
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tie_word_embeddings": True},
        {"num_key_value_heads": 4},
        {"num_key_value_heads": 1, "head_dim": 16},
        {"rope_theta": 1e6, "rms_norm_eps": 1e-3},
        {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
        {
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            }
        },
    ],
)
def test_every_layer_and_the_logits_equal_hf_llama(changes):
    import torch

    model, target = _hf_pair(**changes)
    tokens = [token % BASE["vocab_size"] for token in TOKENS]
    with torch.no_grad():
        expected = model(torch.tensor([tokens]), output_hidden_states=True)
    output = target.forward(
        target.params, jnp.asarray([tokens], jnp.int32), target.init_cache(1, 24)
    )
    np.testing.assert_allclose(output.logits, expected.logits.numpy(), atol=2e-4, rtol=2e-4)
    streams = np.split(np.asarray(output.features), len(expected.hidden_states), axis=-1)
    for layer, stream in enumerate(streams[:-1]):  # HF's last entry is behind the final norm
        reference = expected.hidden_states[layer].numpy()
        np.testing.assert_allclose(stream, reference, atol=2e-4, rtol=2e-4)
    reference = expected.hidden_states[-1].numpy()
    np.testing.assert_allclose(output.hidden, reference, atol=2e-4, rtol=2e-4)
