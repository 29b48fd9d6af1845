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
from asd_jax.checkpoints.source import CheckpointError
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
    with pytest.raises(
        ValueError, match="corpus: allowed with drafter 'ngram', got one with 'none'"
    ):
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
