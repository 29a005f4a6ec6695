"""`codesign calibrate`: constants of GPUs and software fitted to measured runs. Floor 7."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from codesign.cli.output import DONE, WRONG_INPUT, command, emit, json_option, say, show, verbose_option

if TYPE_CHECKING:
    from codesign.calibrate.programme import Fitted


@click.command(short_help="Fit efficiencies, overlaps and host times to measured runs.")
@click.option(
    "--runs",
    "files",
    multiple=True,
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="CSV file of measured runs; may be given several times.",
)
@click.option("--seed", default="2026", show_default=True, help="Of the split into fitting and held-out halves.")
@click.option(
    "--catalogue",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Write the values into gpus.yaml, software.yaml and assumptions.yaml of this folder.",
)
@click.option(
    "--fitted",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the identities of the configurations that were fitted to, one a line, so that others can be told.",
)
@json_option
@verbose_option
@command
def calibrate(
    files: tuple[Path, ...], seed: str, catalogue: Path | None, fitted: Path | None, as_json: bool, verbose: bool
) -> int:
    """Fit efficiencies, overlaps and host times to measured runs, on half of their configurations.

    The files have the columns of the published ones: see the accuracy page. Needs the extra 'calibrate'.
    """
    from codesign.calibrate.fit import chosen_for_fitting, digest, settings_of
    from codesign.calibrate.programme import fit_all
    from codesign.calibrate.record import updated
    from codesign.calibrate.runs import read_runs

    runs = [run for file in files for run in read_runs(file)]
    try:
        found = fit_all(runs, seed, tell=say)
    except ModuleNotFoundError as problem:
        say(f"calibrate needs {problem.name}: pip install 'codesign[calibrate]'")
        return WRONG_INPUT
    if catalogue is not None:
        for section in ("gpus", "software", "assumptions"):
            path = catalogue / f"{section}.yaml"
            path.write_text(updated(path.read_text(encoding="utf-8"), section, found), encoding="utf-8")
    if fitted is not None:
        chosen = sorted(digest(name) for name in chosen_for_fitting(settings_of(runs), seed))
        fitted.write_text("\n".join(chosen) + "\n", encoding="utf-8")
    if as_json:
        emit({"stages": [_document(one) for one in found]})
        return DONE
    lines = []
    for one in found:
        lines.append(f"{one.stage.name}: {one.fit.samples} configurations")
        lines += [f"  {parameter.name:<72} {value:.5g}" for parameter, value in one.fit.values.items()]
        lines += [f"  mean error, {file:<60} {error:.1%}" for file, error in one.fit.error_after.items()]
    show("\n".join(lines) or "nothing was fitted: no stage has as many configurations as constants")
    return DONE


def _document(one: Fitted) -> dict[str, Any]:
    return {
        "stage": one.stage.name,
        "configurations": one.fit.samples,
        "values": {parameter.name: value for parameter, value in one.fit.values.items()},
        "error_before": dict(one.fit.error_before),
        "error_after": dict(one.fit.error_after),
    }
