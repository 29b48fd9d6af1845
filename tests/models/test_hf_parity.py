"""Targets against HF transformers: random tiny models, saved as released and loaded from disk.

Every variation is built and saved by transformers itself, so that `config.json` and the weight
files are what its users publish, and is read back by both sides in float32.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from asd_jax import Controls, DecodeConfig, asd, decode, load_target, make_requests
from asd_jax.cache import rollback
from tests import tiny

pytestmark = pytest.mark.parity

TOLERANCE = dict(atol=2e-4, rtol=2e-4)
BATCH, LENGTH, WIDTH, PROMPT, NEW = 2, 40, 8, 8, 28
BASE = dict(
    vocab_size=tiny.VOCAB,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
    rms_norm_eps=1e-5,
    bos_token_id=None,
    eos_token_id=None,
    pad_token_id=None,
)


@dataclasses.dataclass(frozen=True)
class Variation:
    """A family, what its config changes of `BASE`, and how it is written."""

    family: str
    changes: dict
    stored: str = "float32"
    shard_size: str = "50GB"


def rope(kind, **parameters):
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 50.0, **parameters}}


# The text of 40 tokens is longer than every original context here, and than every window.
YARN = dict(factor=4.0, original_max_position_embeddings=32)
LLAMA3 = dict(
    factor=8.0, low_freq_factor=0.5, high_freq_factor=2.0, original_max_position_embeddings=16
)
SHORT = {"max_position_embeddings": 16}
WINDOW = {"use_sliding_window": True, "sliding_window": 6}
THREE = {"num_hidden_layers": 3}
SLIDING, FULL = "sliding_attention", "full_attention"

VARIATIONS = {
    "llama": Variation("Llama", {}),
    "llama_every_bias": Variation("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama_tied": Variation("Llama", {"tie_word_embeddings": True}),
    "llama_no_groups": Variation("Llama", {"num_key_value_heads": 4, **rope("default")}),
    "llama_one_kv_head_wide": Variation("Llama", {"num_key_value_heads": 1, "head_dim": 12}),
    "llama_eps_theta": Variation("Llama", {"rms_norm_eps": 1e-2, "rope_parameters": None}),
    "llama_bfloat16": Variation("Llama", {"attention_bias": True}, stored="bfloat16"),
    "llama_linear": Variation("Llama", {**SHORT, **rope("linear", factor=4.0)}),
    "llama_llama3": Variation("Llama", {"head_dim": 16, **rope("llama3", **LLAMA3)}),
    "llama_dynamic": Variation("Llama", {**SHORT, **rope("dynamic", factor=4.0)}),
    "llama_yarn_mscale": Variation(
        "Llama",
        {"head_dim": 16}
        | rope("yarn", **YARN, beta_fast=4.0, mscale=0.7, mscale_all_dim=1.3, truncate=False),
    ),
    "llama_original_outside": Variation(
        "Llama",
        {"head_dim": 16, "original_max_position_embeddings": 24} | rope("yarn", **YARN),
    ),
    "llama_unused_window": Variation("Llama", {"sliding_window": 6}),
    "mistral_window": Variation("Mistral", {"sliding_window": 6}),
    "mistral_no_window": Variation("Mistral", {"sliding_window": None, "head_dim": 16}),
    "mistral_wide_window": Variation("Mistral", {}),
    "mistral_yarn": Variation(
        "Mistral", {"sliding_window": 9, "head_dim": 16} | rope("yarn", **YARN)
    ),
    "mistral_float16_shards": Variation(
        "Mistral", {"sliding_window": 6}, stored="float16", shard_size="10KB"
    ),
    "qwen2": Variation("Qwen2", {}),
    "qwen2_tied_shards": Variation("Qwen2", {"tie_word_embeddings": True}, shard_size="10KB"),
    "qwen2_window_off": Variation("Qwen2", {"use_sliding_window": False, "sliding_window": 6}),
    "qwen2_window_from_layer": Variation("Qwen2", {**THREE, **WINDOW, "max_window_layers": 1}),
    "qwen2_window_of_one": Variation("Qwen2", {**WINDOW, "sliding_window": 1, **THREE}),
    "qwen2_yarn": Variation(
        "Qwen2",
        {"head_dim": 16} | rope("yarn", **YARN, attention_factor=1.3, beta_fast=2.0, beta_slow=0.5),
    ),
    "qwen2_dynamic": Variation("Qwen2", {**SHORT, **rope("dynamic", factor=2.5), "head_dim": 16}),
    "qwen3": Variation("Qwen3", {"head_dim": 16}),
    "qwen3_every_bias": Variation("Qwen3", {"head_dim": 12, "attention_bias": True}),
    "qwen3_tied_no_groups": Variation(
        "Qwen3", {"head_dim": 8, "tie_word_embeddings": True, "num_key_value_heads": 4}
    ),
    "qwen3_window_by_type": Variation(
        "Qwen3", {**THREE, **WINDOW, "head_dim": 16, "layer_types": [SLIDING, FULL, SLIDING]}
    ),
    "qwen3_implied_factor": Variation(
        "Qwen3", {"head_dim": 16, **rope("yarn", **YARN | {"factor": None})}
    ),
    "qwen3_bfloat16_shards": Variation(
        "Qwen3", {"head_dim": 16, "attention_bias": True}, stored="bfloat16", shard_size="10KB"
    ),
}


def random_variation(seed):
    """Returns a combination that nobody has thought of."""
    rng = np.random.default_rng(seed)

    def coin():
        return bool(rng.integers(2))

    family = str(rng.choice(["Llama", "Mistral", "Qwen2", "Qwen3"]))
    layers, group = int(rng.integers(1, 4)), int(rng.choice([1, 2, 3]))
    kv_heads = int(rng.choice([1, 2, 4]))
    embeddings = [
        rope("default"),
        {**SHORT, **rope("linear", factor=3.0)},
        {**SHORT, **rope("dynamic", factor=3.0)},
        rope("llama3", **LLAMA3 | {"factor": 4.0}),
        rope("yarn", **YARN, beta_fast=float(rng.uniform(2, 40)), truncate=coin()),
    ]
    changes = {
        "num_hidden_layers": layers,
        "num_attention_heads": kv_heads * group,
        "num_key_value_heads": kv_heads,
        "hidden_size": kv_heads * group * 8,
        "head_dim": int(rng.choice([8, 10, 16])),
        "tie_word_embeddings": coin(),
        "rms_norm_eps": float(rng.choice([1e-6, 1e-3])),
        **embeddings[seed % len(embeddings)],
    }
    if family in ("Llama", "Qwen3"):
        changes["attention_bias"] = coin()
    if family == "Llama":
        changes["mlp_bias"] = coin()
    if family != "Llama" and coin():
        changes["sliding_window"] = int(rng.integers(2, 20))
    if family.startswith("Qwen"):
        changes |= {"use_sliding_window": coin(), "max_window_layers": int(rng.integers(layers))}
    return Variation(family, changes)


VARIATIONS |= {f"random_{seed}": random_variation(seed) for seed in range(5)}


def write_random_model(variation, directory):
    """Saves a random model: weights of variance 1 / inputs, norms 1 +- 0.2, biases of 0.3."""
    import torch
    import transformers

    config = getattr(transformers, f"{variation.family}Config")(**{**BASE, **variation.changes})
    model = getattr(transformers, f"{variation.family}ForCausalLM")(config)
    named = dict(model.named_parameters())
    untied = {name for name in model.state_dict() if name != "lm_head.weight"}
    assert untied <= set(named)  # nothing that is saved keeps its initial value
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in named.items():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim == 2:
                parameter.copy_(noise * (1 if "embed" in name else parameter.shape[1] ** -0.5))
            elif name.endswith("bias"):
                parameter.copy_(0.3 * noise)
            else:
                parameter.copy_(
                    1 + 0.2 * (2 * torch.rand(parameter.shape, generator=generator) - 1)
                )
    model.generation_config.eos_token_id = None
    model.to(getattr(torch, variation.stored))
    model.save_pretrained(directory, max_shard_size=variation.shard_size)


def load_reference(directory):
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)  # models this small only wait for other threads
    return AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager"
    ).eval()


def is_dynamic(model):
    """Returns whether RoPE follows the text's length: defined by a cache that grows singly."""
    return model.config.rope_parameters["rope_type"] == "dynamic"


