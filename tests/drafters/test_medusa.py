"""Medusa heads against the reference's own runs, a forward by hand, and every form of release."""

from __future__ import annotations

import dataclasses
import functools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from jax.sharding import PartitionSpec as P

from asd_jax import (
    Controls,
    DecodeConfig,
    asd,
    decode,
    load_drafter,
    load_target,
    make_mesh,
    make_requests,
    sampling,
    sampling_params,
    sharding,
)
from asd_jax.checkpoints.drafter_files import open_drafter
from asd_jax.checkpoints.source import CheckpointError
from asd_jax.drafters import medusa
from tests import tiny

GOLDEN = Path(__file__).parents[1] / "data" / "golden" / "medusa_llama_5heads"
LOGIT_TOLERANCE = 2e-4
D, V = tiny.HF_CONFIG["hidden_size"], tiny.HF_CONFIG["vocab_size"]


@pytest.fixture(scope="module")
def golden():
    return np.load(GOLDEN / "golden.npz")


@functools.cache
def golden_target():
    return load_target(str(GOLDEN / "target"))


@functools.cache
def golden_drafter(**options):
    return load_drafter(str(GOLDEN / "drafter"), target=golden_target(), **options)


@jax.jit
def foretell(drafter, hidden, lengths, params=None):
    """Returns what is proposed behind the first `lengths` rows of hidden states [B, T, D]."""
    batch = lengths.shape[0]
    nothing = jnp.zeros((*hidden.shape[:2], 0))
    tokens = jnp.zeros(hidden.shape[:2], jnp.int32)
    state = drafter.init(drafter.params, batch, hidden.shape[1])
    state = drafter.prefill(drafter.params, state, tokens, nothing, hidden, lengths)
    params = sampling_params(batch) if params is None else params
    return drafter.propose(drafter.params, state, tokens[:, 0], lengths, params)[0]


@jax.jit
def hidden_states(target, ids):
    """Returns the final-norm hidden states [T, D] of one sequence."""
    cache = target.init_cache(1, ids.shape[0])
    return target.forward(target.params, ids[None], cache).hidden[0]


def behind(drafter, hidden, lengths, params=None):
    """Returns what is proposed behind each of several beginnings of one sequence [T, D]."""
    hidden = jnp.broadcast_to(jnp.asarray(hidden), (len(lengths), *hidden.shape))
    return foretell(drafter, hidden, jnp.asarray(lengths, jnp.int32), params)


def test_heads_everywhere_in_a_text_equal_the_reference(golden):
    hidden = hidden_states(golden_target().target, jnp.asarray(golden["full_ids"]))
    np.testing.assert_allclose(hidden, golden["full_hidden"], atol=LOGIT_TOLERANCE, rtol=0)
    expected = golden["full_head_logits"]  # [heads, T, V]
    got = behind(golden_drafter(with_logits=True), hidden, np.arange(1, len(hidden) + 1))
    assert got.logits.dtype == jnp.float32
    np.testing.assert_allclose(
        got.logits.transpose(1, 0, 2), expected, atol=LOGIT_TOLERANCE, rtol=0
    )
    np.testing.assert_array_equal(got.tokens.T, expected.argmax(-1))
    assert (np.asarray(got.length) == 5).all()


@pytest.mark.parametrize("run", ["run0", "run1"])
def test_heads_of_every_round_equal_the_reference(golden, run):
    ids = np.concatenate([golden[f"{run}_prompt"], committed(golden, run)])
    hidden = hidden_states(golden_target().target, jnp.asarray(ids))
    got = behind(golden_drafter(with_logits=True), hidden, golden[f"{run}_anchor_pos"])
    np.testing.assert_allclose(
        got.logits, golden[f"{run}_head_logits"], atol=LOGIT_TOLERANCE, rtol=0
    )
    np.testing.assert_array_equal(got.tokens, golden[f"{run}_draft_tokens"])


def committed(golden, run):
    """Returns all tokens of a run: the first root, then what each round commits."""
    rounds = golden[f"{run}_committed"]
    return np.concatenate([golden[f"{run}_anchor_token"][:1], rounds[rounds >= 0]])


