"""EAGLE-3 checkpoints: what their configs and tensors mean, what is shared, what is refused."""

from __future__ import annotations

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from asd_jax import load_drafter, load_target
from asd_jax.checkpoints.source import CheckpointError
from asd_jax.drafters.eagle3 import FAMILY
from asd_jax.drafters.family import DrafterOptions, TargetFacts
from asd_jax.load.drafter import find_family, target_facts
from asd_jax.models import MODELS
from tests import tiny
from tests.drafters.eagle3_files import DIM, DRAFT_VOCAB, FIELDS, NUM_DRAFT, TARGET, VARIANTS, VOCAB

IDS = "eagle_aux_hidden_state_layer_ids"
SHARED = VARIANTS["shared_tables"]  # of the default layers


def facts_of(num_layers=8, **changes):
    config = MODELS["qwen3"].read_config({**TARGET, "num_hidden_layers": num_layers, **changes})
    table = jax.ShapeDtypeStruct((config.vocab_size, config.hidden_size), jnp.float32)
    return TargetFacts(config=config, embed_tokens=table, lm_head=table)


def names_and_shapes(variant):
    return {
        re.sub(r"^layer\.", variant.layer, name): value.shape
        for name, value in variant.tensors().items()
    }


def read(variant, config=None, *, shapes=None, facts=None, **options):
    return FAMILY.read_config(
        variant.config if config is None else config,
        shapes or names_and_shapes(variant),
        facts or facts_of(),
        DrafterOptions(**options),
    )


@pytest.mark.parametrize("name", VARIANTS)
def test_every_layout_is_recognised_and_names_its_layers(name):
    variant = VARIANTS[name]
    assert find_family(names_and_shapes(variant), variant.config) is FAMILY
    assert read(variant).feature_layers == variant.feature_layers


@pytest.mark.parametrize(
    ("fields", "convention", "expected"),
    [
        ({}, None, (2, 4, 5)),
        ({IDS: None}, None, (2, 4, 5)),
        ({IDS: [1, 3, 5]}, None, (1, 3, 5)),  # what enters a layer: EAGLE, vLLM, speculators
        ({IDS: [1, 3, 5]}, "layer_output", (2, 4, 6)),
        ({"eagle_config": {IDS: [1, 3, 5]}}, None, (2, 4, 6)),  # what a layer gives: SpecForge
        ({"eagle_config": {IDS: [1, 3, 5]}}, "layer_input", (1, 3, 5)),
        ({"eagle_config": {"use_aux_hidden_state": True}}, None, (2, 4, 5)),
        ({"target_layer_ids": [1, 3, 7]}, None, (2, 4, 8)),  # DeepSpec
        ({IDS: [0, 3, 8]}, None, (0, 3, 8)),
    ],
)
def test_layer_ids_in_both_conventions(fields, convention, expected):
    got = read(SHARED, {**FIELDS, **fields}, tap_convention=convention)
    assert got.feature_layers == expected


@pytest.mark.parametrize("num_layers", [4, 6])
def test_small_targets_need_named_layers(num_layers):
    facts = facts_of(num_layers)
    with pytest.raises(ValueError, match=f"{num_layers} layers has no three ascending default"):
        read(SHARED, facts=facts)
    assert read(SHARED, {**FIELDS, IDS: [1, 2, 4]}, facts=facts).feature_layers == (1, 2, 4)


def test_tensors_tell_sizes_that_the_config_has_from_elsewhere():
    wrong = {**FIELDS, "num_hidden_layers": 36, "num_key_value_heads": 4, "intermediate_size": 999}
    decoder = read(SHARED, wrong).decoder
    sizes = decoder.num_layers, decoder.num_heads, decoder.num_kv_heads, decoder.intermediate_size
    assert sizes == (1, 4, 2, 24)
    narrow = read(SHARED, {**FIELDS, "head_dim": 4}).decoder
    assert (narrow.head_dim, narrow.num_heads, narrow.num_kv_heads) == (4, 8, 4)
    normed = read(VARIANTS["speculators"], {**VARIANTS["speculators"].config, "head_dim": 999})
    assert normed.decoder.head_dim == 12 and normed.decoder.qk_norm


