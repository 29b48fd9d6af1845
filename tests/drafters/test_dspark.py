"""DSpark against DeepSpec's own runs, and its other heads and spellings against a numpy oracle."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from asd_jax import DecodeConfig, decode, load_drafter, load_target, make_requests, sharding, strict
from asd_jax.drafters import dspark
from asd_jax.sampling import gumbel_noise, sampling_params
from tests.drafters import dspark_oracle as oracle
from tests.drafters.dspark_files import small_target, write, write_target
from tests.drafters.dspark_oracle import Sizes

GOLDEN = Path(__file__).resolve().parents[1] / "data" / "golden" / "dspark_qwen3_vanilla"
TOLERANCE = {"atol": 2e-4, "rtol": 0}


@functools.cache
def golden():
    with np.load(GOLDEN / "golden.npz") as file:
        return dict(file)


@functools.cache
def golden_target():
    return load_target(str(GOLDEN / "target"))


@functools.cache
def golden_drafter(**options):
    return load_drafter(str(GOLDEN / "drafter"), target=golden_target(), **options)


def module_of(drafter):
    return nnx.merge(drafter.propose.graphdef, drafter.params.module)


@jax.jit
def inspect(drafter, state, anchor, sampling):
    """What one proposal computes on the way, rows in front."""
    module, params = module_of(drafter), drafter.params
    hidden, _ = module.run_block(params.embed_tokens, anchor, state)
    base = module.score(params.lm_head, hidden.reshape(hidden.shape[0], -1), params.token_ids)
    chain = dspark.run_chain(module, params, hidden, anchor, state.length, sampling)
    return {
        "hidden": jnp.moveaxis(hidden, 0, -1),
        "base": jnp.moveaxis(base.reshape(-1, *hidden.shape[1:]), 0, -1),
        "tokens": chain.tokens.T,
        "logits": dspark.whole_rows(module, params, chain.logits),
        "confidence": None if chain.confidence is None else chain.confidence.T,
    }


@jax.jit
def prefill(drafter, features, lengths):
    state = drafter.init(drafter.params, len(features), 64)
    return drafter.prefill(drafter.params, state, None, features, None, lengths)


def golden_context(drafter):
    """The rounds of run0 as rows of a batch; each cache also holds what came later in the run."""
    position = jnp.asarray(golden()["run0_anchor_pos"])
    taps = jnp.asarray(golden()["run0_context_taps"])
    return prefill(drafter, jnp.broadcast_to(taps, (len(position), *taps.shape)), position)


def golden_anchors():
    g = golden()
    output = np.concatenate([g["run0_prompt"], *(c[c >= 0] for c in committed("run0"))])
    return jnp.asarray(output[g["run0_anchor_pos"]], jnp.int32)


@functools.cache
def golden_rounds():
    """All that the blocks of run0 compute, a round a row."""
    drafter, anchors = golden_drafter(), golden_anchors()
    return inspect(drafter, golden_context(drafter), anchors, sampling_params(len(anchors)))


def committed(run):
    """Tokens of every round, the one from the prefill first."""
    g = golden()
    first = g[f"{run}_output_ids"][len(g[f"{run}_prompt"])]
    return [np.array([first]), *g[f"{run}_committed"]]


def test_context_rows_are_deepspecs():
    g = golden()
    fused = module_of(golden_drafter()).fuse(jnp.asarray(g["run0_context_taps"])[None])
    np.testing.assert_allclose(fused.T, g["run0_context_fused"], **TOLERANCE)


@pytest.mark.parametrize(
    "ours, theirs",
    [
        ("hidden", "block_hidden"),
        ("base", "base_logits"),
        ("logits", "draft_logits"),
        ("confidence", "confidence_logits"),
    ],
)
def test_what_a_block_computes_is_deepspecs(ours, theirs):
    np.testing.assert_allclose(golden_rounds()[ours], golden()[f"run0_{theirs}"], **TOLERANCE)


def test_drafts_are_deepspecs():
    np.testing.assert_array_equal(golden_rounds()["tokens"], golden()["run0_draft_tokens"])


def play(runs, stop_ids=(), **options):
    """Decodes the prompts of golden runs strictly, with room for their last rounds' overshoot."""
    g = golden()
    prompts = [g[f"{run}_prompt"].tolist() for run in runs]
    config = DecodeConfig(
        num_draft_tokens=7, max_new_tokens=52, max_len=72, stop_ids=stop_ids, record_rounds=15
    )
    requests = make_requests(prompts, max_new_tokens=52)
    drafter = golden_drafter(**options)
    result = decode(golden_target().target, drafter, strict(), requests, config)
    return jax.tree.map(np.asarray, result)


