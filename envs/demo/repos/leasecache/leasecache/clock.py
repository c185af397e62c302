"""Clocks. A clock is any callable that returns a number of seconds."""
import time

system_clock = time.monotonic


class ManualClock:
    """A clock that only moves when told to; meant for tests."""

    def __init__(self, start=0.0):
        self.now = start

    def __call__(self):
        return self.now

    def advance(self, seconds):
        if seconds < 0:
            raise ValueError("time does not run backwards")
        self.now += seconds
        return self.now