def test_whole_runs_equal_the_reference(golden):
    runs = ("run0", "run1")
    config = DecodeConfig(
        num_draft_tokens=5, max_new_tokens=64, max_len=128, record_rounds=20, stop_ids=()
    )
    requests = make_requests(
        [golden[f"{run}_prompt"].tolist() for run in runs],
        controls=Controls.strict(),
        # Beyond the reference's last round, which is then not cut short.
        max_new_tokens=[len(committed(golden, run)) + 6 for run in runs],
    )
    result = decode(golden_target().target, golden_drafter(), asd(), requests, config)
    for row, run in enumerate(runs):
        trace = jax.tree.map(lambda leaf, row=row: np.asarray(leaf)[row], result.trace)
        text = committed(golden, run)
        accepted = golden[f"{run}_num_accepted"]
        rounds = range(len(accepted))
        np.testing.assert_array_equal(trace.num_accepted[rounds], accepted)
        np.testing.assert_array_equal(trace.num_committed[rounds], accepted + 1)
        np.testing.assert_array_equal(trace.draft_tokens[rounds], golden[f"{run}_draft_tokens"])
        prompt_length = len(golden[f"{run}_prompt"])
        np.testing.assert_array_equal(
            trace.start[rounds] + prompt_length, golden[f"{run}_anchor_pos"] + 1
        )
        np.testing.assert_array_equal(
            trace.target_tokens[rounds, accepted], golden[f"{run}_next_token"]
        )
        np.testing.assert_array_equal(
            trace.target_tokens[rounds], golden[f"{run}_verify_logits"].argmax(-1)
        )
        np.testing.assert_array_equal(result.tokens[row, : len(text)], text)
        answer = golden[f"{run}_output_ids"][prompt_length:]
        np.testing.assert_array_equal(result.tokens[row, : len(answer)], answer)


@pytest.mark.parametrize("name", ["medusa_lm_head.pt", "medusa_lm_head.safetensors"])
def test_both_files_give_the_tensors_as_they_are(name):
    drafter = load_drafter(str(GOLDEN / "drafter" / name), target=golden_target())
    tensors = safetensors.numpy.load_file(GOLDEN / "drafter" / "medusa_lm_head.safetensors")
    assert drafter.num_draft_tokens == 5 and drafter.name == "medusa"
    assert drafter.params.lm_head is None and drafter.feature_layers == ()
    assert drafter.num_params == sum(tensor.size for tensor in tensors.values())
    for k in range(5):
        head = drafter.params.heads["heads"][k]
        block = head["blocks"][0]
        np.testing.assert_array_equal(block["weight"][...], tensors[f"{k}.0.linear.weight"])
        np.testing.assert_array_equal(block["bias"][...], tensors[f"{k}.0.linear.bias"])
        np.testing.assert_array_equal(head["lm_head"][...], tensors[f"{k}.1.weight"])


# Releases made by hand, for a tiny target.


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny.write_checkpoint(tmp_path_factory.mktemp("target"))


@functools.cache
def target_of(folder: Path, mesh=None):
    return load_target(str(folder), mesh=mesh)


@dataclasses.dataclass(frozen=True)
class Head:
    """One head: [D, D] and [D] of each residual block, and [V, D]."""

    blocks: list[tuple[np.ndarray, np.ndarray]]
    output: np.ndarray

    def logits(self, hidden: np.ndarray) -> np.ndarray:
        """Maps hidden states [B, D] to logits [B, V], in float64."""
        u = hidden.astype(np.float64)
        for weight, bias in self.blocks:
            z = u @ weight.T.astype(np.float64) + bias
            u = u + z / (1 + np.exp(-z))
        return u @ self.output.T.astype(np.float64)


def random_heads(num_heads: int, num_layers: int, *, output=None, seed=0) -> list[Head]:
    """Returns random heads; with an `output` all have that projection."""
    rng = np.random.default_rng(seed)

    def normal(*shape):
        return (rng.normal(size=shape) * D**-0.5).astype(np.float32)

    return [
        Head(
            [(normal(D, D), normal(D)) for _ in range(num_layers)],
            normal(V, D) * 3 if output is None else output,
        )
        for _ in range(num_heads)
    ]


def as_v2(heads: list[Head], prefix: str = "") -> dict[str, np.ndarray]:
    tensors = {}
    for k, head in enumerate(heads):
        for layer, (weight, bias) in enumerate(head.blocks):
            tensors[f"{prefix}{k}.{layer}.linear.weight"] = weight
            tensors[f"{prefix}{k}.{layer}.linear.bias"] = bias
    return tensors


def as_v1(heads: list[Head], prefix: str = "") -> dict[str, np.ndarray]:
    outputs = {
        f"{prefix}{k}.{len(head.blocks)}.weight": head.output for k, head in enumerate(heads)
    }
    return as_v2(heads, prefix) | outputs


