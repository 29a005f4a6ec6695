"""Designs thrown against the certificate of each reference instance: a million random ones, and local searches.

A design below the bound of a certificate, judged by the exact model, would refute it. Random designs are screened by
their relaxed objective, which is never above the exact one; what lies below the bound, and the most promising of the
rest, is judged. Local searches start at random designs and at the answer itself, and change one group of decisions at a
time (degrees, schedule, recomputation and sharding, placement, network, storage), always to the best judged neighbour.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from codesign import Limits, Solution, read, solve
from codesign.cost.assemble import CostModel
from codesign.design import DIMENSIONS
from codesign.exact.evaluate import Judge
from codesign.expr import Relation, evaluate, join
from codesign.solve.sample import random_designs

INSTANCES = Path(__file__).parents[1] / "instances" / "reference"
BATCH = 50_000
JUDGED_A_BATCH = 20
STARTS = 12
JUDGED_NEIGHBOURS = 4
MOST_STEPS = 25


def allowed_objective(model: CostModel, relation: Relation) -> np.ndarray:
    """Relaxed objective of each design; infinite where a relaxed limit or memory is over."""
    value = evaluate(model.objective, relation.columns)
    for limit in model.limits:
        value[evaluate(limit.term, relation.columns) > limit.most * (1.0 + 1e-12)] = np.inf
    for stage in model.memory:
        value[evaluate(stage, relation.columns) > 1.0 + 1e-12] = np.inf
    return value


class Attack:
    """Designs against one certificate."""

    def __init__(self, solution: Solution) -> None:
        assert solution.certificate is not None
        assert solution.evaluation is not None
        self.solution = solution
        self.model, self.judge = CostModel(solution.instance), Judge(solution.instance)
        user = solution.certificate.bound
        rate = solution.instance.objective
        tokens = self.model.workload.global_batch * self.model.workload.sequence_length
        self.bound = {"tokens_per_s": tokens / user, "tokens_per_usd": 1.0 / user}.get(rate, user)
        self.best = np.inf
        self.tried = self.judged = self.below = 0

    def exact(self, relation: Relation, row: int) -> float:
        """Exact objective of a design, infinite if it breaks something."""
        evaluation = self.judge.evaluate(self.model.decode(relation.columns, row))
        self.judged += 1
        value = evaluation.minimised if evaluation.feasible else np.inf
        self.best = min(self.best, value)
        self.below += value < self.bound * (1.0 - 1e-12)
        return value

    def random(self, count: int) -> Relation:
        """Random designs; the starts of the local searches, most promising first."""
        starts: list[tuple[float, Relation]] = []
        for seed in range(-(-count // BATCH)):
            relation = random_designs(self.model, min(BATCH, count - seed * BATCH), seed)
            self.tried += len(relation)
            value = allowed_objective(self.model, relation)
            order = np.argsort(value, kind="stable")
            order = order[np.isfinite(value[order])]
            suspects = order[value[order] < self.bound]
            for row in np.union1d(suspects, order[:JUDGED_A_BATCH]):
                self.exact(relation, int(row))
            starts += [(float(value[row]), relation.where(np.array([row]))) for row in order[:2]]
        starts.sort(key=lambda one: one[0])
        chosen = [relation for _, relation in starts[:STARTS]]
        names = self.model.space.names
        return Relation("starts", {n: np.concatenate([one.columns[n] for one in chosen]) for n in names})

    def neighbours(self, here: Relation) -> Iterator[Relation]:
        """Designs that differ from one design in one group of decisions."""
        space, found = self.model.space, self.model.design_space

        def rest(*names: str) -> Relation:
            kept = {name: column for name, column in here.columns.items() if name not in names}
            return Relation("rest", kept)

        yield join(rest("micro_batch", "virtual_stages"), found.schedules, space)
        yield join(rest("zero", "recompute"), found.options, space)
        yield join(rest("storage", "checkpoint_interval"), found.storage, space)
        yield join(rest("network"), found.hardware, space)
        yield self._placed(here)
        layouts = [f"{d}_layout" for d in DIMENSIONS]
        plan = ("micro_batch", "virtual_stages", "zero", "recompute")
        same = [name for name in here.scope if name in ("server", "servers", "used")]
        pinned = Relation("pinned", {name: here.columns[name] for name in same})
        for free in (("tp", "cp"), ("tp", "pp"), ("tp", "dp"), ("cp", "dp"), ("pp", "dp"), ("cp", "pp")):
            fixed = Relation("fixed", {d: here.columns[d] for d in DIMENSIONS if d not in free} | pinned.columns)
            others = join(fixed, found.degrees, space)
            others = join(join(others, found.schedules, space), found.options, space)
            kept = {
                n: here.columns[n]
                for n in ("server", "servers", "network", "leaf_block", "storage", "checkpoint_interval")
            }
            others = join(others, Relation("purchase", kept), space)
            yield from self._each_placed(others, layouts, plan)

    def _placed(self, one: Relation) -> Relation:
        space = self.model.space
        degrees = {d: int(one.values(space, d)[0]) for d in DIMENSIONS}
        leaf, servers = int(one.values(space, "leaf_block")[0]), int(one.values(space, "servers")[0])
        placed = self.model.design_space.placements(degrees, int(one.values(space, "used")[0]), leaf, servers // leaf)
        bare = {name: column for name, column in one.columns.items() if not name.endswith("_layout")}
        return join(Relation("bare", bare), placed, space)

    def _each_placed(self, others: Relation, layouts: list[str], plan: tuple[str, ...]) -> Iterator[Relation]:
        """All placements of each different set of degrees, with all schedules and options of it."""
        if not len(others):
            return
        table = np.stack([others.columns[d] for d in DIMENSIONS], axis=1)
        _, first, number = np.unique(table, axis=0, return_index=True, return_inverse=True)
        for index, row in enumerate(first):
            group = others.where(np.flatnonzero(number.reshape(-1) == index))
            placed = self._placed(others.where(np.array([row])))
            if len(placed):
                only = Relation("placed", {n: c for n, c in placed.columns.items() if n not in plan})
                yield join(group, only, self.model.space)

    def descend(self, here: Relation) -> float:
        """Local search from one design; the best exact objective that it saw."""
        value = self.exact(here, 0)
        for _ in range(MOST_STEPS):
            better = None
            for relation in self.neighbours(here):
                if not len(relation):
                    continue
                self.tried += len(relation)
                relaxed = allowed_objective(self.model, relation)
                for row in np.argsort(relaxed, kind="stable")[:JUDGED_NEIGHBOURS]:
                    if relaxed[row] < min(value, np.inf):
                        judged = self.exact(relation, int(row))
                        if judged < value:
                            value, better = judged, relation.where(np.array([row]))
            if better is None:
                break
            here = Relation("here", {name: better.columns[name] for name in self.model.space.names})
        return value

    def from_the_answer(self) -> float:
        """Local search from the design that was returned."""
        design = self.solution.design
        assert design is not None
        plan, placement, purchase = design.plan, design.placement, design.purchase
        market = self.model.market
        _, network, storage = market.find(purchase)
        values = {name: getattr(plan, name) for name in plan.__dataclass_fields__}
        values |= {f"{d}_layout": placement.layout(d) for d in DIMENSIONS}
        values |= {
            "server": purchase.server,
            "servers": purchase.servers,
            "used": placement.ranks_in("domain"),
            "leaf_block": placement.ranks_in("leaf"),
            "network": (network.network, network.owned_servers),
            "storage": (storage.purchase, storage.owned),
            "checkpoint_interval": purchase.checkpoint_interval_s,
        }
        return self.descend(Relation("answer", self.model.space.encode(values)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--designs", type=int, default=1_000_000, help="random designs for each instance")
    arguments = parser.parse_args()
    head = ("instance", "tried", "judged", "best over bound", "answer over bound", "below", "time")
    print("{:32s} {:>10s} {:>7s} {:>16s} {:>18s} {:>6s} {:>8s}".format(*head))
    below = 0
    for file in sorted(INSTANCES.glob("*.yaml")):
        started = time.perf_counter()
        solution = solve(read(file), Limits())
        attack = Attack(solution)
        starts = attack.random(arguments.designs)
        for row in range(len(starts)):
            attack.descend(starts.where(np.array([row])))
        answer = attack.from_the_answer()
        below += attack.below
        print(
            f"{file.stem:32s} {attack.tried:10d} {attack.judged:7d} {attack.best / attack.bound - 1:16.2e} "
            f"{answer / attack.bound - 1:18.2e} {attack.below:6d} {time.perf_counter() - started:6.0f} s",
            flush=True,
        )
    print(f"designs below the bound of their certificate: {below}")
    return int(below > 0)


if __name__ == "__main__":
    sys.exit(main())
