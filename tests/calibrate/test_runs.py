"""Measured runs as they stand in a file: what is read, and what is refused with its line."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codesign.calibrate.runs import REQUIRED, read_runs
from codesign.errors import SpecError

HEADER = "id,source,model,layers,gpu,gpus,vocab,metric,value,unit"


def written(tmp_path: Path, *rows: str, header: str = HEADER) -> Path:
    path = tmp_path / "runs.csv"
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


def test_numbers_as_they_are_printed(tmp_path: Path) -> None:
    (run,) = read_runs(written(tmp_path, 'a-1,page,GPT,"1,024",H100,8,"250k (rounded, per text)",iteration_time,2.5,s'))
    assert run.value == 2.5
    assert run.count("layers") == 1024
    assert run.count("vocab") == 250_000
    assert run.number("mbs") is None  # a column that is not there is one that is blank


def test_equal_configurations_of_two_metrics(tmp_path: Path) -> None:
    one, other = read_runs(
        written(tmp_path, "a-1,page,GPT,24,H100,8,,iteration_time,2.5,s", "a-2,page,GPT,24,H100,8,,mfu,40,%")
    )
    assert one.configuration == other.configuration


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("id,source\n", "metric"),
        ("", "header"),
        (f"{HEADER}\na-1,page,GPT,24,H100,8,,iteration_time,fast,s\n", "a number in the column 'value'"),
    ],
)
def test_a_file_that_is_none_is_refused_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(SpecError, match=said) as caught:
        read_runs(path)
    assert str(path) in str(caught.value)


def test_all_faults_at_once(tmp_path: Path) -> None:
    row = "a-1,page,GPT,24,H100,8,,iteration_time,fast,s"
    with pytest.raises(SpecError) as caught:
        read_runs(written(tmp_path, row, row))
    assert [fault.line for fault in caught.value.faults] == [2, 3]


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(SpecError):
        read_runs(tmp_path / "none.csv")


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.mktemp("any") / "runs.csv"
    path.write_text(",".join(REQUIRED) + "\n" + text, encoding="utf-8")
    with contextlib.suppress(SpecError):
        read_runs(path)
