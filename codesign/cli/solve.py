"""`codesign solve`: an instance decided. Floor 7."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from codesign.cli.live import watched
from codesign.cli.options import (
    gap_option,
    limits_of,
    proof_option,
    seed_option,
    set_option,
    threads_option,
    time_option,
)
from codesign.cli.output import (
    DONE,
    INFEASIBLE,
    LIMIT_FIRST,
    WRONG_INPUT,
    command,
    emit,
    json_option,
    say,
    show,
    unicode_out,
    verbose_option,
    width,
)

if TYPE_CHECKING:
    from codesign.design.solution import Solution

CODES = {"optimal": DONE, "feasible": LIMIT_FIRST, "infeasible": INFEASIBLE, "unknown": LIMIT_FIRST}


@click.command(short_help="Find the best plan, placement and purchase, with a proven gap.")
@click.argument("instance", type=click.Path(path_type=Path))
@set_option
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder for solution.json, rank_map.csv and bill_of_materials.csv.",
)
@gap_option
@time_option
@threads_option
@seed_option
@proof_option
@json_option
@verbose_option
@command
def solve(
    instance: Path,
    overrides: tuple[str, ...],
    out: Path | None,
    gap: str,
    time_limit: str,
    threads: int,
    seed: int,
    proof: str,
    as_json: bool,
    verbose: bool,
) -> int:
    """Find the best design for INSTANCE, a YAML file, and prove how good it is.

    The design is judged by the exact model, and no design of the stated space is better by more than the gap that is
    printed. Ctrl-C returns the best design so far with the gap that is proven by then; a second Ctrl-C ends at once.

    Ends with 0 if the asked gap is reached, 3 if the time or Ctrl-C came first, 4 if nothing fits: then the limits
    that exclude each other are named, and how far each must move.
    """
    from codesign.spec.instance import read

    limits = limits_of(gap, time_limit, threads=threads, seed=seed, proof=proof)
    stated = read(instance, overrides)
    _tried(out)
    from codesign.solve.solve import solve as solved

    solution = watched(stated.objective, lambda listen, cancel: solved(stated, limits, listen, cancel), as_json)
    written = _written(solution, out)
    if as_json:
        emit(solution.to_document())
    else:
        from codesign.report.text import summary

        show(summary(solution, width(), unicode_out()))
    if out is not None:
        say(written or f"Written to {out}.")
    return WRONG_INPUT if written else CODES[solution.status]


def _tried(out: Path | None) -> None:
    """Refuse a folder that cannot be written: better now than after the solve."""
    from codesign.errors import Fault, SpecError
    from codesign.export.files import prepare

    try:
        if out is not None:
            prepare(out)
    except OSError as problem:
        found = f"{out} ({problem.strerror or problem})"
        raise SpecError((Fault("--out", found, "a folder that files can be written to"),)) from None


def _written(solution: Solution, out: Path | None) -> str:
    """Write the files; why not, if that fails: the answer is worth printing all the same."""
    from codesign.export.files import write

    try:
        if out is not None:
            write(solution, out)
    except OSError as problem:
        return f"{problem.filename or out}: {problem.strerror or problem}; the answer was not written to {out}"
    return ""
