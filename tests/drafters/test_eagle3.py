"""EAGLE-3 against the official code's golden files and against a numpy oracle."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from asd_jax import (
    Controls,
    DecodeConfig,
    asd,
    decode,
    load_drafter,
    load_target,
    make_mesh,
    make_requests,
    sampling_params,
)
from asd_jax.drafters.eagle3_model import run_pairs, score
from asd_jax.sampling import gumbel_noise
from asd_jax.sharding import params_specs_tree
from tests import tiny
from tests.drafters.eagle3_files import DIM, NUM_DRAFT, NUM_IDS, TARGET, VARIANTS, VOCAB

GOLDEN = Path(__file__).resolve().parents[1] / "data" / "golden" / "eagle3_llama_original"
RUNS = ("run0", "run1")
TOLERANCE = dict(atol=2e-4, rtol=0)
PADDED = 128  # of the golden texts

# The scenario that drafters are driven through: prompts of these lengths, a proposal, so many of
# three fed rows kept (0: the row has finished), another proposal. The caller drafts less than G.
LENGTHS, KEPT, NUM_FED = (9, 4, 6, 1), (3, 1, 0, 2), 3
TEMPERATURES = (0.0, 0.8, 0.0, 0.7)
NUM_SLOTS = max(LENGTHS) + max(KEPT) + 1 + NUM_FED  # the loop's for a text that is full then


@functools.cache
def golden():
    target = load_target(str(GOLDEN / "target"))
    drafter = load_drafter(str(GOLDEN / "drafter"), target=target)
    return target, drafter, dict(np.load(GOLDEN / "golden.npz"))


@functools.cache
def golden_decode():
    """Returns the trace and the tokens of both golden prompts, decoded as one batch."""
    target, drafter, arrays = golden()
    config = DecodeConfig(num_draft_tokens=5, max_new_tokens=60, max_len=150, record_rounds=40)
    prompts = [arrays[f"{run}_prompt"].tolist() for run in RUNS]
    requests = make_requests(prompts, max_new_tokens=60, controls=Controls.strict())
    result = decode(target.target, drafter, asd(), requests, config)
    return jax.tree.map(np.asarray, (result.trace, result.tokens))


@pytest.mark.parametrize("run", RUNS)
def test_golden_features_are_those_of_the_official_layers(run):
    target, drafter, arrays = golden()
    expected = arrays[f"{run}_context_taps"]
    tokens = np.zeros((1, PADDED), np.int32)
    tokens[0, : len(expected)] = arrays[f"{run}_output_ids"][: len(expected)]

    @jax.jit
    def features(target, drafter, tokens):
        cache = target.init_cache(1, PADDED)
        layers = drafter.feature_layers
        taps = target.forward(target.params, tokens, cache, feature_layers=layers).features
        return taps[0], drafter.propose.program.core(drafter.params).fuse(taps).T

    taps, fused = features(target.target, drafter, jnp.asarray(tokens))
    np.testing.assert_allclose(taps[: len(expected)], expected, **TOLERANCE)
    fused_expected = arrays[f"{run}_context_fused"]
    np.testing.assert_allclose(fused[: len(expected)], fused_expected, **TOLERANCE)


@pytest.mark.parametrize("run", RUNS)
def test_golden_hidden_states_and_logits(run):
    _, drafter, arrays = golden()
    anchors = arrays[f"{run}_anchor_pos"]
    drafts, hidden = arrays[f"{run}_draft_tokens"], arrays[f"{run}_draft_hidden"]
    # A row a round: the true pairs before its anchor, then the official drafts and their states.
    tokens = np.zeros((24, PADDED), np.int32)
    pairs = np.zeros((24, PADDED, hidden.shape[-1]), np.float32)
    for row, anchor in enumerate(anchors):
        tokens[row, :anchor] = arrays[f"{run}_context_tokens"][:anchor]
        pairs[row, :anchor] = arrays[f"{run}_context_fused"][:anchor]
        tokens[row, anchor : anchor + 4] = drafts[row, :4]
        pairs[row, anchor : anchor + 4] = hidden[row, :4]

    @jax.jit
    def run_all(drafter, tokens, pairs):
        program, weights = drafter.propose.program, drafter.params
        cache = drafter.init(weights, 24, PADDED).cache
        feature = pairs.reshape(-1, pairs.shape[-1]).T
        z, _ = run_pairs(program, weights, tokens, feature, cache, cache.length)
        logits = score(program, weights, program.core(weights).norm(z))
        return z.T.reshape(24, PADDED, -1), logits.T.reshape(24, PADDED, -1)

    z, logits = map(np.asarray, run_all(drafter, jnp.asarray(tokens), jnp.asarray(pairs)))
    last = anchors[-1]
    context = arrays[f"{run}_context_hidden"][:last]
    np.testing.assert_allclose(z[len(anchors) - 1, :last], context, **TOLERANCE)
    for row, anchor in enumerate(anchors):
        steps = slice(anchor - 1, anchor + 4)
        np.testing.assert_allclose(z[row, steps], hidden[row], **TOLERANCE)
        expected = arrays[f"{run}_draft_logits"][row]
        np.testing.assert_allclose(logits[row, steps], expected, **TOLERANCE)


@pytest.mark.parametrize("run", RUNS)
def test_golden_rounds_token_for_token(run):
    _, _, arrays = golden()
    trace, tokens = golden_decode()
    row, prompt = RUNS.index(run), arrays[f"{run}_prompt"]
    accepted = arrays[f"{run}_num_accepted"]
    rounds = np.arange(len(accepted))
    np.testing.assert_array_equal(trace.draft_tokens[row, rounds], arrays[f"{run}_draft_tokens"])
    np.testing.assert_array_equal(trace.num_accepted[row, rounds], accepted)
    following = trace.target_tokens[row, rounds, accepted]
    np.testing.assert_array_equal(following, arrays[f"{run}_next_token"])
    starts = len(prompt) + trace.start[row, rounds] - 1
    np.testing.assert_array_equal(starts, arrays[f"{run}_anchor_pos"])
    committed = np.concatenate([c[c >= 0] for c in arrays[f"{run}_committed"]])
    np.testing.assert_array_equal(tokens[row, 1 : len(committed) + 1], committed)
    text = arrays[f"{run}_output_ids"][len(prompt) :]
    np.testing.assert_array_equal(tokens[row, : len(text)], text)


@pytest.fixture(scope="session")
def target_path(tmp_path_factory):
    return tiny.write_checkpoint(tmp_path_factory.mktemp("eagle3") / "target", TARGET)


def load_for(target_path, path, *, mesh=None, **options):
    """Loads a drafter for the random target, whose last vocabulary rows stand for no token."""
    target = load_target(str(target_path), mesh=mesh)
    config = dataclasses.replace(target.config, num_token_ids=NUM_IDS)
    target = dataclasses.replace(target, config=config)
    options = {"num_draft_tokens": NUM_DRAFT, "with_logits": True, **options}
    return load_drafter(path, target=target, **options)


def inputs_of(variant):
    """Returns prompts, anchors and the target's streams of the scenario."""
    rng = np.random.default_rng(3)
    batch, width = len(LENGTHS), variant.num_taps * DIM
    ids = functools.partial(rng.integers, 0, NUM_IDS, dtype=np.int32)
    return dict(
        tokens=ids((batch, max(LENGTHS))),
        taps=rng.normal(size=(batch, max(LENGTHS), width)).astype(np.float32),
        anchor=ids(batch),
        fed=ids((batch, NUM_FED - 1)),
        fed_taps=rng.normal(size=(batch, NUM_FED, width)).astype(np.float32),
        next_anchor=ids(batch),
        lengths=np.asarray(LENGTHS, np.int32),
        kept=np.asarray(KEPT, np.int32),
    )


