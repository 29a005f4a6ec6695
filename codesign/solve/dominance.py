"""Purchases that another one beats in every respect. Floor 5. In: relations of the market. Out: what is left of them.

Every objective and limit grows with price, power, the rates of the network's tiers, and the overhead of storage;
nothing else of a network or a storage product enters the model, relaxed or exact. So an option that is nowhere smaller
than another, for the same servers under the same leaf groups, is in no design that is better.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from codesign.cost.assemble import CostModel
from codesign.expr import Relation, evaluate
from codesign.expr.decision import flat_index
from codesign.expr.term import Monomial, Term, scope

Floats = npt.NDArray[np.float64]


def undominated_hardware(model: CostModel, hardware: Relation) -> Relation:
    """Networks for which no other is at least as cheap, as frugal and as fast at every tier."""
    tables = (*model.tables.seconds_per_byte, *model.tables.latency_s)
    rates: list[Term] = [Monomial(table.name, 1.0, (table,)) for table in tables]
    costs = [term for total in (model.capex, model.power) for term in total.terms if "network" in scope(term)]
    return _undominated(model, hardware, ("server", "servers", "leaf_block"), [*rates, *costs])


def undominated_storage(model: CostModel, storage: Relation) -> Relation:
    """Storage for which no other is at least as cheap, as frugal, with no more overhead and as fast to read."""
    costs = [term for total in (model.capex, model.power) for term in total.terms if "storage" in scope(term)]
    terms: list[Term] = [Monomial("overhead", 1.0, (model.overhead,)), model.reading, *costs]
    return _undominated(model, storage, ("server", "servers"), terms)


def _undominated(model: CostModel, relation: Relation, same: Sequence[str], terms: Sequence[Term]) -> Relation:
    if not len(relation):
        return relation
    values = np.stack([evaluate(term, relation.columns) for term in terms], axis=1)
    key = flat_index(same, model.space.sizes(same), relation.columns)
    keep = np.zeros(len(relation), dtype=bool)
    order = np.argsort(key, kind="stable")
    for group in np.split(order, np.flatnonzero(np.diff(key[order])) + 1):
        keep[group[_pareto(values[group])]] = True
    return relation.where(keep)


def _pareto(values: Floats) -> npt.NDArray[np.bool_]:
    """Rows that no other row is nowhere above; of equal rows the first."""
    below = np.all(values[:, None, :] <= values[None, :, :], axis=2)
    equal = below & below.T
    earlier = np.tri(len(values), k=-1, dtype=bool).T
    return np.asarray(~np.any((below & ~equal) | (equal & earlier), axis=0), dtype=np.bool_)
