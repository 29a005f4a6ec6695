"""Random small spaces with clusters that share decisions, random terms over them, and the truth by enumeration."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt
import pytest

from codesign.expr import Decision, Max, Monomial, Power, Relation, Scale, Space, Sum, Table, Term, evaluate
from codesign.relax.lay import Relaxation
from codesign.relax.rows import Linear

Floats = npt.NDArray[np.float64]
Choices = npt.NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Case:
    """A term over clusters.

    `choices` has one row for each joint choice of tuples that agree (a column a cluster), `values` the term's value.
    """

    space: Space
    relations: tuple[Relation, ...]
    term: Term
    choices: Choices
    values: Floats

    @property
    def best(self) -> float:
        """The minimum, by enumeration."""
        return float(self.values.min())

    def incumbent(self, share: float = 0.3) -> float:
        """A value that some designs have and others are dearer than."""
        positive = np.sort(self.values[self.values > 0])
        return float(positive[int(share * (len(positive) - 1))])

    def relaxation(self, cap: float) -> Relaxation:
        """Rows that minimise the term, laid as the master lays them."""
        found = Relaxation(self.space, self.relations, scale=cap, cap=cap)
        rows = found.rows
        rows.objective = rows.continuous("objective", 0.0, cap)
        relaxed = found.lower(self.term)
        rows.add("objective >= term", Linear({rows.objective: 1.0}).plus(relaxed, -1.0), 0.0)
        return found


def agreeing(relations: tuple[Relation, ...]) -> Iterator[tuple[tuple[int, ...], dict[str, int]]]:
    """Joint choices of one tuple a relation that agree on shared decisions, and the design that each gives."""
    for choice in product(*(range(len(relation)) for relation in relations)):
        design: dict[str, int] = {}
        for relation, row in zip(relations, choice, strict=True):
            if any(design.setdefault(d, int(column[row])) != column[row] for d, column in relation.columns.items()):
                break
        else:
            yield choice, design


def case_of(space: Space, relations: tuple[Relation, ...], term: Term) -> Case:
    found = list(agreeing(relations))
    columns = {d: np.array([design[d] for _, design in found], dtype=np.intp) for d in space.names}
    return Case(space, relations, term, np.array([choice for choice, _ in found]), evaluate(term, columns))


class Cases:
    """See the module."""

    of = staticmethod(case_of)
    agreeing = staticmethod(agreeing)

    @staticmethod
    def random(seed: int, powers: bool = True, single: bool = False) -> Case:
        """The case of a seed; with `single`, each monomial has its decisions in one cluster."""
        generator = np.random.default_rng(seed)
        while True:
            space, relations = _clusters(generator)
            if next(agreeing(relations), None) is not None:
                found = case_of(space, relations, _term(generator, space, relations, powers, single))
                if np.any(found.values > 0):
                    return found

    @staticmethod
    def least(relaxation: Relaxation, choices: Choices) -> Floats:
        """The least assignment of all variables for each joint choice; shape (choices, variables).

        Each row over continuous variables bounds one of them from below by something that grows with the others, so
        raising variables until every row holds finds the least value of them all at once, and needs no solver.
        """
        rows = relaxation.rows
        values = np.tile([variable.lower for variable in rows.variables], (len(choices), 1))
        for cluster, picked in zip(relaxation.clusters, choices.T, strict=True):
            values[np.arange(len(choices)), cluster.first + picked] = 1.0
        binary = np.array([variable.binary for variable in rows.variables])
        raising = []
        for row in rows.rows:
            raised = np.flatnonzero((row.coefficients > 0) & ~binary[row.columns])
            if np.isfinite(row.lower) and not np.all(binary[row.columns]):
                (one,) = raised
                raising.append(
                    (row, row.columns[one], row.coefficients[one], np.delete(np.arange(len(row.columns)), one))
                )
        changed = True
        while changed:
            changed = False
            for row, target, coefficient, rest in raising:
                needed = (row.lower - values[:, row.columns[rest]] @ row.coefficients[rest]) / coefficient
                changed |= bool(np.any(needed > values[:, target] + 1e-14 * np.abs(values[:, target]) + 1e-300))
                values[:, target] = np.maximum(values[:, target], needed)
        return values


def _clusters(generator: np.random.Generator) -> tuple[Space, tuple[Relation, ...]]:
    """Two or three clusters of at most eight tuples; every decision lies in one of them, some lie in two."""
    decisions = [
        Decision(f"d{i}", tuple(range(int(generator.integers(2, 4))))) for i in range(generator.integers(3, 6))
    ]
    space = Space(decisions)
    scopes: list[set[str]] = [set() for _ in range(generator.integers(2, 4))]
    for name in space.names:
        count = 2 if generator.random() < 0.4 else 1
        for index in generator.permutation(len(scopes))[:count]:
            scopes[index].add(name)
    relations = []
    for index, scope in enumerate(scopes):
        whole = Relation.product(f"cluster{index}", space, sorted(scope) or [space.names[0]])
        kept = generator.permutation(len(whole))[: generator.integers(1, 9)]
        relations.append(whole.where(np.sort(kept)))
    return space, tuple(relations)


def _term(
    generator: np.random.Generator, space: Space, relations: tuple[Relation, ...], powers: bool, single: bool
) -> Term:
    """A nest of all kinds of terms; parts are picked from all earlier ones, so many are shared."""

    def table(relation: Relation) -> Table:
        scope = tuple(generator.permutation(relation.scope)[: generator.integers(0, len(relation.scope) + 1)].tolist())
        sizes = space.sizes(scope)
        values = np.exp(generator.normal(0.0, generator.choice([0.3, 2.0]), sizes)) * (generator.random(sizes) > 0.1)
        return Table("t", scope, np.asarray(values))

    tables = [[table(relation) for _ in range(3)] for relation in relations]

    def monomial(constant: bool = False) -> Monomial:
        among = tables[generator.integers(len(tables))] if single else [t for some in tables for t in some]
        picked = [] if constant else generator.integers(0, len(among), generator.integers(0, 4))
        return Monomial("m", float(generator.choice([1.0, 0.2, 5.0])), tuple(among[i] for i in picked))

    pool: list[Term] = [monomial() for _ in range(3)]

    def parts() -> tuple[Term, ...]:
        return tuple(pool[i] for i in generator.integers(0, len(pool), generator.integers(1, 4)))

    kinds = ["monomial", "sum", "max", "scale", "power"] if powers else ["monomial", "sum", "max", "scale"]
    for _ in range(generator.integers(0, 6)):
        kind = generator.choice(kinds)
        if kind == "monomial":
            pool.append(monomial())
        elif kind == "sum":
            pool.append(Sum("s", parts()))
        elif kind == "max":
            pool.append(Max("x", parts()))
        elif kind == "scale":
            pool.append(Scale("c", monomial(constant=single), parts()[0]))
        else:
            pool.append(Power("p", parts()[0], float(generator.choice([1.0, 1.5, 2.0]))))
    return Sum("all", tuple(pool))


@pytest.fixture(scope="session")
def cases() -> type[Cases]:
    """See `Cases`."""
    return Cases
