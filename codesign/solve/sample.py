"""Random legal designs. Floor 5. In: a cost model, how many, a seed. Out: rows of codes of all decisions.

For property tests and for measuring how fast designs are judged. A plan with its purchase is drawn uniformly from all
legal ones, and then its placement uniformly from those that it can have. Limits on money, power and time are not looked
at, nor is memory.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from codesign.cost.assemble import CostModel
from codesign.design import DIMENSIONS
from codesign.expr import Decision, Relation, Space, join
from codesign.expr.decision import Codes, flat_index
from codesign.expr.relation import semijoin

CHUNK = 1 << 11
"""Rows whose placements are listed at once: some tens of each, so that memory stays small."""


def random_designs(model: CostModel, count: int, seed: int) -> Relation:
    """`count` designs drawn with replacement; `model.decode(found.columns, row)` is one of them.

    The same seed gives the same designs.

    Raises
    ------
    ValueError
        If the space holds no design.
    """
    generator = np.random.default_rng(seed)
    space, found = model.space, model.design_space
    # Degrees decide what every other stage can be joined to, so the numbers of partners multiply.
    stages = [found.schedules, found.options, semijoin(found.hardware, found.storage, space), found.storage]
    ways = np.ones(len(found.degrees))
    for stage in stages:
        ways = ways * _partners(found.degrees, stage, space)
    if not ways.sum():
        raise ValueError(f"{model.instance.name}: there is no legal design to draw")
    rows = found.degrees.where(generator.choice(len(ways), size=count, p=ways / ways.sum()))
    for stage in stages:
        rows = _joined(rows, stage, space, generator)
    parts = [_placed(part, model, generator) for part in _chunks(rows)]
    columns = {name: np.concatenate([part.columns[name] for part in parts]) for name in parts[0].scope}
    return Relation("random designs", {name: columns[name] for name in space.names})


def _keys(left: Relation, right: Relation, space: Space) -> tuple[Codes, Codes]:
    shared = [name for name in left.scope if name in right.columns]
    sizes = space.sizes(shared)
    return flat_index(shared, sizes, left.columns), flat_index(shared, sizes, right.columns)


def _partners(left: Relation, right: Relation, space: Space) -> npt.NDArray[np.float64]:
    """Rows of `right` that agree with each row of `left`."""
    left_key, right_key = _keys(left, right, space)
    most = int(max(left_key.max(initial=0), right_key.max(initial=0))) + 1
    return np.bincount(right_key, minlength=most)[left_key].astype(np.float64)


def _joined(left: Relation, right: Relation, space: Space, generator: np.random.Generator) -> Relation:
    """Each row of `left` with one of the rows of `right` that agree with it; there is at least one."""
    left_key, right_key = _keys(left, right, space)
    order = np.argsort(right_key, kind="stable")
    first = np.searchsorted(right_key[order], left_key, side="left")
    after = np.searchsorted(right_key[order], left_key, side="right")
    chosen = order[generator.integers(first, after)]
    fresh = {name: column[chosen] for name, column in right.columns.items() if name not in left.columns}
    return Relation(left.name, {**left.columns, **fresh})


def _chunks(relation: Relation) -> Iterator[Relation]:
    for start in range(0, max(1, len(relation)), CHUNK):
        yield relation.where(np.arange(start, min(start + CHUNK, len(relation)), dtype=np.intp))


def _placed(rows: Relation, model: CostModel, generator: np.random.Generator) -> Relation:
    """Each row with one of its placements: all are listed, dimension by dimension, and one is chosen.

    What divides out whole at every tier can always be filled by the dimensions that follow, so no row is lost.
    """
    if not len(rows):
        return Relation(rows.name, {**rows.columns, **{f"{d}_layout": np.zeros(0, dtype=np.intp) for d in DIMENSIONS}})
    number = Decision("row", tuple(range(len(rows))))
    space = Space([*model.space.decisions, number])
    leaf = rows.values(space, "leaf_block")
    rest = np.stack([rows.values(space, "used"), leaf, rows.values(space, "servers") / leaf], axis=1)
    listed = Relation("placements", {"row": np.arange(len(rows), dtype=np.intp)})
    for dimension in DIMENSIONS:
        name = f"{dimension}_layout"
        values = space[name].values
        degrees = np.asarray([space[dimension].code(value.degree) for value in values], dtype=np.intp)
        layouts = Relation(name, {dimension: degrees, name: np.arange(len(values), dtype=np.intp)})
        position = np.arange(len(listed), dtype=np.intp)
        of_rows = rows.columns[dimension][listed.columns["row"]]
        here = Relation("", {**listed.columns, "position": position, dimension: of_rows})
        listed = join(here, layouts, space)
        rest = rest[listed.columns["position"]] / np.asarray(values, dtype=np.float64)[listed.columns[name]]
        whole = np.all(rest == np.round(rest), axis=1)
        rest, listed = rest[whole], listed.where(whole)
    ways = np.bincount(listed.columns["row"], minlength=len(rows))
    chosen = np.cumsum(ways) - ways + generator.integers(0, ways)
    layouts_chosen = {f"{d}_layout": listed.columns[f"{d}_layout"][chosen] for d in DIMENSIONS}
    return Relation(rows.name, {**rows.columns, **layouts_chosen})
