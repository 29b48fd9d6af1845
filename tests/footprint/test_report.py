"""Footprints of tiny targets against arithmetic, against arrays, and against the loop's code."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from asd_jax import sharding
from asd_jax.footprint import CHIPS, Chip, Workload, measure, program, weights
from asd_jax.footprint.collectives import Collective
from asd_jax.load import target_layout
from tests import tiny

LAYERS, HIDDEN, VOCAB, HEADS, KV_HEADS, WIDTH, WIDE = 2, 32, 61, 8, 2, 8, 48
DRAFTER = {
    "hidden_size": HIDDEN,
    "intermediate_size": WIDE,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": WIDTH,
    "vocab_size": 64,
    "target_layer_ids": [0, 1],
    "markov_rank": 4,
}
WORK = Workload(
    batch_size=8, prompt_length=16, max_new_tokens=12, num_draft_tokens=3, prefill_chunk=8
)
SLOTS = 16 + 12 + 3 + 1


@functools.cache
def footprint(data: int, model: int, dtype: str, **options):
    mesh = sharding.make_mesh(data=data, model=model, devices=jax.devices()[: data * model])
    return measure(tiny.HF_CONFIG, "dspark", DRAFTER, WORK, mesh, dtype=dtype, **options)


def target_numbers(model: int) -> int:
    """Numbers of the tiny Qwen3 with all its biases on one of `model` devices, by hand."""
    kv_heads = max(KV_HEADS // model, 1)
    heads, wide, vocab = HEADS // model, WIDE // model, -(-VOCAB // model)
    attention = HIDDEN * WIDTH * (2 * heads + 2 * kv_heads)  # q and o, k and v
    biases = WIDTH * (heads + 2 * kv_heads) + HIDDEN  # that of o is whole
    norms = 2 * HIDDEN + 2 * WIDTH
    layer = attention + biases + norms + 3 * HIDDEN * wide
    return LAYERS * layer + HIDDEN + 2 * vocab * HIDDEN


@pytest.mark.parametrize(("data", "model"), [(1, 1), (2, 4), (1, 8), (8, 1)])
def test_weights_and_caches_by_arithmetic(data, model):
    found = footprint(data, model, "bfloat16", is_compiled=False)
    assert found.num_slots == SLOTS
    assert found.target_weights == target_numbers(model) * 2
    kv_heads, rows = max(KV_HEADS // model, 1), 8 // data
    assert found.target_cache == LAYERS * 2 * rows * kv_heads * SLOTS * WIDTH * 2 + rows * 4
    assert found.drafter_cache == 2 * 2 * rows * KV_HEADS * SLOTS * WIDTH * 2
    assert found.logits == rows * 4 * -(-VOCAB // model) * 2
    # Tokens int32 [B, G], two tapped layers [B, G+1, 2 D], the last hidden state [B, D].
    assert found.hand_over == rows * (3 * 4 + 4 * 2 * HIDDEN * 2 + HIDDEN * 2)
    assert found.target_parameters == target_numbers(1)


def test_a_divided_drafter_takes_less_and_a_whole_one_the_same_on_every_mesh():
    one = footprint(1, 1, "bfloat16", is_compiled=False)
    whole = footprint(2, 4, "bfloat16", is_compiled=False)
    divided = footprint(2, 4, "bfloat16", is_compiled=False, is_drafter_divided=True)
    assert whole.drafter_weights == one.drafter_weights == one.drafter_parameters * 2
    assert divided.drafter_cache * 2 == whole.drafter_cache  # 2 heads on 4 devices: one on each
    attention = HIDDEN * WIDTH * (2 * HEADS + 2 * KV_HEADS)
    large = 2 * (attention + 3 * HIDDEN * WIDE) + 64 * (2 * HIDDEN + 2 * 4)
    saved = whole.drafter_weights - divided.drafter_weights
    assert saved == 2 * large * 3 // 4


def test_shapes_take_what_arrays_would():
    """The bytes told for shapes are those of the arrays that the loop really holds."""
    mesh = sharding.make_mesh(data=2, model=4)
    config = weights.read_target(tiny.HF_CONFIG)
    target = weights.abstract_target(target_layout(config, jnp.dtype("float32"), mesh))
    drafter = program.stand_in(3, (1, 2), HIDDEN, jnp.float32)
    requests = program.abstract_requests(WORK, mesh)
    abstract = program.abstract_state(target, drafter, requests, WORK.decode_config)

    def held(tree) -> int:
        """Bytes on the first device; a key is two words."""
        arrays = [
            jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
            for leaf in jax.tree.leaves(tree)
        ]
        return sum(array.addressable_shards[0].data.nbytes for array in arrays)

    def zeros(leaf):
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            keys = jax.random.split(jax.random.key(0), leaf.shape)
            return jax.device_put(keys, leaf.sharding)
        return jax.device_put(np.zeros(leaf.shape, leaf.dtype), leaf.sharding)

    for tree in (target.params, requests, abstract):
        assert weights.bytes_per_device(tree) == held(jax.tree.map(zeros, tree))


@pytest.mark.parametrize(("data", "model", "dtype"), [(2, 4, "bfloat16"), (1, 1, "float32")])
def test_the_compiled_program_has_the_weights_and_the_state_told(data, model, dtype):
    found = footprint(data, model, dtype)
    plain = footprint(data, model, "float32", is_compiled=False)  # temporaries are of float32
    of_drafter = plain.drafter_weights + plain.drafter_cache  # not in the program
    # The program leaves out what no round reads (the prompts) and adds the number of rounds. Some
    # small columns of a row go unread too, or are counted with the tables of addresses.
    rows = 8 // data
    unread = plain.resident - of_drafter + 4 - found.rounds.arguments
    prompts, small = rows * 16 * 4, rows * 300
    assert prompts <= unread <= prompts + small
    state = plain.target_cache + plain.hand_over
    assert state < found.rounds.aliased <= found.rounds.outputs < state + small
    assert found.prefill.temporaries > 0 and found.rounds.temporaries > found.logits
    assert found.peak >= found.resident + found.prefill.temporaries


def test_exchanges_of_a_round_are_those_that_the_code_writes_out():
    """Two sums a layer, the embedding's, two for the scores, and the bit that ends the loop."""
    found = footprint(2, 4, "bfloat16")
    columns = 8 // 2 * 4  # rows of a device times G + 1
    greedy = {
        Collective("all-reduce", "bf16", HIDDEN * columns, 4, times=2 * LAYERS + 1),
        Collective("all-reduce", "f32", 8 // 2 * (4 + 3), 4, times=1),  # tops and drafts
        Collective("all-reduce", "s32", columns, 4, times=1),  # the token of the top
        Collective("all-reduce", "s32", 1, 2, times=1),  # whether any row is active
    }
    assert set(found.greedy_exchanges) == greedy
    # Sampling selects twice bit by bit, 32 sums each, and one softmax: a maximum and a sum.
    extra = Collective("all-reduce", "f32", columns, 4, times=2 * 32 + 2)
    assert set(found.sampled_exchanges) == greedy | {extra}


def test_one_device_exchanges_nothing():
    alone = footprint(1, 1, "float32")
    assert alone.greedy_exchanges == alone.sampled_exchanges == ()


def test_fits_compares_the_peak_with_what_the_headroom_leaves():
    found = footprint(2, 4, "bfloat16")
    just = Chip("just", found.peak * 2, "here")
    assert found.fits(just, 0.5) and not found.fits(just, 0.5 + 1e-6)
    assert found.fits(CHIPS["v5e"])
    without = dataclasses.replace(found, prefill=None, rounds=None)
    assert without.peak == found.resident + found.logits and not without.is_compiled


def test_the_record_is_json_and_has_the_sums():
    record = json.loads(json.dumps(footprint(2, 4, "bfloat16").to_dict()))
    assert record["peak"] == footprint(2, 4, "bfloat16").peak
    assert record["greedy_exchanges"][0]["bytes"] == HIDDEN * 16 * 2 * (2 * LAYERS + 1)
    assert record["workload"]["batch_size"] == 8
    assert any("drafter's own temporaries" in text for text in record["not_included"])


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("qwen3_8b_dspark", 8.19),
        ("qwen3_14b_dspark", 14.77),
        ("llama31_8b_eagle3", 8.03),
        ("llama31_8b_medusa", 8.03),
        ("qwen25_7b_eagle3", 7.62),
    ],
)
def test_shipped_targets_have_their_published_sizes(name, billions):
    """All layers are alike, so two of them tell the rest; laying out all takes many seconds."""
    plan = importlib.import_module(f"experiments.configs.plan_{name}").get_config()
    config = weights.read_target(plan.target.to_dict())

    def parameters(num_layers: int) -> int:
        few = dataclasses.replace(config, num_layers=num_layers)
        return weights.num_parameters(target_layout(few, jnp.dtype("bfloat16"), None))

    layer = parameters(2) - parameters(1)
    assert round((parameters(1) + (config.num_layers - 1) * layer) / 1e9, 2) == billions


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(batch_size=3), "batch_size: got 3, allowed is a multiple of 2"),
        (dict(prompt_length=300), "got 312, allowed is <= the target's context of 256"),
    ],
)
def test_workloads_that_do_not_fit_are_named(change, message):
    mesh = sharding.make_mesh(data=2, model=4)
    with pytest.raises(ValueError, match=message):
        measure(tiny.HF_CONFIG, "ngram", {}, dataclasses.replace(WORK, **change), mesh)


def test_targets_that_are_not_implemented_are_named():
    with pytest.raises(ValueError, match="model_type: got 'gpt2', allowed is one of"):
        weights.read_target({"model_type": "gpt2"})
