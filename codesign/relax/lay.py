"""Lays terms and relations into rows. Floor 4. In: clusters of joint choices, terms over them. Out: rows.

The choices are *clusters*: relations whose tuples are one-hot variables, linked where they share decisions. A table
whose decisions lie in one cluster is linear in its variables. A monomial over one cluster is therefore exact; one over
several is exp of a sum of linear logarithms, and is bounded from below by tangents. Sums stay sums, maxima become
epigraphs, a monomial factor is pushed down to the monomials.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from codesign.expr import Max, Monomial, Power, Relation, Scale, Space, Sum, Table, Term
from codesign.expr.decision import flat_index
from codesign.relax import tangents
from codesign.relax.rows import Linear, Rows

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Cluster:
    """A relation with one binary variable a tuple, numbered from `first`."""

    relation: Relation
    first: int

    def sum_of(self, values: Floats) -> Linear:
        """Linear expression that takes the value of the chosen tuple."""
        return Linear({self.first + i: float(v) for i, v in enumerate(values) if v != 0.0})


@dataclass(frozen=True, eq=False)
class Exponential:
    """`variable >= exp(sum of logs)`: a monomial over several clusters."""

    name: str
    variable: int
    logs: tuple[tuple[Cluster, Floats], ...]
    """For each cluster, the logarithm of the product of its tables for each tuple (dead tuples: very low)."""
    log_variables: tuple[int, ...]
    lowest: float
    highest: float

    def at(self, chosen: Sequence[int]) -> float:
        """Logarithm for the chosen tuple of each of the clusters, in the order of `logs`."""
        return float(sum(values[tuple_] for (_, values), tuple_ in zip(self.logs, chosen, strict=True)))


@dataclass
class Relaxation:
    """Rows of one master.

    Parameters
    ----------
    space : gives sizes of decisions.
    relations : the clusters; together they hold all decisions that terms depend on.
    scale : size of the objective, for the density of first tangents.
    cap : no term of the objective may exceed this. Designs with a larger objective are cut off, so a bound found on
        these rows holds up to `cap` only.
    """

    space: Space
    relations: Sequence[Relation]
    scale: float
    cap: float
    rows: Rows = field(default_factory=Rows)
    clusters: list[Cluster] = field(default_factory=list)
    exponentials: list[Exponential] = field(default_factory=list)
    _log_cache: dict[tuple[int, bytes], int] = field(default_factory=dict)
    _monomial_cache: dict[tuple[object, ...], Linear] = field(default_factory=dict)
    _keep: list[object] = field(default_factory=list)

    def __post_init__(self) -> None:
        for relation in self.relations:
            if not len(relation):
                raise ValueError(f"cluster {relation.name!r} has no tuple left")
            first = len(self.rows.variables)
            for index in range(len(relation)):
                self.rows.binary(f"{relation.name}[{index}]")
            cluster = Cluster(relation, first)
            self.clusters.append(cluster)
            self.rows.add(f"one {relation.name}", cluster.sum_of(np.ones(len(relation))), 1.0, 1.0)
        for right in range(len(self.clusters)):
            for left in range(right):
                self._link(self.clusters[left], self.clusters[right])

    def _link(self, left: Cluster, right: Cluster) -> None:
        """The tuples chosen in two clusters agree on the decisions that they share."""
        shared = [d for d in left.relation.scope if d in right.relation.columns]
        if not shared:
            return
        sizes = self.space.sizes(shared)
        left_key = flat_index(shared, sizes, left.relation.columns)
        right_key = flat_index(shared, sizes, right.relation.columns)
        name = f"{left.relation.name} and {right.relation.name} agree on {', '.join(shared)}"
        for key in np.union1d(left_key, right_key):
            expression = left.sum_of((left_key == key).astype(float)).plus(
                right.sum_of((right_key == key).astype(float)), -1.0
            )
            self.rows.add(name, expression, 0.0, 0.0)

    # -- terms

    def lower(self, term: Term, factor: Monomial | None = None) -> Linear:
        """A linear expression that no design's value of `factor x term` falls below."""
        if isinstance(term, Monomial):
            if factor is not None:
                term = Monomial(term.name, factor.coefficient * term.coefficient, (*factor.factors, *term.factors))
            return self._monomial(term)
        if isinstance(term, Scale):
            by = term.by
            if factor is not None:
                by = Monomial(by.name, factor.coefficient * by.coefficient, (*factor.factors, *by.factors))
            return self.lower(term.term, by)
        if isinstance(term, Sum):
            found = Linear({})
            for child in term.terms:
                found = found.plus(self.lower(child, factor))
            return found
        if isinstance(term, Max):
            children = [self.lower(child, factor) for child in term.terms]
            highest = min(self.cap, max(self._upper(child) for child in children))
            epigraph = self.rows.continuous(term.name, 0.0, max(highest, 0.0))
            for child, expression in zip(term.terms, children, strict=True):
                self.rows.add(f"{term.name} >= {child.name}", Linear({epigraph: 1.0}).plus(expression, -1.0), 0.0)
            return Linear({epigraph: 1.0})
        return self._power(term, factor)

    def _power(self, term: Power, factor: Monomial | None) -> Linear:
        """Tangents of S^k, k >= 1, on a grid of S; a factor goes inside as its k-th root."""
        root = None
        if factor is not None:
            root = Monomial(
                factor.name,
                factor.coefficient ** (1.0 / term.exponent),
                tuple(
                    Table(t.name, t.scope, t.values ** (1.0 / term.exponent), t.unit, t.formula, t.source)
                    for t in factor.factors
                ),
            )
            self._keep.append(root)
        base = self.lower(term.term, root)
        highest = min(max(self._upper(base), 0.0), self.cap ** (1.0 / term.exponent))
        variable = self.rows.continuous(term.name, 0.0, highest**term.exponent)
        for share in np.linspace(0.0, 1.0, 33)[1:]:
            at = share * highest
            slope = term.exponent * at ** (term.exponent - 1.0)
            cut = Linear({variable: 1.0}).plus(base, -slope).plus(Linear({}, slope * at - at**term.exponent))
            self.rows.add(f"{term.name} tangent", cut, 0.0)
        return Linear({variable: 1.0})

    def _monomial(self, monomial: Monomial) -> Linear:
        key = (monomial.coefficient, *sorted(id(table) for table in monomial.factors))
        known = self._monomial_cache.get(key)
        if known is None:
            self._keep.append(monomial)
            known = self._monomial_cache[key] = self._lay_monomial(monomial)
        return known

    def _lay_monomial(self, monomial: Monomial) -> Linear:
        products: dict[int, Floats] = {}
        constant = monomial.coefficient
        whole = self._holder({d for table in monomial.factors for d in table.scope})
        for table in monomial.factors:
            if not table.scope:
                constant *= float(table.values)
                continue
            index = self._cluster_of(table) if whole is None else whole
            values = self.values(table, self.clusters[index].relation)
            products[index] = products[index] * values if index in products else values
        # A factor that is the same for all tuples is a number.
        for index in list(products):
            values = products[index]
            if np.all(values == values[0]):
                constant *= float(values[0])
                del products[index]
        if constant == 0.0:
            return Linear({})
        if not products:
            return Linear({}, constant)
        if len(products) == 1:
            (index, values), *_ = products.items()
            return self.clusters[index].sum_of(constant * values)
        return self._exponential(monomial.name, constant, products)

    def _exponential(self, name: str, constant: float, products: dict[int, Floats]) -> Linear:
        logs: list[Floats] = []
        ranges: list[tuple[float, float]] = []
        indices = sorted(products)
        for position, index in enumerate(indices):
            values = products[index] * (constant if position == 0 else 1.0)
            with np.errstate(divide="ignore"):
                log = np.log(values)
            alive = log[np.isfinite(log)]
            if not len(alive):
                return Linear({})
            logs.append(log)
            ranges.append((float(alive.min()), float(alive.max())))
        lowest, highest = sum(low for low, _ in ranges), sum(high for _, high in ranges)
        for position, log in enumerate(logs):
            others = highest - ranges[position][1]
            log[~np.isfinite(log)] = lowest - 1.0 - others  # every tangent is then at most zero
        variable = self.rows.continuous(name, 0.0, min(self.cap, math.exp(min(highest, 300.0)) * (1.0 + 1e-9)))
        clusters = [self.clusters[index] for index in indices]
        exponential = Exponential(
            name,
            variable,
            tuple(zip(clusters, logs, strict=True)),
            tuple(self._log_variable(index, log) for index, log in zip(indices, logs, strict=True)),
            lowest,
            highest,
        )
        self.exponentials.append(exponential)
        for at in tangents.points(lowest, min(highest, math.log(self.cap)), self.scale):
            self.tangent(exponential, at)
        # The least that the term can be for each tuple: tight where a tuple fixes most of it.
        for position, (cluster, log) in enumerate(exponential.logs):
            others = lowest - ranges[position][0]
            least = np.where(log >= ranges[position][0], np.exp(log + others), 0.0)
            if all(np.all(other >= ranges[p][0]) for p, other in enumerate(logs) if p != position):
                floor = cluster.sum_of(-least * (1.0 - 1e-12))
                self.rows.add(f"{name} >= least of {cluster.relation.name}", Linear({variable: 1.0}).plus(floor), 0.0)
        return Linear({variable: 1.0})

    def tangent(self, exponential: Exponential, at: float) -> None:
        """Lay the tangent of an exponential at a logarithm: value >= exp(at) (1 + y - at).

        Not below the lowest logarithm: dead tuples lie one below it, so that from there on every tangent is at most
        zero for them.
        """
        at = max(at, exponential.lowest)
        slope = math.exp(at)
        cut = Linear({exponential.variable: 1.0}, -slope * (1.0 - at))
        for log_variable in exponential.log_variables:
            cut = cut.plus(Linear({log_variable: 1.0}), -slope)
        self.rows.add(f"{exponential.name} tangent", cut, 0.0)

    def _log_variable(self, index: int, log: Floats) -> int:
        """A variable that takes the logarithm of the chosen tuple; shared between terms with the same table."""
        key = (index, log.tobytes())
        known = self._log_cache.get(key)
        if known is None:
            cluster = self.clusters[index]
            known = self.rows.continuous(f"log over {cluster.relation.name}", float(log.min()), float(log.max()))
            self._log_cache[key] = known
            # One side is enough: terms grow with their logarithms, so a minimum takes the least that the row allows.
            expression = Linear({known: 1.0}).plus(cluster.sum_of(log), -1.0)
            self.rows.add(f"log over {cluster.relation.name}", expression, 0.0)
        return known

    def _upper(self, expression: Linear) -> float:
        """Largest value that an expression can take by its variables' bounds, one tuple a cluster."""
        total = expression.constant
        binaries: dict[int, float] = {}
        for index, coefficient in expression.coefficients.items():
            variable = self.rows.variables[index]
            if variable.binary:
                owner = next(i for i, c in enumerate(self.clusters) if c.first <= index < c.first + len(c.relation))
                binaries[owner] = max(binaries.get(owner, 0.0), coefficient)
            else:
                total += coefficient * (variable.upper if coefficient > 0 else variable.lower)
        return total + sum(binaries.values())

    def _holder(self, decisions: Iterable[str]) -> int | None:
        """The first cluster that has all of some decisions."""
        wanted = set(decisions)
        return next((i for i, cluster in enumerate(self.clusters) if wanted <= set(cluster.relation.columns)), None)

    def _cluster_of(self, table: Table) -> int:
        index = self._holder(table.scope)
        if index is None:
            raise ValueError(f"table {table.name!r} over {table.scope} lies in no cluster of the master")
        return index

    def values(self, table: Table, relation: Relation) -> Floats:
        """A table for each tuple of a relation that has its decisions."""
        return table.flat()[flat_index(table.scope, table.values.shape, relation.columns)]
