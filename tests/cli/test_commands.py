"""The commands as a script meets them: exit codes, what is on stdout and stderr, and the documents of --json."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import import_module
from math import fsum
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from codesign.cli import main
from codesign.design.solution import Solution
from codesign.spec.instance import read

ROOT = Path(__file__).parents[2]
TINY = ROOT / "instances" / "small" / "8b-on-two-servers.yaml"
BOUGHT = ROOT / "instances" / "small" / "8b-buy-network.yaml"
NOTHING_FITS = ROOT / "instances" / "infeasible" / "70b-on-one-server.yaml"

PROMISED = {"schema", "status", "objective", "design", "evaluation", "proof"}


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(one) for one in arguments])


def document(result: Result) -> dict[str, Any]:
    """The one document on stdout: anything before or after it is a fault."""
    found = json.loads(result.stdout)
    assert isinstance(found, dict)
    return found


@pytest.fixture(scope="module")
def answer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a solution in which hardware is bought."""
    folder = tmp_path_factory.mktemp("answer")
    result = run("solve", BOUGHT, "--out", folder)
    assert result.exit_code == 0, result.output
    return folder


@pytest.fixture
def patched_solve(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Replace the solve by a function of the solution that it finds."""
    module = import_module("codesign.solve.solve")
    original = module.solve

    def patch(change: Callable[[Solution], Solution]) -> None:
        monkeypatch.setattr(module, "solve", lambda *arguments: change(original(*arguments)))

    return patch


class TestSolve:
    def test_the_document_has_the_promised_keys(self) -> None:
        result = run("solve", BOUGHT, "--json")
        assert (result.exit_code, result.stderr) == (0, "")
        found = document(result)
        assert set(found) >= PROMISED
        assert found["schema"] == 1
        assert found["status"] == "optimal"
        design = found["design"]
        assert set(design["purchase"]) >= {
            "servers",
            "network",
            "storage",
            "bill_of_materials",
            "capex_usd",
            "power_w",
        }
        assert set(design["purchase"]["servers"][0]) == {"offer", "count"}
        workload = design["workloads"]["pretrain"]
        assert set(workload["plan"]) == {
            *("tp", "cp", "ep", "pp", "dp"),
            *("virtual_stages", "micro_batch", "recompute", "zero"),
            *("schedule", "shard_within", "expert_tp", "context_exchange"),
        }
        assert set(workload["placement"]) >= {"order", "rank_map"}
        figures = found["evaluation"]["workloads"]["pretrain"]
        assert set(figures) >= {
            *("step_time_s", "tokens_per_s", "mfu", "goodput"),
            *("time_to_train_s", "memory", "breakdown_s"),
        }
        assert set(figures["memory"]) >= {"worst_rank_bytes", "capacity_bytes", "verdict"}
        assert set(found["proof"]) >= {"iterations", "wall_s", "cuts", "designs_evaluated", "proven_by"}
        assert found["proof"]["proven_by"] == ["cp-sat", "highs"]

    def test_the_figures_of_the_document_add_up(self) -> None:
        found = document(run("solve", BOUGHT, "--json"))
        objective = found["objective"]
        gap = abs(objective["value"] - objective["bound"]) / abs(objective["value"])
        assert objective["gap"] == pytest.approx(gap, rel=1e-9)
        assert objective["gap"] <= 1e-3
        figures = found["evaluation"]["workloads"]["pretrain"]
        assert fsum(figures["breakdown_s"].values()) == pytest.approx(figures["step_time_s"], rel=1e-12)
        purchase = found["design"]["purchase"]
        assert purchase["capex_usd"] > 0
        assert fsum(line["total_usd"] for line in purchase["bill_of_materials"]) == pytest.approx(
            purchase["capex_usd"], rel=1e-12
        )
        for line in purchase["bill_of_materials"]:
            assert line["total_usd"] == pytest.approx(line["count"] * line["unit_usd"], rel=1e-12)
        plan = found["design"]["workloads"]["pretrain"]["plan"]
        layout = found["design"]["workloads"]["pretrain"]["placement"]["layout"]
        for dimension in ("tp", "cp", "pp", "dp"):
            factors = layout[dimension]
            assert factors["domain"] * factors["leaf"] * factors["pod"] == plan[dimension]

    def test_the_text_goes_to_stdout_and_talk_to_stderr(self, tmp_path: Path) -> None:
        result = run("solve", TINY, "--out", tmp_path / "new" / "folder")
        assert result.exit_code == 0
        assert result.stdout.startswith("8b-on-two-servers\n")
        assert "proven by" in result.stdout
        assert "\x1b" not in result.output
        assert result.stderr == f"Written to {tmp_path / 'new' / 'folder'}.\n"
        assert sorted(path.name for path in (tmp_path / "new" / "folder").iterdir()) == [
            *("bill_of_materials.csv", "rank_map.csv", "solution.json")
        ]

    def test_json_still_writes_the_files_and_they_verify(self, tmp_path: Path) -> None:
        result = run("solve", TINY, "--json", "--out", tmp_path)
        assert document(result) == json.loads((tmp_path / "solution.json").read_text())
        assert run("verify", tmp_path).exit_code == 0

    def test_set_replaces_fields(self) -> None:
        result = run("solve", TINY, "--json", "--set", "plan.tp=4", "--set", "plan.recompute=full")
        plan = document(result)["design"]["workloads"]["pretrain"]["plan"]
        assert (plan["tp"], plan["recompute"]) == (4, "full")

    def test_single_proof(self) -> None:
        result = run("solve", TINY, "--json", "--proof", "single")
        assert result.exit_code == 0
        assert document(result)["proof"]["proven_by"] == ["cp-sat"]

    def test_nothing_fits(self, tmp_path: Path) -> None:
        result = run("solve", NOTHING_FITS, "--out", tmp_path)
        assert result.exit_code == 4
        assert "Nothing fits" in result.stdout
        result = run("solve", NOTHING_FITS, "--json")
        assert result.exit_code == 4
        found = document(result)
        assert (found["status"], found["design"], found["evaluation"]) == ("infeasible", None, None)
        assert found["conflict"]["limits"]
        assert run("verify", tmp_path).exit_code == 0

    def test_no_design_before_the_limit(self, patched_solve: Callable[..., None]) -> None:
        patched_solve(lambda solution: Solution("unknown", solution.instance, solution.objective_unit))
        result = run("solve", TINY)
        assert result.exit_code == 3
        assert "No verified design was found before the limit" in result.stdout
        found = document(run("solve", TINY, "--json"))
        assert (found["status"], found["design"], found["proof"]) == ("unknown", None, None)

    def test_a_limit_before_the_gap(self) -> None:
        result = run("solve", TINY, "--time", "1us")
        assert result.exit_code == 3
        assert "a limit came before the asked gap" in result.stdout
        found = document(run("solve", TINY, "--time", "1us", "--json"))
        assert found["status"] == "feasible"
        assert found["objective"]["gap"] > 1e-3

    def test_a_fault_of_ours(self, patched_solve: Callable[..., None]) -> None:
        def broken(solution: Solution) -> Solution:
            raise ZeroDivisionError("by hand")

        patched_solve(broken)
        result = run("solve", TINY)
        assert (result.exit_code, result.stdout) == (1, "")
        assert "codesign failed: ZeroDivisionError: by hand" in result.stderr
        assert "Traceback" not in result.stderr
        assert "Traceback" in run("solve", TINY, "-v").stderr
        result = run("solve", TINY, "--json")
        assert document(result)["error"]["kind"] == "fault of codesign"

    def test_a_folder_that_cannot_be_written_is_refused_before_the_solve(
        self, tmp_path: Path, patched_solve: Callable[..., None]
    ) -> None:
        def not_reached(solution: Solution) -> Solution:
            raise AssertionError("solved")

        patched_solve(not_reached)
        file = tmp_path / "file"
        file.write_text("mine")
        for folder in (file, file / "below"):
            result = run("solve", TINY, "--out", folder)
            assert (result.exit_code, result.stdout) == (2, "")
            assert result.stderr.startswith(f"--out: found {folder} (")
            assert "expected a folder that files can be written to" in result.stderr
        assert file.read_text() == "mine"

    def test_an_answer_that_cannot_be_written_is_printed_all_the_same(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(*_: object) -> None:
            raise OSError(28, "No space left on device", "solution.json")

        monkeypatch.setattr("codesign.export.files.write", full)
        result = run("solve", TINY, "--json", "--out", tmp_path)
        assert result.exit_code == 2
        assert document(result)["status"] == "optimal"
        assert "No space left on device" in result.stderr

    @pytest.mark.parametrize(
        ("option", "text", "expected"),
        [
            ("--gap", "2", "a share of at least 0 and below 1"),
            ("--gap", "little", "a share such as 20% or 0.2"),
            ("--time", "300", "a time such as"),
            ("--time", "0s", "a time above 0"),
        ],
    )
    def test_wrong_options(self, option: str, text: str, expected: str) -> None:
        result = run("solve", TINY, option, text)
        assert (result.exit_code, result.stdout) == (2, "")
        assert f"{option}: found '{text}', expected {expected}" in result.stderr

    def test_wrong_instance(self, tmp_path: Path) -> None:
        file = tmp_path / "wrong.yaml"
        file.write_text(TINY.read_text().replace("hgx-h100", "hgx-h1000").replace("sequence_length: 8192", "foo: 1"))
        result = run("solve", file)
        assert (result.exit_code, result.stdout) == (2, "")
        for what in ("wrong.yaml:5:5", "wrong.yaml:6:5", "'foo'", "'hgx-h1000'"):  # all faults at once
            assert what in result.stderr
        faults = document(run("solve", file, "--json"))["error"]["faults"]
        assert {fault["line"] for fault in faults} == {5, 6, 11}

    def test_no_such_instance(self, tmp_path: Path) -> None:
        result = run("solve", tmp_path / "nothing.yaml")
        assert (result.exit_code, result.stdout) == (2, "")
        assert "nothing.yaml: found nothing of that name" in result.stderr


class TestVerify:
    def test_an_altered_file(self, answer: Path, tmp_path: Path) -> None:
        whole = json.loads((answer / "solution.json").read_text())
        whole["evaluation"]["capex_usd"] += 1.0
        file = tmp_path / "altered.json"
        file.write_text(json.dumps(whole))
        result = run("verify", file)
        assert result.exit_code == 5
        assert "evaluation.capex_usd" in result.stdout
        assert document(run("verify", file, "--json"))["verified"] is False

    def test_no_such_file(self, tmp_path: Path) -> None:
        result = run("verify", tmp_path / "nothing")
        assert (result.exit_code, result.stdout) == (2, "")


class TestEvaluate:
    def test_the_design_of_a_solution(self, answer: Path) -> None:
        result = run("evaluate", BOUGHT, "--design", answer / "solution.json", "--json")
        assert result.exit_code == 0
        found, solved = document(result), json.loads((answer / "solution.json").read_text())
        assert found["design"] == solved["design"]
        assert found["evaluation"] == solved["evaluation"]
        assert found["objective"]["value"] == solved["objective"]["value"]
        assert (found["keeps_all"], found["violations"], found["filled"]) == (True, [], [])

    def test_the_design_part_alone_and_its_own_output(self, answer: Path, tmp_path: Path) -> None:
        solved = json.loads((answer / "solution.json").read_text())
        part = tmp_path / "design.json"
        part.write_text(json.dumps(solved["design"]))
        first = run("evaluate", BOUGHT, "--design", part, "--json")
        again = tmp_path / "again.json"
        again.write_text(first.stdout)
        second = run("evaluate", BOUGHT, "--design", again, "--json")
        assert document(first) == document(second)
        assert document(first)["evaluation"] == solved["evaluation"]

    def test_a_broken_limit_is_told_first_and_is_no_error(self, answer: Path) -> None:
        result = run("evaluate", BOUGHT, "--design", answer, "--set", "limits.capex=$1.3M")
        assert result.exit_code == 0
        lines = result.stdout.split("\n")
        assert lines[2] == "  This design breaks 1 rule or limit:"
        assert lines[3].startswith("  - capex: ")
        found = document(run("evaluate", BOUGHT, "--design", answer, "--json", "--set", "limits.capex=$1.3M"))
        assert found["keeps_all"] is False
        assert found["violations"][0].startswith("capex: ")

    def test_a_design_that_cannot_run_has_no_times(self, answer: Path, tmp_path: Path) -> None:
        whole = json.loads((answer / "solution.json").read_text())["design"]
        whole["workloads"]["pretrain"]["plan"]["micro_batch"] = 3
        file = tmp_path / "design.json"
        file.write_text(json.dumps(whole))
        result = run("evaluate", BOUGHT, "--design", file, "--json")
        assert result.exit_code == 0
        found = document(result)
        assert found["objective"]["value"] is None
        assert found["evaluation"]["workloads"] == {}
        assert any(fault.startswith("global batch: ") for fault in found["violations"])

    def test_wrong_input(self, tmp_path: Path) -> None:
        file = tmp_path / "design.yaml"
        file.write_text("plan:\n  tpp: 2\n  pp: one\n")
        result = run("evaluate", TINY, "--design", file)
        assert (result.exit_code, result.stdout) == (2, "")
        assert f"{file}:2:3: plan.tpp: found 'tpp'" in result.stderr
        assert f"{file}:3:7: plan.pp: found 'one', expected a whole number" in result.stderr
        result = run("evaluate", TINY, "--design", tmp_path / "nothing.yaml")
        assert (result.exit_code, result.stdout) == (2, "")

    def test_a_design_is_required(self) -> None:
        assert run("evaluate", TINY).exit_code == 2


class TestExplain:
    def test_without_a_question(self, answer: Path) -> None:
        result = run("explain", answer)
        assert (result.exit_code, result.stderr) == (0, "")
        for heading in ("What binds", "One choice changed", "Where the time", "Where the money", "Memory of"):
            assert f"\n{heading}" in result.stdout
        found = document(run("explain", answer, "--json"))
        assert {limit["name"] for limit in found["limits"]} == {"capex", "gpus", "memory"}
        assert found["alternatives"] == []

    def test_why_not(self, answer: Path) -> None:
        result = run("explain", answer, "--set", "plan.recompute=full", "--json")
        assert result.exit_code == 0
        (one,) = document(result)["alternatives"]
        assert one["verdict"] == "worse"
        assert one["at_least_worse"] > 0
        text = run("explain", answer, "--set", "plan.recompute=full").stdout
        assert "With plan.recompute=full: every design is at least" in text

    def test_an_override_that_is_none(self, answer: Path) -> None:
        result = run("explain", answer, "--set", "plan.tq=2")
        assert (result.exit_code, result.stdout) == (2, "")
        assert "plan.tq" in result.stderr

    def test_an_altered_file_is_not_explained(self, answer: Path, tmp_path: Path) -> None:
        whole = json.loads((answer / "solution.json").read_text())
        whole["evaluation"]["power_w"] /= 2
        file = tmp_path / "altered.json"
        file.write_text(json.dumps(whole))
        result = run("explain", file)
        assert (result.exit_code, result.stdout) == (2, "")
        assert "is not what a fresh computation gives" in result.stderr

    def test_no_such_file(self, tmp_path: Path) -> None:
        assert run("explain", tmp_path / "nothing").exit_code == 2


class TestSchemaAndCatalogue:
    @pytest.mark.parametrize("options", [(), ("--json",)])
    def test_schema(self, options: tuple[str, ...]) -> None:
        result = run("schema", *options)
        assert (result.exit_code, result.stderr) == (0, "")
        found = document(result)
        assert found["$schema"].startswith("https://json-schema.org/")
        assert {"workloads", "offers", "limits"} <= set(found["properties"])

    def test_catalogue(self) -> None:
        result = run("catalogue", "servers", "--json")
        assert result.exit_code == 0
        assert "hgx-h100" in document(result)["records"]
        assert run("catalogue", "servers", "hgx-h100").stdout.startswith("servers · hgx-h100\n")
        assert run("catalogue", "servers", "hgx-h1").exit_code == 2


def test_commands_are_listed_in_the_order_of_work() -> None:
    assert list(main.commands) == ["solve", "evaluate", "verify", "explain", "calibrate", "catalogue", "schema"]


def test_the_instances_of_these_tests_are_what_they_are_taken_for() -> None:
    assert read(TINY).offers.servers == ()
    assert read(BOUGHT).limits.capex_usd == 3e6
