"""Figures of merit: Kendall's tau, regret, verdicts on memory; and the published runs that CI can afford."""

from __future__ import annotations

import json
import math
from pathlib import Path

import accuracy
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from measured import run

from codesign.calibrate import fit, recipes, score
from codesign.calibrate.runs import Run, read_runs

DATA = Path(accuracy.__file__).parent / "data"


def measured(value: float, **changes: object) -> Run:
    one = run(**changes)
    return Run(one.file, one.line, one.columns, value)


def test_kendall_by_hand() -> None:
    # pairs: (1,2)+ (1,3)+ (1,4)+ (2,3)- (2,4)+ (3,4)+ : (5 - 1) / 6
    assert score.kendall_tau(np.array([1.0, 2, 3, 4]), np.array([1.0, 3, 2, 4])) == pytest.approx(4 / 6)
    # a tie in one: 5 of its pairs count, 4 of them alike and none opposite: 5 / sqrt(5 x 6), tau-b
    tied = score.kendall_tau(np.array([1.0, 2, 2, 3]), np.array([1.0, 2, 3, 4]))
    assert tied == pytest.approx(5 / math.sqrt(5 * 6))
    assert score.kendall_tau(np.array([1.0, 1.0]), np.array([1.0, 2.0])) == 0.0


@given(st.permutations(list(range(7))))
def test_kendall_of_a_reversal_is_its_negative(order: list[int]) -> None:
    first, second = np.arange(7.0), np.array(order, dtype=float)
    assert score.kendall_tau(first, second) == pytest.approx(-score.kendall_tau(first, -second))


def test_a_group_and_its_regret() -> None:
    """Three plans of one batch; the second is measured fastest, and the model ranks some of them first."""
    runs = [measured(t, vp=v) for v, t in ((1, 10.0), (2, 8.0), (5, 9.0))]
    found = score.report(runs)
    (group,) = found.groups
    assert group.measured_s == (10.0, 8.0, 9.0)
    first = int(np.argmin(group.predicted_s))
    assert group.regret == pytest.approx(group.measured_s[first] / 8.0 - 1.0)
    assert found.everything.groups == 1
    assert found.everything.predicted == 3


def test_skipped_rows_are_counted_by_reason() -> None:
    found = score.report([measured(1.0), measured(1.0, gpu="TPU"), measured(1.0, metric="loss")])
    assert found.skipped == {"the GPU is not in the catalogue (TPU)": 1, "the metric is not predicted (loss)": 1}
    assert found.everything.rows == 3


def test_verdicts_on_memory() -> None:
    """16 bytes of 70e9 parameters are over 8 GPUs of 80 GB; over 64 with a pipeline they fit."""
    crowded = {"tp": 8, "pp": 1, "vp": "", "dp": 8, "zero": 0, "recompute": "full"}
    failed = measured(0.0, metric="fits_in_memory", unit="bool", **crowded)
    ran = measured(1.0, metric="iteration_time", **crowded)
    assert score.report([failed]).memory.right == 1
    assert score.report([ran]).memory.said_exceeds_but_ran == 1
    assert score.report([measured(1.0, recompute="")]).memory == score.Confusion()


def test_the_document_has_the_keys_that_scripts_read() -> None:
    found = accuracy.document(score.report([measured(9.0), measured(1.0, gpu="TPU")]))
    assert set(found) == {"all", "sources", "skipped", "memory", "rows"}
    keys = {
        "rows",
        "predicted",
        "mape",
        "median_ape",
        "within_10",
        "within_15",
        "within_20",
        "kendall_tau",
        "regret_median",
    }
    assert keys <= set(found["all"])
    assert set(found["memory"]) == {"right", "wrong", "tight"}
    assert {"id", "metric", "predicted", "measured", "error", "skipped"} == set(found["rows"][0])
    assert "NaN" not in json.dumps(found)


def test_the_runs_of_korthikanti() -> None:
    """arXiv:2205.05198, Table 5 and Figures 1 and 7: step times and the paper's own formulas of memory."""
    found = score.report(read_runs(DATA / "korthikanti_seqsel.csv"))
    assert found.everything.predicted == 34
    times = [abs(row.error or 0.0) for row in found.rows if row.step_seconds is not None]
    assert np.mean(times) <= 0.035
    assert max(times) <= 0.08
    formulas = [abs(row.error or 0.0) for row in found.rows if "memory" in row.run.metric]
    assert max(formulas) <= 0.09  # the paper counts chunks in flight under interleaving as a mean, not as a peak


def test_what_was_fitted_is_at_most_half_of_each_source() -> None:
    fitted = set(accuracy.FITTED.read_text(encoding="utf-8").split())
    for path in DATA.glob("*.csv"):
        names = {fit.identity(setting) for setting in fit.settings_of(read_runs(path))}
        assert len(names & {name for name in names if fit.digest(name) in fitted}) <= len(names) / 2, path.name


@pytest.mark.slow
def test_held_out_runs() -> None:
    """What docs/accuracy.md says, with room for another processor's rounding."""
    fitted = frozenset(accuracy.FITTED.read_text(encoding="utf-8").split())
    runs = [one for path in sorted(DATA.glob("*.csv")) for one in read_runs(path)]
    whole = score.report(runs)
    assert whole.everything.predicted >= 0.85 * whole.everything.rows
    assert whole.memory.said_fits_but_failed == 0
    assert whole.memory.right >= 0.9 * (whole.memory.right + whole.memory.wrong + whole.memory.tight)
    assert whole.everything.kendall_tau >= 0.75
    assert whole.everything.regret_median <= 0.03
    unseen = score.report(runs, lambda setting: fit.digest(fit.identity(setting)) not in fitted)
    assert unseen.everything.within_15 >= 0.80
    assert recipes.assumptions().memory_band > 0
