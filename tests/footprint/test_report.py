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
from asd_jax.footprint.drafter import abstract_drafter
from asd_jax.load import target_layout
from tests import tiny

LAYERS, HIDDEN, VOCAB, HEADS, KV_HEADS, WIDTH, WIDE = 2, 32, 61, 8, 2, 8, 48
BLOCK, RANK = 4, 4  # of the drafter, which has as many layers as the target
DRAFTER = {
    "hidden_size": HIDDEN,
    "intermediate_size": WIDE,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": WIDTH,
    "vocab_size": VOCAB,
    "target_layer_ids": [0],
    "block_size": BLOCK,
    "mask_token_id": 5,
    "markov_rank": RANK,
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


def drafter_numbers(model: int) -> int:
    """Numbers of the tiny DSpark drafter on one of `model` devices, by hand."""
    kv_heads = max(KV_HEADS // model, 1)
    heads, wide, vocab = HEADS // model, WIDE // model, -(-VOCAB // model)
    attention = HIDDEN * WIDTH * (2 * heads + 2 * kv_heads)
    layer = attention + 2 * HIDDEN + 2 * WIDTH + 3 * HIDDEN * wide
    fused = HIDDEN * HIDDEN + 2 * HIDDEN  # of one tapped layer, and the norms around
    confidence = HIDDEN + RANK + 1
    return LAYERS * layer + fused + confidence + 2 * vocab * (HIDDEN + RANK)


@pytest.mark.parametrize(("data", "model"), [(1, 1), (2, 4), (1, 8), (8, 1)])
def test_weights_and_caches_by_arithmetic(data, model):
    found = footprint(data, model, "bfloat16", is_compiled=False)
    assert found.num_slots == SLOTS
    assert found.target_weights == target_numbers(model) * 2
    kv_heads, rows = max(KV_HEADS // model, 1), 8 // data
    assert found.target_cache == LAYERS * 2 * rows * kv_heads * SLOTS * WIDTH * 2 + rows * 4
    assert found.drafter_weights == drafter_numbers(model) * 2
    # As many slots and the block behind them.
    slot = LAYERS * 2 * kv_heads * WIDTH * 2
    assert found.drafter_state == rows * (slot * (SLOTS + BLOCK) + 4)
    assert found.logits == rows * 4 * -(-VOCAB // model) * 2
    assert found.target_parameters == target_numbers(1)
    assert found.drafter_parameters == drafter_numbers(1)
    assert found.feature_layers == (1,)


EAGLE3 = {
    "hidden_size": HIDDEN,
    "intermediate_size": WIDE,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": WIDTH,
    "vocab_size": VOCAB,
    "draft_vocab_size": 20,
}
DEEP = tiny.HF_CONFIG | {"num_hidden_layers": 8}  # EAGLE-3 reads three of them
MEDUSA = {"hidden_size": HIDDEN, "vocab_size": VOCAB, "medusa_num_heads": 4, "medusa_num_layers": 1}


def test_eagle3_counts_its_own_weights_and_not_the_targets_embedding():
    found = measure(DEEP, "eagle3", EAGLE3, WORK, sharding.make_mesh(data=2, model=4))
    heads, kv_heads, wide, rows = HEADS // 4, 1, WIDE // 4, 8 // 2
    attention = WIDTH * HIDDEN * (2 * (heads + 2 * kv_heads) + heads)  # reads pairs: 2 D numbers
    whole = HIDDEN * (3 * HIDDEN + 4 + 20)  # fc, norms, output projection
    assert found.drafter_weights == (attention + 3 * HIDDEN * wide + whole) * 2 + 20 * 4
    cache = 2 * kv_heads * WIDTH * (SLOTS + 3) * 2 + 4  # the drafts behind the last slot
    pending = 3 * 4 + (3 + 1) * HIDDEN * 2 + 4  # tokens, features, their number
    assert found.drafter_state == rows * (cache + pending)
    assert found.feature_layers == (2, 4, 5)
    # A draft is a loop of its own: in each step the embedding's sum and the layer's two.
    step = Collective("all-reduce", "bf16", HIDDEN * rows, 4, times=3 * 3)
    assert step in found.greedy_exchanges


@pytest.mark.parametrize("is_shared", [False, True])
def test_medusa_has_the_heads_that_it_uses_and_divides_their_projections(is_shared):
    config = MEDUSA | ({"version": "2"} if is_shared else {})
    mesh = sharding.make_mesh(data=2, model=4)
    found = measure(tiny.HF_CONFIG, "medusa", config, WORK, mesh, is_compiled=False)
    rows_of_vocabulary = 0 if is_shared else -(-VOCAB // 4)
    head = HIDDEN * HIDDEN + HIDDEN + rows_of_vocabulary * HIDDEN
    assert found.drafter_weights == 3 * head * 2  # G of its four
    assert found.drafter_state == 8 // 2 * HIDDEN * 2


def test_ngram_has_no_weights_and_keeps_the_text():
    mesh = sharding.make_mesh(data=2, model=4)
    found = measure(tiny.HF_CONFIG, "ngram", {}, WORK, mesh, is_compiled=False)
    assert found.drafter_weights == found.drafter_parameters == 0
    assert found.drafter_state == 8 // 2 * (SLOTS + 1) * 4


def test_exchanges_of_a_drafter_that_abstains_are_those_of_a_round_with_drafts():
    mesh = sharding.make_mesh(data=2, model=4)
    found = measure(tiny.HF_CONFIG, "ngram", {}, WORK, mesh)
    # The embedding's sum and two of each layer, for every column.
    sums = [x for x in found.greedy_exchanges if x.elements == HIDDEN * (8 // 2) * (3 + 1)]
    assert sum(x.times for x in sums) == 2 * LAYERS + 1
    assert found.rounds.temporaries > 0


def test_drafters_that_do_not_fit_are_named():
    mesh = sharding.make_mesh(data=2, model=4)
    with pytest.raises(ValueError, match="num_draft_tokens: got 3, allowed is 1..2"):
        measure(tiny.HF_CONFIG, "dspark", DRAFTER | {"block_size": 2}, WORK, mesh)
    with pytest.raises(ValueError, match="vocab_size: got 64 of the drafter, the target has 61"):
        measure(tiny.HF_CONFIG, "dspark", DRAFTER | {"vocab_size": 64}, WORK, mesh)


def test_shapes_take_what_arrays_would():
    """The bytes told for shapes are those of the arrays that the loop really holds."""
    mesh = sharding.make_mesh(data=2, model=4)
    config = weights.read_target(tiny.HF_CONFIG)
    target = weights.abstract_target(target_layout(config, jnp.dtype("float32"), mesh))
    drafter = abstract_drafter(
        "dspark", DRAFTER, target, config, num_draft_tokens=3, dtype=jnp.dtype("float32")
    )
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

    for tree in (target.params, drafter.params, requests, abstract):
        assert weights.bytes_per_device(tree) == held(jax.tree.map(zeros, tree))


@pytest.mark.parametrize(("data", "model", "dtype"), [(2, 4, "bfloat16"), (1, 1, "float32")])
def test_the_compiled_program_has_the_weights_and_the_state_told(data, model, dtype):
    found = footprint(data, model, dtype)
    plain = footprint(data, model, "float32", is_compiled=False)  # temporaries are of float32
    # The program leaves out what no round reads (the prompts) and adds the number of rounds. Some
    # small columns of a row go unread too, or are counted with the tables of addresses.
    rows = 8 // data
    unread = plain.resident + 4 - found.rounds.arguments
    prompts, small = rows * 16 * 4, rows * 300
    assert prompts <= unread <= prompts + small
    state = plain.target_cache + plain.drafter_state
    assert state < found.rounds.aliased <= found.rounds.outputs < state + small
    assert found.prefill.temporaries > 0 and found.rounds.temporaries > found.logits
    assert found.peak >= found.resident + found.prefill.temporaries


def test_exchanges_of_a_round_are_those_that_the_code_writes_out():
    """Two sums a layer, the embedding's, two for the scores, and the bit that ends the loop.

    The drafter's block has as many layers and tokens as the target's forward has. Behind it every
    draft looks up a row of the Markov head and has scores of its own.
    """
    found = footprint(2, 4, "bfloat16")
    rows, drafts = 8 // 2, 3
    columns = rows * (drafts + 1)
    drawn = Collective("all-reduce", "f32", rows, 4, times=drafts)
    both = {
        Collective("all-reduce", "bf16", HIDDEN * columns, 4, times=2 * (2 * LAYERS + 1)),
        Collective("all-reduce", "bf16", RANK * rows, 4, times=drafts),
        Collective("all-reduce", "s32", rows, 4, times=drafts),
        Collective("all-reduce", "f32", rows * (4 + 3), 4, times=1),  # tops and drafts
        Collective("all-reduce", "s32", columns, 4, times=1),  # the token of the top
        Collective("all-reduce", "s32", 1, 2, times=1),  # whether any row is active
    }
    assert set(found.greedy_exchanges) == both | {drawn}
    # Sampling selects twice bit by bit, 32 sums each, and one softmax: a maximum and a sum.
    extra = 2 * 32 + 2
    sampled = {
        drawn._replace(times=drafts * (1 + extra)),
        Collective("all-reduce", "f32", columns, 4, times=extra),
    }
    assert set(found.sampled_exchanges) == both | sampled


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
    assert record["greedy_exchanges"][0]["bytes"] == HIDDEN * 16 * 2 * 2 * (2 * LAYERS + 1)
    assert record["workload"]["batch_size"] == 8


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
