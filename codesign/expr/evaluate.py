"""Evaluation of a term for one design or for a million. Floor 1. In: a term, columns of codes. Out: an array.

Work goes in blocks that stay in the processor's cache; within a block each table is looked up once and each
shared term is computed once, however often it stands in the expression.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from codesign.expr.decision import Codes, Columns
from codesign.expr.term import Max, Monomial, Power, Scale, Sum, Table, Term, Values

BLOCK = 1 << 13
"""Rows a block: 64 KiB a float column, so that a block's columns stay in the second-level cache."""


def evaluate(term: Term, columns: Columns, replace: Callable[[Table], Table] | None = None) -> Values:
    """Value of `term` for each row of `columns`; shape (n,).

    Parameters
    ----------
    term : the term; every decision in its scope must have a column (unless `replace` removes it).
    columns : decision name -> codes, all of one length n.
    replace : puts another table in the place of each table (the bounds use this); called once for each table.
    """
    length = len(next(iter(columns.values())))
    tables: dict[int, Table] = {}
    out = np.empty(length)
    for start in range(0, length, BLOCK):
        stop = min(start + BLOCK, length)
        block = _Block({name: column[start:stop] for name, column in columns.items()}, replace, tables)
        out[start:stop] = block.value(term)
    return out


class _Block:
    """One block of rows with what was already looked up for it."""

    def __init__(self, columns: Columns, replace: Callable[[Table], Table] | None, tables: dict[int, Table]) -> None:
        self._columns = columns
        self._replace = replace
        self._tables = tables
        self._length = len(next(iter(columns.values())))
        self._index: dict[tuple[str, ...], Codes] = {}
        self._looked_up: dict[int, Values] = {}
        self._values: dict[int, Values] = {}

    def value(self, term: Term) -> Values:
        known = self._values.get(id(term))
        if known is None:
            known = self._values[id(term)] = self._compute(term)
        return known

    def _compute(self, term: Term) -> Values:
        if isinstance(term, Monomial):
            return self._monomial(term)
        if isinstance(term, Scale):
            return self._monomial(term.by) * self.value(term.term)
        if isinstance(term, Power):
            return self.value(term.term) ** term.exponent
        if not term.terms:
            return np.zeros(self._length)
        result = self.value(term.terms[0])
        if len(term.terms) == 1:
            return result
        result = result.copy()
        for child in term.terms[1:]:
            if isinstance(term, Sum):
                result += self.value(child)
            else:
                assert isinstance(term, Max)
                np.maximum(result, self.value(child), out=result)
        return result

    def _monomial(self, monomial: Monomial) -> Values:
        if not monomial.factors:
            return np.full(self._length, monomial.coefficient)
        result = self._lookup(monomial.factors[0])
        if monomial.coefficient != 1.0 or len(monomial.factors) > 1:
            result = result * monomial.coefficient
        for table in monomial.factors[1:]:
            result *= self._lookup(table)
        return result

    def _lookup(self, table: Table) -> Values:
        known = self._looked_up.get(id(table))
        if known is None:
            used = self._used(table)
            if used.scope:
                index = self._flat(used.scope, used.values.shape)
                known = used.values.reshape(-1).take(index)
            else:
                known = np.full(self._length, float(used.values))
            self._looked_up[id(table)] = known
        return known

    def _used(self, table: Table) -> Table:
        if self._replace is None:
            return table
        used = self._tables.get(id(table))
        if used is None:
            used = self._tables[id(table)] = self._replace(table)
        return used

    def _flat(self, scope: tuple[str, ...], sizes: tuple[int, ...]) -> Codes:
        known = self._index.get(scope)
        if known is None:
            column = self._columns[scope[-1]]
            known = column if len(scope) == 1 else self._flat(scope[:-1], sizes[:-1]) * sizes[-1] + column
            self._index[scope] = known
        return known
