"""Examples without files."""

from __future__ import annotations

import numpy as np

from asd_jax.training.examples import Examples, Report
from asd_jax.training.exclusion import Dropped


def make_examples(texts, answer_start, *, held_out=(), stop_ids=()):
    """Builds examples of lists of ids; `held_out` are numbers of texts."""
    lengths = [len(text) for text in texts]
    return Examples(
        tokens=np.concatenate([np.asarray(text, np.int32) for text in texts]),
        offsets=np.cumsum([0, *lengths], dtype=np.int64),
        answer_start=np.asarray(answer_start, np.int32),
        is_held_out=np.isin(np.arange(len(texts)), held_out),
        ids=tuple(str(number) for number in range(len(texts))),
        stop_ids=stop_ids,
        report=Report(len(texts), len(held_out), sum(lengths), 0, 0, {}, 0, Dropped(())),
    )
