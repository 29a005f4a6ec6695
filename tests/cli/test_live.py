"""Watching and stopping a solve: the live row, Ctrl-C once and twice. The work itself sends the signals: no timing."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from codesign.cli.live import STOPPING, row, watched
from codesign.solve.progress import Cancel, Progress

ROOT = Path(__file__).parents[2]
TINY = ROOT / "instances" / "small" / "8b-on-two-servers.yaml"
COMMAND = [sys.executable, "-c", "from codesign.cli import main; main()"]


class TestWatched:
    def test_the_result_of_the_work(self) -> None:
        assert watched("step_time", lambda listen, cancel: 42, as_json=False) == 42

    def test_what_the_work_raises(self) -> None:
        def fail(listen: Callable[[Progress], None], cancel: Cancel) -> int:
            raise LookupError("by hand")

        with pytest.raises(LookupError, match="by hand"):
            watched("step_time", fail, as_json=False)

    def test_one_interrupt_asks_for_the_best_so_far(self, capsys: pytest.CaptureFixture[str]) -> None:
        before = signal.getsignal(signal.SIGINT)

        def work(listen: Callable[[Progress], None], cancel: Cancel) -> str:
            os.kill(os.getpid(), signal.SIGINT)
            while not cancel:
                time.sleep(0.001)
            return "best so far"

        assert watched("step_time", work, as_json=False) == "best so far"
        assert signal.getsignal(signal.SIGINT) is before
        output = capsys.readouterr()
        assert (output.out, output.err) == ("", f"{STOPPING}\n")

    def test_a_second_interrupt_ends_at_once(self) -> None:
        code = """
import os, signal, threading, time
from codesign.cli.live import watched

def work(listen, cancel):
    os.kill(os.getpid(), signal.SIGINT)
    while not cancel:
        time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGINT)
    threading.Event().wait()

watched("step_time", work, as_json=False)
print("not reached")
"""
        run = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False, timeout=60
        )
        assert (run.returncode, run.stdout) == (130, "")
        assert run.stderr == f"{STOPPING}\nAborted.\n"


class TestRow:
    def test_before_any_news(self) -> None:
        assert row("step_time", None, 1.4, False) == "1 s · first designs"

    def test_in_the_words_of_the_objective(self) -> None:
        # gap = |2.0e6 - 1.9e6| / 2.0e6 = 5 %; 2.0e6 s = 23.148 days, 1.9e6 s = 21.99 days
        progress = Progress(3.0, "master", 2.0e6, 1.9e6, 0.05, 7, 9)
        text = row("time_to_train", progress, 12.0, False)
        assert text == "12 s · CP-SAT · training 23.1 days · bound 22.0 days · gap 5 %"

    @pytest.mark.parametrize(
        "objective", ["step_time", "time_to_train", "tokens_per_s", "total_cost", "tokens_per_usd"]
    )
    def test_fits_into_80_columns(self, objective: str) -> None:
        # the longest figures: seven characters of number, and the longest word of a phase
        progress = Progress(3.0, "excluding", 123456.7, 123456.6, 1.2e-3, 7, 9)
        assert len(row(objective, progress, 300.0, True)) <= 80

    def test_stopping(self) -> None:
        assert row("total_cost", Progress(3.0, "proof", 2.5e7, None, None, 0, 1), 5.0, True) == (
            "5 s · stopping · cost $25.00 M"
        )


def on_a_terminal(arguments: list[str], terminal: str = "xterm") -> tuple[int, str, str]:
    """Code, stdout (a pipe), and what went to stderr, a terminal of 80 columns."""
    master, follower = pty.openpty()
    environment = {**os.environ, "TERM": terminal, "COLUMNS": "80", "LINES": "24"}
    process = subprocess.Popen(
        [*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=follower, cwd=ROOT, env=environment, text=True
    )
    os.close(follower)
    seen = b""
    while True:
        try:
            piece = os.read(master, 4096)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        seen += piece
    os.close(master)
    assert process.stdout is not None
    output = process.stdout.read()
    process.stdout.close()
    return process.wait(), output, seen.decode()


class TestTerminal:
    def test_one_row_that_is_gone_at_the_end(self) -> None:
        code, output, seen = on_a_terminal(["solve", str(TINY)])
        assert code == 0
        assert "\x1b" not in output
        assert output.startswith("8b-on-two-servers\n")
        assert re.search(r"\d s · (first designs|excluding|purchases|CP-SAT|HiGHS|done)", seen)
        assert seen.endswith("\x1b[1A\x1b[2K")  # up one line, and the line erased
        assert seen.count("\n") == 1  # never more than one row
        assert "\x1b[?25h" in seen  # the cursor is back

    @pytest.mark.parametrize(("arguments", "terminal"), [(["--json"], "xterm"), ([], "dumb")])
    def test_nothing_is_drawn(self, arguments: list[str], terminal: str) -> None:
        code, _, seen = on_a_terminal(["solve", str(TINY), *arguments], terminal)
        assert (code, seen) == (0, "")
