"""The order of training depends on seed and step alone, covers everything, and pads little."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asd_jax.training.batches import (
    batch_at,
    held_out_batches,
    num_batches,
    padded_lengths,
    rows_at,
)
from tests.training.example_sets import make_examples


def of_lengths(lengths, **options):
    """Texts that begin with their own number."""
    texts = [[number] * length for number, length in enumerate(lengths)]
    return make_examples(texts, [length - 2 for length in lengths], **options)


@settings(max_examples=30, deadline=None)
@given(
    lengths=st.lists(st.integers(3, 90), min_size=1, max_size=120),
    num_held_out=st.integers(0, 40),
    batch_size=st.integers(1, 9),
    seed=st.integers(0, 2**40),
    epoch=st.integers(0, 3),
)
def test_an_epoch_has_every_training_example_exactly_once(
    lengths, num_held_out, batch_size, seed, epoch
):
    examples = of_lengths(lengths, held_out=range(min(num_held_out, len(lengths) - 1)))
    size = num_batches(examples, batch_size)
    batches = [
        rows_at(examples, step, batch_size=batch_size, seed=seed)
        for step in range(epoch * size, (epoch + 1) * size)
    ]
    assert sorted(np.concatenate(batches)) == list(examples.rows())
    assert sum(rows.size < batch_size for rows in batches) <= 1


def test_a_step_is_the_same_whenever_it_is_asked_for():
    examples = of_lengths(range(3, 103))
    options = {"batch_size": 4, "buckets": padded_lengths(examples)}
    steps = {step: batch_at(examples, step, seed=1, **options) for step in range(60)}
    for step in (59, 0, 31):
        again = batch_at(examples, step, seed=1, **options)
        for name in ("tokens", "length", "label_start"):
            np.testing.assert_array_equal(getattr(again, name), getattr(steps[step], name))


def test_epochs_and_seeds_have_orders_of_their_own():
    examples = of_lengths([5] * 64)

    def order(seed, epoch):
        steps = range(epoch * 16, (epoch + 1) * 16)
        return tuple(
            int(row) for step in steps for row in rows_at(examples, step, batch_size=4, seed=seed)
        )

    orders = {order(seed, epoch) for seed in range(3) for epoch in range(3)}
    assert len(orders) == 9 and tuple(range(64)) not in orders


def test_the_order_stays_what_it_is():
    # Written down once: a run must go on with the same texts after an update.
    examples = of_lengths([3, 9, 4, 8, 5, 7])
    order = [int(rows_at(examples, step, batch_size=1, seed=7)[0]) for step in range(12)]
    assert order == [0, 1, 3, 5, 4, 2, 1, 3, 2, 4, 5, 0]


@pytest.mark.parametrize("longest", [200, 500])
def test_padding_is_bounded(longest):
    lengths = np.random.default_rng(0).integers(20, longest, 1000)
    examples = of_lengths(lengths)
    buckets = padded_lengths(examples)
    batches = [
        batch_at(examples, step, batch_size=8, seed=3, buckets=buckets)
        for step in range(num_batches(examples, 8))
    ]
    size = sum(batch.tokens.size for batch in batches)
    assert 1 - lengths.sum() / size < 0.25
    assert {batch.tokens.shape[1] for batch in batches} <= set(buckets)
    # The batches of a window do not come in the order of their lengths.
    widths = [batch.tokens.shape[1] for batch in batches[:16]]
    assert widths != sorted(widths)


def test_a_batch_holds_its_texts_and_missing_rows_have_no_label():
    examples = make_examples([[1, 2, 3], [4, 5, 6, 7]], [1, 2])
    batch = batch_at(examples, 0, batch_size=3, seed=0, buckets=(4, 8))
    assert batch.tokens.tolist() == [[1, 2, 3, 0], [4, 5, 6, 7], [0, 0, 0, 0]]
    assert batch.length.tolist() == [3, 4, 1]
    assert batch.is_label(0).tolist() == [
        [False, True, True, False], [False, False, True, True], [False] * 4,
    ]  # fmt: skip
    assert {str(leaf.dtype) for leaf in (batch.tokens, batch.length, batch.label_start)} == {
        "int32"
    }


def test_the_held_out_part_comes_once_and_never_in_training():
    examples = of_lengths([9, 3, 7, 5, 8, 4], held_out=[0, 2, 3])
    batches = list(held_out_batches(examples, batch_size=2, buckets=(6, 12)))
    assert [batch.tokens[:, 0].tolist() for batch in batches] == [[3, 2], [0, 0]]
    assert [batch.length.tolist() for batch in batches] == [[5, 7], [9, 1]]
    seen = {int(row) for step in range(9) for row in rows_at(examples, step, batch_size=2, seed=0)}
    assert seen == {1, 4, 5}


def test_padded_lengths_are_steps_of_the_prompt_buckets():
    assert padded_lengths(of_lengths([3])) == (64,)
    assert padded_lengths(of_lengths([64, 65])) == (64, 96)
    assert padded_lengths(of_lengths([200]), smallest=32) == (32, 48, 64, 96, 128, 192, 256)


def test_what_does_not_fit_is_refused():
    examples = of_lengths([9])
    with pytest.raises(ValueError, match=r"buckets: got \(4, 8\) for an example of 9 tokens"):
        batch_at(examples, 0, batch_size=1, seed=0, buckets=(4, 8))
    for name, value in (("step", -1), ("seed", -1), ("batch_size", 0)):
        options = {"step": 0, "seed": 0, "batch_size": 1} | {name: value}
        with pytest.raises(ValueError, match=f"{name}: got {value}, allowed is"):
            rows_at(examples, options.pop("step"), **options)


def test_prompts_are_labels_where_they_are_learnt():
    examples = make_examples([[1, 2, 3], [4, 5, 6, 7]], [1, 2])
    examples = dataclasses.replace(examples, learns_prompts=True)
    batch = batch_at(examples, 0, batch_size=3, seed=0, buckets=(4, 8))
    assert batch.is_label(0).tolist() == [
        [False, True, True, False], [False, True, True, True], [False] * 4,
    ]  # fmt: skip
