"""`codesign verify`: a solution file computed again. Floor 7."""

from __future__ import annotations

from pathlib import Path

import click

from codesign.cli.output import DIFFERENT, DONE, command, emit, json_option, show, verbose_option


@click.command(short_help="Compute a solution again from its file alone, and say what differs.")
@click.argument("solution", type=click.Path(path_type=Path))
@json_option
@verbose_option
@command
def verify(solution: Path, as_json: bool, verbose: bool) -> int:
    """Compute every figure of SOLUTION (a solution.json, or the folder of --out) again, and say what differs.

    The instance in the file is read anew and its design judged anew, without a solver; the rank map and the bill of
    materials beside the file are compared as well. What only a solve can find, the bound above all, is held to the
    rules that it must obey and to the digest over the whole file.

    Ends with 5 if anything differs, or the file is not a solution.
    """
    from codesign.exact.verify import verify as verified

    found = verified(solution)
    if as_json:
        emit(found.to_document())
    elif found.verified:
        beside = f", with {' and '.join(found.tables)}" if found.tables else ""
        show(f"Verified: {found.name}{beside}. {found.compared:,} values compared, none differs.")
        show(f"Not computed again, held to rules and digest only: {', '.join(found.taken)}.")
    else:
        many = len(found.differences)
        show(f"NOT verified: {found.name}: {many} difference{'s' * (many != 1)}.")
        for one in found.differences:
            show(f"  {one}")
    return DONE if found.verified else DIFFERENT
