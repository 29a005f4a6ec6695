"""What all commands print and how they end. Floor 7.

stdout holds the result: text, or with `--json` one document and nothing else. An error leaves stdout empty, except that
with `--json` it too is one document, `{"error": {...}}`, so that a script has something to read in every case.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import sys
import traceback
from collections.abc import Callable, Mapping
from math import isfinite
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

if TYPE_CHECKING:
    from codesign.errors import Fault

DONE = 0
OUR_FAULT = 1
WRONG_INPUT = 2
LIMIT_FIRST = 3
INFEASIBLE = 4
DIFFERENT = 5
ABORTED = 130  # what shells expect of a program that Ctrl-C ended: 128 + SIGINT

REPORT_IT = (
    "This is a fault of codesign, not of your input. Please report it with the command and the instance; "
    "-v prints the details."
)

NARROWEST, WIDEST = 72, 120
"""Columns of a report: lines longer than this are harder to read than to wrap."""

Command = TypeVar("Command", bound=Callable[..., int])


def command(function: Command) -> Callable[..., NoReturn]:
    """Wrap the callback of a command: its number becomes the exit code, its errors become messages.

    The callback takes `as_json` and may take `verbose`; it returns one of the codes above.
    """

    @functools.wraps(function)
    def run(*arguments: Any, **options: Any) -> NoReturn:
        as_json, verbose = bool(options.get("as_json")), bool(options.get("verbose"))
        try:
            code = function(*arguments, **options)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except KeyboardInterrupt:
            say("Aborted.")
            code = ABORTED
        except BrokenPipeError:
            # the reader of our output left; what is still in the buffer must not raise again at the end
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = DONE
        except Exception as problem:  # noqa: BLE001 - the last resort: a message and a code, never a traceback
            code = _explained(problem, as_json, verbose)
        sys.exit(code)

    return run


def _explained(problem: Exception, as_json: bool, verbose: bool) -> int:
    """Tell an error; the code that it ends with."""
    from codesign.catalogue import UnknownNameError
    from codesign.errors import SolverError, SpecError, StaleSolutionError

    if isinstance(problem, SpecError):
        say(str(problem))
        if as_json:
            emit({"error": {"kind": "input", "message": str(problem), "faults": [_fault(f) for f in problem.faults]}})
        return WRONG_INPUT
    if isinstance(problem, StaleSolutionError | UnknownNameError | OSError):
        message = _os_message(problem) if isinstance(problem, OSError) else str(problem)
        say(message)
        if as_json:
            emit({"error": {"kind": "input", "message": message, "faults": []}})
        return WRONG_INPUT
    if verbose:
        say("".join(traceback.format_exception(problem)).rstrip())
    message = str(problem) if isinstance(problem, SolverError) else f"{type(problem).__name__}: {problem}"
    say(f"codesign failed: {message}")
    say(REPORT_IT)
    if as_json:
        emit({"error": {"kind": "fault of codesign", "message": message, "faults": []}})
    return OUR_FAULT


def _fault(fault: Fault) -> dict[str, Any]:
    from dataclasses import asdict

    return {name: value if _is_plain(value) else str(value) for name, value in asdict(fault).items()}


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, str | int | float)


def _os_message(problem: OSError) -> str:
    where = f"{problem.filename}: " if problem.filename else ""
    return f"{where}{problem.strerror or problem}"


# -------------------------------------------------------------------------------------------------------- printing


def emit(document: Mapping[str, Any]) -> None:
    """Print the one JSON document. A number that JSON does not have (no step time, no headway) is null."""
    click.echo(json.dumps(_finite(document), indent=1, allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not isfinite(value) else value


def show(text: str) -> None:
    """Print a result for people."""
    click.echo(text.rstrip("\n"))


def say(text: str) -> None:
    """Talk: to stderr."""
    click.echo(text, err=True)


def width() -> int:
    """Columns for a report: those of the terminal, 80 where there is none."""
    return min(max(shutil.get_terminal_size((80, 24)).columns, NARROWEST), WIDEST)


def unicode_out() -> bool:
    """Whether stdout can print the marks of a report."""
    encoding = getattr(sys.stdout, "encoding", None) or "ascii"
    try:
        "█▏┼×…∞".encode(encoding)
    except (LookupError, UnicodeEncodeError):
        return False
    return True


json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON document on stdout, and nothing else."
)
verbose_option = click.option("-v", "--verbose", is_flag=True, help="Print the details of a fault of codesign.")
