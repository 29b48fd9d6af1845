"""Work that the main thread waits for without being deaf to Ctrl-C."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Any, TypeVar

_T = TypeVar("_T")


def in_background(events: Iterator[_T]) -> Iterator[_T]:
    """Yields from `events`, which are computed in another thread.

    Python acts on Ctrl-C between two bytecodes, and a compiled loop can take minutes: here the main
    thread only waits for a queue. The other thread goes on only when an event has been dealt with,
    so that nothing else runs while it times a program.
    """
    outbox: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
    go_on = threading.Semaphore(0)
    end = object()

    def work() -> None:
        try:
            for event in events:
                outbox.put((event, None))
                go_on.acquire()
            outbox.put((end, None))
        except BaseException as error:  # handed to the main thread
            outbox.put((end, error))

    threading.Thread(target=work, daemon=True).start()
    while True:
        event, error = outbox.get()
        if error is not None:
            raise error
        if event is end:
            return
        yield event
        go_on.release()
