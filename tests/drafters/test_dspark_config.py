"""DSpark configs: three spellings, and every way in which a drafter does not fit its target."""

from __future__ import annotations

import numpy as np
import pytest

from asd_jax import load_drafter
from asd_jax.drafters import dspark
from asd_jax.drafters.family import DrafterOptions
from asd_jax.load.drafter import find_family, target_facts
from tests.drafters.dspark_files import (
    random_tensors,
    released_config,
    small_target,
    write,
    write_target,
)
from tests.drafters.dspark_oracle import Sizes


@pytest.fixture(scope="module")
def target_path(tmp_path_factory):
    return write_target(tmp_path_factory.mktemp("target"))


def changed(form, **fields):
    """Sets fields where the producer has them."""
    nested = {"specforge": "dflash_config", "speculators": "transformer_layer_config"}[form]
    return {nested: {**released_config(Sizes(), form)[nested], **fields}}


def without(*names):
    return {name: v for name, v in random_tensors(Sizes()).items() if name not in names}


def padded(name, rows=0, columns=0):
    tensors = random_tensors(Sizes())
    pad = [(0, rows), (0, columns)][: tensors[name].ndim]
    return {**tensors, name: np.pad(tensors[name], pad)}


# Case -> (sizes, form, config fields, tensors, options, what the message says of both sides).
REFUSED = {
    "fc": (Sizes(), "deepspec", {"target_layer_ids": [1, 2, 3]}, None, {}, "64 .*96 = 3 .* 32"),
    "width": (Sizes(), "deepspec", {}, padded("fc.weight", 3), {}, "35 .* 32"),
    "rows": (Sizes(), "deepspec", {}, padded("embed_tokens.weight", 3), {}, "64 rows.* 61"),
    "w1 rows": (Sizes(), "deepspec", {}, padded("markov_head.markov_w1.weight", 3), {}, "64 .*61"),
    "w2 rows": (
        Sizes(),
        "deepspec",
        {},
        padded("markov_head.markov_w2.weight", 3),
        {},
        "64, 8.*61, 8",
    ),
    "vocabulary": (Sizes(), "deepspec", {"vocab_size": 64}, None, {}, "64 .* 61"),
    "layers": (Sizes(), "deepspec", {"num_target_layers": 7}, None, {}, "7 .* 6"),
    "mask": (Sizes(mask_id=61), "deepspec", {}, None, {}, "mask_token_id: got 61.* 61 rows"),
    "no mask": (
        Sizes(),
        "speculators",
        {"mask_token_id": None},
        None,
        {},
        "mask_token_id: got None",
    ),
    "tap beyond": (Sizes(taps=(1, 6)), "deepspec", {}, None, {}, r"\[1, 6\].* 6 layers"),
    "last tap": (Sizes(taps=(1, 5)), "deepspec", {}, None, {}, r"\[1, 5\].* 6"),
    "last tap shifted": (Sizes(taps=(1, 5)), "speculators", {}, None, {}, r"\[2, 6\].* 6"),
    "order": (Sizes(taps=(3, 1)), "specforge", {}, None, {}, r"\[3, 1\].*ascending"),
    "twice": (Sizes(taps=(1, 1)), "deepspec", {}, None, {}, r"\[1, 1\].*ascending"),
    "no taps": (
        Sizes(),
        "speculators",
        {"aux_hidden_state_layer_ids": None},
        None,
        {},
        "aux_hidden.*None",
    ),
    "no block": (Sizes(), "deepspec", {"block_size": None}, None, {}, "block_size: missing"),
    "block": (Sizes(), "deepspec", {"block_size": 0}, None, {}, "block_size: got 0"),
    "drafts": (Sizes(), "deepspec", {}, None, {"num_draft_tokens": 5}, r"got 5, .*1\.\.4"),
    "rank": (Sizes(), "deepspec", {"markov_rank": 9}, None, {}, "got 9.*tensors have 8"),
    "kind": (
        Sizes(kind="gated"),
        "deepspec",
        {"markov_head_type": "rnn"},
        None,
        {},
        "'rnn'.*'gated'",
    ),
    "depth": (Sizes(), "deepspec", {"num_hidden_layers": 3}, None, {}, "got 3.*tensors have 2"),
    "heads": (Sizes(), "speculators", changed("speculators", head_dim=16), None, {}, "16.*8"),
    "confidence": (Sizes(), "deepspec", {"enable_confidence_head": False}, None, {}, "False.*True"),
    "confidence reads": (
        Sizes(),
        "deepspec",
        {"confidence_head_with_markov": False},
        None,
        {},
        "False.*True",
    ),
    "confidence width": (
        Sizes(),
        "deepspec",
        {},
        padded("confidence_head.proj.weight", 0, 1),
        {},
        "41 .*32 or 40",
    ),
    "unsure": (
        Sizes(confidence=False),
        "deepspec",
        {},
        None,
        {"confidence_threshold": 0.5},
        "got 0.5.*no",
    ),
    "threshold": (Sizes(), "deepspec", {}, None, {"confidence_threshold": 1.5}, r"got 1.5.*0\.\.1"),
    "sliding": (
        Sizes(),
        "specforge",
        {"use_sliding_window": True, "sliding_window": 8, "layer_types": ["sliding_attention"] * 2},
        None,
        {},
        "sliding_attention",
    ),
    "original DFlash": (
        Sizes(),
        "specforge",
        changed("specforge", projector_type="dflash"),
        None,
        {},
        "got 'dflash'.*'dspark'",
    ),
    "unshifted": (
        Sizes(),
        "speculators",
        {"sample_from_anchor": False},
        None,
        {},
        "sample_from_anchor: got False",
    ),
    "reduced": (Sizes(reduced=30), "speculators", {"draft_vocab_size": 31}, None, {}, "31 .*30"),
    "no map": (
        Sizes(reduced=30),
        "deepspec",
        {},
        {n: v for n, v in random_tensors(Sizes(reduced=30)).items() if n != "d2t"},
        {},
        "30 rows and no table d2t.* 61",
    ),
    "a layer's tensor": (
        Sizes(),
        "deepspec",
        {},
        without("layers.1.mlp.up_proj.weight"),
        {},
        "layers/1/mlp/up_proj",
    ),
    "an unknown tensor": (
        Sizes(),
        "deepspec",
        {},
        {**without(), "gru.weight": np.ones(2)},
        {},
        "gru.weight",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_drafter_that_does_not_fit_is_refused_with_both_sides(case, target_path, tmp_path):
    sizes, form, fields, tensors, options, message = REFUSED[case]
    write(tmp_path / "drafter", sizes, form, config=fields, tensors=tensors)
    with pytest.raises(ValueError, match=message):
        load_drafter(str(tmp_path / "drafter"), target=small_target(target_path), **options)


@pytest.mark.parametrize("damage", ["indices instead of offsets", "beyond the vocabulary", "t2d"])
def test_a_vocabulary_map_that_is_none_is_refused(damage, target_path, tmp_path):
    sizes = Sizes(reduced=30)
    tensors = random_tensors(sizes)
    if damage == "indices instead of offsets":
        tensors["d2t"] = tensors["d2t"] + np.arange(30)
    elif damage == "beyond the vocabulary":
        tensors["d2t"][-1] = 61
    else:
        tensors["t2d"] = ~tensors["t2d"]
    write(tmp_path / "drafter", sizes, "speculators", tensors=tensors)
    with pytest.raises(ValueError, match="d2t"):
        load_drafter(str(tmp_path / "drafter"), target=small_target(target_path))


def test_fields_that_speculators_leaves_out_come_from_the_tensors(target_path, tmp_path):
    target = small_target(target_path)
    config = released_config(Sizes(), "speculators")
    kept = {"model_type": "qwen3", "rope_parameters": {"rope_theta": 123.0, "rope_type": "default"}}
    shapes = {name: value.shape for name, value in random_tensors(Sizes()).items()}
    facts, options = target_facts(target), DrafterOptions()
    read = dspark.FAMILY.read_config
    sparse = read({**config, "transformer_layer_config": kept}, shapes, facts, options).decoder
    assert (sparse.hidden_size, sparse.num_layers, sparse.head_dim) == (32, 2, 8)
    assert (sparse.num_heads, sparse.num_kv_heads, sparse.intermediate_size) == (8, 2, 48)
    assert sparse.rope.theta == 123.0 and sparse.norm_eps == 1e-6
    classic = {**kept, "rope_theta": 123.0, "rope_parameters": None}
    assert (
        read({**config, "transformer_layer_config": classic}, shapes, facts, options).decoder
        == sparse
    )


def test_its_tensors_are_told_from_those_of_other_families():
    assert find_family(random_tensors(Sizes()), {}).name == "dspark"
    assert not dspark.FAMILY.is_released_as({"fc.weight", "midlayer.hidden_norm.weight"}, {})
    assert not dspark.FAMILY.is_released_as({"fc.weight", "layers.0.hidden_norm.weight"}, {})