def assert_plays(result, row, run):
    """Holds a row against a golden run, round by round and token for token."""
    g, trace = golden(), result.trace
    rounds = len(g[f"{run}_anchor_pos"])
    prompt = g[f"{run}_prompt"]
    is_stopped = g[f"{run}_stopped"] == 1
    assert result.rounds[row] == rounds if is_stopped.any() else result.rounds[row] >= rounds
    at = [x[row, :rounds] for x in (trace.start, trace.draft_length, trace.num_committed)]
    np.testing.assert_array_equal(at[0] + len(prompt) - 1, g[f"{run}_anchor_pos"])
    np.testing.assert_array_equal(at[1], g[f"{run}_draft_count"])
    count = (g[f"{run}_committed"] >= 0).sum(axis=1)
    np.testing.assert_array_equal(at[2], count)
    proposed = np.arange(7) < g[f"{run}_draft_count"][:, None]
    np.testing.assert_array_equal(
        np.where(proposed, trace.draft_tokens[row, :rounds], -1),
        np.where(proposed, g[f"{run}_draft_tokens"], -1),
    )
    # Where a stop token ends the round, DeepSpec counts up to it; the verdict looks on.
    accepted = trace.num_accepted[row, :rounds]
    expected = g[f"{run}_num_accepted"]
    assert (accepted[is_stopped] >= expected[is_stopped]).all()
    np.testing.assert_array_equal(accepted[~is_stopped], expected[~is_stopped])
    targets = np.take_along_axis(trace.target_tokens[row, :rounds], expected[:, None], axis=1)
    np.testing.assert_array_equal(targets[~is_stopped, 0], g[f"{run}_next_token"][~is_stopped])
    tokens = np.concatenate([c[c >= 0] for c in committed(run)])
    np.testing.assert_array_equal(result.tokens[row, : len(tokens)], tokens)
    output = g[f"{run}_output_ids"][len(prompt) :]
    np.testing.assert_array_equal(result.tokens[row, : len(output)], output)
    if is_stopped.any():
        assert result.num_emitted[row] == len(output)


def test_strict_runs_are_deepspecs():
    result = play(["run0", "run1"])
    assert_plays(result, 0, "run0")
    assert_plays(result, 1, "run1")


def test_a_run_that_ends_in_a_stop_token_is_deepspecs():
    assert_plays(play(["stop"], stop_ids=(int(golden()["stop_token_id"]),)), 0, "stop")


def test_a_run_with_a_confidence_threshold_is_deepspecs():
    threshold = float(golden()["conf_threshold"])
    assert_plays(play(["conf"], confidence_threshold=threshold), 0, "conf")


@pytest.fixture(scope="module")
def target_path(tmp_path_factory):
    return write_target(tmp_path_factory.mktemp("target"))


def with_target(tensors, target):
    """The tensors that the oracle reads, those of the target in place of missing ones."""
    params = target.target.params
    shared = {
        "embed_tokens.weight": np.asarray(params["embed_tokens"].get_value()),
        "lm_head.weight": np.asarray(params["lm_head"].get_value()),
    }
    return {**shared, **tensors}


VARIANTS = {
    "vanilla": (Sizes(taps=(2,), block=7, kv_heads=8, head_dim=4), "deepspec"),
    "gated": (Sizes(kind="gated", taps=(0, 1, 2, 3, 4), own_head=False), "specforge"),
    "rnn": (Sizes(kind="rnn", layers=1, heads=4, head_dim=16, theta=500.0), "deepspec"),
    "dflash": (Sizes(kind=None, confidence=False, own_embedding=False), "specforge"),
    "reduced": (Sizes(kind="rnn", reduced=37, own_embedding=False), "speculators"),
    "confident": (Sizes(confidence_with_markov=False, own_head=False), "speculators"),
}
NUM_IDS = 58  # the mask, row 60, is no token
KEPT = [3, 0]