def scenario(drafter, params, inputs):
    """Prefills, proposes, commits and proposes again."""
    weights, lengths, kept = drafter.params, inputs["lengths"], inputs["kept"]
    hidden = jnp.zeros_like(inputs["taps"][..., :1])  # not read
    batch = lengths.shape[0]
    fresh = drafter.init(weights, batch, NUM_SLOTS)
    state = drafter.prefill(weights, fresh, inputs["tokens"], inputs["taps"], hidden, lengths)
    first, proposed = drafter.propose(weights, state, inputs["anchor"], lengths, params)
    fed = jnp.concatenate([inputs["anchor"][:, None], inputs["fed"]], axis=1)
    kept_state = drafter.commit(weights, proposed, fed, inputs["fed_taps"], hidden, kept)
    anchor = jnp.where(kept > 0, inputs["next_anchor"], inputs["anchor"])
    second, _ = drafter.propose(weights, kept_state, anchor, lengths + kept, params)

    program = drafter.propose.program
    following = jnp.pad(inputs["tokens"][:, 1:], ((0, 0), (0, 1)))
    fused = program.core(weights).fuse(inputs["taps"])
    z, _ = run_pairs(program, weights, following, fused, fresh.cache, fresh.cache.length)
    z = z.T.reshape(*following.shape, -1)
    return dict(
        z=z, first=first, second=second, lengths=(proposed.cache.length, state.cache.length)
    )


