"""Writes docs/accuracy.md with its pictures from the measured runs: python benchmarks/accuracy_page.py [--out docs]."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

import accuracy
import numpy as np

from codesign.calibrate import fit, score
from codesign.calibrate.runs import read_runs

COLOURS = {
    "A100, 16 bit": "#0072B2",
    "H100, 16 bit": "#009E73",
    "H100, 8 bit": "#E69F00",
    "Blackwell": "#D55E00",
    "mixtures of experts": "#CC79A7",
}
"""Okabe and Ito's colours, told apart by eyes of all kinds; marks differ in shape as well."""
SHAPES = dict(zip(COLOURS, "osdv^", strict=True))

CAUSES: tuple[tuple[str, str, str], ...] = (
    # file, part of the model's name, what is behind it
    ("bloom", "18B", "printed TFLOP/s and seconds agree with each other for a quarter of the printed batch"),
    ("bloom", "", "a single early iteration of each configuration; equal configurations differ by up to 15 %"),
    ("bridge", "GPT OSS", "FLOPs a token of this model change between releases of the source"),
    (
        "bridge",
        "Qwen3",
        "dropless routing of small experts, bound by the host in early releases; the columns do not say so",
    ),
    ("bridge", "DeepSeek", "what is recomputed and overlapped is not in the table, and differs between releases"),
    ("bridge", "", "what is recomputed and overlapped is not in the table"),
    ("megatron_lm", "GPT-39B", "split of the 16 model-parallel ranks, micro-batch and schedule are not printed"),
    ("megatron_lm", "GPT-145B", "split of the 64 model-parallel ranks, micro-batch and schedule are not printed"),
    ("megatron_lm", "", "micro-batch and schedule are not printed; taken as tuned"),
    ("mlperf", "LoRA", "degrees are not in the log, and packed sequences are shorter than the limit"),
    ("mlperf", "", "tuned submissions: recorded graphs, in-network reduction, raised clocks; six micro-batches a step"),
    ("dgxc", "Nemotron4 340b", "virtual stages are not printed; the split by the model is shallower than the run's"),
    ("dgxc", "Finetuning", "packed sequences are shorter than the limit"),
    ("nemo", "", "best plan 'not stated'; taken as tuned"),
    ("vtrain", "", "one of few runs that differ from their neighbours by tens of percent"),
    ("llm_foundry", "", "64k tokens on an attention kernel of 2023"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "docs")
    out: Path = parser.parse_args().out
    out.mkdir(exist_ok=True)
    runs = [run for file in sorted(accuracy.DATA.glob("*.csv")) for run in read_runs(file)]
    fitted = frozenset(accuracy.FITTED.read_text(encoding="utf-8").split())
    everything = score.report(runs)
    unseen = score.report(runs, lambda setting: fit.digest(fit.identity(setting)) not in fitted)
    times = [row for row in unseen.rows if row.step_seconds is not None]
    (out / "accuracy-scatter.svg").write_text(scatter(times), encoding="utf-8")
    (out / "accuracy-errors.svg").write_text(distribution(times), encoding="utf-8")
    (out / "accuracy.md").write_text(page(everything, unseen), encoding="utf-8")


def kind_of(row: score.Row) -> str:
    """Which group of the picture a row belongs to."""
    assert row.setting is not None
    gpu, workload = row.setting.server.gpu.name, row.setting.workload
    if workload.model.experts:
        return "mixtures of experts"
    if gpu.startswith("a100"):
        return "A100, 16 bit"
    if gpu.startswith("h"):
        return "H100, 16 bit" if workload.precision == "bf16" else "H100, 8 bit"
    return "Blackwell"


# --------------------------------------------------------------------------------------------------- pictures


def scatter(rows: Sequence[score.Row]) -> str:
    """Predicted against measured seconds of a step, both logarithmic, one mark a configuration."""
    points: dict[tuple[str, str], tuple[float, float]] = {}
    for row in rows:
        assert row.setting is not None
        found = row.step_seconds
        assert found is not None
        points[kind_of(row), fit.identity(row.setting)] = found
    size, left, top = 560, 70, 20
    low, high = -1.5, 3.0

    def at(seconds: float) -> float:
        return (math.log10(seconds) - low) / (high - low) * size

    parts = _head(left + size + 220, top + size + 60)
    for power in range(-1, 4):
        where = at(10.0**power)
        label = f"{10.0**power:g}"
        parts.append(
            f'<line class="grid" x1="{left + where:.1f}" x2="{left + where:.1f}" y1="{top}" y2="{top + size}"/>'
        )
        parts.append(
            f'<line class="grid" x1="{left}" x2="{left + size}" y1="{top + size - where:.1f}" y2="{top + size - where:.1f}"/>'
        )
        parts.append(f'<text x="{left + where:.1f}" y="{top + size + 18}" text-anchor="middle">{label}</text>')
        parts.append(f'<text x="{left - 8}" y="{top + size - where + 4:.1f}" text-anchor="end">{label}</text>')
    parts.append(f'<line class="axis" x1="{left}" y1="{top + size}" x2="{left + size}" y2="{top}"/>')
    shift = math.log10(1.15) / (high - low) * size
    for sign in (-1, 1):
        y1, y2 = top + size - sign * shift, top - sign * shift
        parts.append(f'<line class="band" x1="{left}" y1="{y1:.1f}" x2="{left + size}" y2="{y2:.1f}"/>')
    for (kind, _), (predicted, measured) in sorted(points.items()):
        parts.append(_mark(SHAPES[kind], left + at(measured), top + size - at(predicted), COLOURS[kind]))
    for index, (kind, colour) in enumerate(COLOURS.items()):
        y = top + 20 + 22 * index
        parts.append(_mark(SHAPES[kind], left + size + 20, y - 4, colour))
        parts.append(f'<text x="{left + size + 32}" y="{y}">{escape(kind)}</text>')
    parts.append(f'<text x="{left + size + 20}" y="{top + 150}">dashed: 15 % off</text>')
    parts.append(
        f'<text x="{left + size / 2}" y="{top + size + 44}" text-anchor="middle">measured, seconds a step</text>'
    )
    parts.append(
        f'<text transform="translate(18 {top + size / 2}) rotate(-90)" text-anchor="middle">predicted, seconds a step</text>'
    )
    return "\n".join([*parts, "</svg>"]) + "\n"


def distribution(rows: Sequence[score.Row]) -> str:
    """Share of configurations within an error, for each source."""
    files = sorted({row.run.file for row in rows})
    width, step, left, top = 520, 26, 210, 40
    parts = _head(left + width + 40, top + step * len(files) + 40)
    most = 0.4
    for share in (0.0, 0.1, 0.2, 0.3, 0.4):
        x = left + share / most * width
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{top - 8}" y2="{top + step * len(files)}"/>')
        parts.append(f'<text x="{x:.1f}" y="{top - 14}" text-anchor="middle">{share:.0%}</text>')
    for index, file in enumerate(files):
        errors = np.array([abs(row.error) for row in rows if row.run.file == file and row.error is not None])
        y = top + step * index + step / 2
        low, quarter, middle, three, high = (float(q) for q in np.quantile(errors, [0.05, 0.25, 0.5, 0.75, 0.95]))
        xs = [left + min(value, most) / most * width for value in (low, quarter, middle, three, high)]
        parts.append(f'<text x="{left - 10}" y="{y + 4}" text-anchor="end">{escape(file.removesuffix(".csv"))}</text>')
        parts.append(f'<line class="axis" x1="{xs[0]:.1f}" x2="{xs[4]:.1f}" y1="{y}" y2="{y}"/>')
        parts.append(
            f'<rect x="{xs[1]:.1f}" y="{y - 7}" width="{max(1.0, xs[3] - xs[1]):.1f}" height="14" fill="#0072B2"/>'
        )
        parts.append(f'<line class="middle" x1="{xs[2]:.1f}" x2="{xs[2]:.1f}" y1="{y - 9}" y2="{y + 9}"/>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _head(width: float, height: float) -> list[str]:
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" font-family="sans-serif" font-size="13">',
        "<style>text{fill:#222}.grid{stroke:#ddd}.axis{stroke:#555}.band{stroke:#555;stroke-dasharray:5 4}"
        ".middle{stroke:#fff;stroke-width:2}svg{background:#fff}</style>",
        f'<rect width="{width:g}" height="{height:g}" fill="#fff"/>',
    ]


def _mark(shape: str, x: float, y: float, colour: str) -> str:
    corners = {
        "s": [(-3, -3), (3, -3), (3, 3), (-3, 3)],
        "d": [(0, -4), (4, 0), (0, 4), (-4, 0)],
        "v": [(-4, -3), (4, -3), (0, 4)],
        "^": [(-4, 3), (4, 3), (0, -4)],
    }
    if shape == "o":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}" fill-opacity=".7"/>'
    points = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in corners[shape])
    return f'<polygon points="{points}" fill="{colour}" fill-opacity=".7"/>'


