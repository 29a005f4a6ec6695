"""The loop: limits, cancellation, events, determinism, and what it does when a solver contradicts a design."""

from __future__ import annotations

import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from codesign import Limits, Progress, read, solve
from codesign.cost.assemble import CostModel
from codesign.errors import SolverError
from codesign.expr import Relation, evaluate
from codesign.relax import cpsat, mathopt
from codesign.relax.outcome import Outcome
from codesign.solve.candidates import Candidates
from codesign.solve.exhaustive import designs_of
from codesign.solve.progress import Cancel

INSTANCES = Path(__file__).parents[2] / "instances"
SMALL = read(INSTANCES / "small" / "8b-buy-network.yaml")
REAL = read(INSTANCES / "reference" / "llama3-70b-under-30m.yaml")


def answer(solution: Any) -> dict[str, Any]:
    """The document without what depends on the clock."""
    document = solution.to_document()
    for name in ("wall_s", "first_design_s"):
        del document["proof"][name]
    for proof in document["proof"]["proofs"]:
        del proof["wall_s"]
    del document["digest"]
    return document


def test_the_same_call_gives_the_same_answer() -> None:
    assert answer(solve(REAL)) == answer(solve(REAL))


def test_threads_of_the_host_do_not_disturb_each_other() -> None:
    expected = answer(solve(SMALL))
    found: list[Any] = []
    workers = [threading.Thread(target=lambda: found.append(answer(solve(SMALL)))) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert found == [expected] * 3


def test_the_gap_is_what_it_says() -> None:
    certificate = solve(REAL).certificate
    assert certificate is not None
    assert certificate.gap == abs(certificate.value - certificate.bound) / abs(certificate.value)
    assert certificate.bound <= certificate.value
    assert certificate.gap <= 1e-3


def test_rates_are_bounded_from_above() -> None:
    certificate = solve(read(INSTANCES / "small" / "8b-on-two-servers.yaml")).certificate
    assert certificate is not None
    assert certificate.bound >= certificate.value


def test_a_short_time_gives_a_verified_design_or_none_and_an_honest_gap() -> None:
    solution = solve(REAL, Limits(time_s=0.6, gap=0.0))
    if solution.certificate is None:
        assert solution.status == "unknown"
        return
    assert solution.evaluation is not None
    assert solution.evaluation.feasible
    full = solve(REAL).certificate
    assert full is not None
    assert solution.certificate.bound <= full.value * (1 + 1e-9)
    assert solution.certificate.value >= full.bound * (1 - 1e-9)


def test_cancelled_at_once() -> None:
    cancel = Cancel()
    cancel.set()
    solution = solve(REAL, cancel=cancel)
    assert solution.status in ("unknown", "feasible")


def test_cancelled_at_the_first_design() -> None:
    cancel = Cancel()

    def listen(event: Progress) -> None:
        if event.incumbent is not None:
            cancel.set()

    solution = solve(REAL, Limits(gap=0.0), progress=listen, cancel=cancel)
    assert solution.status == "feasible"
    assert solution.evaluation is not None
    assert solution.evaluation.feasible
    assert solution.certificate is not None
    assert not solution.certificate.deterministic


def test_events_come_in_order() -> None:
    events: list[Progress] = []
    solution = solve(REAL, progress=events.append)
    times = [event.time_s for event in events]
    assert times == sorted(times)
    assert [event.phase for event in (events[0], events[-1])] == ["searching", "done"]
    incumbents = [event.incumbent for event in events if event.incumbent is not None]
    assert incumbents == sorted(incumbents, reverse=True)
    bounds = [event.bound for event in events if event.bound is not None]
    assert bounds == sorted(bounds)
    assert solution.certificate is not None
    assert incumbents[-1] == solution.certificate.value


def test_an_error_of_the_listener_reaches_the_caller() -> None:
    def listen(event: Progress) -> None:
        raise RuntimeError("the listener's own")

    with pytest.raises(RuntimeError, match="the listener's own"):
        solve(SMALL, progress=listen)


def test_single_proof_names_one_solver() -> None:
    certificate = solve(SMALL, Limits(proof="single")).certificate
    assert certificate is not None
    assert certificate.proven_by == ("cp-sat",)


@pytest.mark.parametrize(("module", "words"), [(cpsat, "CP-SAT"), (mathopt, "highs")])
def test_a_bound_above_a_verified_design_is_a_fault(monkeypatch: pytest.MonkeyPatch, module: Any, words: str) -> None:
    true_solve = module.solve

    def lying(rows: Any, **options: Any) -> Outcome:
        outcome: Outcome = true_solve(rows, **options)
        return replace(outcome, bound=outcome.bound * 1.01)

    monkeypatch.setattr(module, "solve", lying)
    with pytest.raises(SolverError, match=f"{words}.*verified design"):
        solve(SMALL)


def test_solvers_that_disagree_are_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    true_solve = mathopt.solve

    def low(rows: Any, **options: Any) -> Outcome:
        outcome: Outcome = true_solve(rows, **options)
        return replace(outcome, bound=outcome.bound * 0.999)

    monkeypatch.setattr(mathopt, "solve", low)
    with pytest.raises(SolverError, match="disagree"):
        solve(SMALL)


def test_a_solver_that_gives_up_leaves_the_gap_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(rows: Any, **options: Any) -> Outcome:
        return Outcome("highs", "unknown", 0.0, float("inf"), None, (), 0.0)

    monkeypatch.setattr(mathopt, "solve", nothing)
    solution = solve(SMALL)
    assert solution.certificate is not None
    assert solution.status == "feasible"
    assert solution.certificate.proven_by == ()  # the word of one solver is not reported as a proof
    assert [proof.solver for proof in solution.certificate.proofs] == ["cp-sat", "highs"]


def test_ties_go_to_the_cheaper_design() -> None:
    """Step time alone: storage does not enter it, so the least of it is taken."""
    solution = solve(read(INSTANCES / "small" / "8b-buy-network.yaml", ["objective=step_time"]))
    assert solution.design is not None
    assert solution.design.purchase.storage.units == 1


def test_nothing_below_a_cutoff_is_lost() -> None:
    """Candidates.below against all designs: each design under the cutoff has its plan and placement among them."""
    model = CostModel(SMALL)
    candidates = Candidates(model)
    parts = list(designs_of(model))
    values = np.concatenate([evaluate(model.objective, part.columns) for part in parts])
    allowed = np.concatenate([_allowed(model, part) for part in parts])
    cutoff = float(np.quantile(values[allowed], 0.3))
    plans, bounds = candidates.below(cutoff)
    names = [name for name in plans.scope if name in parts[0].columns]
    kept = {tuple(row) for row in np.stack([plans.columns[n] for n in names], axis=1).tolist()}
    rows = np.concatenate([np.stack([part.columns[n] for n in names], axis=1) for part in parts])
    below = {tuple(row) for row in rows[allowed & (values <= cutoff)].tolist()}
    assert below
    assert below <= kept
    assert len(kept) < len({tuple(row) for row in rows.tolist()})
    assert np.all(bounds <= cutoff)


def _allowed(model: CostModel, part: Relation) -> Any:
    keep = np.ones(len(part), dtype=bool)
    for limit in model.limits:
        keep &= evaluate(limit.term, part.columns) <= limit.most
    for stage in model.memory:
        keep &= evaluate(stage, part.columns) <= 1.0
    return keep


@pytest.mark.parametrize(
    ("field", "value"),
    [("time_s", 0.0), ("time_s", float("nan")), ("gap", -1e-9), ("gap", 1.0), ("threads", 0), ("proof", "none")],
)
def test_limits_are_checked(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=field):
        Limits(**{field: value})


def test_highs_does_not_bring_the_process_down() -> None:
    """With the presolve of HiGHS 1.16 this one ends in a segmentation fault, so it runs in a process of its own."""
    file = Path(__file__).parents[1] / "data" / "highs-presolve.yaml"
    code = f"from codesign import read, solve; print(solve(read({str(file)!r})).status)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout.strip()) == (0, "optimal"), run.stderr
