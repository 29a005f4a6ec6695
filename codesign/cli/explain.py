"""`codesign explain`: why an answer is as it is, and why not otherwise. Floor 7."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from codesign.cli.live import watched
from codesign.cli.options import gap_option, limits_of, set_option, time_option
from codesign.cli.output import (
    DONE,
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


@click.command(short_help="Say what binds in an answer, and why not otherwise.")
@click.argument("solution", type=click.Path(path_type=Path))
@set_option
@gap_option
@time_option
@click.option("--terms", is_flag=True, help="Every term of the cost: formula, inputs with units, value and source.")
@json_option
@verbose_option
@command
def explain(
    solution: Path,
    overrides: tuple[str, ...],
    gap: str,
    time_limit: str,
    terms: bool,
    as_json: bool,
    verbose: bool,
) -> int:
    """Say why SOLUTION (a solution.json, or the folder of --out) is as it is.

    Without --set: which limits bind and which have room, what changing one choice would do, and where time, money and
    memory go. With --set, such as --set plan.tp=16: the instance is solved again with it, and the two answers are
    compared: how much worse every such design is, or why it is not; several --set hold together. With --terms: the
    terms that the answer's figures are made of, one below the other.
    """
    from codesign.report.explain import explain as explained
    from codesign.report.explain import load
    from codesign.spec.instance import Instance

    limits = limits_of(gap, time_limit)
    answer = load(solution)
    if terms:
        return _terms(answer, as_json)
    if overrides:
        objective = Instance.from_document(answer.instance.to_document(), overrides).objective
        found = watched(
            objective, lambda listen, cancel: explained(answer, [overrides], limits, listen, cancel), as_json
        )
    else:
        found = explained(answer)
    if as_json:
        emit(found.to_document())
    else:
        from codesign.report.explain_text import explanation

        show(explanation(found, width(), unicode_out()))
    return DONE


def _terms(answer: Solution, as_json: bool) -> int:
    from codesign.report.layout import plain
    from codesign.report.terms import terms_of, text

    if answer.design is None:
        say("this answer has no design: the instance is infeasible, and there are no terms to show")
        return WRONG_INPUT
    found = terms_of(answer.instance, answer.design, answer.evaluation)
    if as_json:
        emit(found.to_document())
    else:
        shown = text(found)
        show(shown if unicode_out() else plain(shown))
    return DONE
