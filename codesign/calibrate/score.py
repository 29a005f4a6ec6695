"""How true the predictions are. Floor 5. In: measured runs. Out: `Report`: a row a run, figures by source and in all.

A *group*, for ranking, is what shares file, model, sequence length, batch, precision, GPU and number of GPUs, with at
least three configurations with measured times; a configuration that was measured more than once counts by its median.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from codesign.calibrate import predict, recipes
from codesign.calibrate.architectures import Unpredictable
from codesign.calibrate.fit import identity
from codesign.calibrate.predict import Prediction
from codesign.calibrate.recipes import Setting
from codesign.calibrate.runs import Run
from codesign.cost.memory import VERDICTS, verdict

LEAST_IN_GROUP = 3
MEMORY_METRICS = ("peak_memory", "fits_in_memory")


@dataclass(frozen=True)
class Row:
    """One run: prediction in the metric's unit, `error` = predicted / measured - 1, or why it was skipped."""

    run: Run
    predicted: float | None = None
    error: float | None = None
    skipped: str = ""
    setting: Setting | None = None
    prediction: Prediction | None = None

    @property
    def step_seconds(self) -> tuple[float, float] | None:
        """Predicted and measured seconds of a step, where the metric tells of them."""
        if self.setting is None or self.prediction is None or not predict.is_time(self.run.metric):
            return None
        return self.prediction.seconds, predict.measured_seconds(self.setting, self.prediction.plan, self.run)


@dataclass(frozen=True)
class Summary:
    """Figures of some rows; shares and errors are fractions, NaN where there is nothing to count."""

    rows: int
    predicted: int
    mape: float
    median_ape: float
    within_10: float
    within_15: float
    within_20: float
    kendall_tau: float
    regret_median: float
    groups: int


@dataclass(frozen=True)
class Confusion:
    """Verdicts on configurations whose outcome is known: right, wrong by kind, and tight (neither)."""

    right: int = 0
    tight: int = 0
    said_fits_but_failed: int = 0
    said_exceeds_but_ran: int = 0

    @property
    def wrong(self) -> int:
        return self.said_fits_but_failed + self.said_exceeds_but_ran


@dataclass(frozen=True)
class Report:
    """Everything that was found; `held_out` counts only what no constant was fitted to."""

    rows: tuple[Row, ...]
    everything: Summary
    sources: Mapping[str, Summary]
    skipped: Mapping[str, int]
    memory: Confusion
    groups: tuple[Group, ...] = field(default=())


@dataclass(frozen=True)
class Group:
    """Configurations to be ranked: measured and predicted seconds, and what came of it."""

    name: str
    file: str
    measured_s: tuple[float, ...]
    predicted_s: tuple[float, ...]
    kendall_tau: float
    regret: float


def report(runs: Sequence[Run], keep: Callable[[Setting], bool] | None = None) -> Report:
    """Predict every run and count. With `keep` only the settings that it takes; what is skipped stays counted."""
    known: dict[object, tuple[Setting, Prediction] | str] = {}
    rows = []
    for run in runs:
        key = (run.configuration, run.text("source"), run.text("notes"))
        if key not in known:
            known[key] = _predicted(run)
        found = known[key]
        if isinstance(found, str):
            rows.append(Row(run, skipped=found))
            continue
        setting, prediction = found
        if keep is None or keep(setting):
            rows.append(_row(run, setting, prediction))
    groups = _groups(rows)
    sources = list(dict.fromkeys(row.run.file for row in rows))
    return Report(
        rows=tuple(rows),
        everything=_summary(rows, groups),
        sources={
            file: _summary([r for r in rows if r.run.file == file], [g for g in groups if g.file == file])
            for file in sources
        },
        skipped=dict(Counter(row.skipped for row in rows if row.skipped).most_common()),
        memory=_confusion(rows),
        groups=tuple(groups),
    )


def _predicted(run: Run) -> tuple[Setting, Prediction] | str:
    try:
        setting = recipes.setting(run)
    except Unpredictable as reason:
        return str(reason)
    constants = recipes.assumptions(**setting.software.assumptions())
    return setting, predict.predict(setting, setting.server.gpu, constants)


def _row(run: Run, setting: Setting, prediction: Prediction) -> Row:
    try:
        if predict.is_time(run.metric):
            predicted = predict.in_unit_of(setting, prediction, run)
        else:
            predicted = predict.memory_in_unit_of(setting, prediction, run)
    except Unpredictable as reason:
        return Row(run, skipped=str(reason))
    error = predicted / run.value - 1.0 if run.value and run.metric != "fits_in_memory" else None
    return Row(run, predicted, error, "", setting, prediction)


