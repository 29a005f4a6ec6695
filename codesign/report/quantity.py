"""Numbers in the words of a reader. Floor 6. In: SI floats. Out: short strings with a unit.

Claims are rounded to the side that keeps them true: a proven gap up, a proven disadvantage down.
"""

from __future__ import annotations

from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Decimal
from math import isfinite

MINUTE_S, HOUR_S, DAY_S, YEAR_S = 60.0, 3600.0, 86400.0, 31557600.0

NOISE = 1e-12
"""Relative error of a double that has been through a few operations, with room to spare."""

_STEPS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def digits(value: float, figures: int = 3) -> str:
    """Plain decimal notation with so many significant figures; whole numbers keep all their digits."""
    if not isfinite(value):
        return "∞" if value > 0 else ("-∞" if value < 0 else "-")
    if value == 0:
        return "0"
    rounded = Decimal(value).quantize(_place(value, figures), rounding=ROUND_HALF_EVEN)
    return f"{rounded:,f}" if abs(rounded) >= 1000 else f"{rounded:f}"


def scaled(value: float, unit: str, figures: int = 3) -> str:
    """With a decimal prefix: 1.23 TB."""
    for step, prefix in _STEPS:
        # 999.6 with three figures would read 1000: it belongs to the next prefix
        if isfinite(value) and abs(value) >= step * (1.0 - 0.5 * 10.0**-figures):
            return f"{digits(value / step, figures)} {prefix}{unit}"
    return f"{digits(value, figures)} {unit}"


def seconds(value: float) -> str:
    """Duration: 0.84 s, 12.4 min, 41.2 days."""
    if not isfinite(value):
        return "never"
    for step, name, least in (
        (YEAR_S, "years", 2 * YEAR_S),
        (DAY_S, "days", 2 * DAY_S),
        (HOUR_S, "hours", 2 * HOUR_S),
        (MINUTE_S, "min", 2 * MINUTE_S),
    ):
        if value >= least:
            return f"{digits(value / step)} {name}"
    if value >= 1 or value == 0:
        return f"{digits(value)} s"
    return f"{digits(value * 1e3)} ms" if value >= 1e-3 else f"{digits(value * 1e6)} µs"


def usd(value: float) -> str:
    """Money in a sentence: $29.84 M, $312 k."""
    sign = "-" if value < 0 else ""
    value = abs(value)
    for step, name in ((1e9, " B"), (1e6, " M"), (1e3, " k")):
        if isfinite(value) and value >= step:
            return f"{sign}${digits(value / step, 4)}{name}"
    return f"{sign}${digits(value)}"


def dollars(value: float, cents: bool = False) -> str:
    """Money in a table, to the dollar: 29,841,200."""
    return f"{value:,.2f}" if cents else f"{value:,.0f}"


def count(value: float) -> str:
    """A count: 1,024; as the field counts tokens and parameters, 10.0 B and 1.50 T."""
    if value >= 1e9:
        return scaled(value, "").strip().replace("G", "B")
    return f"{value:,.0f}"


def share(value: float) -> str:
    """A share to a tenth of a per cent: 44.1 %."""
    return f"{value * 100:.1f} %" if isfinite(value) else "-"


def percent_up(value: float, figures: int = 2) -> str:
    """A share rounded up, for "not more than": 0.00031 is 0.031 %."""
    return _percent(value, figures, ROUND_CEILING)


def percent_down(value: float, figures: int = 2) -> str:
    """A share rounded down, for "at least"."""
    return _percent(value, figures, ROUND_FLOOR)


def _percent(value: float, figures: int, rounding: str) -> str:
    if not isfinite(value):
        return "∞ %"
    if value == 0:
        return "0 %"
    # 0.1 is a little more than a tenth in binary: that much noise is not a tenth of a per cent
    noise = 1 - NOISE if rounding == ROUND_CEILING else 1 + NOISE
    exact = Decimal(value * noise) * 100
    figures = max(figures, exact.adjusted() + 2)  # from 10 % on, one decimal is always told
    rounded = exact.quantize(Decimal(1).scaleb(exact.adjusted() - figures + 1), rounding=rounding)
    return f"{rounded.normalize():f} %"


def figure(value: float, unit: str) -> str:
    """A figure in the unit that it is kept in, as a reader says it."""
    if unit == "USD":
        return usd(value)
    if unit == "s":
        return seconds(value)
    if unit in ("W", "B"):
        return scaled(value, unit)
    if unit == "GPUs":
        return f"{count(value)} GPUs"
    return scaled(value, unit) if abs(value) >= 1 else f"{value:.3g} {unit}"


def _place(value: float, figures: int) -> Decimal:
    exponent = Decimal(value).adjusted() - figures + 1
    return Decimal(1).scaleb(min(exponent, 0))
