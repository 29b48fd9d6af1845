"""Signals wait for the end of a stretch that they must not cut."""

from __future__ import annotations

import signal
import threading

import pytest

from experiments.interrupts import uninterrupted


@pytest.fixture
def sigterm_interrupts():
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_comes_after_the_stretch(sigterm_interrupts, number):
    steps = []
    with pytest.raises(KeyboardInterrupt):
        with uninterrupted():
            signal.raise_signal(number)
            steps.append("inside")
        steps.append("behind")
    assert steps == ["inside"]
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(number)  # as before


def test_without_a_signal_and_in_another_thread_nothing_happens():
    def work():
        with uninterrupted():
            steps.append("other")

    steps = []
    with uninterrupted():
        steps.append("main")
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert steps == ["main", "other"]


def test_an_error_inside_is_not_lost(sigterm_interrupts):
    with pytest.raises(ValueError, match="inside"), uninterrupted():
        raise ValueError("inside")
