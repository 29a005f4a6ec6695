"""What starting the program costs: help and version load nothing that a command needs later."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = {"numpy", "pydantic", "ortools", "rich", "yaml", "pandas"}


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        *([command, "--help"] for command in ("solve", "evaluate", "verify", "explain", "catalogue", "schema")),
    ],
)
def test_help_loads_nothing_heavy(arguments: list[str]) -> None:
    code = f"""
import sys
from codesign.cli import main
try:
    main({arguments!r})
except SystemExit as ended:
    assert ended.code == 0, ended.code
print("loaded:", *sorted({{name.partition(".")[0] for name in sys.modules}}))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert (run.returncode, run.stderr) == (0, "")
    shown, _, loaded = run.stdout.rpartition("loaded:")
    assert "Usage" in shown or "version" in shown
    assert set(loaded.split()).isdisjoint(HEAVY)


@pytest.mark.parametrize("command", ["evaluate", "verify", "explain"])
def test_judging_loads_no_solver(command: str, tmp_path: Path) -> None:
    tiny = str(ROOT / "instances" / "small" / "8b-on-two-servers.yaml")
    solve = [sys.executable, "-c", "from codesign.cli import main; main()", "solve", tiny, "--out", str(tmp_path)]
    subprocess.run(solve, capture_output=True, cwd=ROOT, check=True)
    arguments = [command, tiny, "--design", str(tmp_path)] if command == "evaluate" else [command, str(tmp_path)]
    code = f"""
import sys
from codesign.cli import main
try:
    main({arguments!r})
except SystemExit as ended:
    assert ended.code == 0, ended.code
assert "ortools" not in sys.modules
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert (run.returncode, run.stderr) == (0, "")