def _summary(rows: Sequence[Row], groups: Sequence[Group]) -> Summary:
    errors = np.abs(np.array([row.error for row in rows if row.error is not None]))
    nothing = float("nan")

    def within(most: float) -> float:
        return float(np.mean(errors <= most)) if len(errors) else nothing

    return Summary(
        rows=len(rows),
        predicted=sum(1 for row in rows if not row.skipped),
        mape=float(errors.mean()) if len(errors) else nothing,
        median_ape=float(np.median(errors)) if len(errors) else nothing,
        within_10=within(0.10),
        within_15=within(0.15),
        within_20=within(0.20),
        kendall_tau=float(np.mean([g.kendall_tau for g in groups])) if groups else nothing,
        regret_median=float(np.median([g.regret for g in groups])) if groups else nothing,
        groups=len(groups),
    )


def _groups(rows: Sequence[Row]) -> list[Group]:
    by_group: dict[tuple[object, ...], dict[str, list[tuple[float, float]]]] = {}
    for row in rows:
        seconds = row.step_seconds
        if seconds is None or row.setting is None:
            continue
        workload = row.setting.workload
        key = (
            row.run.file, repr(workload.model.model_dump(exclude={"name"})), workload.sequence_length,
            workload.global_batch, workload.precision, row.setting.server.gpu.name, row.setting.gpus, workload.tuning,
        )  # fmt: skip
        by_group.setdefault(key, {}).setdefault(identity(row.setting), []).append(seconds)
    found = []
    for group, configurations in by_group.items():
        if len(configurations) < LEAST_IN_GROUP:
            continue
        predicted = np.array([np.median([p for p, _ in several]) for several in configurations.values()])
        measured = np.array([np.median([m for _, m in several]) for several in configurations.values()])
        found.append(
            Group(
                name=" ".join(str(part) for part in (*group[2:6], f"{group[6]} GPUs")),
                file=str(group[0]),
                measured_s=tuple(measured.tolist()),
                predicted_s=tuple(predicted.tolist()),
                kendall_tau=kendall_tau(predicted, measured),
                regret=float(measured[int(np.argmin(predicted))] / measured.min() - 1.0),
            )
        )
    return found


def kendall_tau(first: npt.NDArray[np.float64], second: npt.NDArray[np.float64]) -> float:
    """Kendall's tau-b: pairs in the same order less pairs in the opposite one, over all, ties taken out.

    Source: Kendall 1945, "The treatment of ties in ranking problems". 0 where one side is all ties.
    """
    i, j = np.triu_indices(len(first), k=1)
    a, b = np.sign(first[i] - first[j]), np.sign(second[i] - second[j])
    scale = np.sqrt(float(np.sum(a != 0)) * float(np.sum(b != 0)))
    return float(np.sum(a * b) / scale) if scale else 0.0


def _confusion(rows: Sequence[Row]) -> Confusion:
    """Each configuration once: it ran where a memory peak or a time was measured, it failed where the row says so.

    Configurations of which the recomputation is not stated are left out: it decides the memory.
    """
    outcomes: dict[str, tuple[Row, bool]] = {}
    for row in rows:
        if row.setting is None or row.prediction is None or len(row.setting.plans) > 1:
            continue
        failed = row.run.metric == "fits_in_memory" and row.run.value == 0
        told = row.run.metric in MEMORY_METRICS or (predict.is_time(row.run.metric) and row.run.text("recompute"))
        if told:
            key = identity(row.setting)
            outcomes[key] = (row, failed or (key in outcomes and outcomes[key][1]))
    right = tight = fits_but_failed = exceeds_but_ran = 0
    for row, failed in outcomes.values():
        said = judged(row)
        if said == "tight":
            tight += 1
        elif (said == "exceeds") == failed:
            right += 1
        elif failed:
            fits_but_failed += 1
        else:
            exceeds_but_ran += 1
    return Confusion(right, tight, fits_but_failed, exceeds_but_ran)


def judged(row: Row) -> str:
    """The verdict on a row's memory."""
    assert row.prediction is not None
    band = recipes.assumptions().memory_band
    return VERDICTS[int(verdict(row.prediction.worst_bytes, row.prediction.capacity_bytes, band))]
