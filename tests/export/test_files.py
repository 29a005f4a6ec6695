"""The folder of --out: whole files or none, tables that add up, and nothing left over from an earlier answer."""

from __future__ import annotations

import csv
import json
import os
from collections import Counter
from pathlib import Path

import pytest

from codesign import read, solve
from codesign.design.solution import Solution
from codesign.exact.verify import verify
from codesign.export import files

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def solution() -> Solution:
    return solve(read(ROOT / "instances" / "small" / "8b-buy-network.yaml"))


def rows(file: Path) -> list[dict[str, str]]:
    with file.open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


class TestWrite:
    def test_the_files(self, solution: Solution, tmp_path: Path) -> None:
        written = files.write(solution, tmp_path / "a" / "b")
        assert [path.name for path in written] == ["rank_map.csv", "bill_of_materials.csv", "solution.json"]
        assert names(tmp_path / "a" / "b") == sorted(path.name for path in written)
        document = json.loads((tmp_path / "a" / "b" / "solution.json").read_text())
        assert document == json.loads(json.dumps(solution.to_document()))
        assert verify(tmp_path / "a" / "b").verified

    def test_every_rank_has_a_gpu_of_its_own(self, solution: Solution, tmp_path: Path) -> None:
        files.write(solution, tmp_path)
        assert solution.design is not None
        plan, ranks = solution.design.plan, rows(tmp_path / "rank_map.csv")
        assert [int(row["rank"]) for row in ranks] == list(range(plan.world))
        assert len({(row["server"], row["gpu"]) for row in ranks}) == plan.world
        assert len({row["server"] for row in ranks}) == solution.design.purchase.servers
        groups = Counter((row["cp"], row["dp"], row["pp"]) for row in ranks)
        assert set(groups.values()) == {plan.tp}

    def test_the_bill_adds_up(self, solution: Solution, tmp_path: Path) -> None:
        files.write(solution, tmp_path)
        assert solution.evaluation is not None
        lines = rows(tmp_path / "bill_of_materials.csv")
        assert lines
        for line in lines:
            assert float(line["total_usd"]) == pytest.approx(int(line["count"]) * float(line["unit_usd"]), rel=1e-12)
        total = sum(float(line["total_usd"]) for line in lines)
        assert total == pytest.approx(solution.evaluation.capex_usd, rel=1e-12)

    def test_an_answer_without_a_design_takes_the_old_tables_away(self, solution: Solution, tmp_path: Path) -> None:
        files.write(solution, tmp_path)
        (tmp_path / "notes.txt").write_text("mine")
        files.write(Solution("unknown", solution.instance, solution.objective_unit), tmp_path)
        assert names(tmp_path) == ["notes.txt", "solution.json"]
        assert verify(tmp_path).verified

    def test_the_same_solution_gives_the_same_bytes(self, solution: Solution, tmp_path: Path) -> None:
        first = {path.name: path.read_bytes() for path in files.write(solution, tmp_path / "one")}
        second = {path.name: path.read_bytes() for path in files.write(solution, tmp_path / "two")}
        assert first == second


class TestWhole:
    @pytest.mark.parametrize("step", ["fsync", "replace"])
    def test_a_failed_write_leaves_the_old_file_and_nothing_else(
        self, step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        file = files.write_whole(tmp_path / "solution.json", "old")

        def fail(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, step, fail)
        with pytest.raises(OSError, match="No space left"):
            files.write_whole(file, "new")
        assert file.read_text() == "old"
        assert names(tmp_path) == ["solution.json"]

    def test_an_interrupt_leaves_the_old_file_too(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        file = files.write_whole(tmp_path / "solution.json", "old")

        def interrupted(*_: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(os, "replace", interrupted)
        with pytest.raises(KeyboardInterrupt):
            files.write_whole(file, "new")
        assert file.read_text() == "old"
        assert names(tmp_path) == ["solution.json"]

    def test_a_new_file_has_the_rights_that_the_user_asked_for(self, tmp_path: Path) -> None:
        before = os.umask(0o027)
        try:
            file = files.write_whole(tmp_path / "solution.json", "text")
        finally:
            os.umask(before)
        assert file.stat().st_mode & 0o777 == 0o640  # 0666 less the mask

    def test_prepare_refuses_what_cannot_be_a_folder(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("mine")
        for folder in (tmp_path / "file", tmp_path / "file" / "below"):
            with pytest.raises(OSError):
                files.prepare(folder)
        assert (tmp_path / "file").read_text() == "mine"

    def test_prepare_leaves_no_trace(self, tmp_path: Path) -> None:
        files.prepare(tmp_path / "new")
        assert names(tmp_path / "new") == []
