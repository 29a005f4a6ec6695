"""Options that several commands share, and how their text becomes limits of a solve. Floor 7."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, cast

import click

if TYPE_CHECKING:
    from codesign.errors import Fault
    from codesign.solve.limits import Limits

MOST_SEED = 2**31 - 1
MOST_THREADS = 1024

set_option = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="PATH=VALUE",
    help="Replace a field of the instance, such as limits.capex=$40M or plan.tp=[4,8]; may be repeated.",
)
gap_option = click.option(
    "--gap", default="0.1%", show_default=True, metavar="SHARE", help="Stop once the answer is proven this good."
)
time_option = click.option(
    "--time", "time_limit", default="300s", show_default=True, metavar="TIME", help="Stop after this long."
)
threads_option = click.option(
    "--threads",
    type=click.IntRange(1, MOST_THREADS),
    default=1,
    show_default=True,
    help="Threads of a solver; only one gives the same answer each time.",
)
seed_option = click.option(
    "--seed", type=click.IntRange(0, MOST_SEED), default=0, show_default=True, help="Seed of the solvers."
)
proof_option = click.option(
    "--proof",
    type=click.Choice(["single", "double"]),
    default="double",
    show_default=True,
    help="double: the bound is proven by two solvers that share no code.",
)


def limits_of(gap: str, time_limit: str, **others: Any) -> Limits:
    """Limits of a solve from the text of the options.

    Raises
    ------
    SpecError
        If the gap is no share, or the time no time.
    """
    from codesign.errors import SpecError
    from codesign.solve.limits import Limits

    faults: list[Fault] = []
    share = _quantity("--gap", gap, "share", faults)
    time_s = _quantity("--time", time_limit, "time", faults)
    if share is not None and not 0 <= share < 1:
        faults.append(_fault("--gap", gap, "a share of at least 0 and below 1, such as 0.1%"))
    if time_s is not None and time_s <= 0:
        faults.append(_fault("--time", time_limit, "a time above 0, such as 300s"))
    if faults or share is None or time_s is None:
        raise SpecError(faults)
    if "proof" in others:
        others["proof"] = cast(Literal["single", "double"], others["proof"])
    return Limits(time_s=time_s, gap=share, **others)


def _quantity(option: str, text: str, dimension: str, faults: list[Fault]) -> float | None:
    from codesign.units import QuantityError, quantity

    try:
        return quantity(text, dimension)
    except QuantityError as problem:
        faults.append(_fault(option, text, problem.expected, problem.hint))
        return None


def _fault(option: str, text: str, expected: str, hint: str = "") -> Fault:
    from codesign.errors import Fault

    shown = text if len(text) <= 60 else text[:57] + "..."
    return Fault(option, f"'{shown}'", expected, hint)
