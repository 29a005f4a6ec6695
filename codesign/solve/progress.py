"""Progress events and cancellation. Floor 5."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """State of a solve at one moment.

    `incumbent` and `bound` are in the objective as the user named it, None while there is none; `phase` is one of
    "searching", "excluding", "closing", "master", "proof", "conflict", "done".
    """

    time_s: float
    phase: str
    incumbent: float | None
    bound: float | None
    gap: float | None
    cuts: int
    designs_evaluated: int


Listener = Callable[[Progress], None]


class Cancel:
    """A flag that another thread may set; the solve then returns the best that it has."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        """Ask the solve to stop."""
        self._event.set()

    def __bool__(self) -> bool:
        return self._event.is_set()
