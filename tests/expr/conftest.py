"""Random spaces, tables and terms for several tests, and the value of a term by plain Python, one design at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

import numpy as np
import pytest
from hypothesis import strategies as st

from codesign.expr import Decision, Max, Monomial, Power, Relation, Scale, Space, Sum, Table, Term

Design = Mapping[str, int]
"""Decision -> code."""


class Naive:
    """See the module."""

    # -- the slow truth

    @classmethod
    def value(cls, term: Term, design: Design) -> float:
        """Value of a term for one design, straight from the definition of each kind of term."""
        if isinstance(term, Monomial):
            found = term.coefficient
            for table in term.factors:
                found *= float(table.values[tuple(design[name] for name in table.scope)])
            return found
        if isinstance(term, Scale):
            return cls.value(term.by, design) * cls.value(term.term, design)
        if isinstance(term, Power):
            return float(cls.value(term.term, design) ** term.exponent)
        children = [cls.value(child, design) for child in term.terms]
        return max(children) if isinstance(term, Max) else float(sum(children))

    @staticmethod
    def designs(space: Space) -> list[dict[str, int]]:
        """Every combination of the space."""
        ranges = [range(space.size(name)) for name in space.names]
        return [dict(zip(space.names, codes, strict=True)) for codes in product(*ranges)]

    @staticmethod
    def rows(relation: Relation) -> list[dict[str, int]]:
        """Tuples of a relation, one by one."""
        return [{d: int(column[i]) for d, column in relation.columns.items()} for i in range(len(relation))]

    @classmethod
    def allows(cls, relation: Relation, design: Design) -> bool:
        """Whether a design, looked at through a relation's decisions, is one of its tuples."""
        return {d: design[d] for d in relation.scope} in cls.rows(relation)

    @staticmethod
    def columns(designs: Sequence[Design], names: Sequence[str]) -> dict[str, np.ndarray]:
        """Designs as columns of codes."""
        return {name: np.array([design[name] for design in designs], dtype=np.intp) for name in names}

    # -- random things

    @staticmethod
    def spaces(decisions: int = 4, values: int = 3) -> st.SearchStrategy[Space]:
        """Spaces of up to so many decisions of up to so many values."""
        sizes = st.lists(st.integers(1, values), min_size=1, max_size=decisions)
        return sizes.map(lambda found: Space([Decision(f"d{i}", tuple(range(n))) for i, n in enumerate(found)]))

    @staticmethod
    @st.composite
    def tables(draw: st.DrawFn, space: Space, names: Sequence[str] | None = None) -> Table:
        """A table over some of the decisions, in any order, with a zero now and then."""
        among = list(space.names if names is None else names)
        scope = tuple(draw(st.permutations(among))[: draw(st.integers(0, min(3, len(among))))])
        generator = np.random.default_rng(draw(st.integers(0, 10**6)))
        values = generator.uniform(0.1, 10.0, space.sizes(scope)) * (generator.random(space.sizes(scope)) > 0.15)
        return Table("t", scope, np.asarray(values))

    @staticmethod
    @st.composite
    def relations(draw: st.DrawFn, space: Space, least: int = 0) -> Relation:
        """A relation over one to three decisions; no tuple twice."""
        scope = draw(st.permutations(list(space.names)))[: draw(st.integers(1, 3))]
        whole = Relation.product("r", space, scope)
        kept = draw(st.lists(st.integers(0, len(whole) - 1), unique=True, min_size=least))
        return whole.where(np.array(kept, dtype=np.intp))

    @staticmethod
    @st.composite
    def terms(draw: st.DrawFn, tables: Sequence[Table]) -> Term:
        """A nest of all kinds of terms over these tables. Parts are picked from all earlier ones, so many are shared.

        At most two powers of at most 2, so that values stay far below the largest double.
        """

        def monomial() -> Monomial:
            factors = draw(st.lists(st.sampled_from(list(tables)), max_size=3))
            return Monomial("m", draw(st.sampled_from([1.0, 1.0, 0.5, 3.0, 0.0])), tuple(factors))

        pool: list[Term] = [monomial(), monomial()]
        powers = 0
        for _ in range(draw(st.integers(0, 8))):
            kind = draw(st.sampled_from(["monomial", "sum", "max", "scale", "power"]))
            parts = st.lists(st.sampled_from(pool), min_size=int(kind == "max"), max_size=3)
            if kind == "monomial":
                pool.append(monomial())
            elif kind == "sum":
                pool.append(Sum("s", tuple(draw(parts))))
            elif kind == "max":
                pool.append(Max("x", tuple(draw(parts))))
            elif kind == "scale":
                pool.append(Scale("c", monomial(), draw(st.sampled_from(pool))))
            elif powers < 2:
                powers += 1
                pool.append(Power("p", draw(st.sampled_from(pool)), draw(st.sampled_from([1.0, 1.5, 2.0]))))
        return draw(st.sampled_from([pool[-1], Sum("all", tuple(pool))]))

    @classmethod
    def distinct(cls, term: Term) -> Iterator[Term]:
        """Every different object that a walk over a term's parts meets and that is evaluated by itself."""
        seen: set[int] = set()
        waiting = [term]
        while waiting:
            one = waiting.pop()
            if id(one) in seen:
                continue
            seen.add(id(one))
            yield one
            if isinstance(one, Sum | Max):
                waiting.extend(one.terms)
            elif isinstance(one, Scale | Power):
                waiting.append(one.term)


@pytest.fixture(scope="session")
def naive() -> type[Naive]:
    """See `Naive`."""
    return Naive
