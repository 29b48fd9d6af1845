"""Rows of output files made of bytes: token id n is byte n, and id 256 is a stop without text."""

import json

from asd_jax.evaluation.statistics.bootstrap import Bootstrap
from asd_jax.evaluation.tasks import Example

STOP = 256
RUN = {"format": 1, "config": {}, "target": {"name": "tiny", "digest": "t"}, "commit": "c0"}
QUICK = Bootstrap(num_resamples=199)


def decode(ids):
    return bytes(i for i in ids if i != STOP).decode("utf-8", "replace")


def encode(text, *, is_stopped=True):
    return [*text.encode(), *([STOP] if is_stopped else [])]


def exception(position, draft_id, target_id, regret):
    return {
        "position": position,
        "draft_id": draft_id,
        "target_id": target_id,
        "draft": decode([draft_id]),
        "target": decode([target_id]),
        "regret": regret,
        "reused": 0,
    }


def make_row(own, arm, ids, histogram=None, exceptions=(), *, turns=None, **ledger):
    """Returns a row of one turn with the ids `ids`, or of several with those of `turns`."""
    several = [ids] if turns is None else turns
    parts = [
        {
            "text": decode(part),
            "token_ids": list(part),
            "prompt_tokens": 3,
            "completion_tokens": len(part),
            "finish_reason": "stop" if part and part[-1] == STOP else "length",
        }
        for part in several
    ]
    size = sum(len(part) for part in several)
    histogram = histogram or [sum(max(len(part) - 1, 0) for part in several), 0, 0, 0]
    row = {
        "id": own,
        "arm": arm,
        "text": "\n\n".join(part["text"] for part in parts),
        "token_ids": [token for part in several for token in part],
        "prompt_tokens": 3 * len(parts),
        "completion_tokens": size,
        "finish_reason": parts[-1]["finish_reason"],
        "acceptance_length": 1.0,
        "accept_histogram": histogram,
        "ledger": {
            "spent": sum(entry["regret"] for entry in exceptions),
            "budget": 4.0,
            "exceptions": len(exceptions),
            "reused": 0,
            "proposed": 0,
            "accepted": 0,
            "rounds": sum(histogram),
            "exhausted_at": -1,
            **ledger,
        },
        "exceptions": list(exceptions),
    }
    return row if turns is None else row | {"turns": parts}


def make_example(own, task="gsm8k", reference="5", turns=("How many?",)):
    return Example(own, task, "audit", tuple(turns), reference, {})


def write_rows(path, rows, run=RUN):
    lines = [{"run": run}, *rows]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


FIVE, SIX = "\\boxed{5}", "\\boxed{6}"
EXAMPLES = [make_example(f"g/{i}") for i in range(4)]
STRICT_ROWS = [
    make_row("g/0", "strict", encode(FIVE), [3, 3, 0, 0]),
    make_row("g/1", "strict", encode(FIVE), [3, 3, 0, 0]),
    make_row("g/2", "strict", encode(SIX), [3, 3, 0, 0]),
    make_row("g/3", "strict", encode("abcZefghijklmnopqrst", is_stopped=False), [1, 0, 2, 3]),
]
ASD_ROWS = [
    make_row("g/0", "asd", encode(FIVE), [3, 3, 0, 0]),
    make_row(
        "g/1", "asd", encode(SIX), [0, 3, 1, 0], [exception(7, ord("6"), ord("5"), 1.5)], reused=1
    ),
    make_row(
        "g/2",
        "asd",
        encode("x" + FIVE),
        [0, 2, 2, 0],
        [exception(0, ord("x"), ord("\\"), 0.5)],
        reused=2,
    ),
    make_row(
        "g/3",
        "asd",
        encode("abXY"),
        [0, 0, 0, 1],
        [exception(2, ord("X"), ord("c"), 1.0), exception(3, ord("Y"), ord("Z"), 3.0)],
        reused=1,
        exhausted_at=1,
    ),
]
ROWS = [row for both in zip(STRICT_ROWS, ASD_ROWS, strict=True) for row in both]
