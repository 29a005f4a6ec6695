"""Terms: tables, monomials, sums, maxima, scaled terms and powers. Floor 1.

Every term is non-negative, so sums, maxima and positive powers stay generalised posynomials and every term is
monotone in each of its tables. That is what the relaxation and the bounds rest on. A difference is written as a
maximum, `max(a, b + rest)`; a minimum is written as a further decision.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Table:
    """A non-negative finite number for each joint choice of the decisions in `scope`.

    `values` has one axis for each decision of the scope, in that order, as long as the decision's value list.
    """

    name: str
    scope: tuple[str, ...]
    values: Values
    unit: str = ""
    formula: str = ""
    """What the numbers were computed by, in symbols."""
    source: str = ""
    """Where the formula was published."""

    def __post_init__(self) -> None:
        if self.values.ndim != len(self.scope):
            raise ValueError(f"table {self.name!r}: {self.values.ndim} axes for {len(self.scope)} decisions")
        if len(set(self.scope)) != len(self.scope):
            raise ValueError(f"table {self.name!r} names a decision twice: {self.scope}")
        if not np.all(np.isfinite(self.values)) or np.any(self.values < 0):
            raise ValueError(f"table {self.name!r} holds a negative or non-finite number")
        self.values.setflags(write=False)

    def flat(self) -> Values:
        """The values as a one-dimensional view, row-major."""
        return np.ascontiguousarray(self.values).reshape(-1)


@dataclass(frozen=True, eq=False)
class Monomial:
    """coefficient x product of tables. A table may hold zeros: the monomial then vanishes for those choices."""

    name: str
    coefficient: float
    factors: tuple[Table, ...] = ()
    unit: str = ""

    def __post_init__(self) -> None:
        if not (np.isfinite(self.coefficient) and self.coefficient >= 0):
            raise ValueError(f"monomial {self.name!r} has coefficient {self.coefficient!r}")


@dataclass(frozen=True, eq=False)
class Sum:
    """Sum of terms."""

    name: str
    terms: tuple[Term, ...]
    unit: str = ""


@dataclass(frozen=True, eq=False)
class Max:
    """Largest of the terms."""

    name: str
    terms: tuple[Term, ...]
    unit: str = ""

    def __post_init__(self) -> None:
        if not self.terms:
            raise ValueError(f"maximum {self.name!r} of nothing")


@dataclass(frozen=True, eq=False)
class Scale:
    """Monomial x term. The product is kept as it is, so that a shared term is evaluated once."""

    name: str
    by: Monomial
    term: Term
    unit: str = ""


@dataclass(frozen=True, eq=False)
class Power:
    """term ** exponent with exponent >= 1 (convex in the term, so its tangents are valid cuts).

    A power below one of a *sum* is not convex in the term: make it a table, or a decision.
    """

    name: str
    term: Term
    exponent: float
    unit: str = ""

    def __post_init__(self) -> None:
        if not self.exponent >= 1.0:
            raise ValueError(f"power {self.name!r}: exponent {self.exponent} is below 1")


Term = Monomial | Sum | Max | Scale | Power


def monomials(term: Term) -> Iterator[Monomial]:
    """All monomials of a term, depth first, scaling monomials included."""
    if isinstance(term, Monomial):
        yield term
    elif isinstance(term, Sum | Max):
        for child in term.terms:
            yield from monomials(child)
    elif isinstance(term, Scale):
        yield term.by
        yield from monomials(term.term)
    else:
        yield from monomials(term.term)


def scope(term: Term) -> tuple[str, ...]:
    """Names of the decisions that a term depends on, in order of first appearance."""
    names: dict[str, None] = {}
    for monomial in monomials(term):
        for table in monomial.factors:
            names.update(dict.fromkeys(table.scope))
    return tuple(names)


def total(name: str, terms: Sequence[Term], unit: str = "") -> Sum:
    """Sum of those terms that are not identically zero."""
    return Sum(name, tuple(term for term in terms if not vanishes(term)), unit)


def largest(name: str, terms: Sequence[Term], unit: str = "") -> Term:
    """Maximum of those terms that are not identically zero; the term itself when one is left."""
    alive = tuple(term for term in terms if not vanishes(term))
    if not alive:
        return Sum(name, (), unit)
    return alive[0] if len(alive) == 1 else Max(name, alive, unit)


def vanishes(term: Term) -> bool:
    """True if the term is zero for every choice as far as its tables show singly."""
    if isinstance(term, Monomial):
        return term.coefficient == 0 or any(not np.any(table.values) for table in term.factors)
    if isinstance(term, Sum | Max):
        return all(vanishes(child) for child in term.terms)
    if isinstance(term, Scale):
        return vanishes(term.by) or vanishes(term.term)
    return vanishes(term.term)
