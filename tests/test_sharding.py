"""One program on any mesh: the same tokens, the same ledgers, and nothing large exchanged."""

from __future__ import annotations

import functools
import math
import re
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import PartitionSpec as P

from asd_jax import (
    Controls,
    DecodeConfig,
    asd,
    decode,
    load_target,
    make_requests,
    no_drafter,
    sampling,
    sampling_params,
    sharding,
    strict,
)
from asd_jax.load.layout import Layout
from asd_jax.models.layers import Linear
from asd_jax.models.parameters import flat_params
from asd_jax.scoring import score_drafts
from tests import tiny

MESHES = [(1, 1), (8, 1), (4, 2), (2, 4), (1, 8)]
NUM_DRAFT = 4
CONFIG = DecodeConfig(
    num_draft_tokens=NUM_DRAFT, max_new_tokens=16, max_len=48, stop_ids=(60,), record_rounds=16
)
BUDGETS = [0.0, 8.0, 2.0, np.inf, 0.5, 8.0, 0.0, 4.0]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return tiny.write_checkpoint(tmp_path_factory.mktemp("sharded"))


@functools.cache
def target_on(checkpoint: Path, data: int, model: int):
    mesh = None if (data, model) == (1, 1) else mesh_of(data, model)
    return load_target(str(checkpoint), mesh=mesh).target


def mesh_of(data: int, model: int):
    return sharding.make_mesh(data=data, model=model)


def prompts():
    rng = np.random.default_rng(3)
    return [rng.integers(0, 60, n).tolist() for n in (5, 9, 3, 12, 7, 1, 8, 4)]


def requests(**sampled):
    return make_requests(
        prompts(),
        controls=Controls(budget=np.array(BUDGETS), gate=np.full(8, 1.0), block_cap=np.full(8, 2)),
        max_new_tokens=[16, 16, 9, 16, 16, 12, 16, 16],
        sampling_params=sampling_params(8, **sampled),
    )


@functools.cache
def script(checkpoint: Path):
    plain = DecodeConfig(num_draft_tokens=0, max_new_tokens=16, max_len=48)
    greedy = decode(target_on(checkpoint, 1, 1), no_drafter(), strict(), requests(), plain).tokens
    parts = tiny.random_script(5, np.asarray(greedy).tolist(), prompts(), NUM_DRAFT, 64)
    return tiny.scripted_drafter(*(np.minimum(part, 60) for part in parts))


def drafter_on(checkpoint: Path, data: int, model: int):
    """The script has a table a row, so it is divided like the rows."""
    if (data, model) == (1, 1):
        return script(checkpoint)
    partition = sharding.Partition(mesh_of(data, model), (P("data"), P("data")))
    return script(checkpoint).replace(partition=partition)


@functools.cache
def result_on(checkpoint: Path, data: int, model: int, rule, temperature: float):
    sampled = dict(temperature=temperature, seed=list(range(8)))
    if temperature:
        sampled |= dict(top_k=[0, 5, 20, 0, 3, 61, 7, 0], top_p=[1.0, 0.9, 0.5, 0.8] * 2)
    return sharding.to_host(
        decode(
            target_on(checkpoint, data, model),
            drafter_on(checkpoint, data, model),
            rule,
            requests(**sampled),
            CONFIG,
        )
    )


@pytest.mark.parametrize(("data", "model"), MESHES[1:])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_every_mesh_gives_the_tokens_and_ledgers_of_one_device(
    checkpoint, data, model, temperature
):
    """Budgets differ by row; those of 0 are strict verification."""
    expected = result_on(checkpoint, 1, 1, asd(), temperature)
    got = result_on(checkpoint, data, model, asd(), temperature)
    assert expected.ledger.exceptions.sum() > 0
    for path, leaf in jax.tree_util.tree_leaves_with_path(expected):
        other = functools.reduce(lambda node, key: getattr(node, key.name), path, got)
        if leaf.dtype == np.float32:
            np.testing.assert_allclose(other, leaf, atol=1e-4, rtol=0, err_msg=str(path))
        else:
            np.testing.assert_array_equal(other, leaf, err_msg=str(path))