def as_vllm(heads: list[Head], prefix: str = "") -> dict[str, np.ndarray]:
    tensors = {f"{prefix}lm_heads.{k}.weight": head.output for k, head in enumerate(heads)}
    for k, head in enumerate(heads):
        for layer, (weight, bias) in enumerate(head.blocks):
            tensors[f"{prefix}blocks.{k}.layers.{layer}.weight"] = weight
            tensors[f"{prefix}blocks.{k}.layers.{layer}.bias"] = bias
    return tensors


def write(path: Path, tensors: dict, config: dict | None = None, name="medusa_lm_head.safetensors"):
    path.mkdir(parents=True, exist_ok=True)
    config = {"medusa_num_heads": 2, "medusa_num_layers": 1} if config is None else config
    (path / "config.json").write_text(json.dumps(config))
    safetensors.numpy.save_file(tensors, path / name)
    return str(path)


def target_tensors(folder: Path) -> dict[str, np.ndarray]:
    return safetensors.numpy.load_file(folder / "model.safetensors")


LAYOUTS = {
    "v1": lambda path, heads, folder: write(path, as_v1(heads)),
    "v2": lambda path, heads, folder: write(path, as_v2(heads), {"version": "2"}),
    "vllm": lambda path, heads, folder: write(
        path, as_vllm(heads), {"model_type": "medusa"}, "model.safetensors"
    ),
    "vllm_prefixed": lambda path, heads, folder: write(
        path, as_vllm(heads, "medusa_heads."), name="model.safetensors"
    ),
    # A whole model: its own target's tensors are not those of the target that is loaded.
    "model": lambda path, heads, folder: write(
        path,
        {name: -tensor for name, tensor in target_tensors(folder).items()}
        | as_v1(heads, "medusa_head."),
        json.loads((folder / "config.json").read_text()),
        "model.safetensors",
    ),
}


@pytest.mark.parametrize(
    ("layout", "num_heads", "num_layers"),
    [
        ("v1", 3, 1),
        ("v1", 4, 2),
        ("v1", 1, 3),
        ("v2", 3, 1),
        ("v2", 4, 2),
        ("vllm", 3, 1),
        ("vllm_prefixed", 1, 3),
        ("model", 4, 2),
    ],
)
def test_every_layout_equals_a_forward_by_hand(folder, tmp_path, layout, num_heads, num_layers):
    loaded = target_of(folder)
    shared = target_tensors(folder)["lm_head.weight"] if layout == "v2" else None
    heads = random_heads(num_heads, num_layers, output=shared, seed=num_layers)
    path = LAYOUTS[layout](tmp_path, heads, folder)
    drafter = load_drafter(path, target=loaded, with_logits=True)
    assert drafter.num_draft_tokens == num_heads
    hidden = np.random.default_rng(9).normal(size=(4, 6, D)).astype(np.float32)
    lengths = np.asarray([6, 1, 3, 2], np.int32)
    got = foretell(drafter, jnp.asarray(hidden), jnp.asarray(lengths))
    last = hidden[np.arange(4), lengths - 1]
    expected = np.stack([head.logits(last) for head in heads], axis=1)
    np.testing.assert_allclose(got.logits, expected, atol=1e-4, rtol=0)
    np.testing.assert_array_equal(got.tokens, expected.argmax(-1))


def test_v2_reads_the_targets_own_projection_and_copies_nothing(folder, tmp_path):
    loaded = target_of(folder)
    heads = random_heads(3, 2)
    drafter = load_drafter(write(tmp_path, as_v2(heads)), target=loaded)
    own = loaded.target.params["lm_head"].get_value()
    assert drafter.params.lm_head is own
    assert drafter.num_params == 3 * 2 * (D * D + D)


def test_weights_of_another_type_than_the_targets(folder, tmp_path):
    path = write(tmp_path, as_v2(random_heads(2, 1)))
    drafter = load_drafter(path, target=target_of(folder), dtype="bfloat16", with_logits=True)
    exact = load_drafter(path, target=target_of(folder), with_logits=True)
    hidden = jnp.asarray(np.random.default_rng(1).normal(size=(2, 1, D)), jnp.float32)
    got, expected = (foretell(d, hidden, jnp.ones(2, jnp.int32)).logits for d in (drafter, exact))
    assert drafter.init(drafter.params, 2, 1).hidden.dtype == jnp.bfloat16
    np.testing.assert_allclose(got, expected, atol=0.2, rtol=0)
    assert np.abs(got - expected).max() > 0


