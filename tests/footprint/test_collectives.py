"""Reading of exchanges from HLO text, on a text small enough to count by hand."""

from __future__ import annotations

import pytest

from asd_jax.footprint.collectives import Collective, in_round

SUM = "replica_groups={{0,1,2,3},{4,5,6,7}}, to_apply=%add"
TEXT = f"""HloModule jit_run_rounds

%add (a: f32[], b: f32[]) -> f32[] {{
  ROOT %sum = f32[] add(%a, %b)
}}

%bits (p: (s32[])) -> (s32[]) {{
  %c = f32[8,8]{{1,0}} all-reduce(%x), {SUM}
}}

%greedy (p: (s32[])) -> (s32[]) {{
  %m = s32[8]{{0}} all-reduce(%x), {SUM}
}}

%sampled (p: (s32[])) -> (s32[]) {{
  %w = (s32[]) while(%p), condition=%less, body=%bits, backend_config={{"known_trip_count":{{"n":"32"}}}}
}}

%layer (p: f32[4]) -> f32[4] {{
  %r = f32[16,4]{{1,0}} all-reduce(%x), channel_id=1, {SUM}_promoted
}}

%less (p: (s32[])) -> pred[] {{
  ROOT %l = pred[] compare(%p, %n), direction=LT
}}

%round (p: (s32[])) -> (s32[]) {{
  %one = f32[4] call(%p), to_apply=%layer
  %two = f32[4] call(%p), to_apply=%layer
  %k = s32[8] conditional(%i, %p, %p), branch_computations={{%greedy, %sampled}}
  %g = (pred[], pred[]) all-gather(%x, %y), replica_groups=[4,2]<=[2,4]T(1,0), dimensions={{0}}
}}

ENTRY %main (p: (s32[])) -> (s32[]) {{
  %before = s32[99] all-reduce(%p), {SUM}
  %w = (s32[]) while(%p), condition=%less, body=%round
}}
"""  # noqa: E501


def test_exchanges_of_a_round_are_counted_where_they_run():
    greedy = in_round(TEXT, is_sampled=False, promoted_dtype="bf16")
    assert greedy == (
        Collective("all-reduce", "bf16", 64, 4, times=2),
        Collective("all-reduce", "s32", 8, 4, times=1),
        Collective("all-gather", "pred", 2, 2, times=1),
    )
    assert [each.bytes for each in greedy] == [64 * 2 * 2, 8 * 4, 2]
    sampled = in_round(TEXT, is_sampled=True)
    assert Collective("all-reduce", "f32", 64, 4, times=2 + 32) in sampled
    assert not any(each.dtype == "s32" for each in sampled)


def test_a_branch_on_a_truth_value_has_its_false_side_first():
    text = TEXT.replace(
        "branch_computations={%greedy, %sampled}",
        "true_computation=%sampled, false_computation=%greedy",
    )
    for is_sampled in (False, True):
        assert in_round(text, is_sampled=is_sampled) == in_round(TEXT, is_sampled=is_sampled)


def test_programs_without_a_round_and_loops_of_unknown_length_are_refused():
    with pytest.raises(ValueError, match="got 0 open loops"):
        in_round(TEXT.replace("%w = (s32[]) while(%p), condition=%less, body=%round", ""),
                 is_sampled=False)  # fmt: skip
    unknown = TEXT.replace("known_trip_count", "no_trip_count")
    assert in_round(unknown, is_sampled=False) == in_round(TEXT, is_sampled=False)
    with pytest.raises(ValueError, match="in a loop of unknown length"):
        in_round(unknown, is_sampled=True)