def reference_run(model, tokens):
    """Returns every residual stream [L + 1, B, T, D], the final hidden state and the logits."""
    import torch

    before_norm = []
    hook = model.model.norm.register_forward_pre_hook(lambda _, inputs: before_norm.append(*inputs))
    pieces, cache = [], None
    with torch.no_grad():
        for piece in torch.tensor(tokens).split(1 if is_dynamic(model) else LENGTH, dim=1):
            output = model(piece, cache=cache, output_hidden_states=True, use_cache=True)
            cache = output.past_key_values
            streams = [*output.hidden_states[:-1], before_norm[-1]]
            pieces.append((torch.stack(streams), output.hidden_states[-1], output.logits))
    hook.remove()
    streams, hidden, logits = zip(*pieces, strict=True)
    return (
        torch.cat(streams, dim=2).numpy(),
        torch.cat(hidden, dim=1).numpy(),
        torch.cat(logits, dim=1).numpy(),
    )


def reference_greedy(model, prompts):
    """Returns the continuation [B, NEW], from the whole text every time but for "dynamic"."""
    import torch

    ids = torch.tensor(prompts)
    output = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=NEW,
        do_sample=False,
        # Its cache forgets behind a `sliding_window` also where the model has none ("Llama").
        use_cache=is_dynamic(model),
    )
    assert output.shape == (BATCH, PROMPT + NEW)
    return output[:, PROMPT:].numpy()


