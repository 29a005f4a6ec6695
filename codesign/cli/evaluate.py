"""`codesign evaluate`: the exact model on a design of the user's own. Floor 7."""

from __future__ import annotations

from pathlib import Path

import click

from codesign.cli.options import set_option
from codesign.cli.output import DONE, command, emit, json_option, show, unicode_out, verbose_option, width


@click.command(short_help="Judge a design of your own by the exact model.")
@click.argument("instance", type=click.Path(path_type=Path))
@click.option(
    "--design",
    type=click.Path(path_type=Path),
    required=True,
    metavar="FILE",
    help="A design in YAML or JSON, or a solution.json.",
)
@set_option
@json_option
@verbose_option
@command
def evaluate(instance: Path, design: Path, overrides: tuple[str, ...], as_json: bool, verbose: bool) -> int:
    """Judge the design in FILE under INSTANCE: what it breaks, how fast it is, what it costs.

    FILE is a solution, the design part of what solve --json prints, or a design such as

    \b
        plan: {tp: 4, cp: 1, pp: 2, virtual_stages: 1, micro_batch: 1, recompute: none, zero: 1}
        placement: {tp: {domain: 4}, pp: {leaf: 2}}
        purchase: {server: hgx-h100, servers: 2}

    What is left out is completed where nothing is left to decide, and said; what could be several things is asked for.
    Ends with 0 if the design can be judged, also when it breaks rules or limits: these come first in the output.
    """
    from codesign.exact.complete import read_design
    from codesign.exact.evaluate import evaluate as judged
    from codesign.spec.instance import read

    stated = read(instance, overrides)
    whole = read_design(design / "solution.json" if design.is_dir() else design, stated)
    evaluation = judged(stated, whole.design)
    if as_json:
        from codesign.report.judged import judged_document

        emit(judged_document(stated, whole.design, evaluation, whole.filled))
    else:
        from codesign.report.text import evaluation_summary

        show(evaluation_summary(stated, whole.design, evaluation, whole.filled, width(), unicode_out()))
    return DONE
