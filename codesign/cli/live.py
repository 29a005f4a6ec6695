"""A solve that a person can watch and stop. Floor 7. In: work that takes a listener and a cancel flag. Out: its result.

The work runs in a thread of its own, so that the main thread stays free for Ctrl-C: the first asks the solve for the
best that it has, the second ends the program. On a terminal one row on stderr says how far the solve is; it is gone at
the end, and nothing is drawn anywhere else.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Generic, TypeVar

from codesign.cli.output import ABORTED, say

if TYPE_CHECKING:
    from rich.text import Text

    from codesign.solve.progress import Cancel, Progress

Result = TypeVar("Result")
Work = Callable[["Callable[[Progress], None]", "Cancel"], Result]

POLL_S = 0.1
FRAMES_A_SECOND = 8

PHASES = {
    "searching": "first designs",
    "excluding": "excluding",
    "closing": "purchases",
    "master": "CP-SAT",
    "proof": "HiGHS",
    "conflict": "conflict",
    "done": "done",
}
VALUES = {
    "step_time": "step",
    "time_to_train": "training",
    "tokens_per_s": "speed",
    "total_cost": "cost",
    "tokens_per_usd": "yield",
}
"""Short words: with bound and gap the row must fit into 80 columns."""
STOPPING = "Stopping: the best verified design so far follows. Ctrl-C again ends at once."


def watched(objective: str, work: Work[Result], as_json: bool) -> Result:
    """Run the work, with the live row where a person watches; what it raises is raised here.

    Parameters
    ----------
    objective : of the instance that is solved, for the words of the row.
    """
    return _Watched(objective, work).result(live=not as_json and on_terminal())


def on_terminal() -> bool:
    """Whether stderr is a terminal on which a row can be drawn over."""
    return sys.stderr.isatty() and os.environ.get("TERM", "") not in ("", "dumb")


class _Watched(Generic[Result]):
    def __init__(self, objective: str, work: Work[Result]) -> None:
        from codesign.solve.progress import Cancel

        self._objective, self._work = objective, work
        self._cancel = Cancel()
        self._last: Progress | None = None
        self._started = time.perf_counter()
        self._results: list[Result] = []
        self._problem: BaseException | None = None
        self._interrupts = 0

    def result(self, live: bool) -> Result:
        worker = threading.Thread(target=self._run, name="codesign solve", daemon=True)
        with self._interruptible():
            worker.start()
            if live:
                self._draw_until_done(worker)
            else:
                self._wait(worker, lambda: say(STOPPING))
        if self._problem is not None:
            raise self._problem
        return self._results[0]

    def _run(self) -> None:
        try:
            self._results.append(self._work(self._listen, self._cancel))
        except BaseException as problem:  # noqa: BLE001 - raised again in the main thread
            self._problem = problem

    def _listen(self, progress: Progress) -> None:
        self._last = progress

    # -- waiting

    def _wait(self, worker: threading.Thread, stopping: Callable[[], None]) -> None:
        while worker.is_alive():
            worker.join(POLL_S)
            if self._interrupts and not self._cancel:
                self._cancel.set()
                stopping()
            if self._interrupts > 1:
                raise KeyboardInterrupt

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Ctrl-C is counted; the second ends the program, whatever native code the worker is in."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGINT, self._interrupted)
        try:
            yield
        except KeyboardInterrupt:
            say("Aborted.")
            with suppress(OSError):
                sys.stdout.flush()
            os._exit(ABORTED)  # the worker may be inside a solver, which an orderly exit would wait for
        finally:
            signal.signal(signal.SIGINT, before)

    def _interrupted(self, *_: object) -> None:
        self._interrupts += 1

    # -- the live row

    def _draw_until_done(self, worker: threading.Thread) -> None:
        from rich.console import Console
        from rich.live import Live

        console = Console(stderr=True, highlight=False)
        with Live(
            get_renderable=lambda: self._row(console.width),
            console=console,
            refresh_per_second=FRAMES_A_SECOND,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        ):
            self._wait(worker, lambda: None)

    def _row(self, width: int) -> Text:
        from rich.text import Text

        elapsed_s = time.perf_counter() - self._started
        text = row(self._objective, self._last, elapsed_s, bool(self._interrupts))
        return Text(text, no_wrap=True, overflow="ellipsis", end="")


def row(objective: str, progress: Progress | None, elapsed_s: float, stopping: bool) -> str:
    """Time, phase, incumbent in the objective's words, bound and gap."""
    from codesign.exact.verify import UNITS
    from codesign.report.quantity import figure, percent_up

    phase = PHASES["searching"] if progress is None else PHASES.get(progress.phase, progress.phase)
    parts = [f"{elapsed_s:.0f} s", "stopping" if stopping else phase]
    if progress is not None and progress.incumbent is not None:
        unit = UNITS.get(objective, "")
        parts.append(f"{VALUES.get(objective, objective)} {figure(progress.incumbent, unit)}")
        if progress.bound is not None and progress.gap is not None:
            parts += [f"bound {figure(progress.bound, unit)}", f"gap {percent_up(progress.gap)}"]
    return " · ".join(parts)