@pytest.mark.parametrize(("data", "model"), [(8, 1), (2, 4)])
def test_rounds_without_any_draft_are_those_of_one_device(checkpoint, data, model):
    def of(data: int, model: int):
        drafter = drafter_on(checkpoint, data, model)
        tokens, lengths = drafter.params
        # Short prompts are drafted for a while; from then on no row has a draft.
        drafter = drafter.replace(params=(tokens, lengths.at[:, 14:].set(0)), can_abstain=True)
        return sharding.to_host(
            decode(target_on(checkpoint, data, model), drafter, asd(), requests(), CONFIG)
        )

    expected, got = of(1, 1), of(data, model)
    lengths = expected.trace.draft_length[expected.trace.start >= 0]
    assert (lengths > 0).any() and (lengths == 0).any()
    np.testing.assert_array_equal(got.tokens, expected.tokens)
    np.testing.assert_array_equal(got.rounds, expected.rounds)
    np.testing.assert_allclose(got.ledger.spent, expected.ledger.spent, atol=1e-4, rtol=0)


@pytest.mark.slow  # rows of budget 0 are strict in the test above
@pytest.mark.parametrize(("data", "model"), [(4, 2), (1, 8)])
def test_strict_rule_on_every_mesh(checkpoint, data, model):
    expected = result_on(checkpoint, 1, 1, strict(), 0.0)
    got = result_on(checkpoint, data, model, strict(), 0.0)
    np.testing.assert_array_equal(got.tokens, expected.tokens)
    np.testing.assert_array_equal(got.ledger.accepted, expected.ledger.accepted)
    assert got.ledger.accepted.sum() > 0


_COLLECTIVE = re.compile(
    r"= (.*?) (all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)(?:-start)?\("
)


def collectives(text: str) -> list[tuple[str, int]]:
    """Returns kind and number of elements of every collective in an HLO module."""
    found = []
    for shapes, kind in _COLLECTIVE.findall(text):
        sizes = re.findall(r"\w+\[([\d,]*)\]", shapes)
        found += [(kind, math.prod(int(n) for n in size.split(",") if n)) for size in sizes]
    return found


@functools.cache
def round_hlo(checkpoint: Path, data: int, model: int) -> str:
    loop = sys.modules["asd_jax.decode"]  # the package's attribute of that name is the function
    target, drafter = target_on(checkpoint, data, model), drafter_on(checkpoint, data, model)
    batch = sharding.shard_state(requests(), target.partition.mesh)
    state = loop.prefill(target, drafter, batch, CONFIG)
    lowered = loop._run_rounds.lower(target, drafter, asd(), batch, CONFIG, state, np.int32(1))
    return lowered.compile().as_text()


@pytest.mark.parametrize(("data", "model"), MESHES[1:])
def test_the_compiled_round_exchanges_nothing_of_the_size_of_logits_or_cache(
    checkpoint, data, model
):
    found = collectives(round_hlo(checkpoint, data, model))
    assert found  # at least the bit that ends the loop
    assert {kind for kind, _ in found} == {"all-reduce"}
    rows, width = 8 // data, NUM_DRAFT + 1
    activations = tiny.HF_CONFIG["hidden_size"] * rows * width
    assert max(size for _, size in found) == (activations if model > 1 else 1)
    # Logits and caches are larger than anything exchanged, so none of them can hide in there.
    assert activations < rows * width * tiny.HF_CONFIG["vocab_size"]