@jax.jit
def after_a_round(drafter, features, lengths, more, kept):
    """Prefills with padded rows, runs a block, commits ragged rows and hands out the state."""
    params = drafter.params
    state = drafter.init(params, features.shape[0], 24)
    state = drafter.prefill(params, state, None, features, None, lengths)
    # What a proposal leaves behind the context; the tokens that it draws change nothing.
    _, state = module_of(drafter).run_block(params.embed_tokens, lengths, state)
    return drafter.commit(params, state, None, more, None, kept)


def random_features(sizes, seed=5):
    rng = np.random.default_rng(seed)
    width = len(sizes.taps) * sizes.dim
    rows = rng.normal(size=(2, 12, width)), rng.normal(size=(2, sizes.block + 1, width))
    return [x.astype(np.float32) for x in rows]


@pytest.mark.parametrize("name", VARIANTS)
def test_drafts_of_every_head_and_spelling_are_the_oracles(name, target_path, tmp_path):
    sizes, form = VARIANTS[name]
    target = small_target(target_path, num_ids=NUM_IDS)
    tensors = write(tmp_path / "drafter", sizes, form, prefix="model." if name == "rnn" else "")
    drafter = load_drafter(str(tmp_path / "drafter"), target=target)
    tensors = with_target(tensors, target)
    assert drafter.name == "dspark"
    assert drafter.feature_layers == tuple(layer + 1 for layer in sizes.taps)
    assert drafter.num_draft_tokens == sizes.block

    features, more = random_features(sizes)
    lengths, anchors = [5, 12], [11, 3]
    state = after_a_round(
        drafter, *map(jnp.asarray, (features, np.int32(lengths), more, np.int32(KEPT)))
    )
    np.testing.assert_array_equal(state.length, np.add(lengths, KEPT))
    sampling = sampling_params(2, temperature=[0.0, 0.7], seed=[0, 9])
    got = inspect(drafter, state, jnp.int32(anchors), sampling)

    for row in range(2):
        context = np.concatenate([features[row, : lengths[row]], more[row, : KEPT[row]]])
        hidden = oracle.block_hidden(tensors, sizes, context, anchors[row])
        np.testing.assert_allclose(got["hidden"][row], hidden, **TOLERANCE)
        choose = functools.partial(choice, sampling, row, len(context))
        tokens, logits, confidence = oracle.draft(tensors, sizes, hidden, anchors[row], choose)
        np.testing.assert_array_equal(got["tokens"][row], tokens)
        logits[:, NUM_IDS:] = -np.inf
        np.testing.assert_allclose(got["logits"][row], logits, **TOLERANCE)
        if sizes.confidence:
            np.testing.assert_allclose(got["confidence"][row], confidence, **TOLERANCE)


def choice(sampling, row, start, logits, slot):
    """What the target would draw from these logits in this place: with its own noise."""
    logits = np.where(np.arange(len(logits)) < NUM_IDS, logits, -np.inf)
    if sampling.temperature[row] == 0:
        return int(np.argmax(logits))
    noise = gumbel_noise(sampling.key[row], jnp.int32(start + 1 + slot), len(logits))
    return int(np.argmax(logits / sampling.temperature[row] + np.asarray(noise)))


def test_the_proposal_ends_before_the_first_draft_of_little_confidence():
    confidence = jnp.array([[3.0, -3.0, 0.1, 3.0], [3.0, 3.0, 0.1, -3.0], [3.0, 3.0, -3.0, 3.0]])
    tokens = jnp.zeros((3, 4), jnp.int32)
    chain = dspark.DraftChain(tokens=tokens, logits=jnp.zeros((3, 9, 4)), confidence=confidence)
    assert dspark.proposal_length(chain, 0.5).tolist() == [3, 0, 2, 1]
    assert dspark.proposal_length(chain, 0.0).tolist() == [3, 3, 3, 3]
    at = float(jax.nn.sigmoid(jnp.float32(0.1)))  # as sure as asked for is sure enough
    assert dspark.proposal_length(chain, at).tolist() == [3, 0, 2, 1]


