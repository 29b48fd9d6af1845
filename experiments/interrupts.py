"""Stretches that Ctrl-C and SIGTERM must not cut in two."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Puts off SIGINT and SIGTERM until the block has ended.

    For work of milliseconds that leaves things in step, such as a row in the file and in the count
    of rows. Outside the main thread, where Python delivers no signal, it does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []

    def note(number: int, frame: Any) -> None:
        arrived.append(number)

    before = {number: signal.signal(number, note) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if arrived:
            signal.raise_signal(arrived[0])
