"""Lines of JSON in files that a kill may have cut short, and a log that is appended to."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from asd_jax.evaluation.audit.fields import AuditError

try:
    import fcntl
except ImportError:  # not a Unix: no locks
    fcntl = None  # type: ignore[assignment]


def read_lines(path: Path) -> Iterator[tuple[str, Any]]:
    """Yields place (file and line, in words) and JSON value of every line that is not blank.

    A last line without its end that is no JSON was being written when the run was killed, and is
    passed over.

    Raises:
      AuditError: The file cannot be read, or a line is no JSON.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise AuditError(f"{path}: cannot be read: {error.strerror or error}") from error
    lines = content.split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            value = _parse(line)
        except ValueError as error:
            if number == len(lines):
                return
            raise AuditError(f"{path}, line {number}: {error}") from error
        yield f"{path}, line {number}", value


class LineLog:
    """A file of JSON lines that only grows, each line written out at once.

    Opening drops a last line that a kill cut short, so that the file always holds whole lines.
    """

    def __init__(self, path: str | Path) -> None:
        """Opens the file for this process alone, making it and its folder if there are none.

        Raises:
          AuditError: It cannot be written, or another process is writing it.
        """
        self.path = Path(path)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("a+b")
        except OSError as error:
            raise AuditError(f"{path}: cannot be written: {error.strerror or error}") from error
        try:
            _lock(self._file)
            self._file.seek(0)
            content = self._file.read()
            self._whole = content[: content.rfind(b"\n") + 1]
            self._file.truncate(len(self._whole))
        except BlockingIOError as error:
            self._file.close()
            raise AuditError(f"{path}: another process is writing it") from error

    def read(self) -> Iterator[tuple[str, Any]]:
        """Yields place and JSON value of the lines that were there when it was opened.

        Raises:
          AuditError: A line is no JSON.
        """
        for number, line in enumerate(self._whole.split(b"\n")[:-1], start=1):
            place = f"{self.path}, line {number}"
            try:
                yield place, _parse(line)
            except ValueError as error:
                raise AuditError(f"{place}: {error}") from error

    def append(self, value: Mapping[str, Any]) -> None:
        """Writes one line and hands it to the operating system.

        Raises:
          AuditError: The file cannot be written (a full disk).
        """
        line = json.dumps(value, allow_nan=False) + "\n"
        try:
            self._file.write(line.encode("utf-8"))
            self._file.flush()
        except OSError as error:
            raise AuditError(f"{self.path}: cannot be written: {error.strerror}") from error

    def close(self) -> None:
        """Closes the file; it may be closed twice."""
        self._file.close()


def _lock(file: BinaryIO) -> None:
    try:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        pass  # a file system without locks


def _parse(line: bytes) -> Any:
    try:
        return json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"got {line[:40]!r}, allowed is a line of JSON ({error})") from error
