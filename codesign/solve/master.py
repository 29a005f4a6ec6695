"""The master problem: plan and placement, hardware, storage as one-hot choices, with linearised costs. Floor 5.

In: the clusters that are left, and a floor for each plan and placement (from arithmetic bounds and Benders cuts). Out:
a bound on every design of the clusters, and the choice that attains it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import numpy as np
import numpy.typing as npt

from codesign.cost.assemble import CostModel
from codesign.expr import Monomial, Relation
from codesign.relax.lay import Cluster, Relaxation
from codesign.relax.outcome import Outcome
from codesign.relax.rows import Linear

Floats = npt.NDArray[np.float64]

HEADROOM = 1.0 + 1e-6
"""The objective may reach the incumbent times this: what is dearer is cut off."""


class Master:
    """Rows of the master.

    Parameters
    ----------
    plans, hardware, storage : the clusters.
    floors : for each tuple of `plans`, a bound on all designs with it.
    incumbent : objective of the best design known; dearer designs are cut off.
    """

    def __init__(
        self, model: CostModel, plans: Relation, hardware: Relation, storage: Relation, floors: Floats, incumbent: float
    ) -> None:
        cap = incumbent * HEADROOM
        self.relaxation = Relaxation(model.space, [plans, hardware, storage], scale=incumbent, cap=cap)
        rows = self.relaxation.rows
        self._plans: Cluster = self.relaxation.clusters[0]
        self._objective = rows.continuous("objective", 0.0, cap)
        rows.objective = self._objective
        relaxed = self.relaxation.lower(model.objective)
        rows.add("objective >= relaxed cost", Linear({self._objective: 1.0}).plus(relaxed, -1.0), 0.0)
        for limit in model.limits:
            # In units of the objective, so that terms of a limit and of the objective are of one size.
            share = self.relaxation.lower(limit.term, Monomial(f"share of {limit.name}", incumbent / limit.most))
            rows.add(f"limit: {limit.name}", share, upper=incumbent * (1.0 + 1e-9))
        self.floors = floors.copy()
        self._floor_row = rows.add("objective >= floor of plan and placement", self._floor(), 0.0)
        self.cuts = 0
        self._tangents: set[tuple[int, float]] = set()

    def _floor(self) -> Linear:
        return Linear({self._objective: 1.0}).plus(self._plans.sum_of(self.floors), -1.0)

    def raise_floors(self, tuples: npt.NDArray[np.intp], bounds: Floats) -> bool:
        """Benders cuts: no design with these plans and placements is below the bounds. Whether any floor rose."""
        before = self.floors[tuples]
        self.floors[tuples] = np.maximum(before, np.minimum(bounds, self.relaxation.cap))
        raised = int(np.sum(self.floors[tuples] > before))
        self.cuts += raised
        self.relaxation.rows.replace(self._floor_row, "objective >= floor of plan and placement", self._floor(), 0.0)
        return raised > 0

    def refine(self, chosen: Floats) -> int:
        """Lay tangents where an assignment stands and the term is underestimated; number of tangents laid."""
        laid = 0
        for exponential in self.relaxation.exponentials:
            log = 0.0
            for cluster, values in exponential.logs:
                picks = chosen[cluster.first : cluster.first + len(cluster.relation)]
                log += float(values[int(np.argmax(picks))])
            if log < exponential.lowest or log > np.log(self.relaxation.cap) + 1.0:
                continue
            missing = np.exp(log) - chosen[exponential.variable]
            point = (exponential.variable, log)
            if missing > 1e-7 * self.relaxation.scale and point not in self._tangents:
                self._tangents.add(point)
                self.relaxation.tangent(exponential, log)
                laid += 1
        return laid

    def standing_at(self, codes: Mapping[str, int]) -> Floats:
        """A hint: the tuple of a design in each cluster; nothing is said of other variables, or where it has none."""
        hint = np.full(len(self.relaxation.rows.variables), np.nan)
        for cluster in self.relaxation.clusters:
            same = np.logical_and.reduce([column == codes[name] for name, column in cluster.relation.columns.items()])
            if np.any(same):
                hint[cluster.first : cluster.first + len(same)] = same
        return hint

    def chosen_plan(self, chosen: Floats) -> int:
        """Tuple of plan and placement in an assignment."""
        return int(np.argmax(chosen[self._plans.first : self._plans.first + len(self._plans.relation)]))

    def solve(
        self,
        solver: Literal["cp-sat", "highs"],
        *,
        time_s: float,
        gap: float,
        seed: int,
        threads: int,
        hint: Floats | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> Outcome:
        """Minimise the rows with one of the solvers."""
        if solver == "cp-sat":
            from codesign.relax import cpsat

            return cpsat.solve(
                self.relaxation.rows, time_s=time_s, relative_gap=gap, seed=seed, threads=threads, hint=hint, stop=stop
            )
        from codesign.relax import mathopt

        return mathopt.solve(self.relaxation.rows, time_s=time_s, relative_gap=gap, seed=seed, stop=stop)