@functools.cache
def driven(name, target_path, directory):
    """Returns what the scenario gives, and the oracle."""
    variant = VARIANTS[name]
    tensors = variant.tensors()
    drafter = load_for(target_path, variant.write(directory / name, tensors))
    params = sampling_params(len(LENGTHS), temperature=TEMPERATURES, seed=range(4))
    result = jax.jit(scenario)(drafter, params, inputs_of(variant))
    return jax.tree.map(np.asarray, result), variant.oracle(tensors, target_path), drafter


@pytest.fixture(scope="session")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("drafters")


every_variant = pytest.mark.parametrize("name", VARIANTS)


def committed(inputs, row, kept):
    """Returns the text up to the anchor and the streams of all but the anchor."""
    length = LENGTHS[row]
    text = [*inputs["tokens"][row, :length].tolist(), int(inputs["anchor"][row])]
    taps = inputs["taps"][row, :length]
    if kept:
        text += [*inputs["fed"][row, : kept - 1].tolist(), int(inputs["next_anchor"][row])]
        taps = np.concatenate([taps, inputs["fed_taps"][row, :kept]])
    return text, taps


def assert_oracle_proposes(name, proposal, oracle, kept):
    keys = sampling_params(len(LENGTHS), seed=range(4)).key
    inputs = inputs_of(VARIANTS[name])
    for row, temperature in enumerate(TEMPERATURES):

        def choose(position, logits, row=row, temperature=temperature):
            if not temperature:
                return int(np.argmax(logits))
            noise = gumbel_noise(keys[row], jnp.int32(position), VOCAB)
            return int(np.argmax(logits / temperature + np.asarray(noise)))

        text, taps = committed(inputs, row, kept[row])
        drafts, logits = oracle.chain(text, taps, NUM_DRAFT, choose)
        np.testing.assert_allclose(proposal.logits[row], logits, **TOLERANCE)
        assert proposal.tokens[row].tolist() == drafts
        assert proposal.length[row] == NUM_DRAFT


@every_variant
def test_layer_output_is_the_oracles(name, target_path, directory):
    result, oracle, _ = driven(name, target_path, directory)
    inputs = inputs_of(VARIANTS[name])
    for row, length in enumerate(LENGTHS[:-1]):  # the last prompt has no pair yet
        following = inputs["tokens"][row, 1:length]
        features = oracle.fuse(inputs["taps"][row, : length - 1])
        expected = oracle.layer(following, features)
        np.testing.assert_allclose(result["z"][row, : length - 1], expected, **TOLERANCE)


