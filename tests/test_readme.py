"""What the README shows works: its instance, its Python, its commands and exit codes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from codesign import parse
from codesign.cli import main

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)


def test_the_instance_is_one() -> None:
    (text,) = blocks("yaml")
    instance = parse(text)
    assert instance.name == "llama3-70b-under-30m"
    assert instance.limits.capex_usd == 30e6


def test_the_python_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = blocks("python")
    monkeypatch.chdir(ROOT)
    exec(compile(code, "README.md", "exec"), {})
    assert capsys.readouterr().out.startswith("optimal ")


def test_every_command_is_listed_and_every_listed_one_exists() -> None:
    listed = set(re.findall(r"^\| `codesign (\w+)", README, flags=re.MULTILINE))
    assert listed == set(main.commands)


@pytest.mark.parametrize("name", sorted(main.commands))
def test_options_that_the_readme_names_are_there(name: str) -> None:
    help_text = CliRunner().invoke(main, [name, "--help"]).stdout
    assert ("--json" in help_text) or name == "schema"
    assert ("--set" in help_text) == (name in ("solve", "evaluate", "explain"))
    if name == "solve":
        assert all(option in help_text for option in ("--gap", "--time", "--threads", "--seed", "--proof", "--out"))


def test_files_that_the_readme_names_are_there() -> None:
    for path in re.findall(r"`((?:instances|benchmarks)/[\w./-]*)`", README):
        assert (ROOT / path).exists(), path
    for path in re.findall(r"instances/reference/[\w-]+\.yaml", README):
        assert (ROOT / path).is_file(), path
