"""Several processes, one run: each has devices of its own, process 0 speaks and writes.

All processes run the same program on the same configuration and the same files, and take the same
decisions. Whatever only one of them can know, such as what the output file holds already, is
decided by process 0 and told to the others. Each feeds the requests of its own devices; results are
gathered, so that every process can prepare the next turn of a conversation.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from asd_jax.evaluation.records import OutputError, Writer
from asd_jax.sharding import from_process_zero, make_mesh
from experiments.config import MeshConfig, ProcessesConfig
from experiments.fields import ConfigError


def start(config: ProcessesConfig) -> None:
    """Joins the other processes, before JAX looks for devices.

    Raises:
      ConfigError: They cannot be found.
    """
    if config.cpu_devices is not None:
        jax.config.update("jax_num_cpu_devices", config.cpu_devices)
    if config.coordinator is None:
        return
    try:
        if config.coordinator == "auto":
            jax.distributed.initialize()
        else:
            jax.distributed.initialize(config.coordinator, config.count, config.index)
    except (RuntimeError, ValueError) as error:
        raise ConfigError(
            f"processes.coordinator: got {config.coordinator!r}, cannot join: {error}"
        ) from error


def is_first() -> bool:
    """Returns whether this process speaks and writes."""
    return jax.process_index() == 0


def mesh(config: MeshConfig, batch_size: int) -> Mesh | None:
    """Returns the mesh of a run, None for a single device.

    Raises:
      ConfigError: There are not so many devices, or they cannot divide the batch.
    """
    devices = jax.devices()
    if jax.process_count() == 1 and config.data > 0:
        if config.data * config.model == 1:
            return None
        devices = devices[: config.data * config.model]
    try:
        found = make_mesh(data=config.data, model=config.model, devices=devices)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    if batch_size % found.shape["data"]:
        raise ConfigError(
            f"batch_size: got {batch_size}, allowed is a multiple of {found.shape['data']}, the "
            "devices that divide the requests"
        )
    return found


def decided_by_first(decide: Callable[[], Any]) -> Any:
    """Returns on every process what process 0 decides.

    Args:
      decide: Called on process 0 only; returns something that JSON can hold.

    Raises:
      OutputError: On every process, if it was raised on process 0.
    """
    if jax.process_count() == 1:
        return decide()
    told: dict[str, Any] = {}
    if is_first():
        try:
            told = {"value": decide()}
        except OutputError as error:
            told = {"error": str(error)}
    told = json.loads(from_process_zero(json.dumps(told).encode()))
    if "error" in told:
        raise OutputError(told["error"])
    return told["value"]


def require_same(name: str, value: str) -> None:
    """Checks that all processes read the same.

    Raises:
      ConfigError: On the processes that read something else than process 0. They leave, which
        ends the run.
    """
    first = decided_by_first(lambda: value)
    if first != value:
        raise ConfigError(f"{name}: differs from that of process 0")


class Follower:
    """Stands in for the `Writer` where another process writes.

    Attributes:
      path: Of the output.
      done: As in `Writer`.
      resumed_rows: None: only process 0 counts.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.done: set[tuple[str, str]] = set()
        self.resumed_rows: list[dict[str, Any]] = []

    def take_over(self, done: Iterable[Sequence[str]]) -> None:
        """Takes the rows that process 0 has found."""
        self.done = {(request, arm) for request, arm in done}

    def write(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Remembers rows that process 0 writes."""
        self.done |= {(entry["id"], entry["arm"]) for entry in rows}

    def close(self, *, keep_empty: bool = False) -> None:
        """Does nothing."""
        del keep_empty


def open_output(path: Path, *, resume: bool) -> Writer | Follower:
    """Opens the output on process 0 and its stand-in elsewhere.

    Raises:
      OutputError: As `Writer`, on every process.
    """
    opened: list[Writer] = []
    decided_by_first(lambda: opened.append(Writer(path, resume=resume)))
    return opened[0] if opened else Follower(path)


def start_output(writer: Writer | Follower, header: Mapping[str, Any]) -> None:
    """Begins or takes up the output and tells all processes what is done.

    Raises:
      OutputError: As `Writer.start`, on every process.
    """

    def begin() -> list[tuple[str, str]]:
        assert isinstance(writer, Writer)
        writer.start(header)
        return sorted(writer.done)

    done = decided_by_first(begin)
    if isinstance(writer, Follower):
        writer.take_over(done)