@every_variant
def test_first_proposal_is_the_oracles(name, target_path, directory):
    """Of prompts of several lengths in one batch, some rows greedy and some sampled."""
    result, oracle, _ = driven(name, target_path, directory)
    assert_oracle_proposes(name, result["first"], oracle, [0] * len(LENGTHS))


@every_variant
def test_proposal_behind_a_commit_knows_only_true_features(name, target_path, directory):
    """The drafts' own keys and values are gone, as are rejected rows; the last slots are enough."""
    result, oracle, _ = driven(name, target_path, directory)
    assert_oracle_proposes(name, result["second"], oracle, KEPT)


@every_variant
def test_finished_row_and_a_proposal_leave_the_history_alone(name, target_path, directory):
    result, _, _ = driven(name, target_path, directory)
    row = KEPT.index(0)
    np.testing.assert_array_equal(result["first"].tokens[row], result["second"].tokens[row])
    np.testing.assert_array_equal(result["first"].logits[row], result["second"].logits[row])
    np.testing.assert_array_equal(*result["lengths"])


@every_variant
def test_ids_without_a_token_are_never_drafted(name, target_path, directory):
    result, _, _ = driven(name, target_path, directory)
    for proposal in (result["first"], result["second"]):
        assert np.isneginf(proposal.logits[..., NUM_IDS:]).all()
        assert np.isfinite(proposal.logits).any(-1).all()
        assert (proposal.tokens < NUM_IDS).all()


@pytest.mark.parametrize("name", ["specforge", "own_tables", "shared_tables"])
def test_mesh_proposes_what_one_device_does(name, target_path, directory):
    expected, _, _ = driven(name, target_path, directory)
    mesh = make_mesh(data=2, model=4)
    drafter = load_for(target_path, str(directory / name), mesh=mesh)
    specs = params_specs_tree(drafter, drafter.partition)
    rows = PartitionSpec("data")
    run = jax.shard_map(
        scenario, mesh=mesh, in_specs=(specs, rows, rows), out_specs=rows, check_vma=False
    )
    params = sampling_params(len(LENGTHS), temperature=TEMPERATURES, seed=range(4))
    got = jax.tree.map(np.asarray, jax.jit(run)(drafter, params, inputs_of(VARIANTS[name])))
    np.testing.assert_allclose(got["z"], expected["z"], **TOLERANCE)
    for proposal, whole in ((got["first"], expected["first"]), (got["second"], expected["second"])):
        np.testing.assert_array_equal(proposal.tokens, whole.tokens)
        np.testing.assert_allclose(proposal.logits[..., :VOCAB], whole.logits, **TOLERANCE)
        assert np.isneginf(proposal.logits[..., VOCAB:]).all()
    is_divided = drafter.params.head.sharding.spec == PartitionSpec("model", None)
    assert is_divided != VARIANTS[name].is_reduced


@pytest.mark.slow
def test_decode_on_a_mesh_gives_the_rounds_of_one_device(tmp_path):
    target_path = tiny.write_checkpoint(tmp_path / "target")  # of two layers
    variant = VARIANTS["speculators"]
    config = {**variant.config, "eagle_aux_hidden_state_layer_ids": [0, 1, 2]}
    path = variant.write(tmp_path / "drafter", variant.tensors(), config)
    config = DecodeConfig(num_draft_tokens=3, max_new_tokens=10, max_len=24, record_rounds=10)
    prompts = [[5, 6, 7], [9], [1, 2, 3, 4, 5], [50, 3]]
    traces = []
    for mesh in (None, make_mesh(data=2, model=4)):
        target = load_target(str(target_path), mesh=mesh)
        drafter = load_drafter(path, target=target, num_draft_tokens=3)
        requests = make_requests(prompts, max_new_tokens=10, controls=Controls())
        result = decode(target.target, drafter, asd(), requests, config)
        traces.append((np.asarray(result.trace.draft_tokens), np.asarray(result.tokens)))
    np.testing.assert_array_equal(traces[0][0], traces[1][0])
    np.testing.assert_array_equal(traces[0][1], traces[1][1])