# ------------------------------------------------------------------------------------------------------- page


def page(everything: score.Report, unseen: score.Report) -> str:
    """The page."""
    seen = [row for row in unseen.rows if row.error is not None]
    vtrain = [row for row in seen if row.run.file.startswith("vtrain")]
    korthikanti = [row for row in seen if row.run.file.startswith("korthikanti") and row.step_seconds is not None]
    all_korthikanti = [
        row
        for row in everything.rows
        if row.run.file.startswith("korthikanti") and row.step_seconds is not None and row.error is not None
    ]
    rows, predicted = everything.everything.rows, everything.everything.predicted
    return f"""# How true the cost model is

Written by `benchmarks/accuracy_page.py`; the same figures, row by row, come from `python benchmarks/accuracy.py`.

{rows:,} published measurements (`benchmarks/data/`, each row with its source) are predicted by the exact model, the one
that `evaluate` uses. A prediction reads the row's own columns and nothing of what was measured; what is blank is filled
by the rules at the top of `codesign/calibrate/recipes.py`. {predicted:,} rows ({predicted / rows:.0%}) can be predicted.

Constants were fitted by `codesign calibrate` to half of the configurations of each kind within a source, chosen by a
hash (seed {fit.SEED}, listed in `benchmarks/data/fitted.txt`). Everything below but the second table is on the **other**
configurations. No constant belongs to a model or a run: they belong to a GPU, a number format, or a generation of
training software.

## Held out

{table(unseen)}

![predicted against measured](accuracy-scatter.svg)

Errors by source: bars hold the middle half of the rows, lines nine tenths, the white mark is the median.

![distribution of errors](accuracy-errors.svg)

## All rows, those of the fit among them

{table(everything)}

## Ranking

Groups are configurations of one model, sequence length, batch, number format, GPU and number of GPUs, three or more of
them. Kendall's tau is the mean over groups; regret is how much slower the configuration that the model ranks first ran
than the fastest measured one. Over all rows: {everything.everything.groups} groups, tau
{everything.everything.kendall_tau:.2f}, median regret {everything.everything.regret_median:.1%}.

## Memory

Configurations whose outcome is known (it ran, or it ran out of memory) and whose recomputation is stated:
{everything.memory.right} verdicts right, {everything.memory.tight} `tight`, {everything.memory.wrong} wrong, of which
{everything.memory.said_fits_but_failed} were said to fit and failed.

## Beside what others have published

| figure | theirs | here, held out | here, all |
|---|---|---|---|
| Calculon on its own {len(all_korthikanti)} rows of Korthikanti et al. 2022 (mean, worst) | 3.65 %, 8.87 % | {both(korthikanti)} | {both(all_korthikanti)} |
| vTrain, one server of 8 A100 (mean) | 8.37 % | {mean(vtrain, lambda n: n <= 8)} | |
| vTrain, up to 512 A100 (mean) | 14.73 % | {mean(vtrain, lambda n: n > 8)} | |

Theirs are as their authors print them; none of them says how rows were held out.

## Why rows were skipped

{skipped(everything)}

## The twenty rows furthest off

{worst(unseen, 20)}
"""


