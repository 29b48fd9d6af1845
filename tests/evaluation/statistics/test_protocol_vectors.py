"""The authors' cases of calibration and protocol (tests/data/asd_vectors.json), and figures."""

import collections
import json
import pathlib

import pytest

from asd_jax.evaluation.statistics import bcb
from asd_jax.evaluation.statistics.counters import (
    AcceptanceCounts,
    TimedRequest,
    count_acceptance,
    formal_timing,
)
from asd_jax.evaluation.statistics.quantile import linear_q25
from asd_jax.evaluation.statistics.split import split_examples

ENTRIES = collections.defaultdict(list)
for _entry in json.loads(
    (pathlib.Path(__file__).parents[2] / "data" / "asd_vectors.json").read_text()
):
    ENTRIES[_entry["variant"]].append(_entry)

SECOND = 10**9


def name_of(entry):
    return entry["name"]


@pytest.mark.parametrize("entry", ENTRIES["linear_q25"], ids=name_of)
def test_linear_q25(entry):
    if entry["expect"] == "ValueError":
        with pytest.raises(ValueError, match="values: got"):
            linear_q25(entry["inputs"])
    else:
        assert linear_q25(entry["inputs"]) == entry["expect"]


# The same verdict under the name that older reports of the authors give it.
FIELDS = {"delta_tps_pct": "gain_percent", "speed_eligible": "protocol_valid"}


@pytest.mark.parametrize("entry", ENTRIES["bcb"], ids=name_of)
def test_bcb(entry):
    inputs, expect = entry["inputs"], dict(entry["expect"])
    roles = [
        bcb.Role(inputs[name], tokens)
        for name, tokens in zip(("pre", "cand", "post"), inputs["tokens"], strict=True)
    ]
    got = bcb.judge(
        *roles,
        fixed_work=inputs["fixed"],
        accuracy_delta=inputs.get("accuracy_delta_pp"),
        length_change_percent=inputs.get("length_delta_pct"),
    )
    if reason := expect.pop("reason", None):
        assert reason in got.reasons
    for field, value in expect.items():
        assert getattr(got, FIELDS.get(field, field)) == value, field


def test_split():
    (entry,) = ENTRIES["dataset_split"]
    expect = entry["expect"]
    got = split_examples(entry["inputs"]["n"], seed=entry["inputs"]["seed"])
    assert got == split_examples(entry["inputs"]["n"])
    assert list(got.calibration) == expect["calibration"]
    assert list(got.formal[: len(expect["formal_head"])]) == expect["formal_head"]
    assert [len(got.calibration), len(got.formal)] == expect["sizes"]
    assert got.warmup == got.calibration[:10]
    assert got.digest == "616da1299e838d392db108c5fca43f1f50a6d88e5e085e530db6bf4c4f8eaf8b"


def test_formal_timing():
    (entry,) = ENTRIES["formal_timing"]
    inputs, expect = entry["inputs"], entry["expect"]
    each, backoff = inputs["seconds_each"] * SECOND, inputs["backoff_s"] * SECOND
    clock = inputs["warmups"] * each
    requests = []
    for i in range(inputs["requests"]):
        attempts = 2 if i < inputs["failures"] else 1
        end = clock + attempts * each + (attempts - 1) * backoff
        requests.append(TimedRequest(clock, end, completion_tokens=1, attempts=attempts))
        clock = end
    got = formal_timing(requests)
    assert (got.start_ns, got.end_ns) == (expect["start_ns"], expect["end_ns"])
    assert got.wall_seconds == expect["wall_s"]
    assert got.tokens_per_second == expect["tps"]
    assert got.retry_attempts == expect["retry_attempts"]


def test_acceptance_counters():
    (entry,) = ENTRIES["acceptance_counters"]
    inputs, expect = entry["inputs"], entry["expect"]
    got = count_acceptance(
        [inputs["histogram"]], [inputs["proposed"]], [inputs["completion_tokens"]]
    )
    assert got.proposals == expect["proposal_count"] == inputs["verify_ct"]
    assert got.accepted == inputs["correct"]
    assert list(got.by_position) == expect["by_position"]
    assert got.acceptance_rate == inputs["accept_rate"]
    assert got.acceptance_length_with_bonus == inputs["accept_length"]
    assert got.completion_tokens == expect["length_sum"]
    assert got.proposals == expect["length_count"]


# DeepSeek-V4-Flash with DSpark on 500 examples of GSM8K, as published.
@pytest.mark.parametrize(
    ("tokens", "seconds", "proposals", "accepted", "speed", "per_proposal", "length"),
    [
        (74_594, 2348.319, 16_045, 58_473, 31.765, 3.6443, 4.6490),
        (75_819, 2263.710, 15_386, 60_357, 33.493, 3.9229, 4.9278),
    ],
    ids=["native", "asd"],
)
def test_published_deepseek_figures(
    tokens, seconds, proposals, accepted, speed, per_proposal, length
):
    timing = formal_timing([TimedRequest(0, round(seconds * SECOND), tokens)])
    assert timing.tokens_per_second == pytest.approx(speed, abs=5e-4)
    counts = AcceptanceCounts(proposals, 5 * proposals, accepted, (), tokens)
    assert counts.accepted_per_proposal == pytest.approx(per_proposal, abs=5e-5)
    assert counts.acceptance_length_with_bonus == pytest.approx(length, abs=5e-5)