def on_model_axis(function, out_specs):
    """Runs `function` on 8 devices that each hold a part of the last axis of the first argument."""
    mesh = mesh_of(1, 8)
    return jax.jit(
        jax.shard_map(
            function, mesh=mesh, in_specs=(P(None, "model"), P()), out_specs=out_specs,
            check_vma=False,
        )
    )  # fmt: skip


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("vocab_major", [False, True])
def test_scores_of_a_divided_vocabulary(dtype, vocab_major):
    """Ties, infinities, NaN and ids out of range; each device has 32 of 256 ids."""
    rng = np.random.default_rng(0)
    logits = rng.integers(-3, 4, (40, 256)).astype(np.float32)  # every row has many ties
    logits[1], logits[2, 200:] = -np.inf, np.inf
    logits[3, 100] = np.nan
    logits[4, [17, 250]] = np.nan, 9
    drafts = rng.integers(0, 256, 39).astype(np.int32)
    drafts[[3, 4, 5, 6, 7]] = 100, 250, -1, 256, np.iinfo(np.int32).min

    def score(part, drafts):
        if vocab_major:
            return score_drafts(part.T, drafts, vocab_major=True, model_axis="model")
        return score_drafts(part, drafts, model_axis="model")

    got = on_model_axis(score, P())(jnp.asarray(logits, dtype), drafts)
    expected = score_drafts(jnp.asarray(logits, dtype), jnp.asarray(drafts))
    np.testing.assert_array_equal(got.target_tokens, expected.target_tokens)
    np.testing.assert_array_equal(got.top_logits, expected.top_logits)
    # A NaN becomes -inf on the way: beside a top of +inf the regret is infinite either way.
    np.testing.assert_array_equal(
        got.draft_logits, np.where(np.isnan(expected.draft_logits), -np.inf, expected.draft_logits)
    )


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"),
    [(0.0, 3, 0.5), (0.7, 0, 1.0), (1.3, 9, 1.0), (0.7, 0, 0.6), (2.0, 40, 0.9), (0.5, 256, 0.01)],
)
def test_sampling_from_a_divided_vocabulary(temperature, top_k, top_p):
    logits = np.random.default_rng(1).normal(size=(6, 256)).astype(np.float32) * 3
    params = jax.tree.map(
        lambda leaf: leaf[0],
        sampling_params(1, temperature=temperature, top_k=top_k, top_p=top_p, seed=5),
    )

    def perturb(part, params):
        return sampling.perturb(part, params, jnp.int32(7), model_axis="model")

    got = on_model_axis(perturb, P(None, "model"))(logits, params)
    expected = sampling.perturb(jnp.asarray(logits), params, jnp.int32(7))
    for part, whole in zip(got, expected, strict=True):
        np.testing.assert_array_equal(part, whole)


def test_noise_of_an_id_does_not_depend_on_the_padding():
    key = jax.random.key(3)
    few = sampling.gumbel_noise(key, jnp.int32(4), 61)
    many = sampling.gumbel_noise(key, jnp.int32(4), 64)
    np.testing.assert_array_equal(few, many[:61])


def test_each_device_holds_its_share(checkpoint):
    target = target_on(checkpoint, 1, 8)
    params = flat_params(target.params)
    head, keys = params["lm_head"], params["layers/0/self_attn/k_proj/weight"]
    assert head.shape == (64, 32)  # 61 rows padded to 8 x 8
    assert {shard.data.shape for shard in head.addressable_shards} == {(8, 32)}
    np.testing.assert_array_equal(head[61:], 0)
    # 2 heads of 8 features, each on 4 of the 8 devices.
    assert keys.shape == (64, 32)
    whole = flat_params(target_on(checkpoint, 1, 1).params)["layers/0/self_attn/k_proj/weight"]
    for device, shard in enumerate(keys.addressable_shards):
        head_index = device // 4
        np.testing.assert_array_equal(shard.data, whole[head_index * 8 : head_index * 8 + 8])
    down = params["layers/1/mlp/down_proj/weight"]
    assert {shard.data.shape for shard in down.addressable_shards} == {(32, 6)}


