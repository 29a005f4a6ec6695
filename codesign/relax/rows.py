"""Solver-neutral rows: variables, linear rows with the names of the terms they came from, an objective. Floor 4.

Numbers are floats with their exact meaning; how a solver scales or rounds them is the business of its printer, which
must only ever weaken a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

INFINITY = float("inf")


@dataclass(frozen=True)
class Linear:
    """A linear expression: variable index -> coefficient, and a constant."""

    coefficients: Mapping[int, float]
    constant: float = 0.0

    def plus(self, other: Linear, times: float = 1.0) -> Linear:
        """This expression plus `times` the other."""
        merged = dict(self.coefficients)
        for index, coefficient in other.coefficients.items():
            merged[index] = merged.get(index, 0.0) + times * coefficient
        return Linear(merged, self.constant + times * other.constant)


@dataclass(frozen=True)
class Variable:
    """A variable; `binary` ones are the choices, the others are continuous values of terms."""

    name: str
    lower: float
    upper: float
    binary: bool


@dataclass(frozen=True, eq=False)
class Row:
    """`lower <= sum(coefficients x variables) <= upper`; `name` says which term or rule it came from."""

    name: str
    columns: Ints
    coefficients: Floats
    lower: float
    upper: float


@dataclass
class Rows:
    """The model under construction: minimise `objective`."""

    variables: list[Variable] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    objective: int = -1

    def binary(self, name: str) -> int:
        """Index of a new choice variable."""
        self.variables.append(Variable(name, 0.0, 1.0, True))
        return len(self.variables) - 1

    def continuous(self, name: str, lower: float, upper: float) -> int:
        """Index of a new value variable."""
        if not (np.isfinite(lower) and np.isfinite(upper) and lower <= upper):
            raise ValueError(f"variable {name!r} needs finite bounds in order, got {lower} .. {upper}")
        self.variables.append(Variable(name, lower, upper, False))
        return len(self.variables) - 1

    def add(self, name: str, expression: Linear, lower: float = -INFINITY, upper: float = INFINITY) -> int:
        """A new row `lower <= expression <= upper`; returns its index."""
        items = [(index, value) for index, value in expression.coefficients.items() if value != 0.0]
        self.rows.append(
            Row(
                name,
                np.array([index for index, _ in items], dtype=np.int64),
                np.array([value for _, value in items], dtype=np.float64),
                lower - expression.constant,
                upper - expression.constant,
            )
        )
        return len(self.rows) - 1

    def replace(self, index: int, name: str, expression: Linear, lower: float) -> None:
        """Put another row in the place of one that was added before."""
        self.add(name, expression, lower)
        self.rows[index] = self.rows.pop()

    def violation(self, values: Floats) -> tuple[float, str]:
        """Largest violation of a row or bound by an assignment, relative to the row's size, and its name."""
        worst, name = 0.0, ""
        for variable, value in zip(self.variables, values.tolist(), strict=True):
            excess = max(variable.lower - value, value - variable.upper, 0.0) / (1.0 + abs(value))
            if excess > worst:
                worst, name = excess, f"bounds of {variable.name}"
        for row in self.rows:
            terms = row.coefficients * values[row.columns]
            activity, size = float(terms.sum()), 1.0 + float(np.abs(terms).sum())
            excess = max(row.lower - activity, activity - row.upper, 0.0) / size
            if excess > worst:
                worst, name = excess, row.name
        return worst, name
