"""Where training stands, on disk: the last steps and the best one, written behind its back.

Orbax writes in the background and renames when all is there, so a kill at any moment leaves the
step before. `restore` says which file of a step cannot be used, and what remains.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from asd_jax.checkpoints.source import CheckpointError
from asd_jax.training.train_step import TrainState

_KEPT = 2  # last steps


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(self, directory: str | Path) -> None:
        """Opens the folder, making it if there is none.

        Raises:
          CheckpointError: It cannot be written.
        """
        self.directory = Path(directory).absolute()
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._last = self._manager("last", _KEPT)
            self._best = self._manager("best", 1)
        except OSError as error:
            raise CheckpointError(f"{self.directory}: cannot be written: {error}") from error

    def _manager(self, name: str, kept: int) -> ocp.CheckpointManager:
        options = ocp.CheckpointManagerOptions(
            max_to_keep=kept, create=True, enable_async_checkpointing=True
        )
        return ocp.CheckpointManager(self.directory / name, options=options)

    @property
    def last_step(self) -> int | None:
        """The last step that was saved, None for none."""
        return self._last.latest_step()

    def save(self, state: TrainState, info: dict[str, Any], *, is_best: bool) -> None:
        """Saves a step; the arrays are copied before this returns, the disk follows.

        Args:
          state: Where training stands.
          info: What else must be the same after a restart, made of JSON types.
          is_best: Whether this is the best step so far.

        Raises:
          CheckpointError: This or an earlier save failed, as on a full disk.
        """
        step = int(state.step)
        items = ocp.args.Composite(state=ocp.args.StandardSave(state), info=ocp.args.JsonSave(info))
        try:
            if is_best:
                # On the disk before the last step says that there is a better one: a kill in
                # between has the step done again, and its best is then found there already.
                self._best.save(step, args=items)
                self._best.wait_until_finished()
            self._last.save(step, args=items)
        except Exception as error:  # whatever the file system or Orbax raises
            raise CheckpointError(
                f"{self.directory}: step {step} cannot be saved: {error}; step {self.last_step} is "
                "the last one that is there"
            ) from error

    def restore(self, template: TrainState, *, best: bool = False) -> tuple[TrainState, Any]:
        """Returns the last (or best) step and its info.

        Args:
          template: Arrays or shapes with shardings.
          best: Which of the two.

        Raises:
          CheckpointError: There is none, or it is damaged or of another run.
        """
        manager = self._best if best else self._last
        step = manager.latest_step()
        if step is None:
            raise CheckpointError(f"{self.directory}: has no checkpoint")
        abstract = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding),
            template,
        )
        items = ocp.args.Composite(
            state=ocp.args.StandardRestore(abstract), info=ocp.args.JsonRestore()
        )
        try:
            restored = manager.restore(step, args=items)
        except Exception as error:  # damaged files raise anything
            others = [other for other in manager.all_steps() if other != step]
            folder = self.directory / ("best" if best else "last") / str(step)
            rest = f"remove it to go on from step {max(others)}" if others else "no other is left"
            raise CheckpointError(f"{folder}: cannot be restored ({error}); {rest}") from error
        return restored.state, restored.info

    def wait(self) -> None:
        """Waits until everything is on the disk.

        Raises:
          CheckpointError: A save failed.
        """
        try:
            self._last.wait_until_finished()
            self._best.wait_until_finished()
        except Exception as error:  # as in `save`
            raise CheckpointError(f"{self.directory}: cannot be saved: {error}") from error

    def close(self) -> None:
        """Waits and lets go of the folder."""
        self.wait()
        self._last.close()
        self._best.close()