def test_rope_is_the_drafts_own():
    facts = facts_of(rope_theta=5e5)
    plain = read(SHARED, facts=facts).decoder.rope
    assert (plain.theta, plain.kind) == (10000.0, "default")
    assert read(SHARED, {**FIELDS, "rope_theta": 70.0}, facts=facts).decoder.rope.theta == 70.0
    assert read(VARIANTS["speculators"], facts=facts).decoder.rope.theta == 500.0
    scaled = {"rope_type": "linear", "factor": 2.0}
    rope = read(SHARED, {**FIELDS, "rope_scaling": scaled}, facts=facts).decoder.rope
    assert (rope.kind, rope.factor) == ("linear", 2.0)
    sections = {"type": "mrope", "mrope_section": [1, 1, 2]}
    rope = read(SHARED, {**FIELDS, "rope_scaling": sections}, facts=facts).decoder.rope
    assert rope == plain


def test_norm_output_means_what_its_producer_means():
    assert read(VARIANTS["speculators"]).norm_output
    assert not read(VARIANTS["specforge"]).norm_output  # though its config says true
    silent = {k: v for k, v in VARIANTS["speculators"].config.items() if k != "norm_output"}
    assert not read(VARIANTS["speculators"], silent).norm_output


def test_number_of_drafts_is_the_users_the_configs_or_five():
    assert read(SHARED).num_draft_tokens == 5
    assert read(VARIANTS["speculators"]).num_draft_tokens == NUM_DRAFT
    assert read(VARIANTS["speculators"], num_draft_tokens=2).num_draft_tokens == 2
    with pytest.raises(ValueError, match="num_draft_tokens: got 0"):
        read(SHARED, num_draft_tokens=0)


def reshaped(variant, **shapes):
    """Returns a variant's shapes with some replaced, or left out where None."""
    new = names_and_shapes(variant) | {k.replace("__", "."): v for k, v in shapes.items()}
    return {name: shape for name, shape in new.items() if shape is not None}