@dataclasses.dataclass(frozen=True)
class Pair:
    """A model directory, loaded by both sides, and what the reference says of one text."""

    directory: Path
    loaded: object
    tokens: np.ndarray
    streams: np.ndarray
    hidden: np.ndarray
    logits: np.ndarray
    greedy: np.ndarray


def load_ours(directory):
    config = json.loads((directory / "config.json").read_text())
    layers = range(config["num_hidden_layers"] + 1)
    return load_target(str(directory), dtype=jnp.float32, feature_layers=tuple(layers))


@pytest.fixture(scope="module", params=sorted(VARIATIONS))
def pair(request, tmp_path_factory):
    variation = VARIATIONS[request.param]
    directory = tmp_path_factory.mktemp(request.param)
    write_random_model(variation, directory)
    is_sharded = (directory / "model.safetensors.index.json").exists()
    assert is_sharded == (variation.shard_size == "10KB")
    tokens = np.random.default_rng(1).integers(0, tiny.VOCAB, (BATCH, LENGTH))
    model = load_reference(directory)
    run = reference_run(model, tokens)
    greedy = reference_greedy(model, tokens[:, :PROMPT])
    return Pair(directory, load_ours(directory), tokens, *run, greedy)


# Compiling is most of what this file does, and the level changes only how fast the result runs.
@functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
def forward(target, tokens, cache):
    return target.forward(target.params, tokens, cache)


def test_every_layer_the_final_hidden_state_and_the_logits(pair):
    target = pair.loaded.target
    output = forward(target, jnp.asarray(pair.tokens, jnp.int32), target.init_cache(BATCH, LENGTH))
    streams = np.split(np.asarray(output.features), len(pair.streams), axis=-1)
    for layer, (got, expected) in enumerate(zip(streams, pair.streams, strict=True)):
        np.testing.assert_allclose(got, expected, **TOLERANCE, err_msg=f"hidden_states[{layer}]")
    np.testing.assert_allclose(output.hidden, pair.hidden, **TOLERANCE)
    np.testing.assert_allclose(output.logits, pair.logits, **TOLERANCE)


def test_cached_chunks_of_which_each_row_rejects_its_own_part(pair):
    """Rows advance by other amounts; what is wrong is rolled back, inside a window as elsewhere."""
    target, wrong = pair.loaded.target, (pair.tokens + 1) % tiny.VOCAB
    cache, start = target.init_cache(BATCH, LENGTH + WIDTH), np.zeros(BATCH, int)
    for kept in zip((8, 3, 0, 5, 8, 1, 8, 7), (1, 8, 6, 2, 8, 7, 0, 8), strict=True):
        chunk = np.zeros((BATCH, WIDTH), np.int32)
        for row, count in enumerate(kept):
            right = pair.tokens[row, start[row] : start[row] + count]
            rest = wrong[row, start[row] + count : start[row] + WIDTH]
            chunk[row, : len(right) + len(rest)] = [*right, *rest]
        output = forward(target, jnp.asarray(chunk), cache)
        for row, count in enumerate(kept):
            expected = pair.logits[row, start[row] : start[row] + count]
            np.testing.assert_allclose(output.logits[row, :count], expected, **TOLERANCE)
        start += kept
        cache = rollback(output.cache, jnp.asarray(start, jnp.int32))
    assert start.tolist() == [LENGTH, LENGTH]