def test_heads_are_counted_in_the_files_and_the_first_ones_used(folder, tmp_path):
    """The config says 2, as released ones do beside five heads."""
    heads = random_heads(5, 1)
    for layout in ("v1", "vllm", "model"):
        path = LAYOUTS[layout](tmp_path / layout, heads, folder)
        assert load_drafter(path, target=target_of(folder)).num_draft_tokens == 5
        drafter = load_drafter(path, target=target_of(folder), num_draft_tokens=3)
        assert drafter.num_draft_tokens == 3
        assert drafter.num_params == 3 * (D * D + D + V * D)  # the others are not loaded
        hidden = np.random.default_rng(2).normal(size=(2, 1, D)).astype(np.float32)
        got = foretell(drafter, jnp.asarray(hidden), jnp.ones(2, jnp.int32))
        expected = np.stack([head.logits(hidden[:, 0]) for head in heads[:3]], axis=1)
        np.testing.assert_array_equal(got.tokens, expected.argmax(-1))
        assert got.logits is None
        for wrong in (0, 6):
            with pytest.raises(ValueError, match=f"num_draft_tokens: got {wrong}, allowed is"):
                load_drafter(path, target=target_of(folder), num_draft_tokens=wrong)


def without(tensors, *names):
    assert set(names) <= tensors.keys()
    return {name: tensor for name, tensor in tensors.items() if name not in names}


THREE, DEEP = random_heads(3, 1), random_heads(3, 2)
ROW, SQUARE = np.zeros(D, np.float32), np.zeros((D, D), np.float32)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (
            without(as_v1(THREE), "1.0.linear.weight", "1.0.linear.bias", "1.1.weight"),
            r"heads: got the numbers \[0, 2\], expected 0\.\.2 without a gap",
        ),
        (
            without(as_v2(DEEP), "1.0.linear.weight", "1.0.linear.bias"),
            r"residual blocks of head 1: got the numbers \[1\], expected 0\.\.1 without a gap",
        ),
        (
            without(as_v2(DEEP), "2.1.linear.weight", "2.1.linear.bias"),
            "residual blocks: got head 0 has 2, head 1 has 2, head 2 has 1, expected as many",
        ),
        (
            without(as_v1(THREE), "2.1.weight"),
            "output projections: got head 0 has 1, head 1 has 1, head 2 has 0, expected as many",
        ),
        (
            without(as_v1(THREE), "0.0.linear.weight", "0.0.linear.bias"),
            r"residual blocks of head 0: got the numbers \[\]",
        ),
        (
            without(as_v1(THREE), "1.0.linear.bias"),
            "biases: got head 0 has 1, head 1 has 0, head 2 has 1, expected as many",
        ),
        (
            without(as_v2(DEEP), "0.1.linear.bias", "1.1.linear.bias", "2.1.linear.bias"),
            r"biases: got them in blocks \[0\], expected in all 2 blocks or in none",
        ),
        (
            without(as_v1(THREE), "0.1.weight") | {"0.3.weight": THREE[0].output},
            "head 0: got its output projection as 0.3.weight, expected number 1",
        ),
        (
            as_v1(THREE) | {"0.2.weight": THREE[0].output},
            "head 0: got the output projections 0.1.weight and 0.2.weight, expected one",
        ),
        (
            as_v1(THREE) | {"1.1.weight": np.zeros((V + 3, D), np.float32)},
            rf"1\.1\.weight: got \({V + 3}, {D}\).*target has {V} ids.*drafter {V + 3} and {D}",
        ),
        (
            as_v2(THREE) | {f"{k}.0.linear.weight": np.zeros((8, 8), np.float32) for k in range(3)},
            rf"0\.0\.linear\.weight: got \(8, 8\).*target's hidden size is {D}, the drafter's 8",
        ),
        (
            as_v2(THREE) | {"2.0.linear.bias": np.zeros(D + 1, np.float32)},
            rf"2\.0\.linear\.bias: got \({D + 1},\), expected \({D},\)",
        ),
        (as_v1(THREE) | {"extra": ROW}, "1 tensors that no parameter takes: extra"),
        (as_vllm(THREE) | {"token_map": ROW}, "1 tensors that no parameter takes: token_map"),
    ],
)
def test_heads_that_do_not_fit_are_refused(folder, tmp_path, tensors, message):
    path = write(tmp_path, tensors)
    with pytest.raises(CheckpointError, match=message):
        load_drafter(path, target=target_of(folder))


