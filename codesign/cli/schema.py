"""`codesign schema`: the JSON Schema of an instance. Floor 7."""

from __future__ import annotations

import click

from codesign.cli.output import DONE, command, emit, json_option, verbose_option


@click.command(short_help="Print the JSON Schema of an instance, for editors.")
@json_option
@verbose_option
@command
def schema(as_json: bool, verbose: bool) -> int:
    """Print the JSON Schema of an instance file. It is always JSON; editors complete and check fields with it."""
    from codesign.spec.schema import json_schema

    emit(json_schema())
    return DONE
