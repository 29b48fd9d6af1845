"""Several processes, one run: each has devices of its own, process 0 speaks and writes.

All processes run the same program on the same configuration and the same files, and take the same
decisions. Whatever only one of them can know, such as what the output file holds already, is
decided by process 0 and told to the others. Each feeds the requests of its own devices; results are
gathered, so that every process can prepare the next turn of a conversation.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import jax
from jax.sharding import Mesh

from asd_jax.evaluation.records import OutputError, Writer
from asd_jax.sharding import from_each_process, from_process_zero, make_mesh
from experiments.config import MeshConfig, ProcessesConfig
from experiments.fields import ConfigError

T = TypeVar("T")
_TIMEOUT = 30  # seconds after which a process that does not answer is lost


def start(config: ProcessesConfig) -> None:
    """Joins the other processes, before JAX looks for devices.

    Raises:
      ConfigError: They cannot be found.
    """
    if config.cpu_devices is not None:
        jax.config.update("jax_num_cpu_devices", config.cpu_devices)
    if config.coordinator is None:
        return
    # JAX's preemption service would take over SIGTERM, which is to end the run as Ctrl-C does.
    jax.config.update("jax_enable_preemption_service", False)
    is_auto = config.coordinator == "auto"
    try:
        if config.index == 0 and not is_auto:
            _require_free_port(config.coordinator)
        jax.distributed.initialize(
            None if is_auto else config.coordinator,
            config.count,
            config.index,
            heartbeat_timeout_seconds=_TIMEOUT,
            shutdown_timeout_seconds=_TIMEOUT,
        )
    except (RuntimeError, ValueError, OSError) as error:
        raise ConfigError(
            f"processes.coordinator: got {config.coordinator!r}, cannot join: {error}"
        ) from error


def _require_free_port(coordinator: str) -> None:
    """Raises an OSError where the coordinator cannot listen: JAX itself would crash."""
    port = int(coordinator.rpartition(":")[2])
    with socket.socket(socket.AF_INET6 if socket.has_ipv6 else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("", port))


def are_several() -> bool:
    """Returns whether this process has joined others."""
    return jax.distributed.is_initialized()


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
      OutputError: On every process, if anything was raised on process 0; there the error itself.
    """
    if jax.process_count() == 1:
        return decide()
    told: dict[str, Any] = {}
    own: Exception | None = None
    if is_first():
        try:
            told = {"value": decide()}
        except Exception as error:  # whatever it is, the others are waiting
            own, told = error, {"error": str(error)}
    told = json.loads(from_process_zero(json.dumps(told).encode()))
    if own is not None:
        raise own
    if "error" in told:
        raise OutputError(told["error"])
    return told["value"]


def together(act: Callable[[], T]) -> T:
    """Does the same on every process; if it fails on one of them, it fails on all.

    Args:
      act: Called on every process.

    Raises:
      ConfigError: It failed on another process, which is named; the own error where it failed here.
    """
    if jax.process_count() == 1:
        return act()
    own: Exception | None = None
    try:
        value = act()
    except Exception as error:  # whatever it is, the others must not wait for this process
        own = error
    problems = from_each_process(b"" if own is None else str(own).encode() or b"failed")
    if own is not None:
        raise own
    failed = [(index, text.decode()) for index, text in enumerate(problems) if text]
    if failed:
        raise ConfigError("\n".join(f"process {index}: {text}" for index, text in failed))
    return value


def require_same(what: Mapping[str, Any]) -> None:
    """Checks that all processes have the same before them.

    Args:
      what: By name, made of JSON types.

    Raises:
      ConfigError: On every process, naming what differs.
    """
    texts = {name: json.dumps(value, sort_keys=True) for name, value in what.items()}
    everyone = [json.loads(one) for one in from_each_process(json.dumps(texts).encode())]
    problems = [
        f"{name}: process {index} has {other[name]}, process 0 has {everyone[0][name]}"
        for index, other in enumerate(everyone)
        for name in texts
        if other[name] != everyone[0][name]
    ]
    if problems:
        raise ConfigError("\n".join(problems))


class Follower:
    """Stands in for the `Writer` where another process writes.

    Attributes:
      path: Of the output.
      done: As in `Writer`.
      resumed_rows: Empty: only process 0 counts them.
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