def test_greedy_continuations_token_for_token(pair):
    """One token a round; the rest of its width is wrong, and rolled back."""
    target = pair.loaded.target
    output = forward(
        target,
        jnp.asarray(pair.tokens[:, :PROMPT], jnp.int32),
        target.init_cache(BATCH, LENGTH + WIDTH),
    )
    length, continuation = jnp.full((BATCH,), PROMPT, jnp.int32), []
    logits = output.logits[:, -1]
    for _ in range(NEW):
        token = logits.argmax(-1).astype(jnp.int32)
        continuation.append(token)
        piece = (token[:, None] + jnp.arange(WIDTH, dtype=jnp.int32)[None]) % tiny.VOCAB
        output = forward(target, piece, rollback(output.cache, length))
        length, logits = length + 1, output.logits[:, 0]
    np.testing.assert_array_equal(np.stack(continuation, axis=1), pair.greedy)


DECODED = ("llama_dynamic", "mistral_window", "qwen2_window_from_layer", "qwen3_window_by_type")


@pytest.mark.parametrize("pair", DECODED, indirect=True)
def test_decode_gives_the_greedy_continuation(pair):
    """Drafts that are right, wrong and short, for rows whose prompts differ in length."""
    given = (0, 5)
    prompts = pair.tokens[:, :PROMPT].tolist()
    ragged = [p + g[:n].tolist() for p, g, n in zip(prompts, pair.greedy, given, strict=True)]
    answers = [g[n:].tolist() for g, n in zip(pair.greedy, given, strict=True)]
    config = DecodeConfig(num_draft_tokens=3, max_new_tokens=NEW, max_len=PROMPT + NEW)
    script = tiny.random_script(0, answers, ragged, config.num_draft_tokens, config.num_slots)
    requests = make_requests(
        ragged, controls=Controls.strict(), max_new_tokens=[NEW - n for n in given]
    )
    result = decode(pair.loaded.target, tiny.scripted_drafter(*script), asd(), requests, config)
    for row, answer in enumerate(answers):
        assert np.asarray(result.tokens[row, : len(answer)]).tolist() == answer
    assert 0 < int(result.ledger.accepted.sum()) < int(result.ledger.proposed.sum())


def classic_config(config, type_key):
    """Returns a config as transformers wrote it before `rope_parameters` and `layer_types`."""
    classic = {key: value for key, value in config.items() if key != "rope_parameters"}
    scaling = dict(config["rope_parameters"])
    classic["rope_theta"] = scaling.pop("rope_theta")
    kind = scaling.pop("rope_type")
    if "original_max_position_embeddings" in config:
        scaling["original_max_position_embeddings"] *= 2  # means nothing beside the outer one
    layers = range(config["num_hidden_layers"])
    first = config["max_window_layers"] if config.get("use_sliding_window") else len(layers)
    if config.get("layer_types") == [SLIDING if i >= first else FULL for i in layers]:
        del classic["layer_types"]
    return classic | {"rope_scaling": None if kind == "default" else {type_key: kind, **scaling}}


@pytest.mark.parametrize("type_key", ["type", "rope_type"])
def test_an_older_config_means_the_same_to_both_sides(pair, type_key, tmp_path):
    directory = tmp_path / "classic"
    shutil.copytree(pair.directory, directory)
    config = json.loads((directory / "config.json").read_text())
    assert "rope_parameters" in config and "rope_theta" not in config
    (directory / "config.json").write_text(json.dumps(classic_config(config, type_key)))
    *_, reference = reference_run(load_reference(directory), pair.tokens)
    np.testing.assert_array_equal(reference, pair.logits)
    loaded = load_ours(directory)
    assert loaded.config == pair.loaded.config
    target = loaded.target
    output = forward(target, jnp.asarray(pair.tokens, jnp.int32), target.init_cache(BATCH, LENGTH))
    np.testing.assert_allclose(output.logits, reference, **TOLERANCE)