def test_blocks_may_have_no_bias(folder, tmp_path):
    """As in vLLM's copies, unless `medusa_fc_bias` says otherwise."""
    bare = {name: t for name, t in as_vllm(THREE).items() if not name.endswith("bias")}
    drafter = load_drafter(
        write(tmp_path, bare, name="model.safetensors"), target=target_of(folder), with_logits=True
    )
    hidden = np.random.default_rng(4).normal(size=(2, 1, D)).astype(np.float32)
    got = foretell(drafter, jnp.asarray(hidden), jnp.ones(2, jnp.int32)).logits
    bare_heads = [Head([(head.blocks[0][0], ROW)], head.output) for head in THREE]
    expected = np.stack([head.logits(hidden[:, 0]) for head in bare_heads], axis=1)
    np.testing.assert_allclose(got, expected, atol=1e-4, rtol=0)


def test_each_row_follows_its_own_last_kept_token(folder, tmp_path):
    """Not the last row of the forward, whose token was rejected; a finished row stays as it is."""
    drafter = load_drafter(write(tmp_path, as_v1(THREE)), target=target_of(folder))
    hidden = jnp.asarray(np.random.default_rng(5).normal(size=(4, 4, D)), jnp.float32)
    before = jnp.asarray(np.random.default_rng(6).normal(size=(4, D)), jnp.float32)
    tokens, nothing = jnp.zeros((4, 4), jnp.int32), jnp.zeros((4, 4, 0))
    kept = jnp.asarray([1, 4, 0, 2], jnp.int32)
    after = drafter.commit(
        drafter.params, medusa.MedusaState(hidden=before), tokens, nothing, hidden, kept
    ).hidden
    expected = np.stack([hidden[0, 0], hidden[1, 3], before[2], hidden[3, 1]])
    np.testing.assert_array_equal(after, expected)


def test_padding_ids_are_never_drafted(folder, tmp_path):
    """Rows of the vocabulary without a token would win every draw here."""
    loaded = target_of(folder)
    num_ids = 50
    loaded = dataclasses.replace(
        loaded, config=dataclasses.replace(loaded.config, num_token_ids=num_ids)
    )
    heads = [Head(head.blocks, head.output.copy()) for head in THREE]
    for head in heads:
        head.output[num_ids:] = 100 * np.sign(head.output[num_ids:])
    drafter = load_drafter(write(tmp_path, as_v1(heads)), target=loaded, with_logits=True)
    hidden = np.random.default_rng(7).normal(size=(4, 1, D)).astype(np.float32)
    params = sampling_params(4, temperature=[0.0, 0.0, 2.0, 2.0], seed=[1, 2, 3, 4])
    got = foretell(drafter, jnp.asarray(hidden), jnp.ones(4, jnp.int32), params)
    exact = np.stack([head.logits(hidden[:, 0]) for head in heads], axis=1)
    assert (exact.argmax(-1) >= num_ids).all()
    assert np.asarray(got.tokens).max() < num_ids
    np.testing.assert_array_equal(got.tokens[:2], exact[:2, :, :num_ids].argmax(-1))
    assert np.isneginf(got.logits[..., num_ids:]).all()


def test_drafts_are_drawn_with_the_noise_of_their_own_positions(folder, tmp_path):
    drafter = load_drafter(
        write(tmp_path, as_v1(THREE)), target=target_of(folder), with_logits=True
    )
    batch = 6
    hidden = jnp.asarray(np.random.default_rng(8).normal(size=(batch, 40, D)), jnp.float32)
    lengths = jnp.asarray([1, 40, 7, 7, 20, 3], jnp.int32)  # the anchor's position
    params = sampling_params(
        batch,
        temperature=[1.0, 2.0, 0.7, 0.0, 1.5, 1.0],
        top_k=[0, 0, 5, 0, 0, 20],
        top_p=[1.0, 0.9, 1.0, 1.0, 0.8, 1.0],
        seed=[1, 2, 3, 4, 5, 2**40],
    )
    got = foretell(drafter, hidden, lengths, params)
    _, noisy = jax.vmap(sampling.perturb)(got.logits, params, lengths + 1)
    np.testing.assert_array_equal(got.tokens, noisy.argmax(-1))
    assert (np.asarray(got.tokens) != np.asarray(got.logits).argmax(-1)).any()


