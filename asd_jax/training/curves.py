"""Draws a training run's log: the loss, and what held-out decoding came to."""

from __future__ import annotations

import json
from pathlib import Path


def draw(log: Path, picture: Path) -> None:
    """Writes a PNG of the curves in a log.

    Args:
      log: `log.jsonl` of `asd_jax.training.trainer`.
      picture: The PNG.

    Raises:
      ImportError: matplotlib is missing: pip install 'asd_jax[plots]'.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    lines = [json.loads(line) for line in log.read_text().splitlines()]
    losses = [(line["step"], line["loss"]) for line in lines if "loss" in line]
    held_out = [
        (line["step"], line["held_out"]["acceptance_length"])
        for line in lines
        if "held_out" in line
    ]
    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.5), constrained_layout=True)
    for axis, points, title in (
        (axes[0], losses, "training loss, nats"),
        (axes[1], held_out, "held-out tokens a target forward"),
    ):
        if points:
            axis.plot(*zip(*points, strict=True), marker="o" if len(points) < 40 else None)
        axis.set_xlabel("batches")
        axis.set_title(title)
        axis.grid(alpha=0.3)
    figure.savefig(picture, dpi=120)
    pyplot.close(figure)
