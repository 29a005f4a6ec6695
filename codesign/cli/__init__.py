"""The command line. Floor 7; no logic. One file a command group, `main` the whole.

Modules here import click and nothing heavy: what a command needs it imports when it runs, so that `--help` is quick.
Results go to stdout, all talk to stderr. Exit codes are those of `codesign.cli.output`.
"""

from __future__ import annotations

import click

from codesign.cli.calibrate import calibrate
from codesign.cli.catalogue import catalogue
from codesign.cli.evaluate import evaluate
from codesign.cli.explain import explain
from codesign.cli.schema import schema
from codesign.cli.solve import solve
from codesign.cli.verify import verify
from codesign.version import __version__

__all__ = ["main"]


class _Ordered(click.Group):
    """Lists commands in the order in which they were added: the order of work."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group(
    cls=_Ordered,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 done; 2 wrong input; 3 a limit came before the asked gap; 4 infeasible; "
    "5 verify found a difference; 1 a fault of codesign; 130 aborted.",
)
@click.version_option(__version__, prog_name="codesign")
def main() -> None:
    """Decide parallel plan, placement and purchase of a training cluster together, with a proven gap.

    \b
    codesign solve instance.yaml --out answer     the best design, and how good it is
    codesign verify answer                        all of it computed again, from the file alone
    codesign explain answer --set plan.tp=16      why, and why not otherwise
    """


for _command in (solve, evaluate, verify, explain, calibrate, catalogue, schema):
    main.add_command(_command)