def test_sizes_that_a_mesh_cannot_divide_are_named(checkpoint, tmp_path):
    odd = tiny.write_checkpoint(tmp_path / "odd", {**tiny.HF_CONFIG, "num_attention_heads": 6})
    with pytest.raises(ValueError, match="model axis: got 8, allowed is a divisor of num_heads 6"):
        load_target(str(odd), mesh=mesh_of(1, 8))
    three = {**tiny.HF_CONFIG, "num_attention_heads": 24, "num_key_value_heads": 3}
    three = tiny.write_checkpoint(tmp_path / "three", three)
    with pytest.raises(ValueError, match="divisor or a multiple of num_kv_heads 3"):
        load_target(str(three), mesh=mesh_of(1, 8))
    batch = make_requests(prompts()[:3], max_new_tokens=4)
    with pytest.raises(ValueError, match="batch: got 3, allowed is a multiple of 8"):
        decode(target_on(checkpoint, 8, 1), script(checkpoint), asd(), batch, CONFIG)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (dict(data=0), "mesh data: got 0"),
        (dict(model=-1), "mesh model: got -1"),
        (dict(data=2.0), "mesh data: got 2.0"),
        (dict(data=3, model=2), "got 3 x 2 for 8 devices, allowed is a product of 8"),
        (dict(data=-1, model=3), "got -1 x 3 for 8 devices, allowed is a model that divides 8"),
        (dict(data=-1, model=16), "got -1 x 16 for 8 devices"),
    ],
)
def test_meshes_that_cannot_be(sizes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        sharding.make_mesh(**sizes)


def test_mesh_takes_the_devices_that_the_model_axis_leaves():
    assert dict(sharding.make_mesh(data=-1, model=2).shape) == {"data": 4, "model": 2}


def test_every_parameter_needs_logical_axes():
    def layout(axes):
        linear = lambda share: Linear(2, 3, bias=True, dtype=jnp.float32, rngs=nnx.Rngs(0))  # noqa: E731
        return Layout.of(linear, lambda size, axis: None, axes, jnp.float32, mesh_of(4, 2))

    found = layout([("weight", ("heads", None)), ("b.*", (None,))])
    assert dict(zip(found.shapes, found.partition.param_specs, strict=True)) == {
        "bias": P(None),
        "weight": P("model", None),
    }
    with pytest.raises(ValueError, match="parameter bias: has no logical axes"):
        layout([("weight", ("heads", None))])
    with pytest.raises(ValueError, match="logical axis: got"):
        sharding.spec("batch", "width")


def test_shard_params_places_host_arrays():
    partition = sharding.Partition(mesh_of(2, 4), (P("model"), P()))
    first, second = sharding.shard_params((np.arange(8.0), np.ones((3, 2))), partition)
    assert {shard.data.shape for shard in first.addressable_shards} == {(2,)}
    assert {shard.data.shape for shard in second.addressable_shards} == {(3, 2)}
    np.testing.assert_array_equal(first, np.arange(8.0))


def test_a_donated_state_and_meshes_that_differ_are_refused(checkpoint):
    loop = sys.modules["asd_jax.decode"]
    target = target_on(checkpoint, 1, 1)
    state = loop.prefill(target, script(checkpoint), requests(), CONFIG)
    loop.run_rounds(target, script(checkpoint), asd(), requests(), CONFIG, state, 1)
    with pytest.raises(ValueError, match="state: it was donated"):
        loop.run_rounds(target, script(checkpoint), asd(), requests(), CONFIG, state, 1)
    elsewhere = drafter_on(checkpoint, 2, 4)
    for data, model in ((1, 1), (4, 2)):
        with pytest.raises(ValueError, match="drafter scripted: lies on the mesh .*'model': 4"):
            decode(target_on(checkpoint, data, model), elsewhere, asd(), requests(), CONFIG)


def test_to_host_gives_the_words_of_keys():
    host = sharding.to_host(sampling_params(2, seed=[1, 2]))
    assert host.key.shape == (2, 2) and host.key.dtype == np.uint32