def test_fewer_drafts_are_the_first_ones_of_the_whole_block():
    g = golden()
    drafter = golden_drafter(num_draft_tokens=3)
    assert drafter.num_draft_tokens == 3
    state = golden_context(drafter)
    rounds = len(g["run0_anchor_pos"])
    proposal, after = jax.jit(drafter.propose)(
        drafter.params, state, golden_anchors(), state.length, sampling_params(rounds)
    )
    np.testing.assert_array_equal(proposal.tokens, g["run0_draft_tokens"][:, :3])
    assert proposal.length.tolist() == [3] * rounds and proposal.logits is None
    np.testing.assert_array_equal(after.length, state.length)
    for old, new in zip(state.keys + state.values, after.keys + after.values, strict=True):
        for row, length in enumerate(np.asarray(state.length)):
            np.testing.assert_array_equal(old[row, :, :length], new[row, :, :length])


def test_weights_that_the_file_lacks_are_the_targets_own_arrays(target_path, tmp_path):
    target = small_target(target_path)
    params = target.target.params

    def place(array):
        return array.unsafe_buffer_pointer()

    write(tmp_path / "lacking", Sizes(own_embedding=False, own_head=False), "specforge")
    lacking = load_drafter(str(tmp_path / "lacking"), target=target)
    for name in ("embed_tokens", "lm_head"):
        assert place(getattr(lacking.params, name)) == place(params[name].get_value())
    tensors = write(tmp_path / "whole", Sizes(), "specforge")
    whole = load_drafter(str(tmp_path / "whole"), target=target)
    assert whole.params.embed_tokens is None and whole.params.lm_head is None
    own = whole.params.module["embed_tokens"].get_value()
    np.testing.assert_array_equal(own, tensors["embed_tokens.weight"])
    assert whole.num_params == sum(value.size for value in tensors.values())
    assert lacking.num_params == whole.num_params - 2 * 61 * 32


@pytest.mark.parametrize("name", ["gated", "reduced"])
def test_a_mesh_proposes_what_one_device_does(name, target_path, tmp_path):
    sizes, form = VARIANTS[name]
    sizes = dataclasses.replace(sizes, head_dim=4, heads=8)
    write(tmp_path / "drafter", sizes, form)
    features, more = random_features(sizes)
    inputs = [jnp.asarray(x) for x in (features, np.int32([5, 12]), more, np.int32(KEPT))]
    sampling = sampling_params(2, temperature=[0.0, 0.7], seed=[0, 9])
    proposals = []
    for mesh in (None, sharding.make_mesh(data=2, model=4)):
        target = small_target(target_path, mesh=mesh, num_ids=NUM_IDS)
        drafter = load_drafter(
            str(tmp_path / "drafter"),
            target=target,
            with_logits=True,
            confidence_threshold=0.4,
        )

        def run(drafter, features, lengths, more, kept, anchor, sampling):
            state = after_a_round(drafter, features, lengths, more, kept)
            return drafter.propose(drafter.params, state, anchor, state.length, sampling)[0]

        if mesh is not None:
            weights = sharding.params_specs_tree(drafter, drafter.partition)
            specs = (weights, *[sharding.BATCH] * 6)
            run = jax.shard_map(
                run, mesh=mesh, in_specs=specs, out_specs=sharding.BATCH, check_vma=False
            )
        proposals.append(jax.jit(run)(drafter, *inputs, jnp.int32([11, 3]), sampling))
    one, divided = proposals
    np.testing.assert_array_equal(one.tokens, divided.tokens)
    np.testing.assert_array_equal(one.length, divided.length)
    np.testing.assert_allclose(divided.logits[..., : sizes.vocab], one.logits, **TOLERANCE)
    assert np.isneginf(divided.logits[..., NUM_IDS:]).all()
    w1 = drafter.params.module["markov"]["w1"].get_value()
    assert w1.addressable_shards[0].data.shape == (16, sizes.rank)  # a quarter of 61 rows, padded
