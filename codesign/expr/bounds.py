"""Bounds of a term over sets of designs. Floor 1. In: a term, and what is known of a design. Out: least, greatest.

Terms are monotone in their tables, so a table whose decisions are not all known is replaced by its least
(or greatest) value over the unknown ones; the value of the term with these tables bounds the term. Relations make
such bounds tight: the least value is taken only over choices that some relation allows together with what is known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from codesign.expr.decision import Codes, Columns, Space, flat_index
from codesign.expr.evaluate import evaluate
from codesign.expr.relation import Relation
from codesign.expr.term import Table, Term, Values


class Reducer:
    """Replaces tables by their least (or greatest) value over decisions that are not in `known`.

    Parameters
    ----------
    space : gives the sizes.
    known : decisions that stay.
    relations : used to remove unknown decisions; a relation over unknown decisions only, or over unknown and
        known ones, restricts the choices that are looked at. Applied in the order given.
    greatest : bound from above in place of below.
    """

    def __init__(
        self, space: Space, known: Sequence[str], relations: Sequence[Relation] = (), greatest: bool = False
    ) -> None:
        self._space = space
        self._known = frozenset(known)
        self._relations = tuple(relations)
        self._greatest = greatest
        # By id, with the table itself, so that no other table can come to have its id.
        self._reduced: dict[int, tuple[Table, Table]] = {}

    def __call__(self, table: Table) -> Table:
        """The table over known decisions only; the same object each time it is asked for."""
        found = self._reduced.get(id(table))
        if found is None:
            found = self._reduced[id(table)] = (table, self._reduce(table))
        return found[1]

    def _reduce(self, table: Table) -> Table:
        scope, values = table.scope, table.values
        for relation in self._relations:
            unknown = [d for d in scope if d in relation.columns and d not in self._known]
            if unknown:
                scope, values = self._through(scope, values, relation)
        axes = tuple(axis for axis, d in enumerate(scope) if d not in self._known)
        if axes:
            values = values.max(axis=axes) if self._greatest else values.min(axis=axes)
            scope = tuple(d for d in scope if d in self._known)
        if scope == table.scope:
            return table
        return Table(table.name, scope, np.array(values, dtype=np.float64), table.unit, table.formula, table.source)

    def _through(self, scope: tuple[str, ...], values: Values, relation: Relation) -> tuple[tuple[str, ...], Values]:
        """Least value over the tuples of a relation, for each choice of its known decisions."""
        inside = [d for d in scope if d in relation.columns]
        rest = [d for d in scope if d not in relation.columns]
        keys = [d for d in relation.scope if d in self._known]
        axes = [scope.index(d) for d in inside] + [scope.index(d) for d in rest]
        rest_sizes = self._space.sizes(rest)
        rows = np.transpose(values, axes).reshape(-1, int(np.prod(rest_sizes, dtype=np.intp)))
        picked = rows[flat_index(inside, self._space.sizes(inside), relation.columns)]
        key_sizes = self._space.sizes(keys)
        group: Codes = flat_index(keys, key_sizes, relation.columns) if keys else np.zeros(len(relation), dtype=np.intp)
        out = np.full((int(np.prod(key_sizes, dtype=np.intp)), picked.shape[1]), np.nan)
        if len(group):
            order = np.argsort(group, kind="stable")
            starts = np.flatnonzero(np.diff(group[order], prepend=-1))
            best = np.maximum if self._greatest else np.minimum
            out[group[order][starts]] = best.reduceat(picked[order], starts, axis=0)
        # A choice that no tuple goes with belongs to no design: any number bounds it; zero is never wrong below.
        out[np.isnan(out)] = 0.0
        return (*keys, *rest), out.reshape(key_sizes + rest_sizes)


def least(term: Term, columns: Columns, reducer: Reducer) -> Values:
    """Lower (or, with a greatest-reducer, upper) bound of `term` for each row of known choices; shape (n,)."""
    return evaluate(term, columns, reducer)


def box_bounds(term: Term, space: Space, allowed: Mapping[str, Codes]) -> tuple[float, float]:
    """Least and greatest value that a term can take when each decision is restricted to the codes in `allowed`.

    Decisions not named in `allowed` are free. The bounds hold for every design of the box; they are attained
    when no two tables of the term share a decision.
    """
    relations = [Relation(name, {name: np.asarray(codes, dtype=np.intp)}) for name, codes in allowed.items()]
    anything = {space.names[0]: np.zeros(1, dtype=np.intp)}
    low = evaluate(term, anything, Reducer(space, (), relations))
    high = evaluate(term, anything, Reducer(space, (), relations, greatest=True))
    return float(low[0]), float(high[0])