def table(found: score.Report) -> str:
    """Figures by source as a table."""
    lines = [
        "| source | rows | predicted | mean error | median | within 10 % | within 15 % | within 20 % | groups | tau | regret |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name, s in [*found.sources.items(), ("**all**", found.everything)]:
        shares = " | ".join(f"{share:.0%}" for share in (s.within_10, s.within_15, s.within_20))
        ranks = f"{s.groups} | {s.kendall_tau:.2f} | {s.regret_median:.1%}" if s.groups else "0 | | "
        lines.append(
            f"| {name.removesuffix('.csv')} | {s.rows} | {s.predicted} | {s.mape:.1%} | {s.median_ape:.1%} | {shares} | {ranks} |"
        )
    return "\n".join(lines)


def both(rows: Sequence[score.Row]) -> str:
    """Mean and worst error."""
    errors = [abs(row.error or 0.0) for row in rows]
    return f"{np.mean(errors):.1%}, {np.max(errors):.1%}"


def mean(rows: Sequence[score.Row], gpus: Callable[[int], bool]) -> str:
    """Mean error of the rows with some numbers of GPUs."""
    errors = [abs(row.error or 0.0) for row in rows if row.setting is not None and gpus(row.setting.gpus)]
    return f"{np.mean(errors):.1%} ({len(errors)} rows)"


def skipped(found: score.Report) -> str:
    """Reasons with their counts."""
    return "\n".join(
        ["| rows | reason |", "|---:|---|", *(f"| {n} | {reason} |" for reason, n in found.skipped.items())]
    )


def worst(found: score.Report, count: int) -> str:
    """The rows with the greatest errors, each configuration once, and what is behind them."""
    lines = ["| error | row | what | where the predicted time goes | behind it |", "|---:|---|---|---|---|"]
    shown: set[str] = set()
    for row in sorted((r for r in found.rows if r.error is not None), key=lambda r: -abs(r.error or 0.0)):
        assert row.setting is not None
        assert row.prediction is not None
        if fit.identity(row.setting) in shown:
            continue
        shown.add(fit.identity(row.setting))
        plan = row.prediction.plan
        parts = sorted(row.prediction.parts_s.items(), key=lambda part: -part[1])[:3]
        where = ", ".join(f"{name} {seconds / row.prediction.seconds:.0%}" for name, seconds in parts)
        what = (
            f"{row.run.text('model')}, {row.setting.server.gpu.name} x {plan.world}, tp {plan.tp} cp {plan.cp} ep {plan.ep} "
            f"pp {plan.pp} dp {plan.dp} b {plan.micro_batch}"
        )
        lines.append(f"| {row.error:+.0%} | {row.run.id} ({row.run.metric}) | {what} | {where} | {cause(row)} |")
        if len(shown) == count:
            break
    return "\n".join(lines)


def cause(row: score.Row) -> str:
    """What is behind a great error, as far as the sources tell."""
    if row.run.metric == "peak_memory":
        return "what the allocator held is printed, not what was live"
    for file, model, text in CAUSES:
        if file in row.run.file and model.lower() in row.run.text("model").lower():
            return text
    return "not known"


if __name__ == "__main__":
    main()
