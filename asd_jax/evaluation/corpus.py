"""Earlier outputs as a corpus in which the drafter `ngram` looks up what came next."""

from __future__ import annotations

import json
from pathlib import Path


def read_corpus(path: str | Path, target_digest: str) -> list[list[int]]:
    """Returns the token ids of every distinct answer in an output file (see `records`).

    Args:
      path: The file.
      target_digest: `CheckpointSource.digest()` of the target whose ids they must be.

    Raises:
      ValueError: The file is no output file or was made with another target, naming both.
      OSError: It cannot be read.
    """
    lines = Path(path).read_bytes().split(b"\n")  # texts may hold other line ends
    try:
        header, *rows = [json.loads(line) for line in lines if line]
        made_with = header["run"]["target"]["digest"]
        answers = {tuple(int(i) for i in row["token_ids"]): None for row in rows}
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"corpus: {path}: not an output file of experiments.decode") from error
    if made_with != target_digest:
        raise ValueError(
            f"corpus: {path}: was made with the target of digest {made_with}, this one's is "
            f"{target_digest}"
        )
    return [list(answer) for answer in answers if answer]
