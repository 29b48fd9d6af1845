"""What the target says of the training texts, on disk, so that it is asked once and not each epoch.

Examples are cut into shards of alike lengths. A shard is one file of rows for each *tap*: "hidden",
the final-norm states that teach, or "layer_N", a residual stream that drafters read. Taps are files
of their own, so that drafters of all families and layer choices share what they can. A file
is written beside its place and renamed, and its checksum follows in a file of the same name: what
a kill leaves is whole or counts as missing.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from asd_jax.training.batch import Batch, Signals
from asd_jax.training.examples import Examples

HIDDEN = "hidden"
# Examples a shard: a kill loses the work of one at most, and all taps of one fit into memory.
SHARD = 16
# Examples that the target is asked about at once: more of them outgrow the caches of a CPU.
ASKED = 4
_DTYPE = ml_dtypes.bfloat16


class FeatureStoreError(ValueError):
    """Features cannot be written or read."""


def tap_names(feature_layers: Sequence[int]) -> tuple[str, ...]:
    """Returns the taps of a drafter that reads these hidden_states indices."""
    return (*(f"layer_{layer}" for layer in feature_layers), HIDDEN)


@dataclasses.dataclass(frozen=True)
class Filled:
    """A shard that is there now.

    Attributes:
      done: Shards so far.
      total: Shards to have.
      was_there: Whether it was before.
    """

    done: int
    total: int
    was_there: bool


class FeatureStore:
    """The features of the training part of some examples under one target."""

    def __init__(
        self,
        directory: str | Path,
        examples: Examples,
        *,
        target_digest: str,
        feature_layers: Sequence[int],
        dtype: Any,
        max_bytes: int,
    ) -> None:
        """Opens or begins a store.

        Args:
          directory: Holds a folder for each set of texts and target.
          examples: The texts.
          target_digest: Of the target.
          feature_layers: hidden_states indices that are read.
          dtype: Of the signals that are read; they are stored as bfloat16.
          max_bytes: Most that the folder may take; what does not fit is asked of the target again.

        Raises:
          FeatureStoreError: The folder cannot be made.
        """
        self._examples, self._taps = examples, tap_names(feature_layers)
        self._dtype, self._max_bytes = jnp.dtype(dtype), max_bytes
        digest = hashlib.sha256(target_digest.encode())
        digest.update(examples.tokens.tobytes() + examples.offsets.tobytes())
        self.directory = Path(directory) / digest.hexdigest()[:16]
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FeatureStoreError(f"{self.directory}: cannot be made: {error}") from error
        rows = examples.rows()
        order = rows[np.argsort(examples.lengths[rows], kind="stable")]
        self._shards = [order[start : start + SHARD] for start in range(0, order.size, SHARD)]
        # Row of an example: its shard and where in it its tokens begin.
        self._place: dict[int, tuple[int, int]] = {}
        for number, shard in enumerate(self._shards):
            starts = np.concatenate([[0], np.cumsum(examples.lengths[shard])])
            for row, start in zip(shard.tolist(), starts.tolist(), strict=False):
                self._place[row] = (number, start)
        self._open: dict[tuple[int, str], np.ndarray] = {}

    def fill(
        self, ask: Callable[[Batch], Signals], batch_at: Callable[[np.ndarray], Batch]
    ) -> Iterator[Filled]:
        """Asks the target about every shard that is not there, as long as there is room.

        Args:
          ask: What the target says of a batch, its features those of the store's layers.
          batch_at: Pads the examples of some rows, `ASKED` at most.

        Raises:
          FeatureStoreError: The disk is full or cannot be written.
        """
        taken = sum(path.stat().st_size for path in self.directory.glob("*.npy"))
        for number, shard in enumerate(self._shards):
            missing = [tap for tap in self._taps if not self._check(number, tap)]
            if missing:
                rows = self._ask(shard, ask, batch_at)
                taken += sum(rows[tap].nbytes for tap in missing)
                if taken > self._max_bytes:
                    return
                for tap in missing:
                    self._write(number, tap, rows[tap])
            yield Filled(number + 1, len(self._shards), was_there=not missing)

    def _ask(
        self,
        shard: np.ndarray,
        ask: Callable[[Batch], Signals],
        batch_at: Callable[[np.ndarray], Batch],
    ) -> dict[str, np.ndarray]:
        """Returns the rows of a shard by tap, one example behind the other, [tokens, D]."""
        packed: dict[str, list[np.ndarray]] = {tap: [] for tap in self._taps}
        for start in range(0, shard.size, ASKED):
            rows = shard[start : start + ASKED]
            signals = ask(batch_at(rows))
            parts = _parts(signals, signals.hidden.shape[-1])
            for tap, part in zip(self._taps, parts, strict=True):
                packed[tap].append(_packed(part, self._examples.lengths[rows]))
        return {tap: np.concatenate(parts) for tap, parts in packed.items()}

    def read(self, rows: np.ndarray, num_rows: int, num_tokens: int) -> Signals | None:
        """Returns the signals of a batch, or None where one of its examples is not here.

        Args:
          rows: Examples.
          num_rows: B; rows behind the examples are zero.
          num_tokens: T that the batch is padded to.
        """
        parts = []
        for tap in self._taps:
            part = None
            for index, row in enumerate(rows.tolist()):
                number, start = self._place[row]
                stored = self._open.get((number, tap))
                if stored is None:
                    return None
                length = int(self._examples.lengths[row])
                if part is None:
                    part = np.zeros((num_rows, num_tokens, stored.shape[1]), _DTYPE)
                part[index, :length] = stored[start : start + length].view(_DTYPE)
            assert part is not None
            parts.append(jnp.asarray(part).astype(self._dtype))
        features = jnp.concatenate(parts[:-1], axis=-1) if len(parts) > 1 else parts[-1][..., :0]
        return Signals(features=features, hidden=parts[-1])

    def _path(self, number: int, tap: str) -> Path:
        return self.directory / f"{number:05d}.{tap}.npy"

    def _check(self, number: int, tap: str) -> bool:
        """Opens a file if it is whole; whether it is."""
        if (number, tap) in self._open:
            return True
        path = self._path(number, tap)
        try:
            wanted = json.loads(path.with_suffix(".json").read_text())["sha256"]
            if hashlib.sha256(path.read_bytes()).hexdigest() != wanted:
                return False
            self._open[number, tap] = np.load(path, mmap_mode="r")
        except (OSError, ValueError, KeyError):
            return False
        return True

    def _write(self, number: int, tap: str, rows: np.ndarray) -> None:
        path = self._path(number, tap)
        partial = path.with_suffix(".partial")
        try:
            with partial.open("wb") as file:
                np.save(file, rows.view(np.uint16))
            digest = hashlib.sha256(partial.read_bytes()).hexdigest()
            os.replace(partial, path)
            partial.write_text(json.dumps({"sha256": digest}))
            os.replace(partial, path.with_suffix(".json"))
        except OSError as error:
            partial.unlink(missing_ok=True)
            raise FeatureStoreError(
                f"{path}: cannot be written: {error}; make room or choose a smaller "
                "feature_cache.gib"
            ) from error
        if not self._check(number, tap):
            raise FeatureStoreError(f"{path}: does not read back as it was written")


def rounded(signals: Signals) -> Signals:
    """Rounds to what a store keeps: a step is the same, be its features stored or asked for."""
    return jax.tree.map(lambda x: x.astype(_DTYPE).astype(x.dtype), signals)


def _parts(signals: Signals, width: int) -> list[np.ndarray]:
    """Cuts features into layers; [B, T, D] each, the hidden states last."""
    features = np.asarray(signals.features)
    layers = [features[..., i : i + width] for i in range(0, features.shape[-1], width)]
    return [*layers, np.asarray(signals.hidden)]


def _packed(part: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Drops the padding, [sum of lengths, D], and rounds."""
    rows: list[Any] = [part[i, :length] for i, length in enumerate(lengths.tolist())]
    return np.concatenate(rows).astype(_DTYPE)
