"""Predicted against measured: python benchmarks/accuracy.py --data FILE.csv [--data ...] [--json] [--held-out].

Every row is predicted from its own columns; what is blank is filled by the rules of `codesign.calibrate.recipes`, and
what cannot be predicted is skipped with its reason. `--held-out` leaves out the configurations that constants were
fitted to. `--page DIR` writes the results as a page with pictures.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from codesign.calibrate import fit, score
from codesign.calibrate.runs import read_runs
from codesign.errors import SpecError

DATA = Path(__file__).parent / "data"
FITTED = DATA / "fitted.txt"
"""Hashes of the configurations that the catalogue's constants were fitted to, written by `codesign calibrate`."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--data", action="append", help="a CSV file of measured runs; all in benchmarks/data by default"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.add_argument("--held-out", action="store_true", help="only configurations that no constant was fitted to")
    parser.add_argument(
        "--worst", type=int, default=0, help="the so many rows with the greatest error, with their parts"
    )
    options = parser.parse_args()
    files = options.data or sorted(str(path) for path in DATA.glob("*.csv"))
    try:
        runs = [run for file in files for run in read_runs(file)]
    except SpecError as problem:
        print(problem, file=sys.stderr)
        return 2
    fitted = frozenset(FITTED.read_text(encoding="utf-8").split())
    keep = (lambda setting: fit.digest(fit.identity(setting)) not in fitted) if options.held_out else None
    found = score.report(runs, keep)
    if options.json:
        print(json.dumps(document(found)))
    else:
        print(text(found, options.worst))
    return 0


def document(found: score.Report) -> dict[str, Any]:
    """The results as plain values; what is not a number is null."""

    def plain(summary: score.Summary) -> dict[str, Any]:
        return {name: _finite(value) for name, value in asdict(summary).items()}

    return {
        "all": plain(found.everything),
        "sources": {file: plain(summary) for file, summary in found.sources.items()},
        "skipped": dict(found.skipped),
        "memory": {"right": found.memory.right, "wrong": found.memory.wrong, "tight": found.memory.tight},
        "rows": [
            {
                "id": row.run.id,
                "metric": row.run.metric,
                "predicted": _finite(row.predicted),
                "measured": row.run.value,
                "error": _finite(row.error),
                "skipped": row.skipped or None,
            }
            for row in found.rows
        ],
    }


def _finite(value: float | None) -> float | None:
    return value if value is None or math.isfinite(value) else None


def text(found: score.Report, worst: int) -> str:
    """The results for a reader: every row, then the figures."""
    lines = [f"{'row':<30} {'metric':<24} {'predicted':>12} {'measured':>12}  error"]
    for row in found.rows:
        head = f"{row.run.id:<30} {row.run.metric:<24}"
        if row.skipped:
            lines.append(f"{head} {'-':>12} {row.run.value:>12.6g}  skipped: {row.skipped}")
        else:
            error = "" if row.error is None else f"{row.error:+.1%}"
            lines.append(f"{head} {row.predicted:>12.6g} {row.run.value:>12.6g}  {error}")
    lines += ["", "skipped, by reason:"]
    lines += [f"  {count:5d}  {reason}" for reason, count in found.skipped.items()] or ["  none"]
    lines += ["", summary_table(found), ""]
    memory = found.memory
    lines.append(
        f"memory verdicts where the outcome is known: {memory.right} right, {memory.tight} tight, {memory.wrong} wrong "
        f"({memory.said_fits_but_failed} said to fit and failed, {memory.said_exceeds_but_ran} said to exceed and ran)"
    )
    if worst:
        lines += ["", f"the {worst} greatest errors:"]
        rows = sorted((row for row in found.rows if row.error is not None), key=lambda row: -abs(row.error or 0.0))
        lines += [f"  {described(row)}" for row in rows[:worst]]
    return "\n".join(lines)


def summary_table(found: score.Report) -> str:
    """Figures by source and in all."""
    lines = [
        f"{'source':<28} {'rows':>5} {'pred.':>5} {'mean':>7} {'median':>7} {'<10%':>6} {'<15%':>6} {'<20%':>6} "
        f"{'groups':>6} {'tau':>6} {'regret':>7}"
    ]
    for name, s in [*found.sources.items(), ("all", found.everything)]:
        lines.append(
            f"{name:<28} {s.rows:>5} {s.predicted:>5} {s.mape:>7.1%} {s.median_ape:>7.1%} {s.within_10:>6.0%} "
            f"{s.within_15:>6.0%} {s.within_20:>6.0%} {s.groups:>6} {s.kendall_tau:>6.2f} {s.regret_median:>7.1%}"
        )
    return "\n".join(lines)


def described(row: score.Row) -> str:
    """A row with its plan and where its predicted time goes."""
    assert row.prediction is not None
    assert row.setting is not None
    plan, model = row.prediction.plan, row.setting.workload.model
    parts = sorted(row.prediction.parts_s.items(), key=lambda part: -part[1])[:4]
    return (
        f"{row.error:+.1%}  {row.run.id} {row.run.metric}  {row.run.text('model')} ({model.layers} x {model.hidden}) "
        f"{row.setting.server.gpu.name} x {plan.world}, tp {plan.tp} cp {plan.cp} ep {plan.ep} pp {plan.pp} "
        f"v {plan.virtual_stages} dp {plan.dp} b {plan.micro_batch} {plan.recompute}: "
        + ", ".join(f"{name} {seconds / row.prediction.seconds:.0%}" for name, seconds in parts)
    )


if __name__ == "__main__":
    sys.exit(main())
