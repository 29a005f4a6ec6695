"""Stops a running solver when asked to. Floor 4. In: a question to ask now and then, and what to do on yes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

EVERY_S = 0.05


@contextmanager
def watched(stop: Callable[[], bool], halt: Callable[[], object]) -> Iterator[None]:
    """While the body runs, `stop` is asked from another thread; once it says yes, `halt` is called until it ends."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(EVERY_S):
            if stop():
                halt()

    thread = threading.Thread(target=watch, name="codesign-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
