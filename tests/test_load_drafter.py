"""Which drafter a path stands for, and what is refused before any weight is read."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
import safetensors.numpy
import tokenizers

from asd_jax import load_drafter, load_target
from asd_jax.checkpoints.drafter_files import open_drafter
from asd_jax.checkpoints.source import CheckpointError
from asd_jax.drafters.family import DrafterOptions
from asd_jax.load import check_drafter
from tests import tiny

GOLDEN = Path(__file__).resolve().parent / "data" / "golden"
FAMILIES = {
    "dspark": "dspark_qwen3_vanilla",
    "eagle3": "eagle3_llama_original",
    "medusa": "medusa_llama_5heads",
}


def with_words(folder, words):
    vocab = {word: index for index, word in enumerate(words)}
    model = tokenizers.models.WordLevel(vocab, unk_token=words[0])
    tokenizers.Tokenizer(model).save(str(folder / "tokenizer.json"))
    return folder


def model_with_words(folder, words, **config):
    return with_words(tiny.write_checkpoint(folder, {**tiny.HF_CONFIG, **config}), words)


WORDS = [f"w{i}" for i in range(50)]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_family_is_told_by_the_files(family):
    folder = GOLDEN / FAMILIES[family]
    target = load_target(str(folder / "target"))
    drafter = load_drafter(str(folder / "drafter"), target=target)
    assert drafter.name == family
    assert drafter.num_draft_tokens == {"dspark": 7, "eagle3": 5, "medusa": 5}[family]
    assert drafter.num_params > 0
    digest = check_drafter(str(folder / "drafter"), target=target.source)
    assert isinstance(digest, str) and len(digest) == 64


@pytest.mark.parametrize("family", FAMILIES)
def test_a_drafter_of_another_target_is_refused_naming_both_sides(family, tmp_path):
    other = tiny.write_checkpoint(tmp_path / "other")
    target = load_target(str(other))
    path = str(GOLDEN / FAMILIES[family] / "drafter")
    for attempt in (
        lambda: load_drafter(path, target=target),
        lambda: check_drafter(path, target=target.source),
    ):
        with pytest.raises(CheckpointError) as refused:
            attempt()
        message = str(refused.value)
        assert path in message and family in message
        mine, theirs = {
            "dspark": ("[1, 3, 5]", "a target of 2 layers"),
            "eagle3": ("151", "61"),
            "medusa": ("48", "32"),
        }[family]
        assert mine in message and theirs in message, message


@pytest.mark.parametrize("family", FAMILIES)
def test_more_drafts_than_a_drafter_was_made_for_are_refused(family):
    folder = GOLDEN / FAMILIES[family]
    target = load_target(str(folder / "target"))
    if family == "eagle3":  # a chain may be as long as one likes
        drafter = load_drafter(str(folder / "drafter"), target=target, num_draft_tokens=9)
        assert drafter.num_draft_tokens == 9
        return
    with pytest.raises(CheckpointError, match="num_draft_tokens: got 9"):
        load_drafter(str(folder / "drafter"), target=target, num_draft_tokens=9)


def test_a_smaller_model_of_the_same_vocabulary_is_a_draft_model(tmp_path):
    target = load_target(str(model_with_words(tmp_path / "target", WORDS)))
    # Another width, and more rows of padding behind the same 50 tokens.
    small = model_with_words(
        tmp_path / "small", WORDS, num_hidden_layers=1, vocab_size=56, eos_token_id=49
    )
    drafter = load_drafter(str(small), target=target, num_draft_tokens=3)
    assert (drafter.name, drafter.num_draft_tokens) == ("draft_model", 3)
    assert drafter.context_length == 256


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["other", *WORDS[1:]], "1 ids differ: id 0 is 'w0' for the target and 'other' for the"),
        (WORDS[:-2], "2 ids differ: id 48 is 'w48' for the target and None for the drafter"),
        ([*WORDS, "more"], "1 ids differ: id 50 is None for the target and 'more' for the drafter"),
    ],
)
def test_another_vocabulary_is_refused_with_the_first_ids_that_differ(tmp_path, words, message):
    target = load_target(str(model_with_words(tmp_path / "target", WORDS)))
    with pytest.raises(CheckpointError, match=message):
        load_drafter(str(model_with_words(tmp_path / "small", words)), target=target)


def test_models_without_a_tokenizer_are_compared_by_their_number_of_ids(tmp_path):
    target = load_target(str(tiny.write_checkpoint(tmp_path / "target")))
    other = {**tiny.HF_CONFIG, "vocab_size": 60, "eos_token_id": 59}
    with pytest.raises(CheckpointError, match="drafter has 60 token ids, the target 61"):
        load_drafter(str(tiny.write_checkpoint(tmp_path / "other", other)), target=target)
    same = tiny.write_checkpoint(tmp_path / "same", seed=1)
    assert load_drafter(str(same), target=target).name == "draft_model"


def test_weights_are_of_a_type_that_is_known():
    folder = GOLDEN / "medusa_llama_5heads"
    owner = load_target(str(folder / "target"))
    with pytest.raises(ValueError, match="dtype: got 'int8', allowed is one of float32"):
        load_drafter(str(folder / "drafter"), target=owner, dtype="int8")
    half = load_drafter(str(folder / "drafter"), target=owner, dtype="bfloat16")
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(half.params)} == {"bfloat16"}


@pytest.fixture(scope="module")
def target():
    return load_target(str(GOLDEN / "eagle3_llama_original" / "target"))


def test_what_is_no_drafter_is_refused(target, tmp_path):
    with pytest.raises(ValueError, match="without a target, allowed then is 'ngram' or 'none'"):
        load_drafter("some/path")
    with pytest.raises(CheckpointError, match="drafter: got 'magic', allowed is ngram, none, or a"):
        load_drafter("magic", target=target)
    with pytest.raises(ValueError, match="corpus: got one with drafter none, which heeds no such"):
        load_drafter("none", target=target, corpus=[[1, 2]])
    (tmp_path / "config.json").write_text("{}")
    safetensors.numpy.save_file({"weights": np.ones(2)}, tmp_path / "model.safetensors")
    for attempt in (
        lambda: load_drafter(str(tmp_path), target=target),
        lambda: check_drafter(str(tmp_path), target=target.source),
    ):
        with pytest.raises(CheckpointError, match=r"neither a drafter \(dspark, eagle3, medusa\)"):
            attempt()


@pytest.mark.parametrize("damage", ["cut", "noise", "empty"])
def test_damaged_files_are_refused(target, tmp_path, damage):
    folder = tmp_path / "drafter"
    shutil.copytree(GOLDEN / "eagle3_llama_original" / "drafter", folder)
    path = folder / "pytorch_model.bin"
    content = path.read_bytes()
    broken = {"cut": content[:-2000], "noise": b"\0" * len(content), "empty": b""}[damage]
    path.write_bytes(broken)
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin"):
        load_drafter(str(folder), target=target)


def test_a_missing_tensor_and_a_foreign_one_are_told_together(target, tmp_path):
    golden = GOLDEN / "medusa_llama_5heads"
    owner = load_target(str(golden / "target"))
    tensors = safetensors.numpy.load_file(golden / "drafter" / "medusa_lm_head.safetensors")
    tensors["stray"] = tensors.pop("3.0.linear.bias")
    safetensors.numpy.save_file(tensors, tmp_path / "medusa_lm_head.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({}))
    with pytest.raises(CheckpointError, match="biases|stray"):
        load_drafter(str(tmp_path), target=owner)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(num_draft_tokens=0), "num_draft_tokens: got 0"),
        (dict(num_draft_tokens=2.5), "num_draft_tokens: got 2.5"),
        (dict(num_draft_tokens=True), "num_draft_tokens: got True"),
        (dict(num_draft_tokens="3"), "num_draft_tokens: got '3'"),
        (dict(confidence_threshold=1.5), "confidence_threshold: got 1.5"),
        (dict(confidence_threshold=float("nan")), "confidence_threshold: got nan"),
        (dict(tap_convention="inputs"), "tap_convention: got 'inputs'"),
    ],
)
def test_options_of_no_use_to_anyone_are_refused(options, message):
    for name in ("ngram", "none", "some/path"):
        with pytest.raises(ValueError, match=message):
            load_drafter(name, **options)


@pytest.mark.parametrize("family", [*FAMILIES, "ngram", "none", "draft_model"])
@pytest.mark.parametrize(
    ("option", "takers"),
    [
        (dict(confidence_threshold=0.5), {"dspark"}),
        (dict(tap_convention="layer_output"), {"eagle3"}),
        (dict(corpus=[[1, 2]]), {"ngram"}),
    ],
)
def test_options_that_a_drafter_would_ignore_are_refused(family, option, takers):
    folder = GOLDEN / FAMILIES.get(family, "eagle3_llama_original")
    owner = load_target(str(folder / "target"))
    path = {"ngram": "ngram", "none": "none", "draft_model": str(GOLDEN / "target_qwen25")}.get(
        family, str(folder / "drafter")
    )
    if family in takers:
        if family != "eagle3":  # whose files mean the other convention
            load_drafter(path, target=owner, **option)
        check_drafter(path, target=owner.source, **option)
        return
    for attempt in (
        lambda: load_drafter(path, target=owner, **option),
        lambda: check_drafter(path, target=owner.source, **option),
    ):
        with pytest.raises(
            ValueError, match=f"{next(iter(option))}: got one with drafter {family}"
        ):
            attempt()


def test_options_are_given_in_one_way():
    with pytest.raises(ValueError, match="options: got them as well as num_draft_tokens"):
        load_drafter("ngram", options=DrafterOptions(), num_draft_tokens=3)


def test_draft_models_are_checked_before_their_weights(tmp_path):
    target = load_target(str(model_with_words(tmp_path / "target", WORDS)))
    same = model_with_words(tmp_path / "same", WORDS)
    other = model_with_words(tmp_path / "other", ["other", *WORDS[1:]])
    assert len(check_drafter(str(same), target=target.source)) == 64
    with pytest.raises(CheckpointError, match="1 ids differ"):
        check_drafter(str(other), target=target.source)
    # A file of the model stands for its folder.
    assert load_drafter(str(same / "model.safetensors"), target=target).name == "draft_model"


def changed_drafter(tmp_path, family, config=None, tensors=None):
    """Copies a golden drafter as safetensors, with other fields or tensors."""
    golden = GOLDEN / FAMILIES[family]
    owner = load_target(str(golden / "target"))
    source = open_drafter(golden / "drafter")
    own = {name: np.array(tensor.read()) for name, tensor in source.tensors.items()}
    name = "medusa_lm_head.safetensors" if family == "medusa" else "model.safetensors"
    safetensors.numpy.save_file(own | (tensors or {}), tmp_path / name)
    fields = json.loads((golden / "drafter" / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(fields | (config or {})))
    return owner


@pytest.mark.parametrize(
    ("family", "config", "message"),
    [
        ("dspark", {"dflash_config": "x"}, "dflash_config: got 'x', allowed is an object"),
        ("dspark", {"dflash_config": []}, "dflash_config: got"),
        (
            "dspark",
            {"speculators_model_type": "dspark", "transformer_layer_config": "x"},
            "transformer_layer_config: got 'x'",
        ),
        ("eagle3", {"transformer_layer_config": [1]}, "transformer_layer_config: got"),
        ("eagle3", {"speculators_config": "x"}, "speculators_config: got 'x'"),
        ("eagle3", {"speculators_config": {"proposal_methods": 5}}, "proposal_methods: got 5"),
        ("eagle3", {"speculators_config": {"proposal_methods": ["a"]}}, "proposal_methods: got"),
        ("eagle3", {"eagle_config": 5}, "eagle_config: got 5"),
        ("eagle3", {"eagle_aux_hidden_state_layer_ids": 0}, "layer_ids: got 0"),
        ("eagle3", {"eagle_aux_hidden_state_layer_ids": [3, 3, 3]}, "allowed are ascending"),
        ("eagle3", {"layer_types": ["sliding_attention"]}, "layer_types: got"),
        ("eagle3", {"speculators_model_type": True}, "speculators_model_type: got True"),
    ],
)
def test_malformed_configs_name_the_field(tmp_path, family, config, message):
    owner = changed_drafter(tmp_path, family, config)
    with pytest.raises(CheckpointError, match=message):
        check_drafter(str(tmp_path), target=owner.source)


@pytest.mark.parametrize(
    ("family", "name", "shape"),
    [
        ("dspark", "confidence_head.proj.weight", (64,)),
        ("dspark", "markov_head.markov_w1.weight", (131 * 16,)),
        ("dspark", "layers.0.self_attn.q_norm.weight", (0,)),
        ("eagle3", "midlayer.self_attn.q_proj.weight", (10,)),
        ("eagle3", "fc.weight", (48, 0)),
        ("medusa", "0.0.linear.weight", (48,)),
    ],
)
def test_tensors_of_impossible_shapes_are_named(tmp_path, family, name, shape):
    owner = changed_drafter(tmp_path, family, tensors={name: np.zeros(shape, np.float32)})
    with pytest.raises(CheckpointError, match=f"tensor {name}: got shape"):
        check_drafter(str(tmp_path), target=owner.source)
