"""Reals -> integers for CP-SAT, always in the weak direction. Floor 4. In: rows of floats. Out: rows of integers.

A continuous variable becomes an integer number of units; a design takes the *ceiling* of its exact value. A row
`sum(c x) >= L` is multiplied by a factor as large as 2^60 allows, its coefficients are rounded to nearest, and its
right side is lowered by all that rounding can have added. So every design that satisfies the row of floats satisfies
the row of integers: a cut can only get weaker.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from codesign.relax.rows import Row, Variable

RANGE_BITS = 30
"""A continuous variable takes at most 2^30 units, so it is known to 10^-9 of its range."""
SMALLEST = 1e-200
"""A variable of a smaller range is zero for every purpose: its unit is 1, which only widens it. A row of a smaller
activity is left open."""
ROW_BITS = 58
"""The activity of a scaled row stays below 2^58; CP-SAT refuses what may pass 2^62."""


@dataclass(frozen=True)
class Domain:
    """An integer variable: `value = unit x integer`, lower <= integer <= upper."""

    unit: float
    lower: int
    upper: int

    @property
    def most(self) -> int:
        """Largest absolute integer."""
        return max(abs(self.lower), abs(self.upper))


@dataclass(frozen=True, eq=False)
class IntegerRow:
    """`lower <= sum(coefficients x integers) <= upper`; a side that is None is open."""

    name: str
    columns: npt.NDArray[np.int64]
    coefficients: tuple[int, ...]
    lower: int | None
    upper: int | None


def domain(variable: Variable) -> Domain:
    """Integer domain of a variable."""
    if variable.binary:
        return Domain(1.0, 0, 1)
    span = max(abs(variable.lower), abs(variable.upper))
    if span < SMALLEST:
        return Domain(1.0, math.floor(variable.lower), math.ceil(variable.upper))
    unit = 2.0 ** (math.ceil(math.log2(span)) - RANGE_BITS)
    return Domain(unit, math.floor(variable.lower / unit), math.ceil(variable.upper / unit))


def integer_rows(row: Row, domains: Sequence[Domain], binary: npt.NDArray[np.bool_]) -> list[IntegerRow]:
    """One or two integer rows that every design satisfying `row` satisfies.

    Raises
    ------
    OverflowError
        If a row has an infinite coefficient, or one that its variable's range makes infinite.
    """
    whole = np.all(row.coefficients == np.round(row.coefficients)) and np.all(binary[row.columns])
    sides = sum(abs(side) for side in (row.lower, row.upper) if not math.isinf(side))
    if whole and np.abs(row.coefficients).sum() + sides < 2.0**ROW_BITS:
        lower = None if math.isinf(row.lower) else math.ceil(row.lower - 1e-9)
        upper = None if math.isinf(row.upper) else math.floor(row.upper + 1e-9)
        return [IntegerRow(row.name, row.columns, tuple(int(c) for c in row.coefficients), lower, upper)]
    found = []
    if not math.isinf(row.lower):
        found.append(_at_least(row.name, row.columns, row.coefficients, row.lower, domains, binary))
    if not math.isinf(row.upper):
        found.append(_at_least(row.name, row.columns, -row.coefficients, -row.upper, domains, binary))
    return found


def _at_least(
    name: str,
    columns: npt.NDArray[np.int64],
    coefficients: npt.NDArray[np.float64],
    least: float,
    domains: Sequence[Domain],
    binary: npt.NDArray[np.bool_],
) -> IntegerRow:
    units = np.array([domains[index].unit for index in columns])
    most = np.array([float(domains[index].most) for index in columns])
    with np.errstate(over="ignore"):
        real = coefficients * units
        activity = float(np.sum(np.abs(real) * np.maximum(most, 1.0))) + abs(least)
    if not math.isfinite(activity):
        raise OverflowError(f"row {name!r} cannot be scaled into {ROW_BITS} bits (activity {activity})")
    if activity < SMALLEST:
        return IntegerRow(name, columns[:0], (), math.floor(least), None)
    factor = 2.0 ** (ROW_BITS - 1 - math.ceil(math.log2(activity)))
    scaled = real * factor
    rounded = np.round(scaled)
    slack = float(np.sum(np.abs(rounded - scaled) * most))
    # The ceiling of a continuous variable adds up to one unit, which matters where its coefficient is negative.
    slack += float(np.sum(np.where((coefficients < 0) & ~binary[columns], np.abs(rounded), 0.0)))
    # Products and sums of doubles above are exact to 2^-52 of the activity.
    slack += abs(least * factor) * 2.0**-50 + float(np.sum(np.abs(rounded) * most)) * 2.0**-50 + 1.0
    # All this stays below 2^60: `factor` brings the activity under 2^57, and no rounding more than doubles a number.
    kept = rounded != 0
    return IntegerRow(
        name, columns[kept], tuple(int(c) for c in rounded[kept]), math.floor(least * factor - slack), None
    )