def decoded(folder, path, mesh=None):
    loaded = target_of(folder, mesh)
    config = DecodeConfig(num_draft_tokens=3, max_new_tokens=16, max_len=40, record_rounds=16)
    requests = make_requests(
        [[5, 9, 2], [7] * 6, [1, 2, 3, 4, 5], [50]],
        controls=Controls(budget=np.inf, gate=np.inf, block_cap=1),
        max_new_tokens=[16, 16, 9, 16],
        sampling_params=sampling_params(4, temperature=[0.0, 1.0, 0.0, 0.8], seed=[1, 2, 3, 4]),
    )
    drafter = load_drafter(path, target=loaded)
    return sharding.to_host(decode(loaded.target, drafter, asd(), requests, config))


def test_a_mesh_decodes_what_one_device_does(folder, tmp_path):
    path = write(tmp_path, as_v1(random_heads(3, 1)))
    expected = decoded(folder, path)
    got = decoded(folder, path, make_mesh(data=2, model=4))
    assert len(expected.accept_histogram.sum(0).nonzero()[0]) > 1  # rounds differ
    for name in ("tokens", "num_emitted", "rounds", "accept_histogram"):
        np.testing.assert_array_equal(getattr(got, name), getattr(expected, name), name)
    np.testing.assert_array_equal(got.trace.draft_tokens, expected.trace.draft_tokens)


@pytest.mark.parametrize("layout", ["v1", "v2"])
def test_a_mesh_divides_projections_and_proposes_what_one_device_does(folder, tmp_path, layout):
    shared = target_tensors(folder)["lm_head.weight"] if layout == "v2" else None
    heads = random_heads(3, 1, output=shared)
    path = LAYOUTS[layout](tmp_path, heads, folder)
    mesh = make_mesh(data=2, model=4)
    loaded = target_of(folder, mesh)
    drafter = load_drafter(path, target=loaded, with_logits=True)
    divided = P("model", None)
    assert drafter.partition.param_specs.count(divided) == {"v1": 3, "v2": 1}[layout]
    if layout == "v2":
        assert drafter.params.lm_head is loaded.target.params["lm_head"].get_value()

    rows = jax.jit(
        jax.shard_map(
            foretell,
            mesh=mesh,
            in_specs=(
                sharding.params_specs_tree(drafter, drafter.partition),
                *(P("data"),) * 3,
            ),
            out_specs=P("data"),
            check_vma=False,
        )
    )
    hidden = np.random.default_rng(10).normal(size=(4, 1, D)).astype(np.float32)
    lengths = jnp.ones(4, jnp.int32)
    params = sampling_params(4, temperature=[0.0, 0.0, 0.0, 1.0], seed=3)
    traced = rows.trace(drafter, jnp.asarray(hidden), lengths, params)
    # All devices must branch alike, also those whose own rows are all greedy.
    assert "axes=('data',)" in str(traced.jaxpr)
    got = rows(drafter, jnp.asarray(hidden), lengths, params)
    # Whole rows of logits, as wide as the target's, which are padded to four equal parts.
    assert got.logits.shape == (4, 3, 64) and np.isneginf(got.logits[..., V:]).all()
    expected = np.stack([head.logits(hidden[:, 0]) for head in heads], axis=1)
    np.testing.assert_allclose(got.logits[..., :V], expected, atol=1e-4, rtol=0)
    one = load_drafter(path, target=target_of(folder))
    tokens = foretell(one, jnp.asarray(hidden), lengths, params).tokens
    np.testing.assert_array_equal(got.tokens, tokens)


def test_tensors_of_others_are_not_taken_for_medusa(folder):
    golden = GOLDEN.parent
    others = [
        folder / "model.safetensors",
        golden / "dspark_qwen3_vanilla/drafter/model.safetensors",
    ]
    for path in others:
        names = safetensors.numpy.load_file(path).keys()
        assert names and not medusa.FAMILY.is_released_as(names, {})
    source = open_drafter(golden / "eagle3_llama_original" / "drafter")
    assert source.tensors and not medusa.FAMILY.is_released_as(source.tensors, source.config)


def test_equal_drafters_share_compiled_programs(folder, tmp_path):
    path = write(tmp_path, as_v1(THREE))
    one, other, fewer = (
        load_drafter(path, target=target_of(folder), num_draft_tokens=n) for n in (3, 3, 2)
    )
    assert jax.tree.structure(one) == jax.tree.structure(other)
    assert jax.tree.structure(one) != jax.tree.structure(fewer)
