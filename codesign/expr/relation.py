"""Relations: sets of allowed joint choices of a few decisions. Floor 1. In and out: columns of codes.

A relation is an explicit list of tuples. Joining relations on the decisions that they share enumerates the legal
combinations of both; projecting forgets decisions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from codesign.expr.decision import Codes, Columns, Space, flat_index


@dataclass(frozen=True, eq=False)
class Relation:
    """Allowed tuples over `scope`; `columns[name]` are the codes of one decision, all columns of one length."""

    name: str
    columns: Columns

    @property
    def scope(self) -> tuple[str, ...]:
        return tuple(self.columns)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def where(self, keep: npt.NDArray[np.bool_] | Codes) -> Relation:
        """The tuples that a mask or an index array selects."""
        return Relation(self.name, {name: column[keep] for name, column in self.columns.items()})

    @staticmethod
    def product(name: str, space: Space, scope: Sequence[str]) -> Relation:
        """All combinations of the decisions in `scope`."""
        grids = np.meshgrid(*(np.arange(space.size(d), dtype=np.intp) for d in scope), indexing="ij")
        return Relation(name, {d: grid.reshape(-1) for d, grid in zip(scope, grids, strict=True)})

    def values(self, space: Space, decision: str) -> npt.NDArray[np.float64]:
        """The numbers behind one column, shape (n,); for decisions over numbers."""
        return space[decision].numbers()[self.columns[decision]]


def join(left: Relation, right: Relation, space: Space, name: str = "") -> Relation:
    """Every pair of tuples that agree on the shared decisions (all pairs if none are shared)."""
    shared = [d for d in left.scope if d in right.columns]
    fresh = [d for d in right.scope if d not in left.columns]
    if shared:
        sizes = space.sizes(shared)
        left_key, right_key = flat_index(shared, sizes, left.columns), flat_index(shared, sizes, right.columns)
    else:
        left_key = np.zeros(len(left), dtype=np.intp)
        right_key = np.zeros(len(right), dtype=np.intp)
    order = np.argsort(right_key, kind="stable")
    ordered = right_key[order]
    first = np.searchsorted(ordered, left_key, side="left")
    count = np.searchsorted(ordered, left_key, side="right") - first
    left_rows = np.repeat(np.arange(len(left), dtype=np.intp), count)
    offset = np.arange(len(left_rows), dtype=np.intp) - np.repeat(np.cumsum(count) - count, count)
    right_rows = order[np.repeat(first, count) + offset]
    columns = {d: column[left_rows] for d, column in left.columns.items()}
    columns.update({d: right.columns[d][right_rows] for d in fresh})
    return Relation(name or f"{left.name}+{right.name}", columns)


def project(relation: Relation, space: Space, scope: Sequence[str]) -> Relation:
    """The different tuples that are left when only the decisions in `scope` are looked at."""
    key = flat_index(scope, space.sizes(scope), relation.columns)
    _, rows = np.unique(key, return_index=True)
    return Relation(relation.name, {d: relation.columns[d][rows] for d in scope})


def semijoin(left: Relation, right: Relation, space: Space) -> Relation:
    """The tuples of `left` that agree with at least one tuple of `right` on the shared decisions."""
    shared = [d for d in left.scope if d in right.columns]
    if not shared:
        return left if len(right) else left.where(np.zeros(len(left), dtype=bool))
    sizes = space.sizes(shared)
    return left.where(np.isin(flat_index(shared, sizes, left.columns), flat_index(shared, sizes, right.columns)))
