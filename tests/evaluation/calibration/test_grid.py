"""Grids of settings, and the prompt rows that try them."""

from __future__ import annotations

import pytest

from asd_jax.evaluation.calibration.grid import (
    Setting,
    by_setting,
    grid,
    grid_rows,
    require_split,
    split_id,
)
from asd_jax.evaluation.prompts import parse_record
from asd_jax.evaluation.tasks import read_examples, sample_path

EXAMPLES = read_examples(sample_path("gsm8k"), "gsm8k")


def test_from_strict_to_loose_and_each_once():
    settings = grid([8, 4, 8], [0.5, 0.25], [2, 1])
    assert [(s.gate, s.block_cap, s.budget) for s in settings] == [
        (0.25, 1, 4), (0.25, 1, 8), (0.25, 2, 4), (0.25, 2, 8),
        (0.5, 1, 4), (0.5, 1, 8), (0.5, 2, 4), (0.5, 2, 8),
    ]  # fmt: skip
    assert [s.draft_length for s in grid([1], [1], [1], [5, 3, None])] == [None, 3, 5]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([], [1], [1]), "budgets: got"),
        (([1], [0], [1]), "gates: got"),
        (([1], [1], [0]), "block_caps: got"),
        (([1], [1], [1], [0]), "draft_lengths: got"),
    ],
)
def test_grids_that_are_none(arguments, message):
    with pytest.raises(ValueError, match=message):
        grid(*arguments)


def test_rows_are_prompts_with_their_own_controls():
    settings = grid([4, 8], [0.25], [2], [3])
    rows = list(grid_rows(EXAMPLES[:2], settings))
    assert len(rows) == 4 and len({row["id"] for row in rows}) == 4
    for place, row in enumerate(rows):
        prompt = parse_record(row)
        example, number = split_id(row["id"])
        assert example == EXAMPLES[place // 2].id and number == place % 2
        assert (prompt.budget, prompt.gate, prompt.block_cap, prompt.draft_length) == (
            settings[number].budget, 0.25, 2, 3,
        )  # fmt: skip
        assert "boxed" in prompt.content[-1]
    table = by_setting(rows)
    assert {number: list(part) for number, part in table.items()} == {
        number: [example.id for example in EXAMPLES[:2]] for number in (0, 1)
    }


def test_ids_may_hold_the_mark_themselves():
    assert split_id("a#b#7") == ("a#b", 7)
    for wrong in ("a", "a#", "a#x"):
        with pytest.raises(ValueError, match="id: got"):
            split_id(wrong)


def test_examples_of_another_split_are_refused():
    audit = [e for e in EXAMPLES if e.split == "audit"]
    with pytest.raises(ValueError, match="split: got 'audit', allowed is 'calibration'"):
        require_split(audit, "calibration")
    require_split(audit, "audit")


def test_settings_say_what_they_override():
    assert Setting(0.25, 2, 8.0).overrides() == {"budget": 8.0, "gate": 0.25, "block_cap": 2}
