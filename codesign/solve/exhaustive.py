"""Every design of a space, judged one by one by the exact model. Floor 5. For small spaces: the truth to test against.

Shares with the loop only the space and the exact model: no bound, no dominance, no relaxation, no solver.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from codesign.cost.assemble import CostModel
from codesign.design import DIMENSIONS, Design
from codesign.design.evaluation import Evaluation
from codesign.exact.evaluate import Judge
from codesign.expr import Columns, Relation, join
from codesign.spec.instance import Instance


@dataclass(frozen=True)
class Enumeration:
    """The best of all designs (None if none keeps every rule and limit), and how many were judged."""

    design: Design | None
    evaluation: Evaluation | None
    designs: int
    feasible: int


class TooMany(ValueError):
    """The space has more designs than were asked for."""


def enumerate_all(instance: Instance, most: int = 100_000) -> Enumeration:
    """Judge every design.

    Raises
    ------
    TooMany
        If there are more than `most` designs.
    """
    model, judge = CostModel(instance), Judge(instance)
    best: tuple[Design | None, Evaluation | None] = (None, None)
    designs = feasible = 0
    for relation in designs_of(model):
        designs += len(relation)
        if designs > most:
            raise TooMany(f"more than {most} designs")
        for row in range(len(relation)):
            design = model.decode(relation.columns, row)
            evaluation = judge.evaluate(design)
            if not evaluation.feasible:
                continue
            feasible += 1
            if best[1] is None or evaluation.minimised < best[1].minimised:
                best = (design, evaluation)
    return Enumeration(*best, designs, feasible)


def designs_of(model: CostModel) -> Iterator[Relation]:
    """All designs of a space, one relation for each degrees, server, number of servers and leaf block."""
    space, found = model.space, model.design_space
    plans = join(join(found.degrees, found.schedules, space), found.options, space)
    hardware = join(found.hardware, found.storage, space)
    keys = ("server", "servers")
    for group in _groups(plans, (*DIMENSIONS, "used", *keys)):
        first = {name: int(column[0]) for name, column in group.columns.items()}
        here = np.logical_and.reduce([hardware.columns[name] == first[name] for name in keys])
        for purchases in _groups(hardware.where(here), ("leaf_block",)):
            leaf = int(purchases.values(space, "leaf_block")[0])
            servers = int(space["servers"].values[first["servers"]])
            degrees = {d: int(space[d].values[first[d]]) for d in DIMENSIONS}
            used = int(space["used"].values[first["used"]])
            placed = found.placements(degrees, used, leaf, servers // leaf)
            if len(placed):
                yield join(join(group, purchases, space), placed, space)


def number_of_designs(model: CostModel) -> int:
    """Number of designs of `designs_of`, counted without listing them."""
    space, found = model.space, model.design_space
    schedules = _counts(found.schedules.columns, ("pp", "dp"))
    options = _counts(found.options.columns, ("pp",))
    storage = _counts(found.storage.columns, ("server", "servers"))
    hardware = _counts(found.hardware.columns, ("server", "servers", "leaf_block"))
    blocks: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for (server, servers, leaf), count in hardware.items():
        blocks.setdefault((server, servers), []).append((leaf, count))
    placements: dict[tuple[int, ...], int] = {}
    total = 0
    columns = found.degrees.columns
    names = (*DIMENSIONS, "used", "server", "servers")
    for row in zip(*(columns[name].tolist() for name in names), strict=True):
        *degrees, used, server, servers = row
        _, _, pp, dp = degrees
        plans = schedules.get((pp, dp), 0) * options.get((pp,), 0) * storage.get((server, servers), 0)
        if not plans:
            continue
        for leaf, networks in blocks.get((server, servers), ()):
            key = (*degrees, used, leaf, servers)
            if key not in placements:
                block = int(space["leaf_block"].values[leaf])
                placements[key] = len(
                    found.placements(
                        {d: space[d].values[code] for d, code in zip(DIMENSIONS, degrees, strict=True)},
                        int(space["used"].values[used]),
                        block,
                        int(space["servers"].values[servers]) // block,
                    )
                )
            total += plans * networks * placements[key]
    return total


def _counts(columns: Columns, names: tuple[str, ...]) -> dict[tuple[int, ...], int]:
    table = np.stack([columns[name] for name in names], axis=1)
    rows, counts = np.unique(table, axis=0, return_counts=True)
    return {tuple(row): int(count) for row, count in zip(rows.tolist(), counts, strict=True)}


def _groups(relation: Relation, names: tuple[str, ...]) -> Iterator[Relation]:
    """The rows of a relation, apart by their values of some decisions."""
    if not len(relation):
        return
    table = np.stack([relation.columns[name] for name in names], axis=1)
    _, number = np.unique(table, axis=0, return_inverse=True)
    order = np.argsort(number.reshape(-1), kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(number.reshape(-1)[order])) + 1):
        yield relation.where(rows)