REDUCED = VARIANTS["specforge"]
REFUSED = {
    "hidden_size": (SHARED, {"hidden_size": 48}, {"fc__weight": (48, 96)}, "48 in .*have 32"),
    "target_hidden_size": (SHARED, {"target_hidden_size": 64}, {}, "got 64 .* target has 32"),
    "vocab_size": (SHARED, {"vocab_size": 99}, {}, "got 99 in the drafter, the target has 61"),
    "too few layers": (SHARED, {IDS: [1, 2]}, {}, r"reads 96 numbers, .*\[1, 2\] give 2 x 32"),
    "fc of another width": (SHARED, {}, {"fc__weight": (32, 160)}, "reads 160 numbers.* 3 x 32"),
    "no fc": (SHARED, {}, {"fc__weight": None}, "no fc.weight, reads 32 numbers.* 3 x 32"),
    "id too high": (SHARED, {IDS: [1, 2, 9]}, {}, r"\[1, 2, 9\].*0..8 with a target of 8 layers"),
    "output id too high": (SHARED, {"eagle_config": {IDS: [1, 2, 8]}}, {}, "0..7 with a target"),
    "ids no list": (SHARED, {IDS: "1,2"}, {}, "got '1,2', allowed is a list"),
    "map missing": (REDUCED, {}, {"d2t": None, "t2d": None}, "map 40 draft ids to the target's 61"),
    "Vd in conflict": (REDUCED, {"draft_vocab_size": 50}, {}, "'d2t': 40.*'draft_vocab_size': 50"),
    "Vd too large": (SHARED, {"draft_vocab_size": 99}, {}, "got 99, the target has 61"),
    "two layers": (SHARED, {}, {"layers__1__mlp__up_proj__weight": (24, 32)}, "one draft layer"),
    "both norms": (SHARED, {"norm_before_fc": True, "fc_norm": True}, {}, "got both"),
    "window": (SHARED, {"use_sliding_window": True}, {}, "use_sliding_window"),
    "odd heads": (SHARED, {"head_dim": 10}, {}, "got 10, .*q_proj 32 and k_proj 16"),
    "no attention": (SHARED, {}, {"model__layers__0__self_attn__q_proj__weight": None}, "q_proj"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused_with_both_sides(case):
    variant, fields, shapes, message = REFUSED[case]
    assert read(variant)  # as it is
    with pytest.raises(ValueError, match=message):
        read(variant, {**variant.config, **fields}, shapes=reshaped(variant, **shapes))


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    path = tiny.write_checkpoint(tmp_path_factory.mktemp("eagle3_config") / "target", TARGET)
    return load_target(str(path))


def load(target, directory, variant, changed, config=None):
    """Loads a variant with some tensors replaced, or left out where None."""
    tensors = {k: v for k, v in (variant.tensors() | changed).items() if v is not None}
    return load_drafter(variant.write(directory, tensors, config), target=target)


def numbers(tensors):
    return sum(value.size for name, value in tensors.items() if name not in ("d2t", "t2d"))


@pytest.mark.parametrize("kind", ["missing", "zeros", "NaN", "the target's"])
def test_embedding_that_says_nothing_is_the_targets(target, tmp_path, kind):
    variant, shared = VARIANTS["own_tables"], target_facts(target).embed_tokens
    table = {
        "missing": None,
        "zeros": np.zeros((VOCAB, DIM), np.float32),
        "NaN": np.full((VOCAB, DIM), np.nan, np.float32),
        "the target's": np.asarray(shared),
    }[kind]
    drafter = load(target, tmp_path, variant, {"embed_tokens.weight": table})
    assert drafter.params.embed_tokens is shared
    assert drafter.num_params == numbers(variant.tensors()) - VOCAB * DIM


def test_trained_embedding_and_head_stay_the_drafters_own(target, tmp_path):
    variant = VARIANTS["own_tables"]
    tensors = variant.tensors()
    drafter = load(target, tmp_path, variant, {})
    np.testing.assert_array_equal(drafter.params.embed_tokens, tensors["embed_tokens.weight"])
    np.testing.assert_array_equal(drafter.params.head, tensors["lm_head.weight"])
    assert drafter.num_params == numbers(tensors)


def test_missing_head_is_the_targets_rows(target, tmp_path):
    head = target_facts(target).lm_head
    whole = load(target, tmp_path / "whole", SHARED, {})
    assert whole.params.head is head
    assert whole.num_params == numbers(SHARED.tensors())
    reduced = load(target, tmp_path / "reduced", REDUCED, {})
    ids = np.flatnonzero(REDUCED.tensors()["t2d"])
    np.testing.assert_array_equal(reduced.params.head, np.asarray(head)[ids])
    np.testing.assert_array_equal(reduced.params.token_ids, ids)
    assert reduced.params.token_ids.dtype == jnp.int32


def test_vocabulary_map_is_optional_where_all_is_scored(target, tmp_path):
    zeros = {"d2t": np.zeros(VOCAB, np.int64), "t2d": np.ones(VOCAB, bool)}
    drafter = load(target, tmp_path, SHARED, zeros, {**FIELDS, "draft_vocab_size": VOCAB})
    assert drafter.params.token_ids is None


@pytest.mark.parametrize("left_out", ["d2t", "t2d"])
def test_either_map_is_enough(target, tmp_path, left_out):
    drafter = load(target, tmp_path, REDUCED, {left_out: None})
    expected = np.flatnonzero(REDUCED.tensors()["t2d"])
    np.testing.assert_array_equal(drafter.params.token_ids, expected)


def broken_maps():
    offsets, mask = REDUCED.tensors()["d2t"], REDUCED.tensors()["t2d"]
    ids = offsets + np.arange(DRAFT_VOCAB)
    falling, beyond, before, more = offsets.copy(), offsets.copy(), offsets.copy(), mask.copy()
    falling[[3, 4]] += [ids[4] - ids[3], ids[3] - ids[4]]
    beyond[-1] = VOCAB - (DRAFT_VOCAB - 1)
    before[0] = -1
    more[np.flatnonzero(~mask)[0]] = True
    return {
        "ids instead of offsets": ({"d2t": ids, "t2d": None}, r"target's 0\.\.60"),
        "not ascending": ({"d2t": falling}, "ascending"),
        "beyond the target": ({"d2t": beyond}, r"\.\.61, allowed .* target's 0\.\.60"),
        "before the target": ({"d2t": before}, r"got target ids -1\.\."),
        "all zero": ({"d2t": np.zeros_like(offsets)}, "not the 40 of the draft vocabulary"),
        "other mask": ({"t2d": more}, "marks 41 target ids, not the 40"),
        "mask alone, too large": ({"d2t": None, "t2d": more}, "marks 41 target ids, not the 40"),
        "rounded": ({"d2t": offsets.astype(np.float32)}, "float32, allowed are integers"),
    }


@pytest.mark.parametrize("case", broken_maps())
def test_vocabulary_map_that_is_none_is_refused(target, tmp_path, case):
    changed, message = broken_maps()[case]
    with pytest.raises(CheckpointError, match=message):
        load(target, tmp_path, REDUCED, changed)


@pytest.mark.parametrize(
    ("fields", "changed", "message"),
    [
        ({"fc_norm": False}, {}, "fc_norm/0/weight"),
        ({}, {"fc_norm.4.weight": None}, "without a tensor: fc_norm/4/weight"),
        ({}, {"input_norm.weight": np.ones(5 * DIM, np.float32)}, "input_norm.weight"),
        ({}, {"norm.weight": np.ones(DIM + 1, np.float32)}, "norm/weight.*33.*32"),
        ({"draft_vocab_size": None}, {"lm_head.weight": np.ones((50, DIM))}, "lm_head.weight': 50"),
    ],
)
def test_norms_and_tables_that_do_not_go_with_the_config(
    target, tmp_path, fields, changed, message
):
    with pytest.raises(CheckpointError, match=message):
        load(target, tmp_path, REDUCED, changed, {**REDUCED.config, **fields})


def test_useless_embedding_of_another_width_is_refused(target, tmp_path):
    """The target's cannot take its place."""
    wide = {"hidden_size": 48, "target_hidden_size": DIM}
    shapes = {
        name: tuple(48 if size == DIM and name != "fc.weight" else size for size in value.shape)
        for name, value in SHARED.tensors().items()
    }
    shapes |= {"embed_tokens.weight": (VOCAB, 48), "lm_head.weight": (VOCAB, 48)}
    shapes |= {"fc.weight": (48, 3 * DIM)}
    shapes |= {
        f"layer.self_attn.{n}_proj.weight": (w, 96) for n, w in dict(q=48, k=24, v=24).items()
    }
    shapes["layer.self_attn.o_proj.weight"] = (48, 48)
    tensors = {name: np.full(shape, 0.1, np.float32) for name, shape in shapes.items()}
    variant = dataclasses.replace(SHARED, config={**FIELDS, **wide})
    drafter = load_drafter(variant.write(tmp_path / "whole", tensors), target=target)
    assert drafter.params.embed_tokens.shape == (VOCAB, 48)
    tensors["embed_tokens.weight"][:] = 0
    with pytest.raises(CheckpointError, match="width 48, is zero or NaN.*has width 32"):
        load_drafter(variant.write(tmp_path / "zero", tensors), target=target)
